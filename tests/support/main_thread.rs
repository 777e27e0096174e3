//! Stops the main thread of an nxlock by ptrace(2), as if it had no processor, while its other threads go on.

use std::fs;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::turns::holder_id;
use super::{Redis, eventually, state_of, text_of};

/// A main thread that is stopped. Only the thread of the test that has stopped it can let it go on.
pub struct MainThread(Pid);

impl MainThread {
    /// Stops the main thread of this process, once another thread renews. `None`, and it is reported, if the kernel does
    /// not let this user trace the process, ptrace(2): where Yama is on, only a descendant may be traced.
    #[expect(clippy::print_stderr, reason = "who runs the tests is to know what they did not")]
    #[track_caller]
    pub fn stopped(pid: i32) -> Option<MainThread> {
        let main = Pid::from_raw(pid);
        // Once the main thread waits, it has given the lock to that thread.
        let waits = || state_of(pid) == Some('S');
        eventually("it renews by a thread of its own", || {
            names_of_threads(main).contains(&"renewer".into()) && waits()
        });
        match ptrace::seize(main, ptrace::Options::empty()) {
            Err(Errno::EPERM) => {
                eprintln!("skipped: this user may not trace a keeper, and its main thread is not stopped");
                return None;
            }
            seized => seized.expect("it is there"),
        }
        ptrace::interrupt(main).expect("it is seized");
        waitpid(main, Some(WaitPidFlag::__WALL)).expect("it stops");
        Some(MainThread(main))
    }

    /// Asks the holder of `job` to give up, and waits until its other thread has found the request.
    #[track_caller]
    pub fn is_asked_meanwhile(&self, redis: &Redis) {
        redis.renews_soon("lock:job");
        let (id, before) = (holder_id(redis), redis.scripts_run());
        redis.nxlock(["release", "job", "--ask", &id]).run().exits(0);
        // The request is two scripts.
        eventually("the other thread has renewed too, and found the request", || redis.scripts_run() >= before + 3);
    }

    pub fn goes_on(self) {
        ptrace::detach(self.0, None).expect("it is stopped");
    }
}

fn names_of_threads(process: Pid) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.map(|thread| text_of(&thread.path().join("comm")).trim_end().to_owned()).collect()
}
