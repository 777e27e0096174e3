//! `status --watch` without a screen.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::support::turns::{Turn, acquire, release};
use crate::support::{Nxlock, Redis, Running, Terminal, eventually, eventually_some};

const EVERY: &str = "--watch=100ms";

/// Waits until it has polled a few more times.
fn looks_again(redis: &Redis) {
    let before = redis.scripts_run();
    eventually("it looks again", || redis.scripts_run() >= before + 3);
}

/// Returns the documents so far.
fn documents(watch: &Running) -> Vec<Value> {
    let text = watch.stdout();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until there are `count` documents, and returns the last of them.
#[track_caller]
fn document(watch: &Running, count: usize) -> Value {
    eventually_some("another document", || documents(watch).get(count - 1).cloned())
}

#[test]
fn each_change_of_who_holds_or_waits_is_one_document_and_time_is_none() {
    let redis = Redis::start();
    let watch = redis.nxlock(["--json", "--server-timeout", "20s", "status", EVERY, "job"]).start();
    assert_eq!(document(&watch, 1)[0]["state"], "free");
    let holder = Turn::had(&redis, &["-t", "10m"]);
    let held = document(&watch, 2);
    assert_eq!((&held[0]["state"], &held[0]["holder"]["pid"]), (&"held".into(), &holder.pid().into()));
    looks_again(&redis);
    let waiter = Turn::queued(&redis, &["-t", "10m"]);
    assert_eq!(document(&watch, 3)[0]["queue"][0]["pid"], waiter.pid());
    looks_again(&redis);
    assert_eq!(documents(&watch).len(), 3, "{}", watch.stdout());
    holder.leaves();
    // One document may show the handover.
    eventually("the next has it", || {
        let last = documents(&watch).pop().unwrap();
        last[0]["state"] == "held"
            && last[0]["holder"]["pid"] == waiter.pid()
            && last[0]["queue"] == Value::Array(vec![])
    });
    assert_eq!(watch.stderr(), "");
    waiter.leaves();
}

#[test]
fn all_locks_are_shown_as_a_table_under_the_time_and_again_when_there_are_others() {
    let redis = Redis::start();
    let mut watch = redis.nxlock(["status", EVERY]).start();
    let time = watch.line("20");
    assert!(time.ends_with('Z'), "{time}");
    let token = acquire(&redis, "10m");
    watch.line("job   held   ");
    release(&redis, &token);
    eventually("three tables", || watch.stdout().matches("NAME  STATE").count() == 3);
    let text = watch.stdout();
    let tables: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(tables.iter().map(|table| table.lines().count()).collect::<Vec<_>>(), [2, 3, 2], "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn it_ends_quietly_when_nobody_reads_any_more() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let watch = redis.nxlock(["--json", "status", EVERY]).stdout_to(writer).start();
    let mut first = [0; 3];
    File::from(std::os::fd::OwnedFd::from(reader)).read_exact(&mut first).unwrap();
    assert_eq!(&first, b"[]\n");
    // Nothing changes, so no write can fail.
    watch.finish().exits(0).says_nothing();
}

#[test]
fn a_server_that_is_away_at_first_is_a_failure_and_one_that_goes_later_is_waited_for() {
    let mut redis = Redis::start();
    redis.nxlock(["status", EVERY, "-s", "unix:///no/such/socket", "--server-timeout", "100ms"]).run().exits(69);
    let call = || redis.nxlock(["--server-timeout", "300ms", "status", EVERY, "job"]);
    let mut watch = Turn::once("it shows the lock", call, |turn| turn.running.stdout().contains("job   free")).running;
    redis.kill();
    watch.says("trying again");
    redis.restart();
    let token = acquire(&redis, "10m");
    watch.line("job   held");
    // Once for each trouble: first nobody listens at the socket, and then it is not there.
    let said = watch.stderr();
    let troubles: Vec<&str> = said.lines().filter(|line| line.contains("trying again")).collect();
    assert!(troubles.windows(2).all(|two| two[0] != two[1]), "{said}");
    release(&redis, &token);
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_the_same() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    for kind in ["TERM=dumb", "env -u TERM"] {
        let script = format!("stty columns 70 rows 24; {kind} nxlock status {EVERY}");
        let mut terminal = Terminal::start(Nxlock::by("sh", ["-c", &script]).env("NXLOCK_SERVER", redis.url()));
        terminal.shows("job   held   ");
        let screen = terminal.screen();
        assert!(!screen.contains('\x1b'), "{screen:?}");
        assert!(screen.lines().all(|line| line.trim_end().chars().count() < 70), "{screen}");
        terminal.types("\x03");
        terminal.finish();
    }
    release(&redis, &token);
}

#[test]
fn it_ends_when_a_socket_has_no_reader_any_more() {
    let redis = Redis::start();
    let (mut reader, writer) = UnixStream::pair().unwrap();
    let watch = redis.nxlock(["--json", "status", EVERY]).stdout_to(OwnedFd::from(writer)).start();
    reader.read_exact(&mut [0; 3]).unwrap();
    drop(reader);
    watch.finish().exits(0).says_nothing();
}

#[test]
fn it_goes_on_though_it_could_read_what_it_writes() {
    let redis = Redis::start();
    let fifo = redis.directory().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = File::options().read(true).write(true).open(&fifo).unwrap();
    let mut watch = redis.nxlock(["--json", "status", EVERY]).stdout_to(both.try_clone().unwrap()).start();
    let token = acquire(&redis, "10m");
    let mut shown = BufReader::new(both).lines();
    assert!(shown.any(|line| line.unwrap().contains("held")), "it shows the lock");
    assert!(!watch.has_ended());
    release(&redis, &token);
}
