//! The thread that owns the store, so that a server that hangs blocks no key. Polls locks, and acts on them on request, one
//! request at a time. Must not know who reads its messages.

use std::io;
use std::time::Duration;

use super::model::Action;
use crate::asking::{self, Outcome};
use crate::clock::{Moment, wall};
use crate::error::Error;
use crate::list::{Seen, Subject};
use crate::lock::{Asker, HolderId, Owner, Token};
use crate::mailbox::{Arrived, MailSender, Mailbox};
use crate::report::Named;
use crate::retry::{self, ReleaseAnswer};
use crate::store::{Released, Store};
use crate::thread;
use crate::wait::Limit;

pub enum Task {
    Look,
    /// Do this to the holder, if it still has the lock.
    Do(Action, Named, HolderId),
}

pub enum Update {
    /// Number of locks found so far by a poll under way.
    Listing(usize),
    Seen(Seen),
    Error(Error),
    Broken(Named, Result<Released, Error>),
    Asked(Named, Result<Outcome, Error>),
}

/// Starts the thread. It ends with the program, at the latest.
///
/// # Errors
/// Those of pthread_create(3) and of opening a mailbox.
pub fn begin(store: Box<dyn Store>, subject: Subject) -> io::Result<(Mailbox<Update>, MailSender<Task>)> {
    let (updates, post) = Mailbox::open()?;
    let (tasks, task) = Mailbox::open()?;
    let poll = move || poll(store, &subject, tasks, &post);
    thread::spawn("poller", poll)?;
    Ok((updates, task))
}

/// Asks a holder, or breaks its lock.
fn act(store: &mut dyn Store, action: Action, lock: Named, asker: Result<Asker, Error>, timeout: Duration) -> Update {
    if action == Action::Ask {
        let asked = asker.and_then(|asker| asking::ask(store, &lock.name, &asker, timeout));
        return Update::Asked(lock, asked);
    }
    let taken = asker.and_then(|breaker| {
        let take = |limit: Limit<'_>| store.break_lock(&lock.name, &breaker, limit);
        Ok(match retry::release(timeout, Moment::NEVER, None, take)? {
            ReleaseAnswer::Done | ReleaseAnswer::InDoubt => Released::Done,
            ReleaseAnswer::NotYours(state) => Released::NotYours(*state),
        })
    });
    Update::Broken(lock, taken)
}

fn poll(mut store: Box<dyn Store>, subject: &Subject, mut tasks: Mailbox<Task>, updates: &MailSender<Update>) {
    while let Ok(arrival) = tasks.next(Limit::NONE) {
        let Arrived::Message(task) = arrival else { continue };
        updates.send(match task {
            Task::Look => match subject.look(store.as_mut(), &mut |found| updates.send(Update::Listing(found))) {
                Ok(seen) => Update::Seen(seen),
                Err(error) => Update::Error(error),
            },
            Task::Do(action, lock, id) => {
                let by = Token::mint(&Owner::this_process(), None, wall());
                let asker = by.map(|by| Asker { of: id, by });
                let asker = asker.map_err(|error| Error::internal("cannot say who wants the lock", &error));
                act(store.as_mut(), action, lock, asker, subject.timeout)
            }
        });
    }
}
