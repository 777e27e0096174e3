//! The nodes together: sends a request to all at once, and collects replies until there are enough. Remembers a node
//! that does not reply, and does not wait for it again. What the replies mean is left to `tally`.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::node::{self, Answer, Job, Reply, Request};
use super::tally::Votes;
use crate::clock::Moment;
use crate::mailbox::{Arrived, MailSender, Mailbox};
use crate::store::redis::Server;
use crate::store::redis::distinct::Distinct;
use crate::store::redis::endpoint::Endpoint;
use crate::store::{News, StoreOptions};
use crate::wait::Limit;

pub struct Fanout {
    members: Vec<Member>,
    replies: Mailbox<Reply>,
    /// What the servers have told unasked.
    news: News,
    /// Number of the last request, and of the operation (a ballot, a renewal, a query) that it belongs to.
    question: u64,
    round: u64,
    /// Nodes carry out no request of operations up to this number, except renewals, releases and that it is to tell.
    closed: Arc<AtomicU64>,
    /// Dropped at the end, which cancels all waiting for replies.
    open: Option<UnixStream>,
}

struct Member {
    jobs: MailSender<Job>,
    /// Requests without a reply. Each gets one in the end, if only from the node's own thread.
    unanswered: usize,
    asked: Moment,
    /// How long its last reply took.
    took: Duration,
    /// Since when its server has not replied in time.
    late_since: Option<Moment>,
}

/// How long a request waits for nodes that have not replied. It never waits beyond its limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stragglers {
    /// Wait for them.
    Awaited,
    /// Wait for them until then. What they say later still counts when others are asked in the same operation.
    AwaitedUntil(Moment),
    /// Wait for them, but not for those that are silent when a majority has replied.
    AwaitedUnlessSilent,
    /// Leave them behind after four times as long as the majority took, or twice as long as their own last reply: what
    /// they say may decide.
    LeftBehind,
}

/// Minimum time for nodes before they are left behind: the kernel has to run their threads.
const LEAST: Duration = Duration::from_millis(10);
/// A node that has been late for this long is silent.
const SILENT_AFTER: Duration = Duration::from_millis(250);
/// How often a silent node is asked for a vote.
const PROBE: Duration = Duration::from_secs(1);
/// How long requests that have to be sent may delay the end of the process. None waits for a reply, so it takes this
/// long only on a machine that does not get to run the threads.
const LAST: Duration = Duration::from_secs(2);

impl Fanout {
    /// Starts a thread for each server.
    ///
    /// # Errors
    /// If there are too few threads or descriptors.
    pub fn start(endpoints: &[Endpoint], options: &StoreOptions) -> io::Result<Fanout> {
        let (replies, answers) = Mailbox::open()?;
        let (open, end) = UnixStream::pair()?;
        let closed = Arc::new(AtomicU64::new(0));
        let distinct = Distinct::default();
        let now = Moment::now();
        let start = |(at, endpoint): (usize, &Endpoint)| {
            let server = Server::new(endpoint.clone(), options.clone()).with_distinct(&distinct);
            let jobs = node::start(at, server, end.try_clone()?, Arc::clone(&closed), answers.another()?)?;
            Ok(Member { jobs, unanswered: 0, asked: now, took: Duration::ZERO, late_since: None })
        };
        let members = endpoints.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Fanout { members, replies, news: News::default(), question: 0, round: 0, closed, open: Some(open) })
    }

    /// Begins a new operation, and closes the one before.
    pub fn begin(&mut self) {
        self.close();
        self.round += 1;
    }

    /// Drops the requests of this operation that have not been sent, except renewals and releases.
    pub fn close(&mut self) {
        self.closed.store(self.round, Ordering::Relaxed);
    }

    /// Returns empty votes, for the next request.
    pub fn votes(&self) -> Votes {
        Votes::none(self.members.len(), self.question + 1)
    }

    /// Sends a request to some nodes, and collects the replies to all requests since `votes` began, until there are
    /// enough, all nodes have replied, or the limit is reached.
    ///
    /// # Errors
    /// As poll(2).
    pub fn ask(
        &mut self,
        votes: &mut Votes,
        request: &Request,
        nodes: impl Fn(usize) -> bool,
        (limit, others): (Limit<'_>, Stragglers),
        enough: impl Fn(&Votes) -> bool,
    ) -> io::Result<()> {
        // A node that has replied meanwhile is not silent.
        while let Some(reply) = self.next(Limit::until(Moment::now()))? {
            cast(votes, reply);
        }
        let is_vote = matches!(request, Request::Acquire(..) | Request::Raise(..));
        // A ballot among fewer nodes than a quorum could neither be won nor tell anything.
        let asked = self.members.iter().filter(|member| !member.is_to_be_spared()).count();
        let spared = |member: &Member| is_vote && asked >= votes.quorum() && member.is_to_be_spared();
        let wanted: Vec<bool> = (0..self.members.len()).map(nodes).collect();
        let spared: Vec<bool> = self.members.iter().map(spared).collect();
        for node in (0..self.members.len()).filter(|node| wanted[*node]) {
            votes.retract(node);
            if spared[node] {
                votes.cast(node, Answer::Spared);
            }
        }
        self.put(request, limit.until, |node| wanted[node] && !spared[node]);
        self.collect(votes, limit, others, enough)
    }

    /// Sends a request to some nodes, without waiting.
    pub fn put(&mut self, request: &Request, until: Moment, nodes: impl Fn(usize) -> bool) {
        self.question += 1;
        let now = Moment::now();
        for (_, member) in self.members.iter_mut().enumerate().filter(|(node, _)| nodes(*node)) {
            let job = Job { question: self.question, round: self.round, request: request.clone(), asked: now, until };
            // A thread that is gone has panicked, and does not reply.
            let is_sent = member.jobs.reaches(job);
            member.unanswered += usize::from(is_sent);
            member.asked = now;
        }
    }

    /// Collects replies until there are enough.
    fn collect(
        &mut self,
        votes: &mut Votes,
        limit: Limit<'_>,
        others: Stragglers,
        enough: impl Fn(&Votes) -> bool,
    ) -> io::Result<()> {
        let began = Moment::now();
        let mut last = if let Stragglers::AwaitedUntil(last) = others { last } else { Moment::NEVER };
        while !votes.all_in() && !enough(votes) {
            if last == Moment::NEVER && votes.answered() >= votes.quorum() {
                let at_least = |least| began + (began.elapsed() * 4).max(self.slowest(votes) * 2).max(least);
                last = match others {
                    Stragglers::Awaited | Stragglers::AwaitedUntil(_) => Moment::NEVER,
                    Stragglers::AwaitedUnlessSilent if !self.are_silent(votes) => at_least(SILENT_AFTER),
                    Stragglers::AwaitedUnlessSilent | Stragglers::LeftBehind => at_least(LEAST),
                };
            }
            let Some(reply) = self.next(limit.no_later_than(last))? else {
                if last.passed() || limit.until.passed() {
                    self.are_late(votes);
                }
                break;
            };
            if reply.question.is_none() && votes.of(reply.node).is_some() {
                votes.doubt();
            }
            cast(votes, reply);
        }
        Ok(())
    }

    /// Takes what servers have told unasked, without waiting.
    ///
    /// # Errors
    /// As poll(2).
    pub fn news(&mut self) -> io::Result<News> {
        // Replies that nobody waits for any more.
        while self.next(Limit::until(Moment::now()))?.is_some() {}
        Ok(std::mem::take(&mut self.news))
    }

    /// Returns a descriptor that is readable when [`Fanout::news`] may have something.
    pub fn news_fd(&self) -> BorrowedFd<'_> {
        self.replies.fd()
    }

    fn next(&mut self, limit: Limit<'_>) -> io::Result<Option<Reply>> {
        Ok(match self.replies.next(limit)? {
            Arrived::Message(mut reply) => {
                let member = &mut self.members[reply.node];
                if reply.question.is_some() {
                    member.unanswered = member.unanswered.saturating_sub(1);
                }
                match &mut reply.answer {
                    Answer::News(news) => self.news.add(std::mem::take(news)),
                    Answer::Unwanted | Answer::Untouched | Answer::Undoing | Answer::Spared => {}
                    // A server that is down fails at once, and costs nothing.
                    Answer::Failed(_) if reply.took < LEAST => {}
                    Answer::Failed(_) => member.is_late(),
                    _ => {
                        member.late_since = None;
                        member.took = reply.took;
                    }
                }
                Some(reply)
            }
            Arrived::Readable | Arrived::Time => None,
        })
    }

    /// Waits a moment for healthy nodes, which vote in it: with their votes, a lock does not rest on a bare majority.
    pub fn awaits_the_well(&mut self) {
        let soon = Limit::until(Moment::now() + LEAST);
        let is_well = |member: &Member| member.unanswered > 0 && member.late_since.is_none();
        while self.members.iter().any(is_well) && matches!(self.next(soon), Ok(Some(_))) {}
    }

    /// Returns how long the slowest of the nodes took last that have not replied.
    fn slowest(&self, votes: &Votes) -> Duration {
        let missing = self.members.iter().zip(votes.each()).filter(|(_, answer)| answer.is_none());
        missing.map(|(member, _)| member.took).max().unwrap_or_default()
    }

    /// Returns whether all that have not replied have been silent for so long that they are not waited for.
    fn are_silent(&self, votes: &Votes) -> bool {
        let mut missing = self.members.iter().zip(votes.each()).filter(|(_, answer)| answer.is_none());
        missing.all(|(member, _)| member.is_silent())
    }

    /// Marks as late the nodes that were asked and have not replied: they had time to.
    fn are_late(&mut self, votes: &Votes) {
        let asked = self.members.iter_mut().zip(votes.each()).filter(|(member, _)| member.unanswered > 0);
        asked.filter(|(_, answer)| answer.is_none()).for_each(|(member, _)| member.is_late());
    }
}

impl Member {
    fn is_late(&mut self) {
        self.late_since.get_or_insert_with(Moment::now);
    }

    fn is_silent(&self) -> bool {
        self.late_since.is_some_and(|since| since.elapsed() > SILENT_AFTER)
    }

    /// Returns whether the node is silent, and has not replied yet or was asked less than [`PROBE`] ago.
    fn is_to_be_spared(&self) -> bool {
        self.is_silent() && (self.unanswered > 0 || self.asked.elapsed() < PROBE)
    }
}

/// Counts a reply, if it belongs to these votes.
fn cast(votes: &mut Votes, reply: Reply) {
    if reply.question.is_some_and(|question| question >= votes.since()) {
        votes.cast(reply.node, reply.answer);
    }
}

/// Sends the stragglers what was decided without them, before the process can end.
impl Drop for Fanout {
    fn drop(&mut self) {
        self.awaits_the_well();
        self.closed.store(u64::MAX, Ordering::Relaxed);
        self.open = None;
        let last = Limit::until(Moment::now() + LAST);
        while self.members.iter().any(|member| member.unanswered > 0) && matches!(self.next(last), Ok(Some(_))) {}
    }
}
