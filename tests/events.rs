//! `--events`: what nxlock reports, and that it does not wait for the reader.

mod places;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::turns::Turn;
use crate::support::{Nxlock, Redis, eventually, text_of};

/// A file for events.
struct Told {
    directory: TempDir,
}

impl Told {
    fn new() -> Told {
        Told { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("events")
    }

    fn word(&self) -> String {
        self.path().display().to_string()
    }

    /// Returns the events written so far; each line is a document.
    #[track_caller]
    fn all(&self) -> Vec<Value> {
        documents(&text_of(&self.path()))
    }

    #[track_caller]
    fn names(&self) -> Vec<String> {
        names(&self.all())
    }

    /// Waits for an event, and returns the first of its kind.
    #[track_caller]
    fn hears(&self, event: &str) -> Value {
        let first = || self.all().into_iter().find(|told| told["event"] == event);
        eventually(&format!("it is told: {event}"), || first().is_some());
        first().unwrap()
    }
}

#[track_caller]
fn documents(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Returns the names of the events without those of renewals, which a run has if it takes long.
fn names(told: &[Value]) -> Vec<String> {
    let names = told.iter().map(|told| told["event"].as_str().unwrap().to_owned());
    names.filter(|name| name != "renewed").collect()
}

const COMMON: [&str; 7] = ["time", "event", "name", "key", "id", "as", "fence"];

/// The other fields of each event, as in the manual.
const FIELDS: [(&str, &[&str]); 14] = [
    ("waiting", &["state", "holder", "position"]),
    ("granted", &["waited_ms", "ttl_ms", "shared", "slot", "slots"]),
    ("started", &["pid"]),
    ("renewed", &["ttl_ms"]),
    ("trouble", &["message"]),
    ("lost", &["how", "message", "by", "then"]),
    ("asked", &["by", "supersedes", "then"]),
    ("ended", &["status", "signal", "time_limit", "ran_ms"]),
    ("released", &["held_ms", "ends_in_ms"]),
    ("unreleased", &["message", "ends_in_ms"]),
    ("refused", &["state", "holder", "waited_ms", "nested", "superseded_by", "done"]),
    ("interrupted", &["signal"]),
    ("not_run", &["message"]),
    ("failed", &["kind", "message"]),
];

/// Asserts that events have the fields in the manual and no others, and are in the order of their times.
#[track_caller]
fn have_their_fields(told: &[Value]) {
    for event in told {
        let object = event.as_object().unwrap();
        let (_, more) = FIELDS.iter().find(|(name, _)| event["event"] == *name).unwrap_or_else(|| panic!("{event}"));
        let mut expected: Vec<_> = COMMON.iter().chain(*more).copied().collect();
        expected.sort_unstable();
        let mut found: Vec<_> = object.keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{event}");
        let time = event["time"].as_str().unwrap();
        assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
        assert_eq!(event["id"].as_str().unwrap().len(), 8);
    }
    assert!(told.is_sorted_by_key(|event| event["time"].as_str().unwrap().to_owned()), "{told:#?}");
}

#[test]
fn the_manual_has_every_event_and_field() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/man/nxlock-run.1")).unwrap();
    let (_, section) = page.split_once(".SH \"EVENTS\"").unwrap();
    let (section, _) = section.split_once(".SH ").unwrap();
    for word in COMMON
        .iter()
        .copied()
        .chain(FIELDS.iter().flat_map(|(event, more)| [*event].into_iter().chain(more.iter().copied())))
    {
        assert!(section.contains(word), "{word} is not in the manual");
    }
    let terms = section.split(".TP\n").skip(1).filter_map(|item| item.lines().next()?.strip_prefix("\\fB"));
    let terms: Vec<_> = terms.flat_map(|term| term.trim_end_matches("\\fR").split(", ")).collect();
    let known: Vec<_> = COMMON.into_iter().chain(FIELDS.map(|(event, _)| event)).collect();
    assert_eq!(terms, known, "and no others");
}

#[test]
fn a_run_tells_its_grant_its_command_and_its_release() {
    let (redis, told) = (Redis::start(), Told::new());
    let shown =
        r#"echo "fence=$NXLOCK_FENCE"; echo "token=$NXLOCK_TOKEN"; nxlock status --json "$NXLOCK_NAME"; exit 3"#;
    let call = redis.nxlock(["run", "job", "--events", &told.word(), "-c", shown]).env("NXLOCK_SERVER", redis.url());
    let done = call.run().exits(3).says_nothing();
    let events = told.all();
    have_their_fields(&events);
    assert_eq!(names(&events), ["granted", "started", "ended", "released"]);
    let text = done.text();
    let of = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin)).unwrap();
    let status: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for event in &events {
        assert_eq!((&event["name"], &event["key"]), (&Value::from("job"), &Value::from("lock:job")));
        assert_eq!(event["fence"].to_string(), of("fence="));
        assert_eq!(event["id"], status[0]["holder"]["id"]);
    }
    assert!(!text_of(&told.path()).contains(of("token=").split(':').nth(1).unwrap()), "no token is shown");
    let (ended, released) = (told.hears("ended"), told.hears("released"));
    assert_eq!((&ended["status"], &ended["signal"]), (&Value::from(3), &Value::Null));
    assert_eq!(ended["time_limit"], false);
    assert!(released["held_ms"].as_u64() >= ended["ran_ms"].as_u64() && released["ends_in_ms"].is_null());
}

#[test]
fn a_wait_is_told_once_and_who_has_the_lock() {
    let (redis, told) = (Redis::start(), Told::new());
    let token = redis.nxlock(["acquire", "job", "--ttl", "5m", "--reason", "r"]).run().token();
    let mut running = redis.nxlock(["run", "job", "--events", &told.word(), "true"]).start();
    let waiting = told.hears("waiting");
    assert_eq!((&waiting["state"], &waiting["position"]), (&Value::from("held"), &Value::from(1)));
    assert_eq!((&waiting["holder"]["reason"], &waiting["fence"]), (&Value::from("r"), &Value::Null));
    running.says("waiting for");
    redis.nxlock(["release", "job", &token]).run().exits(0);
    eventually("it has run", || running.has_ended());
    have_their_fields(&told.all());
    assert_eq!(told.names(), ["waiting", "granted", "started", "ended", "released"]);
}

#[test]
fn who_polls_tells_its_wait_once_as_well() {
    let (redis, told) = (Redis::start(), Told::new());
    redis.put("lock:job", b"somebody", Some(600_000));
    let call = ["run", "job", "--no-queue", "-w", "2s", "--events", &told.word(), "true"];
    redis.nxlock(call).run().exits(75);
    let events = told.all();
    have_their_fields(&events);
    assert_eq!(names(&events), ["waiting", "refused"]);
    assert_eq!((&events[0]["state"], &events[0]["position"]), (&Value::from("foreign"), &Value::Null));
    assert!(events[1]["waited_ms"].as_u64().is_some_and(|waited| waited >= 2000), "{events:#?}");
    redis.delete("lock:job");
}

#[test]
fn trouble_that_stays_the_same_is_told_once() {
    let (mut redis, told) = (Redis::start(), Told::new());
    redis.put("lock:job", b"somebody", Some(600_000));
    let call = ["run", "job", "-w", "4s", "--events", &told.word(), "true"];
    let running = redis.nxlock(call).start();
    told.hears("waiting");
    redis.kill();
    running.finish().exits(69);
    let events = told.all();
    have_their_fields(&events);
    assert_eq!(
        (names(&events).first().unwrap().as_str(), events.last().unwrap()["kind"].as_str()),
        ("waiting", Some("unreachable"))
    );
    let troubles: Vec<_> = events.iter().filter(|event| event["event"] == "trouble").collect();
    assert!(!troubles.is_empty() && troubles.len() + 2 == events.len(), "{events:#?}");
    assert!(troubles.windows(2).all(|two| two[0]["message"] != two[1]["message"]), "{troubles:#?}");
}

#[test]
fn renewals_are_told_and_a_loss() {
    let (redis, told) = (Redis::start(), Told::new());
    let running = redis.nxlock(["run", "job", "-t", "30s", "--events", &told.word(), "sleep", "300"]).start();
    told.hears("renewed");
    redis.put("lock:job", b"somebody", Some(60_000));
    running.finish().exits(76);
    let events = told.all();
    have_their_fields(&events);
    assert_eq!(names(&events), ["granted", "started", "lost", "ended"]);
    let lost = events.iter().find(|event| event["event"] == "lost").unwrap();
    assert_eq!((&lost["how"], &lost["then"]), (&Value::from("taken"), &Value::from("stopping the command")));
    assert_eq!(events.last().unwrap()["signal"], 15);
    redis.delete("lock:job");
}

#[test]
fn trouble_with_renewing_is_told_and_what_could_not_be_given_back() {
    let (mut redis, told) = (Redis::start(), Told::new());
    let word = told.word();
    let call = ["run", "job", "-t", "15s", "--server-timeout", "300ms", "--events", &word, "-c", "echo up; read x"];
    let call = || {
        let _ = fs::remove_file(told.path());
        redis.nxlock(call)
    };
    let mut turn = Turn::once("it is up", call, |turn| turn.running.stdout() == "up\n");
    redis.kill();
    let trouble = told.hears("trouble");
    assert!(trouble["message"].as_str().unwrap().contains("cannot renew \"job\""), "{trouble}");
    turn.is_told();
    turn.finish().exits(1);
    let events = told.all();
    have_their_fields(&events);
    assert!(
        events.last().unwrap()["ends_in_ms"].as_u64().is_some_and(|left| left > 0 && left <= 15_000),
        "{events:#?}"
    );
    // It renews the lock when it begins to listen, if the server lives until then.
    let rest = names(&events).into_iter().filter(|event| !["trouble", "renewed"].contains(&event.as_str()));
    let rest: Vec<_> = rest.collect();
    assert_eq!(rest, ["granted", "started", "ended", "unreleased"]);
}

#[test]
fn every_other_end_is_told() {
    let (redis, told) = (Redis::start(), Told::new());
    let word = told.word();
    let call = |words: &[&str]| redis.nxlock(["run", "job", "--events", &word].iter().chain(words).copied());
    call(&["/no/such/command"]).run().exits(127);
    assert_eq!(told.names(), ["granted", "started", "released", "not_run"]);
    call(&["--time-limit", "100ms", "--at-least", "5m", "sleep", "300"]).run().exits(124);
    // A renewal may come between: after 100 ms the server is to tell what happens to the lock.
    let events = told.all();
    let last = |event: &str| events.iter().rfind(|told| told["event"] == event).unwrap();
    assert_eq!(last("ended")["time_limit"], true);
    assert!(last("released")["ends_in_ms"].as_u64().is_some_and(|left| left > 200_000));
    call(&["-n", "true"]).run().exits(75);
    assert_eq!(told.hears("refused")["nested"], false);
    let mut waiting = call(&["true"]).start();
    told.hears("waiting");
    waiting.signal(Signal::SIGTERM);
    eventually("it leaves", || waiting.has_ended());
    assert_eq!(told.hears("interrupted")["signal"], 15);
    call(&["-s", "nonsense", "true"]).run().exits(78);
    assert_eq!(told.hears("failed")["kind"], "misconfigured");
    have_their_fields(&told.all());
    redis.delete("lock:job");
}

#[test]
fn acquire_tells_its_grant_and_gives_back_what_it_cannot_print() {
    let (redis, told) = (Redis::start(), Told::new());
    let call = || redis.nxlock(["acquire", "job", "--ttl", "5m", "--events", &told.word()]);
    let token = call().run().exits(0).says_nothing().token();
    assert_eq!(told.names(), ["granted"]);
    redis.nxlock(["release", "job", &token]).run().exits(0);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    call().stdout_to(full).run().exits(70);
    assert_eq!(told.names(), ["granted", "granted", "released"]);
    have_their_fields(&told.all());
}

#[test]
fn what_is_hostile_in_an_event_is_escaped() {
    let (redis, told) = (Redis::start(), Told::new());
    let reason = "\u{202e}\u{1b}[2J\u{7}\"";
    redis.nxlock(["acquire", "job", "--ttl", "5m", "--reason", reason]).run().exits(0);
    redis.nxlock(["run", "job", "-n", "--events", &told.word(), "true"]).run().exits(75);
    assert_eq!(told.all()[0]["holder"]["reason"], reason);
    assert!(text_of(&told.path()).trim_end().chars().all(|c| c.is_ascii() && !c.is_control()));
    redis.delete("lock:job");
}

#[test]
fn without_them_no_thread_is_started_for_them() {
    let redis = Redis::start();
    // The lock is renewed by another thread, which begins after a tenth of a second.
    let threads = "p=${NXLOCK_TOKEN#*:*:*:}; sleep 0; cat /proc/${p%%:*}/task/*/comm | sort -u | grep -vx renewer";
    redis.nxlock(["run", "job", "-c", threads]).run().exits(0).prints("nxlock\n");
    let told = Told::new();
    let found = "p=${NXLOCK_TOKEN#*:*:*:}; until grep -qx events /proc/${p%%:*}/task/*/comm; do sleep 0.05; done";
    redis.nxlock(["run", "job", "--events", &told.word(), "-c", found]).run().exits(0);
}

/// Starts a server that does not tell a holder of changes: none renews its lock when it begins to listen.
fn silent() -> Redis {
    Redis::with(&["--rename-command", "HELLO", ""])
}

/// Returns a call with this pipe as its stdout, which the script makes descriptor 3, for the events.
fn into_pipe(redis: &Redis, writer: std::io::PipeWriter, script: &str) -> Nxlock {
    Nxlock::by("sh", ["-c", script]).env("NXLOCK_SERVER", redis.url()).stdout_to(writer)
}

#[test]
fn a_reader_that_does_not_read_keeps_nobody_waiting() {
    let redis = silent();
    for nonblocking in [false, true] {
        let (reader, writer) = std::io::pipe().unwrap();
        let flag = |flags| fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
        flag(OFlag::O_NONBLOCK);
        while (&writer).write(&[b'x'; 4096]).is_ok() {}
        flag(if nonblocking { OFlag::O_NONBLOCK } else { OFlag::empty() });
        let script = "exec nxlock run job --events 3 -c 'echo ran >&2; exit 5' 3>&1 > /dev/null";
        let done = into_pipe(&redis, writer, script).run().exits(5).says("ran\n");
        done.says("4 events were not written to descriptor 3: nobody takes them");
        assert!(redis.value("lock:job").is_none(), "it was given back");
        drop(reader);
    }
}

#[test]
fn a_reader_that_has_gone_ends_nothing() {
    let redis = silent();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let script = "exec nxlock run job --events 3 -c 'exit 5' 3>&1 > /dev/null";
    let done = into_pipe(&redis, writer, script).run().exits(5);
    done.says("4 events were not written to descriptor 3: broken pipe");
}
