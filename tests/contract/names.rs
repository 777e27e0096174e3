//! Names and prefixes: together they identify a lock.

use serde_json::Value;

use crate::support::Authority;
use crate::support::turns::{Turn, turn};

/// Returns names that users might want, and names that are hard to tell apart, to quote or to map to a file.
fn names() -> Vec<String> {
    let plain = ["job", "Job", "JOB", "job.lock", "job:queue", "job:fence", "job:waiters", "a", "b"];
    let spaces = [" ", "  ", "two words", " before", "after "];
    let paths = ["/", "//", "a/b", "/a/b", "a/b/", "../a", "a/../b", "/etc/passwd", ".", "..", "...", ".a", "a."];
    let encoded = ["%", "%%", "100%", "%2F", "%2f", "a%2Fb", "a%2fb", "%00", "%2E%2E", "a+b", "a=b", "~", "\\", "a\\b"];
    let dashes = ["-", "--", "-n", "--json", "--help", "-c"];
    let quoting = ["'", "\"", "`a`", "$a", "*", "?", "[a]", "a;b", "a&b", "#", "!"];
    // The last two look the same.
    let foreign = ["é", "日本語", "🔒", "\u{feff}", "nai\u{308}ve", "naïve"];
    let mut names: Vec<String> = [&plain[..], &spaces, &paths, &encoded, &dashes, &quoting, &foreign]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect();
    // Names of the maximum length, or nearly; the last of them differ only at their ends.
    names.extend(["/".repeat(200), "%".repeat(200), ".".repeat(200), "é".repeat(100), "日".repeat(66) + "/b"]);
    names.extend(["x".repeat(200), "x".repeat(199), "x".repeat(199) + "y", "🔒".repeat(50), "🔒".repeat(49) + "🔓"]);
    names
}

fn listed(rows: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

pub fn whatever_the_name_it_can_be_taken_listed_and_given_back(authority: &impl Authority) {
    let names = names();
    let about_all = |call: &[&str]| {
        let names = names.iter().map(String::as_str);
        authority.nxlock(call.iter().copied().chain(["--"]).chain(names)).run()
    };
    // All held at once: if two names were one lock, the second call would be refused.
    let take = |name: &String| authority.nxlock(["acquire", "--ttl", "10m", "-n", "--", name]).run().exits(0).token();
    let tokens: Vec<String> = names.iter().map(take).collect();
    let mut sorted: Vec<&str> = names.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    assert_eq!(listed(&authority.nxlock(["--json", "status"]).run().exits(0).json()), sorted);
    let rows = about_all(&["--json", "status"]).exits(0).json();
    for (row, name) in rows.as_array().unwrap().iter().zip(&names) {
        assert_eq!((&row["name"], &row["key"]), (&name.as_str().into(), &format!("lock:{name}").into()));
        assert_eq!(row["state"], "held", "{row}");
    }
    for (name, token) in names.iter().zip(&tokens) {
        authority.nxlock(["release", "--", name, token]).run().exits(0);
        let within = authority.nxlock(["run", "-n", "--", name, "printenv", "NXLOCK_NAME"]).run();
        within.exits(0).prints(&format!("{name}\n"));
    }
    about_all(&["status"]).exits(1);
    assert_eq!(listed(&authority.nxlock(["--json", "status"]).run().exits(0).json()), [""; 0]);
}

pub fn locks_of_different_names_do_not_meet(authority: &impl Authority) {
    let take = |name| authority.nxlock(["acquire", name, "--ttl", "1m", "-n"]).run().exits(0).token();
    let (one, two) = (take("one"), take("two"));
    authority.nxlock(["release", "two", &one]).run().exits(76);
    authority.nxlock(["renew", "two", &one, "--ttl", "1m"]).run().exits(76);
    authority.nxlock(["release", "one", &one]).run().exits(0);
    authority.nxlock(["release", "two", &two]).run().exits(0);
}

pub fn status_is_1_if_any_that_was_asked_for_is_free(authority: &impl Authority) {
    let take = |name| authority.nxlock(["acquire", name, "--ttl", "1m"]).run().exits(0).token();
    let (one, two) = (take("one"), take("two"));
    authority.nxlock(["status", "one", "two"]).run().exits(0);
    for names in [&["free"][..], &["free", "one"], &["one", "free"], &["one", "free", "two"]] {
        let rows = authority.nxlock(["--json", "status"].iter().chain(names).copied()).run().exits(1).json();
        let seen: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(seen, names, "in the order asked for");
        for row in rows.as_array().unwrap() {
            assert_eq!(row["state"], if row["name"] == "free" { "free" } else { "held" }, "{rows}");
        }
    }
    // Without names, no lock was asked for that could be free.
    let all = authority.nxlock(["--json", "status"]).run().exits(0).json();
    assert_eq!(listed(&all), ["one", "two"]);
    authority.nxlock(["release", "one", &one]).run().exits(0);
    authority.nxlock(["release", "two", &two]).run().exits(0);
    authority.nxlock(["status"]).run().exits(0).prints("");
}

pub fn the_same_name_under_another_prefix_is_another_lock(authority: &impl Authority) {
    let prefixes = ["lock:", "lock", "team a/", "../", "*?[a]:", "%", ""];
    let under = |prefix: &str, call: &[&str]| authority.nxlock(call.iter().copied()).env("NXLOCK_PREFIX", prefix).run();
    let take = |prefix: &&str| under(prefix, &["acquire", "job", "--ttl", "1m", "-n"]).exits(0).token();
    let tokens: Vec<String> = prefixes.iter().map(take).collect();
    for (at, prefix) in prefixes.iter().enumerate() {
        under(prefix, &["release", "job", &tokens[(at + 1) % tokens.len()]]).exits(76);
        let row = under(prefix, &["--json", "status", "job"]).exits(0).json()[0].take();
        assert_eq!((&row["name"], &row["key"]), (&"job".into(), &format!("{prefix}job").into()), "{row}");
    }
    // A prefix lists every key that begins with it, and no other.
    for (prefix, names) in [("lock:", &["job"][..]), ("lock", &[":job", "job"]), ("team a/", &["job"]), ("%", &["job"])]
    {
        assert_eq!(listed(&under(prefix, &["--json", "status"]).exits(0).json()), names, "under \"{prefix}\"");
    }
    assert_eq!(listed(&under("other:", &["--json", "status"]).exits(0).json()), [""; 0]);
    assert_eq!(listed(&under("", &["--json", "status"]).exits(0).json()).len(), prefixes.len());
    // The boundary between prefix and name makes no difference.
    under("lo", &["run", "ck:job", "-n", "--", "echo", "ran"]).exits(75).prints("");
    for (prefix, token) in prefixes.iter().zip(&tokens) {
        // The option means the same as the environment variable, and takes precedence.
        let call = authority.nxlock(["release", "job", token, "--prefix", prefix]).env("NXLOCK_PREFIX", "other:");
        call.run().exits(0);
    }
}

pub fn under_any_prefix_those_who_wait_are_listed_with_their_lock_and_served(authority: &impl Authority) {
    for prefix in ["", "*?[a]:", "team a:"] {
        let under = |args: &[&'static str]| authority.nxlock(args.iter().copied()).env("NXLOCK_PREFIX", prefix);
        let mut holder = Turn::of(under(&turn(&[])));
        holder.up();
        let mut waiter = Turn::of(under(&turn(&[])));
        waiter.running.says("waiting");
        let rows = under(&["--json", "status"]).run().exits(0).json();
        assert_eq!(listed(&rows), ["job"]);
        let pids: Vec<&Value> = rows[0]["queue"].as_array().unwrap().iter().map(|waiter| &waiter["pid"]).collect();
        assert_eq!(pids, [waiter.pid()], "{rows}");
        holder.leaves();
        waiter.up();
        waiter.leaves();
    }
}
