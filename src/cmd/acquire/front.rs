//! The front of `acquire --while-pid`, for which the caller waits while the keeper asks for the lock. It passes on
//! requests to stop, and ends as the keeper did if there is no grant.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::clock::Moment;
use crate::cmd::request::Request;
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::keeper::{Grant, KeeperEnd, Watched};
use crate::report::{Ending, Named, Report};
use crate::signals::{Notice, Signals, Source};
use crate::wait::{Limit, Woken};

/// The outcome of the keeper's request.
pub enum KeeperAnswer {
    Granted(Grant, KeeperEnd),
    Ended(Box<Report>),
}

/// How long the keeper may take to react by itself before the front passes a process's signal on. A signal to the whole
/// group has reached the keeper too, and a second one would cut its clean-up short.
const BY_ITSELF: Duration = Duration::from_millis(200);

/// Waits until the keeper has the lock, or has given up.
pub fn wait(request: &Request<'_>, watched: &Watched, mut keeper: KeeperEnd) -> anyhow::Result<KeeperAnswer> {
    let mut signals = Signals::listen()?;
    let mut pass_on: Option<(Signal, Moment)> = None;
    let mut asked_to_stop = None;
    let mut watched_ended = false;
    while !keeper.has_spoken() {
        let until = pass_on.map_or(Moment::NEVER, |(_, at)| at);
        let mut wanted = vec![(keeper.as_fd(), PollFlags::POLLIN)];
        wanted.extend((!watched_ended).then(|| (watched.as_fd(), PollFlags::POLLIN)));
        match (Limit { until, cancel: &signals.fds(), ..Limit::NONE })
            .wait_for(&wanted)
            .context("cannot wait for the keeper")?
        {
            Woken::TimeUp => pass(&mut pass_on, keeper.pid()),
            Woken::Cancelled => {
                for Notice { number, source, .. } in signals.notices() {
                    let Ok(signal) = Signal::try_from(number) else { continue };
                    asked_to_stop = Some(signal);
                    // A signal from the terminal has reached the whole foreground group.
                    if source == Source::Process {
                        pass(&mut pass_on, keeper.pid());
                        pass_on = Some((signal, Moment::now() + BY_ITSELF));
                    }
                }
            }
            Woken::Ready if !watched_ended && watched.has_ended() => {
                watched_ended = true;
                // No process needs the lock any more.
                let _ = kill(keeper.pid(), Signal::SIGTERM);
            }
            Woken::Ready => {}
        }
    }
    asked_to_stop = asked_to_stop.or_else(|| signals.stop_requested());
    signals.end()?;
    let grant = keeper.grant();
    if watched_ended || watched.has_ended() {
        return Ok(KeeperAnswer::Ended(Box::new(Report::Failed(watched_ended_error(&request.lock, watched)))));
    }
    match (grant, asked_to_stop) {
        (Some(grant), None) => Ok(KeeperAnswer::Granted(grant, keeper)),
        // The keeper had just got the lock: it gives it back, and the token is not printed.
        (Some(_), Some(signal)) => {
            keeper.withdraw(request.global.server_timeout);
            Ok(KeeperAnswer::Ended(Box::new(Report::Interrupted(signal))))
        }
        (None, _) => {
            let pid = keeper.pid();
            // If only the grant was unreadable, the keeper waits for its confirmation, and sees now that none comes.
            drop(keeper);
            ended(request, pid).map(|report| KeeperAnswer::Ended(Box::new(report)))
        }
    }
}

/// Passes the pending signal on.
fn pass(pass_on: &mut Option<(Signal, Moment)>, keeper: Pid) {
    if let Some((signal, _)) = pass_on.take() {
        // The front has not reaped the keeper yet, so the pid is still the keeper's.
        let _ = kill(keeper, signal);
    }
}

/// Reaps the keeper, which has reported why it ended.
fn ended(request: &Request<'_>, keeper: Pid) -> anyhow::Result<Report> {
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
            let ends = span(request.ttl.get());
            let cause = format!("{cause}; if it had been granted the lock, that ends by itself within {ends}");
            Report::Failed(Error::internal(&format!("cannot acquire \"{}\"", request.lock.name), &cause))
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
