//! Destinations of events: files, descriptors, and their errors.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{Told, documents, names};
use crate::support::{Nxlock, Redis, text_of, we_are_root};

const WHOLE: [&str; 4] = ["granted", "started", "ended", "released"];

fn sh(redis: &Redis, script: &str, argument: &str) -> Nxlock {
    Nxlock::by("sh", ["-c", script, "sh", argument]).env("NXLOCK_SERVER", redis.url())
}

#[test]
fn a_file_is_appended_to_and_made_as_a_shell_makes_it() {
    let (redis, told) = (Redis::start(), Told::new());
    sh(&redis, r#"umask 027; nxlock run job --events "$1" true"#, &told.word()).run().exits(0).says_nothing();
    assert_eq!(fs::metadata(told.path()).unwrap().permissions().mode() & 0o777, 0o640);
    let before = text_of(&told.path());
    redis.nxlock(["run", "job", "--events", &told.word(), "true"]).run().exits(0);
    assert!(text_of(&told.path()).starts_with(&before));
    assert_eq!(told.names(), [WHOLE, WHOLE].concat());
}

#[test]
fn a_number_is_a_descriptor_that_the_command_does_not_get() {
    let (redis, told) = (Redis::start(), Told::new());
    let script = r#"exec nxlock run job --events 7 -c 'test ! -e /proc/self/fd/7 && echo gone' 7>> "$1""#;
    sh(&redis, script, &told.word()).run().exits(0).prints("gone\n").says_nothing();
    assert_eq!(told.names(), WHOLE);
}

#[test]
fn a_standard_stream_stays_the_commands_own() {
    let redis = Redis::start();
    let done = redis.nxlock(["run", "job", "--events", "2", "-c", "echo mine >&2"]).run().exits(0).prints("");
    let (mine, rest): (Vec<_>, Vec<_>) = done.stderr.lines().partition(|line| *line == "mine");
    assert_eq!(mine.len(), 1);
    assert_eq!(names(&documents(&rest.join("\n"))), WHOLE);
    let done = redis.nxlock(["run", "job", "--events", "1", "echo", "mine"]).run().exits(0).says_nothing();
    assert!(done.text().contains("mine\n") && done.text().contains("\"granted\""), "{}", done.both());
}

#[test]
fn a_descriptor_that_cannot_be_written_to_is_a_usage_error() {
    let redis = Redis::start();
    for (redirection, number, why) in [
        ("", "9", "it is not open"),
        ("", "99999999999", "it is not open"),
        ("2>&-", "2", ""),
        ("1>&-", "1", "it is not open"),
        ("7< /dev/null", "7", "only for reading"),
        ("7< /", "7", "only for reading"),
    ] {
        let script = format!(r#"nxlock run job --events "$1" -c 'echo ran' {redirection}"#);
        sh(&redis, &script, number).run().exits(64).prints("").says(why);
    }
    redis.nxlock(["run", "job", "--events", "-", "true"]).run().exits(64).says("--events").says("./-");
}

#[test]
fn a_file_that_cannot_be_had_is_told_before_anything_is_started() {
    let (redis, told) = (Redis::start(), Told::new());
    let directory = told.directory.path().display().to_string();
    for (path, why) in [
        (format!("{directory}/no/events"), "no such file"),
        (directory.clone(), "is a directory"),
        ("x".repeat(300), "too long"),
    ] {
        let call = redis.nxlock(["run", "job", "--events", &path, "echo", "ran"]);
        call.run().exits(78).prints("").says("cannot append events to").says(why);
        redis.nxlock(["acquire", "job", "--ttl", "5m", "--events", &path]).run().exits(78).prints("");
    }
    let closed = told.directory.path().join("closed");
    File::create(&closed).unwrap().set_permissions(fs::Permissions::from_mode(0o444)).unwrap();
    let call = redis.nxlock(["run", "job", "--events", &closed.display().to_string(), "true"]);
    if we_are_root() {
        call.minding_permissions().run().exits(78).says("permission denied");
    } else {
        call.run().exits(78).says("permission denied");
    }
}

#[test]
fn a_full_disk_fails_no_run_and_is_told_once() {
    let redis = Redis::start();
    let done = redis.nxlock(["run", "job", "--events", "/dev/full", "-c", "exit 5"]).run().exits(5);
    let done = done.says(" events were not written to /dev/full: no space left on device\n");
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    redis.nxlock(["-q", "run", "job", "--events", "/dev/full", "true"]).run().exits(0).says_nothing();
}

#[test]
fn of_a_line_that_does_not_fit_nothing_is_left() {
    let (redis, told) = (Redis::start(), Told::new());
    // The file size limit is 1024 bytes: two runs of four lines do not fit, and the limit falls within a line.
    let script = r#"ulimit -f 1; for i in 1 2; do nxlock run job --events "$1" true; done"#;
    let call = Nxlock::by("bash", ["-c", script, "bash", &told.word()]).env("NXLOCK_SERVER", redis.url());
    call.run().exits(0).says("not written").says("file too large");
    let text = text_of(&told.path());
    assert!(text.ends_with('\n') && text.len() < 1024, "{text:?}");
    assert!(told.names().len() >= 4);
}

#[test]
fn a_pipe_that_nobody_reads_is_not_waited_for() {
    let (redis, told) = (Redis::start(), Told::new());
    mkfifo(&told.path(), Mode::from_bits_truncate(0o600)).unwrap();
    let call = || redis.nxlock(["run", "job", "--events", &told.word(), "-c", "exit 5"]);
    call().run().exits(5).says(" events were not written").says("nobody reads that pipe");
    let mut reader = File::options().read(true).write(true).open(told.path()).unwrap();
    call().run().exits(5).says_nothing();
    let mut text = vec![0; 65_536];
    let length = reader.read(&mut text).unwrap();
    assert_eq!(names(&documents(std::str::from_utf8(&text[..length]).unwrap())), WHOLE);
}

#[test]
fn lines_of_several_processes_do_not_mix() {
    let (redis, told) = (Redis::start(), Told::new());
    let script = r#"for i in 1 2 3 4 5 6; do nxlock run "job $i" --events "$1" true & done; wait"#;
    sh(&redis, script, &told.word()).run().exits(0).says_nothing();
    let events = told.all();
    assert_eq!(names(&events).len(), 6 * WHOLE.len());
    for i in 1..=6 {
        let name = format!("job {i}");
        let own: Vec<_> = events.iter().filter(|event| event["name"] == *name).cloned().collect();
        assert_eq!(names(&own), WHOLE);
    }
}

#[test]
fn a_configuration_file_may_say_where_and_the_command_line_that_nowhere() {
    let (redis, told) = (Redis::start(), Told::new());
    let directory = told.directory.path();
    fs::write(directory.join("c.toml"), "events = \"7\"\n").unwrap();
    let call = |words: &[&str]| redis.nxlock(["run", "job", "--config", "c.toml"].iter().chain(words).copied());
    call(&["true"]).in_directory(directory).run().exits(0).says_nothing();
    assert_eq!(names(&documents(&text_of(&directory.join("7")))), WHOLE, "a file, beside the configuration's");
    call(&["--events", "", "true"]).in_directory(directory).run().exits(0).says_nothing();
    call(&["--events", &told.word(), "true"]).in_directory(directory).run().exits(0).says_nothing();
    assert_eq!(names(&documents(&text_of(&directory.join("7")))).len(), WHOLE.len());
    assert_eq!(told.names(), WHOLE);
    fs::write(directory.join("c.toml"), "events = 7\n").unwrap();
    call(&["true"]).in_directory(directory).run().exits(78).says("expected a string");
}
