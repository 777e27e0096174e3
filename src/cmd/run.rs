//! Hold a lock around a command: the only verb that composes.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;

use super::{Wants, claim, enclosing, give_back, give_up_if_asked, meant, open, wait_for};
use crate::cli::{Everywhere, Run};
use crate::events;
use crate::inbox::Alarm;
use crate::keeper::{GivenBack, Keeper};
use crate::lock::{HELD, Hold, Lease, LockName, Ttl};
use crate::report::{Named, NotRun, Ran, Report, Unreleased};
use crate::say;
use crate::signals::Signals;
use crate::store::{Kind, Trouble};
use crate::supervise::{self, Lost, Outcome, Rules, Supervisor, Unborn};

pub fn run(everywhere: &Everywhere, asked: &Run) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(everywhere, &asked.which)?;
    let hold = claim(&lock, &asked.patience, &asked.setnx, Some(std::process::id()))?;
    events::begin(asked.telling.events.as_ref(), &lock, &hold)?;
    let mut store = open(everywhere, prefix, Wants::of(&asked.patience, &asked.setnx))?;
    let timeout = everywhere.server_timeout;
    let mut signals = Signals::listen()?;
    let lease = match wait_for(&mut *store, (&lock, &hold), asked.ttl, &asked.patience, everywhere, &mut signals)? {
        Ok(lease) => lease,
        Err(report) => return Ok(report),
    };
    say::trace(format_args!("got \"{}\"", lock.name));
    // All that may be lacking is had before the command is: what runs must be kept, and stopped.
    let alarm = signals.begin_command().and_then(|()| Alarm::new().context("cannot keep the lock"));
    let alarm = match alarm {
        Ok(alarm) => alarm,
        Err(error) => {
            give_back(&mut *store, &hold, timeout);
            return Err(error);
        }
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &hold, timeout, &mut signals) {
        return Ok(interrupted);
    }
    let words = words(asked);
    let environment = environment(&lock, &hold, lease, asked.ttl);
    let rules = Rules {
        ttl: asked.ttl,
        kill_after: asked.kill_after,
        time_limit: asked.time_limit,
        on_lost: asked.on_lost,
        descendants: asked.descendants,
    };
    say::trace(format_args!("starting the command"));
    say::settle(before_the_command(lease));
    let child = match supervise::spawn(&words, &environment, signals.inherited(), rules.stop_at(lease.until)) {
        Ok(child) => child,
        Err(errno) => {
            give_back(&mut *store, &hold, timeout);
            return Ok(not_run(lock, words, errno));
        }
    };
    say::trace(format_args!("started the command, pid {}", child.pid));
    events::started(child.pid);
    let mut keeper = Keeper::new(store, hold, asked.ttl, lease, timeout, alarm);
    let supervisor = Supervisor::new(&lock.name, child, lease, rules, &mut signals, &mut keeper);
    let Outcome { ending, time_limit, mut lost, until } = supervisor.run().context("cannot watch the command")?;
    if let Ok(ending) = &ending {
        say::trace(format_args!("the command has ended: {}", say::ending(ending)));
        events::ended(ending, time_limit);
    }
    let rest = asked.at_least.filter(|_| ending.is_ok() && lost.is_none());
    let rest = rest.map(|least| (lease.granted + least).remaining()).filter(|rest| !rest.is_zero());
    let unreleased = give_up(&lock.name, keeper, rest.map(Ttl::at_least), &mut lost);
    if let (Err(_), Some(trouble)) = (&ending, &unreleased) {
        say::warn(format_args!("{trouble}"));
    }
    match ending {
        Ok(ending) => {
            let unreleased = unreleased.map(|trouble| Unreleased { trouble, ends_in: until.remaining() });
            Ok(Report::Ran(Ran { lock, ending, time_limit, lost, unreleased }))
        }
        Err(Unborn::TooLate) => Err(too_late(&lock.name).into()),
        Err(Unborn::Failed(errno)) => Ok(not_run(lock, words, errno)),
    }
}

/// How long the start of the command may wait for stderr to take what was said before it.
fn before_the_command(lease: Lease) -> Duration {
    (lease.until.remaining() / 20).min(Duration::from_millis(250))
}

fn not_run(lock: Named, words: Vec<OsString>, errno: Errno) -> Report {
    let command = words.into_iter().next().unwrap_or_default();
    Report::NotRun(NotRun { lock, command, missing: errno == Errno::ENOENT, error: errno.into() })
}

/// We were held up between the grant and the start: stopped, or the whole machine was.
fn too_late(name: &LockName) -> Trouble {
    Trouble {
        kind: Kind::Unreachable,
        tried: format!("cannot use the lock \"{name}\""),
        came: "it was granted, and its lease was about to end before the command could be started".into(),
        remedy: "see what stopped nxlock meanwhile, or use a longer --ttl".into(),
    }
}

/// The program and its arguments, byte for byte.
fn words(asked: &Run) -> Vec<OsString> {
    match &asked.shell {
        Some(text) => vec!["sh".into(), "-c".into(), text.clone()],
        None => asked.command.clone(),
    }
}

fn environment(lock: &Named, hold: &Hold, lease: Lease, ttl: Ttl) -> [(&'static str, Option<String>); 6] {
    let held = enclosing().into_iter().chain([hold.token.clone()]);
    [
        ("NXLOCK_NAME", Some(lock.name.as_str().to_owned())),
        ("NXLOCK_KEY", Some(lock.key.clone())),
        ("NXLOCK_TOKEN", Some(hold.token.as_str().to_owned())),
        ("NXLOCK_FENCE", lease.fence.map(|fence| fence.0.to_string())),
        ("NXLOCK_TTL_MS", Some(ttl.millis().to_string())),
        (HELD, Some(held.map(|token| token.as_str().to_owned()).collect::<Vec<_>>().join(" "))),
    ]
}

/// Gives the lock back, or lets it stand for the `rest` that `--at-least` asks for. What kept it from that; and if it
/// was not ours any more, that is how it was lost.
fn give_up(name: &LockName, keeper: Keeper, rest: Option<Ttl>, lost: &mut Option<Lost>) -> Option<Trouble> {
    match keeper.give_back(rest) {
        GivenBack::NotYours(occupancy) if lost.is_none() => {
            let found = Lost::Taken(occupancy);
            let follows = "found when the command had ended";
            say::lost(name, &found, follows);
            events::lost(&found, follows);
            *lost = Some(found);
        }
        GivenBack::Done => {
            match rest {
                None => say::trace(format_args!("gave back \"{name}\"")),
                Some(rest) => say::trace(format_args!("\"{name}\" stays locked for {}", say::span(rest.get()))),
            }
            events::released(rest.map(Ttl::get));
        }
        GivenBack::NotYours(_) => {}
        GivenBack::Unconfirmed(trouble) => {
            events::unreleased(&trouble);
            return Some(trouble);
        }
    }
    None
}
