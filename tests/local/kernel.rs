//! What the kernel reports about holders, and kernels that cannot report it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{refused_to_run, with_rules};
use crate::support::turns::{Turn, is_free};
use crate::support::{Authority, Local, built, eventually, is_alive, text_of};

/// No open file description locks: fcntl(2) refuses them as an old kernel does.
const WITHOUT_LOCKS: &str = r"
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 36, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 38, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
";

#[test]
fn a_file_system_that_keeps_no_locks_of_open_files_is_refused() {
    let local = Local::start();
    let without = with_rules(&local, WITHOUT_LOCKS);
    let without = |args: &[&str]| local.nxlock(args.iter().copied()).under([without.to_str().unwrap()]).run();
    without(&refused_to_run(&["-n"])).exits(78).prints("").says("keeps no locks of open files").says("local:/path");
    // Waiting is refused there too, and a live holder is not taken for a dead one.
    let holder = Turn::had(&local, &["-t", "1h"]);
    for options in [&["-n"][..], &["-w", "1s"], &["-n", "--no-queue"]] {
        without(&refused_to_run(options)).exits(78).prints("").says("keeps no locks of open files");
    }
    without(&["status", "job"]).exits(78).says("keeps no locks of open files");
    holder.leaves();
}

/// Ends its main thread, and continues in another.
const WITHOUT_A_MAIN_THREAD: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *go_on(void *unused) { pause(); return unused; }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, go_on, 0);
    printf("up\n");
    fflush(stdout);
    pthread_exit(0);
}
"#;

#[test]
fn a_process_whose_main_thread_has_ended_lives() {
    let local = Local::start();
    let program = built(&local.directory(), WITHOUT_A_MAIN_THREAD);
    let mut process = std::process::Command::new(program).stdout(std::process::Stdio::null()).spawn().unwrap();
    let pid = process.id().cast_signed();
    let state =
        || text_of(format!("/proc/{pid}/stat").as_ref()).rsplit_once(") ").map(|(_, rest)| rest[..1].to_owned());
    eventually("its main thread has ended", || state().as_deref() == Some("Z"));
    let words = ["--json", "acquire", "job", "--ttl", "1h", "--while-pid", &pid.to_string()];
    let kept = local.nxlock(words).run().exits(0).json();
    let keeper = i32::try_from(kept["keeper"].as_i64().expect("a keeper")).unwrap();
    // Held by the keeper first, and then by the process alone.
    for _ in 0..2 {
        local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
        let _ = kill(Pid::from_raw(keeper), Signal::SIGKILL);
        eventually("the keeper is dead", || !is_alive(keeper));
    }
    let mut waiter = Turn::queued(&local, &[]);
    process.kill().unwrap();
    process.wait().unwrap();
    waiter.up();
    waiter.leaves();
    assert!(is_free(&local));
}
