//! The holder of the lock `job`, and the waiters in its queue.

use std::io::PipeWriter;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Authority, Done, LIMIT, Nxlock, Running, eventually, eventually_some, freeze, now, text_of};

/// A process that acquires `job` and holds it until the test ends it.
pub struct Turn {
    pub running: Running,
    until_dropped: Option<PipeWriter>,
}

/// Returns the arguments of a turn's call.
pub fn turn<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let script = r#"f=${NXLOCK_FENCE-none}; [ -z "$LOG" ] || echo "$WHO $f" >> "$LOG"; echo "up $f"; read x; exit 0"#;
    ["run", "job"].iter().chain(options).chain(&["-c", script]).copied().collect()
}

impl Turn {
    pub fn of(call: Nxlock) -> Turn {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        Turn { running: call.stdin_from(reader).start(), until_dropped: Some(writer) }
    }

    /// Starts a call that comes so far, which takes an answer. On a busy machine, a short time-out may end before a server has
    /// answered for the first time, and the call ends with 69: it is started again.
    #[track_caller]
    pub fn once(what: &str, call: impl Fn() -> Nxlock, is_so: impl Fn(&Turn) -> bool) -> Turn {
        eventually_some(what, || {
            let mut turn = Turn::of(call());
            eventually(what, || is_so(&turn) || turn.running.has_ended());
            if turn.running.has_ended() {
                turn.finish().exits(69);
                return None;
            }
            Some(turn)
        })
    }

    /// Starts a turn and waits until it holds the lock.
    #[track_caller]
    pub fn had(authority: &impl Authority, options: &[&str]) -> Turn {
        let mut turn = Turn::of(authority.nxlock(turn(options)));
        turn.up();
        turn
    }

    /// Starts a turn and waits until it holds the lock and listens: from then on the server tells it what happens to the lock,
    /// and who did that. It renews the lock when it begins to listen, and next after a third of its ttl or ten seconds.
    #[track_caller]
    pub fn listening(authority: &impl Authority, options: &[&str]) -> Turn {
        let mut turn = Turn::had(authority, &[options, &["-v"]].concat());
        turn.running.says("renewed for");
        turn
    }

    /// Starts a turn and waits until it is in the queue.
    #[track_caller]
    pub fn queued(authority: &impl Authority, options: &[&str]) -> Turn {
        Turn::of(authority.nxlock(turn(options))).once_queued(authority)
    }

    /// Starts a turn and waits until it waits, queued or not.
    #[track_caller]
    pub fn waiting(authority: &impl Authority, options: &[&str]) -> Turn {
        let mut turn = Turn::of(authority.nxlock(turn(options)));
        turn.running.says("waiting for \"job\"");
        turn
    }

    #[track_caller]
    pub fn once_queued(self, authority: &impl Authority) -> Turn {
        is_queued(authority, self.pid());
        self
    }

    /// Waits until its command runs, and returns its fence.
    #[track_caller]
    pub fn up(&mut self) -> String {
        self.running.line("up ")
    }

    pub fn is_up(&self) -> bool {
        self.running.stdout().starts_with("up ")
    }

    /// Lets its command end.
    pub fn is_told(&mut self) {
        self.until_dropped = None;
    }

    #[track_caller]
    pub fn leaves(mut self) {
        self.is_told();
        self.running.finish().exits(0);
    }

    /// Waits for its end, without ending its command.
    #[track_caller]
    pub fn finish(self) -> Done {
        let Turn { running, until_dropped } = self;
        let done = running.finish();
        drop(until_dropped);
        done
    }

    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    pub fn freeze(&self) {
        freeze(self.pid());
    }

    pub fn goes_on(&self) {
        self.running.signal(Signal::SIGCONT);
    }
}

/// Lets each of these hold the lock, one after the other.
#[track_caller]
pub fn each_is_served(turns: impl IntoIterator<Item = Turn>) {
    for mut turn in turns {
        turn.up();
        turn.leaves();
    }
}

pub fn pids<'a>(turns: impl IntoIterator<Item = &'a Turn>) -> Vec<i32> {
    turns.into_iter().map(Turn::pid).collect()
}

/// Returns a process of these tests as nxlock names it.
pub fn process(pid: i32) -> String {
    let host = nix::unistd::gethostname().expect("a host").into_string().expect("a name");
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("users").expect("a user").name;
    format!("{user}@{host}, pid {pid}")
}

/// Returns the status of `job` from `status --json`.
pub fn lock_status(authority: &impl Authority) -> Value {
    status_of(authority, "job")
}

fn status_of(authority: &impl Authority, name: &str) -> Value {
    // On a busy machine, a server may not answer within the time of a call, which then prints no list.
    eventually_some("the status is told", || {
        authority.nxlock(["--json", "status", name]).run().json().get_mut(0).map(Value::take)
    })
}

/// Returns the id that nxlock shows for the holder.
#[track_caller]
pub fn holder_id(authority: &impl Authority) -> String {
    lock_status(authority)["holder"]["id"].as_str().expect("somebody holds it").to_owned()
}

/// Returns how long the lease still runs; zero if it has expired.
pub fn lease_left(authority: &impl Authority) -> Duration {
    Duration::from_millis(lock_status(authority)["ttl_ms"].as_u64().unwrap_or(0))
}

pub fn is_free(authority: &impl Authority) -> bool {
    lock_status(authority)["state"] == "free"
}

/// Waits until the lease has ended, of several servers at each.
#[track_caller]
pub fn ends_by_itself(authority: &impl Authority) {
    eventually("the lock ends by itself", || is_free(authority) && !authority.has_votes());
}

/// Acquires the lock by `nxlock acquire`, and returns the token.
#[track_caller]
pub fn acquire(authority: &impl Authority, ttl: &str) -> String {
    authority.nxlock(["acquire", "job", "--ttl", ttl]).run().exits(0).token()
}

#[track_caller]
pub fn release(authority: &impl Authority, token: &str) {
    authority.nxlock(["release", "job", token]).run().exits(0);
}

/// Breaks the lock of its holder.
#[track_caller]
pub fn break_it(authority: &impl Authority) {
    authority.nxlock(["release", "job", "--break", &holder_id(authority)]).run().exits(0);
}

/// Returns the pids of the waiters, in the order of the queue.
pub fn queue(authority: &impl Authority) -> Vec<i32> {
    queue_of(authority, "job")
}

/// Returns the pids of the waiters for the lock `name`, in the order of the queue.
pub fn queue_of(authority: &impl Authority, name: &str) -> Vec<i32> {
    let seen = status_of(authority, name);
    let queue = seen["queue"].as_array().expect("a queue, if only an empty one");
    queue.iter().map(|waiter| i32::try_from(waiter["pid"].as_i64().expect("a pid")).expect("it fits")).collect()
}

#[track_caller]
pub fn is_queued(authority: &impl Authority, pid: i32) {
    eventually("it is in the queue", || queue(authority).contains(&pid));
}

/// Waits until the queue is exactly this.
#[track_caller]
pub fn queue_is(authority: &impl Authority, pids: &[i32]) {
    let mut seen = Vec::new();
    let began = now();
    eventually("the queue has settled", || {
        seen = queue(authority);
        seen == pids || began.elapsed() > LIMIT - Duration::from_secs(2)
    });
    assert_eq!(seen, pids, "the queue is another");
}

/// Waits until one of them holds the lock, and removes it from `waiting`.
#[track_caller]
pub fn next_holder(waiting: &mut Vec<Turn>) -> Turn {
    let at = eventually_some("one of them has it", || waiting.iter().position(Turn::is_up));
    waiting.remove(at)
}

/// Waits until the holder has renewed the lease.
#[track_caller]
pub fn is_renewed(authority: &impl Authority) {
    let mut before = lease_left(authority);
    eventually("the lease is renewed", || {
        let now = lease_left(authority);
        let longer = now > before;
        before = now;
        longer
    });
}

/// Waits until a lease of a minute has been renewed since that moment: otherwise no more than the rest of it is left.
#[track_caller]
pub fn is_renewed_since(authority: &impl Authority, since: Instant) {
    eventually("the lease is renewed", || {
        let rest = Duration::from_secs(60).saturating_sub(since.elapsed());
        lease_left(authority) > rest
    });
}

/// Returns what the turns have logged, each with its fence, in the order of the grants.
pub fn grants(log: &Path) -> Vec<(usize, u64)> {
    let text = text_of(log);
    let grant = |line: &str| {
        let (who, fence) = line.split_once(' ')?;
        Some((who.parse().ok()?, fence.parse().ok()?))
    };
    text.lines().map(|line| grant(line).unwrap_or_else(|| panic!("no grant: `{line}` in\n{text}"))).collect()
}

/// Asserts that every grant has a higher fence than the one before.
#[track_caller]
pub fn fences_rise(log: &Path) {
    let grants = grants(log);
    assert!(grants.is_sorted_by(|before, after| before.1 < after.1), "{grants:?}");
}

/// Waits until all callers have counted, as long as there is progress: the machine may be slow.
#[track_caller]
pub fn counted(counter: &Path, mut callers: Vec<Running>, total: usize) {
    let count = || text_of(counter).trim().parse().unwrap_or(0);
    let mut seen = 0;
    while seen < total {
        eventually("another one has had its turn", || {
            callers.iter_mut().for_each(Running::has_not_failed);
            count() > seen
        });
        seen = count();
    }
    for caller in callers {
        caller.finish().exits(0).says_nothing();
    }
    assert_eq!(text_of(counter), format!("{total}\n"));
}
