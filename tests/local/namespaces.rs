//! Processes that see less of this machine than others: the kernel tells all of them which processes are alive.
//!
//! Root may create any namespace. Other users may create those below a user namespace of their own, where the system
//! permits it; elsewhere only what needs no namespace is tested.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::{is_killed, is_renewed_when_called, nxlock_of, pid_is_killed, refused_to_run};
use crate::support::turns::{Turn, acquire, lease_left, queue_is, release, turn};
use crate::support::{Authority, Local, Nxlock, User, is_alive, may_unshare, program, we_are_root};

/// The command that starts a call in a namespace of its own.
type Space = Vec<&'static str>;

/// Returns `None` where these namespaces are not permitted.
fn space(options: &[&'static str]) -> Option<Space> {
    // Root needs no user namespace, and would lose privileges in one.
    let as_user = if we_are_root() { &[][..] } else { &["--user", "--map-current-user"] };
    let options = [as_user, options].concat();
    may_unshare(&options).then(|| [&["unshare"], &options[..], &["--"]].concat())
}

fn pids() -> Option<Space> {
    space(&["--pid", "--fork", "--mount-proc"])
}

/// With a boot clock that is a quarter of an hour ahead.
fn times() -> Option<Space> {
    space(&["--time", "--boottime", "1000", "--fork"])
}

fn within(space: &Space, call: Nxlock) -> Nxlock {
    call.under(space.iter().copied())
}

/// Acquires the lock within a namespace. Returns the pid of its nxlock as well.
fn had_within(local: &Local, space: &Space, options: &[&str]) -> (Turn, i32) {
    let mut turn = Turn::of(within(space, local.nxlock(turn(options))));
    turn.up();
    let pid = nxlock_of(&turn.running);
    (turn, pid)
}

/// First the holder is within the namespace, then the caller.
fn living_holders_are_not_taken_for_dead(space: &Space) {
    let local = Local::start();
    let is_renewed = || is_renewed_when_called(&local.file("lock"));
    let (holder, _) = had_within(&local, space, &["--ttl", "12s"]);
    is_renewed();
    local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
    let waiter = Turn::queued(&local, &["--ttl", "12s"]);
    is_renewed();
    queue_is(&local, &[waiter.pid()]);
    assert!(!waiter.is_up());
    holder.leaves();
    // Now the reverse.
    let mut holder = waiter;
    holder.up();
    is_renewed();
    within(space, local.nxlock(refused_to_run(&["-n"]))).run().exits(75).prints("");
    let mut waiter = Turn::of(within(space, local.nxlock(turn(&[]))));
    waiter.running.says("waiting for");
    is_renewed();
    assert!(!waiter.is_up());
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

/// First the holder within the namespace is killed, then the one outside.
fn killed_holders_are_known_to_be_dead(space: &Space) {
    let local = Local::start();
    let (_holder, pid) = had_within(&local, space, &["--ttl", "1h"]);
    let mut waiter = Turn::queued(&local, &["--ttl", "1h"]);
    pid_is_killed(pid);
    waiter.up();
    let mut within = Turn::of(within(space, local.nxlock(turn(&[]))));
    within.running.says("waiting for");
    is_killed(&mut waiter.running);
    within.up();
    within.leaves();
}

#[test]
fn a_holder_of_another_pid_namespace_is_seen_like_any_other() {
    let Some(space) = pids() else { return };
    living_holders_are_not_taken_for_dead(&space);
    killed_holders_are_known_to_be_dead(&space);
}

#[test]
fn a_pid_namespace_with_the_proc_of_another_makes_no_difference() {
    let Some(space) = space(&["--pid", "--fork"]) else { return };
    living_holders_are_not_taken_for_dead(&space);
    killed_holders_are_known_to_be_dead(&space);
}

#[test]
fn those_of_one_pid_namespace_see_each_other() {
    let Some(space) = pids() else { return };
    let local = Local::start();
    let script = r#"nxlock run job -t 1h -- sh -c 'p=${NXLOCK_TOKEN#*:*:*:}; kill -9 ${p%%:*}; exec sleep 600' 2> /dev/null
        exec nxlock run job -w 15s -- echo ran"#;
    within(&space, local.sh(script, &[])).run().exits(0).prints("ran\n");
}

#[test]
fn those_whose_clocks_are_apart_agree_on_who_holds_it() {
    let Some(space) = times() else { return };
    living_holders_are_not_taken_for_dead(&space);
    killed_holders_are_known_to_be_dead(&space);
}

#[test]
fn those_whose_clocks_are_apart_agree_on_when_a_lease_ends() {
    let Some(space) = times() else { return };
    let local = Local::start();
    let whole = Duration::from_secs(3500)..=Duration::from_secs(3600);
    let token = within(&space, local.nxlock(["acquire", "job", "--ttl", "1h"])).run().exits(0).token();
    assert!(whole.contains(&lease_left(&local)), "{:?}", lease_left(&local));
    local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
    let mut waiter = Turn::queued(&local, &[]);
    // A renewal from outside sets the expiry for both.
    local.nxlock(["renew", "job", &token, "--ttl", "300ms"]).run().exits(0);
    waiter.up();
    waiter.leaves();

    let token = acquire(&local, "1h");
    let seen = within(&space, local.nxlock(["--json", "status", "job"])).run().exits(0).json();
    let left = Duration::from_millis(seen[0]["ttl_ms"].as_u64().unwrap());
    assert!(whole.contains(&left), "{left:?}");
    let mut waiter = Turn::of(within(&space, local.nxlock(turn(&[]))));
    waiter.running.says("waiting for");
    within(&space, local.nxlock(["renew", "job", &token, "--ttl", "300ms"])).run().exits(0);
    waiter.up();
    waiter.leaves();
}

#[test]
fn the_other_side_of_a_user_namespace_makes_no_difference() {
    let options = ["--user", "--map-root-user"];
    if !may_unshare(&options) {
        return;
    }
    let local = Local::start();
    fs::create_dir(local.locks()).unwrap();
    fs::set_permissions(local.locks(), PermissionsExt::from_mode(0o1777)).unwrap();
    let user = we_are_root().then(|| User::visiting(&local));
    let as_user = |args: &[&str]| match &user {
        Some(user) => user.nxlock(&local, args.iter().copied()),
        None => local.nxlock(args.iter().copied()),
    };
    let apart = |args: &[&str]| {
        let words = ["unshare"].iter().chain(&options).copied();
        match &user {
            // First the user is changed, then the namespace.
            Some(user) => {
                let words =
                    words.skip(1).chain(["sh", "-c", r#"exec "$NXLOCK" "$@""#, "sh"]).chain(args.iter().copied());
                user.by(&local, "unshare", words)
            }
            None => local.nxlock(args.iter().copied()).under(words),
        }
    };
    let leaves = "( setsid sh -c 'echo left $$; exec sleep 600' & ); exec sleep 600";
    let run = ["run", "job", "--ttl", "1h", "-c", leaves];
    for holder_is_apart in [false, true] {
        let mut holder = if holder_is_apart { apart(&run) } else { as_user(&run) }.start();
        let next = |args: &[&str]| if holder_is_apart { as_user(args) } else { apart(args) };
        let left: i32 = holder.line("left ").parse().unwrap();
        next(&refused_to_run(&["-n"])).run().exits(75).prints("");
        is_killed(&mut holder);
        next(&refused_to_run(&["-w", "15s"])).run().exits(0).prints("ran\n");
        assert!(!is_alive(left));
    }
}

#[test]
fn only_without_proc_no_lock_can_be_kept() {
    let options = if we_are_root() { &["--mount"][..] } else { &["--map-root-user", "--pid", "--fork", "--mount"] };
    if !may_unshare(options) {
        return;
    }
    let local = Local::start();
    let subset = r#"mount -t proc -o subset=pid proc /proc && exec "$@""#;
    let nothing = r#"mount -t tmpfs none /proc && exec "$@""#;
    let within = |mount: &str, words: &[&str]| {
        let words = [&["unshare"], options, &["sh", "-c", mount, "sh", program()], words].concat();
        local.lead(Nxlock::by(words[0], words[1..].iter().copied())).run()
    };
    for words in [&["run", "job", "--", "echo", "ran"][..], &["acquire", "job", "--ttl", "1m"], &["status", "job"]] {
        let done = within(nothing, words).exits(78).prints("");
        done.says("/proc").says("mount -t proc proc /proc").never_says("local:/path");
    }
    // As with systemd's ProcSubset=pid: the boot id cannot be read, and no claim is taken for one of another boot.
    within(subset, &["run", "job", "--", "echo", "ran"]).exits(0).prints("ran\n");
    let token = acquire(&local, "1h");
    within(subset, &["run", "job", "-n", "--", "echo", "ran"]).exits(75).prints("");
    release(&local, &token);
    let token = within(subset, &["acquire", "job", "--ttl", "1h"]).exits(0).token();
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    release(&local, &token);
    within(subset, &["check"]).exits(0);
}

/// Hiding processes requires root, and two users to hide them from each other.
#[test]
fn where_processes_are_hidden_a_killed_holder_is_known_to_be_dead() {
    if !we_are_root() || !may_unshare(&["--mount"]) {
        return;
    }
    let hide = r#"mount -t proc -o hidepid=2 proc /proc && exec "$@""#;
    let local = Local::start();
    fs::create_dir(local.locks()).unwrap();
    fs::set_permissions(local.locks(), PermissionsExt::from_mode(0o1777)).unwrap();
    let (one, other) = (User::visiting(&local), User::visiting(&local));
    let blind = |args: Vec<&str>| other.nxlock(&local, args).under(["unshare", "--mount", "sh", "-c", hide, "sh"]);
    let mut holder = Turn::of(one.nxlock(&local, turn(&["--ttl", "1h"])));
    holder.up();
    blind(refused_to_run(&["-n"])).run().exits(75).prints("");
    let mut waiter = Turn::of(blind(turn(&[])));
    waiter.running.says("waiting for");
    is_killed(&mut holder.running);
    waiter.up();
    waiter.leaves();
}
