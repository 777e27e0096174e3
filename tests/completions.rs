//! Completion of lock names: what the hidden interface prints, and what shells make of it.

mod shells;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::support::{Authority, Local, Nxlock, Redis, eventually_some};

/// Returns the names that a call offers for its last word.
fn offered(call: Nxlock) -> Vec<String> {
    let done = call.run().exits(0).says_nothing();
    done.text().lines().map(str::to_owned).collect()
}

fn asked(redis: &Redis, words: &[&str]) -> Vec<String> {
    let words = ["complete-names", "nxlock"].iter().chain(words).copied();
    offered(Nxlock::new(words).env("NXLOCK_SERVER", redis.url()))
}

/// Returns what is offered in the end: on a busy machine a first attempt may time out, and then nothing is.
#[track_caller]
fn offered_in_the_end(call: impl Fn() -> Nxlock) -> Vec<String> {
    eventually_some("something is offered", || Some(offered(call())).filter(|names| !names.is_empty()))
}

#[track_caller]
fn finds(redis: &Redis, words: &[&str]) -> Vec<String> {
    let words = || ["complete-names", "nxlock"].iter().chain(words).copied();
    offered_in_the_end(|| Nxlock::new(words()).env("NXLOCK_SERVER", redis.url()))
}

fn with_locks(names: &[&str]) -> Redis {
    let redis = Redis::start();
    for name in names {
        redis.put(&format!("lock:{name}"), b"somebody", Some(600_000));
    }
    redis
}

fn clear(redis: &Redis) {
    redis.ask::<()>(&["FLUSHALL"]);
}

#[test]
fn names_are_offered_where_a_name_is_typed_and_nowhere_else() {
    let redis = with_locks(&["deploy", "two words", "it's $HOME"]);
    let all = ["deploy", "it's $HOME", "two words"];
    for words in [
        &["run", ""][..],
        &["run", "--ttl", "1m", "-n", "de"],
        &["-q", "acquire", "--ttl=1m", ""],
        &["renew", "x"],
        &["release", ""],
        &["status", ""],
        &["status", "deploy", "tw"],
        &["run", "--", ""],
        &["run", "deploy", "--also", ""],
        &["run", "deploy", "--also", "x", "--also-shared", "tw"],
        &["acquire", "--key", "k", "--while-pid", "1", "--also", ""],
    ] {
        assert_eq!(finds(&redis, words), all, "{words:?}");
    }
    for words in [
        &[""][..],
        &["ru"],
        &["run", "deploy", ""],
        &["run", "-"],
        &["run", "--ttl", ""],
        &["run", "-s", ""],
        &["run", "--key", "k", ""],
        &["renew", "deploy", ""],
        &["release", "deploy", "--break", ""],
        &["check", ""],
        &["no-verb", ""],
        &["run", "--help", ""],
        &["run", "--ttl", "nonsense", ""],
    ] {
        assert_eq!(asked(&redis, words), Vec::<String>::new(), "{words:?}");
    }
    offered(Nxlock::new(["complete-names"]));
    clear(&redis);
}

#[test]
fn a_name_that_is_free_is_offered_if_its_runs_are_recorded() {
    let redis = with_locks(&["deploy"]);
    let local = Local::start();
    let token = local.nxlock(["acquire", "deploy", "--ttl", "10m"]).run().exits(0).token();
    for url in [redis.url(), local.url()] {
        Nxlock::new(["-s", &url, "run", "nightly", "--record", "--", "true"]).run().exits(0);
        let offered = |words: &[&str]| {
            let words = || ["complete-names", "nxlock"].iter().chain(words).copied();
            offered_in_the_end(|| Nxlock::new(words()).env("NXLOCK_SERVER", &url))
        };
        assert_eq!(offered(&["status", ""]), ["deploy", "nightly"]);
        assert_eq!(offered(&["run", "deploy", "--also", ""]), ["deploy", "nightly"]);
        assert_eq!(offered(&["status", "--history", ""]), ["nightly"]);
        assert_eq!(offered(&["release", ""]), ["deploy"]);
    }
    local.nxlock(["release", "deploy", &token]).run().exits(0);
    clear(&redis);
}

#[test]
fn signals_are_offered_after_lost_signal() {
    let line = ["complete-names", "nxlock", "acquire", "job", "--while-pid", "1", "--lost-signal", ""];
    let signals = offered_in_the_end(|| Nxlock::new(line));
    assert!(["TERM", "USR1", "none"].iter().all(|name| signals.iter().any(|signal| signal == name)), "{signals:?}");
}

#[test]
fn the_words_of_the_command_are_counted_with_the_one_that_is_typed() {
    let counted = |words: &[&str], count: &str| {
        let line = words.join(" ");
        let by_bash = || Nxlock::new(["complete-names", "--command", "--bash", &line]);
        let by_words = || Nxlock::new(["complete-names", "--command"].iter().chain(words).copied());
        let told = match count {
            "" => [offered(by_bash()), offered(by_words())],
            _ => [offered_in_the_end(by_bash), offered_in_the_end(by_words)],
        };
        assert_eq!(told.map(|told| told.concat()), [count, count], "{words:?}");
    };
    for (words, count) in [
        (&["nxlock", "run", "job", ""][..], "1"),
        (&["nxlock", "run", "job", "--", "gre"], "1"),
        (&["nxlock", "run", "--ttl", "1m", "job", "-n", "--", ""], "1"),
        (&["nxlock", "-q", "run", "job", "--", "-x"], "1"),
        (&["nxlock", "run", "job", "grep", "--col"], "2"),
        (&["nxlock", "run", "job", "--", "env", "A=b", ""], "3"),
        (&["nxlock", "run", "--key", "k", "gre"], "1"),
        (&["nxlock", "run", "--key=k", "--", "grep", "x"], "2"),
        (&["nxlock", "run", ""], ""),
        (&["nxlock", "run", "--", ""], ""),
        (&["nxlock", "run", "job", "--ti"], ""),
        (&["nxlock", "run", "job", "--ttl", ""], ""),
        (&["nxlock", "run", "job", "-c", "text", ""], ""),
        (&["nxlock", "status", "job", ""], ""),
        (&["nxlock", ""], ""),
    ] {
        counted(words, count);
    }
}

#[test]
fn after_ask_and_break_the_ids_of_the_holders_are_offered() {
    let redis = Redis::start();
    let ids = |options: &[&str]| {
        let words = ["acquire", "job", "--ttl", "10m"].iter().chain(options).copied();
        let token = redis.nxlock(words).run().exits(0).token();
        token[4..12].to_owned()
    };
    let mut shared = [ids(&["--shared"]), ids(&["--shared"])];
    shared.sort();
    for option in ["--ask", "--break"] {
        let mut found = finds(&redis, &["release", "job", option, ""]);
        found.sort();
        assert_eq!(found, shared);
    }
    assert_eq!(asked(&redis, &["release", "another", "--break", ""]), Vec::<String>::new());
    clear(&redis);
    let alone = ids(&[]);
    assert_eq!(finds(&redis, &["release", "job", "--break", &alone[..2]]), [alone]);
    clear(&redis);
}

#[test]
fn the_line_itself_may_say_where_the_locks_are() {
    let redis = with_locks(&["deploy"]);
    redis.put("other:job", b"somebody", Some(600_000));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    fs::write(&file, format!("server = \"{}\"\nprefix = \"other:\"\n", redis.url())).unwrap();
    let (url, file) = (redis.url(), file.display().to_string());
    for (words, expected) in [
        (&["-s", &url, "run", ""][..], "deploy"),
        (&["run", "--server", &url, "--prefix", "other:", ""], "job"),
        (&["--config", &file, "status", ""], "job"),
        (&["status", "--prefix=lock:", "--config", &file, ""], "deploy"),
    ] {
        let words = || ["complete-names", "nxlock"].iter().chain(words).copied();
        assert_eq!(offered_in_the_end(|| Nxlock::new(words())), [expected]);
    }
    clear(&redis);
}

#[test]
fn whatever_is_wrong_nothing_is_said() {
    let redis = Redis::start();
    for server in ["", "nonsense", "unix:///no/such/socket", "redis://127.0.0.1:1", "rediss://x@h y"] {
        let call = Nxlock::new(["complete-names", "nxlock", "run", ""]).env("NXLOCK_SERVER", server);
        assert_eq!(offered(call), Vec::<String>::new());
    }
    let closed = Redis::with_password("secret");
    assert_eq!(asked(&closed, &["run", ""]), Vec::<String>::new());
    assert_eq!(asked(&redis, &["--config", "/no/such/file", "run", ""]), Vec::<String>::new());
    let call = Nxlock::new(["complete-names", "nxlock", "run", ""]).env("NXLOCK_SERVER", redis.url());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    call.stdout_to(writer).run().exits(0).says_nothing();
    // Other verbs warn of a password file that others may read.
    let directory = tempfile::tempdir().unwrap();
    let open_to_all = directory.path().join("password");
    fs::write(&open_to_all, "secret").unwrap();
    fs::set_permissions(&open_to_all, Permissions::from_mode(0o644)).unwrap();
    let call = Nxlock::new(["complete-names", "nxlock", "run", ""]).env("NXLOCK_SERVER", redis.url());
    offered(call.env("NXLOCK_PASSWORD_FILE", &open_to_all));
}

#[test]
fn a_server_that_hangs_is_not_waited_for() {
    let redis = with_locks(&["deploy"]);
    redis.hang();
    // A call that waited for an answer, or for a password, would not end as long as this test waits for its end.
    let call = || {
        let call = Nxlock::new(["complete-names", "nxlock", "run", ""]).env("NXLOCK_SERVER", redis.url());
        call.env("NXLOCK_SERVER_TIMEOUT", "1h")
    };
    call().run().exits(0).says_nothing().prints("");
    redis.resume();
    // The password never arrives: nxlock neither prompts for it nor waits.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let call = call().env("NXLOCK_PASSWORD_FILE", "/dev/stdin").stdin_from(pipe);
    call.run().exits(0).says_nothing().prints("");
    clear(&redis);
}

#[test]
fn of_very_many_names_those_are_offered_that_begin_so() {
    let redis = Redis::start();
    let script = "for i = 1, 3000 do local initial = i > 2990 and 'z' or 'a'
                  redis.call('set', string.format('lock:%s%04d', initial, i), 'x', 'px', 600000) end";
    redis.ask::<()>(&["EVAL", script, "0"]);
    assert_eq!(finds(&redis, &["run", "z"]).len(), 10);
    assert_eq!(finds(&redis, &["run", ""]).len(), 1000);
    clear(&redis);
}

#[test]
fn names_that_would_fool_a_terminal_or_be_options_are_not_offered() {
    let redis = with_locks(&["deploy", "\u{202e}gnp", "zero\u{200b}width", "-x"]);
    assert_eq!(finds(&redis, &["run", ""]), ["deploy"]);
    clear(&redis);
}

#[test]
fn help_does_not_mention_it() {
    Nxlock::new(["--help"]).run().exits(0).never_says("complete-names");
    Nxlock::new(["complete"]).run().exits(64).never_says("complete-names");
}
