//! Runs of which nxlock and its guard are killed at once, while processes that the command has started live: the kernel
//! keeps the lock for these, as with flock(1).

use std::fs::{self, File};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::{granted_after, pid_is_killed, refused_to_run, takes_less_than};
use crate::support::record::{state, with};
use crate::support::turns::{Turn, break_it, is_free, lock_status, process};
use crate::support::{Authority, Local, Running, eventually, freeze, is_alive, name_of, parent_of, state_of, wall};

/// A command with a child in a session of its own, which neither reads stdin nor holds stdout for nxlock.
const LEAVES: &str = "( setsid sh -c 'echo left $$; exec sleep 300' & ); echo pid $$; exec sleep 300";

/// Kills an nxlock and the guard of its command so that neither can notice the other's end.
#[track_caller]
fn both_are_killed(nxlock: i32, guard: i32) {
    // In this order: nxlock would continue a frozen guard.
    freeze(nxlock);
    freeze(guard);
    pid_is_killed(guard);
    pid_is_killed(nxlock);
}

/// Starts a run and kills it with its guard. Returns what is left of its command.
#[track_caller]
fn orphaned(local: &Local, options: &[&str]) -> (Running, i32) {
    let words = ["run", "job"].iter().chain(options).chain(&["-c", LEAVES]).copied();
    let mut running = local.nxlock(words).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    let left: i32 = running.line("left ").parse().unwrap();
    both_are_killed(running.pid(), parent_of(command));
    eventually("the kernel has killed the command", || !is_alive(command));
    assert!(is_alive(left));
    (running, left)
}

/// Has all leases in the lock's files end in half a second, as if they had been short. A short one could end, on a busy
/// machine, while its nxlock is still to hold the lock. Nobody may renew them any more.
fn leases_end_soon(local: &Local) {
    let path = local.file("lock");
    let record = File::open(&path).unwrap();
    // Locked, so that a waiter does not read a half-written record.
    record.lock().unwrap();
    let end = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap()) + Duration::from_millis(500);
    let end = end.as_millis().to_string();
    fs::write(&path, with(&fs::read(&path).unwrap(), &[("holder", "until_ms", &end)])).unwrap();
    // Wakes the first waiter, which then knows the new end.
    record.set_modified(wall()).unwrap();
}

/// Waits until a lease in the lock's files has ended: `status` tells of none that nobody renews any more.
#[track_caller]
fn a_lease_has_ended(local: &Local) {
    let state = state(&local.file("lock"));
    let ends = state.split_whitespace().filter_map(|field| field.strip_prefix("until_ms="));
    let first: u64 = ends.map(|end| end.parse().unwrap()).min().expect("a claim");
    let first = Duration::from_millis(first);
    eventually("its lease has ended", || Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap()) > first);
}

/// Asserts that a lock of which one share is orphaned is not granted before the last process of its command has ended,
/// though the lease has. Another may have a share that is not.
fn is_kept(options: &[&str], another: Option<&[&str]>, others: &[&str]) {
    let local = &Local::start();
    let (_running, left) = orphaned(local, &[options, &["--ttl", "1h"]].concat());
    leases_end_soon(local);
    let another = another.map(|options| Turn::had(local, options));
    let mut waiter = Turn::queued(local, others);
    let leases = || {
        let status = lock_status(local);
        let holders = status["holders"].as_array().cloned().unwrap_or_default();
        assert!(status["state"] != "free", "{status}");
        (status["ttl_ms"].clone(), holders.iter().any(|holder| holder["ttl_ms"] == 0))
    };
    a_lease_has_ended(local);
    eventually("its lease has ended", || matches!(leases(), (Value::Null, _) | (_, true)));
    for mode in [&["-n"][..], &["-n", "--no-queue"]] {
        local.nxlock(refused_to_run(&[mode, others].concat())).run().exits(75).prints("");
    }
    assert!(is_alive(left) && !waiter.is_up());
    pid_is_killed(left);
    waiter.up();
    waiter.leaves();
    another.into_iter().for_each(Turn::leaves);
}

#[test]
fn a_lock_is_kept_while_a_process_of_its_command_lives() {
    is_kept(&[], None, &[]);
}

#[test]
fn a_shared_lock_is_kept_while_a_process_of_its_command_lives() {
    is_kept(&["--shared"], None, &[]);
}

#[test]
fn a_slot_is_kept_while_a_process_of_its_command_lives() {
    is_kept(&["--slots", "2"], Some(&["--slots", "2", "--ttl", "1h"]), &["--slots", "2"]);
}

#[test]
fn who_waits_is_woken_by_the_end_of_the_last_process() {
    let local = Local::start();
    for options in [&["--ttl", "1h"][..], &["--ttl", "1h", "--shared"]] {
        takes_less_than(Duration::from_secs(1), "the next one has it", || {
            let (_running, left) = orphaned(&local, options);
            let mut waiter = Turn::queued(&local, &[]);
            let since = wall();
            pid_is_killed(left);
            let took = granted_after(since, &mut waiter);
            waiter.leaves();
            took
        });
    }
}

#[test]
fn a_waiter_that_was_there_before_both_were_killed_waits_for_the_rest() {
    for options in [&[][..], &["--shared"]] {
        let local = Local::start();
        let words = ["run", "job", "--ttl", "1h"].iter().chain(options).chain(&["-c", LEAVES]).copied();
        let mut running = local.nxlock(words).start();
        let command: i32 = running.line("pid ").parse().unwrap();
        let left: i32 = running.line("left ").parse().unwrap();
        let mut waiter = Turn::queued(&local, &[]);
        both_are_killed(running.pid(), parent_of(command));
        leases_end_soon(&local);
        let status = || lock_status(&local);
        let is_over = || status()["ttl_ms"].is_null();
        a_lease_has_ended(&local);
        eventually("its lease has ended", || is_over() || waiter.is_up());
        assert!(!waiter.is_up() && is_alive(left), "{options:?}: {}", status());
        pid_is_killed(left);
        waiter.up();
        waiter.leaves();
    }
}

#[test]
fn a_lock_that_processes_keep_can_be_broken() {
    let local = Local::start();
    let (_running, left) = orphaned(&local, &["--ttl", "1h"]);
    leases_end_soon(&local);
    a_lease_has_ended(&local);
    eventually("its lease has ended", || lock_status(&local)["ttl_ms"].is_null());
    local.nxlock(["status", "job"]).run().exits(0);
    break_it(&local);
    assert!(is_free(&local) && is_alive(left));
    local.nxlock(["run", "job", "-n", "--", "true"]).run().exits(0);
    pid_is_killed(left);
}

/// Returns the holders with this pid, as `status` shows them.
fn holders(local: &Local, pid: i32) -> Vec<Value> {
    let all = lock_status(local)["holders"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|holder| holder["pid"] == pid).collect()
}

/// Returns what `run -n` says of the lock, as text and as a document.
fn refusals(local: &Local, options: &[&str]) -> (String, Value) {
    let words = refused_to_run(&[&["-n"], options].concat());
    let text = local.nxlock(words.iter().copied()).run().exits(75).stderr;
    let document = local.nxlock(["--json"].into_iter().chain(words)).run().exits(75).stderr;
    (text, serde_json::from_str(&document).unwrap())
}

#[test]
fn whoever_looks_learns_that_only_processes_keep_the_lock() {
    for options in [&[][..], &["--shared"], &["--slots", "2"]] {
        let local = Local::start();
        let (running, left) = orphaned(&local, &[options, &["--ttl", "1h"]].concat());
        let file = local.file("commands").display().to_string();
        let status = lock_status(&local);
        let state = if options.is_empty() { "held" } else { "shared" };
        let (text, document) = refusals(&local, &[]);
        for seen in [&status, &document] {
            assert_eq!((&seen["state"], &seen["ttl_ms"]), (&json!(state), &Value::Null), "{seen}");
            let [holder] = seen["holders"].as_array().unwrap().as_slice() else { panic!("{seen}") };
            assert_eq!((&holder["pid"], &holder["ttl_ms"]), (&json!(running.pid()), &Value::Null), "{seen}");
            assert_eq!(holder["may_be_asked"], false, "{seen}");
            assert!(seen["holder"].is_null() || seen["holder"]["may_be_asked"] == false, "{seen}");
        }
        let warnings = status["warnings"].to_string();
        assert!(warnings.contains("nxlock is gone") && warnings.contains(&file), "{warnings}");
        assert!(text.contains("nxlock is gone") && text.contains(&format!("fuser {file}\n")), "{text}");
        assert!(text.contains("--break") && !text.contains("renewed") && !text.contains("--ask"), "{text}");
        assert!(!text.contains("lease 59m") && text.contains("until they end"), "{text}");
        let table = local.nxlock(["status", "job"]).run().exits(0).text();
        // Of the hour that was asked for: the time for which it has been held may be 59 ms.
        assert!(table.contains("no end") && !table.contains("59m "), "{table}");
        pid_is_killed(left);
        eventually("it is free", || is_free(&local));
    }
}

#[test]
fn nobody_is_asked_whose_nxlock_is_gone() {
    for options in [&[][..], &["--shared"], &["--slots", "2"]] {
        let local = Local::start();
        let (running, left) = orphaned(&local, &[options, &["--ttl", "1h"]].concat());
        let id = holders(&local, running.pid())[0]["id"].as_str().unwrap().to_owned();
        let words = ["release", "job", "--ask", &id, "--wait", "1h"];
        let who = process(running.pid());
        let refused = local.nxlock(words).run().exits(75).says(&format!("{who}, cannot be asked to give up \"job\""));
        refused.says("nxlock is gone").says(&format!("fuser {}", local.file("commands").display()));
        let refused = local.nxlock(["--json"].into_iter().chain(words)).run().exits(75).json();
        assert_eq!((&refused["outcome"], &refused["holder"]["may_be_asked"]), (&json!("refuses"), &json!(false)));
        assert!(!state(&local.file("lock")).contains("asked"));
        pid_is_killed(left);
    }
}

#[test]
fn an_asker_stops_waiting_when_nobody_is_left_to_hear_it() {
    let local = Local::start();
    let mut running = local.nxlock(["run", "job", "--ttl", "1h", "-c", LEAVES]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    let left: i32 = running.line("left ").parse().unwrap();
    let guard = parent_of(command);
    // It does not find the request.
    freeze(running.pid());
    let id = holders(&local, running.pid())[0]["id"].as_str().unwrap().to_owned();
    let mut asker = local.nxlock(["release", "job", "--ask", &id, "--wait", "1h", "-v"]).start();
    asker.says("waiting");
    both_are_killed(running.pid(), guard);
    asker.finish().exits(75).says("nxlock is gone");
    assert!(is_alive(left));
    pid_is_killed(left);
}

#[test]
fn a_newer_run_learns_that_nobody_is_left_to_give_way_to_it() {
    let local = Local::start();
    let supersede = ["--supersede=running", "--ttl", "1h"];
    let (running, left) = orphaned(&local, &supersede);
    let mut newer = Turn::queued(&local, &supersede);
    newer.running.says(&format!("{}, cannot be asked to give up \"job\": its nxlock is gone", process(running.pid())));
    assert!(!state(&local.file("lock")).contains("asked"));
    pid_is_killed(left);
    newer.up();
    newer.is_told();
    let done = newer.finish().exits(0).never_says("nxlock: asked ");
    assert_eq!(done.stderr.matches("cannot be asked").count(), 1, "{}", done.stderr);
}

#[test]
fn a_waiter_that_is_dismissed_learns_it_too() {
    let local = Local::start();
    let (_running, left) = orphaned(&local, &["--ttl", "1h"]);
    let older = Turn::queued(&local, &["--supersede", "--json"]);
    let mut newer = Turn::queued(&local, &["--supersede"]);
    let told: Value = serde_json::from_str(&older.finish().exits(75).stderr).unwrap();
    assert_eq!((&told["outcome"], &told["ttl_ms"]), (&json!("superseded"), &Value::Null), "{told}");
    assert_eq!(told["holder"]["may_be_asked"], false, "{told}");
    pid_is_killed(left);
    newer.up();
    newer.leaves();
}

#[test]
fn a_waiter_says_when_only_processes_are_left() {
    for options in [&[][..], &["--shared"], &["--slots", "2"]] {
        let local = Local::start();
        let words = ["run", "job", "--ttl", "1h"].iter().chain(options).chain(&["-c", LEAVES]).copied();
        let mut running = local.nxlock(words).start();
        let command: i32 = running.line("pid ").parse().unwrap();
        let left: i32 = running.line("left ").parse().unwrap();
        let mut waiter = Turn::queued(&local, &[]);
        waiter.running.says(", lease ");
        both_are_killed(running.pid(), parent_of(command));
        waiter.running.says("whose nxlock is gone");
        pid_is_killed(left);
        waiter.up();
        let said = waiter.running.stderr();
        let line = said.lines().find(|line| line.contains("nxlock is gone")).unwrap();
        assert!(line.contains("kept by processes of a command") && !line.contains("lease"), "{line}");
        waiter.leaves();
    }
}

#[test]
fn of_several_holders_only_the_orphaned_one_cannot_be_asked() {
    for options in [&["--shared"][..], &["--slots", "2"]] {
        let local = Local::start();
        let options = [options, &["--ttl", "1h"]].concat();
        let other = Turn::had(&local, &options);
        let (running, left) = orphaned(&local, &options);
        let of = |pid| {
            let [holder] = <[Value; 1]>::try_from(holders(&local, pid)).unwrap();
            (holder["ttl_ms"].is_u64(), holder["may_be_asked"] == true)
        };
        assert_eq!((of(running.pid()), of(other.pid())), ((false, false), (true, true)));
        // The lock does not end with the lease of the other one.
        assert_eq!(lock_status(&local)["ttl_ms"], Value::Null);
        let (text, _) = refusals(&local, &[]);
        let line = |pid| text.lines().find(|line| line.contains(&format!("pid {pid},"))).unwrap().to_owned();
        let (gone, kept) = (line(running.pid()), line(other.pid()));
        assert!(gone.contains("nxlock is gone") && !gone.contains("lease"), "{text}");
        assert!(kept.contains("lease 59m") && !kept.contains("gone"), "{text}");
        assert!(text.contains("--ask ID") && text.contains("fuser "), "{text}");
        pid_is_killed(left);
        eventually("one is left", || holders(&local, running.pid()).is_empty());
        assert!(lock_status(&local)["ttl_ms"].is_u64());
        other.leaves();
    }
}

#[test]
fn a_name_stays_locked_for_a_while_though_both_were_killed_and_all_processes_have_ended() {
    for options in [&[][..], &["--shared"], &["--slots", "2"]] {
        let local = Local::start();
        let (running, left) = orphaned(&local, &[options, &["--ttl", "1h", "--at-least", "7d"]].concat());
        leases_end_soon(&local);
        a_lease_has_ended(&local);
        pid_is_killed(left);
        // Nobody has written to its files for two days, and then the files of another lock are created.
        let record = fs::File::options().write(true).open(local.file("lock")).unwrap();
        record.set_modified(wall() - Duration::from_hours(48)).unwrap();
        local.nxlock(["run", "other", "--", "true"]).run().exits(0);
        let mut waiter = Turn::queued(&local, &[]);
        let [holder] = <[Value; 1]>::try_from(holders(&local, running.pid())).unwrap();
        let left: u64 = holder["ttl_ms"].as_u64().unwrap_or_else(|| panic!("{holder}"));
        assert!((604_700_000..=604_800_000).contains(&left), "{holder}");
        local.nxlock(refused_to_run(&["-n", "--no-queue"])).run().exits(75).prints("").says("lease");
        assert!(!waiter.is_up());
        let id = holder["id"].as_str().unwrap();
        local.nxlock(["release", "job", "--break", id]).run().exits(0);
        waiter.up();
        waiter.leaves();
    }
}

#[test]
fn a_waiter_has_the_lock_when_the_while_is_over_for_which_nobody_is_left_to_keep_it() {
    for options in [&[][..], &["--shared"], &["--slots", "2"]] {
        let local = Local::start();
        let words = ["run", "job", "--ttl", "1h", "--at-least", "2s"].iter().chain(options).chain(&["-c", LEAVES]);
        let mut running = local.nxlock(words.copied()).start();
        let command: i32 = running.line("pid ").parse().unwrap();
        let left: i32 = running.line("left ").parse().unwrap();
        let first = lock_status(&local)["fence"].as_u64().unwrap();
        let mut waiter = Turn::queued(&local, &[]);
        both_are_killed(running.pid(), parent_of(command));
        pid_is_killed(left);
        // A fence is the time of the grant, by a clock that may be slewed.
        let next: u64 = waiter.up().parse().unwrap();
        assert!(next - first >= 1_900_000, "{options:?}: {next} after {first}");
        waiter.leaves();
    }
}

#[test]
fn a_holder_that_is_only_stopped_is_not_gone() {
    for options in [&[][..], &["--shared"], &["--slots", "2"]] {
        let local = Local::start();
        let words = ["run", "job", "--ttl", "1h"].iter().chain(options).chain(&["-c", LEAVES]).copied();
        let mut running = local.nxlock(words).start();
        let command: i32 = running.line("pid ").parse().unwrap();
        let left: i32 = running.line("left ").parse().unwrap();
        let guard = parent_of(command);
        freeze(running.pid());
        freeze(guard);
        leases_end_soon(&local);
        a_lease_has_ended(&local);
        assert!(lock_status(&local)["ttl_ms"].is_null());
        assert_eq!(holders(&local, running.pid())[0]["may_be_asked"], true);
        let (text, _) = refusals(&local, &[]);
        assert!(
            text.contains("processes of its command") && !text.contains("gone") && text.contains("--ask"),
            "{text}"
        );
        both_are_killed(running.pid(), guard);
        assert_eq!(holders(&local, running.pid())[0]["may_be_asked"], false);
        pid_is_killed(left);
    }
}

#[test]
fn what_a_command_leaves_behind_keeps_no_lock_that_was_released() {
    for options in [vec![], vec!["--shared"], vec!["--slots", "2"]] {
        let local = Local::start();
        let script = "setsid sleep 300 >/dev/null 2>&1 & echo pid $!";
        let words = [vec!["run", "job", "--ttl", "1h"], options.clone(), vec!["-c", script]].concat();
        let mut running = local.nxlock(words).start();
        let left: i32 = running.line("pid ").parse().unwrap();
        running.finish().exits(0).says_nothing();
        assert!(is_alive(left) && is_free(&local), "{options:?}");
        // The left one has the file of a share open, whose number is not used again.
        Turn::had(&local, &options).leaves();
        Turn::had(&local, &[]).leaves();
        assert!(is_alive(left) && is_free(&local), "{options:?}");
        pid_is_killed(left);
    }
}

#[test]
fn an_inner_run_keeps_the_lock_of_the_outer_one() {
    let local = Local::start();
    let inner = r#"nxlock run inner --ttl 1h -c 'echo inner $$ $PPID; exec sleep 300' & echo pid $$; wait"#;
    let mut running = local.nxlock(["run", "job", "--ttl", "1h", "-c", inner]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    let text = running.line("inner ");
    let (within, guard) = text.split_once(' ').unwrap();
    let (within, guard): (i32, i32) = (within.parse().unwrap(), guard.parse().unwrap());
    let files = descriptors(within).into_iter().filter(|(_, path)| path.starts_with(local.locks().to_str().unwrap()));
    let files: Vec<String> = files.map(|(_, path)| path).collect();
    assert_eq!(files.len(), 2, "its own lock and the outer one: {files:?}");
    both_are_killed(running.pid(), parent_of(command));
    eventually("the kernel has killed the command", || !is_alive(command));
    local.nxlock(refused_to_run(&["-n"])).run().exits(75);
    // The inner nxlock stops its command and ends.
    pid_is_killed(within);
    eventually("it is free", || is_free(&local));
    assert!(!is_alive(guard));
}

/// Returns the numbers of a process's descriptors, and what they are.
fn descriptors(pid: i32) -> Vec<(i32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let number = |name: std::ffi::OsString| name.to_str().unwrap().parse().unwrap();
    let mut all: Vec<(i32, String)> = entries
        .map(|entry| (number(entry.file_name()), fs::read_link(entry.path()).unwrap_or_default().display().to_string()))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn the_command_inherits_one_high_descriptor_that_nobody_else_uses() {
    let local = Local::start();
    for (before, number) in [
        ("true", 254),
        ("exec 7</dev/null", 254),
        ("ulimit -n 64", 63),
        // dash has no descriptors of two digits.
        ("exec python3 -c 'import os, sys; os.dup2(0, 254); os.execvp(sys.argv[1], sys.argv[1:])'", 253),
    ] {
        for options in ["", "--shared", "--slots 2"] {
            let separator = if before.starts_with("exec python3") { "" } else { "; exec" };
            let line = |nxlock: &str| {
                let script = format!("{before} {separator} {nxlock} sh -c 'echo pid $$; exec sleep 300'");
                let mut running = local.sh(&script, &[]).start();
                let pid: i32 = running.line("pid ").parse().unwrap();
                let is_sleep = || name_of(pid) == "sleep" && state_of(pid) == Some('S');
                eventually("it has become sleep", is_sleep);
                let all = descriptors(pid);
                pid_is_killed(pid);
                eventually("it ends", || running.has_ended());
                all.into_iter().map(|(number, _)| number).collect::<Vec<_>>()
            };
            let mut expected = line("");
            expected.push(number);
            expected.sort_unstable();
            assert_eq!(line(&format!("nxlock run job {options} --")), expected, "{before}: {options}");
        }
    }
    assert!(is_free(&local));
}

#[test]
fn what_a_command_leaves_behind_can_neither_write_to_the_lock_nor_read_a_token_nor_keep_others_out() {
    for options in [&[][..], &["--shared"], &["-j", "3"]] {
        let local = Local::start();
        let script = r#"
            fd=$(ls -l /proc/$$/fd | sed -n 's|.* \([0-9]*\) -> .*/lock:job.*|\1|p')
            flock -n $fd || exit
            sed -n 's/^flags:/flags /p' /proc/$$/fdinfo/$fd
            cat /proc/$$/fd/$fd
            setsid sleep 300 < /dev/null > /dev/null 2>&1 &
            exit 0"#;
        let words = [&["run", "job"], options, &["-c", script]].concat();
        let printed = local.nxlock(words).run().exits(0).text();
        // O_RDONLY is 0, and the last digit tells; there is nothing to read.
        let flags: Vec<&str> = printed.split_whitespace().collect();
        assert!(matches!(flags.as_slice(), ["flags", flags] if flags.ends_with('0')), "{options:?}: {printed}");
        for more in [options, &[]] {
            let words = [&["run", "job", "-n"], more, &["--", "echo", "ran"]].concat();
            local.nxlock(words).run().exits(0).prints("ran\n");
        }
    }
}
