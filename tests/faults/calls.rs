//! System calls that fail once: strace(1) injects the error.
//!
//! A case is a call, its error, and which of the calls of that name fails. Each process that nxlock starts counts for
//! itself; the command is not traced. A run of the tests makes some calls of each scene fail, other ones each time:
//! `NXLOCK_FAULTS=all` tries all, and `NXLOCK_SEED` repeats a choice.

use std::collections::HashMap;
use std::fmt::{Display, Formatter, Result as Written};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, acquire, break_it, is_free, lock_status, queue, release, turn};
use crate::support::{Authority, Done, LIMIT, Local, Nxlock, Redis, Running, eventually, eventually_some, send};
use crate::support::{may_trace, now, text_of};

/// How many calls of a scene fail in a run of the tests.
const TRIED: usize = 16;

/// The errors, and which calls can fail with each according to the manual pages. close(2) is not among them: it closes
/// the descriptor even if it fails, and strace does not.
const ERRORS: [(&str, &str); 4] = [
    (
        "EINTR",
        "accept4 connect epoll_pwait epoll_wait fdatasync flock fsync ftruncate futex getrandom poll ppoll \
         pread64 pwrite64 read recvfrom recvmsg sendmsg sendto wait4 waitid write",
    ),
    (
        "ENOMEM",
        "brk clone clone3 connect execve getdents64 inotify_add_watch inotify_init1 linkat mkdir mmap mprotect mremap \
         newfstatat openat pidfd_open pipe2 poll readlink recvfrom recvmsg rename sendmsg sendto signalfd4 socket \
         socketpair statx timerfd_create unlink unlinkat",
    ),
    ("EMFILE", "accept4 dup3 fcntl inotify_init1 openat pidfd_open pipe2 signalfd4 socket socketpair timerfd_create"),
    (
        "EIO",
        "execve fdatasync fsync ftruncate getdents64 linkat mkdir newfstatat openat pread64 pwrite64 read \
         readlink rename statx unlink unlinkat utimensat write",
    ),
];

/// The documented statuses of a call that fails for want of something. Never 75: in the end nobody else has the lock.
const STATUSES: [i32; 6] = [0, 69, 70, 76, 78, 126];

/// The call after which Rust's runtime calls main(). Before it, nxlock is not asked.
const LAST_BEFORE_MAIN: &str = "sigaltstack";

#[derive(Clone)]
struct Case {
    call: String,
    error: &'static str,
    /// Counted from 1.
    number: usize,
}

impl Display for Case {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}:error={}:when={}", self.call, self.error, self.number)
    }
}

/// A keeper of locks, and the fault of the calls that are traced.
struct Scene<A> {
    authority: A,
    fault: Option<Case>,
}

/// What is said of a call that hangs.
const HANGS: &str = "it goes no further";

/// An error says which promise was broken.
type Outcome = Result<(), String>;

impl<A: Authority> Scene<A> {
    fn log(&self) -> PathBuf {
        self.authority.directory().join("calls")
    }

    fn nxlock<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Nxlock {
        let filters = match &self.fault {
            Some(case) => vec![format!("trace={},{LAST_BEFORE_MAIN}", case.call), format!("inject={case}")],
            None => Vec::new(),
        };
        let mut strace = ["strace", "-f", "-b", "execve"].map(String::from).to_vec();
        strace.extend(filters.into_iter().flat_map(|filter| [String::from("-e"), filter]));
        strace.extend([String::from("-o"), self.log().display().to_string()]);
        self.authority.nxlock(words).under(strace)
    }

    /// Waits for the end of a traced call, and asserts what is true of every one.
    fn ends(&self, mut running: Running) -> Result<Done, String> {
        comes(&mut running, |_| false)?;
        eventually("nothing that it has started is left", || running.descendants().is_empty());
        let done = running.finish();
        if !text_of(&self.log()).contains(&format!("{LAST_BEFORE_MAIN}({{")) {
            return Ok(done);
        }
        let is_broken = if !done.status.code().is_some_and(|status| STATUSES.contains(&status)) {
            "its status is not documented"
        } else if ["panicked", "RUST_BACKTRACE"].iter().any(|text| done.both().contains(text)) {
            "it panics"
        } else if !done.status.success() && done.stderr.is_empty() {
            "it fails and does not say why"
        } else if !done.status.success() && self.fault.as_ref().is_some_and(|case| case.error == "EINTR") {
            "a call that is interrupted is no failure"
        } else {
            return Ok(done);
        };
        Err(format!("{is_broken}: {:?}\n{}", done.status, done.both()))
    }

    /// Lets a turn have its command, and end.
    fn has_its_turn(&self, mut turn: Turn) -> Outcome {
        comes(&mut turn.running, |running| running.stdout().starts_with("up "))?;
        let is_up = turn.is_up();
        if is_up {
            let seen = self.authority.nxlock(["--json", "status", "job"]).run();
            if seen.status.code() != Some(0) && !turn.running.has_ended() {
                return Err(format!("its command runs, and status says:\n{}\n{}", seen.both(), turn.running.stderr()));
            }
        }
        turn.is_told();
        let done = self.ends(turn.running)?;
        let times = done.text().matches("up ").count();
        if times > 1 || (times == 0 && done.status.success()) {
            return Err(format!("its command ran {times} times: {:?}\n{}", done.status, done.both()));
        }
        Ok(())
    }

    /// Plays it, and asserts that it leaves nothing behind.
    fn ends_well(&self, plays: impl Fn(&Scene<A>) -> Outcome) -> Outcome {
        plays(self).and(self.is_free())
    }

    /// Asserts that nobody holds the lock or waits for it.
    fn is_free(&self) -> Outcome {
        let began = now();
        let is_free = eventually_some("it is free, or seems to be left behind", || {
            let is_free = is_free(&self.authority) && queue(&self.authority).is_empty();
            (is_free || began.elapsed() > LIMIT / 10).then_some(is_free)
        });
        if is_free {
            return Ok(());
        }
        let left = lock_status(&self.authority);
        break_it(&self.authority);
        Err(format!("it is left behind: {left}"))
    }
}

/// Waits for a fact or the end of the call.
fn comes(running: &mut Running, mut is_so: impl FnMut(&Running) -> bool) -> Outcome {
    let began = now();
    let came = eventually_some("a call's next step", || {
        let came = running.has_ended() || is_so(running);
        (came || began.elapsed() > LIMIT / 2).then_some(came)
    });
    if came { Ok(()) } else { Err(format!("{HANGS}:\n{}{}", running.stdout(), running.stderr())) }
}

/// Plays a scene without a fault, and then with those of the calls that it made.
#[expect(clippy::print_stdout, reason = "shown with --nocapture")]
fn sweep<A: Authority>(name: &str, authority: A, plays: impl Fn(&Scene<A>) -> Outcome) {
    if !may_trace() {
        return;
    }
    let mut scene = Scene { authority, fault: None };
    scene.ends_well(&plays).unwrap_or_else(|why| panic!("without a fault: {why}"));
    let cases = cases(&text_of(&scene.log()));
    let total = cases.len();

    let given = std::env::var("NXLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: usize = given.unwrap_or_else(|| usize::from(RandomState::new().hash_one(0).to_ne_bytes()[0]));
    let is_whole = std::env::var_os("NXLOCK_FAULTS").is_some_and(|which| which == "all");
    let stride = if is_whole { 1 } else { total.div_ceil(TRIED) };
    // The calls of that play may not all be made again, least of all on a busy machine: others are tried then.
    let order = (0..stride).flat_map(|later| ((seed + later) % stride..total).step_by(stride));
    let (mut tried, mut failed, mut aborted) = (0, 0, 0);
    let mut broken = Vec::new();
    for case in order.map(|place| cases[place].clone()) {
        if failed == TRIED && !is_whole {
            break;
        }
        let text = case.to_string();
        println!("{name}: {text}");
        scene.fault = Some(case);
        tried += 1;
        let outcome = scene.ends_well(&plays);
        let log = text_of(&scene.log());
        let injected: Vec<&str> = log.lines().filter(|line| line.contains("INJECTED")).collect();
        failed += usize::from(!injected.is_empty());
        if let Err(why) = outcome {
            // Its lock is left to its lease then; but it does not hang.
            if injected.iter().any(|line| is_of_the_runtime(line)) && !why.starts_with(HANGS) {
                aborted += 1;
                continue;
            }
            broken.push(format!("{text}: {why}\n{}", injected.join("\n")));
        }
    }
    println!(
        "{name}: {tried} of {total} cases, {failed} of them with an error, {aborted} by which Rust's runtime aborted; \
         NXLOCK_SEED={seed}"
    );
    assert!(failed >= TRIED, "{name}: too few calls fail, NXLOCK_SEED={seed}");
    assert!(broken.is_empty(), "{name}: {} of {tried} cases, NXLOCK_SEED={seed}:\n{}", broken.len(), broken.join("\n"));
}

/// Returns whether a call may be for the signal stack of a new thread, without which Rust's runtime aborts the process:
/// its lock is then left to its lease. strace does not repeat the arguments of a call that another one has overtaken.
fn is_of_the_runtime(line: &str) -> bool {
    ["PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_STACK", ", PROT_NONE)", "mmap resumed", "mprotect resumed"]
        .iter()
        .any(|text| line.contains(text))
}

/// Returns the cases of the calls in a log of strace.
fn cases(log: &str) -> Vec<Case> {
    let mut made: HashMap<(&str, &str), usize> = HashMap::new();
    for line in log.lines() {
        if let Some((process, rest)) = line.split_once(' ')
            && let Some((call, _)) = rest.trim_start().split_once('(')
        {
            *made.entry((process, call)).or_default() += 1;
        }
    }
    let most = |call: &str| made.iter().filter(|((_, made), _)| *made == call).map(|(_, count)| *count).max();
    let mut cases = Vec::new();
    for (error, calls) in ERRORS {
        for call in calls.split_ascii_whitespace() {
            // strace itself makes the first execve(2).
            let first = if call == "execve" { 2 } else { 1 };
            let numbers = first..=most(call).unwrap_or(0);
            cases.extend(numbers.map(|number| Case { call: call.to_owned(), error, number }));
        }
    }
    cases
}

fn runs<A: Authority>(scene: &Scene<A>) -> Outcome {
    scene.has_its_turn(Turn::of(scene.nxlock(turn(&[]))))
}

fn waits_and_runs<A: Authority>(scene: &Scene<A>) -> Outcome {
    let token = acquire(&scene.authority, "1m");
    let mut waiter = Turn::of(scene.nxlock(turn(&[])));
    let came = comes(&mut waiter.running, |_| !queue(&scene.authority).is_empty());
    let is_up = waiter.is_up();
    release(&scene.authority, &token);
    if is_up {
        return Err("its command runs while another holds the lock".to_owned());
    }
    came.and_then(|()| scene.has_its_turn(waiter))
}

fn acquires<A: Authority>(scene: &Scene<A>) -> Outcome {
    let done = scene.ends(scene.nxlock(["acquire", "job", "--ttl", "1m"]).start())?;
    if done.status.success() {
        release(&scene.authority, &done.token());
    }
    Ok(())
}

fn releases<A: Authority>(scene: &Scene<A>) -> Outcome {
    let token = acquire(&scene.authority, "1m");
    let done = scene.ends(scene.nxlock(["release", "job", &token]).start());
    if done.as_ref().is_ok_and(|done| done.status.success()) {
        return scene.is_free();
    }
    // It may have been carried out.
    scene.authority.nxlock(["release", "job", &token]).run();
    done.map(|_| ())
}

fn keeps<A: Authority>(scene: &Scene<A>) -> Outcome {
    let watched = Nxlock::by("sleep", ["300"]).start();
    let mut keeper = scene.nxlock(["acquire", "job", "--while-pid", &watched.pid().to_string()]).start();
    comes(&mut keeper, |keeper| keeper.stdout().ends_with('\n'))?;
    let is_kept = keeper.stdout().starts_with("nx1:");
    let was_free = is_kept && is_free(&scene.authority);
    drop(watched);
    let done = scene.ends(keeper)?;
    if was_free && done.status.success() {
        return Err(format!("it prints a token, and the lock is free:\n{}", done.stderr));
    }
    Ok(())
}

#[test]
fn a_run_whose_system_calls_fail_once_ends_well() {
    sweep("a run on a server", Redis::start(), runs);
    sweep("a run on this machine", Local::start(), runs);
}

#[test]
fn a_wait_whose_system_calls_fail_once_ends_well() {
    sweep("a wait on a server", Redis::start(), waits_and_runs);
    sweep("a wait on this machine", Local::start(), waits_and_runs);
}

#[test]
fn an_acquire_whose_system_calls_fail_once_leaves_no_lock_that_it_does_not_tell_of() {
    sweep("an acquire on a server", Redis::start(), acquires);
    sweep("an acquire on this machine", Local::start(), acquires);
}

#[test]
fn a_release_whose_system_calls_fail_once_says_only_what_is_so() {
    sweep("a release on a server", Redis::start(), releases);
    sweep("a release on this machine", Local::start(), releases);
}

#[test]
fn a_keeper_whose_system_calls_fail_once_leaves_no_lock_behind() {
    sweep("a keeper on a server", Redis::start(), keeps);
    sweep("a keeper on this machine", Local::start(), keeps);
}

/// Plays a scene in which one call fails, and again for each of the given calls of that name.
fn plays_with<A: Authority>(
    authority: A,
    (call, error): (&str, &'static str),
    numbers: impl IntoIterator<Item = usize>,
    plays: impl Fn(&Scene<A>) -> Outcome,
) {
    if !may_trace() {
        return;
    }
    let mut scene = Scene { authority, fault: None };
    for number in numbers {
        scene.fault = Some(Case { call: call.to_owned(), error, number });
        scene.ends_well(&plays).unwrap_or_else(|why| panic!("{call}, {number}: {why}"));
    }
}

#[test]
fn the_end_of_a_command_is_noticed_though_the_look_at_it_was_interrupted() {
    plays_with(Redis::start(), ("waitid", "EINTR"), 1..=5, |scene| {
        let done = scene.nxlock(["-v", "run", "job", "-t", "1h", "--", "sleep", "0.5"]).run().exits(0);
        // nxlock renews the lock when it begins to listen, and next after ten seconds, when the guard looks again.
        let renewals = done.stderr.matches("renewed for").count();
        assert!(renewals < 2, "its end is noticed only with the next renewal:\n{}", done.both());
        Ok(())
    });
}

#[test]
fn a_request_for_which_there_was_no_memory_is_sent_again() {
    // A run sends two requests on the socket of its server, and between them a message to its guard.
    plays_with(Redis::start(), ("sendto", "ENOMEM"), [1, 3], |scene| {
        // On a busy machine another thread may send the second one, and each counts for itself.
        eventually("the call fails", || {
            scene.nxlock(["run", "job", "true"]).run().exits(0);
            scene.authority.has_only_a_fence();
            text_of(&scene.log()).contains("INJECTED")
        });
        Ok(())
    });
}

#[test]
fn a_front_that_cannot_read_the_grant_and_a_keeper_that_cannot_send_it_both_end_and_say_so() {
    plays_with(Redis::start(), ("recvfrom", "ENOMEM"), [1], keeps);
    plays_with(Redis::start(), ("sendto", "ENOMEM"), [1, 2], keeps);
}

#[test]
fn a_file_of_a_lock_is_locked_and_unlocked_though_signals_interrupt_that() {
    plays_with(Local::start(), ("flock", "EINTR"), 1..=6, waits_and_runs);
}

#[test]
fn a_keeper_that_the_kernel_has_no_memory_for_keeps_the_lock() {
    plays_with(Local::start(), ("poll", "ENOMEM"), 1..=4, keeps);
}

#[test]
fn a_waiter_that_could_not_see_once_whether_a_watched_process_has_ended_looks_again() {
    plays_with(Local::start(), ("read", "EIO"), 1..=12, |scene| {
        let watched = Nxlock::by("sleep", ["300"]).start();
        let words = ["acquire", "job", "-t", "1h", "--while-pid", &watched.pid().to_string()];
        let token = scene.authority.nxlock(words).run().exits(0).text();
        let keeper = token.split(':').nth(3).and_then(|pid| pid.parse().ok()).expect("the token names the keeper");
        send(keeper, Signal::SIGKILL);
        drop(watched);
        runs(scene)
    });
}
