//! The keeper as other processes see it.

use std::fs;
use std::path::PathBuf;

use nix::unistd::{Pid, getsid};

use super::{LONG, Script};
use crate::support::{Authority, Five, Local, Redis, Terminal, eventually, text_of};

fn open_files(pid: i32) -> Vec<(i32, PathBuf)> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?))
    })
    .collect()
}

fn keeps_nothing_of_its_callers(authority: &impl Authority) {
    let inherited = authority.directory().join("inherited");
    fs::write(&inherited, "").unwrap();
    let script = format!("9< {}", inherited.display());
    let script = Script::holding(authority, &format!("{LONG} {script}"));
    let open = open_files(script.keeper);
    for stream in 0..3 {
        assert!(open.contains(&(stream, "/dev/null".into())), "{open:?}");
    }
    let foreign = |(number, file): &&(i32, PathBuf)| {
        let file = file.to_string_lossy();
        // The keeper's own descriptors, and the record files of a local store.
        let own = ["socket:", "pipe:", "anon_inode:"].iter().any(|kind| file.starts_with(kind));
        *number > 2 && !own && file != "/dev/null" && !file.contains("/locks/")
    };
    assert_eq!(open.iter().filter(foreign).count(), 0, "{open:?}");
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", script.keeper)).unwrap(), PathBuf::from("/"));
    assert_eq!(getsid(Some(Pid::from_raw(script.keeper))), Ok(Pid::from_raw(script.keeper)), "a session of its own");
    let stat = fs::read_to_string(format!("/proc/{}/stat", script.keeper)).unwrap();
    let parent: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_ne!(parent, script.running.pid(), "nobody who would have to wait for it");
    assert!(stat.contains("(nxlock)"));
    script.goes_on_to("");
    script.keeper_ends();
    script.ends_untold();
}

#[test]
fn a_keeper_has_nothing_of_its_caller_s() {
    keeps_nothing_of_its_callers(&Redis::start());
    keeps_nothing_of_its_callers(&Local::start());
    keeps_nothing_of_its_callers(&Five::start());
}

#[test]
fn nobody_can_read_the_token_off_a_keeper() {
    let redis = Redis::start();
    let script = Script::holding(&redis, LONG);
    let token = redis.value("lock:job").unwrap();
    let secret = &token[12..30];
    for file in ["cmdline", "environ", "comm", "stat"] {
        let shown = fs::read(format!("/proc/{}/{file}", script.keeper)).unwrap();
        assert!(!String::from_utf8_lossy(&shown).contains(secret), "{file}");
    }
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(sockets.contains(&token[4..12]) && !sockets.contains(secret));
    script.goes_on_to("");
    script.keeper_ends();
    script.ends_untold();
}

#[test]
fn a_terminal_that_is_closed_ends_it_only_with_the_script() {
    let redis = Redis::start();
    let script = r#"trap 'echo closed >> "$1"' HUP
        eval "$(nxlock acquire job --while-pid $$ --ttl 1h --export || echo exit $?)"
        echo up; while ! [ -s "$1" ]; do sleep 0.02; done; while ! [ -e "$1.end" ]; do sleep 0.02; done"#;
    let notes = redis.directory().join("notes");
    let mut terminal = Terminal::start(redis.sh(script, &[notes.to_str().unwrap()]));
    terminal.shows("up");
    terminal.hang_up();
    eventually("the script has had it", || text_of(&notes).contains("closed"));
    assert!(redis.exists("lock:job"));
    fs::write(notes.with_extension("end"), "").unwrap();
    eventually("it is free", || !redis.exists("lock:job"));
}
