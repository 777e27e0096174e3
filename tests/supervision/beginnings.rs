//! Commands that take long to start: a file system hangs while execve(2) looks for the program.

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::support::turns::{Turn, acquire, is_queued, lock_status, release};
use crate::support::{
    Authority, Local, Redis, Running, eventually, freeze, is_alive, name_of, parent_of, state_of, text_of,
};

/// A run that holds the lock, and a child, stopped before it executes the command.
struct Beginning {
    running: Running,
    child: Pid,
}

impl Beginning {
    fn of(authority: &impl Authority, options: &[&str]) -> Beginning {
        let beginning = Beginning::at_birth(authority, options);
        while !beginning.is_about_to_execute() {
            ptrace::syscall(beginning.child, None).expect("it goes on");
        }
        beginning
    }

    /// Returns a child that has done nothing yet.
    fn at_birth(authority: &impl Authority, options: &[&str]) -> Beginning {
        // nxlock forks its guard, and the guard forks the command.
        let (running, guard) = forks_its_guard(authority, options);
        ptrace::detach(Pid::from_raw(running.pid()), None).expect("it goes on");
        goes_on_after_its_birth(guard);
        let child = forked_by(guard);
        ptrace::detach(guard, None).expect("it goes on");
        Beginning { running, child }
    }

    /// Waits until the child is stopped, and returns whether it is about to execute the command.
    fn is_about_to_execute(&self) -> bool {
        waitpid(self.child, Some(WaitPidFlag::__WALL)).expect("it stands still");
        let call = ptrace::syscall_info(self.child).expect("a system call");
        // SAFETY: `op` says which member of the union is valid.
        call.op == libc::PTRACE_SYSCALL_INFO_ENTRY && unsafe { call.u.entry.nr } == libc::SYS_execve as u64
    }

    fn goes_on(&self) {
        ptrace::detach(self.child, None).expect("it goes on");
    }

    /// Waits until the child is killed. The kernel notifies the tracer before the parent.
    fn is_killed(&self) {
        let end = waitpid(self.child, Some(WaitPidFlag::__WALL)).expect("it ends");
        assert!(matches!(end, WaitStatus::Signaled(_, Signal::SIGKILL, _)), "{end:?}");
    }
}

/// Returns a run that was granted the lock, stopped where it has forked its guard, and that guard, which has done nothing
/// yet.
fn forks_its_guard(authority: &impl Authority, options: &[&str]) -> (Running, Pid) {
    let token = acquire(authority, "10m");
    // A test that looks at what nxlock forks keeps it from reading a reply meanwhile.
    let words = ["-v", "--server-timeout", "20s", "run", "job"].into_iter().chain(options.iter().copied());
    let running = authority.nxlock(words.chain(["--", "echo", "ran"])).start();
    is_queued(authority, running.pid());
    let pid = Pid::from_raw(running.pid());
    ptrace::seize(pid, Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACESYSGOOD)
        .expect("we may trace what we started");
    release(authority, &token);
    let guard = forked_by(pid);
    (running, guard)
}

/// Returns the child that a traced process forks. The process stays stopped.
fn forked_by(pid: Pid) -> Pid {
    let forked = loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it forks") {
            // nxlock has continued its guard, as it does with each instruction.
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_STOP) => ptrace::cont(pid, None).expect("it goes on"),
            forked => break forked,
        }
    };
    assert!(matches!(forked, WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_FORK)), "{forked:?}");
    Pid::from_raw(i32::try_from(ptrace::getevent(pid).expect("a child")).expect("a pid"))
}

/// Continues a new child of a traced process: it is traced as well, and stops at once.
fn goes_on_after_its_birth(child: Pid) {
    let stopped = waitpid(child, Some(WaitPidFlag::__WALL)).expect("it stops");
    assert!(matches!(stopped, WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_STOP)), "{stopped:?}");
    ptrace::cont(child, None).expect("it goes on");
}

fn its_lock_is_kept(authority: &impl Authority) {
    let beginning = Beginning::of(authority, &["-t", "6s"]);
    let renewals = || beginning.running.stderr().matches("renewed for 6s").count();
    // The first comes at once, and the others every two seconds.
    eventually("the leases of its grant and of two renewals would have ended", || renewals() > 4);
    beginning.goes_on();
    beginning.running.finish().exits(0).prints("ran\n");
}

#[test]
fn a_command_that_takes_long_to_begin_has_its_lock_meanwhile() {
    // At the same time: each takes longer than a lease.
    std::thread::scope(|scope| {
        scope.spawn(|| its_lock_is_kept(&Redis::start()));
        scope.spawn(|| its_lock_is_kept(&Local::start()));
    });
}

/// The options of a lock, alone or shared, whose lease ends soon.
const MANNERS: [&[&str]; 3] = [&["-t", "1s"], &["-t", "1s", "--shared"], &["-t", "1s", "--slots", "1"]];

/// The same with a lease that does not end while nxlock and its command still have something to do.
const LASTING: [&[&str]; 3] = [&["-t", "3s"], &["-t", "3s", "--shared"], &["-t", "3s", "--slots", "1"]];

/// Tries something in each manner, with such a lease.
fn in_each_manner(try_it: impl Fn(&Local, &[&str]) + Sync) {
    let try_it = &try_it;
    // At the same time: each takes as long as its lease.
    std::thread::scope(|scope| {
        for options in LASTING {
            scope.spawn(move || try_it(&Local::start(), options));
        }
    });
}

/// Lets a process go on that was stopped until after the lease.
fn goes_on(pid: Pid) {
    ptrace::detach(pid, None).expect("it goes on");
}

/// Asserts that a run whose lease had ended before its command began has executed nothing. Either the process that was to
/// become the command notices that, or nxlock does.
#[track_caller]
fn never_began(running: Running) {
    let done = running.finish().prints("");
    match done.status.code() {
        Some(69) => done.says("before the command could be started"),
        _ => done.exits(76).says("it could not be renewed in time"),
    };
}

#[test]
fn a_lock_ends_with_its_lease_if_nxlock_and_its_guard_are_stopped_before_the_command_begins() {
    let local = Local::start();
    for options in MANNERS {
        let (running, guard) = forks_its_guard(&local, options);
        waitpid(guard, Some(WaitPidFlag::__WALL)).expect("it stops");
        Turn::had(&local, &[]).leaves();
        goes_on(guard);
        goes_on(Pid::from_raw(running.pid()));
        never_began(running);
    }
}

#[test]
fn a_lock_ends_with_its_lease_if_all_are_stopped_before_the_command_begins() {
    let local = Local::start();
    for options in MANNERS {
        let (running, guard) = forks_its_guard(&local, options);
        goes_on_after_its_birth(guard);
        let child = forked_by(guard);
        waitpid(child, Some(WaitPidFlag::__WALL)).expect("it stops");
        Turn::had(&local, &[]).leaves();
        for pid in [child, guard, Pid::from_raw(running.pid())] {
            goes_on(pid);
        }
        never_began(running);
    }
}

#[test]
fn a_lock_ends_with_its_lease_if_nxlock_is_killed_and_its_guard_stopped_before_the_command_begins() {
    let local = Local::start();
    for options in MANNERS {
        let (mut running, guard) = forks_its_guard(&local, options);
        waitpid(guard, Some(WaitPidFlag::__WALL)).expect("it stops");
        running.signal(Signal::SIGKILL);
        eventually("it is dead", || running.has_ended());
        Turn::had(&local, &[]).leaves();
        goes_on(guard);
        eventually("its guard ends", || !is_alive(guard.as_raw()));
        running.finish().dies_of(Signal::SIGKILL).prints("");
    }
}

#[test]
fn a_lock_ends_with_its_lease_if_nxlock_is_stopped_while_the_command_begins() {
    in_each_manner(|local, options| {
        let beginning = Beginning::of(local, options);
        freeze(beginning.running.pid());
        beginning.goes_on();
        let Beginning { running, .. } = beginning;
        Turn::had(local, &[]).leaves();
        running.signal(Signal::SIGCONT);
        running.finish().exits(76).prints("ran\n");
    });
}

#[test]
fn a_command_that_begins_keeps_its_lock_though_all_are_stopped() {
    in_each_manner(|local, options| {
        let (running, guard) = forks_its_guard(local, options);
        goes_on(Pid::from_raw(running.pid()));
        goes_on_after_its_birth(guard);
        let child = forked_by(guard);
        let beginning = Beginning { running, child };
        while !beginning.is_about_to_execute() {
            ptrace::syscall(child, None).expect("it goes on");
        }
        freeze(beginning.running.pid());
        let waiter = Turn::queued(local, &[]);
        eventually("its lease has ended", || lock_status(local)["ttl_ms"].as_u64().unwrap_or(0) == 0);
        local.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
        assert!(!waiter.is_up());
        goes_on(guard);
        beginning.is_killed();
        beginning.running.signal(Signal::SIGCONT);
        beginning.running.finish().exits(76).prints("");
        let mut waiter = waiter;
        waiter.up();
        waiter.leaves();
    });
}

#[test]
fn a_command_that_has_not_begun_when_its_lock_is_lost_never_does() {
    let redis = Redis::start();
    let beginning = Beginning::of(&redis, &["-t", "10s", "--kill-after", "200ms"]);
    redis.delete("lock:job");
    beginning.is_killed();
    let next = Turn::had(&redis, &[]);
    beginning.running.finish().exits(76).prints("").says("\"job\" is lost");
    next.leaves();
}

#[test]
fn a_command_that_has_not_begun_is_stopped_like_any_other() {
    let redis = Redis::start();
    let beginning = Beginning::of(&redis, &["--kill-after", "200ms"]);
    beginning.running.signal(Signal::SIGTERM);
    beginning.is_killed();
    beginning.running.finish().exits(137).prints("");
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_command_that_is_stopped_at_its_birth_goes_on_with_nxlock() {
    let redis = Redis::start();
    let Beginning { running, child } = Beginning::at_birth(&redis, &[]);
    waitpid(child, Some(WaitPidFlag::__WALL)).expect("it stops");
    kill(child, Signal::SIGSTOP).expect("it is there");
    ptrace::detach(child, None).expect("it stops for good");
    // A guard that hears of the grant only now has continued it.
    let has_gone_on = || name_of(child.as_raw()) != "nx-guard";
    eventually("it is stopped", || state_of(child.as_raw()) == Some('T') || has_gone_on());
    running.signal(Signal::SIGCONT);
    running.finish().exits(0).prints("ran\n");
}

/// As a script does that stops a job and all of its processes, and continues the job.
#[test]
fn a_run_that_is_stopped_whole_at_the_birth_of_its_command_goes_on_with_nxlock() {
    let redis = Redis::start();
    let Beginning { running, child } = Beginning::at_birth(&redis, &["-t", "1h"]);
    waitpid(child, Some(WaitPidFlag::__WALL)).expect("it stops");
    let guard = parent_of(child.as_raw());
    // A renewal is not to be what continues it.
    eventually("it listens", || running.stderr().contains("renewed for 1h"));
    redis.hang();
    for pid in [running.pid(), guard] {
        freeze(pid);
    }
    kill(child, Signal::SIGSTOP).expect("it is there");
    ptrace::detach(child, None).expect("it stops for good");
    eventually("it is stopped", || state_of(child.as_raw()) == Some('T'));
    running.signal(Signal::SIGCONT);
    eventually("its command runs", || running.stdout() == "ran\n");
    redis.resume();
    running.finish().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn a_program_that_is_not_there_after_all_is_127() {
    let redis = Redis::start();
    let directory = redis.directory();
    let log = directory.join("log");
    let script = "PATH=$1; exec \"$2\" run job -- no-such-program 2> \"$3\"";
    let program = crate::support::program();
    redis.sh(script, &[directory.to_str().unwrap(), program, log.to_str().unwrap()]).run().exits(127);
    assert!(text_of(&log).contains("no-such-program"), "{}", text_of(&log));
    assert!(!redis.exists("lock:job"));
}
