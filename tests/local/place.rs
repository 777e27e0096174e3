//! `local:`: one directory for each user, closed to all other users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use nix::unistd::geteuid;

use crate::support::{Local, Nxlock, User, we_are_root};

/// A lock in the directory of the user who runs the tests, which may contain other locks: only the files of this lock
/// are touched.
struct Own {
    name: String,
    place: PathBuf,
}

impl Own {
    fn lock(which: &str) -> Own {
        let name = format!("a test's own {which} {}", std::process::id());
        Own { name, place: format!("/tmp/nxlock-{}", geteuid()).into() }
    }

    fn file(&self, part: &str) -> PathBuf {
        self.place.join(format!("lock:{}.{part}", self.name))
    }

    fn nxlock(args: &[&str]) -> Nxlock {
        Nxlock::new(["--server", "local:"].iter().chain(args).copied())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for part in ["lock", "line"] {
            let _ = fs::remove_file(self.file(part));
        }
    }
}

fn mode(path: &PathBuf) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn it_is_the_same_whatever_the_environment_says() {
    let own = Own::lock("place");
    let elsewhere = tempfile::tempdir().unwrap();
    let token = Own::nxlock(&["acquire", &own.name, "--ttl", "10m"]).run().exits(0).token();
    assert!(own.file("lock").is_file(), "it is in {}", own.place.display());
    assert_eq!((mode(&own.place), fs::metadata(&own.place).unwrap().uid()), (0o700, geteuid().as_raw()));
    assert_eq!(mode(&own.file("lock")), 0o1600);
    let variables = ["HOME", "TMPDIR", "TMP", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"];
    for value in [elsewhere.path().to_str().unwrap(), "", "/nowhere", "relative"] {
        let call = Own::nxlock(&["run", &own.name, "-n", "--", "echo", "ran"]).in_directory(elsewhere.path());
        variables.iter().fold(call, |call, name| call.env(name, value)).run().exits(75).prints("");
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    Own::nxlock(&["release", &own.name, &token]).env("HOME", elsewhere.path()).run().exits(0);
}

#[test]
fn whatever_the_umask_a_first_use_leaves_it_usable() {
    let script = r#"umask 0777; "$NXLOCK" run job -- echo ran && exec "$NXLOCK" run job -- echo again"#;
    let local = Local::start();
    if we_are_root() {
        // Only another user is certain to have no such directory yet.
        let user = User::visiting(&local);
        let call = || user.by(&local, "sh", ["-c", script]).env("NXLOCK_SERVER", "local:");
        call().run().exits(0).prints("ran\nagain\n");
        assert_eq!((mode(&user.place()), fs::metadata(user.place()).unwrap().uid()), (0o700, user.id()));
        assert_eq!(mode(&user.place().join("lock:job.lock")), 0o1600);
        call().run().exits(0);
    }
    fs::create_dir(local.locks()).unwrap();
    let call = Nxlock::by("sh", ["-c", script]).env("NXLOCK", crate::support::program());
    call.env("NXLOCK_SERVER", format!("local:{}", local.locks().display())).run().exits(0).prints("ran\nagain\n");
    assert_eq!(mode(&local.file("lock")), 0o1600);
}

/// Only root can prepare such a directory: an ordinary user has just one, which may be in use.
#[test]
fn it_is_refused_if_it_is_somebody_elses_or_a_link_or_open_to_others() {
    if !we_are_root() {
        return;
    }
    let local = Local::start();
    let user = User::visiting(&local);
    let place = user.place();
    let run = || user.nxlock(&local, ["-s", "local:", "run", "job", "-n", "--", "echo", "ran"]).run();
    let own = |mode| {
        fs::create_dir(&place).unwrap();
        std::os::unix::fs::chown(&place, Some(user.id()), Some(user.id())).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
    };
    let refused = |why: &str| {
        let named = place.display().to_string();
        run().exits(78).prints("").says(&named).says(why).says("; ");
        let verbs = [&["status"][..], &["status", "job"], &["acquire", "job", "--ttl", "1m"]];
        for verb in verbs {
            user.nxlock(&local, ["-s", "local:"].iter().chain(verb).copied()).run().exits(78).says(&named).says(why);
        }
    };

    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o700)).unwrap();
    refused("belongs to user 0");
    fs::set_permissions(&place, Permissions::from_mode(0o1777)).unwrap();
    refused("belongs to user 0");
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    fs::remove_dir(&place).unwrap();

    // A link to a directory that would be accepted.
    own(0o700);
    let behind = local.locks();
    fs::rename(&place, &behind).or_else(|_| fs::create_dir(&behind)).unwrap();
    std::os::unix::fs::chown(&behind, Some(user.id()), None).unwrap();
    let _ = fs::remove_dir(&place);
    symlink(&behind, &place).unwrap();
    refused("is not a directory");
    assert_eq!(fs::read_dir(&behind).unwrap().count(), 0);
    fs::remove_file(&place).unwrap();

    fs::write(&place, "").unwrap();
    refused("is not a directory");
    fs::remove_file(&place).unwrap();

    for mode in [0o750, 0o705, 0o711, 0o770, 0o1777, 0o2710] {
        own(mode);
        refused(&format!("mode {mode:04o}"));
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::remove_dir(&place).unwrap();
    }

    own(0o700);
    // A record that another user created there.
    let record = place.join("lock:job.lock");
    user.nxlock(&local, ["-s", "local:", "run", "job", "--", "true"]).run().exits(0);
    std::os::unix::fs::chown(&record, Some(0), Some(0)).unwrap();
    fs::set_permissions(&record, Permissions::from_mode(0o666)).unwrap();
    run().exits(78).prints("").says("lock:job.lock belongs to user 0");
    fs::remove_file(&record).unwrap();
    run().exits(0).prints("ran\n");
}
