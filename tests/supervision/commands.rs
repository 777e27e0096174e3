//! Unusual commands: traced, adopting orphans, leaving orphans, or killing their parent.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use crate::support::turns::is_free;
use crate::support::{
    Authority, Local, Redis, built, children_of, eventually, eventually_some, is_alive, send, state_of, write_program,
};

#[test]
fn a_command_that_asks_to_be_traced_has_not_ended_when_it_stops_for_it() {
    let local = Local::start();
    let traced = built(
        &local.directory(),
        "#include <sys/ptrace.h>\n#include <unistd.h>\n\
         int main(int c, char **v) { (void)c; ptrace(PTRACE_TRACEME, 0, 0, 0); return execvp(v[1], v + 1); }\n",
    );
    let mut running = local.nxlock(["run", "job", "--", traced.to_str().unwrap(), "sleep", "300"]).start();
    // At its execve(2), for a tracer; nxlock is none.
    let pid = eventually_some("it has stopped", || {
        assert!(!running.has_ended(), "{}", running.stderr());
        running.descendants().into_iter().find(|pid| state_of(*pid) == Some('t'))
    });
    send(pid, Signal::SIGKILL);
    running.finish().exits(137);
    assert!(is_free(&local));
}

#[test]
fn what_a_command_adopts_is_stopped_with_it() {
    let local = Local::start();
    let adopts = built(
        &local.directory(),
        "#include <sys/prctl.h>\n#include <unistd.h>\n\
         int main(int c, char **v) { (void)c; prctl(PR_SET_CHILD_SUBREAPER, 1); return execvp(v[1], v + 1); }\n",
    );
    let script = "( setsid sh -c 'trap \"\" TERM; echo up; while :; do sleep 300; done' & ); exec sleep 300";
    let call = ["run", "job", "--kill-after", "300ms", "--", adopts.to_str().unwrap(), "sh", "-c", script];
    let mut running = local.nxlock(call).start();
    running.line("up");
    running.signal(Signal::SIGTERM);
    eventually("it ends", || running.has_ended());
    assert_eq!(running.descendants(), [0; 0]);
    running.finish().exits(143);
    assert!(is_free(&local));
}

#[test]
fn what_a_command_orphans_is_waited_for_while_it_runs() {
    let local = Local::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "for n in 1 2 3 4 5 6 7 8; do ( sleep 0 & ); done; echo up; read x; exit 3";
    let mut running = local.nxlock(["run", "job", "-c", script]).stdin_from(reader).start();
    running.line("up");
    let guard = children_of(running.pid())[0];
    eventually("only the command is left, and no zombies", || children_of(guard).len() == 1);
    drop(writer);
    running.finish().exits(3).says_nothing();
}

#[test]
fn a_command_that_tells_its_parent_to_end_is_ended() {
    let local = Local::start();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let script = format!("ulimit -c 0; sleep 300 & kill -{} $PPID; wait", signal as i32);
        let mut running = local.nxlock(["run", "job", "-c", &script]).start();
        eventually("it ends", || running.has_ended());
        assert_eq!(running.descendants(), [0; 0], "{signal}");
        // A shell's background child ignores SIGINT and SIGQUIT; nxlock stops it with SIGTERM.
        running.finish().exits(128 + signal as i32);
        assert!(is_free(&local), "{signal}");
    }
}

#[test]
fn a_command_that_kills_its_parent_does_not_survive_it() {
    let redis = Redis::start();
    let script = "echo pid $$; trap '' TERM HUP; kill -KILL $PPID; while :; do :; done";
    let mut running = redis.nxlock(["run", "job", "-t", "1h", "-c", script]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    eventually("it ends", || running.has_ended());
    assert!(!is_alive(pid) && !redis.exists("lock:job"));
    running.finish().exits(70).says("its guard (process ").says("was killed, and so were the command");
}

#[test]
fn a_command_that_has_stopped_itself_is_killed_with_us() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "-t", "1h", "-c", "echo pid $$; kill -STOP $$"]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    eventually("it has stopped itself", || state_of(pid) == Some('T'));
    running.signal(Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(pid));
    eventually("the lock is given back", || !redis.exists("lock:job"));
}

#[test]
fn what_can_be_executed_and_how_is_as_for_env() {
    let local = Local::start();
    let file = |name: &str, text: &str, mode: u32| {
        let path = local.directory().join(name);
        write_program(&path, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let odd = [
        file("plain", "echo no interpreter is named; exit 3\n", 0o755),
        file("empty", "", 0o755),
        file("missing", "#!/no/such/interpreter\n", 0o755),
        file("loop", &format!("#!{}\n", local.directory().join("loop").display()), 0o755),
        file("unnamed", "#!\n", 0o755),
        file("forbidden", "#!/bin/sh\n", 0o644),
        local.directory(),
        local.directory().join("plain/below"),
        local.directory().join("long".repeat(100)),
    ];
    for path in odd {
        let path = path.to_str().unwrap();
        let without = local.sh("exec env \"$1\"", &[path]).run();
        let with = local.nxlock(["run", "job", "--", path]).run();
        assert_eq!((with.status, with.text()), (without.status, without.text()), "{path}: {}", with.stderr);
        assert!(is_free(&local), "{path}");
    }
}
