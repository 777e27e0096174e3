//! Sets a lock's expiry to a full ttl from now.

use super::{left_claim, lock_of, named, no_token, open_for, token};
use crate::cli::{GlobalArgs, Renew};
use crate::lock::{Claim, Ttl};
use crate::report::{NotYours, Renewed, Report, Wanted};
use crate::store::Renewed as Answer;
use crate::{duration, log, notify, retry};

/// The variable with which the guard of a killed `run` makes the last renewal of its lock: it may move the expiry
/// nearer, and nothing else ends the lock.
pub const LAST_RENEWAL: &str = "NXLOCK_LAST_RENEWAL";

pub fn renew(global: &GlobalArgs, asked: &Renew) -> anyhow::Result<Report> {
    let (lock, prefix) = named(global, &asked.lock)?;
    let is_last = std::env::var_os(LAST_RENEWAL).is_some();
    let owner_pid = is_last.then(std::process::id);
    let given = asked.token.as_deref().ok_or_else(|| no_token("renew", ""))?;
    let claim = Claim { owner_pid, ..left_claim(&lock, token(given)?) };
    let mut store = open_for(global, &prefix, &claim)?;
    let answer = retry::insist(global.server_timeout, |limit| match is_last {
        true => store.let_end(&claim, asked.ttl, limit),
        false => store.renew(&claim, asked.ttl, limit),
    })?;
    Ok(match answer {
        Answer::Kept(kept) => {
            if kept.put_back {
                notify::put_back(&lock.name, 1);
            }
            Report::Renewed(Renewed { lock, ttl: asked.ttl })
        }
        Answer::Longer(left) => {
            log::note(format_args!(
                "\"{}\" still ends in {}, not sooner: its holder renews it",
                lock.name,
                duration::span(left)
            ));
            Report::Renewed(Renewed { lock, ttl: Ttl::at_least(left) })
        }
        Answer::NotYours(state) => {
            let lock = lock_of(&state, lock, &prefix);
            Report::NotYours(NotYours { lock, wanted: Wanted::Renew, state, ended: None })
        }
    })
}
