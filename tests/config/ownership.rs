//! Whose files are read: nobody but the user and root may have written them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use super::Home;
use crate::support::certificates::certificates;
use crate::support::{Authority, Nxlock, Redis, Secure, User, we_are_root};

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Whoever the file belongs to: only root can give one away.
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
    // Whose it is may read it, and so may anybody what is root's.
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
    // It may be root's, and put there by somebody else.
    chown(config.parent().unwrap(), Some(other.id()), None).unwrap();
    let done = home.call(["status"]).run().exits(78);
    done.says(&format!("its directory belongs to user {}, not to root", other.id()));
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
        // A group in which the owner is alone is no others: whose it is has to be known.
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
    status().exits(78).says("may write to its directory (mode 0777)");
    // There each user has what is his own.
    mode(home.path(), 0o1777);
    status().exits(0).says_nothing();
    let link = home.path().join("link.toml");
    symlink(&config, &link).unwrap();
    let by_link = || home.call(["status", "--config", link.to_str().unwrap()]).run();
    by_link().exits(0).says_nothing();
    if let Some(other) = other {
        std::os::unix::fs::lchown(&link, Some(other.id()), None).unwrap();
        // The kernel may refuse to follow it before we do, proc_sys_fs(5).
        by_link().exits(78).says(link.to_str().unwrap());
    }
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
    // Open for both, it makes nobody wait.
    let script = "mkfifo -m 622 anybodys; exec 9<> anybodys; echo s3cret >&9; nxlock status --password-file anybodys";
    let call = Nxlock::by("bash", ["-c", script]).env("NXLOCK_SERVER", redis.url());
    call.in_directory(home.path()).run().exits(78).says("may write to it").never_says("s3cret");
    // A configuration that says nothing.
    home.call(["-s", "local:/tmp", "check", "--config", "/dev/null"]).run().exits(0);
    if let Some(other) = another_user(&redis) {
        // As by sudo: the pipe is the caller's.
        let file = home.file("others", "s3cret\n");
        chown(&file, Some(other.id()), None).unwrap();
        let opened = fs::File::open(&file).unwrap();
        status("/dev/stdin").stdin_from(opened).run().exits(0).says_nothing();
        status(file.to_str().unwrap()).run().exits(78).says("belongs to user").never_says("s3cret");
    }
}
