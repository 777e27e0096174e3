//! One server of a quorum, with a thread of its own that carries out one request after the other: an undo always
//! follows the request that it undoes. Knows nothing of the other servers, and decides nothing.
//!
//! The undo of a request in doubt follows it on the same connection, without waiting for a reply. Its token is never
//! used again, so it can remove nothing else, whenever the server executes it.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::PollFlags;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Fence, LockName, LockState, StateKind, Token, Ttl};
use crate::mailbox::{Arrived, MailSender, Mailbox};
use crate::store::redis::Server;
use crate::store::redis::reply::Operation;
use crate::store::{AcquireMode, Acquired, Listed, News, Released, Renewed, Store};
use crate::wait::{Limit, is_ready};
use crate::{log, thread};

/// A request to a node.
#[derive(Clone)]
pub enum Request {
    Acquire(Claim, Ttl),
    /// Have the server tell at once what happens to the claim.
    Listen(Claim),
    /// Raise the fence to the one that the majority was given, if this server's vote is still valid.
    Raise(Claim, Fence, Ttl),
    Renew(Claim, Ttl),
    /// Set the key again if the last renewal did not find it, and nobody is about to release it.
    Heal(Claim, Ttl),
    /// Undo what a lost ballot may have been granted. No other process can have used the token, so a server that was
    /// not asked for it gets no request. A request in doubt is undone without waiting for a reply.
    Undo(Claim),
    /// Undo an outstanding request, and nothing that was granted.
    Leave(Claim),
    /// Release the claim. A server that was not asked for a token of ours gets no request.
    Release(Claim, Whose),
    Look(LockName),
    Names,
    Doubts,
}

impl Request {
    /// Returns whether the request ends a claim: it is then sent in any case.
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

/// A request, and until when its answer is wanted.
pub struct Job {
    pub question: u64,
    /// Several requests may belong to one operation.
    pub round: u64,
    pub request: Request,
    pub asked: Moment,
    pub until: Moment,
}

/// The result of a request.
pub enum Answer {
    Granted(Option<Fence>),
    Held(LockState),
    /// The same: a run that the claimant is part of has the server's vote.
    Nested(LockState),
    Raised,
    /// With the remaining time, if that is longer than requested.
    Extended(Option<Duration>),
    NotYours(LockState),
    /// The server has no vote of ours: it was never asked for the lock, or the vote is gone.
    Untouched,
    /// The request was in doubt, and its undo is on its way.
    Undoing,
    Done,
    Seen(LockState, Option<Token>),
    Names(Vec<LockName>),
    Doubts(Vec<String>),
    /// The operation was closed before the request was sent.
    Unwanted,
    /// The node is silent, and was not asked.
    Spared,
    /// What the server tells unasked, as a holder hears it.
    News(News),
    Failed(Error),
}

pub struct Reply {
    pub node: usize,
    /// Of the request; none if the server has told something unasked.
    pub question: Option<u64>,
    pub answer: Answer,
    /// Since the node was asked.
    pub took: Duration,
}

struct Node {
    server: Server,
    closed: Arc<AtomicU64>,
    /// Of the locks that the server was asked for.
    votes: HashMap<LockName, Vote>,
}

/// What is known of the server's vote for a lock.
#[derive(Default)]
struct Vote {
    /// Token of the claim that the server was asked for, and may have granted.
    asked: Option<Token>,
    /// The server has not replied to the last such request, and may still grant it.
    is_in_doubt: bool,
    /// Token of the claim that the server confirmed as released.
    given_back: Option<Token>,
    /// The renewals since then did not find our vote.
    gone: Option<Gone>,
}

/// A vote that a renewal did not find.
struct Gone {
    since: Moment,
    /// The last renewal found nothing in its place.
    is_free: bool,
    /// Nor the fence: the server has forgotten both, and nobody has released the lock there.
    is_forgotten: bool,
}

impl Gone {
    /// A release or a break reaches the servers one after the other, and each tells the holder of it: the holder must not take
    /// a vote back before all have been reached.
    fn may_be_taken_back(&self) -> bool {
        self.is_free && (self.is_forgotten || self.since.elapsed() >= RELEASED_WITHIN)
    }
}

/// After what time a lock is released at all servers, if it is released at one: twice as long as each has for its reply.
const RELEASED_WITHIN: Duration = Duration::from_secs(4);

/// Starts a node's thread, which ends when no sender of jobs is left. When `end` is readable, nobody waits for answers
/// any more. Of operations up to `closed`, the node sends only renewals and releases, and that it is to tell.
///
/// # Errors
/// As pthread_create(3), or if there are too few descriptors.
pub fn start(
    at: usize,
    server: Server,
    end: UnixStream,
    closed: Arc<AtomicU64>,
    answers: MailSender<Reply>,
) -> io::Result<MailSender<Job>> {
    let (mut given, jobs) = Mailbox::<Job>::open()?;
    let mut node = Node { server, closed, votes: HashMap::new() };
    let work = move || {
        let reply = |node: &mut Node, job: &Job| {
            let answer = node.carry_out(job, &end);
            answers.send(Reply { node: at, question: Some(job.question), answer, took: job.asked.elapsed() });
        };
        // Until the end it hears what the server tells, too.
        while let Some(news) = node.next(&mut given, &end) {
            match news {
                Next::Job(job) => reply(&mut node, &job),
                Next::News(news) => {
                    let (answer, took) = (Answer::News(news), Duration::ZERO);
                    answers.send(Reply { node: at, question: None, answer, took });
                }
            }
        }
        for job in given.into_channel() {
            reply(&mut node, &job);
        }
    };
    thread::spawn("quorum", work)?;
    Ok(jobs)
}

/// What a node does next.
enum Next {
    Job(Box<Job>),
    /// The server has told something unasked.
    News(News),
}

impl Node {
    /// Waits for a job, or for something to tell; returns nothing if nobody waits for answers any more.
    fn next(&mut self, given: &mut Mailbox<Job>, end: &UnixStream) -> Option<Next> {
        loop {
            let news = self.server.news();
            if !news.is_none() {
                return Some(Next::News(news));
            }
            let news = self.server.watch().news_fds.into_iter();
            let cancel = [end.as_fd()].into_iter().chain(news).map(Some).collect::<Vec<_>>();
            match given.next(Limit { until: Moment::NEVER, cancel: &cancel, ..Limit::NONE }) {
                Ok(Arrived::Message(job)) => return Some(Next::Job(Box::new(job))),
                Ok(Arrived::Readable) if is_ready(end.as_fd(), PollFlags::POLLIN) => return None,
                Ok(Arrived::Readable) => {}
                Ok(Arrived::Time) | Err(_) => return None,
            }
        }
    }

    fn carry_out(&mut self, job: &Job, end: &UnixStream) -> Answer {
        // A request that decides how long the lock is ours is sent in any case, and one that has the server tell of it: the
        // next operation may be about another lock.
        let is_sent_later = matches!(job.request, Request::Renew(..) | Request::Listen(_));
        if !is_sent_later && !job.request.is_about_the_end() && job.round <= self.closed.load(Ordering::Relaxed) {
            return Answer::Unwanted;
        }
        if job.until.passed() && !job.request.is_about_the_end() {
            return Answer::Failed(Error { kind: ErrorKind::Unreachable, ..Error::internal("", &"no answer in time") });
        }
        let limit = Limit { until: job.until, cancel: &[Some(end.as_fd())], ..Limit::NONE };
        self.execute(&job.request, limit).unwrap_or_else(|error| {
            log::trace(format_args!("{error}"));
            Answer::Failed(error)
        })
    }

    fn execute(&mut self, request: &Request, limit: Limit<'_>) -> Result<Answer, Error> {
        Ok(match request {
            Request::Acquire(claim, ttl) => match self.acquire(claim, *ttl, limit)? {
                Acquired::Granted(lease) => Answer::Granted(lease.fence),
                Acquired::Nested(state, _) => Answer::Nested(state),
                Acquired::Held(state, _) | Acquired::Superseded(_, state, _) | Acquired::Done(_, state, _) => {
                    Answer::Held(state)
                }
                Acquired::Undecided(_, error) => return Err(error),
                Acquired::TooLate | Acquired::Lost(_) | Acquired::Asked(..) => Answer::Untouched,
            },
            Request::Raise(claim, fence, ttl) => match self.server.raise(claim, *fence, *ttl, limit)? {
                true => Answer::Raised,
                false => Answer::Untouched,
            },
            Request::Renew(claim, ttl) => self.renew(claim, *ttl, limit)?,
            Request::Heal(claim, ttl) => {
                if self.vote(claim).gone.as_ref().is_some_and(Gone::may_be_taken_back) {
                    self.acquire(claim, *ttl, limit)?;
                }
                Answer::Done
            }
            Request::Undo(claim) => match self.undo_outstanding(claim, limit) {
                true => {
                    self.vote(claim).asked = None;
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
                let (status, token) = self.server.inspect_holding(name, limit)?;
                Answer::Seen(status.state, token)
            }
            Request::Listen(claim) => {
                let is_news = self.server.listen_for(claim, limit);
                Answer::News(if is_news { News::of(self.server.key_of(claim)) } else { News::default() })
            }
            Request::Names => Answer::Names((&mut self.server as &mut dyn Store).names(Listed::Held, limit)?),
            Request::Doubts => Answer::Doubts(self.server.doubts(limit)?),
        })
    }

    fn vote(&mut self, claim: &Claim) -> &mut Vote {
        self.votes.entry(claim.name.clone()).or_default()
    }

    fn acquire(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Error> {
        self.server.connect(&Operation::to("acquire", &claim.name), limit)?;
        let vote = self.vote(claim);
        (vote.asked, vote.given_back, vote.is_in_doubt) = (Some(claim.token.clone()), None, true);
        let acquired = self.server.acquire(&mut claim.clone(), ttl, AcquireMode::Plain, limit)?;
        self.vote(claim).is_in_doubt = false;
        Ok(acquired)
    }

    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Answer, Error> {
        self.server.connect(&Operation::to("renew", &claim.name), limit)?;
        let renewed = self.server.renew(claim, ttl, limit)?;
        let has_fences = self.server.has_fences();
        let gone = &mut self.vote(claim).gone;
        Ok(match renewed {
            Renewed::Kept(_) => {
                *gone = None;
                Answer::Extended(None)
            }
            Renewed::Longer(left) => {
                *gone = None;
                Answer::Extended(Some(left))
            }
            Renewed::NotYours(state) => {
                let since = gone.as_ref().map_or(Moment::now(), |gone| gone.since);
                let is_free = state.kind == StateKind::Free;
                *gone = Some(Gone { since, is_free, is_forgotten: has_fences && state.fence.is_none() });
                Answer::NotYours(state)
            }
        })
    }

    /// Sends a release behind each outstanding request for this claim. Returns whether there was one.
    fn undo_outstanding(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        let vote = self.vote(claim);
        let is_asked = vote.asked.as_ref() == Some(&claim.token);
        is_asked && std::mem::take(&mut vote.is_in_doubt) && self.server.undo_outstanding(claim, limit)
    }

    fn release(&mut self, claim: &Claim, whose: Whose, limit: Limit<'_>) -> Result<Answer, Error> {
        let (token, vote) = (Some(&claim.token), self.vote(claim));
        // A retry, since not all servers have replied.
        if vote.given_back.as_ref() == token {
            return Ok(Answer::Done);
        }
        if whose == Whose::Ours && vote.asked.as_ref() != token {
            return Ok(Answer::Untouched);
        }
        // The server may execute an outstanding request after this release, so an undo follows that request too.
        let is_undoing = self.undo_outstanding(claim, limit);
        let released = self.server.release(claim, limit)?;
        // Cleared only now: a retry after a lost reply must not be told that the server has no vote of ours.
        self.vote(claim).asked = None;
        Ok(match released {
            Released::NotYours(_) | Released::Lost(_) if is_undoing => Answer::Undoing,
            Released::NotYours(state) | Released::Lost(state) => Answer::NotYours(state),
            Released::Done => {
                self.vote(claim).given_back = Some(claim.token.clone());
                Answer::Done
            }
        })
    }
}
