//! Passwords and certificates that change while nxlock runs: each connection uses what the files have then.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::certificates::{Certificate, certificates};
use crate::support::turns::{Turn, is_free, is_queued, is_renewed, queue, turn};
use crate::support::{
    Authority, Cluster, Fate, Five, Nxlock, Proxy, Redis, Secure, Sentinels, eventually, eventually_some, is_alive,
    now, replace_file,
};

/// Servers where nxlock logs in as bob, and the file of bob's password.
struct Login<'a> {
    servers: Vec<&'a Redis>,
    url: String,
    home: TempDir,
}

impl<'a> Login<'a> {
    fn at(servers: impl IntoIterator<Item = &'a Redis>, url: String) -> Login<'a> {
        let login = Login { servers: servers.into_iter().collect(), url, home: tempfile::tempdir().unwrap() };
        login.servers_want("f1rst");
        login.file_has("f1rst");
        login
    }

    fn of_one(redis: &'a Redis) -> Login<'a> {
        Login::at([redis], format!("{}?user=bob", redis.url()))
    }

    fn file(&self) -> PathBuf {
        self.home.path().join("password")
    }

    fn file_has(&self, password: &str) {
        replace_file(&self.file(), password);
    }

    /// Changes the password of bob, and ends bob's connections.
    fn servers_want(&self, password: &str) {
        for server in &self.servers {
            let password = format!(">{password}");
            server.ask::<()>(&["ACL", "SETUSER", "bob", "on", "resetpass", &password, "~*", "&*", "+@all"]);
        }
        self.connections_end();
    }

    fn connections_end(&self) {
        for server in &self.servers {
            server.ask::<i64>(&["CLIENT", "KILL", "USER", "bob"]);
        }
    }
}

impl Authority for Login<'_> {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn directory(&self) -> PathBuf {
        self.home.path().to_owned()
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        call.env("NXLOCK_SERVER", &self.url).env("NXLOCK_PASSWORD_FILE", self.file())
    }
}

/// The same, but a command prints what the file has.
struct ByCommand<'a>(Login<'a>);

impl Authority for ByCommand<'_> {
    fn url(&self) -> String {
        self.0.url()
    }

    fn directory(&self) -> PathBuf {
        self.0.directory()
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        let print = format!("cat {}", self.0.file().display());
        call.env("NXLOCK_SERVER", &self.0.url).env("NXLOCK_PASSWORD_COMMAND", print)
    }
}

/// Lets the holder leave, and then the waiter.
#[track_caller]
fn are_served(login: &Login<'_>, holder: Turn, mut waiter: Turn) {
    holder.leaves();
    waiter.up();
    waiter.leaves();
    assert!(is_free(login));
}

/// Waits until a waiter has another connection than its first one. nxlock reads the password again only for a new one.
#[track_caller]
fn has_another_connection(waiter: &Turn) {
    let connections = || waiter.running.stderr().matches("] connected to ").count();
    eventually("the waiter has another connection", || connections() > 1);
}

/// The password changes under a holder and a waiter: in the file first, then at the server first.
fn a_new_password_is_used_by_those_who_hold_and_those_who_wait(login: &Login<'_>) {
    let mut holder = Turn::had(login, &["-t", "9s"]);
    let mut waiter = Turn::of(login.nxlock(turn(&["-v"])));
    is_queued(login, waiter.pid());
    login.file_has("s3cond");
    login.servers_want("s3cond");
    is_renewed(login);
    login.servers_want("th1rd");
    holder.running.says("WRONGPASS");
    waiter.running.says("WRONGPASS");
    login.file_has("th1rd");
    is_renewed(login);
    is_queued(login, waiter.pid());
    assert!(!holder.running.stderr().contains("lost"), "{}", holder.running.stderr());
    holder.leaves();
    waiter.up();
    for password in ["f1rst", "s3cond", "th1rd"] {
        assert!(!waiter.running.stderr().contains(password));
    }
    waiter.leaves();
    assert!(is_free(login));
}

#[test]
fn at_one_server_a_new_password_is_used() {
    let redis = Redis::start();
    a_new_password_is_used_by_those_who_hold_and_those_who_wait(&Login::of_one(&redis));
}

#[test]
fn at_a_master_that_sentinels_name_a_new_password_is_used() {
    let group = Sentinels::of_one();
    let url = group.url().replacen("://", "://bob@", 1);
    a_new_password_is_used_by_those_who_hold_and_those_who_wait(&Login::at(&group.servers, url));
}

#[test]
fn at_the_nodes_of_a_cluster_a_new_password_is_used() {
    let cluster = Cluster::of_masters();
    let url = cluster.url().replacen("://", "://bob@", 1);
    a_new_password_is_used_by_those_who_hold_and_those_who_wait(&Login::at(&cluster.nodes, url));
}

#[test]
fn at_several_servers_a_new_password_is_used() {
    let five = Five::start();
    let urls: Vec<String> = five.each().iter().map(|redis| format!("{}?user=bob", redis.url())).collect();
    let login = Login::at(five.each(), urls.join(" "));
    let holder = Turn::had(&login, &["-t", "9s"]);
    let waiter = Turn::waiting(&login, &[]);
    login.file_has("s3cond");
    login.servers_want("s3cond");
    is_renewed(&login);
    login.servers_want("th1rd");
    login.connections_end();
    login.file_has("th1rd");
    is_renewed(&login);
    are_served(&login, holder, waiter);
}

#[test]
fn a_command_prints_the_password_anew_for_each_connection() {
    let redis = Redis::start();
    let login = ByCommand(Login::of_one(&redis));
    let mut holder = Turn::had(&login, &["-t", "9s"]);
    let mut waiter = Turn::of(login.nxlock(turn(&["-v"])));
    is_queued(&login.0, waiter.pid());
    login.0.file_has("s3cond");
    login.0.servers_want("s3cond");
    is_renewed(&login.0);
    has_another_connection(&waiter);
    fs::remove_file(login.0.file()).unwrap();
    login.0.connections_end();
    holder.running.says("exited with status 1: cat: ");
    waiter.running.says("exited with status 1: cat: ");
    login.0.file_has("s3cond");
    is_renewed(&login.0);
    is_queued(&login.0, waiter.pid());
    are_served(&login.0, holder, waiter);
}

#[test]
fn at_several_servers_a_command_prints_the_password_for_each() {
    let five = Five::start();
    let urls: Vec<String> = five.each().iter().map(|redis| format!("{}?user=bob", redis.url())).collect();
    let login = ByCommand(Login::at(five.each(), urls.join(" ")));
    let holder = Turn::had(&login, &["-t", "9s"]);
    login.0.file_has("s3cond");
    login.0.servers_want("s3cond");
    is_renewed(&login.0);
    holder.leaves();
    assert!(is_free(&login.0));
}

#[test]
fn a_command_that_takes_longer_than_a_renewal_may_serves_the_next_one() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let began = login.home.path().join("began");
    // At the first connection it does not.
    let (log, file) = (began.display(), login.file());
    let slowly = format!("echo x >> {log}; [ $(wc -l < {log}) = 1 ] || sleep 1.3; cat {}", file.display());
    // A renewal is given up after a second.
    let call = login.nxlock(turn(&["-t", "6s", "-v", "--server-timeout", "15s"]));
    let call = call.env("NXLOCK_PASSWORD_FILE", "");
    let mut holder = Turn::of(call.env("NXLOCK_PASSWORD_COMMAND", slowly));
    holder.up();
    login.connections_end();
    holder.running.says("no answer within");
    is_renewed(&login);
    assert_eq!(fs::read_to_string(&began).unwrap(), "x\nx\n");
    holder.leaves();
}

#[test]
fn a_guard_has_the_password_printed_too() {
    let redis = Redis::start();
    let login = ByCommand(Login::of_one(&redis));
    let holder = Turn::had(&login, &["-t", "10m"]);
    login.0.file_has("s3cond");
    login.0.servers_want("s3cond");
    holder.running.signal(Signal::SIGKILL);
    eventually("the guard gives it back", || is_free(&login.0));
    drop(holder);
}

/// Checks that a script whose keeper holds the lock goes on with a new password, and gives the lock back with it.
#[track_caller]
fn goes_on_with_a_new_password(login: &Login<'_>, script: Nxlock) {
    let (reader, until_dropped) = std::io::pipe().unwrap();
    let mut running = script.stdin_from(reader).start();
    running.line("up");
    login.file_has("s3cond");
    login.servers_want("s3cond");
    is_renewed(login);
    drop(until_dropped);
    running.finish().exits(0);
    assert!(is_free(login));
}

#[test]
fn a_keeper_has_the_password_printed_in_the_directory_of_its_caller() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let script = r#"cd "$1"; nxlock acquire job --while-pid $$ --ttl 9s --password-command 'cat password' > token || exit
        echo up; read x; nxlock release job "$(cat token)" --password-command 'cat password'"#;
    let call = login.sh(script, &[login.home.path().to_str().unwrap()]).env("NXLOCK_PASSWORD_FILE", "");
    goes_on_with_a_new_password(&login, call);
}

#[test]
fn a_wrong_password_at_the_first_contact_is_refused_at_once() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    login.file_has("wr0ng");
    login.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]).run().exits(77).prints("").says("WRONGPASS");
    fs::remove_file(login.file()).unwrap();
    login.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]).run().exits(78).prints("").says("no such file");
    login.file_has("f1rst");
    login.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
}

/// Replaces the password of file and server after nxlock has read it, and before its login reaches the server.
#[track_caller]
fn a_password_that_is_replaced_meanwhile_is_read_once_more(login: &Login<'_>, source: (&str, &str)) {
    let proxy = Proxy::by_command(login.servers[0], |number, _| if number == 1 { Fate::Held } else { Fate::Delivered });
    let call = proxy.nxlock(["run", "job", "-n", "--server-timeout", "15s", "--", "echo", "ran"]);
    let call = call.env(source.0, source.1).env("NXLOCK_SERVER", format!("{}?user=bob", proxy.url())).start();
    eventually("its login is on its way", || proxy.requests() == 1);
    login.file_has("s3cond");
    login.servers_want("s3cond");
    proxy.lets_go();
    call.finish().exits(0).prints("ran\n");
    login.file_has("f1rst");
    login.servers_want("f1rst");
}

#[test]
fn a_password_that_is_replaced_while_nxlock_logs_in_is_read_once_more() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let file = login.file().display().to_string();
    a_password_that_is_replaced_meanwhile_is_read_once_more(&login, ("NXLOCK_PASSWORD_FILE", &file));
    let print = format!("cat {file}");
    a_password_that_is_replaced_meanwhile_is_read_once_more(&login, ("NXLOCK_PASSWORD_COMMAND", &print));
}

#[test]
fn a_password_that_is_replaced_while_nxlock_logs_in_at_a_sentinel_is_read_once_more() {
    let group = Sentinels::of_one();
    let url = group.url().replacen("://", "://bob@", 1);
    let login = Login::at(&group.servers, url);
    group.sentinels[0].ask::<()>(&["ACL", "SETUSER", "bob", "on", ">f1rst", "+@all"]);
    group.sentinels[0].ask::<()>(&["ACL", "SETUSER", "default", "off"]);
    // The sentinel is sent the old one.
    let old = login.home.path().join("old");
    fs::write(&old, "").unwrap();
    let print = format!("rm {} 2> /dev/null && echo 0ld || cat {}", old.display(), login.file().display());
    let call = login.nxlock(["run", "job", "-n", "--", "echo", "ran"]).env("NXLOCK_PASSWORD_FILE", "");
    call.env("NXLOCK_PASSWORD_COMMAND", print).run().exits(0).prints("ran\n");
}

#[test]
fn a_command_that_prints_another_wrong_password_each_time_is_run_twice() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let printed = login.home.path().join("printed");
    let print = format!("echo x >> {0}; wc -l < {0}", printed.display());
    let call = login.nxlock(["status", "job"]).env("NXLOCK_PASSWORD_FILE", "");
    call.env("NXLOCK_PASSWORD_COMMAND", print).run().exits(77).prints("").says("WRONGPASS");
    assert_eq!(fs::read_to_string(&printed).unwrap(), "x\nx\n");
}

#[test]
fn a_wait_ends_as_for_a_server_that_is_away_if_the_password_stays_wrong() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let holder = Turn::had(&login, &["-t", "10m"]);
    // On a busy machine the time of a waiter may end before the password changes: then another one comes.
    let waiter = eventually_some("the password changes while one waits", || {
        let began = now();
        let mut waiter = Turn::of(login.nxlock(turn(&["-w", "2s"])));
        let pid = waiter.pid();
        eventually("it is in the queue, or its time has ended", || {
            waiter.running.has_ended() || queue(&login).contains(&pid)
        });
        login.servers_want("s3cond");
        if began.elapsed() < Duration::from_millis(1500) {
            return Some(waiter);
        }
        login.servers_want("f1rst");
        waiter.finish();
        None
    });
    waiter.finish().exits(69).says("WRONGPASS");
    login.file_has("s3cond");
    holder.leaves();
}

#[test]
fn a_file_that_cannot_be_read_is_tried_again_and_one_that_has_gone_is_as_it_was() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let mut holder = Turn::had(&login, &["-t", "9s"]);
    let mut waiter = Turn::of(login.nxlock(turn(&["-v"])));
    is_queued(&login, waiter.pid());
    // Half of a rotation.
    login.file_has("");
    login.connections_end();
    holder.running.says("its first line is empty");
    waiter.running.says("its first line is empty");
    login.file_has("f1rst");
    is_renewed(&login);
    is_queued(&login, waiter.pid());
    has_another_connection(&waiter);
    fs::remove_file(login.file()).unwrap();
    login.connections_end();
    holder.running.says("has gone: using what was last read from it");
    waiter.running.says("has gone: using what was last read from it");
    login.file_has("f1rst");
    is_renewed(&login);
    are_served(&login, holder, waiter);
}

#[test]
fn a_lock_is_given_back_with_a_new_password() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let holder = Turn::had(&login, &["-t", "10m"]);
    login.file_has("s3cond");
    // It does not learn of it before its end.
    holder.freeze();
    login.servers_want("s3cond");
    let pid = holder.pid();
    let mut holder = holder;
    holder.is_told();
    holder.goes_on();
    holder.running.finish().exits(0);
    assert!(!is_alive(pid) && is_free(&login));
}

#[test]
fn a_guard_gives_a_lock_back_with_a_new_password() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let holder = Turn::had(&login, &["-t", "10m"]);
    login.file_has("s3cond");
    login.servers_want("s3cond");
    holder.running.signal(Signal::SIGKILL);
    eventually("the guard gives it back", || is_free(&login));
    drop(holder);
}

#[test]
fn a_keeper_uses_a_new_password_though_it_has_left_the_directory_of_a_relative_path() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let script = r#"cd "$1"; nxlock acquire job --while-pid $$ --ttl 9s --password-file password > token || exit
        echo up; read x; nxlock release job "$(cat token)""#;
    goes_on_with_a_new_password(&login, login.sh(script, &[login.home.path().to_str().unwrap()]));
}

#[test]
fn a_password_from_a_pipe_is_kept() {
    let redis = Redis::start();
    let login = Login::of_one(&redis);
    let script = r#"printf f1rst | nxlock run job -t 6s --password-file /dev/stdin -- sh -c "$1""#;
    let up = login.home.path().join("up");
    let command = format!("echo up > {0}; while [ -e {0} ]; do sleep 0.05; done", up.display());
    let running = login.sh(script, &[&command]).env("NXLOCK_PASSWORD_FILE", "").start();
    eventually("it runs", || up.exists());
    login.connections_end();
    eventually("it has logged in again", || redis.ask::<String>(&["CLIENT", "LIST"]).contains(" user=bob "));
    is_renewed(&login);
    fs::remove_file(up).unwrap();
    running.finish().exits(0);
    assert!(is_free(&login));
}

/// Copies of a certificate's files, which a test replaces.
struct Copies(TempDir);

impl Copies {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn are(&self, authority: &Path, Certificate { chain, key }: &Certificate) {
        for (name, from) in [("ca", authority), ("cert", chain), ("key", key)] {
            replace_file(&self.path(name), fs::read(from).unwrap());
        }
    }
}

/// A server that requires a certificate of its clients, whose files are copies.
struct Renewed {
    server: Secure,
    copies: Copies,
}

impl Renewed {
    /// Gives the server another certificate, of an authority that it trusts for its clients as well, and ends all
    /// connections.
    fn server_has(&self, certificate: &Certificate, authority: &Path) {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let (chain, key, authority) = (path(&certificate.chain), path(&certificate.key), path(authority));
        let words = ["CONFIG", "SET", "tls-cert-file", &chain, "tls-key-file", &key, "tls-ca-cert-file", &authority];
        self.server.redis.ask::<()>(&words);
        for kind in ["normal", "pubsub"] {
            self.server.redis.ask::<()>(&["CLIENT", "KILL", "TYPE", kind]);
        }
    }
}

impl Authority for Renewed {
    fn url(&self) -> String {
        self.server.url()
    }

    fn directory(&self) -> PathBuf {
        self.copies.0.path().to_owned()
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        let call = call.env("NXLOCK_SERVER", self.url()).env("NXLOCK_TLS_CA", self.copies.path("ca"));
        call.env("NXLOCK_TLS_CERT", self.copies.path("cert")).env("NXLOCK_TLS_KEY", self.copies.path("key"))
    }
}

#[test]
fn certificates_and_authorities_are_read_anew() {
    let ours = certificates();
    let tls = Renewed { server: Secure::mutual(), copies: Copies(tempfile::tempdir().unwrap()) };
    tls.copies.are(&ours.authority(), &ours.client());
    let mut holder = Turn::had(&tls, &["-t", "30s"]);
    let mut waiter = Turn::of(tls.nxlock(turn(&["-v"])));
    is_queued(&tls, waiter.pid());
    tls.server_has(&ours.server_of_another_authority(), &ours.another_authority());
    holder.running.says("signed by an untrusted authority");
    waiter.running.says("signed by an untrusted authority");
    // Half of it: the server does not trust this client.
    replace_file(&tls.copies.path("ca"), fs::read(ours.another_authority()).unwrap());
    waiter.running.says("the server does not trust the client certificate");
    tls.copies.are(&ours.another_authority(), &ours.client_of_another_authority());
    is_renewed(&tls);
    is_queued(&tls, waiter.pid());
    holder.leaves();
    waiter.up();
    waiter.leaves();
    assert!(is_free(&tls));
}
