//! Live status without a screen: prints all locks at first, and again whenever a holder or a queue changes. A lease
//! that runs down is no change.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::libc;
use nix::sys::stat::fstat;

use crate::clock::Moment;
use crate::error::Error;
use crate::list::{Seen, Subject};
use crate::lock::{HolderId, LockName, StateKind};
use crate::report::{Report, Row, StatusRows};
use crate::store::Store;
use crate::wait::{Limit, Woken};
use crate::{log, output};

/// The parts of a status whose changes are printed.
type Gist = Vec<(LockName, StateKind, Vec<HolderId>, Vec<HolderId>)>;

pub fn watch(mut store: Box<dyn Store>, subject: &Subject, every: Duration, as_json: bool) -> anyhow::Result<Report> {
    let mut shown: Option<Gist> = None;
    let mut error: Option<Error> = None;
    let stdout = io::stdout();
    // poll(2) reports that the reader of a pipe has left; other files have no event worth waiting for.
    let is_pipe = fstat(&stdout).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFIFO);
    loop {
        let asked = Moment::now();
        match subject.look(store.as_mut(), &mut |_| {}) {
            Ok(Seen { rows, replica }) => {
                error = None;
                let gist = gist(&rows);
                if shown.as_ref() != Some(&gist) {
                    let (named, options) = (subject.named.is_some(), String::new());
                    let report = Report::Status(StatusRows { rows, named, options, last: None, replica });
                    match output::show_again(&report, as_json, shown.is_none()) {
                        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Report::Watched),
                        shown => shown.map_err(|error| Error::internal("cannot write to stdout", &error))?,
                    }
                    shown = Some(gist);
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
        let cancel = &[is_pipe.then(|| stdout.as_fd())];
        let pause = Limit { until: asked + every.max(asked.elapsed() * 2), cancel };
        if pause.wait_for(&[])? == Woken::Cancelled {
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
