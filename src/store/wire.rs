//! Requests and their replies, over one connection that is opened when it is needed, and anew when
//! it has ended. Knows nothing of locks.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value};

use super::connect::{Fault, Link};
use super::endpoint::Endpoint;
use crate::clock::Moment;
use crate::limit::Limit;

pub struct Wire {
    pub endpoint: Endpoint,
    /// Bound on one connect and on one reply.
    pub timeout: Duration,
    /// When the last conversation began.
    pub began: Moment,
    link: Option<Link>,
    /// A connection with a request outstanding that nobody waits for any more: what is sent on it
    /// is executed after that request.
    spent: Option<Link>,
}

impl Wire {
    pub fn new(endpoint: Endpoint, timeout: Duration) -> Wire {
        Wire { endpoint, timeout, began: Moment::now(), link: None, spent: None }
    }

    /// A limit, cut to what one connect or one reply may take.
    pub fn within<'a>(&self, limit: Limit<'a>) -> Limit<'a> {
        limit.no_later_than(Moment::now() + self.timeout)
    }

    /// One request, one reply.
    pub fn ask(&mut self, request: &Cmd, limit: Limit<'_>) -> Result<Value, Fault> {
        let mut replies = self.ask_all(std::slice::from_ref(request), limit)?;
        replies.pop().ok_or_else(|| Fault::Garbled("it does not reply".into()))
    }

    /// Several requests in one go; as many replies.
    pub fn ask_all(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, Fault> {
        self.began = Moment::now();
        // One that the server has closed while it lay idle is of no use.
        let link = match self.link.take().filter(Link::is_quiet) {
            Some(link) => link,
            None => Link::open(&self.endpoint, self.within(limit))?,
        };
        self.converse(link, requests, limit)
    }

    /// The same, but only on the connection of the last request, whose state at the server matters.
    pub fn ask_on(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, Fault> {
        let gone = || Fault::Ended(io::Error::new(io::ErrorKind::NotConnected, "the connection was closed"));
        let link = self.link.take().ok_or_else(gone)?;
        self.converse(link, requests, limit)
    }

    fn converse(&mut self, mut link: Link, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, Fault> {
        let limit = self.within(limit);
        let packed = requests.iter().map(Cmd::get_packed_command).collect::<Vec<_>>().concat();
        if let Err(fault) = link.send(&packed, limit) {
            // A server that closes the door at once may have said why.
            if let Fault::Ended(_) = fault
                && let Ok(said @ Value::ServerError(_)) = link.receive(limit)
            {
                return Ok(vec![said; requests.len()]);
            }
            return Err(fault);
        }
        let mut replies = Vec::with_capacity(requests.len());
        for _ in requests {
            match link.receive(limit) {
                Ok(reply) => replies.push(reply),
                Err(fault) => {
                    if matches!(fault, Fault::TimeUp | Fault::Bell) {
                        self.spent = Some(link);
                    }
                    return Err(fault);
                }
            }
        }
        self.link = Some(link);
        Ok(replies)
    }

    /// Sends a request behind one that was given up, so that it cannot be executed before it. Nobody
    /// waits for the reply.
    pub fn send_behind(&mut self, request: &Cmd, limit: Limit<'_>) {
        if let Some(mut spent) = self.spent.take() {
            // If it cannot be sent, neither could what it is to undo be answered: the lease ends.
            let _ = spent.send(&request.get_packed_command(), limit);
        }
    }

    /// Readable when the connection has ended.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(Link::fd)
    }
}
