//! TLS: which certificates nxlock trusts, and the errors for others.
//!
//! `contract` tests that locks work over TLS as over anything else.

mod named;

use std::time::Duration;

use crate::support::certificates::{Certificate, certificates};
use crate::support::turns::{Turn, is_renewed};
use crate::support::{Authority, Done, Nxlock, Redis, Secure, answered, eventually, eventually_some};

/// Calls nxlock with only the certificates that the test names.
fn call<const N: usize>(url: &str, args: [&str; N]) -> Nxlock {
    Nxlock::new(args).env("NXLOCK_SERVER", url).env("SSL_CERT_FILE", certificates().another_authority())
}

/// Returns a call that would wait, with a long server timeout: a refusal has to come at once nevertheless.
fn patient(url: &str) -> Nxlock {
    call(url, ["run", "job", "--server-timeout", "20s", "--", "echo", "ran"])
}

/// Asserts that nxlock neither retries nor waits. To acquire, it connects twice: the second time to release what may
/// have been granted.
#[track_caller]
fn is_refused_at_once(server: &Secure, attempt: Nxlock) -> Done {
    let before = server.failed_handshakes();
    let done = attempt.run().exits(69).prints("").within(Duration::from_secs(3)).never_says("panicked");
    let seen = server.failed_handshakes() - before;
    assert!((1..=2).contains(&seen), "{seen} times: {}", done.both());
    done
}

#[test]
fn the_systems_authorities_are_believed_and_no_others() {
    let server = Secure::start();
    let believed = patient(&server.url()).env("SSL_CERT_FILE", certificates().authority());
    believed.run().exits(0).prints("ran\n").says_nothing();
    is_refused_at_once(&server, patient(&server.url())).says("certificate").says("--tls-ca");
}

#[test]
fn a_server_is_known_by_its_name_and_by_its_address() {
    let server = Secure::start();
    for host in ["localhost", "127.0.0.1"] {
        let token =
            server.lead(Nxlock::new(["acquire", "job", "--ttl", "1m"])).env("NXLOCK_SERVER", server.url_at(host));
        let token = token.run().exits(0).token();
        assert_eq!(server.redis.value("lock:job"), Some(token.clone()), "{host}");
        server.nxlock(["release", "job", &token]).run().exits(0);
    }
}

#[test]
fn a_certificate_that_cannot_be_trusted_is_refused_at_once_and_said_to_be_what_it_is() {
    let ours = certificates();
    let faults = [
        (ours.server_of_long_ago(), "expired"),
        (ours.server_elsewhere(), "127.0.0.1"),
        (ours.server_of_another_authority(), "--tls-ca"),
    ];
    for (certificate, clue) in faults {
        let server = Secure::with(&certificate);
        let attempt = patient(&server.url()).env("SSL_CERT_FILE", ours.authority());
        is_refused_at_once(&server, attempt).says("certificate").says(clue);
        for verb in [&["status"][..], &["acquire", "job", "--ttl", "1m"], &["release", "job", "x"]] {
            let attempt = server.nxlock(verb.iter().copied()).env("NXLOCK_SERVER_TIMEOUT", "20s");
            is_refused_at_once(&server, attempt).says("certificate");
        }
    }
}

#[test]
fn a_server_that_wants_a_certificate_of_its_clients_lets_nobody_in_without() {
    let server = Secure::mutual();
    let attempt = patient(&server.url()).env("SSL_CERT_FILE", certificates().authority());
    is_refused_at_once(&server, attempt).says("the server requires a client certificate").says("--tls-cert");
}

#[test]
fn a_server_that_cannot_be_trusted_is_told_no_password() {
    let server = Secure::with(&certificates().server_of_another_authority());
    server.redis.ask::<()>(&["ACL", "SETUSER", "bob", "on", ">right", "~*", "&*", "+@all"]);
    let url = format!("rediss://bob:s3cret@127.0.0.1:{}", server.redis.port());
    let done = is_refused_at_once(&server, patient(&url).env("SSL_CERT_FILE", certificates().authority()));
    done.never_says("s3cret");
    let denied: Vec<redis::Value> = server.redis.ask(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
}

#[test]
fn a_port_without_tls_is_said_to_be_that() {
    let redis = Redis::on_tcp(&[]);
    let url = format!("rediss://127.0.0.1:{}", redis.port());
    for verb in
        [&["status"][..], &["run", "job", "--", "echo", "ran"], &["run", "job", "-w", "1m", "--", "echo", "ran"]]
    {
        let call = Nxlock::new(verb.iter().copied()).env("NXLOCK_SERVER", &url).env("NXLOCK_SERVER_TIMEOUT", "1s");
        let call = call.env("SSL_CERT_FILE", certificates().authority());
        call.run().exits(69).prints("").says("TLS").says("redis://").within(Duration::from_secs(2));
    }
}

#[test]
fn a_port_with_tls_is_said_to_be_that() {
    let server = Secure::start();
    let url = format!("redis://127.0.0.1:{}", server.redis.port());
    for verb in
        [&["status"][..], &["run", "job", "--", "echo", "ran"], &["run", "job", "-w", "1m", "--", "echo", "ran"]]
    {
        let call = || Nxlock::new(verb.iter().copied()).env("NXLOCK_SERVER", &url).env("NXLOCK_SERVER_TIMEOUT", "1s");
        answered(call).exits(69).prints("").says("TLS").says("rediss://").within(Duration::from_secs(2));
    }
}

#[test]
fn a_server_that_hangs_in_the_greeting_holds_nobody_longer_than_the_server_timeout() {
    let server = Secure::start();
    server.redis.hang();
    for verb in [&["status"][..], &["run", "job", "--", "echo", "ran"], &["run", "job", "-n", "--", "echo", "ran"]] {
        // On a busy machine, the start of a call alone may take longer than all that is allowed here.
        eventually_some("it gives up in time", || {
            let call = server.nxlock(verb.iter().copied()).env("NXLOCK_SERVER_TIMEOUT", "500ms");
            let done = call.run().exits(69).prints("").says("no answer to the TLS handshake");
            assert!(done.took >= Duration::from_millis(490), "{verb:?} gave up after {:?}", done.took);
            Some(done).filter(|done| done.took < Duration::from_secs(3))
        });
    }
    server.redis.resume();
    eventually("the server has heard all that was said", || server.redis.others_connected() == 0);
}

#[test]
fn a_connection_that_is_cut_is_made_again_by_those_who_hold_and_those_who_wait() {
    let server = Secure::start();
    // Each attempt to renew has a sixth of it, and needs a new connection here.
    let holder = Turn::had(&server, &["-t", "10s"]);
    let mut waiter = Turn::queued(&server, &["--server-timeout", "20s"]);
    for _ in 0..3 {
        for kind in ["normal", "pubsub"] {
            server.redis.ask::<()>(&["CLIENT", "KILL", "TYPE", kind]);
        }
        is_renewed(&server);
    }
    eventually("the waiter listens again", || {
        server.redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len() == 1
    });
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_server_that_gets_another_certificate_stops_nobody_before_the_lease_ends() {
    let server = Secure::start();
    let holder = Turn::had(&server, &["-t", "15s"]);
    let show = |certificate: &Certificate| {
        let (chain, key) = (certificate.chain.display().to_string(), certificate.key.display().to_string());
        server.redis.ask::<()>(&["CONFIG", "SET", "tls-cert-file", &chain, "tls-key-file", &key]);
        // That of a holder is of the second type once it listens.
        for kind in ["normal", "pubsub"] {
            server.redis.ask::<()>(&["CLIENT", "KILL", "TYPE", kind]);
        }
    };
    // The administrator installs a wrong certificate, and notices.
    show(&certificates().server_of_long_ago());
    server.nxlock(["status"]).run().exits(69).says("expired");
    show(&certificates().server());
    is_renewed(&server);
    holder.leaves();
}

#[test]
fn a_user_of_an_acl_logs_in_over_tls_and_takes_a_database() {
    let server = Secure::start();
    server.redis.ask::<()>(&["ACL", "SETUSER", "deploy", "on", ">s3cret", "~*", "&*", "+@all"]);
    let url = format!("rediss://deploy:s3cret@127.0.0.1:{}/3", server.redis.port());
    let call = |args: &[&'static str]| server.nxlock(args.iter().copied()).env("NXLOCK_SERVER", &url);
    let done = call(&["-v", "run", "job", "-c", "nxlock status job"]).run().exits(0).never_says("s3cret");
    assert!(done.stderr.contains("rediss://"), "{}", done.stderr);
    let token = call(&["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    assert!(!server.redis.exists("lock:job"), "it is in another database");
    call(&["release", "job"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    let wrong = format!("rediss://deploy:wrong-s3cret@127.0.0.1:{}", server.redis.port());
    server.nxlock(["status"]).env("NXLOCK_SERVER", wrong).run().exits(77).says("WRONGPASS").never_says("s3cret");
}
