//! Gives a lock back, or breaks the lock of a known holder.

use super::{Wants, meant, open, token};
use crate::cli::{GlobalArgs, Release};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::Claim;
use crate::report::{NotYours, Released, Report, Wanted};
use crate::retry::{self, ReleaseAnswer};
use crate::{keeper, log};

pub fn release(global: &GlobalArgs, asked: &Release) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(global, &asked.lock)?;
    let mut store = open(global, prefix, Wants::default())?;
    let timeout = global.server_timeout;
    let never = Moment::NEVER;
    let (wanted, given_back) = match (&asked.break_id, &asked.token) {
        (Some(id), _) => {
            (Wanted::Break, retry::release(timeout, never, |limit| store.break_lock(&lock.name, id, limit)))
        }
        (None, Some(given)) => {
            let claim = Claim { name: lock.name.clone(), token: token(given)?, owner_pid: None, beside_setnx: None };
            if keeper::ask_to_leave(&lock.key, &claim.token) {
                log::trace(format_args!("its keeper leaves \"{}\" to us", lock.name));
            }
            (Wanted::Release, retry::release(timeout, never, |limit| store.release(&claim, limit)))
        }
        (None, None) => return Err(no_token().into()),
    };
    let broken = wanted == Wanted::Break;
    Ok(match given_back? {
        ReleaseAnswer::Done => Report::Released(Released { lock, broken }),
        ReleaseAnswer::InDoubt => {
            log::warn(format_args!(
                "an answer was lost, so \"{}\" may have been given back only now, or have ended before",
                lock.name
            ));
            Report::Released(Released { lock, broken })
        }
        ReleaseAnswer::NotYours(state) => Report::NotYours(NotYours { lock, wanted, state }),
    })
}

fn no_token() -> Error {
    Error {
        kind: ErrorKind::Usage,
        action: "cannot release a lock without its token".into(),
        cause: "none was given".into(),
        hint: "give TOKEN, set NXLOCK_TOKEN, or write `-` to read it from stdin".into(),
    }
}
