//! The nodes together: a question goes to all at once, and the answers are heard until there are enough.
//! What they mean is `verdict`'s to know.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::node::{self, Errand, Letter, Order, Said};
use super::verdict::Votes;
use crate::clock::Moment;
use crate::inbox::{Arrival, Inbox};
use crate::limit::Limit;
use crate::lock::Prefix;
use crate::store::distinct::Distinct;
use crate::store::endpoint::Endpoint;
use crate::store::server::Server;

pub struct Assembly {
    nodes: Vec<Sender<Errand>>,
    letters: Inbox<Letter>,
    /// The number of the last question: an answer to one before is of no use.
    question: u64,
    session: Option<Session>,
    /// How each is doing.
    standing: Vec<Health>,
    /// They have been waited for already.
    has_lingered: bool,
}

#[derive(Clone, Copy)]
struct Health {
    /// Every order is answered in the end, if only by who comes too late.
    unanswered: usize,
    /// It did what it was asked last, and was not waited for in vain.
    is_well: bool,
}

/// Closed when it is dropped: then nobody wants the answers any more.
struct Session {
    wanted: Arc<UnixStream>,
    _open: UnixStream,
}

/// How long those who have not answered are waited for when all is decided: the process may end, and what
/// is not sent by then never is.
const LINGER: Duration = Duration::from_millis(100);
/// The same for one that has never failed us: more likely than it, the machine is busy.
const LINGER_FOR_THE_WELL: Duration = Duration::from_millis(500);

impl Assembly {
    /// # Errors
    /// If there are too few threads or descriptors to be had.
    pub fn convene(endpoints: &[Endpoint], prefix: &Prefix, timeout: Duration) -> io::Result<Assembly> {
        let (letters, answers) = Inbox::open()?;
        let distinct = Distinct::default();
        let start = |(at, endpoint): (usize, &Endpoint)| {
            let server = Server::new(endpoint.clone(), prefix.clone(), timeout, 0).among(&distinct);
            node::start(at, server, answers.another()?)
        };
        let nodes = endpoints.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
        let standing = vec![Health { unanswered: 0, is_well: true }; nodes.len()];
        Ok(Assembly { nodes, letters, question: 0, session: None, standing, has_lingered: false })
    }

    /// Begins anew: whatever was asked before, nobody wants to know any more.
    ///
    /// # Errors
    /// As socketpair(2).
    pub fn begin(&mut self) -> io::Result<()> {
        self.session = None;
        let (open, wanted) = UnixStream::pair()?;
        self.session = Some(Session { wanted: Arc::new(wanted), _open: open });
        Ok(())
    }

    /// Cuts short what nobody wants to know any more.
    pub fn close(&mut self) {
        self.session = None;
    }

    /// Asks all, and hears them until there are enough answers, all have answered, or time is up.
    ///
    /// # Errors
    /// As poll(2).
    pub fn ask(&mut self, order: &Order, limit: Limit<'_>, enough: impl Fn(&Votes) -> bool) -> io::Result<Votes> {
        self.put(order, limit.until, |_| true);
        let mut votes = Votes::none(self.nodes.len());
        self.hear(&mut votes, limit, enough)?;
        Ok(votes)
    }

    /// Asks some, without waiting.
    pub fn put(&mut self, order: &Order, until: Moment, whom: impl Fn(usize) -> bool) {
        self.question += 1;
        self.has_lingered = false;
        for (at, node) in self.nodes.iter().enumerate().filter(|(at, _)| whom(*at)) {
            let wanted = self.session.as_ref().map(|session| session.wanted.clone());
            let errand = Errand { question: self.question, order: order.clone(), until, wanted };
            // A thread that is gone has panicked: it does not answer.
            let is_sent = node.send(errand).is_ok();
            self.standing[at].unanswered += usize::from(is_sent);
        }
    }

    /// Hears the answers to the last question, until there are enough.
    ///
    /// # Errors
    /// As poll(2).
    pub fn hear(&mut self, votes: &mut Votes, limit: Limit<'_>, enough: impl Fn(&Votes) -> bool) -> io::Result<()> {
        while !votes.all_in() && !enough(votes) {
            let Some(letter) = self.next(limit)? else { break };
            if letter.question == self.question {
                votes.cast(letter.node, letter.said);
            }
        }
        Ok(())
    }

    fn next(&mut self, limit: Limit<'_>) -> io::Result<Option<Letter>> {
        Ok(match self.letters.next(limit.until, limit.bells)? {
            Arrival::Letter(letter) => {
                let standing = &mut self.standing[letter.node];
                standing.unanswered = standing.unanswered.saturating_sub(1);
                match letter.said {
                    Said::Unwanted => {}
                    Said::Failed(_) => standing.is_well = false,
                    _ => standing.is_well = true,
                }
                Some(letter)
            }
            Arrival::Readable | Arrival::Time => None,
        })
    }

    /// Hears those who have not answered for a little longer. What they say changes nothing any more.
    pub fn linger(&mut self, votes: &mut Votes) {
        let soon = Limit::until(Moment::now() + LINGER);
        let _ = self.hear(votes, soon, |_| false);
        self.hear_the_well(votes);
        self.has_lingered = !votes.all_in();
    }

    /// Hears those who have not answered and have never failed us. Others hold votes meanwhile, so that one
    /// that hangs must not be waited for.
    pub fn hear_the_well(&mut self, votes: &mut Votes) {
        let well: Vec<bool> = self.standing.iter().map(|standing| standing.is_well).collect();
        let none_is_well = |votes: &Votes| votes.each().zip(&well).all(|(said, well)| said.is_some() || !well);
        let _ = self.hear(votes, Limit::until(Moment::now() + LINGER_FOR_THE_WELL), none_is_well);
        for (standing, _) in self.standing.iter_mut().zip(votes.each()).filter(|(_, said)| said.is_none()) {
            standing.is_well = false;
        }
    }

    fn is_waited_for(&self, is_wanted: impl Fn(&Health) -> bool) -> bool {
        self.standing.iter().any(|standing| standing.unanswered > 0 && is_wanted(standing))
    }
}

/// What was decided without them is sent to the others too before the process can end.
impl Drop for Assembly {
    fn drop(&mut self) {
        let now = Moment::now();
        if self.has_lingered {
            return;
        }
        let (soon, later) = (Limit::until(now + LINGER), Limit::until(now + LINGER_FOR_THE_WELL));
        while self.is_waited_for(|_| true) && matches!(self.next(soon), Ok(Some(_))) {}
        while self.is_waited_for(|standing| standing.is_well) && matches!(self.next(later), Ok(Some(_))) {}
    }
}
