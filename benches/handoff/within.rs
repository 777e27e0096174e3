//! The other roles of this program when it is started again: the command under a lock, or a poller.

use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read, Write, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::rig::{now, pause};

pub const STAMP: &str = "--stamp";
pub const POLL: &str = "--poll";

/// How long a command takes, unless it runs until its input ends.
const HOLD: Duration = Duration::from_millis(2);

pub fn program() -> PathBuf {
    env::current_exe().expect("this program has a path")
}

/// Returns the words of a command that writes `who`, its start and its end to the file.
pub fn stamping(file: &Path, who: usize, until_eof: bool) -> Vec<OsString> {
    let until = if until_eof { "eof" } else { "soon" };
    vec![program().into(), STAMP.into(), file.into(), who.to_string().into(), until.into()]
}

pub fn stamp(mut args: impl Iterator<Item = String>) {
    let began = now();
    let mut next = || args.next().expect("file, who, until");
    let (file, who, until) = (next(), next(), next());
    let mut file = OpenOptions::new().append(true).create(true).open(file).expect("the file of stamps");
    match &until[..] {
        "eof" => drop(stdin().read_to_end(&mut Vec::new())),
        _ => pause(HOLD),
    }
    // Only the write comes after the end.
    let line = format!("{who} {} {}\n", began.as_nanos(), now().as_nanos());
    file.write_all(line.as_bytes()).expect("stamps are written");
}

/// Polls as people write it, without the cost of a shell and of redis-cli.
pub fn poll(mut args: impl Iterator<Item = String>) {
    let port: u16 = args.next().and_then(|port| port.parse().ok()).expect("a port");
    let (name, program) = (args.next().expect("a name"), args.next().expect("a command"));
    let token = std::process::id().to_string();
    let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
    let mut connection = client.get_connection().expect("connected");
    let mut set = redis::cmd("SET");
    set.arg(&name).arg(&token).arg("NX").arg("PX").arg(30_000);
    while set.query::<Option<String>>(&mut connection).expect("an answer").is_none() {
        pause(Duration::from_millis(100));
    }
    Command::new(&program).arg0(&program).args(args).status().expect("the command starts");
    let text = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    redis::cmd("EVAL").arg(text).arg(1).arg(&name).arg(&token).exec(&mut connection).expect("given back");
}
