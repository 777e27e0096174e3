//! Many locks: how nxlock asks a server for them, and how it shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::turns::{acquire, release};
use crate::support::{Condition, Network, Nxlock, Redis, Terminal, Way};

const MANY: usize = 3000;

/// Creates locks as nxlock does, each with its fence.
fn locks(redis: &Redis, count: usize) {
    let mut connection = redis.connection().unwrap();
    for from in (0..count).step_by(1000) {
        let mut pipe = redis::pipe();
        for n in from..count.min(from + 1000) {
            // A token's alphabet lacks 0, 1, 8 and 9.
            let random: String =
                format!("{n:026}").chars().map(|digit| char::from(digit as u8 - b'0' + b'a')).collect();
            let token = format!("nx1:{random}:deploy@host-{}:{n}:1795268515007:", n % 97);
            pipe.cmd("SET").arg(format!("lock:job-{n:05}")).arg(token).arg("PX").arg(3_600_000).ignore();
            pipe.cmd("SET").arg(format!("{{lock:job-{n:05}}}:fence")).arg(1_795_268_515_007_882_u64).arg("PX");
            pipe.arg(3_600_000).ignore();
        }
        pipe.exec(&mut connection).unwrap();
    }
}

/// Returns how often the server executed each command, for a client or a script.
fn calls(redis: &Redis) -> BTreeMap<String, usize> {
    let stats: String = redis.ask(&["INFO", "commandstats"]);
    let call = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(call).collect()
}

/// No single command takes long, so no other client waits long: each script inspects one lock, and each SCAN covers
/// hundreds of keys. `cargo bench -- listing` measures the times.
#[test]
fn thousands_of_locks_are_asked_for_in_many_short_questions() {
    let redis = Redis::start();
    locks(&redis, MANY);
    redis.ask::<()>(&["CONFIG", "RESETSTAT"]);
    let text = redis.nxlock(["status", "--server-timeout", "20s"]).run().exits(0).says_nothing().text();
    assert_eq!(text.lines().count(), MANY + 1);
    let asked = calls(&redis);
    // A server that does not have the script yet is asked once more for the first page.
    assert!((MANY..=MANY + 100).contains(&asked["evalsha"]), "{asked:?}");
    // There are twice as many keys as locks, and SCAN may return a few more than its COUNT.
    assert!((2 * MANY / 1000..=2 * MANY / 100).contains(&asked["scan"]), "{asked:?}");
    // Each script reads the value, its ttl, the time, the fence, the queue, and who owns and reserves it.
    for (command, count) in &asked {
        assert!(*count <= 2 * MANY, "{command}: {asked:?}");
    }
    // And the recorded runs, of which there are never many.
    for whole in ["keys", "mget", "sort"] {
        assert!(!asked.contains_key(whole), "{asked:?}");
    }
    let names: Vec<&str> = text.lines().skip(1).map(|line| &line[..9]).collect();
    assert!(names.is_sorted() && names.iter().all(|name| name.starts_with("job-")), "{:?}", &names[..3]);
    let rows = redis.nxlock(["--json", "status", "--server-timeout", "20s"]).run().exits(0).json();
    assert_eq!(rows.as_array().unwrap().len(), MANY);
    redis.leave_as_it_is();
}

#[test]
fn locks_among_many_other_keys_are_found() {
    let redis = Redis::start();
    redis.ask::<()>(&["EVAL", "for i = 1, 20000 do redis.call('SET', 'other:' .. i, 'x') end", "0"]);
    let token = acquire(&redis, "10m");
    assert_eq!(redis.nxlock(["status"]).run().exits(0).text().lines().count(), 2);
    release(&redis, &token);
    redis.leave_as_it_is();
}

#[test]
fn a_list_is_had_without_scripts_too() {
    let redis = Redis::start();
    locks(&redis, 250);
    redis.ask::<()>(&["ACL", "SETUSER", "plain", "on", ">pw", "~lock:*", "+get", "+pttl", "+type", "+scan"]);
    let url = format!("{}?user=plain&pass=pw", redis.url());
    let call = Nxlock::new(["--json", "status"]).env("NXLOCK_SERVER", url);
    let rows = call.run().exits(0).says_nothing().json();
    let held = rows.as_array().unwrap().iter().filter(|row| row["state"] == "held").count();
    assert_eq!(held, 250, "{}", rows[0]);
    redis.leave_as_it_is();
}

#[test]
fn a_list_that_takes_its_time_tells_how_far_it_is_and_leaves_no_trace() {
    let redis = Redis::start();
    locks(&redis, 2000);
    let network = Network::to(&redis);
    network.is(Way::Back, Condition::Delayed(Duration::from_millis(120)));
    let script = "stty columns 100 rows 24; exec nxlock status --server-timeout 20s";
    let url = format!("unix://{}", network.socket().display());
    let mut terminal = Terminal::start(Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", url.clone()));
    terminal.shows("\rlisting locks: ");
    terminal.shows("\r\x1b[K");
    terminal.shows("NAME");
    terminal.shows("job-01999");
    terminal.exits(0);
    // Without a terminal there is no progress line.
    let quiet = Nxlock::new(["status", "--server-timeout", "20s"]).env("NXLOCK_SERVER", url);
    quiet.run().exits(0).says_nothing();
    redis.leave_as_it_is();
}

#[test]
fn at_a_terminal_a_table_fits_and_one_name_is_shown_with_all_that_is_known() {
    let redis = Redis::start();
    let reason = "because-of-this-and-that-".repeat(5);
    let token = redis.nxlock(["acquire", "job", "--ttl", "10m", "--reason", &reason]).run().exits(0).token();
    for columns in [60, 80, 120, 200] {
        let script = format!("stty columns {columns} rows 24; nxlock status; echo end; nxlock status job; echo end");
        let mut terminal = Terminal::start(Nxlock::by("sh", ["-c", &script]).env("NXLOCK_SERVER", redis.url()));
        let table = terminal.shows("end");
        let bare = bare(&table);
        assert_eq!(bare.lines().count(), 2, "{bare}");
        for column in ["NAME", "STATE", "HOLDER", "HELD", "LEASE", "WAI"] {
            assert!(bare.contains(column), "{columns}: {bare}");
        }
        assert!(bare.lines().all(|line| line.chars().count() < columns), "{columns}: {bare}");
        assert!(table.contains("\x1b[32mheld\x1b[0m"), "{table:?}");
        let shown = terminal.shows("end");
        for label in ["by ", "since ", "lease ", "reason ", "fence ", "queue ", "break "] {
            assert!(shown.contains(label), "{label}: {shown}");
        }
        terminal.exits(0);
    }
    // In a pipe nothing is truncated.
    assert!(redis.nxlock(["status"]).run().exits(0).text().contains(reason.trim_end()));
    release(&redis, &token);
}

/// Returns the text without colours and carriage returns.
fn bare(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest));
    rest.fold(first, |bare, part| bare + part).replace('\r', "")
}
