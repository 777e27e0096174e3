//! Asks a holder to give up its lock. The holder decides, when it next renews the lock (`renewer`).

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Holder, LockName, LockState};
use crate::retry;
use crate::store::{Asking, LockStatus, Look, Store};

/// The outcome of a request.
pub enum Outcome {
    /// The holder finds out when it renews the lock.
    Yes(Holder),
    /// An answer was lost: the holder is asked or not.
    InDoubt(Holder, Error),
    /// The holder cannot be asked, or nobody is left to hear it.
    Refuses(Holder),
    /// Nobody of that ID holds the lock.
    NotTheHolder(LockState),
}

/// Asks a holder. Tries for no longer than `within`.
///
/// # Errors
/// The error of the last attempt.
pub fn ask(store: &mut dyn Store, name: &LockName, asker: &Asker, within: Duration) -> Result<Outcome, Error> {
    let LockStatus { state, .. } = retry::insist(within, |limit| store.look(name, Look::Holder(&asker.of), limit))?;
    let Some((holder, _)) = state.held_by(&asker.of) else { return Ok(Outcome::NotTheHolder(state)) };
    if !holder.may_be_asked() {
        return Ok(Outcome::Refuses(holder.clone()));
    }
    match retry::insist(within, |limit| store.ask(name, asker, Asking::ToGiveUp, limit)) {
        Ok(()) => Ok(Outcome::Yes(holder.clone())),
        Err(error) if error.kind == ErrorKind::Unanswered => Ok(Outcome::InDoubt(holder.clone(), error)),
        Err(error) => Err(error),
    }
}
