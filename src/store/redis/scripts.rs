//! The texts of the scripts, as nxlock sends them.

/// The operations that a server carries out in one step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Script {
    Acquire,
    Renew,
    Release,
    Nudge,
    Inspect,
    Raise,
    /// Acquire, renew and release on a key shared with old `SETNX` clients: longer texts, which no other lock needs.
    AcquireBesideSetnx,
    RenewBesideSetnx,
    ReleaseBesideSetnx,
    /// Acquire, renew, release and inspect for holders that let others hold the lock too.
    AcquireShare,
    RenewShare,
    ReleaseShare,
    InspectShares,
    /// Acquire and release for those of whom only the newest waits: the same texts, with one more key. It is no key of
    /// the others, as a node that is handing over a slot runs a script only if it has all its keys.
    AcquireNewest,
    ReleaseNewest,
    AcquireNewestShare,
    ReleaseNewestShare,
    /// The operations on one key each, while the keys of a lock are moving from one server to another.
    AcquireMoving,
    RenewMoving,
    ReleaseMoving,
    FenceMoving,
}

const ACQUIRE: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    include_str!("superseding.lua"),
    include_str!("place.lua"),
    include_str!("acquire.lua")
);
const RELEASE: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    include_str!("superseding.lua"),
    include_str!("leaving.lua"),
    include_str!("release.lua")
);
const INSPECT: &str = concat!(include_str!("queue.lua"), include_str!("inspect.lua"));
const RENEW: &str = include_str!("renew.lua");
const NUDGE: &str = concat!(include_str!("queue.lua"), include_str!("nudge.lua"));
const RAISE: &str = include_str!("raise.lua");
const ACQUIRE_BESIDE_SETNX: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    include_str!("superseding.lua"),
    "local function ask()\n",
    include_str!("place.lua"),
    include_str!("acquire.lua"),
    "end\n",
    include_str!("setnx.lua"),
    include_str!("setnx_acquire.lua")
);
const RENEW_BESIDE_SETNX: &str = concat!(
    "local function ask()\n",
    include_str!("renew.lua"),
    "end\n",
    include_str!("setnx.lua"),
    include_str!("setnx_renew.lua")
);
const RELEASE_BESIDE_SETNX: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    include_str!("superseding.lua"),
    "local function ask()\n",
    include_str!("leaving.lua"),
    include_str!("release.lua"),
    "end\n",
    include_str!("setnx.lua"),
    include_str!("setnx_release.lua")
);
const ACQUIRE_SHARE: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    include_str!("superseding.lua"),
    include_str!("sharing.lua"),
    include_str!("place.lua"),
    include_str!("sharing_acquire.lua")
);
const RENEW_SHARE: &str = concat!(include_str!("companions.lua"), include_str!("sharing_renew.lua"));
const RELEASE_SHARE: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    include_str!("superseding.lua"),
    include_str!("sharing.lua"),
    include_str!("leaving.lua"),
    include_str!("sharing_release.lua")
);
const INSPECT_SHARES: &str = concat!(
    include_str!("queue.lua"),
    include_str!("companions.lua"),
    "local function ask()\n",
    include_str!("inspect.lua"),
    "end\n",
    include_str!("sharing_inspect.lua")
);
const ACQUIRE_MOVING: &str = include_str!("moving_acquire.lua");
const RENEW_MOVING: &str = include_str!("moving_renew.lua");
const RELEASE_MOVING: &str = include_str!("moving_release.lua");
const FENCE_MOVING: &str = include_str!("moving_fence.lua");

static ACQUIRE_SENT: [u8; sent::<0>(ACQUIRE).1] = sent(ACQUIRE).0;
static RELEASE_SENT: [u8; sent::<0>(RELEASE).1] = sent(RELEASE).0;
static NUDGE_SENT: [u8; sent::<0>(NUDGE).1] = sent(NUDGE).0;
static INSPECT_SENT: [u8; sent::<0>(INSPECT).1] = sent(INSPECT).0;
static RENEW_SENT: [u8; sent::<0>(RENEW).1] = sent(RENEW).0;
static RAISE_SENT: [u8; sent::<0>(RAISE).1] = sent(RAISE).0;
static ACQUIRE_BESIDE_SETNX_SENT: [u8; sent::<0>(ACQUIRE_BESIDE_SETNX).1] = sent(ACQUIRE_BESIDE_SETNX).0;
static RENEW_BESIDE_SETNX_SENT: [u8; sent::<0>(RENEW_BESIDE_SETNX).1] = sent(RENEW_BESIDE_SETNX).0;
static RELEASE_BESIDE_SETNX_SENT: [u8; sent::<0>(RELEASE_BESIDE_SETNX).1] = sent(RELEASE_BESIDE_SETNX).0;
static ACQUIRE_SHARE_SENT: [u8; sent::<0>(ACQUIRE_SHARE).1] = sent(ACQUIRE_SHARE).0;
static RENEW_SHARE_SENT: [u8; sent::<0>(RENEW_SHARE).1] = sent(RENEW_SHARE).0;
static RELEASE_SHARE_SENT: [u8; sent::<0>(RELEASE_SHARE).1] = sent(RELEASE_SHARE).0;
static INSPECT_SHARES_SENT: [u8; sent::<0>(INSPECT_SHARES).1] = sent(INSPECT_SHARES).0;
static ACQUIRE_MOVING_SENT: [u8; sent::<0>(ACQUIRE_MOVING).1] = sent(ACQUIRE_MOVING).0;
static RENEW_MOVING_SENT: [u8; sent::<0>(RENEW_MOVING).1] = sent(RENEW_MOVING).0;
static RELEASE_MOVING_SENT: [u8; sent::<0>(RELEASE_MOVING).1] = sent(RELEASE_MOVING).0;
static FENCE_MOVING_SENT: [u8; sent::<0>(FENCE_MOVING).1] = sent(FENCE_MOVING).0;

impl Script {
    /// Returns the text, always the same, so that the server's cache holds one of each.
    pub fn text(self) -> &'static [u8] {
        match self {
            Script::Acquire | Script::AcquireNewest => &ACQUIRE_SENT,
            Script::Renew => &RENEW_SENT,
            Script::Release | Script::ReleaseNewest => &RELEASE_SENT,
            Script::Nudge => &NUDGE_SENT,
            Script::Inspect => &INSPECT_SENT,
            Script::Raise => &RAISE_SENT,
            Script::AcquireBesideSetnx => &ACQUIRE_BESIDE_SETNX_SENT,
            Script::RenewBesideSetnx => &RENEW_BESIDE_SETNX_SENT,
            Script::ReleaseBesideSetnx => &RELEASE_BESIDE_SETNX_SENT,
            Script::AcquireShare | Script::AcquireNewestShare => &ACQUIRE_SHARE_SENT,
            Script::RenewShare => &RENEW_SHARE_SENT,
            Script::ReleaseShare | Script::ReleaseNewestShare => &RELEASE_SHARE_SENT,
            Script::InspectShares => &INSPECT_SHARES_SENT,
            Script::AcquireMoving => &ACQUIRE_MOVING_SENT,
            Script::RenewMoving => &RENEW_MOVING_SENT,
            Script::ReleaseMoving => &RELEASE_MOVING_SENT,
            Script::FenceMoving => &FENCE_MOVING_SENT,
        }
    }

    /// Returns the companion keys that the script receives. A script of one key receives none.
    pub fn companions(self) -> &'static [&'static str] {
        match self {
            Script::Renew | Script::Raise => &["fence"],
            Script::RenewBesideSetnx => &["fence", "holder"],
            Script::Acquire | Script::Release | Script::Nudge | Script::Inspect => &["queue", "waiters", "fence"],
            Script::AcquireNewest | Script::ReleaseNewest => &["queue", "waiters", "fence", "superseded"],
            Script::AcquireBesideSetnx | Script::ReleaseBesideSetnx => &["queue", "waiters", "fence", "holder"],
            Script::RenewShare => &["fence", "shares", "terms"],
            Script::AcquireShare | Script::ReleaseShare | Script::InspectShares => {
                &["queue", "waiters", "fence", "shares", "terms"]
            }
            Script::AcquireNewestShare | Script::ReleaseNewestShare => {
                &["queue", "waiters", "fence", "shares", "terms", "superseded"]
            }
            Script::AcquireMoving | Script::RenewMoving | Script::ReleaseMoving | Script::FenceMoving => &[],
        }
    }
}

/// Returns a script without comment lines and indentation, as far as it fits into `N` bytes, and its length: the server
/// hashes every byte of it, every time.
const fn sent<const N: usize>(source: &str) -> ([u8; N], usize) {
    let source = source.as_bytes();
    let (mut kept, mut length) = ([0; N], 0);
    let mut at = 0;
    while at < source.len() {
        while source[at] == b' ' {
            at += 1;
        }
        let comment = source[at] == b'-' && source[at + 1] == b'-';
        let empty = source[at] == b'\n';
        loop {
            if !comment && !empty {
                if length < N {
                    kept[length] = source[at];
                }
                length += 1;
            }
            at += 1;
            if source[at - 1] == b'\n' {
                break;
            }
        }
    }
    (kept, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_sent_without_its_comments_and_with_all_the_rest() {
        for (script, source) in [
            (Script::Acquire, ACQUIRE),
            (Script::Renew, RENEW),
            (Script::Release, RELEASE),
            (Script::Nudge, NUDGE),
            (Script::Inspect, INSPECT),
            (Script::Raise, RAISE),
            (Script::AcquireBesideSetnx, ACQUIRE_BESIDE_SETNX),
            (Script::RenewBesideSetnx, RENEW_BESIDE_SETNX),
            (Script::ReleaseBesideSetnx, RELEASE_BESIDE_SETNX),
            (Script::AcquireShare, ACQUIRE_SHARE),
            (Script::RenewShare, RENEW_SHARE),
            (Script::ReleaseShare, RELEASE_SHARE),
            (Script::InspectShares, INSPECT_SHARES),
            (Script::AcquireMoving, ACQUIRE_MOVING),
            (Script::RenewMoving, RENEW_MOVING),
            (Script::ReleaseMoving, RELEASE_MOVING),
            (Script::FenceMoving, FENCE_MOVING),
        ] {
            let lines = source.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--"));
            let expected: String = lines.flat_map(|line| [line, "\n"]).collect();
            assert_eq!(std::str::from_utf8(script.text()).unwrap(), expected);
        }
    }
}
