//! What the repository has for pipelines: the action for GitHub and the job for GitLab, each run as a runner does it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::turns::queue_of;
use crate::support::{Done, Nxlock, Redis, Running, eventually, text_of};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A job on a runner of GitHub.
struct Job<'a> {
    redis: &'a Redis,
    /// Has the files that steps write for the runner.
    directory: TempDir,
}

/// What action.yml says, as far as a runner acts on it.
struct Action {
    main: PathBuf,
    post: PathBuf,
    /// The inputs, each with its default.
    inputs: Vec<(String, String)>,
}

impl Action {
    fn read() -> Action {
        let directory = Path::new(ROOT).join(".github/actions/lock");
        let text = fs::read_to_string(directory.join("action.yml")).unwrap();
        let file = |part: &str| {
            let name = text.lines().find_map(|line| line.strip_prefix(&format!("  {part}: ")));
            directory.join(name.unwrap_or_else(|| panic!("no {part}")))
        };
        let (main, post) = (file("main"), file("post"));
        let section = text.split("\ninputs:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("inputs");
        let mut inputs: Vec<(String, String)> = Vec::new();
        for line in section.lines() {
            if let Some(name) = line.strip_prefix("  ").and_then(|line| line.strip_suffix(':')) {
                inputs.push((name.to_owned(), String::new()));
            } else if let Some(default) = line.strip_prefix("    default: ") {
                inputs.last_mut().expect("an input").1 = evaluated(default.trim_matches('\''));
            }
        }
        assert_eq!(inputs.len(), 6, "{inputs:?}");
        Action { main, post, inputs }
    }
}

/// Replaces each expression by its last word.
fn evaluated(text: &str) -> String {
    let mut parts = text.split("${{ ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts
        .filter_map(|part| part.split_once(" }}"))
        .fold(first, |text, (expression, rest)| text + expression.rsplit('.').next().unwrap_or_default() + rest)
}

/// Returns whether node is installed: `tests/run` installs it where it may.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn has_node() -> bool {
    match Command::new("node").arg("--version").stdout(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: node is not installed, and the action for GitHub is not tested");
            false
        }
        status => status.unwrap().success(),
    }
}

impl<'a> Job<'a> {
    fn of(redis: &'a Redis) -> Job<'a> {
        Job { redis, directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns what steps have written to a file of the runner, each line a name and a value.
    fn written(&self, name: &str) -> Vec<(String, String)> {
        let lines = text_of(&self.file(name));
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        lines.lines().map(|line| pair(line).unwrap_or_else(|| panic!("no pair: {line}"))).collect()
    }

    fn value(&self, file: &str, name: &str) -> String {
        let found = self.written(file).into_iter().rfind(|(written, _)| written == name);
        found.unwrap_or_else(|| panic!("no {name} in {file}")).1
    }

    /// Gives a call what the runner gives to each step.
    fn within(&self, call: Nxlock) -> Nxlock {
        let files = ["GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STATE"];
        files
            .iter()
            .for_each(|file| fs::OpenOptions::new().create(true).append(true).open(self.file(file)).map(drop).unwrap());
        let call = files.iter().fold(call, |call, file| call.env(file, self.file(file)));
        let call = call.env("NXLOCK_SERVER", self.redis.url());
        self.written("GITHUB_ENV").iter().fold(call, |call, (name, value)| call.env(name, value))
    }

    /// Gives a call the inputs, as the step of the action has them.
    fn with_inputs(&self, call: Nxlock, given: &[(&str, &str)]) -> Nxlock {
        let call = self.within(call);
        Action::read().inputs.into_iter().fold(call, |call, (name, default)| {
            let value = given.iter().find(|(given, _)| *given == name).map_or(&*default, |(_, value)| value);
            call.env(&format!("INPUT_{}", name.to_uppercase()), value)
        })
    }

    /// The first part of the action: this process is the runner.
    fn main(&self, given: &[(&str, &str)]) -> Nxlock {
        self.with_inputs(Nxlock::by("node", [Action::read().main]), given)
    }

    /// The end of the job.
    fn post(&self, given: &[(&str, &str)]) -> Done {
        let call = self.with_inputs(Nxlock::by("node", [Action::read().post]), given);
        let state = self.written("GITHUB_STATE");
        state.iter().fold(call, |call, (name, value)| call.env(&format!("STATE_{name}"), value)).run()
    }
}

fn waits(redis: &Redis, job: &mut Running) {
    eventually("it is in the queue", || {
        job.has_not_failed();
        queue_of(redis, "production").len() == 1
    });
}

const PRODUCTION: &[(&str, &str)] = &[("name", "production")];

#[test]
fn a_job_of_github_holds_its_lock_until_it_ends() {
    if !has_node() {
        return;
    }
    let redis = Redis::start();
    let job = Job::of(&redis);
    let given = [("name", "production"), ("options", "--as\nrelease 17\n"), ("ttl", "20s")];
    let taken = job.main(&given).run().exits(0);
    let token = redis.value("lock:production").unwrap();
    // Hidden in the log before it may occur there.
    assert!(taken.text().starts_with(&format!("::add-mask::{token}\n")), "{}", taken.both());
    assert_eq!(taken.both().matches(&token).count(), 1);
    let status = || redis.nxlock(["--json", "status", "production"]).run().json()[0].clone();
    let held = status();
    assert_eq!((&held["state"], &held["holder"]["as"]), (&"held".into(), &"release 17".into()), "{held}");
    assert_eq!(held["holder"]["reason"], "server_url/repository/actions/runs/run_id");
    assert_eq!(job.value("GITHUB_OUTPUT", "fence"), held["fence"].to_string());
    // A step that asks again would wait for its own job.
    job.within(Nxlock::new(["run", "production", "--", "true"])).run().exits(75).says("already held");
    let step = "echo \"$NXLOCK_NAME $NXLOCK_FENCE\"; nxlock renew \"$NXLOCK_NAME\" --ttl 1m";
    let step = job.within(Nxlock::by("sh", ["-c", step])).run().exits(0);
    assert!(step.text().starts_with(&format!("production {}\n", held["fence"])), "{}", step.both());
    job.post(&given).exits(0).says_nothing();
    assert_eq!(status()["state"], "free");
}

#[test]
fn jobs_of_github_take_turns_and_one_that_is_cancelled_gives_back_what_it_has() {
    if !has_node() {
        return;
    }
    let redis = Redis::start();
    let (first, second, third) = (Job::of(&redis), Job::of(&redis), Job::of(&redis));
    first.main(PRODUCTION).run().exits(0);
    // Cancelled while it waits: the runner signals node alone, and then runs what is to run always.
    let mut waiting = second.main(PRODUCTION).start();
    waits(&redis, &mut waiting);
    // The log of the job tells.
    waiting.says("waiting for \"production\": held by ");
    waiting.signal(Signal::SIGINT);
    waiting.finish().exits(1);
    assert!(queue_of(&redis, "production").is_empty());
    second.post(PRODUCTION).exits(0).prints("");
    assert!(redis.exists("lock:production"));
    // Cancelled in a later step.
    let mut waiting = third.main(PRODUCTION).start();
    waits(&redis, &mut waiting);
    first.post(PRODUCTION).exits(0);
    waiting.finish().exits(0);
    third.post(PRODUCTION).exits(0);
    assert!(!redis.exists("lock:production"));
}

#[test]
fn a_job_of_github_that_is_cancelled_as_nxlock_has_just_started_leaves_the_queue() {
    if !has_node() {
        return;
    }
    let redis = Redis::start();
    let (first, second) = (Job::of(&redis), Job::of(&redis));
    first.main(PRODUCTION).run().exits(0);
    // The process goes on after it has started nxlock only when there is this file.
    let (slow, go) = (second.file("slow.js"), second.file("go"));
    let script =
        "const children = require('node:child_process'), { existsSync } = require('node:fs'), { spawn } = children;
        const pause = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
        children.spawn = (...call) => {
            const child = spawn(...call);
            while (!existsSync(process.env.GO)) pause();
            return child;
        };";
    fs::write(&slow, script).unwrap();
    let call = second.main(PRODUCTION).env("GO", &go).env("NODE_OPTIONS", format!("--require {}", slow.display()));
    let mut waiting = call.start();
    waits(&redis, &mut waiting);
    waiting.signal(Signal::SIGINT);
    fs::write(&go, "").unwrap();
    waiting.finish().exits(1);
    assert!(queue_of(&redis, "production").is_empty());
    first.post(PRODUCTION).exits(0);
}

#[test]
fn a_job_of_github_that_is_refused_says_by_whom_and_gives_no_orders() {
    if !has_node() {
        return;
    }
    let redis = Redis::start();
    let job = Job::of(&redis);
    let reason = "100% ::error::x\n::stop-commands::y";
    redis.nxlock(["acquire", "production", "--ttl", "1h", "--as", "Ann", "--reason", reason]).run().exits(0);
    let refused = job.main(&[("name", "production"), ("wait", "0s")]).run().exits(75);
    let failed = |status: i32| {
        format!(
            "::error title=nxlock::\"production\" was not granted (status {status}): the log of this step says why\n"
        )
    };
    let refused = refused.prints(&failed(75)).says("held by somebody else").says("Ann").says("100% ::error::x");
    assert!(refused.stderr.lines().all(|line| !line.trim_start().starts_with("::")), "{}", refused.stderr);
    assert!(job.written("GITHUB_STATE").is_empty() && job.written("GITHUB_ENV").is_empty());
    job.post(PRODUCTION).exits(0).prints("");
    let nowhere = [("name", "production"), ("server", "redis://127.0.0.1:1")];
    job.main(&nowhere).run().exits(69).prints(&failed(69)).says("cannot acquire \"production\"");
    redis.delete("lock:production");
}

#[test]
fn a_job_of_github_whose_lock_was_lost_fails_at_its_end() {
    if !has_node() {
        return;
    }
    let redis = Redis::start();
    let job = Job::of(&redis);
    job.main(PRODUCTION).run().exits(0);
    redis.delete("lock:production");
    let ended = job.post(PRODUCTION).exits(76);
    assert_eq!(ended.text(), "::error title=nxlock::\"production\" was lost before the end of the job\n");
}

#[test]
fn a_runner_of_github_that_dies_gives_its_lock_back() {
    if !has_node() {
        return;
    }
    let redis = Redis::start();
    let job = Job::of(&redis);
    let script = format!("node '{}' && echo up && exec sleep 600", Action::read().main.display());
    let mut runner = job.with_inputs(Nxlock::by("sh", ["-c", &script]), PRODUCTION).start();
    runner.line("up");
    assert!(redis.exists("lock:production"));
    runner.signal(Signal::SIGKILL);
    eventually("it is free", || !redis.exists("lock:production"));
    runner.finish().dies_of(Signal::SIGKILL);
}

/// Returns a part of the job for GitLab, as its runner passes it to a shell.
fn gitlab(part: &str) -> String {
    let text = fs::read_to_string(Path::new(ROOT).join(".ci/gitlab.yml")).unwrap();
    let lines = text.lines().skip_while(|line| line.trim() != format!("{part}:")).skip(2);
    lines.map_while(|line| line.strip_prefix("      ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_job_of_gitlab_holds_its_lock_until_it_ends_or_is_cancelled() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let shell = |script: &str| {
        let set = "set -eo pipefail\nexport LOCK=production LOCK_WAIT=30m CI_JOB_URL=job CI_PROJECT_DIR=./project\n";
        let call = Nxlock::by("bash", ["-c", &format!("{set}{script}")]).in_directory(directory.path());
        call.env("NXLOCK_SERVER", redis.url())
    };
    let begin = gitlab("before_script");
    let end = gitlab("after_script");
    let job = |script: &str| shell(&format!("{begin}{script}"));
    let held = job("nxlock --json status production; exit 3").run().exits(3).json();
    assert_eq!((&held[0]["state"], &held[0]["holder"]["reason"]), (&"held".into(), &"job".into()));
    shell(&end).run();
    eventually("it is free", || !redis.exists("lock:production"));
    // Cancelled: everything is killed but what is to run always, in another shell.
    let mut cancelled = job("echo up; exec sleep 600").start();
    cancelled.line("up");
    let mut next = job("echo granted").start();
    waits(&redis, &mut next);
    cancelled.signal(Signal::SIGKILL);
    cancelled.finish();
    next.line("granted");
    next.finish().exits(0);
    shell(&end).run();
    // One that is refused has nothing to give back.
    redis.nxlock(["acquire", "production", "--ttl", "1h"]).run().exits(0);
    shell(&begin.replace("--wait \"$LOCK_WAIT\"", "-n")).run().exits(75);
    shell(&end).run().exits(0).says_nothing();
    assert!(redis.exists("lock:production"));
    redis.delete("lock:production");
}
