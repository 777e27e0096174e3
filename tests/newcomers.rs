//! What somebody meets who uses nxlock for the first time: reasons, commands to paste, and what to write in place of a
//! slip.

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, holder_id, is_free, lock_status};
use crate::support::{Authority, Cluster, Local, MASTER, Nxlock, Redis, Sentinels, Terminal, eventually};

#[test]
fn whoever_waits_sees_why_the_lock_is_held() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--reason", "backfill of May"]);
    let mut waits = Turn::waiting(&local, &[]);
    waits.running.says(", for \"backfill of May\", lease ");
    holder.leaves();
    waits.up();
    waits.leaves();
}

#[test]
fn quiet_is_silent_about_a_busy_lock_and_not_about_a_command_that_is_stopped() {
    let local = Local::start();
    let done = local.nxlock(["-q", "run", "job", "--time-limit", "100ms", "--", "sleep", "60"]).run().exits(124);
    done.says("the time limit is reached: stopping the command");
    let asked = local.nxlock(["-q", "run", "job", "--", "sleep", "60"]).start();
    eventually("it has the lock", || !is_free(&local));
    let id = holder_id(&local);
    local.nxlock(["-q", "run", "job", "-n", "--", "true"]).run().exits(75).says_nothing();
    local.nxlock(["release", "job", "--ask", &id, "--reason", "lunch"]).run().exits(0);
    asked.finish().exits(143).says("asked to give up \"job\" by ").says(": lunch; stopping the command");
}

/// Returns the command to paste that a refusal shows after this label.
#[track_caller]
fn pasted(refusal: &str, label: &str) -> String {
    let line = refusal.lines().find_map(|line| line.trim().strip_prefix(label));
    line.unwrap_or_else(|| panic!("no {label}:\n{refusal}")).trim().to_owned()
}

#[test]
fn a_command_to_paste_means_the_same_lock_in_an_empty_environment() {
    let redis = Redis::on_tcp(&[]);
    let url = format!("redis://127.0.0.1:{}/3", redis.port());
    let place = [("NXLOCK_SERVER", &*url), ("NXLOCK_PREFIX", "team:")];
    let other = [("REDIS_URL", &*url), ("NXLOCK_PREFIX", "lock:")];
    for variables in [place, other] {
        let with = |call: Nxlock| variables.iter().fold(call, |call, (name, value)| call.env(name, value));
        let mut holder = with(Nxlock::new(["run", "job", "-c", "echo up; exec sleep 60"])).start();
        holder.line("up");
        let refused = with(Nxlock::new(["run", "job", "-n", "--", "true"])).run().exits(75);
        for label in ["ask", "break"] {
            let command = pasted(&refused.stderr, label);
            assert!(command.contains(&format!(" --prefix {}", variables[1].1)) && command.contains("/3 "), "{command}");
        }
        let command = pasted(&refused.stderr, "break");
        Nxlock::by("sh", ["-c", &command]).run().exits(0).says("broke \"job\"");
        drop(holder);
    }
    redis.leave_as_it_is();
}

#[test]
fn a_command_to_paste_has_no_password_and_works_where_the_environment_has_one() {
    let redis = Redis::with_password("s3cret");
    let url = format!("unix://{}?pass=s3cret", redis.socket().display());
    let call = |words: &[&str]| Nxlock::new(words).env("NXLOCK_SERVER", &url);
    call(&["acquire", "job", "--ttl", "1h"]).run().exits(0);
    let refused = call(&["run", "job", "-n", "--", "true"]).run().exits(75).never_says("s3cret");
    let command = pasted(&refused.stderr, "break");
    assert_eq!(command, format!("nxlock release job --break {}", holder_id(&redis)));
    Nxlock::by("sh", ["-c", &command]).env("NXLOCK_SERVER", &url).run().exits(0).says("broke \"job\"");
    call(&["acquire", "job", "--ttl", "1h"]).run().exits(0);
    let refused = Nxlock::new(["-s", &url, "run", "job", "-n", "true"]).run().exits(75).never_says("s3cret");
    assert!(pasted(&refused.stderr, "break").starts_with("nxlock -s unix://"), "{}", refused.stderr);
    redis.delete("lock:job");
}

#[test]
fn what_breaks_the_lock_of_another_program_goes_to_the_same_server_and_database() {
    let redis = Redis::start();
    let socket = redis.socket();
    for (db, options) in [("", String::new()), ("?db=3", " -n 3".to_owned())] {
        let url = format!("unix://{}{db}", socket.display());
        let cli = format!("redis-cli -s {}{options}", socket.display());
        let by_hand = |words: &str| Nxlock::by("sh", ["-c", &format!("{cli} {words}")]).run().exits(0);
        by_hand("SET lock:job theirs");
        let refused = Nxlock::new(["-s", &url, "run", "job", "-n", "true"]).run().exits(75);
        let command = pasted(&refused.stderr, "break");
        assert_eq!(command, format!("{cli} DEL lock:job"));
        Nxlock::by("sh", ["-c", &command]).run().exits(0);
        Nxlock::new(["-s", &url, "run", "job", "-n", "true"]).run().exits(0);
    }
}

#[test]
fn an_empty_reason_is_none_and_one_of_several_lines_is_shown_in_one() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--reason", ""]);
    assert!(lock_status(&local)["holder"]["reason"].is_null());
    holder.leaves();
    let holder = Turn::had(&local, &["--reason", "Fix it\n\nThe long story\n"]);
    assert_eq!(lock_status(&local)["holder"]["reason"], "Fix it The long story");
    local.nxlock(["release", "job", "--ask", &holder_id(&local), "--reason", ""]).run().exits(0);
    holder.finish().exits(143);
}

#[test]
fn the_holder_is_told_by_which_name_people_know_who_asks() {
    let local = Local::start();
    let holder = Turn::had(&local, &[]);
    let words = ["release", "job", "--ask", &holder_id(&local)];
    local.nxlock(words).env("NXLOCK_AS", "Bob").run().exits(0);
    holder.finish().exits(143).says("asked to give up \"job\" by Bob (");
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &[]);
    redis.nxlock(["release", "job", "--break", &holder_id(&redis), "--as", "Eve"]).run().exits(0);
    holder.finish().exits(76).says("it was broken by Eve (");
}

#[test]
fn one_that_does_not_wait_says_once_why_it_has_nothing() {
    let done =
        Nxlock::new(["-s", "redis://127.0.0.1:1", "run", "job", "-n", "true"]).run().exits(69).never_says("waiting");
    assert_eq!(done.stderr.matches("connection refused").count(), 1, "{}", done.stderr);
}

#[test]
fn an_id_that_nobody_has_may_be_misspelt() {
    let local = Local::start();
    let holder = Turn::had(&local, &[]);
    for option in ["--ask", "--break"] {
        let done = local.nxlock(["release", "job", option, "zzzzzzzz"]).run().exits(76);
        done.says("the holder has changed, or the ID is misspelt, it is now held by ");
    }
    holder.leaves();
}

#[test]
fn a_trace_does_not_stand_in_the_line_of_a_wait() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut terminal = Terminal::start(redis.nxlock(["-v", "run", "job", "--", "true"]));
    terminal.shows("waiting for \"job\"");
    // The holder has a subscription too.
    let listens = || !redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "*:wake:*"]).is_empty();
    eventually("its connection ends", || listens() && redis.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]) > 0);
    let before = terminal.shows("nxlock: [");
    assert!(before.ends_with("\r\x1b[K"), "{before:?}");
    terminal.types("\x03");
    terminal.dies_of(Signal::SIGINT);
    holder.leaves();
}

#[test]
fn a_release_without_a_token_leads_to_whoever_has_the_lock() {
    let local = Local::start();
    local.nxlock(["release", "job"]).run().exits(64).says("--ask ID").says("--break ID").says("`nxlock status NAME`");
}

#[test]
fn a_second_release_is_not_called_a_loss() {
    let local = Local::start();
    let token = local.nxlock(["acquire", "job", "--ttl", "1h"]).run().exits(0).token();
    local.nxlock(["release", "job", &token]).run().exits(0);
    let again = local.nxlock(["release", "job", &token]).run().exits(76);
    again.says("\"job\" is not held: it was released before, has expired, or was deleted").never_says("lost");
}

#[test]
fn an_address_that_is_no_url_is_shown_with_what_to_write() {
    for (address, hint) in [
        ("localhost:6379", "write redis://localhost:6379"),
        ("cache-1.example:7000", "write redis://cache-1.example:7000"),
        ("local", "write local:"),
        ("localhost", "write redis://localhost"),
        ("/run/redis.sock", "write unix:///run/redis.sock "),
    ] {
        let refused = Nxlock::new(["-s", address, "status"]).run().exits(78);
        refused.says(&format!("the URL \"{address}\" in --server")).says(hint);
        let by_variable = Nxlock::new(["status"]).env("REDIS_URL", address).run().exits(78);
        by_variable.says(&format!("the URL \"{address}\" in REDIS_URL"));
    }
    Nxlock::new(["-s", "user:s3cret@host:1", "status"]).run().exits(78).never_says("s3cret");
    Nxlock::new(["-s", "host:s3cret", "status"]).run().exits(78).never_says("s3cret");
}

#[test]
fn a_host_that_cannot_be_looked_up_has_a_remedy_of_its_own() {
    let call = Nxlock::new(["-s", "redis://no-such-host.invalid", "status", "--server-timeout", "10s"]);
    call.run().exits(69).says("the host's name has no address").says("getent hosts");
}

#[test]
fn check_says_what_a_node_of_a_cluster_and_a_sentinel_are_and_what_to_write() {
    let cluster = Cluster::of_masters();
    for host in cluster.hosts().split(',') {
        let seen = Nxlock::new(["-s", &format!("redis://{host}"), "check"]).run().exits(78).text();
        let remedy = format!("write redis+cluster://{host}");
        assert!(seen.contains("one node of a cluster") && seen.contains(&remedy), "{seen}");
    }
    let sentinels = Sentinels::of_one();
    for host in sentinels.hosts().split(',') {
        let seen = Nxlock::new(["-s", &format!("redis://{host}"), "check"]).run().exits(78).text();
        let remedy = format!("write redis+sentinel://{host}/{MASTER}");
        assert!(seen.contains("a sentinel, which keeps no locks") && seen.contains(&remedy), "{seen}");
    }
}

#[test]
fn a_script_that_holds_a_lock_by_acquire_is_refused_a_run_under_it() {
    let local = Local::start();
    let script = "eval \"$(nxlock acquire job --while-pid $$ --export)\"; nxlock run job -- echo ran; echo $?
                  nxlock release job; nxlock run job -- echo ran
                  for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34; do
                    eval \"$(nxlock acquire job --ttl 1h --export)\"; nxlock release job; echo \"turn $n\" >&2
                  done; set -- $NXLOCK_HELD; echo $#";
    let mut running = local.sh(script, &[]).start();
    // All of it may take longer than one call may.
    (1..=34).for_each(|n| running.says(&format!("turn {n}\n")));
    let done = running.finish().exits(0).prints("75\nran\n32\n");
    done.says("\"job\" is already held by this script");
}

/// fish is there where `tests/run` could install it.
#[test]
fn fish_offers_the_ids_of_holders() {
    let local = Local::start();
    let holder = Turn::had(&local, &[]);
    let id = holder_id(&local);
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/completions/nxlock.fish");
    let ask = format!(
        "command -v fish > /dev/null || exit 0; exec fish --no-config -c \"source {scripts}; complete -C 'nxlock release job --ask '\""
    );
    let offered = || local.sh(&ask, &[]).env("HOME", local.directory()).run().exits(0).text();
    let is_there = std::process::Command::new("fish").arg("--version").output().is_ok();
    // On a busy machine a first attempt may time out, and no ID is offered.
    eventually("its ID is offered", || offered().lines().any(|line| line.starts_with(&id)) || !is_there);
    holder.leaves();
}

#[test]
fn a_pattern_is_told_to_be_a_name() {
    let local = Local::start();
    let seen = local.nxlock(["status", "job-*"]).run().exits(1);
    seen.says("\"job-*\" is the name of one lock, not a pattern").says("`nxlock status` without names");
    local.nxlock(["-q", "status", "*"]).run().exits(1).prints("").says_nothing();
    let token = local.nxlock(["acquire", "*", "--ttl", "1h"]).run().exits(0).token();
    local.nxlock(["status", "*"]).run().exits(0).says_nothing();
    local.nxlock(["release", "*", &token]).run().exits(0);
}

#[test]
fn a_second_name_before_the_dashes_is_told_to_be_the_command() {
    let local = Local::start();
    let refused = local.nxlock(["run", "one", "two", "--", "true"]).run().exits(127);
    refused.says("cannot run \"two\": not found").says("the command begins with the word after the name");
    local.nxlock(["run", "one", "no-such-command", "x"]).run().exits(127).never_says("the command begins");
    local.nxlock(["run", "one", "echo", "--", "x"]).run().exits(0).prints("-- x\n").says_nothing();
}

#[test]
fn a_release_after_a_recorded_run_says_when_that_ended() {
    let local = Local::start();
    let token = local.nxlock(["run", "job", "--record", "-c", "echo $NXLOCK_TOKEN"]).run().exits(0).token();
    let again = local.nxlock(["release", "job", &token]).run().exits(76);
    again.says("\"job\" is not held: its run has ended, at 20").never_says("lost");
}

#[test]
fn quiet_reports_that_a_command_is_stopped_because_its_lock_was_lost() {
    let redis = Redis::start();
    let run = redis.nxlock(["-q", "run", "job", "--", "sleep", "60"]).start();
    eventually("it has the lock", || redis.exists("lock:job"));
    redis.delete("lock:job");
    run.finish().exits(76).says("\"job\" is lost: ").says("stopping the command");
}
