//! The live view, at a terminal.

use nix::sys::signal::Signal;

use super::{says, selects, shows, watch};
use crate::readme;
use crate::support::turns::{Turn, acquire, holder_id, is_free, lock_status, release};
use crate::support::{Redis, Running, eventually, eventually_some};

#[test]
fn one_lock_is_chosen_and_seen_with_its_queue_as_it_changes() {
    let redis = Redis::start();
    for name in ["alpha", "omega"] {
        redis.put(&format!("lock:{name}"), b"somebody", None);
    }
    let holder = Turn::had(&redis, &["-t", "1m", "--reason", "monthly"]);
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "alpha ");
    terminal.types("j");
    let lines = selects(&mut terminal, "job ");
    assert!(lines.iter().any(|line| line.starts_with("> job    held ") && line.contains("monthly")), "{lines:?}");
    terminal.types("\r");
    says(&mut terminal, "nobody waits");
    let mut first = Turn::queued(&redis, &["-t", "1m", "--reason", "weekly"]);
    says(&mut terminal, "one waits");
    let second = Turn::queued(&redis, &["-t", "1m"]);
    let lines = says(&mut terminal, "2 wait");
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:?}"));
    assert!(at(&format!("pid {}", holder.pid())) < at("weekly"), "{lines:?}");
    assert!(at("    1. ") == at("weekly") && at("    2. ") == at(&format!(":{}", second.pid())), "{lines:?}");
    holder.leaves();
    first.up();
    says(&mut terminal, &format!("pid {}", first.pid()));
    terminal.types("\x1b");
    selects(&mut terminal, "job ");
    terminal.types("k");
    selects(&mut terminal, "alpha ");
    terminal.types("G");
    selects(&mut terminal, "omega ");
    terminal.types("q");
    terminal.shows("as before, 0.");
    first.leaves();
    second.leaves();
    redis.delete("lock:alpha");
    redis.delete("lock:omega");
}

#[test]
fn a_name_alone_is_seen_at_once_with_its_queue() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let mut terminal = watch(&redis, "job");
    says(&mut terminal, "\"job\" is held");
    release(&redis, &token);
    says(&mut terminal, "\"job\" is free");
    terminal.types("q");
    terminal.shows("as before, 0.");
}

#[test]
fn a_lock_is_broken_after_a_question_that_names_its_holder_and_an_answer() {
    let redis = Redis::start();
    let mut holder = Turn::listening(&redis, &["-t", "10m", "--on-lost", "continue"]);
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "job ");
    for no in ["n", "\r", "\x1b"] {
        terminal.types("b");
        let lines = says(&mut terminal, "break \"job\", held by ");
        let asked = lines.last().unwrap();
        assert!(
            asked.contains(&format!("pid {}", holder.pid()))
                && asked.contains(&format!(", id {}", holder_id(&redis)))
                && asked.ends_with("? type y"),
            "{asked}"
        );
        terminal.types(no);
        says(&mut terminal, "not broken");
        assert_eq!(lock_status(&redis)["state"], "held");
    }
    terminal.types("b");
    says(&mut terminal, "break \"job\", held by ");
    terminal.types("y");
    says(&mut terminal, "broke \"job\"");
    assert!(is_free(&redis));
    says(&mut terminal, "no locks");
    terminal.types("q");
    terminal.shows("as before, 0.");
    holder.running.says("it was broken by ");
    drop(holder);
}

#[test]
fn a_holder_is_asked_after_a_question_that_names_it_and_an_answer() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &["-t", "1m"]);
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "job ");
    terminal.types("a");
    says(&mut terminal, "ask for \"job\", held by ");
    terminal.types("n");
    says(&mut terminal, "not asked");
    terminal.types("a");
    let lines = says(&mut terminal, "ask for \"job\", held by ");
    assert!(lines.last().unwrap().contains(&format!("pid {}", holder.pid())), "{lines:?}");
    // It may give up before the terminal is looked at.
    holder.freeze();
    terminal.types("y");
    says(&mut terminal, &format!("pid {}, to give up \"job\"", holder.pid()));
    holder.goes_on();
    holder.finish().exits(143).says("asked to give up");
    says(&mut terminal, "no locks");
    // One that refuses says so.
    let holder = Turn::had(&redis, &["--no-ask"]);
    selects(&mut terminal, "job ");
    terminal.types("a");
    says(&mut terminal, "ask for \"job\", held by ");
    terminal.types("y");
    says(&mut terminal, "not asked: ");
    terminal.types("q");
    terminal.shows("as before, 0.");
    holder.leaves();
}

#[test]
fn of_several_holders_the_question_names_one_and_turns_to_the_next() {
    let redis = Redis::start();
    let pair = [0, 1].map(|_| Turn::listening(&redis, &["-t", "10m", "--slots", "2", "--on-lost", "continue"]));
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "job ");
    for holder in &pair {
        terminal.types("b");
        let lines = says(&mut terminal, &format!("pid {}", holder.pid()));
        assert!(lines.last().unwrap().ends_with("? type y; b: the next holder"), "{lines:?}");
    }
    terminal.types("y");
    says(&mut terminal, "broke \"job\"");
    let left = lock_status(&redis)["holders"].as_array().unwrap().clone();
    assert_eq!(left.iter().map(|holder| holder["pid"].clone()).collect::<Vec<_>>(), [pair[0].pid()]);
    terminal.types("q");
    terminal.shows("as before, 0.");
    let [first, mut second] = pair;
    second.running.says(", after it was broken by ");
    first.leaves();
    drop(second);
}

#[test]
fn a_lock_that_has_changed_hands_since_the_question_is_not_broken() {
    let redis = Redis::start();
    let first = acquire(&redis, "10m");
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "job ");
    terminal.types("b");
    says(&mut terminal, "break \"job\", held by ");
    release(&redis, &first);
    let second = acquire(&redis, "10m");
    let id = holder_id(&redis);
    terminal.types("y");
    says(&mut terminal, "not broken: \"job\" has changed hands");
    assert_eq!(holder_id(&redis), id);
    release(&redis, &second);
    // Nor is a lock broken whose holder is not nxlock.
    redis.put("lock:job", b"somebody", None);
    says(&mut terminal, "no expiry");
    terminal.types("b");
    says(&mut terminal, "has no holder to take it from");
    terminal.types("q");
    terminal.shows("as before, 0.");
    redis.delete("lock:job");
}

#[test]
fn locks_are_sorted_and_filtered() {
    let redis = Redis::start();
    let tokens = ["c-first", "a-second", "b-third"].map(|name| {
        let ttl = if name == "b-third" { "10m" } else { "20m" };
        (name, redis.nxlock(["acquire", name, "--ttl", ttl, "--reason", &name[2..]]).run().token())
    });
    let waiter = redis.nxlock(["run", "a-second", "--", "true"]).start();
    eventually("it waits", || !redis.ask::<Vec<String>>(&["ZRANGE", "{lock:a-second}:queue", "0", "-1"]).is_empty());
    let mut terminal = watch(&redis, "");
    let order = |lines: &[String]| {
        let names = lines.iter().filter_map(|line| line.get(2..)?.split_once(' '));
        names.map(|(name, _)| name.to_owned()).filter(|name| name.contains('-')).collect::<Vec<_>>()
    };
    // Sorted by name at first. Of the order by time held, only the heading is checked.
    shows(&mut terminal, |lines| order(lines) == ["a-second", "b-third", "c-first"]);
    terminal.types("s");
    says(&mut terminal, "held longest first");
    terminal.types("s");
    shows(&mut terminal, |lines| lines[0].contains("end of the lease") && order(lines)[0] == "b-third");
    terminal.types("s");
    shows(&mut terminal, |lines| lines[0].contains("most waiting") && order(lines)[0] == "a-second");
    terminal.types("s/THI");
    shows(&mut terminal, |lines| order(lines) == ["b-third"] && lines.last().unwrap() == "/THI");
    terminal.types("\x7f\x7f\x7fq");
    says(&mut terminal, "no locks with this text");
    terminal.types("\x1b");
    shows(&mut terminal, |lines| order(lines) == ["a-second", "b-third", "c-first"]);
    terminal.types("?");
    says(&mut terminal, "take the lock from its holder");
    terminal.types("?q");
    terminal.shows("as before, 0.");
    for (name, token) in tokens {
        redis.nxlock(["release", name, &token]).run().exits(0);
    }
    waiter.finish().exits(0);
}

#[test]
fn whatever_the_size_of_the_terminal_no_line_is_wider_and_the_last_is_the_last() {
    let redis = Redis::start();
    let name = "a-name-of-some-length-".repeat(5);
    let reason = "because it has to be done ".repeat(4);
    let token = redis.nxlock(["acquire", &name, "--ttl", "10m", "--reason", &reason]).run().token();
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "a-name");
    // The widest cell takes no room from what tells how long, and for how much longer.
    let words = ["acquire", "other", "--ttl", "50h", "--as", "an agent that is known by a long name"];
    let other = redis.nxlock(words).run().exits(0).token();
    shows(&mut terminal, |lines| lines.iter().any(|line| line.starts_with("  other")));
    for (columns, rows) in [(60, 24), (200, 50), (61, 5), (20, 3), (1, 1), (100, 2), (80, 24)] {
        terminal.resize(columns, rows);
        let fits = |lines: &[String]| {
            lines.len() == usize::from(rows) && lines.iter().all(|line| line.chars().count() < usize::from(columns))
        };
        let lines =
            shows(&mut terminal, |lines| fits(lines) && (columns < 60 || lines.last().unwrap().starts_with("Enter")));
        if columns == 60 {
            assert!(
                lines[1].contains("HOLDER") && lines[1].contains("HELD") && lines[1].contains("LEASE"),
                "{lines:?}"
            );
            assert!(lines.iter().any(|line| line.starts_with("  other") && line.contains("2days 1h")), "{lines:?}");
        }
        if columns == 200 {
            assert!(lines[2].contains(&holder_of(&redis, &name)) && lines[2].contains("because"), "{lines:?}");
        }
    }
    terminal.types("q");
    terminal.shows("as before, 0.");
    redis.nxlock(["release", &name, &token]).run().exits(0);
    redis.nxlock(["release", "other", &other]).run().exits(0);
}

fn holder_of(redis: &Redis, name: &str) -> String {
    let rows = redis.nxlock(["--json", "status", name]).run().json();
    rows[0]["holder"]["id"].as_str().unwrap().to_owned()
}

#[test]
fn the_view_names_its_server_and_draws_leases_and_runs_and_says_what_lies_below() {
    let redis = Redis::start();
    for status in [0, 3, 0] {
        redis.nxlock(["run", "nightly", "--record", "-c", &format!("exit {status}")]).run().exits(status);
    }
    let tokens: Vec<String> = (1..=12)
        .map(|n| redis.nxlock(["acquire", &format!("job-{n}"), "--ttl", "50h"]).run().exits(0).token())
        .collect();
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "job-1 ");
    terminal.resize(150, 10);
    let place = format!("{} lock:", redis.url());
    let lines = shows(&mut terminal, |lines| lines.len() == 10 && lines[0].ends_with(&place));
    assert!(lines[2].starts_with("> job-1 ") && lines[3].starts_with("  job-2 "), "{lines:?}");
    // It shows the same for an hour.
    assert!(lines[2].contains("▰▰▰▰▰▰ 2days 1h"), "{lines:?}");
    assert!(lines[8].contains("↓ 7 more"), "{lines:?}");
    terminal.types("G");
    let lines = selects(&mut terminal, "nightly ");
    assert!(lines[8].contains("↑ 7 more"), "{lines:?}");
    let runs = lines.iter().find(|line| line.starts_with("> nightly ")).unwrap();
    let marks = runs.chars().filter(|c| ('▁'..='█').contains(c)).count();
    assert!(marks == 3 && runs.contains(" done "), "{runs}");
    terminal.types("\r");
    says(&mut terminal, "  runs ");
    terminal.types("\x1b");
    terminal.types("/job-1\r");
    let begins = |terminal: &mut crate::support::Terminal, name: &str| drop(selects(terminal, name));
    shows(&mut terminal, |lines| lines[0].starts_with("4 locks"));
    terminal.types("g");
    begins(&mut terminal, "job-1 ");
    for name in ["job-10 ", "job-11 ", "job-12 ", "job-1 "] {
        terminal.types("n");
        begins(&mut terminal, name);
    }
    terminal.types("N");
    begins(&mut terminal, "job-12 ");
    terminal.types("q");
    terminal.shows("as before, 0.");
    for (n, token) in (1..).zip(tokens) {
        redis.nxlock(["release", &format!("job-{n}"), &token]).run().exits(0);
    }
}

#[test]
fn when_the_server_goes_the_last_picture_stays_and_it_is_tried_again() {
    let mut redis = Redis::start();
    acquire(&redis, "10m");
    // On a busy machine, the first answer may take longer.
    let mut terminal = eventually_some("the server answers in time", || {
        let mut terminal = watch(&redis, "--server-timeout 300ms");
        let mut has_shown = |text: &str| terminal.screen().contains(text);
        eventually("it shows the lock, or has ended", || has_shown("> job ") || has_shown("as before, 69."));
        (!has_shown("as before, ")).then_some(terminal)
    });
    selects(&mut terminal, "job ");
    redis.kill();
    let lines = says(&mut terminal, "trying again");
    assert!(lines.last().unwrap().starts_with("as it was "), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("> job ")), "{lines:?}");
    redis.restart();
    says(&mut terminal, "no locks");
    terminal.types("q");
    terminal.shows("as before, 0.");
}

#[test]
fn a_server_that_hangs_holds_up_no_key() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let mut terminal = watch(&redis, "--server-timeout 1m");
    selects(&mut terminal, "job ");
    redis.hang();
    terminal.types("?");
    says(&mut terminal, "take the lock from its holder");
    // Without a reply, the view shows how old its data is.
    says(&mut terminal, "1 lock, by name, as it was ");
    terminal.types("qq");
    terminal.shows("as before, 0.");
    redis.resume();
    release(&redis, &token);
}

/// Starts a run of a lock that lasts until it is dropped.
fn runs(redis: &Redis, words: &[&str]) -> Running {
    redis.nxlock([&["run"], words, &["--", "sleep", "600"]].concat()).start()
}

#[test]
fn the_picture_in_the_readme_is_what_it_shows() {
    let [shown] = readme::under("nxlock", "text");
    let redis = Redis::start();
    for status in [0, 0, 3, 0, 0, 0] {
        redis.nxlock(["run", "nightly", "--record", "-c", &format!("exit {status}")]).run().exits(status);
    }
    let state = |name: &str| redis.nxlock(["--json", "status", name]).run().json()[0].clone();
    let deploys = runs(&redis, &["deploy", "--reason", "release 4.2"]);
    eventually("it deploys", || state("deploy")["holder"]["pid"] == deploys.pid());
    let waits = [0, 1].map(|_| runs(&redis, &["deploy"]));
    let trains = [0, 1, 2].map(|_| runs(&redis, &["gpu", "--slots", "4"]));
    eventually("they wait, and train", || state("deploy")["queue"][1].is_object() && state("gpu")["taken"] == 3);
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "deploy ");
    terminal.resize(110, 7);
    let said =
        |lines: &[String]| lines.iter().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
    let lines = shows(&mut terminal, |lines| lines.len() == 7 && lines.iter().any(|line| line.contains('▰')));
    let lines: String = said(&lines);
    readme::reads_alike(&shown.replace("\n\n", "\n"), &lines);
    terminal.types("q");
    terminal.shows("as before, 0.");
    for running in trains.into_iter().chain(waits).chain([deploys]) {
        running.signal(Signal::SIGTERM);
        running.finish();
    }
}
