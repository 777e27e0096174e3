//! Live status without a screen: prints all locks at first, and again whenever a holder or a queue changes. A lease
//! that runs down is no change.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::libc;
use nix::poll::PollFlags;

use crate::clock::Moment;
use crate::error::Error;
use crate::list::{Seen, Subject};
use crate::lock::{HolderId, LockName, StateKind};
use crate::report::{CommandOptions, Report, Row, StatusRows};
use crate::store::Store;
use crate::wait::{Limit, Woken};
use crate::{log, output};

/// The parts of a status whose changes are printed.
type Gist = Vec<(LockName, StateKind, Vec<HolderId>, Vec<HolderId>)>;

/// The event that the reader of a pipe, a socket or a terminal has left: besides the errors, which poll(2) always
/// reports, the end of a socket's other side. nxlock does not read from stdout.
const LEFT: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);

pub fn watch(mut store: Box<dyn Store>, subject: &Subject, every: Duration, as_json: bool) -> anyhow::Result<Report> {
    let mut shown: Option<(Gist, Vec<String>)> = None;
    let mut error: Option<Error> = None;
    let stdout = io::stdout();
    loop {
        let asked = Moment::now();
        match subject.look(store.as_mut(), &mut |_| {}) {
            Ok(Seen { rows, doubts }) => {
                error = None;
                let seen = (gist(&rows), doubts.clone());
                if shown.as_ref() != Some(&seen) {
                    let (named, options) = (subject.named.is_some(), CommandOptions::default());
                    let report = Report::Status(StatusRows { rows, named, options, doubts });
                    let has_doubts = shown.as_ref().map_or(&[][..], |(_, doubts)| doubts) != seen.1;
                    match output::show_again(&report, as_json, shown.is_none(), has_doubts) {
                        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Report::Watched),
                        shown => shown.map_err(|error| Error::internal("cannot write to stdout", &error))?,
                    }
                    shown = Some(seen);
                }
            }
            Err(met) if shown.is_none() => return Err(met.into()),
            Err(met) => {
                if error.as_ref().is_none_or(|before| before.cause != met.cause) {
                    log::warn(format_args!("{met}; trying again"));
                }
                error = Some(met);
            }
        }
        let pause = Limit::until(asked + every.max(asked.elapsed() * 2));
        if pause.wait_for(&[(stdout.as_fd(), LEFT)])? == Woken::Ready {
            return Ok(Report::Watched);
        }
    }
}

fn gist(rows: &[Row]) -> Gist {
    let gist = |row: &Row| {
        let state = &row.status.state;
        let holders = state.holders().map(|holder| holder.id.clone()).collect::<Vec<_>>();
        let queue = row.status.queue.iter().map(|waiter| waiter.id.clone()).collect();
        (row.lock.name.clone(), state.kind.clone(), holders, queue)
    };
    rows.iter().map(gist).collect()
}
