//! Configuration files: precedence, and the error messages for mistakes.

mod ownership;
mod passwords;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::turns::{Turn, turn};
use crate::support::{Done, Nxlock, Redis, may_unshare, we_are_root};

/// A home directory with files in it.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    /// Creates a home with this user configuration.
    fn configured(text: &str) -> Home {
        let home = Home::new();
        home.file(".config/nxlock/config.toml", text);
        home
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Calls nxlock with this home, and without a server in the environment.
    fn call<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Nxlock {
        Nxlock::new(args).env("HOME", self.path())
    }
}

/// Returns the value and the origin of a setting in force.
#[track_caller]
fn setting(done: &Done, name: &str) -> (Value, String) {
    let document = done.json();
    let settings = document["settings"].as_array().unwrap_or_else(|| panic!("{}", done.both()));
    let found = settings.iter().find(|setting| setting["name"] == name);
    let Some(found) = found else { return (Value::Null, "absent".into()) };
    let origin = match found["origin"].as_str().unwrap() {
        "environment" => found["variable"].as_str().unwrap().to_owned(),
        "file" => {
            let file = found["file"].as_str().unwrap().rsplit('/').next().unwrap();
            format!("{file}:{}", found["line"])
        }
        origin => origin.to_owned(),
    };
    (found["value"].clone(), origin)
}

/// Returns whether a single call can have an /etc of its own, which not every container permits. In a user namespace
/// of its own, root's directories belong to nobody, and nxlock reads nothing in them.
fn has_machines() -> bool {
    we_are_root() && may_unshare(&["--mount"])
}

#[track_caller]
fn refused(text: &str, said: &str) {
    let home = Home::configured(text);
    let path = home.path().join(".config/nxlock/config.toml");
    for verb in [&["status"][..], &["run", "job", "--", "echo", "ran"], &["check"], &["release", "job", "x"]] {
        let done = home.call(verb.iter().copied()).run().exits(78).prints("");
        done.says(&format!("nxlock: {}:{said}", path.display()));
    }
    let done = home.call(["--json", "status"]).run().exits(78).says_nothing();
    assert_eq!(done.json()["outcome"], "misconfigured", "{}", done.both());
    assert!(done.json()["message"].as_str().unwrap().contains(said), "{}", done.both());
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let redis = Redis::start();
    let home = Home::configured("server-timeout = \"3s\"\n");
    let names = "CONFIG SERVER_TIMEOUT TOKEN PASSWORD_FILE PASSWORD_COMMAND TLS_CA TLS_CERT AS";
    let variables: Vec<String> = names.split(' ').map(|name| format!("NXLOCK_{name}")).collect();
    let call = |words: &[&str]| {
        let call = home.call(words.iter().copied());
        let call = variables.iter().fold(call, |call, name| call.env(name, ""));
        call.env("NXLOCK_SERVER", redis.url()).run()
    };
    // The server would forget all locks, which is a warning.
    let done = call(&["--json", "check"]).exits(1);
    assert_eq!(setting(&done, "server-timeout"), ("3s".into(), "config.toml:1".into()));
    call(&["run", "job", "true"]).exits(0).says_nothing();
    for words in [&["release", "job"][..], &["renew", "job", "--ttl", "5s"]] {
        call(words).exits(64).says("none was given");
    }
    call(&["renew", "job"]).exits(64).says("--ttl <D>");
}

#[test]
fn the_flag_goes_before_the_variable_before_the_users_file_before_the_machines() {
    if !has_machines() {
        return;
    }
    let home = Home::configured("prefix = 'user:'\nserver-timeout = \"3s\"\n");
    let machine =
        home.file("machine.toml", "prefix = 'machine:'\nserver-timeout = '4s'\ncolor = 'never'\nttl = \"9s\"\n");
    let shown = |args: &[&str], prefix: Option<&str>| {
        let args = ["-s", "unix:///no/such/socket", "--json", "check"].into_iter().chain(args.iter().copied());
        let call = home.call(args).env("NXLOCK_SERVER_TIMEOUT", if prefix.is_some() { "200ms" } else { "100ms" });
        let call = prefix.into_iter().fold(call, |call, prefix| call.env("NXLOCK_PREFIX", prefix));
        call.on_machine_with(&machine).run().exits(69)
    };
    let done = shown(&["--prefix", "flag:"], Some("variable:"));
    assert_eq!(setting(&done, "prefix"), ("flag:".into(), "flag".into()));
    assert_eq!(setting(&done, "server-timeout"), ("200ms".into(), "NXLOCK_SERVER_TIMEOUT".into()));
    assert_eq!(setting(&done, "color"), ("never".into(), "config.toml:3".into()));
    assert_eq!(setting(&done, "ttl"), ("9s".into(), "config.toml:4".into()));
    let done = shown(&[], Some("variable:"));
    assert_eq!(setting(&done, "prefix"), ("variable:".into(), "NXLOCK_PREFIX".into()));
    let done = shown(&[], None);
    assert_eq!(setting(&done, "prefix"), ("user:".into(), "config.toml:1".into()));
    // Without a home directory only the machine's file counts.
    let bare = Nxlock::new(["--json", "check"]).env("NXLOCK_SERVER_TIMEOUT", "100ms").on_machine_with(&machine).run();
    assert_eq!(setting(&bare, "prefix"), ("machine:".into(), "config.toml:1".into()));
    // A file that is named replaces both.
    let named = home.file("named.toml", "at-least = '2s'\n");
    let named = named.to_str().unwrap();
    for call in
        [home.call(["--json", "check", "--config", named]), home.call(["--json", "check"]).env("NXLOCK_CONFIG", named)]
    {
        let done = call.on_machine_with(&machine).run().exits(78);
        assert_eq!(setting(&done, "prefix"), ("lock:".into(), "default".into()));
        assert_eq!(setting(&done, "color").1, "absent");
        assert_eq!(setting(&done, "at-least"), ("2s".into(), "named.toml:1".into()));
    }
    let done = home.call(["check", "--config", named]).env("NXLOCK_CONFIG", "/no/such").run().exits(78);
    done.never_says("/no/such");
}

#[test]
fn what_a_file_says_does_not_count_against_an_option_that_contradicts_it() {
    let redis = Redis::start();
    let home =
        Home::configured(&format!("server = {:?}\nsetnx-compat = true\nno-queue = true\njson = true\n", redis.url()));
    home.call(["run", "job", "--slots", "2", "-c", "echo $NXLOCK_SLOT"]).run().exits(0).prints("0\n");
    let other = "env -u NXLOCK_HELD nxlock run job --shared -n -- echo both";
    home.call(["run", "job", "--shared", "-c", other]).run().exits(0).prints("both\n");
    assert!(home.call(["status", "--metrics"]).run().exits(0).text().ends_with("# EOF\n"));
    let holder = Turn::had(&redis, &[]);
    let mut first = Turn::of(home.call(turn(&["--first"]))).once_queued(&redis);
    holder.leaves();
    first.up();
    first.leaves();
}

#[test]
fn what_stands_in_a_file_is_done() {
    let redis = Redis::start();
    let home = Home::configured(&format!(
        "server = {:?}\nprefix = \"cron:\"\nttl = \"7s\"\nno-wait = true\nconflict-exit-code = 3\nreason = \"from a file\"\n\
         time-limit = \"30s\"\nkill-after = '1s'\non-lost = \"continue\"\ndescendants = 'wait'\nat-least = '1ms'\n",
        redis.url()
    ));
    // It takes longer than --at-least, or the lock would be kept for the rest.
    let script = "sleep 0.01; echo $NXLOCK_KEY $NXLOCK_TTL_MS";
    home.call(["run", "job", "-c", script]).run().exits(0).prints("cron:job 7000\n");
    home.call(["run", "-t", "1m", "job", "-c", script]).run().exits(0).prints("cron:job 60000\n");
    let token = home.call(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    home.call(["run", "job", "--", "echo", "ran"]).run().exits(3).prints("").says("from a file");
    home.call(["acquire", "job", "--ttl", "1m", "-E", "4"]).run().exits(4);
    assert!(home.call(["status"]).run().exits(0).text().contains("from a file"));
    home.call(["release", "job", &token]).run().exits(0);
    // acquire and renew need --ttl on the command line.
    home.call(["acquire", "job"]).run().exits(64).says("--ttl");
    home.call(["renew", "job", "x"]).run().exits(64).says("--ttl");
}

#[test]
fn what_was_typed_says_no_to_its_opposite_in_a_file() {
    let redis = Redis::start();
    let holder = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let server = format!("server = {:?}\n", redis.url());
    let no_wait = Home::configured(&format!("{server}no-wait = true\n"));
    no_wait.call(["run", "job", "--", "true"]).run().exits(75).never_says("waiting for");
    no_wait.call(["run", "-w", "2s", "job", "--", "true"]).run().exits(75).says("waiting for");
    let wait = Home::configured(&format!("{server}wait = \"2s\"\nverbose = false\n"));
    wait.call(["run", "job", "--", "true"]).run().exits(75).says("waiting for");
    wait.call(["run", "-n", "job", "--", "true"]).run().exits(75).never_says("waiting for");
    redis.nxlock(["release", "job", &holder]).run().exits(0);
    let quiet = Home::configured(&format!("{server}quiet = true\n"));
    quiet.call(["run", "job", "--", "true"]).run().exits(0).says_nothing();
    quiet.call(["-v", "run", "job", "--", "true"]).run().exits(0).says("started the command");
    let verbose = Home::configured(&format!("{server}verbose = true\n"));
    verbose.call(["run", "job", "--", "true"]).run().exits(0).says("started the command");
    verbose.call(["-q", "run", "job", "--", "true"]).run().exits(0).says_nothing();
    let json = Home::configured(&format!("{server}json = true\n"));
    assert_eq!(json.call(["status", "job"]).run().exits(1).json()[0]["state"], "free");
    let exported = json.call(["acquire", "job", "--ttl", "1m", "--export"]).run().exits(0);
    assert!(exported.text().starts_with("export NXLOCK_NAME=job "), "{}", exported.both());
    redis.delete("lock:job");
}

#[test]
fn the_users_word_undoes_its_opposite_in_the_machines_file() {
    if !has_machines() {
        return;
    }
    let home = Home::configured("wait = '5s'\nquiet = false\n");
    let machine = home.file("machine.toml", "no-wait = true\nquiet = true\n");
    let done = home.call(["--json", "check"]).on_machine_with(&machine).run().exits(78);
    assert_eq!(setting(&done, "wait").0, "5s");
    assert_eq!(setting(&done, "no-wait").1, "absent");
    assert_eq!(setting(&done, "quiet").0, "false");
}

#[test]
fn a_server_in_a_file_yields_to_either_variable_unless_that_is_empty() {
    let redis = Redis::start();
    let (right, wrong) = (redis.url(), "unix:///no/such/socket");
    let home = Home::configured(&format!("server = {wrong:?}\n"));
    home.call(["status"]).env("NXLOCK_SERVER", &right).run().exits(0);
    home.call(["status"]).env("REDIS_URL", &right).run().exits(0);
    home.call(["-s", &right, "status"]).run().exits(0);
    let home = Home::configured(&format!("server = [{right:?}]\n"));
    home.call(["status"]).run().exits(0);
    home.call(["status"]).env("NXLOCK_SERVER", "").env("REDIS_URL", " ").run().exits(0);
    home.call(["status"])
        .env("NXLOCK_SERVER", "")
        .env("REDIS_URL", wrong)
        .env("NXLOCK_SERVER_TIMEOUT", "100ms")
        .run()
        .exits(69);
    let several = Home::configured("server = ['redis://a', 'redis://b']\n");
    several.call(["status"]).run().exits(64).says("2 servers can't outvote each other");
}

#[test]
fn a_holder_is_known_by_the_option_before_the_variable_before_the_file() {
    let redis = Redis::start();
    let home = Home::configured("as = 'by the file'\n");
    let known_as = |options: &[&str], variable: Option<&str>| {
        let seen = "nxlock --json status job";
        let words = [&["run", "job"], options, &["-c", seen]].concat();
        let call = home.call(words).env("NXLOCK_SERVER", redis.url());
        let call = variable.into_iter().fold(call, |call, value| call.env("NXLOCK_AS", value));
        call.run().exits(0).json()[0]["holder"]["as"].as_str().unwrap().to_owned()
    };
    assert_eq!(known_as(&["--as", "by the option"], Some("by the variable")), "by the option");
    assert_eq!(known_as(&[], Some("by the variable")), "by the variable");
    assert_eq!(known_as(&[], Some("")), "by the file");
    assert_eq!(known_as(&[], None), "by the file");
}

#[test]
fn a_name_that_is_too_long_is_refused_wherever_it_is_given() {
    let redis = Redis::start();
    let long = "x".repeat(65);
    let call = |words: &[&str]| redis.nxlock(words.iter().copied());
    let job = ["run", "job", "--", "true"];
    call(&["run", "job", "--as", &long, "--", "true"]).run().exits(64).says("--as").says("65 bytes is too long");
    call(&["acquire", "job", "--ttl", "1m", "--as", ""]).run().exits(64).says("--as").says("it is empty");
    for bad in [long.as_bytes(), b"a\nb", b"\xff"] {
        let bad = std::os::unix::ffi::OsStrExt::from_bytes(bad);
        let set = |call: Nxlock| call.env("NXLOCK_AS", std::ffi::OsStr::new::<std::ffi::OsStr>(bad));
        set(call(&job)).run().exits(78).says("NXLOCK_AS").prints("");
        assert_eq!(
            set(call(&["--json", "acquire", "job", "--ttl", "1m"])).run().exits(78).json()["outcome"],
            "misconfigured"
        );
        // It concerns nobody else.
        set(call(&["status"])).run().exits(0);
    }
    assert!(!redis.exists("lock:job"));
    refused(&format!("as = '{long}'\n"), "1: as: 65 bytes is too long: 64 at most");
}

#[test]
fn a_mistake_is_told_with_its_file_line_and_key() {
    refused("\n\nserver-timeout = 5\n", "3: server-timeout: a bare number has no unit: write 5s, 5ms or 5m");
    refused("prefix = 'p:'\nttl = \"1ms\"\n", "2: ttl: too short: 100ms at least");
    refused("wait = 1.5\n", "1: wait: a bare number has no unit: write 1.5s");
    refused("ttl = true\n", "1: ttl: expected a string such as \"30s\", found a boolean");
    refused("prefix = 5\n", "1: prefix: expected a string, found an integer");
    refused("prefix = 'a{b'\n", "1: prefix: braces are not allowed");
    refused("json = 'yes'\n", "1: json: expected true or false, found a string");
    refused("conflict-exit-code = '7'\n", "1: conflict-exit-code: expected a number, found a string");
    refused("conflict-exit-code = 256\n", "1: conflict-exit-code: 256 is not in 0..=255");
    refused("min-replicas = -1\n", "1: min-replicas: -1 is not in");
    refused("color = 'red'\n", "1: color: it is none of auto, always, never");
    refused("server = 7\n", "1: server: expected a string or an array of strings, found an integer");
    refused("server = ['a', 7]\n", "1: server: expected a string or an array of strings");
    refused("[run]\nttl = '1m'\n", "1: run: tables are not supported");
    refused("server_timeout = '5s'\n", "1: server_timeout: unknown key: did you mean `server-timeout`?");
    refused("xyzzy = 1\n", "1: xyzzy: unknown key");
    for key in ["break", "shell", "config", "export", "help"] {
        refused(
            &format!("# a line\n{key} = 'x'\n"),
            &format!("2: {key}: this option can only be given on the command line"),
        );
    }
    refused("wait = '5s'\nno-wait = true\n", "2: no-wait: it conflicts with `wait` in line 1");
    refused("tls-cert = '/c'\n", "1: tls-cert: it requires tls-key");
    refused("ttl = '1m'\nttl = '2m'\n", "2: it is not TOML: ");
    refused("server = redis://:s3cret@h\n", "1: it is not TOML: ");
}

#[test]
fn nothing_in_a_file_can_fool_a_terminal_and_no_secret_is_repeated_from_it() {
    for text in [
        "server = redis://:s3cret@h\n",
        "server = 'redis://:s3cret@h\n",
        "server = { url = 'redis://:s3cret@h' }\n",
        "server = ['redis://:s3cret@h', 5]\n",
        "sever = 'redis://:s3cret@h'\n",
        "server = 'redis://:s3cret#x@h'\n",
        "\"a\\u001b[2J\" = 1\n",
        "color = \"\\u001b[2J\"\n",
    ] {
        let home = Home::configured(text);
        for args in [&["status"][..], &["--json", "status"], &["-v", "check"], &["--json", "check"]] {
            let done = home.call(args.iter().copied()).run().exits(78);
            done.never_says("s3cret").never_says("\u{1b}");
        }
    }
}

#[test]
fn a_file_that_is_there_and_cannot_be_read_is_not_passed_over() {
    let home = Home::configured("prefix = 'p:'\n");
    let path = home.path().join(".config/nxlock/config.toml");
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    let done = home.call(["check"]).minding_permissions().run().exits(78).says("permission denied");
    done.says(path.to_str().unwrap());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    home.call(["check"]).run().exits(78).says("is a directory");
    fs::remove_dir(&path).unwrap();
    fs::write(&path, b"prefix = '\xff'").unwrap();
    home.call(["check"]).run().exits(78).says("UTF-8").never_says("make it readable");
    for named in ["/no/such/file", "/dev"] {
        home.call(["check", "--config", named]).run().exits(78).says(named);
        home.call(["check"]).env("NXLOCK_CONFIG", named).run().exits(78).says(named);
    }
    // nxlock ignores a configuration directory that it cannot enter, as after su(1).
    fs::set_permissions(home.path().join(".config"), Permissions::from_mode(0o000)).unwrap();
    home.call(["-s", "local:/tmp", "check"]).minding_permissions().run().exits(0);
    fs::set_permissions(home.path().join(".config"), Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn the_users_file_is_where_xdg_says() {
    let home = Home::configured("prefix = 'home:'\n");
    home.file("xdg/nxlock/config.toml", "prefix = 'xdg:'\n");
    let prefix = |call: Nxlock| setting(&call.run().exits(78), "prefix").0;
    let call = || home.call(["--json", "check"]);
    assert_eq!(prefix(call()), "home:");
    assert_eq!(prefix(call().env("XDG_CONFIG_HOME", home.path().join("xdg"))), "xdg:");
    // Relative paths are ignored.
    assert_eq!(prefix(call().env("XDG_CONFIG_HOME", "xdg").in_directory(home.path())), "home:");
    assert_eq!(prefix(Nxlock::new(["--json", "check"])), "lock:");
    assert_eq!(prefix(Nxlock::new(["--json", "check"]).env("HOME", "")), "lock:");
    assert_eq!(prefix(call().env("NXLOCK_PREFIX", "")), "", "an empty prefix is one");
}

#[test]
fn a_relative_path_is_relative_to_its_file() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    home.file("etc/password", "s3cret\n");
    home.file("etc/nx.toml", format!("server = {:?}\npassword-file = 'password'\n", redis.url()));
    for (directory, config) in [("etc", "nx.toml"), ("", "etc/nx.toml")] {
        let directory = home.path().join(directory);
        home.call(["--config", config, "status"]).in_directory(&directory).run().exits(0).says_nothing();
    }
}

#[test]
fn a_certificate_and_its_key_belong_together() {
    home_is_not_needed(&["--tls-cert", "/c"]).run().exits(64).says("--tls-key");
    home_is_not_needed(&["--tls-key", "/k"]).run().exits(64).says("--tls-cert");
    home_is_not_needed(&[]).env("NXLOCK_TLS_CERT", "/c").run().exits(64).says("--tls-key");
    home_is_not_needed(&["--tls-cert", "/c"]).env("NXLOCK_TLS_KEY", "/k").run().exits(0);
    home_is_not_needed(&[]).env("NXLOCK_TLS_KEY", "").run().exits(0);
    let home = Home::configured("tls-key = 'k'\n");
    home.call(["-s", "local:/tmp", "--tls-cert", "/c", "check"]).run().exits(0);
}

fn home_is_not_needed(options: &[&str]) -> Nxlock {
    Nxlock::new(["-s", "local:/tmp", "check"].into_iter().chain(options.iter().copied()))
}

#[test]
fn an_invalid_variable_is_refused_also_beside_its_option() {
    let redis = Redis::start();
    for words in ["run job --server-timeout 3s -- true", "--server-timeout 3s run job -- true"] {
        let call = redis.nxlock(words.split(' ')).env("NXLOCK_SERVER_TIMEOUT", "5");
        call.run().exits(64).says("invalid value '5' for '--server-timeout <D>'");
    }
}
