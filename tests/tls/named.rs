//! The files that options name: a certificate authority, and the client's certificate and key.

use super::{call, is_refused_at_once, patient};
use crate::support::certificates::{Certificate, certificates};
use crate::support::{Authority, Secure};

#[test]
fn a_private_authority_is_named_by_a_flag_or_a_variable() {
    let server = Secure::start();
    let ca = certificates().authority();
    let flag = ca.to_str().unwrap();
    call(&server.url(), ["run", "job", "--tls-ca", flag, "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    call(&server.url(), ["run", "job", "--", "echo", "ran"]).env("NXLOCK_TLS_CA", &ca).run().exits(0).prints("ran\n");
    // As everywhere, the option takes precedence.
    let wrong = certificates().another_authority();
    call(&server.url(), ["status", "--tls-ca", flag]).env("NXLOCK_TLS_CA", wrong).run().exits(0);
}

#[test]
fn an_authority_that_is_named_stands_in_place_of_the_systems() {
    let server = Secure::start();
    let other = patient(&server.url()).env("SSL_CERT_FILE", certificates().authority());
    is_refused_at_once(&server, other.env("NXLOCK_TLS_CA", certificates().another_authority())).says("certificate");
}

#[test]
fn a_server_that_wants_a_certificate_of_its_clients_is_shown_one() {
    let server = Secure::mutual();
    let with = |certificate: &Certificate| {
        let call = patient(&server.url()).env("NXLOCK_TLS_CA", certificates().authority());
        call.env("NXLOCK_TLS_CERT", &certificate.chain).env("NXLOCK_TLS_KEY", &certificate.key)
    };
    with(&certificates().client()).run().exits(0).prints("ran\n").says_nothing();
    let Certificate { chain, key } = certificates().client();
    let (chain, key, ca) = (chain.display().to_string(), key.display().to_string(), certificates().authority());
    let flags = ["status", "--tls-cert", &chain, "--tls-key", &key, "--tls-ca", ca.to_str().unwrap()];
    call(&server.url(), flags).run().exits(0);
    // Without a certificate, or with one of another authority.
    let none = patient(&server.url()).env("NXLOCK_TLS_CA", certificates().authority());
    is_refused_at_once(&server, none).says("certificate").says("--tls-cert");
    is_refused_at_once(&server, with(&certificates().client_of_another_authority())).says("certificate");
}

#[test]
fn files_that_cannot_be_used_are_named_before_anybody_is_asked() {
    let server = Secure::mutual();
    let ours = certificates();
    let (client, ca) = (ours.client(), ours.authority());
    let no_file = server.directory().join("no-such.pem");
    let no_pem = server.directory().join("no-pem");
    std::fs::write(&no_pem, "nothing of the kind\n").unwrap();
    for (ca, chain, key, named) in [
        (&no_file, &client.chain, &client.key, &no_file),
        (&no_pem, &client.chain, &client.key, &no_pem),
        (&ca, &no_file, &client.key, &no_file),
        (&ca, &client.chain, &no_file, &no_file),
        (&ca, &no_pem, &client.key, &no_pem),
        (&ca, &client.chain, &no_pem, &no_pem),
    ] {
        let call = patient(&server.url()).env("NXLOCK_TLS_CA", ca).env("NXLOCK_TLS_CERT", chain);
        call.env("NXLOCK_TLS_KEY", key).run().exits(78).prints("").says(named.to_str().unwrap());
    }
    // Certificate and key need each other, and have to match.
    let call = || patient(&server.url()).env("NXLOCK_TLS_CA", &ca);
    let status = call().env("NXLOCK_TLS_CERT", &client.chain).run().prints("").says("key").status;
    assert!(matches!(status.code(), Some(64 | 78)), "{status}");
    let status = call().env("NXLOCK_TLS_KEY", &client.key).run().prints("").says("cert").status;
    assert!(matches!(status.code(), Some(64 | 78)), "{status}");
    let pair = call().env("NXLOCK_TLS_CERT", &client.chain).env("NXLOCK_TLS_KEY", ours.server().key);
    pair.run().exits(78).prints("").says("key");
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_words() {
    let server = Secure::mutual();
    let ours = certificates();
    let (client, other) = (ours.client(), ours.client_of_another_authority());
    let half = server.directory().join("half");
    let whole = std::fs::read(&client.chain).unwrap();
    std::fs::write(&half, &whole[..whole.len() / 2]).unwrap();
    let with = |chain, key| {
        let call = patient(&server.url()).env("NXLOCK_TLS_CA", ours.authority());
        call.env("NXLOCK_TLS_CERT", chain).env("NXLOCK_TLS_KEY", key).run().exits(78).prints("")
    };
    with(&half, &client.key).says("it ends in the middle of a certificate");
    with(&client.chain, &other.key).says("--tls-key").says("it is not the key of the certificate in --tls-cert");
}
