//! The work under a lock, and its trace in the log. This test binary is the command: it is started again with orders in
//! its environment.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork, setsid};

use crate::record::{Nanos, Stamp, Terms, Who, Word, boot_clock, nanos};
use crate::shell;
use crate::support::{lasts, program};

/// The orders for a holder.
#[derive(Clone, Debug)]
pub struct Orders {
    pub who: Who,
    /// The ttl of its lease.
    pub ttl: Duration,
    pub length: Duration,
    pub beat: Duration,
    /// Ignores TERM.
    pub deaf: bool,
    /// A child of the command does the work, and only the command obeys TERM.
    pub tree: bool,
    /// The command starts a process in a session of its own, forked twice, which does the work and ignores signals.
    pub daemon: bool,
    /// For a script: the arguments of `nxlock acquire`.
    pub script: Option<Vec<String>>,
}

/// The arguments with which this binary carries out orders.
pub const CARRY_OUT: [&str; 4] = ["--exact", "section::carry_out", "--ignored", "--test-threads=1"];

impl Orders {
    pub fn environment(&self, log: &Path) -> Vec<(&'static str, String)> {
        let mut environment = vec![
            ("CHAOS_LOG", log.display().to_string()),
            ("CHAOS_WHO", self.who.to_string()),
            ("CHAOS_TTL", self.ttl.as_micros().to_string()),
            ("CHAOS_LENGTH", self.length.as_micros().to_string()),
            ("CHAOS_BEAT", self.beat.as_micros().to_string()),
        ];
        environment.extend(self.deaf.then(|| ("CHAOS_DEAF", String::new())));
        environment.extend(self.tree.then(|| ("CHAOS_TREE", String::new())));
        environment.extend(self.daemon.then(|| ("CHAOS_DAEMON", String::new())));
        environment.extend(self.script.as_ref().map(|args| ("CHAOS_SCRIPT", args.join("\n"))));
        environment
    }

    fn given() -> Option<(Orders, String)> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let orders = Orders {
            who: usize::try_from(number("CHAOS_WHO")?).ok()?,
            ttl: Duration::from_micros(number("CHAOS_TTL")?),
            length: Duration::from_micros(number("CHAOS_LENGTH")?),
            beat: Duration::from_micros(number("CHAOS_BEAT")?),
            deaf: std::env::var_os("CHAOS_DEAF").is_some(),
            tree: std::env::var_os("CHAOS_TREE").is_some(),
            daemon: std::env::var_os("CHAOS_DAEMON").is_some(),
            script: std::env::var("CHAOS_SCRIPT").ok().map(|args| args.lines().map(str::to_owned).collect()),
        };
        Some((orders, std::env::var("CHAOS_LOG").ok()?))
    }
}

#[test]
#[ignore = "it is what holders run, and has no orders otherwise"]
fn carry_out() {
    let Some((orders, log)) = Orders::given() else { return };
    if let Ok(job) = std::env::var(SHELL) {
        return shell::run(&job);
    }
    if orders.tree {
        return delegate();
    }
    let log = File::options().append(true).open(log).unwrap();
    if let Some(entered) = std::env::var(ENTERED).ok().and_then(|entered| entered.parse().ok()) {
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(ignore);
        return go_on(&log, &orders, entered);
    }
    if orders.deaf {
        ignore(Signal::SIGTERM);
    }
    match &orders.script {
        None if orders.daemon => entrust(&log, &orders),
        None => {
            dwell(&log, &orders, of_environment(), Nanos::MAX, |_| true);
        }
        Some(acquire) => script(&log, &orders, acquire),
    }
}

/// Lets a child that ignores TERM do the work; the command itself dies of TERM at once.
fn delegate() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(CARRY_OUT).env_remove("CHAOS_TREE").env("CHAOS_DEAF", "");
    let _ = child.status();
}

/// For a daemon: the time at which its section was entered.
const ENTERED: &str = "CHAOS_ENTERED";
/// For a shell with job control: the words of its job.
pub const SHELL: &str = "CHAOS_SHELL";

/// Returns the terms of the grant under which this process runs.
fn of_environment() -> Terms {
    Terms::of(|name| std::env::var(name).ok())
}

fn ignore(number: Signal) {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { signal(number, SigHandler::SigIgn) }.unwrap();
}

/// Enters, lets a daemon beat, and leaves when it has ended. The daemon does not know of a lock.
fn entrust(log: &File, orders: &Orders) {
    let entered = boot_clock();
    let mut daemon = Command::new(std::env::current_exe().unwrap());
    daemon.args(CARRY_OUT).env(ENTERED, entered.to_string()).stdout(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"NXLOCK_")) {
        daemon.env_remove(name);
    }
    // SAFETY: setsid(2), fork(2) and _exit(2) are async-signal-safe.
    unsafe {
        daemon.pre_exec(|| {
            setsid()?;
            match fork()? {
                ForkResult::Parent { .. } => libc::_exit(0),
                ForkResult::Child => Ok(()),
            }
        });
    }
    stamp(log, orders, entered, Word::Enter(of_environment()));
    let mut daemon = daemon.spawn().unwrap();
    // The daemon has the other end open until it ends.
    std::io::copy(&mut daemon.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    daemon.wait().unwrap();
    stamp(log, orders, boot_clock(), Word::Leave);
}

/// Beats until the section is over.
fn go_on(log: &File, orders: &Orders, entered: Nanos) {
    let end = entered + nanos(orders.length);
    loop {
        let now = boot_clock();
        if now >= end {
            return;
        }
        stamp(log, orders, now, Word::Beat);
        lasts(orders.beat);
    }
}

/// Writes a line in one write(2), which many processes may do at once.
fn stamp(mut log: &File, orders: &Orders, at: Nanos, word: Word) {
    let line = format!("{}\n", Stamp { at, who: orders.who, word });
    assert_eq!(log.write(line.as_bytes()).unwrap(), line.len());
}

/// Enters, beats, leaves. Stamps nothing after `until`, and calls `renew` before each stamp to ask whether to go on.
fn dwell(log: &File, orders: &Orders, terms: Terms, mut until: Nanos, mut renew: impl FnMut(&mut Nanos) -> bool) {
    let entered = boot_clock();
    if entered >= until {
        return;
    }
    let stamp = |at, word| stamp(log, orders, at, word);
    stamp(entered, Word::Enter(terms));
    let end = entered + nanos(orders.length);
    loop {
        lasts(orders.beat);
        let now = boot_clock();
        if now >= until || !renew(&mut until) {
            return;
        }
        let now = boot_clock();
        if now >= until {
            return;
        }
        if now >= end {
            return stamp(now, Word::Leave);
        }
        stamp(now, Word::Beat);
    }
}

/// Acquires, renews if it takes long, and releases. Does nothing that the lease does not cover.
fn script(log: &File, orders: &Orders, acquire: &[String]) {
    let ttl = nanos(orders.ttl);
    let name = &acquire[0];
    let whole = format!("{}ms", ttl / 1_000_000);
    let asked = boot_clock();
    let done = Command::new(program()).args(["-q", "acquire", "--export"]).args(acquire).output().unwrap();
    if !done.status.success() {
        return;
    }
    let exported = shlex::split(&String::from_utf8(done.stdout).unwrap()).unwrap();
    // A word ends with its command, as in a shell.
    let of =
        |word: &str, name: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.trim_end_matches(';').to_owned());
    let value = |name: &str| exported.iter().find_map(|word| of(word, name));
    let (token, terms) = (value("NXLOCK_TOKEN").unwrap(), Terms::of(value));
    let covers = |asked: Nanos| asked + ttl - ttl / 100 - 2_000_000;
    let call = |verb: &str, more: &[&str]| {
        let mut command = Command::new(program());
        command.args(["-q", verb, name]).args(more).env("NXLOCK_TOKEN", &token);
        command.output().unwrap().status.success()
    };
    let mut until = covers(asked);
    // The wait has taken an unknown part of the lease: count from now.
    let now = boot_clock();
    if now + ttl / 2 >= until {
        if !call("renew", &["--ttl", &whole]) {
            return;
        }
        until = covers(now);
    }
    dwell(log, orders, terms, until, |until| {
        let now = boot_clock();
        if now + ttl / 2 < *until {
            return true;
        }
        let renewed = call("renew", &["--ttl", &whole]);
        if renewed {
            *until = covers(now);
        }
        renewed
    });
    call("release", &[]);
}
