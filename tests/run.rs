//! A command cannot tell that it runs under nxlock.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Nxlock, Redis, eventually, is_alive, name_of, program, send, state_of, write_program};

/// Runs a command with and without nxlock, in a shell after `before`, and asserts that it prints the same.
fn same_with_and_without(before: &str, command: &str) -> String {
    let redis = Redis::start();
    let call = |through: &str| {
        let script = format!("{before}\nexec {through} {command}");
        Nxlock::by("sh", ["-c", &script]).env("NXLOCK_SERVER", redis.url()).run().exits(0).text()
    };
    let (without, with) = (call(""), call("nxlock run job --"));
    assert_eq!(with, without, "{before}; {command}");
    with
}

#[test]
fn every_exit_status_is_the_commands_own() {
    let redis = Redis::start();
    // Four at a time, each with a name of its own.
    std::thread::scope(|scope| {
        for quarter in 0..4 {
            let redis = &redis;
            scope.spawn(move || {
                for status in quarter * 64..(quarter + 1) * 64 {
                    let name = format!("job {quarter}");
                    let call = redis.nxlock(["run", &name, "--", "sh", "-c", &format!("exit {status}")]);
                    call.run().exits(status).says_nothing().prints("");
                }
            });
        }
    });
}

#[test]
fn a_command_that_dies_of_a_signal_is_128_and_its_number() {
    let redis = Redis::start();
    for (name, number) in [("HUP", 1), ("INT", 2), ("QUIT", 3), ("KILL", 9), ("SEGV", 11), ("TERM", 15), ("RTMIN", 34)]
    {
        let script = format!("ulimit -c 0; kill -{} $$; sleep 60", if name == "RTMIN" { "34" } else { name });
        redis.nxlock(["run", "job", "-c", &script]).run().exits(128 + number).says_nothing();
    }
}

#[test]
fn a_command_that_is_not_there_is_127_and_the_lock_is_given_back() {
    let redis = Redis::start();
    for missing in ["no-such-command", "/no/such/command", "./no such command"] {
        redis.nxlock(["run", "job", "--", missing]).run().exits(127).says(missing).says("not found");
        assert!(!redis.exists("lock:job"));
    }
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_the_lock_is_given_back() {
    let redis = Redis::start();
    let directory = redis.directory();
    let script = directory.join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).unwrap();
    for file in [&script, &directory] {
        let file = file.to_str().unwrap();
        redis.nxlock(["run", "job", "--", file]).run().exits(126).says(file);
        assert!(!redis.exists("lock:job"));
    }
}

#[test]
fn a_command_is_searched_in_path_as_by_execvp() {
    let redis = Redis::start();
    let directory = redis.directory();
    for (name, mode) in [("denied", 0o644), ("first", 0o755), ("second", 0o755)] {
        let file = directory.join(name).join("tool");
        std::fs::create_dir(directory.join(name)).unwrap();
        write_program(&file, &format!("#!/bin/sh\necho {name} \"$@\"\n"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let too_long = format!("{}:second", format!("/{}", "a".repeat(200)).repeat(25));
    for (path, status, printed) in [
        (&*too_long, 0, "second x\n"),
        ("first:second", 0, "first x\n"),
        ("denied:missing:second:first", 0, "second x\n"),
        ("first/tool:second", 0, "second x\n"),
        ("missing:denied", 126, ""),
        ("denied:missing", 126, ""),
        ("missing", 127, ""),
        ("first/tool", 127, ""),
        ("", 127, ""),
    ] {
        let call = redis.nxlock(["run", "job", "--", "tool", "x"]).env("PATH", path).in_directory(&directory);
        assert_eq!(call.run().exits(status).text(), printed, "{path}");
    }
    for path in ["", ":", "missing::second", "missing:"] {
        let call = redis.nxlock(["run", "job", "--", "tool"]).env("PATH", path);
        assert_eq!(call.in_directory(&directory.join("first")).run().exits(0).text(), "first\n", "{path}");
    }
    let without = redis.nxlock(["run", "job", "-c", "echo found"]).under(["env", "-u", "PATH"]);
    without.run().exits(0).prints("found\n");
}

#[test]
fn a_script_without_a_first_line_is_run_by_the_shell() {
    let redis = Redis::start();
    let path = redis.directory();
    let file = path.join("plain");
    write_program(&file, "echo \"$0\" \"$@\"; exit 3\n");
    let (file, printed) = (file.to_str().unwrap(), format!("{} a b\n", file.display()));
    redis.nxlock(["run", "job", "--", file, "a", "b"]).run().exits(3).prints(&printed);
    redis.nxlock(["run", "job", "--", "plain", "a", "b"]).env("PATH", path).run().exits(3).prints(&printed);
}

#[test]
fn arguments_arrive_byte_for_byte() {
    let redis = Redis::start();
    let sent: Vec<OsString> = ["", " ", "two words", "line\nline", "\t'\"\\$`*?", "-n", "--", "--ttl", "-", "ключ", ""]
        .into_iter()
        .map(OsString::from)
        .chain([OsString::from_vec(b"\xff\xfe not utf-8 \x80".to_vec())])
        .collect();
    let print = ["run", "job", "--", "sh", "-c", "cat /proc/$$/cmdline", "sh"].map(OsString::from);
    let done = redis.nxlock(print.into_iter().chain(sent.clone())).run().exits(0);
    let mut arguments: Vec<&[u8]> = done.stdout.split(|byte| *byte == 0).skip(4).collect();
    assert_eq!(arguments.pop(), Some(&b""[..]), "it ends with a NUL");
    let expected: Vec<Vec<u8>> = sent.into_iter().map(OsString::into_vec).collect();
    assert_eq!(arguments, expected);
}

#[test]
fn what_follows_the_name_and_is_no_option_of_ours_begins_the_command() {
    let redis = Redis::start();
    for (args, printed) in [
        (&["run", "job", "printf", "%s,", "-n", "--ttl", "5s"][..], "-n,--ttl,5s,"),
        (&["run", "-n", "job", "-t", "5s", "printf", "%s,", "-t"], "-t,"),
        (&["run", "job", "-n", "--", "printf", "%s,", "--", "-n"], "--,-n,"),
        (&["run", "job", "printf", "%s,", "a", "--", "b"], "a,--,b,"),
        (&["run", "job", "sh", "-c", "printf '%s,' \"$@\"", "--", "--", "x"], "--,x,"),
        (&["run", "job", "env", "-i", "sh", "-c", "echo -"], "-\n"),
        (&["--ttl", "5s", "run", "job", "true"], ""),
        (&["-q", "run", "job", "--no-wait", "-q", "echo", "-q"], "-q\n"),
    ] {
        let done = redis.nxlock(args.to_vec()).run();
        // Options of one verb are not valid before it.
        let status = if args[0] == "--ttl" { 64 } else { 0 };
        done.exits(status).prints(printed);
    }
}

#[test]
fn a_command_may_begin_with_a_dash() {
    let redis = Redis::start();
    let command = redis.directory().join("-odd");
    write_program(&command, "#!/bin/sh\necho odd \"$@\"\n");
    let path = format!("{}:{}", redis.directory().display(), std::env::var("PATH").unwrap());
    redis.nxlock(["run", "job", "--", "-odd", "-x"]).env("PATH", path).run().exits(0).prints("odd -x\n");
    redis.nxlock(["run", "job", "-odd"]).run().exits(64);
}

#[test]
fn a_shell_text_runs_under_sh() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "-c", "echo $((1 + 2)); exit 4"]).run().exits(4).prints("3\n");
    redis.nxlock(["run", "job", "-c", ""]).run().exits(0).prints("");
    redis.nxlock(["run", "job", "-c", "echo a", "b"]).run().exits(64).says("-c");
    redis.nxlock(["run", "job"]).run().exits(64);
}

#[test]
fn stdin_arrives_with_its_end() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "--", "cat"]).stdin(b"\0one\ntwo").run().exits(0).prints("\0one\ntwo");
    redis.nxlock(["run", "job", "--", "cat"]).stdin(b"").run().exits(0).prints("");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut cat = redis.nxlock(["run", "job", "--", "cat"]).stdin_from(reader).start();
    std::io::Write::write_all(&mut &writer, b"a line\n").unwrap();
    cat.line("a line");
    drop(writer);
    cat.finish().exits(0);
}

#[test]
fn what_is_left_of_stdin_is_the_next_readers() {
    // nxlock does not read ahead.
    let redis = Redis::start();
    let script = "nxlock run job -- sh -c 'read one; echo got $one'; read two; echo left $two";
    let call = Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url());
    call.stdin(b"1\n2\n").run().exits(0).prints("got 1\nleft 2\n");
}

#[test]
fn stdout_is_only_the_commands_even_when_we_have_much_to_say() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", Some(300));
    for options in [&["-v"][..], &["--json"], &["-v", "--json"], &[]] {
        let args = options.iter().chain(&["run", "job", "--", "sh", "-c", "echo out; echo err >&2"]).copied();
        redis.nxlock(args).run().exits(0).prints("out\n").says("err\n");
    }
}

#[test]
fn verbose_tells_of_the_grant_before_the_command_begins_and_of_the_release_after_it() {
    let redis = Redis::start();
    // stderr is one file for both, so its lines are in the order in which they were written.
    for _ in 0..20 {
        let done = redis.nxlock(["-v", "run", "job", "--", "sh", "-c", "echo the command >&2"]).run().exits(0);
        let lines: Vec<&str> = done.stderr.lines().collect();
        let at = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{lines:?}"));
        let told = [at("got \"job\""), at("starting the command"), at("the command"), at("released \"job\"")];
        assert!(told.is_sorted(), "{lines:#?}");
    }
    redis
        .nxlock(["-v", "run", "job", "--at-least", "1m", "--", "true"])
        .run()
        .exits(0)
        .says("\"job\" stays locked for");
    redis.delete("lock:job");
    redis.nxlock(["run", "job", "--", "true"]).run().exits(0).says_nothing();
}

#[test]
fn the_command_is_told_what_it_holds() {
    let redis = Redis::start();
    let script = "env | grep ^NXLOCK_ | grep -v ^NXLOCK_SERVER= | sort; nxlock status --json job";
    let done = redis.nxlock(["run", "job", "-t", "7s", "--prefix", "p:", "-c", script]).run();
    let text = done.text();
    let found = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name}:\n{text}")).to_owned()
    };
    assert_eq!(found("NXLOCK_NAME"), "job");
    assert_eq!(found("NXLOCK_KEY"), "p:job");
    assert_eq!(found("NXLOCK_TTL_MS"), "7000");
    assert!(found("NXLOCK_TOKEN").starts_with("nx1:"));
    assert!(found("NXLOCK_FENCE").parse::<u64>().is_ok());
}

#[test]
fn the_command_can_renew_and_show_its_own_lock() {
    let redis = Redis::start();
    let script = "nxlock renew \"$NXLOCK_NAME\" --ttl 30s && nxlock status \"$NXLOCK_NAME\" >/dev/null";
    redis.nxlock(["run", "job", "-c", script]).run().exits(0).says_nothing();
}

#[test]
fn the_environment_is_the_callers() {
    let redis = Redis::start();
    let odd = OsString::from_vec(b"\xff=\n".to_vec());
    let call = redis.nxlock(["run", "job", "--", "sh", "-c", "printf %s \"$ODD\"; printf %s \"${NO_SUCH-unset}\""]);
    let done = call.env("ODD", &odd).run().exits(0);
    assert_eq!(done.stdout, b"\xff=\nunset");
}

#[test]
fn umask_directory_and_limits_are_the_callers() {
    same_with_and_without("umask 027; cd /; ulimit -n 123; ulimit -c 0", "sh -c 'umask; pwd; ulimit -n; ulimit -c'");
}

#[test]
fn niceness_is_the_callers() {
    same_with_and_without("", "nice");
    same_with_and_without("", "nice -n 5 nice");
}

#[test]
fn signals_are_ignored_and_blocked_as_by_the_caller() {
    let dispositions = "grep -E '^(SigBlk|SigIgn)' /proc/self/status";
    same_with_and_without("", dispositions);
    same_with_and_without("trap '' HUP INT QUIT USR1 USR2 TSTP WINCH", dispositions);
    same_with_and_without("trap '' TERM", dispositions);
    same_with_and_without("trap '' PIPE", dispositions);
}

#[test]
fn a_writer_whose_reader_leaves_dies_of_it_as_without_us() {
    let redis = Redis::start();
    let script = "nxlock run job -- sh -c 'yes; echo $? >&2' | head -n 1";
    let call = Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url());
    call.run().exits(0).prints("y\n").says("141");
}

#[test]
fn the_command_has_no_descriptors_but_the_callers() {
    let redis = Redis::start();
    let descriptors = |call: Nxlock| {
        let mut running = call.start();
        let pid: i32 = running.line("pid ").parse().unwrap();
        eventually("it has become sleep", || name_of(pid) == "sleep" && state_of(pid) == Some('S'));
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let mut numbers: Vec<i32> = entries.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
        numbers.sort_unstable();
        send(pid, Signal::SIGTERM);
        // Without nxlock it dies of the signal; nxlock reports that as a status.
        assert!(running.finish().status.into_raw() != 0);
        numbers
    };
    let through = |before: &str, nxlock: &str| {
        let script = format!("{before}; exec {nxlock} sh -c 'echo pid $$; exec sleep 300'");
        descriptors(Nxlock::by("sh", ["-c", &script]).env("NXLOCK_SERVER", redis.url()))
    };
    // nxlock passes on the descriptors that its caller opened.
    for before in ["true", "exec 7</dev/null"] {
        assert_eq!(through(before, "nxlock run job --"), through(before, ""), "{before}");
    }
}

#[test]
fn a_caller_without_streams_is_served_as_well() {
    let redis = Redis::start();
    let script = "exec nxlock run job -- sh -c 'exit 6' <&- >&- 2>&-";
    Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url()).run().exits(6);
}

#[test]
fn without_a_terminal_the_command_leads_a_process_group() {
    let redis = Redis::start();
    let done = redis.nxlock(["run", "job", "-c", "echo $$; cut -d' ' -f5 /proc/$$/stat"]).run().exits(0);
    let text = done.text();
    let (pid, group) = text.trim_end().split_once('\n').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn the_command_is_our_child_and_waits_for_its_own_children() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "-c", "(exit 3) & wait $!; echo $?"]).run().exits(0).prints("3\n");
}

#[test]
fn what_a_command_leaves_in_the_background_lives_on_and_delays_nobody() {
    let redis = Redis::start();
    // One is a plain background process, the other a daemon; both keep the standard streams open.
    let script = "sleep 300 & echo one $!; setsid sleep 300 & echo two $!; exit 7";
    let mut running = redis.nxlock(["run", "job", "-c", script]).start();
    let left: Vec<i32> = ["one ", "two "].iter().map(|begin| running.line(begin).parse().unwrap()).collect();
    eventually("it ends", || running.has_ended());
    assert!(!redis.exists("lock:job"));
    assert!(left.iter().all(|pid| is_alive(*pid)), "{left:?}");
    running.finish().exits(7).says_nothing();
}

#[test]
fn a_command_killed_by_somebody_else_gives_the_lock_back() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "-c", "echo pid $$; exec sleep 300"]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    send(pid, Signal::SIGKILL);
    running.finish().exits(137);
}

#[test]
fn it_is_renewed_for_as_long_as_it_runs() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut running = redis.nxlock(["run", "job", "-t", "6s", "--", "cat"]).stdin_from(reader).start();
    eventually("it has the lock", || redis.exists("lock:job"));
    let value = redis.value("lock:job");
    for _ in 0..3 {
        redis.sees_a_renewal("lock:job");
    }
    assert_eq!(redis.value("lock:job"), value);
    assert!(!running.has_ended());
    drop(writer);
    running.finish().exits(0).says_nothing();
}

/// A holder sends these when it begins to listen, 100 ms after the server has granted it the lock.
const LISTENING: [&str; 4] = ["HELLO 3", "CLIENT TRACKING", "SUBSCRIBE ", "EVALSHA renew "];

#[test]
fn one_request_takes_the_lock_and_one_gives_it_back() {
    use crate::support::{Fate, Proxy, now};
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |_| Fate::Delivered);
    let began = now();
    proxy.nxlock(["run", "job", "--", "true"]).run().exits(0);
    let lasted = began.elapsed();
    let mut commands = proxy.commands();
    if lasted >= Duration::from_millis(100) {
        // On a busy machine, the holder may have begun to listen, and renewed the lock then.
        commands.retain(|words| !LISTENING.iter().any(|verb| words.starts_with(verb)));
    }
    let begin = commands.iter().map(|words| words.split(" token").next().unwrap()).collect::<Vec<_>>();
    assert_eq!(begin, ["EVALSHA acquire", "EVALSHA release"]);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_run_in_a_run_holds_both() {
    let redis = Redis::start();
    let done = redis.nxlock(["run", "outer", "--", program(), "run", "inner", "-c", "nxlock status outer inner"]).run();
    assert_eq!(done.status.into_raw(), 0, "{}", done.both());
    assert_eq!(done.text().matches("held").count(), 2);
}
