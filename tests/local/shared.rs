//! `local:/path`: a directory shared by all users who may write to it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::refused_to_run;
use crate::support::turns::{Turn, acquire, release, turn};
use crate::support::{Authority, Local, User, we_are_root};

/// Creates the directory as its administrator would.
fn laid_out(local: &Local, mode: u32, group: Option<u32>) {
    fs::create_dir(local.locks()).unwrap();
    chown(local.locks(), None, group).unwrap();
    fs::set_permissions(local.locks(), Permissions::from_mode(mode)).unwrap();
}

#[test]
fn it_is_made_if_it_is_missing() {
    let local = Local::start();
    let deep = local.directory().join("a").join("b c").join("locks");
    let url = format!("local:{}", deep.display());
    local.nxlock(["-s", &url, "run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    assert!(deep.join("lock:job.lock").is_file());
    // Another spelling of the same path.
    let around = format!("{}/../../b c//locks/", url.replace("local:", "local://"));
    let token = local.nxlock(["-s", &around, "acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    local.nxlock(["-s", &url, "run", "job", "-n", "--", "true"]).run().exits(75);
    local.nxlock(["-s", &url, "release", "job", &token]).run().exits(0);
}

#[test]
fn what_is_no_whole_path_is_refused() {
    let local = Local::start();
    let refusals = [
        ("local:locks", "absolute path"),
        ("local:./locks", "absolute path"),
        ("local:~/locks", "absolute path"),
        ("local://host/locks", "another machine"),
        ("local:/tmp/a\u{7}b", "control"),
    ];
    for (url, why) in refusals {
        let call = local.nxlock(["-s", url].iter().chain(&refused_to_run(&["-n"])).copied());
        call.in_directory(&local.directory()).run().exits(78).prints("").says(why);
    }
    // A file at the end of the path, or within it.
    let file = local.directory().join("file");
    fs::write(&file, "").unwrap();
    for (path, why) in [(file.clone(), "is not a directory"), (file.join("locks"), "not a directory")] {
        let url = format!("local:{}", path.display());
        let call = local.nxlock(["-s", &url].iter().chain(&refused_to_run(&["-n"])).copied());
        call.run().exits(78).prints("").says(&path.display().to_string()).says(why).says("local:/path");
    }
    assert_eq!(fs::read_dir(local.directory()).unwrap().count(), 1, "nothing was made");
}

#[test]
fn who_may_write_in_it_may_write_its_files() {
    for (directory, file) in [(0o700, 0o1600), (0o755, 0o1600), (0o2775, 0o1660), (0o1777, 0o1666), (0o770, 0o1660)] {
        let local = Local::start();
        // Root may give it to a group that is not its own.
        let group = we_are_root().then(|| User::visiting(&local).id());
        laid_out(&local, directory, group);
        let holder = Turn::had(&local, &[]);
        let waiter = Turn::queued(&local, &[]);
        for part in ["lock", "line"] {
            let found = fs::metadata(local.file(part)).unwrap();
            assert_eq!(found.mode() & 0o7777, file, "{part} in a directory of the mode {directory:04o}");
            assert_eq!(found.gid(), group.unwrap_or(found.gid()), "{part} in a directory of the mode {directory:04o}");
        }
        holder.leaves();
        waiter.leaves();
    }
}

/// Asserts that two users exclude each other, wait in one queue and are served, whichever of them created the files.
fn exclude_each_other(local: &Local, one: &User, other: &User) {
    for (first, second) in [(one, other), (other, one)] {
        let mut holder = Turn::of(first.nxlock(local, turn(&["--ttl", "1h"])));
        holder.up();
        second
            .nxlock(local, refused_to_run(&["-n"]))
            .run()
            .exits(75)
            .prints("")
            .says(&format!("by      {}@", first.id()));
        let mut waiter = Turn::of(second.nxlock(local, turn(&[]))).once_queued(local);
        let mut last = Turn::of(first.nxlock(local, turn(&[]))).once_queued(local);
        // A release hands the lock over; then the death of another user's process frees it.
        holder.leaves();
        waiter.up();
        super::is_killed(&mut waiter.running);
        last.up();
        last.leaves();
        fs::remove_file(local.file("lock")).unwrap();
        fs::remove_file(local.file("line")).unwrap();
    }
}

/// Only root can act as other users. An ordinary user shares the directory with itself.
#[test]
fn everybody_shares_one_that_everybody_may_write_in() {
    let local = Local::start();
    laid_out(&local, 0o1777, None);
    if we_are_root() {
        let (one, other) = (User::visiting(&local), User::visiting(&local));
        exclude_each_other(&local, &one, &other);
        // What everybody may do, members of the file owner's group may do too.
        exclude_each_other(&local, &one, &other.in_group_of(&one));
        // Root can use the files that other users created.
        User::visiting(&local).nxlock(&local, ["run", "job", "--", "true"]).run().exits(0);
    }
    let token = acquire(&local, "1m");
    local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
    release(&local, &token);
}

#[test]
fn a_group_shares_one_that_its_group_may_write_in() {
    let local = Local::start();
    if !we_are_root() {
        // An ordinary user has no other user to share its group with.
        laid_out(&local, 0o2770, None);
        local.nxlock(["run", "job", "--", "true"]).run().exits(0).says_nothing();
        return;
    }
    let group = User::visiting(&local);
    let (one, other) = (User::visiting(&local).in_group_of(&group), User::visiting(&local).in_group_of(&group));
    for mode in [0o2770, 0o770] {
        laid_out(&local, mode, Some(group.id()));
        exclude_each_other(&local, &one, &other);
        User::visiting(&local).nxlock(&local, refused_to_run(&["-n"])).run().exits(77).prints("");
        fs::remove_dir_all(local.locks()).unwrap();
    }
}

/// Only root can write to a directory that does not admit it.
#[test]
fn what_root_makes_in_a_users_directory_keeps_the_user_out_of_nothing() {
    if !we_are_root() {
        return;
    }
    let local = Local::start();
    let user = User::visiting(&local);
    laid_out(&local, 0o755, None);
    chown(local.locks(), Some(user.id()), Some(user.id())).unwrap();
    let holder = Turn::had(&local, &[]);
    let waiter = Turn::of(user.nxlock(&local, turn(&[]))).once_queued(&local);
    user.nxlock(&local, refused_to_run(&["-n"])).run().exits(75).prints("");
    holder.leaves();
    waiter.leaves();
    assert_eq!(fs::metadata(local.file("lock")).unwrap().mode() & 0o7777, 0o1600);
}

#[test]
fn who_may_not_write_there_is_refused() {
    let local = Local::start();
    laid_out(&local, 0o755, None);
    let verbs = [&["run", "job", "-n", "--", "echo", "ran"][..], &["acquire", "job", "--ttl", "1m"]];
    let refused = |call: &dyn Fn(&[&str]) -> crate::support::Nxlock, verbs: &[&[&str]]| {
        for verb in verbs {
            let path = local.locks().display().to_string();
            call(verb).run().exits(77).prints("").says(&path).says("permission denied").says("who may write there");
        }
    };
    if we_are_root() {
        let user = User::visiting(&local);
        let call = |verb: &[&str]| user.nxlock(&local, verb.iter().copied());
        refused(&call, &verbs);
        assert_eq!(fs::read_dir(local.locks()).unwrap().count(), 0);
        // Nor may it read another user's record.
        let token = acquire(&local, "1m");
        refused(&call, &[verbs[0], verbs[1], &["status", "job"], &["status"], &["release", "job", &token]]);
        release(&local, &token);
    } else {
        fs::set_permissions(local.locks(), Permissions::from_mode(0o555)).unwrap();
        refused(&|verb: &[&str]| local.nxlock(verb.iter().copied()), &verbs);
        fs::set_permissions(local.locks(), Permissions::from_mode(0o755)).unwrap();
    }
}
