//! The one who looks: a thread that has the store, so that a server that hangs holds up no key. Looks and breaks when
//! it is told to, one after the other, and knows nothing of who reads its letters.

use std::io;
use std::thread;

use crate::clock::Moment;
use crate::inbox::{Arrival, Inbox, NONE, Postbox};
use crate::limit::Limit;
use crate::lock::HolderId;
use crate::look::Subject;
use crate::report::{Named, Row};
use crate::signals::deaf;
use crate::store::{Released, Store, Trouble};
use crate::wait::{GivenBack, give_back};

pub enum Order {
    Look,
    /// To be taken from that holder, and from no other.
    Break(Named, HolderId),
}

pub enum Letter {
    /// So many have been found by now, and the look goes on.
    Listing(usize),
    Seen(Vec<Row>),
    Trouble(Trouble),
    Broken(Named, Result<Released, Trouble>),
}

/// Starts it. It ends with the program, at the latest.
///
/// # Errors
/// As pthread_create(3), and those of an inbox.
pub fn begin(store: Box<dyn Store>, subject: Subject) -> io::Result<(Inbox<Letter>, Postbox<Order>)> {
    let (letters, post) = Inbox::open()?;
    let (orders, order) = Inbox::open()?;
    let observe = move || observe(store, &subject, orders, &post);
    deaf(|| thread::Builder::new().name("observer".into()).spawn(observe))?;
    Ok((letters, order))
}

fn observe(mut store: Box<dyn Store>, subject: &Subject, mut orders: Inbox<Order>, letters: &Postbox<Letter>) {
    while let Ok(arrival) = orders.next(Moment::NEVER, NONE) {
        let Arrival::Letter(order) = arrival else { continue };
        letters.send(match order {
            Order::Look => match subject.look(store.as_mut(), &mut |found| letters.send(Letter::Listing(found))) {
                Ok(rows) => Letter::Seen(rows),
                Err(trouble) => Letter::Trouble(trouble),
            },
            Order::Break(lock, id) => {
                let take = |limit: Limit<'_>| store.take_away(&lock.name, &id, limit);
                let taken = give_back(subject.timeout, Moment::NEVER, take).map(|taken| match taken {
                    GivenBack::Done | GivenBack::InDoubt => Released::Done,
                    GivenBack::NotYours(occupancy) => Released::NotYours(occupancy),
                });
                Letter::Broken(lock, taken)
            }
        });
    }
}
