//! A lock that a keeper in the background holds while a process runs: `acquire --while-pid`.

/// The options, the output and the errors of `acquire --while-pid`.
mod asking;
/// A watched process, or a keeper, that does not end well.
mod ends;
/// The lock is lost, and the script is told; or the script releases it, and is not.
mod losing;
/// The keeper as other processes see it.
mod process;
/// Other users that connect to the keeper again and again.
mod strangers;
/// What the keeper writes to `--events`.
mod telling;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::turns::{Turn, is_free, is_renewed, lock_status};
use crate::support::{Authority, Five, Local, Nxlock, Redis, Running, eventually, is_alive, send};

/// A script that holds `job` through a keeper, and runs until told to end. It prints `lost` when told of a loss.
struct Script {
    running: Running,
    keeper: i32,
    go: PathBuf,
}

impl Script {
    /// Starts the script in this shell, with these options of `acquire`.
    fn by(shell: &str, authority: &impl Authority, options: &str) -> Script {
        let go = authority.directory().join(format!("go-{}", authority.directory().read_dir().unwrap().count()));
        let script = format!(
            r#"trap 'echo lost' TERM; trap 'echo lost by USR1' USR1
               eval "$(nxlock acquire job --while-pid $$ {options} --export || echo exit $?)"
               echo "has $NXLOCK_NAME $NXLOCK_FENCE"
               while ! [ -e "$GO" ]; do sleep 0.02; done
               [ ! -s "$GO" ] || . "$GO"
               echo done"#
        );
        let call = Nxlock::by(shell, ["-c", &script]).env("GO", &go);
        let mut running = authority.lead(call).start();
        running.line("has job ");
        let keeper = lock_status(authority)["holder"]["pid"].as_i64().expect("a keeper");
        Script { running, keeper: keeper.try_into().unwrap(), go }
    }

    fn holding(authority: &impl Authority, options: &str) -> Script {
        Script::by("sh", authority, options)
    }

    /// Lets the script run this, and end.
    fn goes_on_to(&self, script: &str) {
        let draft = self.go.with_extension("draft");
        fs::write(&draft, script).unwrap();
        fs::rename(draft, &self.go).unwrap();
    }

    fn signal_keeper(&self, signal: Signal) {
        send(self.keeper, signal);
    }

    #[track_caller]
    fn keeper_ends(&self) {
        eventually("the keeper ends", || !is_alive(self.keeper));
    }

    /// Asserts that the script ends by itself and was not told of a loss.
    #[track_caller]
    fn ends_untold(self) {
        let done = self.running.finish().exits(0);
        assert!(!done.text().contains("lost"), "{}", done.both());
    }

    /// Asserts that the script was told of a loss, once.
    #[track_caller]
    fn is_told(&mut self, word: &str) {
        self.running.line(word);
        self.goes_on_to("");
        eventually("it ends", || self.running.has_ended());
        assert_eq!(self.running.stdout().matches("lost").count(), 1, "{}", self.running.stdout());
    }
}

/// An `acquire` that has ended and was not dropped: that would end its keeper too.
struct Asked(Running);

impl Asked {
    fn of(call: Nxlock) -> Asked {
        let mut running = call.start();
        eventually("it ends, though its keeper does not", || running.has_ended());
        Asked(running)
    }

    /// Returns the document that `--json` prints.
    fn document(&self) -> Value {
        let text = self.0.stdout();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", self.0.stderr()))
    }

    fn keeper(&self) -> i32 {
        self.document()["keeper"].as_i64().expect("a keeper").try_into().unwrap()
    }

    fn token(&self) -> String {
        self.document()["token"].as_str().expect("a token").to_owned()
    }
}

/// A process to watch, which does nothing: an unexpected signal would end it.
struct Bystander(Running);

impl Bystander {
    fn of(authority: &impl Authority) -> Bystander {
        Bystander(authority.sh("exec sleep 600", &[]).start())
    }

    fn pid(&self) -> String {
        self.0.pid().to_string()
    }
}

/// Asserts that a keeper holds the lock until the script ends, with any kind of authority.
fn is_kept_while_it_runs(authority: &impl Authority) {
    let script = Script::holding(authority, "--ttl 6s");
    let next = Turn::waiting(authority, &[]);
    is_renewed(authority);
    assert!(!next.is_up());
    hands_over(script, next);
}

/// Ends the script, and asserts that the waiter gets the lock.
fn hands_over(script: Script, mut next: Turn) {
    script.goes_on_to("");
    next.up();
    script.keeper_ends();
    script.ends_untold();
    next.leaves();
}

#[test]
fn a_server_s_lock_is_kept_until_the_script_ends_and_goes_to_the_next() {
    is_kept_while_it_runs(&Redis::start());
}

#[test]
fn a_local_lock_is_kept_until_the_script_ends_and_goes_to_the_next() {
    is_kept_while_it_runs(&Local::start());
}

#[test]
fn a_lock_of_several_servers_is_kept_until_the_script_ends_and_goes_to_the_next() {
    is_kept_while_it_runs(&Five::start());
}

#[test]
fn any_shell_goes_on_at_once_though_the_keeper_lives() {
    let redis = Redis::start();
    for shell in ["sh", "bash", "dash"] {
        let script = Script::by(shell, &redis, "");
        assert!(is_alive(script.keeper) && !is_free(&redis));
        script.goes_on_to("nxlock release job");
        script.keeper_ends();
        script.ends_untold();
        assert!(is_free(&redis));
    }
}

#[test]
fn the_lease_is_half_a_minute_unless_told_otherwise() {
    let redis = Redis::start();
    let script = Script::holding(&redis, "");
    let left = redis.pttl("lock:job");
    assert!((20_000..=30_000).contains(&left), "{left}");
    script.goes_on_to("");
    script.keeper_ends();
    script.ends_untold();
}

/// With this lease, a waiter for the script's lock gets it long before the lease expires.
const LONG: &str = "--ttl 1h";

#[test]
fn a_keeper_that_waited_in_line_has_all_that_it_needs() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut waits = redis
        .sh(r#"eval "$(nxlock acquire job --while-pid $$ --ttl 1h --export || echo exit $?)"; echo up; read x"#, &[]);
    let (reader, until_dropped) = std::io::pipe().unwrap();
    waits = waits.stdin_from(reader);
    let mut waits = waits.start();
    waits.says("waiting for \"job\"");
    holder.leaves();
    waits.line("up");
    redis.renews_soon("lock:job");
    drop(until_dropped);
    waits.finish().within(Duration::from_secs(20));
    eventually("it is free", || is_free(&redis));
}
