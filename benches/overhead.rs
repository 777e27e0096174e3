//! The cost of running a command under an uncontended lock: whole processes, from the spawn to the wait, compared with
//! flock(1) and with the usual redis-cli script.
//!
//! `cargo bench -- overhead` (with `--quick` for fewer rounds). "over true" is how much longer a call takes than the
//! command alone, spawned in the same round.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::{
    Contestant, Figures, Server, Table, circumstances, command, measured, now, pause, quick, rounds, until,
};

/// The most careful script with redis-cli: a token of its own, an expiry, compare-and-delete.
const SCRIPT: &str = r#"
read -r token < /proc/sys/kernel/random/uuid
[ "$(redis-cli -p "$PORT" SET "$NAME" "$token" NX PX 30000)" = OK ] || exit 75
/bin/true
redis-cli -p "$PORT" EVAL 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0' 1 "$NAME" "$token" > /dev/null
"#;

const TRUE: &str = "/bin/true";

pub fn measure() {
    let server = Server::start();
    println!("overhead: {}", circumstances(&server));
    times(&server, if quick() { 60 } else { 500 });
    traffic(&server, 20);
    memory(&server);
}

fn silent(program: impl AsRef<OsStr>, args: &[&str]) -> Command {
    let mut command = command(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Calls nxlock as its manual does: the server is in the environment.
fn nxlock(server: &str, args: &[&str]) -> Command {
    let mut command = silent(measured(), args);
    command.env("NXLOCK_SERVER", server);
    command
}

fn run(server: &str) -> Command {
    nxlock(server, &["run", "bench", "--", TRUE])
}

fn succeeds(command: &mut Command) {
    let status = command.status().expect("it starts");
    assert!(status.success(), "{command:?}: {status}");
}

/// Acquires and releases in two processes, as a shell script would.
fn acquire_and_release(server: &str) {
    let mut acquire = nxlock(server, &["acquire", "bench", "--ttl", "1m"]);
    let granted = acquire.stdout(Stdio::piped()).output().expect("it starts");
    assert!(granted.status.success(), "{granted:?}");
    let token = String::from_utf8(granted.stdout).expect("a token is ASCII");
    succeeds(nxlock(server, &["release", "bench"]).env("NXLOCK_TOKEN", token.trim()));
}

fn times(server: &Server, count: usize) {
    let (tcp, unix, local, port) = (server.tcp(), server.unix(), server.local(), server.port().to_string());
    let file = server.directory().join("flock");
    fs::write(&file, "").expect("a file to lock");
    let file = file.to_str().expect("a path of ours is UTF-8");
    let mut bare = silent(TRUE, &[]);
    let mut flock = silent("flock", &[file, TRUE]);
    let mut version = silent(measured(), &["--version"]);
    let (mut run_tcp, mut run_unix, mut run_local) = (run(&tcp), run(&unix), run(&local));
    let mut script = silent("sh", &["-c", SCRIPT]);
    script.env("PORT", &port).env("NAME", "bench:script");

    let mut contestants: Vec<(&str, Contestant<'_>)> = vec![
        ("true", Box::new(|| succeeds(&mut bare))),
        ("flock FILE true", Box::new(|| succeeds(&mut flock))),
        ("nxlock --version", Box::new(|| succeeds(&mut version))),
        ("nxlock run, TCP", Box::new(|| succeeds(&mut run_tcp))),
        ("nxlock run, Unix socket", Box::new(|| succeeds(&mut run_unix))),
        ("nxlock run, local", Box::new(|| succeeds(&mut run_local))),
        ("nxlock acquire, then release, TCP", Box::new(|| acquire_and_release(&tcp))),
        ("redis-cli script, TCP", Box::new(|| succeeds(&mut script))),
    ];
    let names: Vec<&str> = contestants.iter().map(|contestant| contestant.0).collect();
    let taken: Vec<RefCell<Figures>> = names.iter().map(|_| RefCell::default()).collect();
    let timed = contestants.iter_mut().zip(&taken).map(|((_, call), taken)| {
        Box::new(move || {
            let began = now();
            call();
            taken.borrow_mut().add(now() - began);
        }) as Contestant<'_>
    });
    rounds(count, &mut timed.collect::<Vec<_>>());

    let figures: Vec<Figures> = taken.into_iter().map(RefCell::into_inner).collect();
    let over = |which: usize, percent| figures[which].percentile(percent) - figures[0].percentile(percent);
    let heading = ["ms", "p10", "p50", "p90", "over true p10", "p50", "to flock p10", "p50", "to script p10", "p50"];
    let mut table = Table::new(&heading);
    for (which, name) in names.iter().enumerate() {
        let mut cells: Vec<String> = [10, 50, 90].map(|p| format!("{:.2}", figures[which].percentile(p))).into();
        cells.extend([10, 50].map(|p| format!("{:.2}", over(which, p))));
        for other in [1, names.len() - 1] {
            cells.extend([10, 50].map(|p| format!("{:.2}", over(which, p) / over(other, p))));
        }
        table.row(name, &cells);
    }
    println!("\nuncontended, {count} rounds; the ratios are of what is over true\n{}", table.text());
}

fn traffic(server: &Server, count: u64) {
    server.forget_stats();
    (0..count).for_each(|_| succeeds(&mut run(&server.tcp())));
    let stats = server.stats();
    let part = |number: u64| {
        if number.is_multiple_of(count) { (number / count).to_string() } else { format!("{number}/{count}") }
    };
    println!("at the server, for one run: {} connection", part(stats.connections));
    println!("  {} EVAL, and within them:", part(stats.scripts()));
    let within = stats.calls.iter().filter(|(name, _)| !name.starts_with("eval"));
    let within: Vec<String> = within.map(|(name, &calls)| format!("{} {name}", part(calls))).collect();
    println!("  {}", within.join(", "));
}

/// Measures nxlock and its guard, without the command: at once, and after a few renewals.
fn memory(server: &Server) {
    let mut table = Table::new(&["KiB", "VmRSS", "RssAnon", "VmHWM"]);
    for (name, ttl, after) in [("holding", "30s", 0), ("holding, having renewed", "300ms", 1000)] {
        let mut holder = nxlock(&server.tcp(), &["run", "--ttl", ttl, "held", "--", "cat"]);
        let mut holder = holder.stdin(Stdio::piped()).spawn().expect("it starts");
        let comm = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let child = |pid: &str| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            children.split_whitespace().next().map(str::to_owned)
        };
        let nxlock = holder.id().to_string();
        let mut guard = String::new();
        until("the command runs", || {
            guard = child(&nxlock).unwrap_or_default();
            child(&guard).is_some_and(|command| comm(&command).trim() == "cat")
        });
        pause(Duration::from_millis(after));
        for (whose, pid) in [("", &nxlock), (": its guard", &guard)] {
            let mut status = String::new();
            let opened = fs::File::open(format!("/proc/{pid}/status"));
            opened.and_then(|mut file| file.read_to_string(&mut status)).expect("it runs");
            let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let cells = ["VmRSS", "RssAnon", "VmHWM"].map(|name| {
                let line = line(name).unwrap_or_default();
                line.trim().trim_end_matches(" kB").to_owned()
            });
            table.row(&format!("{name}{whose}"), &cells);
        }
        drop(holder.stdin.take());
        assert!(holder.wait().expect("it is our child").success());
    }
    println!("\nresident memory\n{}", table.text());
}
