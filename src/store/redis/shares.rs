//! Locks that several hold together: who holds a share of one, as the server tells.

use std::time::{Duration, SystemTime};

use redis::Value;

use super::reply::{self, Operation};
use super::scripts::Script;
use super::{Server, status};
use crate::error::{Error, ErrorKind};
use crate::lock::{
    Expiry, Fence, Holder, HolderId, LockState, Share, Shares, Sharing, Slot, SlotCount, StateKind, Token,
};
use crate::store::LockStatus;
use crate::text::Tainted;
use crate::wait::Limit;

/// The status of a shared lock, and the tokens of its holders.
pub struct SharedLock {
    pub status: LockStatus,
    pub tokens: Vec<Token>,
}

/// How many waiters INSPECT looks at, at most, unless fewer are of use.
pub const WAITERS: &str = "500";

impl Server {
    /// Adds the holders of a shared lock to its status, `among` them this one if there are too many. They stay unknown
    /// while the cluster is moving the lock, and if their key is damaged.
    pub(super) fn look_at_shares(
        &mut self,
        operation: &Operation<'_>,
        mut seen: LockStatus,
        among: Option<&HolderId>,
        limit: Limit<'_>,
    ) -> Result<SharedLock, Error> {
        let id = among.map_or("", HolderId::as_str);
        match self.script_unless_moving(operation, Script::InspectShares, &[id, WAITERS], limit) {
            Ok(None) => {}
            Ok(Some(answer)) => return shared(&answer).ok_or_else(|| self.senseless(operation)),
            Err(error) if error.kind == ErrorKind::Damaged => seen.state.kind = StateKind::Damaged,
            Err(error) => return Err(error),
        }
        Ok(SharedLock { status: seen, tokens: Vec::new() })
    }

    /// Returns the state of a lock with those who share it, by one script that looks at no waiter. They stay unknown while
    /// the cluster is moving the lock.
    pub(super) fn look_at_holders(&mut self, operation: &Operation<'_>, limit: Limit<'_>) -> Result<LockState, Error> {
        match self.script_unless_moving(operation, Script::InspectShares, &["", "0"], limit)? {
            Some(answer) => shared(&answer).map(|lock| lock.status.state).ok_or_else(|| self.senseless(operation)),
            None => Ok(self.look_moving(operation, limit)?.0.state),
        }
    }
}

/// Parses a reply of INSPECT for shared locks.
pub fn shared(answer: &[Value]) -> Option<SharedLock> {
    let [Value::Array(inspected), Value::Array(shares), taken, least] = answer else { return None };
    let mut status = status(inspected)?;
    if status.state.kind != StateKind::Shared {
        return Some(SharedLock { status, tokens: Vec::new() });
    }
    let now = reply::instant(inspected.get(4)?)?;
    let mut all: Vec<(Share, Token)> = shares.chunks_exact(3).filter_map(|share| one(share, now)).collect();
    all.sort_by_key(|(share, _)| (share.slot, share.holder.since));
    let (held, tokens): (Vec<Share>, _) = all.into_iter().unzip();
    let taken = usize::try_from(reply::integer(taken)?).ok()?;
    // Where the server has lost the least limit, the tokens tell.
    let told = || held.iter().filter_map(|share| share.sharing().slots()).min();
    let slots = slots(least)?.or_else(told);
    status.state.shares = Some(Shares { held, taken, slots });
    Some(SharedLock { status, tokens })
}

/// Parses `token, end_ms, terms`; none if the token is not nxlock's.
fn one(share: &[Value], now: SystemTime) -> Option<(Share, Token)> {
    let [token, end, terms] = share else { return None };
    let text = reply::text(token)?.into_raw();
    let told = Token::read(text.as_bytes())?;
    let end = reply::instant_of_millis(u64::try_from(reply::integer(end)?).ok()?)?;
    let mut terms = reply::text(terms).map(Tainted::into_raw).unwrap_or_default().split('|');
    let mut number = || terms.next().and_then(|field| field.parse::<u64>().ok());
    let (slot, fence, since) = (number(), number(), number());
    let since = since.map_or(told.born, |us| SystemTime::UNIX_EPOCH + Duration::from_micros(us)).min(now);
    let held = now.duration_since(since).unwrap_or_default();
    let share = Share {
        holder: Holder::of(told, since, held),
        expiry: Expiry::In(end.duration_since(now).unwrap_or_default()),
        fence: fence.map(Fence),
        slot: slot.and_then(|slot| u16::try_from(slot).ok()),
        is_claimed: terms.next() != Some("r"),
    };
    Some((share, text.parse().ok()?))
}

/// Parses the least limit of all shares: 0 is none.
#[expect(clippy::option_option, reason = "no limit is not the same as no number")]
pub fn slots(least: &Value) -> Option<Option<SlotCount>> {
    match u16::try_from(reply::integer(least)?).ok()? {
        0 => Some(None),
        count => SlotCount::of(count).map(Some),
    }
}

/// Parses the slot of a grant. A token without a limit has none.
#[expect(clippy::option_option, reason = "no slot is not the same as no answer")]
pub fn slot(slot: &Value, sharing: Sharing) -> Option<Option<Slot>> {
    match sharing {
        Sharing::Slots(of) => {
            let number = reply::integer(slot).and_then(|slot| u16::try_from(slot).ok());
            number.filter(|number| *number < of.get()).map(|number| Some(Slot { number, of }))
        }
        Sharing::Shared | Sharing::Exclusive => Some(None),
    }
}

/// Adds to a state how many hold the lock, and the least limit of them.
pub fn with_count(state: LockState, taken: &Value, least: &Value) -> Option<LockState> {
    let (taken, slots) = (usize::try_from(reply::integer(taken)?).ok()?, slots(least)?);
    let shares = (state.kind == StateKind::Shared).then(|| Shares { held: Vec::new(), taken, slots });
    Some(LockState { shares, ..state })
}
