//! The nodes together: a question goes to all at once, and the answers are heard until there are enough. Who does
//! not answer is remembered, and not waited for again. What the answers mean is `verdict`'s to know.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::node::{self, Answer, Job, Reply, Request};
use super::tally::Votes;
use crate::clock::Moment;
use crate::lock::Prefix;
use crate::mailbox::{Arrived, Mailbox};
use crate::store::redis::Server;
use crate::store::redis::distinct::Distinct;
use crate::store::redis::endpoint::Endpoint;
use crate::wait::Limit;

pub struct Fanout {
    members: Vec<Member>,
    replies: Mailbox<Reply>,
    /// The number of the last question, and of the matter that it belongs to.
    question: u64,
    ballot_number: u64,
    /// Of a matter up to this one nothing is asked any more, but for the end of a lease.
    closed: Arc<AtomicU64>,
    /// Closed at the end: then nobody waits for any answer.
    open: Option<UnixStream>,
}

struct Member {
    jobs: Sender<Job>,
    /// Every order is answered in the end, if only by the node's own thread.
    unanswered: usize,
    asked: Moment,
    /// Since when its server has not answered in time.
    late_since: Option<Moment>,
}

/// What is done about those that have not answered when a majority has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stragglers {
    /// They are waited for.
    Awaited,
    /// They are left behind after four times as long as the majority took.
    LeftBehind,
}

/// The least that those are given who are left behind: a thread has to be run in that time.
const LEAST: Duration = Duration::from_millis(10);
/// Who is late for so long is silent.
const SILENT_AFTER: Duration = Duration::from_millis(250);
/// How often a silent one is asked for a vote.
const PROBE: Duration = Duration::from_secs(1);
/// How long the process is kept from its end by requests that have to leave. None waits for an answer, so that it takes
/// this long only on a machine that does not get to run the threads.
const LAST: Duration = Duration::from_secs(2);

impl Fanout {
    /// # Errors
    /// If there are too few threads or descriptors to be had.
    pub fn start(endpoints: &[Endpoint], prefix: &Prefix, timeout: Duration) -> io::Result<Fanout> {
        let (replies, answers) = Mailbox::open()?;
        let (open, end) = UnixStream::pair()?;
        let closed = Arc::new(AtomicU64::new(0));
        let distinct = Distinct::default();
        let now = Moment::now();
        let start = |(at, endpoint): (usize, &Endpoint)| {
            let server = Server::new(endpoint.clone(), prefix.clone(), timeout, 0).among(&distinct);
            let jobs = node::start(at, server, end.try_clone()?, Arc::clone(&closed), answers.another()?)?;
            Ok(Member { jobs, unanswered: 0, asked: now, late_since: None })
        };
        let members = endpoints.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Fanout { members, replies, question: 0, ballot_number: 0, closed, open: Some(open) })
    }

    /// Begins a new matter: what was asked before, nobody wants to know any more.
    pub fn begin(&mut self) {
        self.close();
        self.ballot_number += 1;
    }

    /// What is asked of this matter and has not been sent yet is not sent, unless it is about the end of a lease.
    pub fn close(&mut self) {
        self.closed.store(self.ballot_number, Ordering::Relaxed);
    }

    /// Nobody has been asked yet.
    pub fn votes(&self) -> Votes {
        Votes::none(self.members.len(), self.question + 1)
    }

    /// Asks some, and hears all that were asked since `votes` began, until there are enough answers, all have answered,
    /// or time is up.
    ///
    /// # Errors
    /// As poll(2).
    pub fn ask(
        &mut self,
        votes: &mut Votes,
        request: &Request,
        whom: impl Fn(usize) -> bool,
        (limit, others): (Limit<'_>, Stragglers),
        enough: impl Fn(&Votes) -> bool,
    ) -> io::Result<()> {
        // Who has answered meanwhile is not silent.
        while let Some(reply) = self.next(Limit::until(Moment::now()))? {
            cast(votes, reply);
        }
        let is_vote = matches!(request, Request::Acquire(..) | Request::Raise(..));
        // A ballot that asks fewer than a quorum could neither be won nor tell anything.
        let asked = self.members.iter().filter(|member| !member.is_to_be_spared()).count();
        let spared = |member: &Member| is_vote && asked >= votes.quorum() && member.is_to_be_spared();
        let whom: Vec<bool> = (0..self.members.len()).map(whom).collect();
        let spared: Vec<bool> = self.members.iter().map(spared).collect();
        for node in (0..self.members.len()).filter(|node| whom[*node]) {
            votes.retract(node);
            if spared[node] {
                votes.cast(node, Answer::Spared);
            }
        }
        self.put(request, limit.until, |node| whom[node] && !spared[node]);
        self.hear(votes, limit, others, enough)
    }

    /// Asks some, without waiting.
    pub fn put(&mut self, request: &Request, until: Moment, whom: impl Fn(usize) -> bool) {
        self.question += 1;
        let now = Moment::now();
        for (_, member) in self.members.iter_mut().enumerate().filter(|(node, _)| whom(*node)) {
            let job =
                Job { question: self.question, ballot_number: self.ballot_number, request: request.clone(), until };
            // A thread that is gone has panicked: it does not answer.
            let is_sent = member.jobs.send(job).is_ok();
            member.unanswered += usize::from(is_sent);
            member.asked = now;
        }
    }

    /// Hears the answers since a question was asked, until there are enough.
    fn hear(
        &mut self,
        votes: &mut Votes,
        limit: Limit<'_>,
        others: Stragglers,
        enough: impl Fn(&Votes) -> bool,
    ) -> io::Result<()> {
        let began = Moment::now();
        let mut last = Moment::NEVER;
        while !votes.all_in() && !enough(votes) {
            if others == Stragglers::LeftBehind && last == Moment::NEVER && votes.answered() >= votes.quorum() {
                last = began + (began.elapsed() * 4).max(LEAST);
            }
            let Some(reply) = self.next(limit.no_later_than(last))? else {
                if last.passed() || limit.until.passed() {
                    self.are_late(votes);
                }
                break;
            };
            cast(votes, reply);
        }
        Ok(())
    }

    fn next(&mut self, limit: Limit<'_>) -> io::Result<Option<Reply>> {
        Ok(match self.replies.next(limit.until, limit.cancel)? {
            Arrived::Message(reply) => {
                let member = &mut self.members[reply.node];
                member.unanswered = member.unanswered.saturating_sub(1);
                match reply.answer {
                    Answer::Unwanted | Answer::Untouched | Answer::Undoing | Answer::Spared => {}
                    // One that is down says so at once, and costs nothing.
                    Answer::Failed(_) if member.asked.elapsed() < LEAST => {}
                    Answer::Failed(_) => member.is_late(),
                    _ => member.late_since = None,
                }
                Some(reply)
            }
            Arrived::Readable | Arrived::Time => None,
        })
    }

    /// Those that were asked and have not answered had time to.
    fn are_late(&mut self, votes: &Votes) {
        let asked = self.members.iter_mut().zip(votes.each()).filter(|(member, _)| member.unanswered > 0);
        asked.filter(|(_, answer)| answer.is_none()).for_each(|(member, _)| member.is_late());
    }
}

impl Member {
    fn is_late(&mut self) {
        self.late_since.get_or_insert_with(Moment::now);
    }

    /// Whether it is silent, and has not answered yet or was asked a moment ago.
    fn is_to_be_spared(&self) -> bool {
        let is_silent = self.late_since.is_some_and(|since| since.elapsed() > SILENT_AFTER);
        is_silent && (self.unanswered > 0 || self.asked.elapsed() < PROBE)
    }
}

/// Counts an answer, if it is one to these votes.
fn cast(votes: &mut Votes, reply: Reply) {
    if reply.question >= votes.since() {
        votes.cast(reply.node, reply.answer);
    }
}

/// What was decided without them is sent to the others too before the process can end.
impl Drop for Fanout {
    fn drop(&mut self) {
        // Those that are well vote in a moment, so that a lock does not rest on a bare majority.
        let soon = Limit::until(Moment::now() + LEAST);
        let is_well = |member: &Member| member.unanswered > 0 && member.late_since.is_none();
        while self.members.iter().any(is_well) && matches!(self.next(soon), Ok(Some(_))) {}
        self.closed.store(u64::MAX, Ordering::Relaxed);
        self.open = None;
        let last = Limit::until(Moment::now() + LAST);
        while self.members.iter().any(|member| member.unanswered > 0) && matches!(self.next(last), Ok(Some(_))) {}
    }
}
