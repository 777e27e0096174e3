//! What is done under a lock, and what is left of it in the log. This test binary is the command: it is
//! started again with orders in its environment.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, signal};

use crate::record::{Nanos, Stamp, Who, Word, boot_clock, nanos};
use crate::support::{lasts, program};

/// What one who holds a lock is to do.
#[derive(Clone, Debug)]
pub struct Orders {
    pub who: Who,
    /// Of its lease.
    pub ttl: Duration,
    pub length: Duration,
    pub beat: Duration,
    /// Does not hear TERM.
    pub deaf: bool,
    /// A child of the command does it, and only the command hears TERM.
    pub tree: bool,
    /// For a script: what it calls `nxlock acquire` with.
    pub script: Option<Vec<String>>,
}

/// The arguments that make this binary carry out orders.
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
            script: std::env::var("CHAOS_SCRIPT").ok().map(|args| args.lines().map(str::to_owned).collect()),
        };
        Some((orders, std::env::var("CHAOS_LOG").ok()?))
    }
}

#[test]
#[ignore = "it is what holders run, and has no orders otherwise"]
fn carry_out() {
    let Some((orders, log)) = Orders::given() else { return };
    if orders.tree {
        return delegate();
    }
    if orders.deaf {
        // SAFETY: to be ignored runs no code of ours.
        unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) }.unwrap();
    }
    let log = File::options().append(true).open(log).unwrap();
    match &orders.script {
        None => {
            let fence = std::env::var("NXLOCK_FENCE").ok().and_then(|fence| fence.parse().ok());
            dwell(&log, &orders, fence, Nanos::MAX, |_| true);
        }
        Some(acquire) => script(&log, &orders, acquire),
    }
}

/// The command dies of TERM at once, and its child does not hear it.
fn delegate() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(CARRY_OUT).env_remove("CHAOS_TREE").env("CHAOS_DEAF", "");
    let _ = child.status();
}

/// Enters, beats, leaves. Whoever keeps time by itself stamps nothing after `until`, and asks from
/// time to time whether it may go on.
fn dwell(log: &File, orders: &Orders, fence: Option<u64>, mut until: Nanos, mut renew: impl FnMut(&mut Nanos) -> bool) {
    let entered = boot_clock();
    if entered >= until {
        return;
    }
    // One write is one line, however many write.
    let stamp = |at, word| {
        let line = format!("{}\n", Stamp { at, who: orders.who, word });
        assert_eq!((&mut &*log).write(line.as_bytes()).unwrap(), line.len());
    };
    stamp(entered, Word::Enter(fence));
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

/// Acquire, renew where it takes long, release: and nothing is done that the lease does not cover.
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
    let value = |name: &str| exported.iter().find_map(|word| word.strip_prefix(name)).unwrap().to_owned();
    let (token, fence) = (value("NXLOCK_TOKEN="), value("NXLOCK_FENCE=").parse().ok());
    let covers = |asked: Nanos| asked + ttl - ttl / 100 - 2_000_000;
    let call = |verb: &str, more: &[&str]| {
        let mut command = Command::new(program());
        command.args(["-q", verb, name]).args(more).env("NXLOCK_TOKEN", &token);
        command.output().unwrap().status.success()
    };
    let mut until = covers(asked);
    // How much of the lease the wait has taken is not known: it is counted from now.
    let now = boot_clock();
    if now + ttl / 2 >= until {
        if !call("renew", &["--ttl", &whole]) {
            return;
        }
        until = covers(now);
    }
    dwell(log, orders, fence, until, |until| {
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
