//! Scenes of waiters of which only the newest stays in the queue, on a real server.

use std::collections::BTreeMap;
use std::slice;

use redis::{Connection, cmd};

use crate::server::{Answer, Server, acquire, companion, release};

const HOLDER: &str = "nx1:holder:u@h:1:1:why";

fn token(who: &str, terms: &str) -> String {
    format!("nx1:{who}:u@h:1:1:why{terms}")
}

struct Scene {
    _server: Server,
    connection: Connection,
}

impl Scene {
    fn new() -> Scene {
        let server = Server::start();
        let connection = server.connect();
        Scene { _server: server, connection }
    }

    fn asks(&mut self, token: &str, mode: &str, ticket: &str) -> Answer {
        acquire(&mut self.connection, token, mode, &[("ticket", ticket)]).unwrap()
    }

    /// Asks without joining, and then joins; returns the answer to that.
    fn joins(&mut self, token: &str) -> Answer {
        let first = self.asks(token, "once", "0");
        assert!(first.waits(), "{first:?}");
        self.asks(token, "queue", &first.of("ticket"))
    }

    fn releases(&mut self, token: &str) {
        release(&mut self.connection, token).unwrap();
    }

    fn deletes(&mut self, name: &str) {
        cmd("DEL").arg(companion(name)).query::<()>(&mut self.connection).unwrap();
    }

    fn queue(&mut self) -> Vec<String> {
        cmd("ZRANGE").arg(companion("queue")).arg(0).arg(-1).query(&mut self.connection).unwrap()
    }

    fn noted(&mut self) -> BTreeMap<String, String> {
        cmd("HGETALL").arg(companion("newest")).query(&mut self.connection).unwrap()
    }
}

#[test]
fn of_waiters_that_were_killed_a_few_notes_stay_and_none_of_them_comes_in_however_late_it_asks() {
    for terms in [":newest", ":2:newest"] {
        let mut scene = Scene::new();
        let token = |number: usize| token(&format!("w{number:03}"), terms);
        assert!(scene.asks(HOLDER, "once", "0").is_granted());
        let mut tickets: Vec<String> = Vec::new();
        let mut sizes: Vec<usize> = Vec::new();
        for number in 0..100 {
            let answer = scene.asks(&token(number), "queue", "0");
            assert!(answer.waits(), "{answer:?}");
            tickets.push(answer.of("ticket"));
            sizes.push(scene.noted().iter().map(|(field, value)| field.len() + value.len()).sum());
        }
        assert_eq!(sizes[99], sizes[50], "bytes of notes: {sizes:?}");
        assert_eq!(scene.queue(), [token(99)]);
        let answer = scene.asks(&token(98), "queue", &tickets[98]);
        assert_eq!((answer.of("verdict"), answer.of("by")), ("superseded".into(), token(99)));
        // The newest gives up, and nobody has the lock: they have been dismissed all the same.
        scene.releases(&token(99));
        for lost in [false, true] {
            if lost {
                scene.releases(HOLDER);
                scene.deletes("queue");
                scene.deletes("waiters");
            }
            for (number, ticket) in tickets.iter().enumerate().take(99) {
                let answer = scene.asks(&token(number), "queue", ticket);
                assert_eq!(answer.of("verdict"), "superseded", "{number}: {answer:?}");
            }
        }
        assert!(scene.queue().is_empty());
        assert!(scene.asks(&token(100), "queue", "0").is_granted(), "one that comes now is newer than all of them");
    }
}

#[test]
fn a_newcomer_is_newer_than_all_that_are_noted_though_the_clock_was_set_back() {
    let mut scene = Scene::new();
    let token = |number: usize| token(&format!("w{number:03}"), ":newest");
    assert!(scene.asks(HOLDER, "queue", "0").is_granted());
    // Tickets of a clock that was years ahead.
    for number in 0..4 {
        assert!(scene.asks(&token(number), "queue", &format!("400000000000000{number}")).waits());
    }
    scene.releases(&token(3));
    let answer = scene.asks(&token(4), "queue", "0");
    assert_eq!((answer.of("verdict"), answer.of("place")), ("waiting".into(), "1".into()), "{answer:?}");
    assert_eq!(scene.asks(&token(2), "queue", "4000000000000002").of("verdict"), "superseded");
}

#[test]
fn a_reservation_dismisses_nobody_until_it_is_claimed() {
    let mut scene = Scene::new();
    let [reserved, older, newer] = ["reserved", "older", "newer"].map(|who| token(who, ":newest"));
    assert!(scene.asks(HOLDER, "queue", "0").is_granted());
    let ticket_of_older = scene.asks(&older, "once", "0").of("ticket");
    let ticket_of_reserved = scene.joins(&reserved).of("ticket");
    scene.releases(HOLDER);
    assert!(scene.joins(&newer).waits());
    scene.releases(&newer);
    assert!(scene.asks(&older, "queue", &ticket_of_older).waits());
    assert_eq!(scene.queue(), slice::from_ref(&older));
    assert!(scene.asks(&reserved, "queue", &ticket_of_reserved).is_granted());
    assert_eq!(scene.queue(), slice::from_ref(&older));
    let answer = scene.asks(&older, "queue", &ticket_of_older);
    assert_eq!((answer.of("verdict"), answer.of("by")), ("superseded".into(), reserved.clone()));
    assert!(scene.queue().is_empty());
    for token in [older, reserved] {
        scene.releases(&token);
    }
    assert!(scene.noted().is_empty(), "{:?}", scene.noted());
}

#[test]
fn a_slot_whose_lease_is_over_is_free_though_a_dismissed_waiter_found_it_first() {
    let mut scene = Scene::new();
    for holder in ["first", "second"] {
        assert!(scene.asks(&token(holder, ":2"), "once", "0").is_granted());
    }
    let [older, newer] = ["older", "newer"].map(|who| token(who, ":2:newest"));
    let [ticket_of_older, ticket_of_newer] = [&older, &newer].map(|token| scene.joins(token).of("ticket"));
    let over = cmd("ZADD").arg(companion("shares")).arg(1000).arg(token("first", ":2")).to_owned();
    over.query::<()>(&mut scene.connection).unwrap();
    assert_eq!(scene.asks(&older, "queue", &ticket_of_older).of("verdict"), "superseded");
    let answer = scene.asks(&newer, "queue", &ticket_of_newer);
    assert_eq!((answer.of("verdict"), answer.of("slot")), ("granted".into(), "0".into()), "{answer:?}");
}
