//! Scenes of shares, on a real server.

use redis::{Connection, cmd};

use crate::server::{Server, acquire, companion, is_deaf, listen, release};

const WRITER: &str = "nx1:writer:u@h:1:1:why";

fn reader(who: &str) -> String {
    format!("nx1:{who}:u@h:1:1:why:0")
}

/// Asks in the queue, with a channel that somebody may listen to.
fn asks(connection: &mut Connection, token: &str) -> bool {
    let channel = format!("c|{token}");
    acquire(connection, token, "queue", &[("channel", &channel)]).unwrap().is_granted()
}

#[test]
fn a_waiter_that_polls_behind_a_dead_one_comes_in_when_it_asks() {
    let server = Server::start();
    let mut c = server.connect();
    let (first, dead, polls) = (reader("first"), "nx1:dead:u@h:1:1:why:2", reader("polls"));
    let (third, ear) = ("nx1:third:u@h:1:1:why:3", listen(&server, &format!("c|{dead}")));
    let _first = listen(&server, &format!("c|{first}"));
    let _third = listen(&server, &format!("c|{third}"));
    assert!(asks(&mut c, WRITER));
    for waiter in [&first[..], third, dead, &polls] {
        assert!(!asks(&mut c, waiter));
    }
    drop(ear);
    is_deaf(&mut c, &format!("c|{dead}"));
    assert_eq!(release(&mut c, WRITER).unwrap().of("verdict"), "released");
    assert!(asks(&mut c, &first));
    assert!(asks(&mut c, &polls));
}

#[test]
fn terms_that_were_lost_and_are_written_again_expire() {
    let server = Server::start();
    let mut c = server.connect();
    assert!(asks(&mut c, &reader("one")));
    cmd("DEL").arg(companion("terms")).query::<()>(&mut c).unwrap();
    assert!(asks(&mut c, &reader("one")));
    let left: i64 = cmd("PTTL").arg(companion("terms")).query(&mut c).unwrap();
    assert!(left > 0, "the reader dies, and its terms stay: {left} ms");
}
