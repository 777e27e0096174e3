//! The README's examples do what it says.
//!
//! A `console` block is a transcript: the tests run its commands and compare their output word by word, except for what
//! differs between runs. Of the other blocks they run the commands.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::alarms::is_open_metrics;
use crate::support::{Nxlock, Redis, Terminal, eventually, write_program};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

struct Block {
    heading: String,
    language: String,
    text: String,
}

fn readme() -> String {
    fs::read_to_string(Path::new(ROOT).join("README.md")).expect("there is a README")
}

fn blocks() -> Vec<Block> {
    let mut heading = String::new();
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for line in readme().lines() {
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside;
            if inside {
                blocks.push(Block { heading: heading.clone(), language: language.to_owned(), text: String::new() });
            }
        } else if inside {
            let block = blocks.last_mut().expect("one is open");
            block.text += &format!("{line}\n");
        } else if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().to_owned();
        }
    }
    blocks
}

/// Returns the texts of the blocks of a language under a heading.
#[track_caller]
pub fn under<const N: usize>(heading: &str, language: &str) -> [String; N] {
    let found = blocks().into_iter().filter(|block| block.heading == heading && block.language == language);
    let texts: Vec<String> = found.map(|block| block.text).collect();
    texts.try_into().unwrap_or_else(|texts: Vec<_>| panic!("{} blocks of {language} under {heading}", texts.len()))
}

/// Creates a directory with the programs that the examples call. Each logs its name and the lock it runs under;
/// `deploy.sh` also waits for a file `go` if there is a file `wait`.
pub fn workplace() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["import-part-1", "import-part-2", "nightly-import"] {
        put(directory.path(), name, "echo \"${0##*/} $NXLOCK_NAME\" >> ran");
    }
    let deploy = "echo 'deploying ...'\nwhile [ -e wait ] && ! [ -e go ]; do sleep 0.01; done\necho deployed\n\
                  echo \"${0##*/} $NXLOCK_NAME\" >> ran";
    put(directory.path(), "deploy.sh", deploy);
    directory
}

pub fn put(directory: &Path, name: &str, script: &str) {
    write_program(&directory.join(name), &format!("#!/bin/sh\n{script}\n"));
}

/// Returns what the programs logged.
pub fn ran(directory: &Path) -> String {
    fs::read_to_string(directory.join("ran")).unwrap_or_default()
}

/// Returns a shell in the workplace that knows the server and finds nxlock and the programs.
pub fn shell(redis: &Redis, directory: &Path, script: &str) -> Nxlock {
    let script = format!("PATH=$PATH:{}\n{script}", directory.display());
    Nxlock::by("sh", ["-c", &script]).env("NXLOCK_SERVER", redis.url()).in_directory(directory)
}

/// Runs a script at a terminal without colours that is wide enough for what the README shows, and returns what that shows.
#[track_caller]
fn at_a_terminal(redis: &Redis, directory: &Path, script: &str, status: i32) -> String {
    let call = shell(redis, directory, &format!("stty cols 100 rows 40\n{script}"));
    let mut terminal = Terminal::start(call.env("NO_COLOR", "1"));
    terminal.exits(status);
    terminal.screen().replace("\r\n", "\n")
}

/// Returns the commands of a transcript, as a script that merges both streams as a terminal does, and their output.
fn transcript(text: &str) -> (String, String) {
    let mut script = "exec 2>&1\n".to_owned();
    let mut printed = String::new();
    for line in text.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => script += &format!("{command}\n"),
            None => printed += &format!("{line}\n"),
        }
    }
    (script, printed)
}

/// Classifies words that may differ between runs: times, numbers, users and hosts, and IDs.
fn kind(word: &str) -> &'static str {
    let word = word.trim_end_matches([',', ';']);
    let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match word {
        _ if !word.is_empty() && word.chars().all(|c| ('▁'..='█').contains(&c)) => "strip",
        _ if !word.is_empty() && word.chars().all(|c| matches!(c, '▰' | '▱')) => "bar",
        _ if word.contains("://") => "server",
        _ if word.contains('@') => "user@host",
        _ if has_shape(word, "0000-00-00") => "date",
        _ if has_shape(word, "00:00:00") => "time",
        _ if has_shape(word, "+0000") || has_shape(word, "-0000") => "time zone",
        _ if is_number && digits == word && word.len() > 2 => "fence or pid",
        _ if is_number && matches!(&word[digits.len()..], "ms" | "s" | "m" | "h") => "span",
        _ if word.len() == 8 && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) => "id",
        _ => "",
    }
}

/// Returns whether a word has the digits and the other characters of another in the same places.
fn has_shape(word: &str, other: &str) -> bool {
    let shape = |word: &str| word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect::<String>();
    shape(word) == shape(other)
}

/// Asserts that a text reads as the README has it, but for what differs between runs.
#[track_caller]
pub fn reads_alike(documented: &str, printed: &str) {
    let alike = |(a, b): (&str, &str)| a == b || (!kind(a).is_empty() && kind(a) == kind(b));
    let lines = documented.lines().count() == printed.lines().count();
    let words = documented.lines().zip(printed.lines()).all(|(documented, printed)| {
        let (documented, printed): (Vec<_>, Vec<_>) =
            (documented.split_whitespace().collect(), printed.split_whitespace().collect());
        documented.len() == printed.len() && documented.into_iter().zip(printed).all(alike)
    });
    assert!(lines && words, "the README shows\n{documented}\nand it is\n{printed}");
}

#[test]
fn its_first_command_holds_a_lock() {
    let [command, _install] = under("From source", "sh");
    let command = command.replace("cargo run --release --", "nxlock");
    assert!(command.starts_with("nxlock --server local: "), "{command}");
    let done = Nxlock::by("sh", ["-c", &command]).in_directory(workplace().path()).run().exits(0);
    assert!(done.text().ends_with("I hold the lock\n"), "{}", done.both());
}

/// A refusal that took longer than 100 ms says so, as on a busy machine.
fn without_the_wait(printed: &str) -> String {
    let line = |line: &str| line.rsplit_once(", waited ").map_or(line, |(before, _)| before).to_owned() + "\n";
    printed.lines().map(line).collect()
}

#[test]
fn two_people_deploy() {
    let [alice, bob] = under("Ten seconds of it", "console");
    let redis = Redis::start();
    let directory = workplace();
    fs::write(directory.path().join("wait"), "").unwrap();
    let (script, printed) = transcript(&alice);
    let mut deploying = shell(&redis, directory.path(), &script).start();
    deploying.line("deploying");
    let (refused, said) = transcript(&bob);
    reads_alike(&said, &without_the_wait(&at_a_terminal(&redis, directory.path(), &refused, 0)));
    assert_eq!(ran(directory.path()), "");
    fs::write(directory.path().join("go"), "").unwrap();
    reads_alike(&printed, &deploying.finish().exits(0).text());
}

#[test]
fn a_lock_taken_by_hand() {
    let [text] = under("At a terminal", "console");
    let redis = Redis::start();
    let directory = workplace();
    let (script, printed) = transcript(&text);
    // Its last command reports that the lock is free, also by its status.
    reads_alike(&printed, &at_a_terminal(&redis, directory.path(), &script, 1));
}

#[test]
fn a_cron_job_runs_on_one_host() {
    let [crontab, once_a_night, alarm, metrics] = under("cron", "crontab");
    let redis = Redis::start();
    let directory = workplace();
    let job = crontab.lines().find(|line| !line.contains("NXLOCK_SERVER=") && !line.starts_with("PATH=")).unwrap();
    let command = job.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
    for _host in 0..2 {
        shell(&redis, directory.path(), &command).run().exits(0).says_nothing();
    }
    assert_eq!(ran(directory.path()), "nightly-import nightly\n");
    // `--at-least` still keeps the lock.
    assert!(redis.pttl("lock:nightly") > 200_000);
    redis.delete("lock:nightly");
    redis.delete("{lock:nightly}:runs");
    let command = once_a_night.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
    for _host in 0..2 {
        shell(&redis, directory.path(), &command).run().exits(0).says_nothing();
    }
    assert_eq!(ran(directory.path()), "nightly-import nightly\n".repeat(2));
    // It has succeeded, and nothing is mailed.
    let command = alarm.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
    shell(&redis, directory.path(), &command).run().exits(0).prints("").says_nothing();
    let exported = metrics.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
    let exported = exported.replace("/var/lib/prometheus/node-exporter", &directory.path().display().to_string());
    shell(&redis, directory.path(), &exported).run().exits(0).prints("").says_nothing();
    let written = fs::read_to_string(directory.path().join("nxlock.prom")).unwrap();
    is_open_metrics(&written);
    assert!(written.contains("nxlock_last_success_timestamp_seconds{name=\"nightly\""), "{written}");
    redis.delete("{lock:nightly}:runs");
    let mailed = shell(&redis, directory.path(), &command).run().exits(0).says_nothing().text();
    assert!(mailed.starts_with("UNKNOWN: nightly has no recorded run"), "{mailed}");
}

#[test]
fn pipelines_deploy() {
    let redis = Redis::start();
    let directory = workplace();
    let texts: [String; 2] = under("CI", "yaml");
    for text in &texts {
        let steps = text.lines().map(|line| line.trim_start_matches([' ', '-']).trim_start_matches("run: "));
        let command = steps.filter(|step| step.contains("nxlock run ")).collect::<Vec<_>>();
        let [command] = command.as_slice() else { panic!("{command:?}") };
        shell(&redis, directory.path(), command).run().exits(0);
    }
    assert_eq!(ran(directory.path()), "deploy.sh production\ndeploy.sh production\n");
}

#[test]
fn somebody_else_is_asked_for_the_lock() {
    let [text] = under("Somebody else has it", "console");
    let redis = Redis::start();
    let directory = workplace();
    let words = ["run", "deploy", "--reason", "release 4.2", "--", "sleep", "600"];
    let alice = redis.nxlock(words).start();
    let status = || redis.nxlock(["--json", "status", "deploy"]).run().json();
    eventually("she has the lock", || status()[0]["holder"]["pid"] == alice.pid());
    let id = status()[0]["holder"]["id"].as_str().unwrap().to_owned();
    let (script, printed) = transcript(&text);
    let shown = text.split_whitespace().skip_while(|word| *word != "--ask").nth(1).unwrap();
    let script = script.replace(shown, &id);
    reads_alike(&printed, &at_a_terminal(&redis, directory.path(), &script, 0));
    alice.finish().exits(143).says(": the outage, Bob; stopping the command");
}

#[test]
fn a_stretch_of_a_script_is_guarded() {
    let [script] = under("A stretch of a shell script", "sh");
    let redis = Redis::start();
    let directory = workplace();
    // finish() also ends the keeper of the call, which has to release the lock before that.
    let mut guarded = shell(&redis, directory.path(), &script).start();
    eventually("it ends and is given back", || guarded.has_ended() && !redis.exists("lock:import"));
    guarded.finish().exits(0).says_nothing();
    assert_eq!(ran(directory.path()), "import-part-1 import\nimport-part-2 import\n");
    // While somebody else holds the lock, the script waits before its first part.
    let held = redis.nxlock(["acquire", "import", "-t", "1m"]).run().exits(0).token();
    let mut waits = shell(&redis, directory.path(), &script).start();
    waits.says("waiting for \"import\"");
    redis.nxlock(["release", "import", &held]).run().exits(0);
    eventually("it ends and is given back", || waits.has_ended() && !redis.exists("lock:import"));
    waits.finish().exits(0);
    // Without the lock, the script does nothing.
    let held = redis.nxlock(["acquire", "import", "-t", "1m"]).run().exits(0).token();
    let impatient = script.replace("acquire", "acquire -n");
    shell(&redis, directory.path(), &impatient).run().exits(75).says("is held by");
    redis.nxlock(["release", "import", &held]).run().exits(0);
    assert_eq!(ran(directory.path()).lines().count(), 4);
    // Even after SIGKILL the lock is released.
    put(directory.path(), "import-part-1", "touch started; sleep 60");
    let begun = shell(&redis, directory.path(), &script).start();
    eventually("the first part runs", || directory.path().join("started").exists());
    begun.signal(Signal::SIGKILL);
    eventually("it is given back", || !redis.exists("lock:import"));
    begun.finish().dies_of(Signal::SIGKILL);
}

#[test]
fn a_configuration_is_heard_and_checked() {
    let [file] = under("Configuration", "toml");
    let [text] = under("Configuration", "console");
    let redis = Redis::start();
    let directory = workplace();
    fs::write(directory.path().join("config.toml"), &file).unwrap();
    fs::write(directory.path().join("password"), "s3cret").unwrap();
    let call = Nxlock::new(["--config", "config.toml", "--json", "-s", "local:/tmp", "check"]);
    let settings = call.in_directory(directory.path()).run().exits(0).json();
    let listed = settings["settings"].as_array().unwrap().iter().map(|setting| setting["name"].as_str().unwrap());
    let listed: BTreeSet<_> = listed.collect();
    for key in file.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key) {
        assert!(listed.contains(key), "{key}: {settings}");
    }
    let (script, printed) = transcript(&text);
    let printed = printed.replace("redis://cache:6379", &redis.url());
    reads_alike(&printed, &at_a_terminal(&redis, directory.path(), &script, 1));
}

#[test]
fn what_it_installs_is_there() {
    let [_try, commands] = under("From source", "sh");
    let home = tempfile::tempdir().unwrap();
    let copies: String =
        commands.lines().filter(|line| !line.starts_with("cargo ")).map(|line| format!("{line}\n")).collect();
    let script = format!("set -e\n{copies}");
    Nxlock::by("sh", ["-c", &script]).env("HOME", home.path()).in_directory(Path::new(ROOT)).run().exits(0);
    for file in [
        ".cargo/share/man/man1/nxlock-run.1",
        ".local/share/bash-completion/completions/nxlock",
        ".local/share/zsh/site-functions/_nxlock",
        ".config/fish/completions/nxlock.fish",
    ] {
        assert!(home.path().join(file).is_file(), "{file}");
    }
}

/// With the tarball as `.ci/release` names its files, and without the network.
#[test]
fn its_first_line_installs_the_binary_of_a_release() {
    let [line] = under("Install", "sh");
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "set -e; name=nxlock-{}-$(uname -m)-unknown-linux-musl; mkdir -p bin $name/man; touch $name/README.md $name/man/nxlock.1
         echo 'echo it runs' > $name/nxlock; chmod 755 $name/nxlock; tar -czf $name.tar.gz $name
         curl() {{ for url; do :; done; cat \"${{url##*/}}\"; }}; sudo() {{ \"$@\"; }}
         {}; bin/nxlock; ls bin",
        env!("CARGO_PKG_VERSION"),
        line.trim_end().replace("/usr/local/bin", "bin")
    );
    Nxlock::by("sh", ["-c", &script]).in_directory(directory.path()).run().exits(0).prints("it runs\nnxlock\n");
}

#[test]
fn its_exit_statuses_are_those_of_help() {
    let readme = readme();
    let table = readme.split_once("## Exit statuses").unwrap().1.split_once("\n## ").unwrap().0;
    let first = |line: &str, after: &str| Some(line.strip_prefix(after)?.trim_start().split("  ").next()?.to_owned());
    let rows = table.lines().filter_map(|line| Some(line.strip_prefix("| ")?.split_once(" |")?.0.to_owned()));
    let documented: BTreeSet<String> = rows.filter(|row| row != "status" && row != "---").collect();
    let help = Nxlock::new(["--help"]).run().exits(0).text();
    let list = help.split_once("Exit status:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let told = list.lines().filter(|line| !line.starts_with("   ")).filter_map(|line| first(line, "  "));
    assert_eq!(documented, told.collect());
}

/// Nobody would notice a mistake in a block that no test reads.
#[test]
fn every_block_is_one_that_is_run() {
    let known = [
        // By a test of the live view.
        ("nxlock", "text"),
        ("Ten seconds of it", "console"),
        ("Install", "sh"),
        ("From source", "sh"),
        ("cron", "crontab"),
        ("CI", "yaml"),
        ("Somebody else has it", "console"),
        ("A stretch of a shell script", "sh"),
        ("At a terminal", "console"),
        ("Configuration", "toml"),
        ("Configuration", "console"),
        // The command that runs these tests.
        ("Tests", "sh"),
    ];
    for block in blocks() {
        let Block { heading, language, .. } = block;
        assert!(known.contains(&(heading.as_str(), language.as_str())), "nothing runs the {language} under {heading}");
    }
}
