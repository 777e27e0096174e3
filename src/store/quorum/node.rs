//! One server of several, asked by a thread of its own: one order after the other, so that what undoes a
//! request is always behind it. Knows nothing of the other servers, and decides nothing.
//!
//! What undoes a request in doubt is sent behind it on the same connection, and no answer is waited for: its token
//! is never used again, so that it can take nothing else away, whenever it is carried out.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Fence, LockName, LockState, StateKind, Token, Ttl};
use crate::mailbox::MailSender;
use crate::store::redis::Server;
use crate::store::redis::reply::Operation;
use crate::store::{AcquireMode, Acquired, Released, Renewed, Store};
use crate::wait::Limit;
use crate::{log, thread};

/// What a node is to do.
#[derive(Clone)]
pub enum Request {
    Acquire(Claim, Ttl),
    /// Raise the fence to what a majority was given, where its vote still stands.
    Raise(Claim, Fence, Ttl),
    Renew(Claim, Ttl),
    /// Set the key again if the last renewal did not find it.
    Heal(Claim, Ttl),
    /// Undo what a lost ballot may have been granted, with its token, which nobody else can have used: nothing is asked
    /// where nothing was granted, and no answer is waited for.
    Undo(Claim),
    /// Undo what is outstanding, and nothing that was granted.
    Leave(Claim),
    /// With a token that nobody else can have used, nothing is asked where nothing was granted.
    Release(Claim, Whose),
    Look(LockName),
    Names,
}

impl Request {
    /// Whether it ends a claim: then it is sent in any case.
    fn is_about_the_end(&self) -> bool {
        matches!(self, Request::Undo(_) | Request::Leave(_) | Request::Release(..))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Minted by this process.
    Ours,
    Anybodys,
}

/// An order, and for how long somebody wants its answer.
pub struct Job {
    pub question: u64,
    /// Several questions may be about the same.
    pub ballot_number: u64,
    pub request: Request,
    pub until: Moment,
}

/// What came of an order.
pub enum Answer {
    Granted(Option<Fence>),
    Held(LockState),
    Raised,
    /// For this long, if that is longer than asked for.
    Extended(Option<Duration>),
    NotYours(LockState),
    /// It has nothing of ours: it was never asked for the lock, or our vote is gone.
    Untouched,
    /// It was in doubt, and what undoes it is on its way.
    Undoing,
    Done,
    Seen(LockState, Option<Token>),
    Names(Vec<LockName>),
    /// Nobody wanted to know any more.
    Unwanted,
    /// It was not asked: it is silent.
    Spared,
    Failed(Error),
}

pub struct Reply {
    pub node: usize,
    pub question: u64,
    pub answer: Answer,
}

struct Node {
    server: Server,
    closed: Arc<AtomicU64>,
    /// The claim that the server was asked for, and may have granted.
    asked: Option<Token>,
    /// It has not answered when it was last asked for one: it may still grant it.
    is_in_doubt: bool,
    /// The claim that the server said to have taken back.
    given_back: Option<Token>,
    /// The last renewal found no key.
    is_absent: bool,
}

/// Starts a node's thread. It ends when nobody can send it orders any more; when `end` is readable, nobody waits for
/// any answer any more. Of a matter up to `closed` nothing is asked any more, but for the end of a lease.
///
/// # Errors
/// As pthread_create(3).
pub fn start(
    at: usize,
    server: Server,
    end: UnixStream,
    closed: Arc<AtomicU64>,
    answers: MailSender<Reply>,
) -> io::Result<Sender<Job>> {
    let (jobs, given) = channel::<Job>();
    let mut node = Node { server, closed, asked: None, is_in_doubt: false, given_back: None, is_absent: false };
    let work = move || {
        for job in given {
            let answer = node.carry_out(&job, &end);
            answers.send(Reply { node: at, question: job.question, answer });
        }
    };
    thread::spawn("quorum", work)?;
    Ok(jobs)
}

impl Node {
    fn carry_out(&mut self, job: &Job, end: &UnixStream) -> Answer {
        // What says how long the lock is ours is sent in any case.
        let is_last = matches!(job.request, Request::Renew(..)) || job.request.is_about_the_end();
        if !is_last && job.ballot_number <= self.closed.load(Ordering::Relaxed) {
            return Answer::Unwanted;
        }
        if job.until.passed() && !job.request.is_about_the_end() {
            return Answer::Failed(Error { kind: ErrorKind::Unreachable, ..Error::internal("", &"no answer in time") });
        }
        let limit = Limit { until: job.until, cancel: [Some(end.as_fd()), None, None] };
        self.execute(&job.request, limit).unwrap_or_else(|error| {
            log::trace(format_args!("{error}"));
            Answer::Failed(error)
        })
    }

    fn execute(&mut self, request: &Request, limit: Limit<'_>) -> Result<Answer, Error> {
        Ok(match request {
            Request::Acquire(claim, ttl) => match self.acquire(claim, *ttl, limit)? {
                Acquired::Granted(lease) => Answer::Granted(lease.fence),
                Acquired::Held(state, _) => Answer::Held(state),
            },
            Request::Raise(claim, fence, ttl) => match self.server.raise(claim, *fence, *ttl, limit)? {
                true => Answer::Raised,
                false => Answer::Untouched,
            },
            Request::Renew(claim, ttl) => self.renew(claim, *ttl, limit)?,
            Request::Heal(claim, ttl) => {
                if std::mem::take(&mut self.is_absent) {
                    self.acquire(claim, *ttl, limit)?;
                }
                Answer::Done
            }
            Request::Undo(claim) => match self.undo_outstanding(claim, limit) {
                true => {
                    self.asked = None;
                    Answer::Undoing
                }
                false => self.release(claim, Whose::Ours, limit)?,
            },
            Request::Leave(claim) => match self.undo_outstanding(claim, limit) {
                true => Answer::Undoing,
                false => Answer::Untouched,
            },
            Request::Release(claim, whose) => self.release(claim, *whose, limit)?,
            Request::Look(name) => {
                let (status, value) = self.server.sight(name, limit)?;
                Answer::Seen(status.state, value.and_then(|value| value.parse().ok()))
            }
            Request::Names => Answer::Names(self.server.names(limit)?),
        })
    }

    fn acquire(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Error> {
        self.server.connect(&Operation::to("acquire", &claim.name), limit)?;
        self.asked = Some(claim.token.clone());
        self.given_back = None;
        self.is_in_doubt = true;
        let acquired = self.server.acquire(&mut claim.clone(), ttl, AcquireMode::Plain, limit)?;
        self.is_in_doubt = false;
        Ok(acquired)
    }

    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Answer, Error> {
        self.is_absent = false;
        self.server.connect(&Operation::to("renew", &claim.name), limit)?;
        Ok(match self.server.renew(claim, ttl, limit)? {
            Renewed::Until(_) | Renewed::PutBack(_) => Answer::Extended(None),
            Renewed::Longer(left) => Answer::Extended(Some(left)),
            Renewed::NotYours(state) => {
                self.is_absent = state.kind == StateKind::Free;
                Answer::NotYours(state)
            }
        })
    }

    /// Sends a release behind each request for this claim that nobody waits for any more. Whether there was one.
    fn undo_outstanding(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        let is_asked = self.asked.as_ref() == Some(&claim.token);
        is_asked && std::mem::take(&mut self.is_in_doubt) && self.server.undo_outstanding(claim, limit)
    }

    fn release(&mut self, claim: &Claim, whose: Whose, limit: Limit<'_>) -> Result<Answer, Error> {
        let token = Some(&claim.token);
        // Asked again, since not all have answered.
        if self.given_back.as_ref() == token {
            return Ok(Answer::Done);
        }
        if whose == Whose::Ours && self.asked.as_ref() != token {
            return Ok(Answer::Untouched);
        }
        // What is outstanding may be carried out later than this release: one goes behind it as well.
        let is_undoing = self.undo_outstanding(claim, limit);
        let released = self.server.release(claim, limit)?;
        // Not before that: who asks again because there was no answer must not be told that there is nothing of ours.
        self.asked = None;
        Ok(match released {
            Released::NotYours(_) if is_undoing => Answer::Undoing,
            Released::NotYours(state) => Answer::NotYours(state),
            Released::Done => {
                self.given_back = Some(claim.token.clone());
                Answer::Done
            }
        })
    }
}
