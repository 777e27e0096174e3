//! Files that can be read only once, or have gone: what nxlock has read of them serves its guard, and nobody else.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::certificates::certificates;
use crate::support::turns::is_free;
use crate::support::{Authority, Nxlock, Redis, Running, Secure, eventually};

/// A server with a password, and a home for files.
struct Home {
    redis: Redis,
    home: TempDir,
}

impl Home {
    fn new() -> Home {
        Home { redis: Redis::with_password("s3cret"), home: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns a call of a script for bash in which `nxlock` has no server and no password.
    fn bash(&self, script: &str) -> Nxlock {
        let url = self.redis.url();
        Nxlock::by("bash", ["-c", script]).env("URL", url).env("HERE", self.home.path())
    }
}

/// A script that becomes nxlock, which holds `job` with these options for ten minutes.
fn holding(options: &str) -> String {
    format!("exec nxlock {options} run job -t 10m -c 'echo up; exec sleep 600'")
}

/// Kills nxlock, and waits until its guard has given the lock back.
#[track_caller]
fn is_given_back(authority: &impl Authority, mut running: Running) {
    running.line("up");
    running.signal(Signal::SIGKILL);
    eventually("the guard has given it back", || is_free(authority));
}

#[test]
fn a_guard_gives_a_lock_back_though_its_files_were_pipes() {
    for options in [
        "-s $URL --password-file <(echo s3cret)",
        "-s $URL --password-file /dev/fd/7 7<<< s3cret",
        "-s $URL --password-file /dev/stdin <<< s3cret",
        r#"--config <(echo "server = '$URL?pass=s3cret'")"#,
        r#"--config <(printf "server = '$URL'\npassword-file = '/dev/fd/9'") 9< <(echo s3cret)"#,
    ] {
        let home = Home::new();
        is_given_back(&home.redis, home.bash(&holding(options)).start());
    }
}

#[test]
fn a_guard_gives_a_lock_back_though_its_files_have_gone() {
    let home = Home::new();
    let (password, config) = (home.path("password"), home.path("config.toml"));
    fs::write(&password, "s3cret\n").unwrap();
    fs::write(&config, format!("server = '{}'\npassword-file = 'password'\n", home.redis.url())).unwrap();
    let mut running = home.bash(&holding("--config $HERE/config.toml")).start();
    running.line("up");
    fs::remove_file(password).unwrap();
    fs::remove_file(config).unwrap();
    is_given_back(&home.redis, running);
}

#[test]
fn a_guard_gives_a_lock_back_though_its_configuration_makes_no_sense_any_more() {
    let home = Home::new();
    let config = home.path("config.toml");
    fs::write(&config, format!("server = '{}?pass=s3cret'\n", home.redis.url())).unwrap();
    let mut running = home.bash(&holding("--config $HERE/config.toml")).start();
    running.line("up");
    fs::write(&config, "server = 7\n").unwrap();
    is_given_back(&home.redis, running);
}

#[test]
fn a_guard_gives_a_lock_back_though_its_certificates_were_pipes() {
    let (server, ours) = (Secure::mutual(), certificates());
    let options = "--tls-ca <(cat $CA) --tls-cert <(cat $CERT) --tls-key <(cat $KEY)";
    let call = Nxlock::by("bash", ["-c", &holding(options)]).env("NXLOCK_SERVER", server.url());
    let call = call.env("CA", ours.authority()).env("CERT", ours.client().chain).env("KEY", ours.client().key);
    is_given_back(&server, call.start());
}

/// Returns what a command finds: the numbers of its descriptors, what it can read from stdin, and its environment.
fn found(home: &Home, options: &str) -> String {
    let look = r#"echo $(ls /proc/$$/fd); cat; tr "\0" "\n" < /proc/$$/environ"#;
    let call = home.bash(&format!("nxlock {options} run job -c '{look}'")).stdin(b"");
    String::from_utf8_lossy(&call.run().exits(0).stdout).into_owned()
}

#[test]
fn a_command_finds_neither_the_descriptors_of_nxlocks_files_nor_what_was_read() {
    let home = Home::new();
    fs::write(home.path("password"), "s3cret\n").unwrap();
    for options in [
        "-s $URL --password-file /dev/fd/7 7< $HERE/password",
        "-s $URL --password-file /proc/self/fd/7 7< $HERE/password",
        "-s $URL --password-file <(echo s3cret)",
        "-s $URL --password-file /dev/stdin < $HERE/password",
        r#"--config <(echo "server = '$URL?pass=s3cret'")"#,
    ] {
        let found = found(&home, options);
        assert!(!found.contains("s3cret") && !found.contains("NXLOCK_HANDOVER"), "{options}: {found}");
        // The numbers that these options name, and that bash gives to a pipe.
        let has_one = found.lines().next().unwrap().split(' ').any(|number| matches!(number, "7" | "63"));
        assert!(!has_one, "{options}: {found}");
    }
}

#[test]
fn no_process_shows_what_was_read_from_a_file() {
    let home = Home::new();
    let mut running = home.bash(&holding("-s $URL --password-file <(echo s3cret)")).start();
    running.line("up");
    let pid = running.pid();
    let tree = [pid].into_iter().chain(crate::support::children_of(pid));
    for pid in tree.clone().chain(tree.flat_map(crate::support::children_of)) {
        for file in ["cmdline", "environ", "comm"] {
            let shown = fs::read(Path::new("/proc").join(pid.to_string()).join(file)).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&shown).contains("NXLOCK_HANDOVER"), "{pid} {file}");
            let is_bash = String::from_utf8_lossy(&shown).contains("<(echo");
            assert!(is_bash || !String::from_utf8_lossy(&shown).contains("s3cret"), "{pid} {file}");
        }
    }
    is_given_back(&home.redis, running);
}
