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
use crate::limit::{Limit, Woken};
use crate::lock::{Fence, Token};
use crate::report::{Ending, Named, Report};
use crate::signals::{Notice, Signals, Source};
use crate::store::{Kind, Trouble};
use crate::vigil::{ToKeeper, Ward};

/// What the keeper's asking came to.
pub enum Heard {
    Granted((Token, Option<Fence>), ToKeeper),
    Ended(Report),
}

/// A signal that is meant for a group has reached the keeper too, and a second would cut its clean-up short: one
/// from a process is passed on only if it does nothing by itself for so long.
const BY_ITSELF: Duration = Duration::from_millis(200);

/// Waits until the keeper has the lock, or has given up.
pub fn wait(lock: &Named, ward: &Ward, mut keeper: ToKeeper, server_timeout: Duration) -> anyhow::Result<Heard> {
    let mut signals = Signals::listen()?;
    let mut pass_on: Option<(Signal, Moment)> = None;
    let mut asked_to_stop = None;
    let mut ward_ended = false;
    while !keeper.has_spoken() {
        let until = pass_on.map_or(Moment::NEVER, |(_, at)| at);
        let mut wanted = vec![(keeper.as_fd(), PollFlags::POLLIN)];
        wanted.extend((!ward_ended).then(|| (ward.as_fd(), PollFlags::POLLIN)));
        match (Limit { until, bells: signals.fds() }).wait_for(&wanted).context("cannot wait for the keeper")? {
            Woken::TimeUp => pass(&mut pass_on, keeper.pid()),
            Woken::Bell => {
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
            Woken::Ready if !ward_ended && ward.has_ended() => {
                ward_ended = true;
                // Nobody needs the lock any more.
                let _ = kill(keeper.pid(), Signal::SIGTERM);
            }
            Woken::Ready => {}
        }
    }
    asked_to_stop = asked_to_stop.or_else(|| signals.stop_requested());
    signals.end()?;
    let grant = keeper.grant();
    if ward_ended || ward.has_ended() {
        return Ok(Heard::Ended(Report::Failed(left_alone(lock, ward))));
    }
    match (grant, asked_to_stop) {
        (Some(grant), None) => Ok(Heard::Granted(grant, keeper)),
        // The lock had just been granted: nobody is told of it.
        (Some(_), Some(signal)) => {
            keeper.withdraw(server_timeout);
            Ok(Heard::Ended(Report::Interrupted(signal)))
        }
        (None, _) => ended(lock, keeper.pid()).map(Heard::Ended),
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
            let came = match other {
                WaitStatus::Signaled(_, signal, _) => format!("the keeper was killed by {signal}"),
                _ => "the keeper ended without a word".to_owned(),
            };
            Report::Failed(Trouble::of_ours(&format!("cannot acquire \"{}\"", lock.name), &came))
        }
    })
}

fn left_alone(lock: &Named, ward: &Ward) -> Trouble {
    Trouble {
        kind: Kind::Usage,
        tried: format!("cannot keep \"{}\" while process {} runs", lock.name, ward.pid()),
        came: "it has ended, while the lock was waited for".into(),
        remedy: String::new(),
    }
}
