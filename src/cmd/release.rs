//! Give a lock back, or take it from a holder that was seen.

use super::{Wants, meant, open, token};
use crate::cli::{Everywhere, Release};
use crate::clock::Moment;
use crate::lock::Hold;
use crate::report::{NotYours, Released, Report, Wanted};
use crate::say;
use crate::store::{Kind, Trouble};
use crate::vigil;
use crate::wait::{self, GivenBack};

pub fn release(everywhere: &Everywhere, asked: &Release) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(everywhere, &asked.which)?;
    let mut store = open(everywhere, prefix, Wants::default())?;
    let timeout = everywhere.server_timeout;
    let never = Moment::NEVER;
    let (wanted, given_back) = match (&asked.break_id, &asked.token) {
        (Some(id), _) => {
            (Wanted::Break, wait::give_back(timeout, never, |limit| store.take_away(&lock.name, id, limit)))
        }
        (None, Some(given)) => {
            let hold = Hold { name: lock.name.clone(), token: token(given)?, lives_with: None, beside_setnx: None };
            if vigil::dismiss(&lock.key, &hold.token) {
                say::trace(format_args!("its keeper leaves \"{}\" to us", lock.name));
            }
            (Wanted::Release, wait::give_back(timeout, never, |limit| store.release(&hold, limit)))
        }
        (None, None) => return Err(no_token().into()),
    };
    let broken = wanted == Wanted::Break;
    Ok(match given_back? {
        GivenBack::Done => Report::Released(Released { lock, broken }),
        GivenBack::InDoubt => {
            say::warn(format_args!(
                "an answer was lost, so \"{}\" may have been given back only now, or have ended before",
                lock.name
            ));
            Report::Released(Released { lock, broken })
        }
        GivenBack::NotYours(occupancy) => Report::NotYours(NotYours { lock, wanted, occupancy }),
    })
}

fn no_token() -> Trouble {
    Trouble {
        kind: Kind::Usage,
        tried: "cannot release a lock without its token".into(),
        came: "none was given".into(),
        remedy: "give TOKEN, set NXLOCK_TOKEN, or write `-` to read it from stdin".into(),
    }
}
