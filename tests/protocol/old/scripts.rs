//! The texts of the scripts, as nxlock sends them.

/// The operations that a server carries out in one step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Script {
    Acquire(Form),
    Renew(Base),
    Release(Form),
    Nudge,
    Inspect,
    InspectShares,
    Raise,
    /// Records the end of a run, without a release.
    Record,
    History,
    /// The operations on one key each, while the keys of a lock are moving from one server to another.
    AcquireMoving,
    RenewMoving,
    ReleaseMoving,
    FenceMoving,
    RecordMoving,
}

/// The kind of claim that a script is for: each text has only what its claims need.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Base {
    #[default]
    Exclusive,
    /// Of a holder that lets others hold the lock too.
    Share,
    /// On a key shared with old `SETNX` clients.
    BesideSetnx,
}

/// The kind of claim, and what ACQUIRE and RELEASE are to do for it beyond that, each with a key more. That is no key of
/// other claims: a node that is handing over a slot runs a script only if it has all its keys.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Form {
    pub base: Base,
    /// Of the waiters of this kind, only the newest waits. The text is the same.
    pub newest: bool,
    /// The run under the claim is recorded.
    pub recorded: bool,
    /// Runs enclose the claimant: ACQUIRE looks for them among the holders. The text is the same.
    pub enclosed: bool,
}

impl From<Base> for Form {
    fn from(base: Base) -> Form {
        Form { base, ..Form::default() }
    }
}

macro_rules! queue {
    () => {
        concat!(include_str!("fence.lua"), include_str!("queue.lua"))
    };
}
macro_rules! acquire {
    () => {
        concat!(
            queue!(),
            include_str!("companions.lua"),
            include_str!("superseding.lua"),
            include_str!("place.lua"),
            include_str!("acquire.lua")
        )
    };
}
macro_rules! release {
    () => {
        concat!(
            queue!(),
            include_str!("companions.lua"),
            include_str!("superseding.lua"),
            include_str!("leaving.lua"),
            include_str!("release.lua")
        )
    };
}
macro_rules! acquire_share {
    () => {
        concat!(
            queue!(),
            include_str!("companions.lua"),
            include_str!("superseding.lua"),
            include_str!("sharing.lua"),
            include_str!("place.lua"),
            include_str!("sharing_acquire.lua")
        )
    };
}
macro_rules! release_share {
    () => {
        concat!(
            queue!(),
            include_str!("companions.lua"),
            include_str!("superseding.lua"),
            include_str!("sharing.lua"),
            include_str!("leaving.lua"),
            include_str!("sharing_release.lua")
        )
    };
}
macro_rules! acquire_beside_setnx {
    () => {
        concat!(
            queue!(),
            include_str!("companions.lua"),
            include_str!("superseding.lua"),
            "local function ask()\n",
            include_str!("place.lua"),
            include_str!("acquire.lua"),
            "end\n",
            include_str!("setnx.lua"),
            include_str!("setnx_acquire.lua")
        )
    };
}
macro_rules! release_beside_setnx {
    () => {
        concat!(
            queue!(),
            include_str!("companions.lua"),
            include_str!("superseding.lua"),
            "local function ask()\n",
            include_str!("leaving.lua"),
            include_str!("release.lua"),
            "end\n",
            include_str!("setnx.lua"),
            include_str!("setnx_release.lua")
        )
    };
}
/// The text for a claim whose run is recorded.
macro_rules! recorded {
    ($ask:expr, $around:literal) => {
        concat!(include_str!("runs.lua"), "local function ask()\n", $ask, "end\n", include_str!($around))
    };
}

const ACQUIRE: &str = acquire!();
const RELEASE: &str = release!();
const RENEW: &str = include_str!("renew.lua");
const ACQUIRE_SHARE: &str = acquire_share!();
const RELEASE_SHARE: &str = release_share!();
const RENEW_SHARE: &str = concat!(include_str!("companions.lua"), include_str!("sharing_renew.lua"));
const ACQUIRE_BESIDE_SETNX: &str = acquire_beside_setnx!();
const RELEASE_BESIDE_SETNX: &str = release_beside_setnx!();
const RENEW_BESIDE_SETNX: &str = concat!(
    "local function ask()\n",
    include_str!("renew.lua"),
    "end\n",
    include_str!("setnx.lua"),
    include_str!("setnx_renew.lua")
);
const ACQUIRE_RECORDED: &str = recorded!(acquire!(), "runs_acquire.lua");
const RELEASE_RECORDED: &str = recorded!(release!(), "runs_release.lua");
const ACQUIRE_SHARE_RECORDED: &str = recorded!(acquire_share!(), "runs_acquire.lua");
const RELEASE_SHARE_RECORDED: &str = recorded!(release_share!(), "runs_release.lua");
const ACQUIRE_BESIDE_SETNX_RECORDED: &str = recorded!(acquire_beside_setnx!(), "runs_acquire.lua");
const RELEASE_BESIDE_SETNX_RECORDED: &str = recorded!(release_beside_setnx!(), "runs_release.lua");
const RECORD: &str = concat!(
    include_str!("runs.lua"),
    include_str!("runs_holding.lua"),
    "local function ask() return { holds(ARGV[#ARGV - 6]) and 1 or 0 } end\n",
    include_str!("runs_release.lua")
);
const HISTORY: &str =
    concat!(include_str!("runs.lua"), include_str!("runs_holding.lua"), include_str!("runs_history.lua"));
const INSPECT: &str = concat!(queue!(), include_str!("inspect.lua"));
const INSPECT_SHARES: &str = concat!(
    queue!(),
    include_str!("companions.lua"),
    "local function ask()\n",
    include_str!("inspect.lua"),
    "end\n",
    include_str!("sharing_inspect.lua")
);
const NUDGE: &str = concat!(queue!(), include_str!("nudge.lua"));
const RAISE: &str = concat!(include_str!("fence.lua"), include_str!("raise.lua"));
const ACQUIRE_MOVING: &str = include_str!("moving_acquire.lua");
const RENEW_MOVING: &str = include_str!("moving_renew.lua");
const RELEASE_MOVING: &str = include_str!("moving_release.lua");
const FENCE_MOVING: &str = concat!(include_str!("fence.lua"), include_str!("moving_fence.lua"));
const RECORD_MOVING: &str =
    concat!(include_str!("runs.lua"), "local function ask() return {} end\n", include_str!("runs_release.lua"));

/// Returns a text as it is sent.
macro_rules! sent {
    ($source:expr) => {{
        static SENT: [u8; sent::<0>($source).1] = sent($source).0;
        &SENT
    }};
}

impl Script {
    /// Returns the text, always the same, so that the server's cache holds one of each.
    pub fn text(self) -> &'static [u8] {
        match self {
            Script::Acquire(form) => match (form.base, form.recorded) {
                (Base::Exclusive, false) => sent!(ACQUIRE),
                (Base::Exclusive, true) => sent!(ACQUIRE_RECORDED),
                (Base::Share, false) => sent!(ACQUIRE_SHARE),
                (Base::Share, true) => sent!(ACQUIRE_SHARE_RECORDED),
                (Base::BesideSetnx, false) => sent!(ACQUIRE_BESIDE_SETNX),
                (Base::BesideSetnx, true) => sent!(ACQUIRE_BESIDE_SETNX_RECORDED),
            },
            Script::Release(form) => match (form.base, form.recorded) {
                (Base::Exclusive, false) => sent!(RELEASE),
                (Base::Exclusive, true) => sent!(RELEASE_RECORDED),
                (Base::Share, false) => sent!(RELEASE_SHARE),
                (Base::Share, true) => sent!(RELEASE_SHARE_RECORDED),
                (Base::BesideSetnx, false) => sent!(RELEASE_BESIDE_SETNX),
                (Base::BesideSetnx, true) => sent!(RELEASE_BESIDE_SETNX_RECORDED),
            },
            Script::Renew(Base::Exclusive) => sent!(RENEW),
            Script::Renew(Base::Share) => sent!(RENEW_SHARE),
            Script::Renew(Base::BesideSetnx) => sent!(RENEW_BESIDE_SETNX),
            Script::Nudge => sent!(NUDGE),
            Script::Inspect => sent!(INSPECT),
            Script::InspectShares => sent!(INSPECT_SHARES),
            Script::Raise => sent!(RAISE),
            Script::Record => sent!(RECORD),
            Script::History => sent!(HISTORY),
            Script::AcquireMoving => sent!(ACQUIRE_MOVING),
            Script::RenewMoving => sent!(RENEW_MOVING),
            Script::ReleaseMoving => sent!(RELEASE_MOVING),
            Script::FenceMoving => sent!(FENCE_MOVING),
            Script::RecordMoving => sent!(RECORD_MOVING),
        }
    }

    /// Returns the companion keys that the script receives, in order. A script of one key receives none.
    pub fn companions(self) -> Vec<&'static str> {
        let of_base: &[&str] = match self {
            Script::Acquire(Form { enclosed: true, base: Base::Exclusive, .. }) => {
                &["queue", "waiters", "fence", "shares"]
            }
            Script::Acquire(Form { enclosed: true, base: Base::BesideSetnx, .. }) => {
                &["queue", "waiters", "fence", "shares", "holder"]
            }
            Script::Acquire(form) | Script::Release(form) => match form.base {
                Base::Exclusive => &["queue", "waiters", "fence"],
                Base::Share => &["queue", "waiters", "fence", "shares", "terms"],
                Base::BesideSetnx => &["queue", "waiters", "fence", "holder"],
            },
            Script::Renew(Base::Exclusive) | Script::Raise => &["fence"],
            Script::Renew(Base::Share) => &["fence", "shares", "terms"],
            Script::Renew(Base::BesideSetnx) => &["fence", "holder"],
            Script::Nudge | Script::Inspect => &["queue", "waiters", "fence"],
            Script::InspectShares => &["queue", "waiters", "fence", "shares", "terms"],
            Script::Record | Script::History => &["holder", "shares", "runs"],
            Script::AcquireMoving
            | Script::RenewMoving
            | Script::ReleaseMoving
            | Script::FenceMoving
            | Script::RecordMoving => &[],
        };
        let form = match self {
            Script::Acquire(form) | Script::Release(form) => form,
            _ => Form::default(),
        };
        let more = [(form.newest, "superseded"), (form.recorded, "runs")];
        of_base.iter().copied().chain(more.into_iter().filter(|(needed, _)| *needed).map(|(_, key)| key)).collect()
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
    fn a_request_for_a_lock_and_its_undo_are_read_at_once() {
        // PROTO_IOBUF_LEN in Redis, and room for names, tokens and a question ahead.
        let texts = [Script::Acquire(Form::default()), Script::ReleaseMoving].map(|script| script.text().len());
        assert!(texts.iter().sum::<usize>() + 3000 < 16 * 1024, "{texts:?}");
    }

    #[test]
    fn a_script_is_sent_without_its_comments_and_with_all_the_rest() {
        let of = |base, recorded| Form { base, recorded, ..Form::default() };
        for (script, source) in [
            (Script::Acquire(Form::default()), ACQUIRE),
            (Script::Renew(Base::Exclusive), RENEW),
            (Script::Release(Form::default()), RELEASE),
            (Script::Nudge, NUDGE),
            (Script::Inspect, INSPECT),
            (Script::Raise, RAISE),
            (Script::Acquire(of(Base::BesideSetnx, false)), ACQUIRE_BESIDE_SETNX),
            (Script::Renew(Base::BesideSetnx), RENEW_BESIDE_SETNX),
            (Script::Release(of(Base::BesideSetnx, false)), RELEASE_BESIDE_SETNX),
            (Script::Acquire(of(Base::Share, false)), ACQUIRE_SHARE),
            (Script::Renew(Base::Share), RENEW_SHARE),
            (Script::Release(of(Base::Share, false)), RELEASE_SHARE),
            (Script::InspectShares, INSPECT_SHARES),
            (Script::Acquire(of(Base::Exclusive, true)), ACQUIRE_RECORDED),
            (Script::Release(of(Base::Exclusive, true)), RELEASE_RECORDED),
            (Script::Acquire(of(Base::Share, true)), ACQUIRE_SHARE_RECORDED),
            (Script::Release(of(Base::Share, true)), RELEASE_SHARE_RECORDED),
            (Script::Acquire(of(Base::BesideSetnx, true)), ACQUIRE_BESIDE_SETNX_RECORDED),
            (Script::Release(of(Base::BesideSetnx, true)), RELEASE_BESIDE_SETNX_RECORDED),
            (Script::Record, RECORD),
            (Script::History, HISTORY),
            (Script::AcquireMoving, ACQUIRE_MOVING),
            (Script::RenewMoving, RENEW_MOVING),
            (Script::ReleaseMoving, RELEASE_MOVING),
            (Script::FenceMoving, FENCE_MOVING),
            (Script::RecordMoving, RECORD_MOVING),
        ] {
            let lines = source.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--"));
            let expected: String = lines.flat_map(|line| [line, "\n"]).collect();
            assert_eq!(std::str::from_utf8(script.text()).unwrap(), expected);
        }
    }
}
