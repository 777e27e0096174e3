//! Asks a holder to give up its lock. The holder decides, when it next renews the lock (`renewer`).

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::lock::{Holder, HolderId, LockName, LockState, Token};
use crate::retry;
use crate::store::{LockStatus, Store};

/// What came of asking.
pub enum Asked {
    /// The holder finds out when it renews the lock.
    Yes(Holder),
    /// An answer was lost: the holder is asked or not.
    InDoubt(Holder, Error),
    /// The holder cannot be asked.
    Refuses(Holder),
    /// Nobody of that ID holds the lock.
    NotTheHolder(LockState),
}

/// Asks the holder known as `id` on behalf of `by`. Tries for no longer than `within`.
///
/// # Errors
/// The error of the last attempt.
pub fn ask(
    store: &mut dyn Store,
    name: &LockName,
    id: &HolderId,
    by: &Token,
    within: Duration,
) -> Result<Asked, Error> {
    let LockStatus { state, .. } = retry::insist(within, |limit| store.inspect_holder(name, id, limit))?;
    let Some((holder, rest)) = state.held_by(id) else { return Ok(Asked::NotTheHolder(state)) };
    if !holder.terms.may_be_asked() {
        return Ok(Asked::Refuses(holder.clone()));
    }
    match retry::insist(within, |limit| store.ask_to_give_up(name, id, by, rest, limit)) {
        Ok(()) => Ok(Asked::Yes(holder.clone())),
        Err(error) if error.kind == ErrorKind::Unanswered => Ok(Asked::InDoubt(holder.clone(), error)),
        Err(error) => Err(error),
    }
}
