//! The thread that owns the store, so that a server that hangs blocks no key. Polls and breaks locks on request, one
//! request at a time. Must not know who reads its messages.

use std::io;

use crate::clock::Moment;
use crate::error::Error;
use crate::list::Subject;
use crate::lock::HolderId;
use crate::mailbox::{Arrived, MailSender, Mailbox};
use crate::report::{Named, Row};
use crate::retry::{self, ReleaseAnswer};
use crate::store::{Released, Store};
use crate::thread;
use crate::wait::Limit;

pub enum Task {
    Look,
    /// Break the lock if this holder still has it.
    Break(Named, HolderId),
}

pub enum Update {
    /// Number of locks found so far by a poll under way.
    Listing(usize),
    Seen(Vec<Row>),
    Error(Error),
    Broken(Named, Result<Released, Error>),
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

fn poll(mut store: Box<dyn Store>, subject: &Subject, mut tasks: Mailbox<Task>, updates: &MailSender<Update>) {
    while let Ok(arrival) = tasks.next(Limit::NONE) {
        let Arrived::Message(task) = arrival else { continue };
        updates.send(match task {
            Task::Look => match subject.look(store.as_mut(), &mut |found| updates.send(Update::Listing(found))) {
                Ok(rows) => Update::Seen(rows),
                Err(error) => Update::Error(error),
            },
            Task::Break(lock, id) => {
                let take = |limit: Limit<'_>| store.break_lock(&lock.name, &id, limit);
                let taken = retry::release(subject.timeout, Moment::NEVER, take).map(|taken| match taken {
                    ReleaseAnswer::Done | ReleaseAnswer::InDoubt => Released::Done,
                    ReleaseAnswer::NotYours(state) => Released::NotYours(state),
                });
                Update::Broken(lock, taken)
            }
        });
    }
}
