//! Which files nxlock reads: only the user and root may have been able to write them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::Home;
use crate::support::certificates::certificates;
use crate::support::{Authority, Nxlock, Redis, Secure, User, we_are_root};

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Returns a user to own files; only root can give a file away.
fn another_user(redis: &Redis) -> Option<User> {
    we_are_root().then(|| User::visiting(redis))
}

#[test]
fn a_configuration_of_another_user_is_refused_and_nothing_it_names_is_read() {
    let redis = Redis::on_tcp(&["--requirepass", "s3cret"]);
    redis.leave_as_it_is();
    let Some(other) = another_user(&redis) else { return };
    let home = Home::new();
    let secret = home.file("secret", "s3cret\n");
    let text = format!("server = 'redis://127.0.0.1:{}'\npassword-file = {secret:?}\n", redis.port());
    let config = home.file(".config/nxlock/config.toml", text);
    chown(&config, Some(other.id()), None).unwrap();
    let whose = format!("it belongs to user {}, not to root", other.id());
    for verb in [&["status"][..], &["run", "job", "--", "echo", "ran"], &["check"], &["release", "job", "x"]] {
        let done = home.call(verb.iter().copied()).run().exits(78).prints("").never_says("s3cret");
        done.says(config.to_str().unwrap()).says(&whose).says("sudo");
    }
    let done = home.call(["--json", "status"]).run().exits(78).says_nothing();
    assert!(done.json()["message"].as_str().unwrap().contains(&whose), "{}", done.both());
    Nxlock::new(["status", "--config", config.to_str().unwrap()]).run().exits(78).says(&whose);
    // The owner may read the file, and every user may read one of root's.
    let call =
        |config: &Path| other.nxlock(&redis, ["status", "--config", config.to_str().unwrap()]).env("NXLOCK_SERVER", "");
    chown(home.path().join("secret"), Some(other.id()), None).unwrap();
    for directory in [".", ".config", ".config/nxlock"] {
        mode(&home.path().join(directory), 0o755);
    }
    call(&config).run().exits(0).says_nothing();
    chown(&config, Some(0), None).unwrap();
    mode(&config, 0o644);
    call(&config).run().exits(0).says_nothing();
    // Root's file may have been put there by the directory's owner.
    chown(config.parent().unwrap(), Some(other.id()), None).unwrap();
    let done = home.call(["status"]).run().exits(78);
    done.says(&format!(
        "the directory {} belongs to user {}, not to root",
        config.parent().unwrap().display(),
        other.id()
    ));
}

#[test]
fn a_file_that_others_may_write_to_is_refused_with_what_takes_that_away() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    let password = home.file("password", "s3cret\n");
    let config = home.file("nx.toml", format!("server = {:?}\npassword-file = 'password'\n", redis.url()));
    let status = || home.call(["status", "--config", config.to_str().unwrap()]).run();
    status().exits(0).says_nothing();
    let other = another_user(&redis);
    for file in [&password, &config] {
        // A group with the owner as its only member does not count as others, so the file gets another user's group.
        let of_group = other.as_ref().map(|other| {
            chown(file, None, Some(other.id())).unwrap();
            0o620
        });
        for open in of_group.into_iter().chain([0o602, 0o666]) {
            mode(file, open);
            let done = status().exits(78).prints("").never_says("s3cret").says(file.to_str().unwrap());
            done.says(&format!("others than its owner may write to it (mode {open:04o}); chmod go-w it"));
        }
        mode(file, 0o600);
    }
    status().exits(0).says_nothing();
    mode(home.path(), 0o777);
    status().exits(78).says(&format!("may write to the directory {} (mode 0777)", home.path().display()));
    // In a sticky directory each user controls only its own files.
    mode(home.path(), 0o1777);
    status().exits(0).says_nothing();
    let link = home.path().join("link.toml");
    symlink(&config, &link).unwrap();
    let by_link = || home.call(["status", "--config", link.to_str().unwrap()]).run();
    by_link().exits(0).says_nothing();
    if let Some(other) = other {
        lchown(&link, Some(other.id()), None).unwrap();
        by_link().exits(78).says(&format!("the link {} belongs to user", link.display()));
    }
}

#[test]
fn nobody_else_has_a_hand_in_any_directory_or_link_on_the_way() {
    let redis = Redis::with_password("s3cret");
    let Some(other) = another_user(&redis) else { return };
    let home = Home::new();
    let password = home.file("deep/down/password", "s3cret\n");
    let call = |file: &Path| {
        let args = ["status", "--password-file", file.to_str().unwrap()];
        home.call(args).env("NXLOCK_SERVER", redis.url()).in_directory(home.path())
    };
    let refused = |file: &Path, whose: &str| {
        let done = call(file).run().exits(78).never_says("s3cret").says(file.to_str().unwrap());
        done.says(&format!("{whose} belongs to user {}, not to root", other.id()));
    };
    let in_home = |name: &str| home.path().join(name).display().to_string();
    call(&password).run().exits(0).says_nothing();
    // A directory above that of the file.
    chown(home.path().join("deep"), Some(other.id()), None).unwrap();
    refused(&password, &format!("the directory {}", in_home("deep")));
    refused(Path::new("deep/down/password"), "the directory ./deep");
    // Its owner can move what is in it, and then `..` is another directory.
    fs::rename(&password, home.path().join("password")).unwrap();
    refused(Path::new("deep/down/../../password"), "the directory ./deep");
    call(Path::new("password")).run().exits(0).says_nothing();
    // A link that is not root's to a directory that is, and such a link to the file.
    fs::create_dir(home.path().join("open")).unwrap();
    mode(&home.path().join("open"), 0o1777);
    for (name, target, file) in
        [("open/up", home.path().to_owned(), "open/up/password"), ("open/it", home.path().join("password"), "open/it")]
    {
        let link = home.path().join(name);
        symlink(target, &link).unwrap();
        call(Path::new(file)).run().exits(0).says_nothing();
        lchown(&link, Some(other.id()), None).unwrap();
        refused(Path::new(file), &format!("the link ./{name}"));
        refused(&home.path().join(file), &format!("the link {}", link.display()));
    }
    // A relative path depends on the working directory.
    let elsewhere = home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::copy(home.path().join("password"), elsewhere.join("password")).unwrap();
    chown(&elsewhere, Some(other.id()), None).unwrap();
    let done = call(Path::new("password")).in_directory(&elsewhere).run().exits(78).never_says("s3cret");
    done.says(&format!("the working directory belongs to user {}", other.id()));
    // A world-writable directory above that of the file.
    mode(&home.path().join("open"), 0o777);
    fs::create_dir(home.path().join("open/in")).unwrap();
    fs::copy(home.path().join("password"), home.path().join("open/in/password")).unwrap();
    let done = call(Path::new("open/in/password")).run().exits(78).never_says("s3cret");
    done.says("others than its owner may write to the directory ./open (mode 0777)");
}

#[test]
fn what_leads_to_a_users_files_as_usual_is_followed() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    home.file(
        "dotfiles/config/nxlock/config.toml",
        format!("server = {:?}\npassword-file = 'password'\n", redis.url()),
    );
    home.file("dotfiles/config/nxlock/password", "s3cret\n");
    let status = |args: &[&str]| home.call(["status"].iter().chain(args).copied()).in_directory(home.path()).run();
    symlink("dotfiles/config", home.path().join(".config")).unwrap();
    status(&[]).exits(0).says_nothing();
    fs::remove_file(home.path().join(".config")).unwrap();
    symlink(home.path().join("dotfiles/../dotfiles/./config"), home.path().join(".config")).unwrap();
    status(&[]).exits(0).says_nothing();
    fs::create_dir(home.path().join("work")).unwrap();
    symlink("../.config/nxlock/config.toml", home.path().join("work/nx.toml")).unwrap();
    let password = ["--password-file", ".config/nxlock/password"];
    let config = |path| [&["--config", path], &password[..]].concat();
    for path in ["work/nx.toml", "./work/../work//nx.toml", "dotfiles/config/../../.config/nxlock/config.toml"] {
        status(&config(path)).exits(0).says_nothing();
    }
    let path = home.path().join("work/../dotfiles/config/nxlock/config.toml");
    status(&config(path.to_str().unwrap())).exits(0).says_nothing();
    // Paths that lead nowhere are refused.
    symlink("round", home.path().join("round")).unwrap();
    status(&["--config", "round"]).exits(78).says("too many levels of symbolic links");
    status(&["--config", "dotfiles"]).exits(78).says("is a directory");
    status(&["--config", "work/nx.toml/x"]).exits(78).says("not a directory");
    status(&["--config", "no/such"]).exits(78).says("no such file");
}

#[test]
fn where_there_is_no_file_it_does_not_matter_whose_directory_it_is_not_in() {
    let redis = Redis::start();
    let Some(other) = another_user(&redis) else { return };
    let home = Home::new();
    chown(home.path(), Some(other.id()), None).unwrap();
    home.call(["status"]).env("NXLOCK_SERVER", redis.url()).run().exits(0).says_nothing();
}

#[test]
fn a_root_directory_whose_owner_has_no_number_here_is_nobodys() {
    let redis = Redis::start();
    let Some(other) = another_user(&redis) else { return };
    let home = Home::configured("xyzzy = 1\n");
    let config = home.path().join(".config/nxlock/config.toml");
    chown(&config, Some(other.id()), None).unwrap();
    for directory in [".", ".config", ".config/nxlock"] {
        chown(home.path().join(directory), Some(other.id()), None).unwrap();
    }
    let call = |script: &str| {
        let words = ["--user", "--map-root-user", "sh", "-c", script, "sh", config.to_str().unwrap()];
        other.by(&redis, "unshare", words).run()
    };
    // Not every kernel permits user namespaces to ordinary users.
    if !call("true").status.success() {
        return;
    }
    let done = call(r#"exec "$NXLOCK" status --config "$1""#).exits(78);
    done.says("the directory / belongs to user 65534, not to root; this user namespace has no number");
    call(r#"exec "$NXLOCK" status --config /dev/stdin < "$1""#).exits(78).says("unknown key");
}

#[test]
fn a_home_among_the_descriptors_is_judged_as_any_other() {
    let redis = Redis::start();
    let Some(other) = another_user(&redis) else { return };
    let home = Home::configured(&format!("server = {:?}\n", redis.url()));
    chown(home.path().join(".config/nxlock/config.toml"), Some(other.id()), None).unwrap();
    let whose = format!("it belongs to user {}, not to root", other.id());
    for descriptors in ["/dev/fd", "/proc/self/fd"] {
        let path = format!("{descriptors}/../../..{}", home.path().display());
        home.call(["status"]).env("HOME", &path).run().exits(78).says(&whose);
        home.call(["status"]).env("XDG_CONFIG_HOME", format!("{path}/.config")).run().exits(78).says(&whose);
        let config = format!("{path}/.config/nxlock/config.toml");
        home.call(["status", "--config", &config]).run().exits(78).says(&whose);
    }
    // The caller did not open what a path in the environment names.
    let opened = || fs::File::open(home.path().join(".config/nxlock")).unwrap();
    let call = home.call(["status"]).env("XDG_CONFIG_HOME", "/dev/fd/0/..").stdin_from(opened());
    call.run().exits(78).says(&whose);
}

#[test]
fn a_pipe_of_another_user_keeps_nobody_waiting() {
    let redis = Redis::start();
    let Some(other) = another_user(&redis) else { return };
    let home = Home::configured("");
    let config = home.path().join(".config/nxlock/config.toml");
    fs::remove_file(&config).unwrap();
    mkfifo(&config, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    chown(&config, Some(other.id()), None).unwrap();
    let soon = Duration::from_secs(5);
    let whose = format!("it belongs to user {}, not to root", other.id());
    let path = config.to_str().unwrap();
    home.call(["status"]).env("NXLOCK_SERVER", redis.url()).run().within(soon).exits(78).says(&whose);
    for option in ["--config", "--password-file"] {
        let call = Nxlock::new(["status", option, path]).env("NXLOCK_SERVER", redis.url());
        call.run().within(soon).exits(78).says(&whose);
    }
}

/// Lets another user write to a file, as setfacl(1) does. Returns whether the file system supports it.
fn let_write(file: &Path, user: u32) -> bool {
    const NOBODY: u32 = u32::MAX;
    // linux/posix_acl_xattr.h: the owner, a user, the group, the mask and others.
    let entries = [(0x01, 6, NOBODY), (0x02, 6, user), (0x04, 4, NOBODY), (0x10, 6, NOBODY), (0x20, 0, NOBODY)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([u16::to_le_bytes(tag), u16::to_le_bytes(permissions)].concat());
        acl.extend(u32::to_le_bytes(id));
    }
    rustix::fs::setxattr(file, "system.posix_acl_access", &acl, rustix::fs::XattrFlags::empty()).is_ok()
}

#[test]
fn an_acl_that_lets_others_write_is_not_a_group_of_ones_own() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    let password = home.file("in/password", "s3cret\n");
    let status =
        || home.call(["status", "--password-file", password.to_str().unwrap()]).env("NXLOCK_SERVER", redis.url()).run();
    mode(&password, 0o620);
    let group_is_private = status().status.success();
    if !group_is_private || !let_write(&password, 1) {
        return;
    }
    status().exits(78).never_says("s3cret").says("others than its owner may write to it (mode 0660); chmod go-w it");
    mode(&password, 0o600);
    status().exits(0).says_nothing();
    let directory = password.parent().unwrap();
    mode(directory, 0o770);
    status().exits(0).says_nothing();
    assert!(let_write(directory, 1));
    mode(directory, 0o770);
    status().exits(78).never_says("s3cret").says(&format!("may write to the directory {}", directory.display()));
}

#[test]
fn what_tls_goes_by_is_refused_if_others_may_write_to_it() {
    let server = Secure::mutual();
    let home = Home::new();
    let client = certificates().client();
    let copy = |name: &str, from: &Path| home.file(name, fs::read(from).unwrap());
    let ca = copy("ca", &certificates().authority());
    let (cert, key) = (copy("cert", &client.chain), copy("key", &client.key));
    let status = || {
        let call = Nxlock::new(["status"]).env("NXLOCK_SERVER", server.url()).env("NXLOCK_TLS_CA", &ca);
        call.env("NXLOCK_TLS_CERT", &cert).env("NXLOCK_TLS_KEY", &key).run()
    };
    status().exits(0).says_nothing();
    for (option, file) in [("--tls-ca", &ca), ("--tls-cert", &cert), ("--tls-key", &key)] {
        mode(file, 0o622);
        status().exits(78).says(option).says(file.to_str().unwrap()).says("chmod go-w it");
        mode(file, 0o600);
    }
}

#[test]
fn what_the_caller_has_opened_is_read_whatever_it_is() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    let status = |file: &str| home.call(["status", "--password-file", file]).env("NXLOCK_SERVER", redis.url());
    let own = home.file("own password", "s3cret\n");
    for name in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        status(name).stdin_from(fs::File::open(&own).unwrap()).run().exits(0).says_nothing();
    }
    for script in [
        "nxlock status --password-file <(echo s3cret)",
        "echo s3cret | nxlock status --password-file /dev/stdin",
        "nxlock status --password-file /dev/fd/7 7<<< s3cret",
        "mkfifo -m 600 own; echo s3cret > own & nxlock status --password-file own",
    ] {
        let call = Nxlock::by("bash", ["-c", script]).env("NXLOCK_SERVER", redis.url());
        call.in_directory(home.path()).run().exits(0).says_nothing();
    }
    // Open for reading and writing, so no open(2) blocks.
    let script = "mkfifo -m 622 anybodys; exec 9<> anybodys; echo s3cret >&9; nxlock status --password-file anybodys";
    let call = Nxlock::by("bash", ["-c", script]).env("NXLOCK_SERVER", redis.url());
    call.in_directory(home.path()).run().exits(78).says("may write to it").never_says("s3cret");
    // An empty configuration.
    home.call(["-s", "local:/tmp", "check", "--config", "/dev/null"]).run().exits(0);
    if let Some(other) = another_user(&redis) {
        // As by sudo: the open file belongs to the calling user.
        let file = home.file("others", "s3cret\n");
        chown(&file, Some(other.id()), None).unwrap();
        let opened = fs::File::open(&file).unwrap();
        status("/dev/stdin").stdin_from(opened).run().exits(0).says_nothing();
        status(file.to_str().unwrap()).run().exits(78).says("belongs to user").never_says("s3cret");
    }
}
