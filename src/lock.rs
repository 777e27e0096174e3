//! The nouns of locking: names, leases, holders, runs. No I/O, except to find out who asks for a lock; no clock, except
//! for how long a recorded run takes.

mod key;
pub mod machine;
mod run;
mod setnx;
mod sharing;
mod token;
pub mod words;

use std::cmp::Ordering;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

pub use key::{Key, companion_key};
pub use run::{Recorded, Recording, Run, RunCount, RunEnd, RunOutcome, RunUnderWay};
pub use setnx::{BesideSetnx, Legacy};
pub use sharing::{Share, Shares, Sharing, Slot, SlotCount};
pub use token::{HELD, HolderId, KnownAs, Owner, Supersedes, Terms, Token, Told, Upkeep};

use crate::clock::Moment;
use crate::duration;
use crate::error::Error;
use crate::text::{self, Tainted};

/// A lock's name, on which its users agree.
///
/// 1 to 200 bytes, no control characters, and no braces: in a cluster `{...}` picks the slot (Redis cluster
/// specification, hash tags), so a brace could part a lock from its fence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(String);

impl LockName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares names as people count: `job-2` comes before `job-10`.
    pub fn compare(&self, other: &LockName) -> Ordering {
        text::natural(&self.0, &other.0)
    }
}

impl FromStr for LockName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.len() {
            0 => return Err("a lock needs a name".into()),
            1..=200 => {}
            n => return Err(format!("{n} bytes is too long: 200 at most")),
        }
        keyworthy(text)?;
        Ok(LockName(text.to_owned()))
    }
}

/// For people. Anybody may have written a name that a server lists, so what could fool a terminal is escaped.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::clean(&self.0))
    }
}

/// The part of a key before the name. May be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

impl Prefix {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the empty prefix: the name is the key.
    pub fn none() -> Prefix {
        Prefix(String::new())
    }

    /// Returns the key of a lock.
    pub fn key(&self, name: &LockName) -> String {
        format!("{}{}", self.0, name.0)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        keyworthy(text)?;
        Ok(Prefix(text.to_owned()))
    }
}

fn keyworthy(text: &str) -> Result<(), String> {
    if text.contains(['{', '}']) {
        return Err("braces are not allowed: they would choose the slot in a cluster".into());
    }
    if text.chars().any(char::is_control) {
        return Err("control characters are not allowed".into());
    }
    Ok(())
}

/// Time to live: how long a lock outlives its last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// Below this, a round trip to a server takes a good part of the lease.
    pub const MIN: Duration = Duration::from_millis(100);
    /// Ten years: far below where the arithmetic of `PX` overflows.
    pub const MAX: Duration = duration::MAX;
    /// Maximum interval between renewals: a bound on how late a holder notices by itself that a server forgot the lock, or
    /// that it is asked to give up.
    pub const RENEWED_WITHIN: Duration = Duration::from_secs(10);

    pub fn get(self) -> Duration {
        self.0
    }

    pub fn millis(self) -> u64 {
        duration::millis(self.0)
    }

    /// Returns a ttl of at least this duration, such as the rest of a promise to hold.
    pub fn at_least(duration: Duration) -> Ttl {
        Ttl(duration.clamp(Ttl::MIN, Ttl::MAX))
    }

    /// Returns how far this machine's clock may drift from the server's within one lease, as in Redlock: one percent,
    /// and two milliseconds for the granularity of `PX`.
    fn drift(self) -> Duration {
        self.0 / 100 + Duration::from_millis(2)
    }

    /// Returns until when the holder may trust a lease that it requested at `asked`.
    pub fn believed_until(self, asked: Moment) -> Moment {
        asked + self.0.saturating_sub(self.drift())
    }

    /// Returns after what time a holder renews its lease, a third of the ttl: two renewals may fail before the lease is in
    /// danger.
    pub fn renewed_after(self) -> Duration {
        (self.0 / 3).min(Ttl::RENEWED_WITHIN)
    }
}

/// How long a lock lasts that nobody renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    For(Ttl),
    /// By this machine's clock.
    Until(SystemTime),
}

impl Lifetime {
    /// Returns the ttl of a request that is sent now; none if it would come too late.
    pub fn ttl(self, now: SystemTime) -> Option<Ttl> {
        match self {
            Lifetime::For(ttl) => Some(ttl),
            Lifetime::Until(end) => end.duration_since(now).ok().filter(|left| *left >= Ttl::MIN).map(Ttl::at_least),
        }
    }

    /// Returns for how long a request still comes in time; none if that does not end.
    pub fn open_for(self, now: SystemTime) -> Option<Duration> {
        match self {
            Lifetime::For(_) => None,
            Lifetime::Until(end) => Some(end.duration_since(now).unwrap_or_default().saturating_sub(Ttl::MIN)),
        }
    }
}

impl FromStr for Ttl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match duration::parse(text)? {
            short if short < Ttl::MIN => Err("too short: 100ms at least".into()),
            duration => Ok(Ttl(duration)),
        }
    }
}

/// The beginning of the value of a shared lock; the fence follows that the first of its holders was granted.
pub const SHARED_VALUE: &str = "nx1:shared:";

/// Fencing token: grows with every grant of a name, by any client. A resource that remembers the highest it has seen
/// can refuse a holder from the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

impl Fence {
    /// The highest: the scripts of a server count no further, and any JSON parser reads it as it is.
    pub const MAX: Fence = Fence((1 << 53) - 1);

    /// Returns when it was granted, by the clock of the server that granted it.
    fn granted(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0)
    }

    /// Returns how long ago that was: nothing of a clock that is ahead of `now`.
    pub fn age(self, now: SystemTime) -> Duration {
        now.duration_since(self.granted()).unwrap_or_default()
    }
}

/// All that a renewal or a release needs: a name, and the token that proves the claim to it.
#[derive(Clone, Debug)]
pub struct Claim {
    pub name: LockName,
    pub token: Token,
    /// The process with which the claim ends, where the store can see it end.
    pub owner_pid: Option<u32>,
    /// How long after the grant the lock is kept, even if that process and its guard are killed, where the store can.
    pub at_least: Option<Duration>,
    /// Set if the key is shared with old `SETNX` clients.
    pub beside_setnx: Option<BesideSetnx>,
    /// Set if the run under this claim is recorded.
    pub recording: Option<Recording>,
    /// The tokens of the runs that the claimant is part of: if one of them holds the lock, it waits for itself.
    pub enclosing: Vec<Token>,
    /// The claims to further locks that stand and fall with this one, in the order of the command line.
    pub also: Vec<Also>,
    /// Who breaks the lock: set if it is to be released by that one in place of its holder.
    pub broken_by: Option<Token>,
}

/// A claim to a lock that stands and falls with another claim.
#[derive(Clone, Debug)]
pub struct Also {
    pub claim: Claim,
    /// Of its grant.
    pub fence: Option<Fence>,
}

impl Claim {
    /// Returns a claim by its token, of a process that does not keep it.
    pub fn of(name: LockName, token: Token) -> Claim {
        Claim {
            name,
            token,
            owner_pid: None,
            at_least: None,
            beside_setnx: None,
            recording: None,
            enclosing: Vec::new(),
            also: Vec::new(),
            broken_by: None,
        }
    }

    /// Returns the claim to one of the locks: the first is its own.
    pub fn part(&self, at: usize) -> &Claim {
        at.checked_sub(1).map_or(self, |at| &self.also[at].claim)
    }

    /// Does the same, to change it.
    pub fn part_mut(&mut self, at: usize) -> &mut Claim {
        match at.checked_sub(1) {
            None => self,
            Some(at) => &mut self.also[at].claim,
        }
    }

    /// Returns the claims to all locks, its own first.
    pub fn parts(&self) -> impl Iterator<Item = &Claim> {
        (0..=self.also.len()).map(|at| self.part(at))
    }

    /// Returns the claim to the lock that a state is of.
    pub fn part_of(&self, state: &LockState) -> &Claim {
        self.parts().find(|part| state.name.as_ref() == Some(&part.name)).unwrap_or(self)
    }

    /// Returns the claim with this token, as somebody else breaks it. By whom is found out by a process that renews it; a bare
    /// number does not say whether one does.
    pub fn broken(name: LockName, token: Token, by: &Token) -> Claim {
        let broken_by = Some(by.clone()).filter(|_| !token.is_lease_only() && !token.is_beside_setnx());
        Claim { broken_by, ..Claim::of(name, token) }
    }

    /// Returns the token that says who has the claim: its own, or the one beside a bare number.
    pub fn identity(&self) -> &str {
        self.beside_setnx.as_ref().map_or(self.token.as_str(), |beside| &beside.identity)
    }

    /// Notes how the run under it ended, to be recorded with its release, if it is recorded.
    pub fn ended(&mut self, end: Option<RunEnd>) {
        if let Some(recording) = &mut self.recording {
            recording.end = end;
        }
    }

    /// Returns whether its holder may be asked to give up, as its token says or the one beside that.
    pub fn may_be_asked(&self) -> bool {
        Token::read(self.identity().as_bytes()).is_some_and(|told| told.terms.may_be_asked())
    }

    /// Returns whether a run that the claimant is part of has this token.
    pub fn is_enclosed_by(&self, token: &[u8]) -> bool {
        self.enclosing.iter().any(|enclosing| enclosing.as_str().as_bytes() == token)
    }

    /// Returns whether a renewal may move the expiry nearer: not if another process renews the lock, and relies on it.
    pub fn may_shorten(&self) -> bool {
        self.owner_pid.is_some() || self.token.is_lease_only()
    }
}

/// A process that asks a holder to give up, or breaks its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The holder.
    pub of: HolderId,
    /// Tells who asks, and tells this request from others.
    pub by: Token,
}

/// A granted lock, and until when its holder may trust it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub fence: Option<Fence>,
    /// Before the request was sent: the lease counts from then.
    pub asked: Moment,
    /// When the reply had arrived.
    pub granted: Moment,
    pub until: Moment,
    /// The value of the old `SETNX` lock that the grant took over.
    pub taken_over: Option<Legacy>,
    pub slot: Option<Slot>,
}

/// How a lock was lost while its command ran.
pub enum Lost {
    /// The server reported who holds it now, if anyone.
    Taken(LockState),
    /// It could not be renewed in time; the error of the last attempt.
    Unconfirmed(Option<Error>),
}

impl Lost {
    /// Returns which one was lost of several, if that is known.
    pub fn name(&self) -> Option<&LockName> {
        if let Lost::Taken(state) = self { state.name.as_ref() } else { None }
    }
}

/// Who holds a lock, for people to read: no decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: HolderId,
    pub owner: Owner,
    /// Start of the claim, and time since, by the server's clock where it reports the grant.
    pub since: SystemTime,
    pub held: Duration,
    pub reason: Option<Tainted>,
    pub terms: Terms,
    /// Set if its nxlock and guard are gone, and only processes of its command keep the lock: the file that these have
    /// open.
    pub orphaned: Option<PathBuf>,
}

impl Holder {
    pub fn of(Told { id, owner, reason, terms, .. }: Told, since: SystemTime, held: Duration) -> Holder {
        Holder { id, owner, since, held, reason, terms, orphaned: None }
    }

    /// Returns whether a process renews its lock, and may be asked to give it up.
    pub fn may_be_asked(&self) -> bool {
        self.terms.may_be_asked() && self.orphaned.is_none()
    }
}

/// What nxlock finds under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// No such key.
    Free,
    /// A value of nxlock's format, with an expiry.
    Held,
    /// Reserved for the next waiter, which has not claimed it yet.
    Reserved,
    /// Held by one or more that let others hold it too.
    Shared,
    /// A value of another format: held by another program.
    Foreign,
    /// A bare number without expiry: a `SETNX` lock whose value says when it ends.
    Legacy,
    /// A value without expiry: it never expires by itself.
    NoExpiry,
    /// Not a string, so not a lock. Its type, as reported by `TYPE`.
    WrongType(Tainted),
    /// No majority of several servers agrees on a holder, nor on there being none.
    Contested,
    /// The votes of servers that do not answer could decide who holds the lock.
    Unknown,
    /// A companion key has the wrong type: the waiters are unknown, and the lock is not handed over.
    Damaged,
}

/// When a lock ends, unless a holder renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// In so long.
    In(Duration),
    /// With the last process of its command, which the kernel reports: its lease has ended, or nobody is left to renew it.
    WithCommand,
    /// Never by itself: its key has no expiry.
    Never,
    /// Nobody has said, or there is no lock that could end.
    Unknown,
}

impl Expiry {
    /// Returns the expiry of a key with this ttl; none if the key has no expiry.
    pub fn of_key(ttl: Option<Duration>) -> Expiry {
        ttl.map_or(Expiry::Never, Expiry::In)
    }

    /// Returns the rest of the lease, if it is known and ends.
    pub fn left(self) -> Option<Duration> {
        match self {
            Expiry::In(left) => Some(left),
            Expiry::WithCommand | Expiry::Never | Expiry::Unknown => None,
        }
    }
}

/// Who holds a name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The lock's name, where several are asked for at once.
    pub name: Option<LockName>,
    pub kind: StateKind,
    pub holder: Option<Holder>,
    pub expiry: Expiry,
    pub fence: Option<Fence>,
    /// What the value of a [`StateKind::Legacy`] lock says.
    pub legacy: Option<Legacy>,
    /// The holders of a [`StateKind::Shared`] lock; none if they are not known.
    pub shares: Option<Shares>,
    /// How long ago the lock was granted the last time, by the server's clock; nothing if it does not tell.
    pub since_grant: Option<Duration>,
    /// Who has broken the claim that was to be renewed or released, if somebody has, and the server tells.
    pub broken_by: Option<Box<Told>>,
}

impl LockState {
    /// Returns the state as that of the lock with this name, one of several.
    pub fn of(self, name: &LockName) -> LockState {
        LockState { name: Some(name.clone()), ..self }
    }

    /// Returns the id by which people know its holder.
    pub fn holder_id(&self) -> Option<&HolderId> {
        self.holder.as_ref().map(|holder| &holder.id)
    }

    /// Returns those who hold the lock, as far as they are known.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        let shares = self.shares.iter().flat_map(|shares| &shares.held);
        self.holder.iter().chain(shares.map(|share| &share.holder))
    }

    /// Returns the holder known as `id`, and the rest of its lease.
    pub fn held_by(&self, id: &HolderId) -> Option<(&Holder, Duration)> {
        let alone = self.holder.iter().map(|holder| (holder, self.expiry));
        let shares = self.shares.iter().flat_map(|shares| &shares.held).map(|share| (&share.holder, share.expiry));
        let found = alone.chain(shares).find(|(holder, _)| holder.id == *id);
        found.map(|(holder, expiry)| (holder, expiry.left().unwrap_or_default()))
    }

    /// Returns the file that processes of a command have open which keep the lock, if its nxlock and guard are gone.
    pub fn orphaned(&self) -> Option<&Path> {
        self.holders().find_map(|holder| holder.orphaned.as_deref())
    }

    /// Returns whether all who hold the lock are known, as far as their list goes.
    pub fn tells_holders(&self) -> bool {
        match self.kind {
            StateKind::Shared => {
                self.shares.as_ref().is_some_and(|shares| !shares.held.is_empty() || shares.taken == 0)
            }
            StateKind::Damaged | StateKind::Unknown | StateKind::Contested => false,
            _ => true,
        }
    }

    /// Returns whether this token holds the lock. Compares the id: no state contains a whole token.
    pub fn is_held_with(&self, token: &Token) -> bool {
        self.holders().any(|holder| token.random_part().starts_with(holder.id.as_str()))
    }

    pub fn free(fence: Option<Fence>) -> LockState {
        LockState {
            name: None,
            kind: StateKind::Free,
            holder: None,
            expiry: Expiry::Unknown,
            fence,
            legacy: None,
            shares: None,
            since_grant: None,
            broken_by: None,
        }
    }

    /// Returns what an administrator of these locks should know.
    pub fn warning(&self) -> Option<String> {
        let orphaned = self.orphaned().map(|file| {
            let whose = if self.kind == StateKind::Shared { "a" } else { "the" };
            let file = text::path(file);
            format!(
                "{whose} holder's nxlock is gone, and processes of its command keep the lock until they end, among \
                 those that have {file} open"
            )
        });
        orphaned.or_else(|| self.warning_of_kind().map(str::to_owned))
    }

    fn warning_of_kind(&self) -> Option<&'static str> {
        match self.kind {
            StateKind::NoExpiry | StateKind::Legacy => Some("it has no expiry: it does not end by itself"),
            StateKind::WrongType(_) => Some("the key is of another type: it cannot be a lock"),
            StateKind::Contested => Some("no holder has a majority of the servers"),
            StateKind::Damaged => Some("a key that belongs to it is of another type: delete that key"),
            StateKind::Unknown => Some("too few servers answer to tell whose it is"),
            StateKind::Shared => self.warning_of_shares(),
            StateKind::Free | StateKind::Held | StateKind::Reserved | StateKind::Foreign => None,
        }
    }

    fn warning_of_shares(&self) -> Option<&'static str> {
        if self.expiry == Expiry::Never {
            return Some("it has no expiry until one of its holders renews it");
        }
        match &self.shares {
            None => Some("by whom it is shared is not known"),
            Some(Shares { taken: 0, .. }) => Some("its shares were lost: nobody gets it before its lease ends"),
            Some(shares) if shares.is_mixed() => {
                Some("its holders asked for different numbers of slots: the least counts")
            }
            Some(_) => None,
        }
    }

    /// Returns the state that a key's value and ttl show; none if it has no expiry. `now` is the server's clock.
    pub fn of_value(value: &[u8], ttl: Option<Duration>, fence: Option<Fence>, now: SystemTime) -> LockState {
        let holder = Token::read(value).map(|told| {
            // The fence is the server's time of the grant in microseconds; a token only has the time at which its owner
            // began to ask, by the owner's clock.
            let granted = fence.map(Fence::granted);
            let since = granted.unwrap_or(told.born).min(now);
            let held = now.duration_since(since).unwrap_or_default();
            Holder::of(told, since, held)
        });
        let legacy = Legacy::read(value, now).filter(|_| holder.is_none() && ttl.is_none());
        let is_shared = value.starts_with(SHARED_VALUE.as_bytes());
        let kind = match (&holder, ttl) {
            _ if legacy.is_some() => StateKind::Legacy,
            _ if is_shared => StateKind::Shared,
            (_, None) => StateKind::NoExpiry,
            (None, Some(_)) => StateKind::Foreign,
            (Some(_), Some(_)) => StateKind::Held,
        };
        LockState {
            name: None,
            kind,
            holder,
            expiry: Expiry::of_key(ttl),
            fence,
            legacy,
            shares: None,
            since_grant: fence.map(|fence| fence.age(now)),
            broken_by: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_printable_and_without_braces() {
        for good in ["deploy", "a b", "héé", &"x".repeat(200)] {
            assert_eq!(LockName::from_str(good).unwrap().as_str(), good);
        }
        for bad in ["", "a{b", "a}b", "a\nb", "\u{7f}", &"x".repeat(201)] {
            assert!(LockName::from_str(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_shown_without_what_could_fool_a_terminal() {
        let name = LockName::from_str("a\u{202e}b").unwrap();
        assert_eq!(name.to_string(), "a\\u{202e}b");
        assert_eq!(Prefix::from_str("lock:").unwrap().key(&name), "lock:a\u{202e}b");
    }

    #[test]
    fn a_lease_is_believed_for_less_than_its_ttl_from_before_the_question() {
        let asked = Moment::now();
        let ttl = Ttl::at_least(Duration::from_secs(30));
        assert_eq!(ttl.believed_until(asked), asked + Duration::from_millis(29_698));
    }

    #[test]
    fn a_key_without_expiry_is_told_apart() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let state = |value: &str, ttl| LockState::of_value(value.as_bytes(), ttl, None, now).kind;
        assert_eq!(state("1800000000", None), StateKind::Legacy);
        assert_eq!(state("1800000000.25", None), StateKind::Legacy);
        let legacy = |value: &str| LockState::of_value(value.as_bytes(), None, None, now).legacy.unwrap();
        assert!(legacy("1799999999.5").stale && !legacy("1800000001").stale && !legacy("1800000001000").stale);
        assert_eq!(legacy("1800000001000").valid_until, now + Duration::from_secs(1));
        assert_eq!(state("1.2.3", None), StateKind::NoExpiry);
        assert_eq!(state("job 7", None), StateKind::NoExpiry);
        assert_eq!(state("", None), StateKind::NoExpiry);
        assert_eq!(state("1800000000", Some(Duration::from_secs(1))), StateKind::Foreign);
    }
}
