//! The half of an `acquire` that its caller waits for, while the keeper asks for the lock: it passes requests to
//! stop on, and ends as the keeper did if there is no grant.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::keeper::{KeeperEnd, Watched};
use crate::lock::{Fence, Token};
use crate::report::{Ending, Named, Report};
use crate::signals::{Notice, Signals, Source};
use crate::wait::{Limit, Woken};

/// What the keeper's asking came to.
pub enum KeeperAnswer {
    Granted((Token, Option<Fence>), KeeperEnd),
    Ended(Report),
}

/// A signal that is meant for a group has reached the keeper too, and a second would cut its clean-up short: one
/// from a process is passed on only if it does nothing by itself for so long.
const BY_ITSELF: Duration = Duration::from_millis(200);

/// Waits until the keeper has the lock, or has given up.
pub fn wait(
    lock: &Named,
    watched: &Watched,
    mut keeper: KeeperEnd,
    server_timeout: Duration,
) -> anyhow::Result<KeeperAnswer> {
    let mut signals = Signals::listen()?;
    let mut pass_on: Option<(Signal, Moment)> = None;
    let mut asked_to_stop = None;
    let mut watched_ended = false;
    while !keeper.has_spoken() {
        let until = pass_on.map_or(Moment::NEVER, |(_, at)| at);
        let mut wanted = vec![(keeper.as_fd(), PollFlags::POLLIN)];
        wanted.extend((!watched_ended).then(|| (watched.as_fd(), PollFlags::POLLIN)));
        match (Limit { until, cancel: signals.fds() }).wait_for(&wanted).context("cannot wait for the keeper")? {
            Woken::TimeUp => pass(&mut pass_on, keeper.pid()),
            Woken::Cancelled => {
                for Notice { number, source, .. } in signals.notices() {
                    let Ok(signal) = Signal::try_from(number) else { continue };
                    asked_to_stop = Some(signal);
                    // From the terminal it has reached the whole foreground group.
                    if source == Source::Process {
                        pass(&mut pass_on, keeper.pid());
                        pass_on = Some((signal, Moment::now() + BY_ITSELF));
                    }
                }
            }
            Woken::Ready if !watched_ended && watched.has_ended() => {
                watched_ended = true;
                // Nobody needs the lock any more.
                let _ = kill(keeper.pid(), Signal::SIGTERM);
            }
            Woken::Ready => {}
        }
    }
    asked_to_stop = asked_to_stop.or_else(|| signals.stop_requested());
    signals.end()?;
    let grant = keeper.grant();
    if watched_ended || watched.has_ended() {
        return Ok(KeeperAnswer::Ended(Report::Failed(watched_ended_error(lock, watched))));
    }
    match (grant, asked_to_stop) {
        (Some(grant), None) => Ok(KeeperAnswer::Granted(grant, keeper)),
        // The lock had just been granted: nobody is told of it.
        (Some(_), Some(signal)) => {
            keeper.withdraw(server_timeout);
            Ok(KeeperAnswer::Ended(Report::Interrupted(signal)))
        }
        (None, _) => ended(lock, keeper.pid()).map(KeeperAnswer::Ended),
    }
}

/// Passes on what was to be.
fn pass(pass_on: &mut Option<(Signal, Moment)>, keeper: Pid) {
    if let Some((signal, _)) = pass_on.take() {
        // It is ours to wait for, so the number is still its own.
        let _ = kill(keeper, signal);
    }
}

/// How the keeper ended, which has said why.
fn ended(lock: &Named, keeper: Pid) -> anyhow::Result<Report> {
    let status = loop {
        match waitpid(keeper, None) {
            Err(Errno::EINTR) => {}
            status => break status.context("cannot tell how the keeper ended")?,
        }
    };
    Ok(match status {
        WaitStatus::Exited(_, status) if status != 0 => {
            Report::Said(Ending::Status(u8::try_from(status).unwrap_or(u8::MAX)))
        }
        WaitStatus::Signaled(_, signal @ (Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP), _) => {
            Report::Interrupted(signal)
        }
        other => {
            let cause = match other {
                WaitStatus::Signaled(_, signal, _) => format!("the keeper was killed by {signal}"),
                _ => "the keeper ended without a word".to_owned(),
            };
            Report::Failed(Error::internal(&format!("cannot acquire \"{}\"", lock.name), &cause))
        }
    })
}

fn watched_ended_error(lock: &Named, watched: &Watched) -> Error {
    Error {
        kind: ErrorKind::Usage,
        action: format!("cannot keep \"{}\" while process {} runs", lock.name, watched.pid()),
        cause: "it has ended, while the lock was waited for".into(),
        hint: String::new(),
    }
}
