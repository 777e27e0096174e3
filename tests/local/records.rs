//! Files that nxlock would not have written, and other file types: nxlock reports an error and leaves them untouched.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::record::{header_at, newer, place, with};
use crate::support::turns::{Turn, acquire, holder_id, release};
use crate::support::{Authority, Local};

/// A lock held by a token.
struct Held {
    local: Local,
    token: String,
    id: String,
}

impl Held {
    fn start() -> Held {
        let local = Local::start();
        let token = acquire(&local, "1h");
        let id = holder_id(&local);
        Held { local, token, id }
    }

    /// Asserts that every command for this lock fails, names `file`, and says `why` and `remedy`.
    #[track_caller]
    fn nobody_can_tell(&self, file: &Path, why: &str, remedy: &str) {
        let verbs = [
            &["run", "job", "-n", "--", "echo", "ran"][..],
            &["run", "job", "--", "echo", "ran"],
            &["run", "job", "--no-queue", "--", "echo", "ran"],
            &["acquire", "job", "--ttl", "1m"],
            &["renew", "job", &self.token, "--ttl", "1m"],
            &["release", "job", &self.token],
            &["release", "job", "--break", &self.id],
            &["status", "job"],
        ];
        let file = file.display().to_string();
        for verb in verbs {
            let done = self.local.nxlock(verb.iter().copied()).run().exits(78).never_says("ran\n");
            done.says(&file).says(why).says(remedy).never_says("is held by");
        }
    }

    #[track_caller]
    fn goes_back(self) {
        release(&self.local, &self.token);
    }
}

/// Puts what is no file in the place of one, and asserts each time that it is `refused`, and left as it is.
fn puts_in_its_place(held: &Held, path: &Path, refused: impl Fn(&Held, &str)) {
    let aside = held.local.directory().join("aside");
    let kept = fs::read(path).ok();
    if kept.is_some() {
        fs::rename(path, &aside).unwrap();
    }
    let refused = |why: &str| {
        let before = fs::symlink_metadata(path).unwrap();
        refused(held, why);
        let after = fs::symlink_metadata(path).unwrap();
        let same = (before.ino(), before.file_type(), before.mtime(), before.mtime_nsec());
        assert_eq!(same, (after.ino(), after.file_type(), after.mtime(), after.mtime_nsec()));
    };

    // To a valid record, to another file, to nothing.
    let elsewhere = held.local.directory().join("elsewhere");
    fs::write(&elsewhere, "not to be touched").unwrap();
    for behind in [aside.clone(), elsewhere.clone(), held.local.directory().join("nothing")] {
        symlink(&behind, path).unwrap();
        refused("symbolic link");
        fs::remove_file(path).unwrap();
    }
    assert_eq!(fs::read(&aside).ok(), kept);
    assert_eq!(fs::read(&elsewhere).unwrap(), b"not to be touched");
    assert!(!held.local.directory().join("nothing").exists());

    fs::create_dir(path).unwrap();
    refused("is a directory");
    fs::remove_dir(path).unwrap();

    mkfifo(path, Mode::from_bits_truncate(0o666)).unwrap();
    refused("is not a file");
    assert!(fs::symlink_metadata(path).unwrap().file_type().is_fifo());
    fs::remove_file(path).unwrap();

    let listener = UnixListener::bind(path).unwrap();
    refused("");
    drop(listener);
    fs::remove_file(path).unwrap();

    if kept.is_some() {
        fs::rename(&aside, path).unwrap();
    }
}

#[test]
fn what_is_no_file_is_no_record() {
    let held = Held::start();
    let path = held.local.file("lock");
    puts_in_its_place(&held, &path, |held, why| held.nobody_can_tell(&path, why, "remove it"));
    held.goes_back();
}

#[test]
fn what_is_no_file_is_no_line() {
    let held = Held::start();
    let path = held.local.file("line");
    puts_in_its_place(&held, &path, |held, why| {
        let done = held.local.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(78).never_says("ran\n");
        done.says(&path.display().to_string()).says(why).says("remove it");
        // It is in the way of those alone who need it.
        held.local.nxlock(["renew", "job", &held.token, "--ttl", "1h"]).run().exits(0);
        assert!(held.local.nxlock(["status", "job"]).run().exits(0).text().contains("job"));
    });
    held.goes_back();
}

/// One kind of damage: its name, the bytes, and the reason and the remedy that nxlock reports.
type Damage = (&'static str, Vec<u8>, &'static str, &'static str);

/// Returns damage by accident, by another program, or by a later version.
fn damages(good: &[u8]) -> Vec<Damage> {
    let damaged = |what, bytes: Vec<u8>| (what, bytes, "is damaged", "remove it when nothing runs under this lock");
    let foreign = |what, bytes: &[u8]| (what, bytes.to_vec(), "is not a record of nxlock", "another NAME or directory");
    let flipped = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 4;
        bytes
    };
    let (header, text) = (header_at(good), place(good));
    let mut zeroed = good.to_vec();
    zeroed[text.clone()].fill(0);
    vec![
        damaged("a digit", flipped(header + 100)),
        damaged("the padding", flipped(header + 512 - 30)),
        damaged("the end", flipped(header + 512 - 1)),
        damaged("the text", flipped(text.start + 30)),
        damaged("the end of the text", flipped(text.end - 1)),
        damaged("no text", zeroed),
        damaged("half of it", good[..text.start + text.len() / 2].to_vec()),
        damaged("a header", good[..512].to_vec()),
        damaged("without its end", good[..text.end - 1].to_vec()),
        damaged("zeros", vec![0; good.len()]),
        damaged("empty", Vec::new()),
        foreign("another program's", b"127.0.0.1 localhost\n"),
        foreign("the kind", &flipped(header)),
        ("earlier", earlier(good), "was written by an older nxlock", "remove it when nothing runs under this lock"),
        ("later", newer(good), "was written by a newer nxlock", "use that version here too"),
        ("later still", b"nxlock-lock 5 {\"a\": 1}\n".to_vec(), "was written by a newer nxlock", "use that version"),
    ]
}

/// Returns the beginning of a file as nxlock wrote it before its first release.
fn earlier(good: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(&good[..2048]).replace("nxlock-lock 4", "nxlock-lock 2").into_bytes()
}

#[test]
fn a_record_that_cannot_be_understood_is_left_as_it_is() {
    let held = Held::start();
    let path = held.local.file("lock");
    let good = fs::read(&path).unwrap();
    let mut damages = damages(&good);
    let other = with(&good, &[("lock", "key", "lock:other")]);
    damages.push(("another lock's", other, "another lock", "use another NAME"));
    for (what, bytes, why, remedy) in damages {
        fs::write(&path, &bytes).unwrap();
        held.nobody_can_tell(&path, why, remedy);
        assert!(fs::read(&path).unwrap() == bytes, "{what}: it is another now");
        // Other locks are not affected.
        held.local.nxlock(["run", "another", "-n", "--", "true"]).run().exits(0);
    }
    fs::write(&path, &good).unwrap();
    held.goes_back();
}

#[test]
fn a_record_with_waiters_that_cannot_be_understood_is_left_as_it_is() {
    let held = Held::start();
    let waiters = [Turn::queued(&held.local, &[]), Turn::queued(&held.local, &[])];
    let path = held.local.file("lock");
    let good = fs::read(&path).unwrap();
    drop(waiters);
    for (what, bytes, why, remedy) in damages(&good) {
        fs::write(&path, &bytes).unwrap();
        held.nobody_can_tell(&path, why, remedy);
        assert!(fs::read(&path).unwrap() == bytes, "{what}: it is another now");
    }
    fs::write(&path, &good).unwrap();
    held.goes_back();
}

#[test]
fn a_record_that_is_damaged_while_somebody_waits_ends_the_wait() {
    let held = Held::start();
    let waiter = Turn::queued(&held.local, &[]);
    let path = held.local.file("lock");
    let good = fs::read(&path).unwrap();
    // Locked, so that the waiter does not read a half-written record.
    let locked = File::open(&path).unwrap();
    locked.lock().unwrap();
    fs::write(&path, "127.0.0.1 localhost\n").unwrap();
    drop(locked);
    waiter.running.finish().exits(78).prints("").says("is not a record of nxlock");
    assert_eq!(fs::read(&path).unwrap(), b"127.0.0.1 localhost\n");
    fs::write(&path, &good).unwrap();
    held.goes_back();
}

#[test]
fn all_locks_are_listed_whatever_else_lies_there() {
    let held = Held::start();
    let locks = held.local.locks();
    let at = |name: &str| locks.join(name);
    fs::write(at("hosts.lock"), "127.0.0.1 localhost\n").unwrap();
    fs::write(at("notes"), "").unwrap();
    fs::create_dir(at("directory.lock")).unwrap();
    symlink(held.local.file("lock"), at("lock:link.lock")).unwrap();
    symlink("nothing", at("dangling.lock")).unwrap();
    mkfifo(&at("fifo.lock"), Mode::from_bits_truncate(0o600)).unwrap();
    let listener = UnixListener::bind(at("socket.lock")).unwrap();
    let listed = || held.local.nxlock(["--json", "status"]).run().exits(0).json();
    assert_eq!(listed().as_array().map(Vec::len), Some(1));
    assert_eq!(listed()[0]["name"], "job");
    // A record of nxlock that it cannot read might be a held lock.
    let good = fs::read(held.local.file("lock")).unwrap();
    for (bytes, why) in [(newer(&good), "newer"), (good[..100].to_vec(), "damaged"), (Vec::new(), "damaged")] {
        fs::write(at("lock:b.lock"), bytes).unwrap();
        held.local.nxlock(["status"]).run().exits(78).says("lock:b.lock").says(why);
    }
    fs::remove_file(at("lock:b.lock")).unwrap();
    drop(listener);
    held.goes_back();
}

#[test]
fn each_grant_has_a_fence_of_its_own_though_the_record_has_the_last_one() {
    for spoilt in ["18446744073709551615", "9007199254740991", "9007199254740993"] {
        let local = Local::start();
        release(&local, &acquire(&local, "1m"));
        let path = local.file("lock");
        let record = fs::read(&path).unwrap();
        fs::write(&path, with(&record, &[("lock", "fence", spoilt)])).unwrap();
        let fence = || {
            let done = local.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0);
            done.text().trim_end().parse::<u64>().unwrap()
        };
        let (first, second) = (fence(), fence());
        assert!(first < second && second < 1 << 53, "{spoilt}: {first}, {second}");
    }
}
