//! Signals to nxlock while a command runs, without a terminal.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Nxlock, Redis, Running, eventually, eventually_some, now, state_of};

/// Prints each signal that it receives, and exits with 5 at TERM.
const LISTENER: &str = r#"
    for signal in HUP INT QUIT USR1 USR2 WINCH; do trap "echo got $signal" $signal; done
    trap 'echo got CONT' CONT
    trap 'echo got TERM; exit 5' TERM
    echo pid $$
    while :; do sleep 300 & wait; done"#;

fn listener(redis: &Redis) -> (Running, i32) {
    let mut running = redis.nxlock(["run", "job", "-c", LISTENER]).start();
    let pid = running.line("pid ").parse().unwrap();
    (running, pid)
}

/// Starts a listener that had to wait for its lock: during the wait, nxlock handles signals differently.
fn listener_after_a_wait(redis: &Redis) -> Running {
    redis.put("lock:job", b"somebody", None);
    let mut running = redis.nxlock(["run", "job", "-c", LISTENER]).start();
    running.says("waiting");
    redis.delete("lock:job");
    running.line("pid ");
    running
}

#[test]
fn what_we_are_sent_the_command_gets_exactly_once() {
    let redis = Redis::start();
    each_signal_comes_once(listener(&redis).0);
}

#[test]
fn after_a_wait_too_the_command_gets_what_we_are_sent_exactly_once() {
    let redis = Redis::start();
    each_signal_comes_once(listener_after_a_wait(&redis));
}

#[test]
fn after_a_wait_too_a_second_int_does_not_end_us_before_the_command() {
    let redis = Redis::start();
    let mut running = listener_after_a_wait(&redis);
    for times in 1..=3 {
        running.signal(Signal::SIGINT);
        eventually("it comes", || running.stdout().matches("got INT").count() == times || running.has_ended());
    }
    running.signal(Signal::SIGTERM);
    running.finish().exits(5);
}

#[test]
fn after_a_wait_too_the_commands_end_is_noticed_at_once() {
    let redis = Redis::start();
    for _ in 0..5 {
        redis.put("lock:job", b"somebody", None);
        let mut running = redis.nxlock(["run", "job", "-t", "1h", "-c", "echo $$; exit 3"]).start();
        running.says("waiting");
        redis.delete("lock:job");
        running.line("");
        let ended = now();
        running.finish().exits(3);
        // Only the end of the command can wake nxlock in the next ten seconds.
        assert!(ended.elapsed() < Duration::from_secs(5), "noticed after {:?}", ended.elapsed());
    }
}

#[track_caller]
fn each_signal_comes_once(mut running: Running) {
    let signals = [
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGCONT, "CONT"),
    ];
    for (signal, name) in signals {
        running.signal(signal);
        running.line(&format!("got {name}"));
    }
    running.signal(Signal::SIGTERM);
    let done = running.finish().exits(5);
    let text = done.text();
    for (_, name) in signals {
        // nxlock sends CONT after TERM, for a command that is stopped.
        let expected = if name == "CONT" { 1..=2 } else { 1..=1 };
        let got = text.lines().filter(|line| *line == format!("got {name}")).count();
        assert!(expected.contains(&got), "{name} came {got} times:\n{text}");
    }
    assert_eq!(text.matches("got TERM").count(), 1, "{text}");
}

#[test]
fn a_command_that_survives_what_we_are_sent_goes_on() {
    let redis = Redis::start();
    let (mut running, pid) = listener(&redis);
    for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGHUP, "HUP"), (Signal::SIGQUIT, "QUIT")] {
        running.signal(signal);
        running.line(&format!("got {name}"));
    }
    assert!(!running.has_ended());
    assert!(state_of(pid).is_some());
    assert!(redis.exists("lock:job"));
    running.signal(Signal::SIGTERM);
    running.finish().exits(5);
}

#[test]
fn a_command_that_dies_of_what_we_are_sent_is_128_and_its_number() {
    let redis = Redis::start();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2] {
        let mut running = redis.nxlock(["run", "job", "-c", "ulimit -c 0; echo up; exec sleep 300"]).start();
        running.line("up");
        running.signal(signal);
        running.finish().exits(128 + signal as i32);
        assert!(!redis.exists("lock:job"));
    }
}

#[test]
fn a_stop_that_comes_while_the_command_is_being_started_is_not_lost() {
    let redis = Redis::start();
    for _ in 0..20 {
        let mut running = redis.nxlock(["run", "job", "-v", "--", "sleep", "300"]).start();
        running.says("got \"job\"");
        running.signal(Signal::SIGTERM);
        let done = running.finish();
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&done.status) == Some(15);
        assert!(by_signal || done.status.code() == Some(143), "{}", done.both());
        assert!(!redis.exists("lock:job"));
    }
}

#[test]
fn suspended_and_continued_it_goes_on_with_its_command() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "-c", "echo pid $$; exec sleep 300"]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    running.signal(Signal::SIGTSTP);
    eventually("both are stopped", || state_of(running.pid()) == Some('T') && state_of(pid) == Some('T'));
    running.signal(Signal::SIGCONT);
    eventually("both are continued", || state_of(running.pid()) != Some('T') && state_of(pid) != Some('T'));
    running.signal(Signal::SIGTERM);
    running.finish().exits(143);
}

#[test]
fn suspended_for_less_than_the_lease_nothing_is_lost() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let call = redis.nxlock(["run", "job", "-t", "10s", "-c", "echo up; read x; exit 4"]).stdin_from(reader);
    let mut running = call.start();
    running.line("up");
    for _ in 0..2 {
        running.signal(Signal::SIGTSTP);
        eventually("it is stopped", || state_of(running.pid()) == Some('T'));
        running.signal(Signal::SIGCONT);
        eventually("it is continued", || state_of(running.pid()) != Some('T'));
    }
    drop(writer);
    running.finish().exits(4).says_nothing();
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let redis = Redis::start();
    let script = "trap '' HUP; exec nxlock run job -c 'grep SigIgn /proc/self/status; echo up; read x; exit 4'";
    let (reader, writer) = std::io::pipe().unwrap();
    let call = Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url()).stdin_from(reader);
    let mut running = call.start();
    let ignored = running.line("SigIgn:\t");
    assert_eq!(u64::from_str_radix(&ignored, 16).unwrap() & 1, 1, "HUP is ignored: {ignored}");
    running.line("up");
    running.signal(Signal::SIGHUP);
    // nxlock handles it after HUP, so any effect of HUP has taken place.
    running.signal(Signal::SIGWINCH);
    assert!(!running.has_ended());
    drop(writer);
    running.finish().exits(4);
}

#[test]
fn what_nohup_ignores_does_not_end_a_wait() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let script = "trap '' HUP; exec nxlock run job -- echo ran";
    let mut running = Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url()).start();
    running.says("waiting");
    running.signal(Signal::SIGHUP);
    redis.delete("lock:job");
    running.finish().exits(0).prints("ran\n");
}

#[test]
fn a_background_job_of_a_script_ignores_int_as_the_shell_made_it() {
    let redis = Redis::start();
    // Without job control, sh starts `&` with INT and QUIT ignored.
    let script = "nxlock run job -c 'grep SigIgn /proc/self/status' & wait";
    let done = Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url()).run().exits(0);
    let text = done.text();
    let ignored = u64::from_str_radix(text.trim_start_matches("SigIgn:\t").trim_end(), 16).unwrap();
    assert_eq!(ignored & 0b110, 0b110, "INT and QUIT: {text}");
}

#[test]
fn a_child_that_ended_before_we_did_was_waited_for() {
    let redis = Redis::start();
    // An inherited "ignore" of CHLD must not hide the command's status from nxlock.
    let script = "trap '' CHLD; exec nxlock run job -c 'exit 7'";
    Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url()).run().exits(7);
}

/// Prints each of these signals that it receives, and exits with 5 at TERM.
const EACH: &str = r#"
    for signal in ALRM VTALRM PROF XCPU IO PWR STKFLT ABRT SYS TRAP URG TTIN TTOU RTMIN RTMIN+7 RTMAX; do
        trap "echo got $signal" $signal
    done
    trap 'exit 5' TERM
    echo up; while :; do sleep 300 & wait; done"#;

#[test]
fn every_signal_that_can_be_handled_is_the_commands() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "--", "bash", "-c", EACH]).start();
    running.line("up");
    let first = nix::libc::SIGRTMIN();
    let real_time = [("RTMIN", first), ("RTMIN+7", first + 7), ("RTMAX", nix::libc::SIGRTMAX())];
    let standard = [
        ("ALRM", Signal::SIGALRM),
        ("VTALRM", Signal::SIGVTALRM),
        ("PROF", Signal::SIGPROF),
        ("XCPU", Signal::SIGXCPU),
        ("IO", Signal::SIGIO),
        ("PWR", Signal::SIGPWR),
        ("STKFLT", Signal::SIGSTKFLT),
        ("ABRT", Signal::SIGABRT),
        ("SYS", Signal::SIGSYS),
        ("TRAP", Signal::SIGTRAP),
        ("URG", Signal::SIGURG),
        ("TTIN", Signal::SIGTTIN),
        ("TTOU", Signal::SIGTTOU),
    ];
    for (name, number) in standard.map(|(name, signal)| (name, signal as i32)).into_iter().chain(real_time) {
        // SAFETY: kill(2) takes two numbers.
        assert_eq!(unsafe { nix::libc::kill(running.pid(), number) }, 0);
        running.line(&format!("got {name}"));
    }
    running.signal(Signal::SIGTERM);
    let text = running.finish().exits(5).text();
    for (name, _) in standard {
        assert_eq!(text.lines().filter(|line| *line == format!("got {name}")).count(), 1, "{name}: {text}");
    }
}

#[test]
fn an_alarm_that_was_set_before_is_the_commands() {
    let redis = Redis::start();
    // As without nxlock: exec(3) leaves the alarm to the command.
    let done = eventually_some("the command begins before the alarm", || {
        let call = redis.nxlock(["run", "job", "-c", "echo up; exec sleep 300"]);
        let done = call.under(["perl", "-e", "alarm 1; exec @ARGV"]).run();
        let has_begun = done.text() == "up\n";
        if !has_begun {
            // The alarm may have ended nxlock between the grant and the command.
            redis.ask::<()>(&["DEL", "lock:job"]);
        }
        has_begun.then_some(done)
    });
    done.exits(128 + 14);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_value_that_comes_with_a_signal_arrives_with_it() {
    let redis = Redis::start();
    let script = "import signal, sys\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])\n\
                  print('up', flush=True)\n\
                  import ctypes\n\
                  info = (ctypes.c_int * 32)()\n\
                  mask = (ctypes.c_ulong * 16)(1 << (signal.SIGRTMIN - 1))\n\
                  ctypes.CDLL(None).sigwaitinfo(mask, info)\n\
                  print('value', info[6], flush=True)\n";
    let mut running = redis.nxlock(["run", "job", "--", "python3", "-c", script]).start();
    running.line("up");
    let value = nix::libc::sigval { sival_ptr: std::ptr::without_provenance_mut(4711) };
    // SAFETY: sigqueue(3) does not dereference the value.
    assert_eq!(unsafe { nix::libc::sigqueue(running.pid(), nix::libc::SIGRTMIN(), value) }, 0);
    running.line("value 4711");
    running.finish().exits(0);
}
