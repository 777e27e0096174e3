//! Output: documents, tables, quoting, hostile text, usage.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::turns::{holder_id, lock_status};
use crate::support::{Authority, Nxlock, Redis, answered, eventually, wall};

/// Asserts that a document has these fields and no others.
#[track_caller]
fn has_fields(document: &Value, fields: &[&str]) {
    let mut expected = fields.to_vec();
    expected.sort_unstable();
    let mut names: Vec<&String> = document.as_object().unwrap_or_else(|| panic!("{document}")).keys().collect();
    names.sort_unstable();
    assert_eq!(names, expected, "{document}");
}

#[track_caller]
fn is_holder(holder: &Value) {
    has_fields(holder, &["id", "host", "user", "pid", "as", "since", "held_ms", "reason", "may_be_asked"]);
    assert_eq!(holder["id"].as_str().unwrap().len(), 8);
    assert!(holder["pid"].is_u64() && holder["held_ms"].is_u64(), "{holder}");
    assert!(holder["host"].is_string() && holder["user"].is_string(), "{holder}");
    let since = holder["since"].as_str().unwrap();
    let (date, rest) = since.split_once('T').unwrap();
    assert_eq!((date.len(), rest.len(), rest.ends_with('Z')), (10, 13, true), "RFC 3339 with milliseconds: {since}");
}

const ROW: [&str; 14] = [
    "name",
    "key",
    "state",
    "holder",
    "holders",
    "taken",
    "slots",
    "ttl_ms",
    "fence",
    "queue",
    "legacy",
    "last_success",
    "last_failure",
    "warnings",
];

#[test]
fn status_documents_have_their_fields() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m", "--reason", "a reason"]).run().token();
    redis.put("lock:foreign", b"somebody", None);
    let rows = redis.nxlock(["status", "--json", "job", "foreign", "free"]).run().exits(1).says_nothing().json();
    let rows = rows.as_array().unwrap();
    for row in rows {
        has_fields(row, &ROW);
        assert!(row["name"].is_string() && row["state"].is_string() && row["queue"].is_array(), "{row}");
        assert!(row["warnings"].is_array() && row["legacy"].is_null(), "{row}");
    }
    is_holder(&rows[0]["holder"]);
    assert_eq!(rows[0]["holder"]["reason"], "a reason");
    assert!(rows[0]["ttl_ms"].as_u64().is_some_and(|ttl| ttl <= 60_000) && rows[0]["fence"].is_u64(), "{}", rows[0]);
    assert_eq!((&rows[1]["state"], &rows[1]["ttl_ms"]), (&Value::from("no_expiry"), &Value::Null));
    assert!(rows[1]["holder"].is_null() && rows[1]["fence"].is_null());
    assert_eq!((&rows[2]["state"], &rows[2]["holder"]), (&Value::from("free"), &Value::Null));
    redis.delete("lock:foreign");
    redis.nxlock(["release", "job", &token]).run().exits(0);
    assert_eq!(redis.nxlock(["status", "--json"]).run().exits(0).json(), Value::Array(vec![]));
}

#[test]
fn the_documents_of_the_other_verbs_have_their_fields() {
    let redis = Redis::start();
    let call = |words: &[&str]| redis.nxlock(words.iter().chain(&["--json"]).copied()).run().says_nothing();
    let acquired = call(&["acquire", "job", "--ttl", "1m", "--reason", "r"]).exits(0).json();
    has_fields(&acquired, &["outcome", "name", "key", "token", "fence", "shared", "slot", "slots", "ttl_ms", "keeper"]);
    assert_eq!((&acquired["outcome"], &acquired["ttl_ms"]), (&Value::from("acquired"), &Value::from(60_000)));
    assert!(acquired["fence"].is_u64());
    let token = acquired["token"].as_str().unwrap();

    let busy = call(&["acquire", "job", "--ttl", "1m", "-n"]).exits(75).json();
    let state = ["state", "holder", "holders", "taken", "slots", "ttl_ms", "fence"];
    let fields = [&state[..], &["waited_ms", "queue_length", "nested", "superseded_by", "done"]].concat();
    has_fields(&busy, &[&["outcome", "name", "key"], &fields[..]].concat());
    is_holder(&busy["holder"]);
    assert!(busy["waited_ms"].is_u64() && busy["queue_length"].is_u64() && busy["nested"] == false, "{busy}");
    assert!(busy["superseded_by"].is_null(), "{busy}");

    let refuses = call(&["release", "job", "--ask", &token[4..12]]).exits(75).json();
    has_fields(&refuses, &["outcome", "name", "key", "holder", "waited_ms"]);
    is_holder(&refuses["holder"]);
    assert_eq!(refuses["outcome"], "refuses", "{refuses}");

    let not_yours = call(&["release", "job", "nx1:wrong"]).exits(76).json();
    has_fields(&not_yours, &[&["outcome", "name", "key", "wanted"], &state[..]].concat());
    let renewed = call(&["renew", "job", token, "--ttl", "2m"]).exits(0).json();
    has_fields(&renewed, &["outcome", "name", "key", "ttl_ms"]);
    let released = call(&["release", "job", token]).exits(0).json();
    has_fields(&released, &["outcome", "name", "key", "broken"]);
    assert_eq!(released["broken"], false);

    let nowhere = ["status", "-s", "unix:///no/such/socket", "--server-timeout", "100ms"];
    let failed = call(&nowhere).exits(69).json();
    has_fields(&failed, &["outcome", "message", "remedy"]);
    assert_eq!(failed["outcome"], "unreachable");
    assert_eq!(call(&["status", "-s", "nonsense"]).exits(78).json()["outcome"], "misconfigured");
}

/// Parses each line of stderr as a document.
#[track_caller]
fn documents(stderr: &str) -> Vec<Value> {
    stderr.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn the_documents_of_run_go_to_stderr_one_a_line() {
    let redis = Redis::start();
    let call = |words: &[&str]| redis.nxlock(["--json", "run", "job"].iter().chain(words).copied());
    let done = call(&["-c", "echo '{'; exit 3"]).run().exits(3).prints("{\n");
    let ended = documents(&done.stderr).pop().unwrap();
    has_fields(&ended, &["outcome", "name", "key", "status", "signal", "time_limit", "lost", "asked_by", "unreleased"]);
    assert_eq!((&ended["outcome"], &ended["status"]), (&Value::from("ended"), &Value::from(3)));
    assert!(ended["signal"].is_null() && ended["lost"].is_null() && ended["unreleased"].is_null());

    let done = call(&["-c", "kill -KILL $$"]).run().exits(137);
    assert_eq!(documents(&done.stderr).pop().unwrap()["signal"], 9);
    let done = call(&["--time-limit", "100ms", "sleep", "300"]).run().exits(124);
    assert_eq!(documents(&done.stderr).pop().unwrap()["time_limit"], true);
    let done = call(&["/no/such/command"]).run().exits(127);
    assert_eq!(documents(&done.stderr).pop().unwrap()["outcome"], "not_run");

    redis.put("lock:job", b"somebody", None);
    let done = call(&["-n", "true"]).run().exits(75).prints("");
    assert_eq!(documents(&done.stderr).pop().unwrap()["outcome"], "held");
    redis.delete("lock:job");

    let (reader, writer) = std::io::pipe().unwrap();
    let mut running = call(&["-c", "echo up; read x"]).stdin_from(reader).start();
    running.line("up");
    redis.delete("lock:job");
    let done = running.finish().exits(76);
    drop(writer);
    let told = documents(&done.stderr);
    assert!(told.iter().any(|document| document["event"] == "lost"), "{told:?}");
    has_fields(&told.last().unwrap()["lost"], &["by", "how", "message"]);
}

#[test]
fn since_and_held_are_by_one_clock() {
    let redis = Redis::start();
    let before = wall();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let rows = redis.nxlock(["status", "job", "--json"]).run().exits(0).json();
    let held = Duration::from_millis(rows[0]["holder"]["held_ms"].as_u64().unwrap());
    assert!(held <= wall().duration_since(before).unwrap() + Duration::from_millis(2), "{held:?}");
    let since = rows[0]["holder"]["since"].as_str().unwrap();
    let today = before.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 86_400;
    assert!(today > 0 && since.starts_with("20"), "{since}");
    redis.delete("lock:job");
}

/// Bytes that must never reach a terminal unescaped.
const HOSTILE: &[u8] = b"\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\xe2\x80\xaeevil\x00\x7f\xff";

#[track_caller]
fn is_harmless(bytes: &[u8]) {
    let text = String::from_utf8(bytes.to_vec()).expect("it is UTF-8");
    let harmful = text.chars().find(|c| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c));
    assert_eq!(harmful, None, "{text:?}");
    assert!(text.lines().all(|line| !line.starts_with("evil")), "{text:?}");
}

#[test]
fn what_others_have_written_reaches_no_terminal_raw() {
    let redis = Redis::start();
    let percent: String = HOSTILE.iter().map(|byte| format!("%{byte:02X}")).collect();
    let random = "a".repeat(26);
    let raw = String::from_utf8_lossy(HOSTILE).into_owned();
    let values = [
        HOSTILE.to_vec(),
        format!("nx1:{random}:{percent}@{percent}:1:1700000000000:{percent}").into_bytes(),
        format!("nx1:{random}:{raw}@{raw}:1:1700000000000:{raw}").into_bytes(),
        format!("nx1:{random}:u@h:99999999999999999999:99999999999999999999:").into_bytes(),
        format!("nx1:{random}:u@h:1:18446744073709551615:").into_bytes(),
        vec![b'x'; 1_000_000],
        Vec::new(),
    ];
    for value in values {
        for ttl in [Some(60_000), None] {
            redis.put("lock:job", &value, ttl);
            for options in [&[][..], &["-v"], &["--json"]] {
                for verb in [
                    &["run", "job", "-n", "true"][..],
                    &["acquire", "job", "--ttl", "1m", "-w", "600ms"],
                    &["release", "job", "x"],
                    &["renew", "job", "x", "--ttl", "1m"],
                    &["release", "job", "--break", "bbbbbbbb"],
                    &["release", "job", "--ask", "bbbbbbbb"],
                    &["status", "job"],
                ] {
                    let done = answered(|| redis.nxlock(options.iter().chain(verb).copied()));
                    is_harmless(&done.stdout);
                    is_harmless(done.stderr.as_bytes());
                    assert!(matches!(done.status.code(), Some(0 | 75 | 76)), "{verb:?}:\n{}", done.both());
                    assert!(done.both().len() < 10_000, "{verb:?}: {} bytes", done.both().len());
                }
            }
            redis.delete("lock:job");
        }
    }
}

#[test]
fn what_a_request_to_give_up_says_reaches_no_terminal_raw() {
    let percent: String = HOSTILE.iter().map(|byte| format!("%{byte:02X}")).collect();
    let token = format!("nx1:{}:{percent}@{percent}:1:1700000000000:{percent}", "a".repeat(26));
    for options in [&[][..], &["--json"]] {
        let redis = Redis::start();
        let running = redis.nxlock([&["run", "job"], options, &["--", "sleep", "600"]].concat()).start();
        eventually("it has the lock", || lock_status(&redis)["holder"]["pid"] == running.pid());
        let id = holder_id(&redis);
        redis.ask::<()>(&["HSET", "{lock:job}:waiters", "asked", &format!("{id} {token}")]);
        redis.ask::<()>(&["PEXPIRE", "{lock:job}:waiters", "60000"]);
        // The message makes the holder renew the lock at once. A short lease could end on a busy machine.
        redis.ask::<()>(&["PUBLISH", &format!("lock:job:holder:{id}"), "a"]);
        let done = running.finish().exits(143);
        assert!(done.stderr.contains("owned"), "{}", done.stderr);
        is_harmless(done.stderr.as_bytes());
    }
}

#[test]
fn names_that_others_have_made_reach_no_terminal_raw() {
    let redis = Redis::start();
    let key = format!("lock:{}", String::from_utf8_lossy(HOSTILE));
    for key in [key.as_str(), "lock:\u{202e}gnp", "lock:\u{200b}"] {
        redis.put(key, b"x", None);
    }
    is_harmless(&redis.nxlock(["status"]).run().exits(0).stdout);
    for key in [key.as_str(), "lock:\u{202e}gnp", "lock:\u{200b}"] {
        redis.delete(key);
    }
}

#[test]
fn a_hostile_reason_of_our_own_is_kept_and_shown_harmlessly() {
    let redis = Redis::start();
    let reason = "two \u{1b}[31m 100% : @ é";
    redis.nxlock(["acquire", "job", "--ttl", "1m", "--reason", reason]).run().exits(0);
    let value = redis.value("lock:job").unwrap();
    assert!(value.bytes().all(|byte| byte.is_ascii_graphic()) && value.len() <= 512, "{value}");
    is_harmless(&redis.nxlock(["status", "job"]).run().exits(0).stdout);
    let rows = redis.nxlock(["status", "job", "--json"]).run().json();
    assert_eq!(rows[0]["holder"]["reason"], reason);
    redis.delete("lock:job");
    redis.nxlock(["acquire", "job", "--ttl", "1m", "--reason", &"é".repeat(5_000)]).run().exits(0);
    assert!(redis.value("lock:job").unwrap().len() <= 512);
    redis.delete("lock:job");
}

#[test]
fn whole_tokens_are_shown_to_nobody_but_their_owner() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let secret = token.split(':').nth(1).unwrap();
    for verb in [&["run", "job", "-n", "true"][..], &["status"], &["status", "--json"], &["release", "job", "x", "-v"]]
    {
        redis.nxlock(verb.to_vec()).run().never_says(secret);
    }
    redis.nxlock(["release", "job", &token, "-v"]).run().exits(0).never_says(secret);
}

#[test]
fn there_is_no_colour_where_nobody_sees_it() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let busy =
        |options: &[&'static str]| redis.nxlock(["run", "job", "-n"].iter().chain(options).chain(&["true"]).copied());
    busy(&[]).run().exits(75).never_says("\x1b");
    busy(&["--color", "never"]).run().exits(75).never_says("\x1b");
    busy(&["--color", "never"]).env("CLICOLOR_FORCE", "1").run().never_says("\x1b");
    busy(&[]).env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1").run().never_says("\x1b");
    busy(&["--color", "always"]).run().exits(75).says("\x1b[");
    busy(&["--color", "always"]).env("NO_COLOR", "1").run().says("\x1b[");
    busy(&["--color", "sometimes"]).run().exits(64).says("--color");
    redis.delete("lock:job");
}

#[test]
fn usage_errors_name_the_option_and_the_remedy() {
    let redis = Redis::start();
    for (args, told) in [
        (&["run", "job", "--ttl", "300", "true"][..], &["--ttl", "300s", "300m"][..]),
        (&["run", "job", "--ttl", "5M", "true"], &["--ttl", "5m"]),
        (&["run", "job", "--ttl", "50ms", "true"], &["--ttl", "100ms"]),
        (&["run", "job", "--wait", "soon", "true"], &["--wait", "90s"]),
        (&["run", "job", "-w", "1s", "-n", "true"], &["--wait", "--no-wait"]),
        (&["run", "job", "--time-limit", "0s", "true"], &["--time-limit"]),
        (&["run", "job", "--server-timeout", "0s", "true"], &["--server-timeout"]),
        (&["run", "job", "--no-such-option", "true"], &["--no-such-option"]),
        (&["run", "job"], &["Usage"]),
        (&["run"], &["NAME"]),
        (&["run", "", "true"], &["NAME", "a lock needs a name"]),
        (&["run", "a{b}", "true"], &["NAME", "braces"]),
        (&["run", "a\nb", "true"], &["NAME", "control characters"]),
        (&["acquire", "job"], &["--ttl"]),
        (&["acquire", "job", "--ttl", "1m", "true"], &["true"]),
        (&["-q", "-v", "status"], &["--quiet", "--verbose"]),
        (&["lock", "job"], &["lock"]),
        (&["renew", "job", "token"], &["--ttl"]),
    ] {
        let done = redis.nxlock(args.to_vec()).run().exits(64).prints("");
        let done = told.iter().fold(done, |done, told| done.says(told));
        done.never_says("panicked").never_says("\x1b");
    }
    let long = "x".repeat(201);
    redis.nxlock(["run", &long, "true"]).run().exits(64).says("200");
    Nxlock::new([""; 0]).run().exits(64);
}

#[test]
fn usage_errors_in_the_environment_name_the_variable_or_its_option() {
    let redis = Redis::start();
    redis.nxlock(["status"]).env("NXLOCK_SERVER_TIMEOUT", "5").run().exits(64).says("--server-timeout").says("5s");
    redis.nxlock(["status"]).env("NXLOCK_PREFIX", "a{b").run().exits(64).says("--prefix");
}

#[test]
fn help_and_version_are_answers() {
    for args in [&["--help"][..], &["-h"], &["--version"], &["-V"], &["run", "--help"]] {
        let done = Nxlock::new(args.to_vec()).run().exits(0).says_nothing();
        assert!(done.text().contains("nxlock"), "{}", done.both());
    }
}

#[test]
fn an_answer_that_stdout_does_not_take_is_a_failure() {
    let redis = Redis::start();
    let verbs = [
        &["status"][..],
        &["status", "job"],
        &["status", "--json"],
        // A free name has a status of its own, but the failed write takes precedence.
        &["status", "free"],
        &["status", "--watch"],
        &["check"],
        &["check", "--json"],
        &["renew", "job", "--ttl", "1m", "--json"],
        &["release", "job", "--json"],
    ];
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let read_only = || fs::File::open("/dev/null").unwrap();
    for how in ["No space left", "Bad file descriptor", "it is closed"] {
        let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
        for words in verbs {
            let call = match how {
                "No space left" => redis.nxlock(words).stdout_to(full()),
                "Bad file descriptor" => redis.nxlock(words).stdout_to(read_only()),
                _ => redis.sh(r#"exec nxlock "$@" >&-"#, words),
            };
            call.env("NXLOCK_TOKEN", &token).run().exits(70).says(&format!("cannot write to stdout: {how}"));
        }
    }
}

#[test]
fn a_table_lines_up_whatever_the_names() {
    let redis = Redis::start();
    for name in ["a", "日本語", "a long name with spaces"] {
        redis.put(&format!("lock:{name}"), b"x", None);
    }
    let text = redis.nxlock(["status"]).run().exits(0).text();
    let mut lines = text.lines();
    let state = lines.next().unwrap().find("STATE").unwrap();
    for line in lines {
        let (name, _) = line.split_once("no expiry").unwrap();
        // Each of the three Japanese characters takes three bytes and two columns.
        let columns = name.len() - if name.contains('日') { 3 } else { 0 };
        assert_eq!(columns, state, "{text}");
    }
    for name in ["a", "日本語", "a long name with spaces"] {
        redis.delete(&format!("lock:{name}"));
    }
}
