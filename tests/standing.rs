//! Who holds it, who waits, and what is seen of that: `status`, and the line that a waiter shows.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::line::{Turn, line_is, queue, standing, turn};
use crate::support::{Nxlock, Redis, Terminal, eventually, now};

fn field<'a>(waiters: &'a Value, name: &str) -> Vec<&'a Value> {
    waiters.as_array().expect("an array").iter().map(|waiter| &waiter[name]).collect()
}

#[test]
fn each_waiter_is_shown_with_its_place_and_who_it_is() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["--reason", "the first"]);
    let began = now();
    let reasons = ["monthly", "two words", ""];
    let line: Vec<Turn> = reasons
        .iter()
        .map(|reason| {
            let options = ["--reason", reason];
            Turn::queued(&redis, if reason.is_empty() { &[] } else { &options })
        })
        .collect();
    let seen = standing(&redis);
    let since_began = u64::try_from(began.elapsed().as_millis()).unwrap();
    assert_eq!((&seen["state"], &seen["holder"]["pid"]), (&"held".into(), &holder.pid().into()), "{seen}");
    let waiters = &seen["queue"];
    assert_eq!(field(waiters, "position"), [1, 2, 3]);
    assert_eq!(field(waiters, "pid"), line.iter().map(Turn::pid).collect::<Vec<_>>());
    assert_eq!(field(waiters, "reason"), [&"monthly".into(), &"two words".into(), &Value::Null]);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for waiter in waiters.as_array().unwrap() {
        assert_eq!((waiter["host"].as_str(), &waiter["user"]), (Some(host.as_str()), &seen["holder"]["user"]));
    }
    // Those who came first have waited longest.
    let waited: Vec<u64> = field(waiters, "waiting_ms").iter().map(|ms| ms.as_u64().unwrap()).collect();
    assert!(waited.is_sorted_by(|a, b| a >= b) && waited[0] <= since_began, "{waited:?} in {since_began}");
    let id = |value: &Value| value.as_str().filter(|id| id.len() == 8).map(str::to_owned).expect("an id");
    let ids: Vec<String> = field(waiters, "id").into_iter().map(id).collect();
    let table = redis.nxlock(["status"]).run().exits(0).text();
    for (place, (turn, id)) in line.iter().zip(&ids).enumerate() {
        let row = table.lines().find(|row| row.contains(id.as_str())).expect("it is in the table").to_owned();
        assert!(row.trim_start().starts_with(&format!("{}.", place + 1)), "{table}");
        assert!(row.contains(&format!("@{host}:{}", turn.pid())) && row.contains(reasons[place]), "{table}");
    }
    // The id is the one that it holds under.
    let mut held = holder;
    for (mut turn, id) in line.into_iter().zip(&ids) {
        held.leaves();
        turn.up();
        assert_eq!(standing(&redis)["holder"]["id"], **id);
        held = turn;
    }
    assert!(queue(&redis).is_empty());
    held.leaves();
}

#[test]
fn a_refusal_tells_how_many_wait() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let line = [Turn::queued(&redis, &[]), Turn::queued(&redis, &[])];
    redis.nxlock(["run", "job", "-n", "true"]).run().exits(75).says("2 others wait");
    let refused = redis.nxlock(["--json", "acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).json();
    assert_eq!(refused["queue_length"], 2, "{refused}");
    // Itself is none of the others.
    let refused = redis.nxlock(["--json", "acquire", "job", "--ttl", "1m", "-w", "200ms"]).run().exits(75).json();
    assert_eq!(refused["queue_length"], 2, "{refused}");
    holder.leaves();
    for mut turn in line {
        turn.up();
        turn.leaves();
    }
}

#[test]
fn breaking_the_holders_lock_hands_it_to_the_next() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["-t", "6s"]);
    let mut first = Turn::queued(&redis, &[]);
    let second = Turn::queued(&redis, &[]);
    let id = standing(&redis)["holder"]["id"].as_str().unwrap().to_owned();
    // A waiter's is no holder's.
    let waiters = standing(&redis)["queue"][0]["id"].as_str().unwrap().to_owned();
    redis.nxlock(["release", "job", "--break", &waiters]).run().exits(76);
    let told = now();
    redis.nxlock(["release", "job", "--break", &id]).run().exits(0).says("broke \"job\"");
    first.up();
    assert!(told.elapsed() < Duration::from_secs(1), "{:?}", told.elapsed());
    line_is(&redis, &[second.pid()]);
    // Seen again, it is another's.
    redis.nxlock(["release", "job", "--break", &id]).run().exits(76).says("the holder has changed");
    eventually("the holder notices", || holder.running.has_ended());
    holder.running.finish().exits(76);
    first.leaves();
    let mut second = second;
    second.up();
    second.leaves();
}

#[test]
fn a_token_that_is_given_back_hands_the_lock_to_the_next() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let mut run = Turn::queued(&redis, &[]);
    let acquire = redis.nxlock(["acquire", "job", "--ttl", "1m"]).start();
    line_is(&redis, &[run.pid(), acquire.pid()]);
    redis.nxlock(["release", "job", &token]).run().exits(0);
    run.up();
    run.leaves();
    let token = acquire.finish().exits(0).token();
    redis.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn under_any_prefix_those_who_wait_are_listed_with_their_lock_and_served() {
    let redis = Redis::start();
    for prefix in ["", "*?[a]:", "team a:"] {
        let under = |args: &[&'static str]| redis.nxlock(args.iter().copied()).env("NXLOCK_PREFIX", prefix);
        let mut holder = Turn::of(under(&turn(&[])));
        holder.up();
        let mut waiter = Turn::of(under(&turn(&[])));
        waiter.running.says("waiting");
        let listed = under(&["--json", "status"]).run().exits(0).json();
        assert_eq!(field(&listed, "name"), ["job"], "{listed}");
        assert_eq!(field(&listed[0]["queue"], "pid"), [waiter.pid()], "{listed}");
        holder.leaves();
        waiter.up();
        waiter.leaves();
    }
}

/// What a screen shows after all of this was written to it.
fn rendered(written: &str) -> String {
    let mut lines = vec![Vec::new()];
    let mut column = 0;
    let mut rest = written.chars();
    while let Some(c) = rest.next() {
        let line = lines.last_mut().expect("there is always one");
        match c {
            '\r' => column = 0,
            '\n' => lines.push(Vec::new()),
            '\x1b' => match rest.by_ref().find(char::is_ascii_alphabetic) {
                Some('K') => line.truncate(column),
                Some('m') => {}
                other => panic!("an escape that a line does not need: {other:?} in {written:?}"),
            },
            c => {
                line.resize((column + 1).max(line.len()), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    let lines: Vec<String> = lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned()
}

/// A waiter at a terminal wide enough for all there is to say.
fn at_a_terminal(redis: &Redis, options: &[&str]) -> Terminal {
    // Before it begins: what is drawn is cut to the width.
    let args = ["-c", "stty columns 80 rows 24 && exec nxlock run job \"$@\" -- echo ran", "sh"];
    let call = Nxlock::by("sh", args.iter().chain(options).copied()).env("NXLOCK_SERVER", redis.url());
    Terminal::start(call)
}

#[test]
fn at_a_terminal_one_live_line_tells_of_the_wait_and_leaves_no_trace() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut first = Turn::queued(&redis, &["-t", "1m"]);
    let seen = standing(&redis)["holder"].take();
    let mut terminal = at_a_terminal(&redis, &[]);
    let held_by =
        |pid| format!("s by {}@{}:{pid}, lease ", seen["user"].as_str().unwrap(), seen["host"].as_str().unwrap());
    terminal.shows("waiting for \"job\": 1 ahead of us, waited ");
    terminal.shows(&held_by(holder.pid()));
    for _ in 0..3 {
        // Redrawn where it stands.
        terminal.shows("\rwaiting for \"job\": 1 ahead of us, waited ");
    }
    holder.leaves();
    first.up();
    terminal.shows("waiting for \"job\": we are next, waited ");
    terminal.shows(&held_by(first.pid()));
    let screen = terminal.screen();
    assert!(!screen.contains('\n'), "all of it is one line: {screen:?}");
    assert!(rendered(&screen).starts_with("waiting for \"job\": "), "{screen:?}");
    first.leaves();
    terminal.shows("ran");
    terminal.exits(0);
    assert_eq!(rendered(&terminal.screen()), "ran");
}

#[test]
fn at_a_terminal_a_refusal_stands_where_the_live_line_was() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut terminal = at_a_terminal(&redis, &["-w", "1500ms"]);
    terminal.shows("we are next, waited ");
    terminal.exits(75);
    let shown = rendered(&terminal.screen());
    assert!(shown.starts_with("nxlock: \"job\" is held by somebody else, waited 1."), "{shown}");
    assert!(!shown.contains("waiting for") && !shown.contains("ran"), "{shown}");
    assert!(queue(&redis).is_empty());
    holder.leaves();
}

#[test]
fn at_a_terminal_ctrl_c_leaves_the_line_and_no_trace() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut terminal = at_a_terminal(&redis, &[]);
    terminal.shows("we are next, waited ");
    terminal.types("\x03");
    terminal.dies_of(Signal::SIGINT);
    assert!(queue(&redis).is_empty());
    let shown = rendered(&terminal.screen());
    assert!(!shown.contains("waiting for") && !shown.contains("ran"), "{shown}");
    holder.leaves();
}

#[test]
fn at_a_terminal_a_lock_that_is_free_shows_no_line() {
    let redis = Redis::start();
    let mut terminal = at_a_terminal(&redis, &[]);
    terminal.exits(0);
    assert_eq!(terminal.screen(), "ran\r\n");
}

#[test]
fn a_log_has_one_line_at_the_start_and_one_at_the_end_whoever_holds_it_meanwhile() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let line: Vec<Turn> = (0..3).map(|_| Turn::queued(&redis, &[])).collect();
    let last = Turn::of(redis.nxlock(turn(&[]))).in_line(&redis);
    holder.leaves();
    for mut turn in line {
        turn.up();
        turn.leaves();
    }
    let mut last = last;
    last.up();
    let said = last.running.stderr();
    last.leaves();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("waiting for \"job\": held by ") && lines[0].contains(", 3 ahead of us; "), "{said}");
    assert!(lines[1].contains("got \"job\" after "), "{said}");
    assert!(!said.contains(['\r', '\x1b']), "{said:?}");
}
