//! Finds the master that Sentinel names (Redis documentation, "Guidelines for Redis clients with support for Redis
//! Sentinel"), and does not believe a server that the sentinels have deposed.
//!
//! nxlock asks for every new connection, and uses the server only if that reports the role of a master. But a deposed
//! master may go on granting locks to those who reach it. So nxlock asks again after each reply, and believes the reply
//! only if the server is the master then. The number of the failover, the epoch, says which of two answers is the later
//! one: [`elected`] is the rule for both questions. A connection that does not bring an answer may be dead without an
//! error, so nxlock replaces it. It does not wait for a sentinel that has been silent on a new connection too, but reads
//! that answer when it comes. Where too few answer, nobody can know, and nxlock goes on with the server that it has.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;
use redis::{Cmd, Value, cmd};

use super::{Failures, share, with_server};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::mailbox::{Arrived, Mailbox};
use crate::store::redis::connection::{Connection, auth, packed};
use crate::store::redis::credentials::{Login, Secret};
use crate::store::redis::endpoint::{Address, Endpoint, Session, escaped};
use crate::store::redis::fault::Fault;
use crate::store::redis::reply;
use crate::wait::{Limit, Woken};
use crate::{log, text, thread};

/// Default port of a sentinel.
pub const PORT: u16 = 26379;

/// How long a sentinel has to answer, before another connection to it is tried; and, while nxlock looks for a master,
/// after another sentinel has answered.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same on a connection that has replaced another one.
const PATIENCE_AGAIN: Duration = Duration::from_secs(1);
/// How long a majority has to answer before further sentinels are asked, and how long the others have: since the majority
/// agreed, where nxlock looks for a master; since the question, where it asks about one.
const HEDGE: Duration = Duration::from_millis(50);
/// Time-out of a connect in the background.
const OPENING: Duration = Duration::from_secs(2);
/// How long too few sentinels may answer before nxlock warns.
const UNWARNED: Duration = Duration::from_secs(10);

/// The sentinels that monitor one master.
#[derive(Clone)]
pub struct Sentinels {
    /// Ordered: those that answered last come first.
    sentinels: Vec<Sentinel>,
    master: String,
    session: Session,
    /// The master that was found.
    found: Option<Master>,
    /// A server that says that it is not the master of this epoch, whatever sentinels say.
    denied: Option<Master>,
    /// Since when too few sentinels tell whether a reply is the master's, and whether nxlock has warned of that.
    unconfirmed: Option<(Moment, bool)>,
}

/// A master, and the number of the failover that made it that, if sentinels tell it.
type Master = (Address, Option<u64>);

struct Sentinel {
    address: Address,
    connection: Option<Connection>,
    /// What is asked on the connection, and not answered yet.
    question: Option<Question>,
    /// The connection to come, if there is none.
    opening: Option<Opening>,
    /// When the last connect in the background began.
    tried: Option<Moment>,
    /// How many connects and questions in a row it has not answered in time.
    missed: u32,
    /// When it was asked the first time of those since its last answer.
    silent_since: Option<Moment>,
}

/// A connection that is being opened in the background, and the question on it.
struct Opening {
    began: Moment,
    opened: Mailbox<Result<(Connection, Question), Fault>>,
}

struct Question {
    asked: Moment,
    login: Option<LoginSent>,
    /// The replies that have come.
    replies: Vec<Value>,
}

/// A login that is sent ahead of a question.
struct LoginSent {
    login: Login,
    password: Secret,
    /// The sentinel has refused the password before, which was replaced meanwhile.
    is_again: bool,
}

/// The name of a master by one sentinel.
#[derive(Clone)]
struct Vote {
    /// The index of the sentinel.
    by: usize,
    /// Nothing if it knows none.
    address: Option<Address>,
    /// The number of the failover that made this server the master, if the sentinel tells that.
    epoch: Option<u64>,
    /// When the sentinel was asked.
    asked: Moment,
}

impl Sentinels {
    pub fn new(addresses: Vec<Address>, master: String, session: Session) -> Sentinels {
        let sentinels = addresses.into_iter().map(Sentinel::new).collect();
        Sentinels { sentinels, master, session, found: None, denied: None, unconfirmed: None }
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Connects to the master.
    pub fn open_master(&mut self, limit: Limit<'_>) -> Result<Connection, Fault> {
        let (address, by_most) = self.find(limit)?;
        if let Some(connection) = self.open_at(&address, limit)? {
            return Ok(connection);
        }
        let is_no_master = Fault::Known {
            kind: ErrorKind::Unavailable,
            cause: format!("the sentinels name {address}, which is not a master"),
            hint: "a failover is under way, or was: try again soon",
        };
        // A sentinel names a new master only after that has taken the role: this one is wrong about a later failover.
        let Some((other, epoch)) = by_most.filter(|(other, _)| *other != address) else { return Err(is_no_master) };
        self.denied = self.found.replace((other.clone(), epoch));
        self.open_at(&other, limit)?.ok_or(is_no_master)
    }

    /// Connects to a server. Returns nothing if its role is not that of a master.
    fn open_at(&self, address: &Address, limit: Limit<'_>) -> Result<Option<Connection>, Fault> {
        let endpoint = Endpoint { address: address.clone(), session: self.session.clone() };
        let asked = Moment::now();
        let opened = Connection::open(&endpoint, limit).and_then(|mut connection| {
            let role = connection.converse(&[cmd("ROLE")], limit)?.pop().unwrap_or(Value::Nil);
            Ok((connection, role))
        });
        let (connection, role) =
            opened.map_err(|fault| with_server(fault, &format!("the master {}", endpoint.address), asked))?;
        match role {
            Value::Array(said) if said.first().and_then(reply::text).is_some_and(|role| role.raw() == "master") => {
                Ok(Some(connection))
            }
            Value::Array(_) => Ok(None),
            other => Err(reply::refusal(&other, self.session.login.as_ref())),
        }
    }

    /// Asks whether the server that has replied has been the master since nxlock found it. Sentinels that do not answer
    /// have twice [`PATIENCE`]: half of it is for the connections that there are, half for those that replace them.
    ///
    /// # Errors
    /// If it has not: the reply is of no value. The request was carried out, but perhaps by that server alone.
    pub fn confirm(&mut self, peer: &Address, limit: Limit<'_>) -> Result<(), Fault> {
        let began = Moment::now();
        match self.ask_about(peer, began, limit.no_later_than(began + PATIENCE * 2))? {
            Some(Verdict::Confirmed) => {
                self.unconfirmed = None;
                Ok(())
            }
            Some(Verdict::Deposed(master)) => Err(Fault::Known {
                kind: ErrorKind::Unanswered,
                cause: format!("{peer} is not the master any more: the sentinels name {master}"),
                hint: "there was a failover: try again",
            }),
            Some(Verdict::Promoted(epoch)) => {
                self.found = Some((peer.clone(), Some(epoch)));
                Err(Fault::Known {
                    kind: ErrorKind::Unanswered,
                    cause: format!("{peer} was deposed, and is the master once more"),
                    hint: "there was a failover: try again",
                })
            }
            None => {
                let (since, has_warned) = self.unconfirmed.get_or_insert((began, false));
                if since.elapsed() >= UNWARNED && !std::mem::replace(has_warned, true) {
                    log::warn(format_args!(
                        "too few sentinels answer to tell whether {peer} is still the master; if another is, two may \
                         hold the lock"
                    ));
                } else {
                    log::trace(format_args!("too few sentinels tell whether {peer} is still the master"));
                }
                Ok(())
            }
        }
    }

    /// Returns the master, and the server that a majority of all sentinels name, each with its epoch.
    fn find(&mut self, limit: Limit<'_>) -> Result<(Address, Option<Master>), Fault> {
        // What one owes from an earlier question may be the answer of before the failover.
        self.sentinels.iter_mut().filter(|sentinel| sentinel.is_asked()).for_each(Sentinel::hang_up);
        self.denied = None;
        let mut failures = Failures::default();
        // The other half is for the master.
        let votes = self.ask_all(share(limit, 1), &mut failures)?;
        // The next connection asks those that answered first.
        let order: Vec<Address> = votes.iter().map(|vote| self.sentinels[vote.by].address.clone()).collect();
        let place = |sentinel: &Sentinel| order.iter().position(|address| *address == sentinel.address);
        let (kind, cause, hint) = match elected(&votes).as_slice() {
            [(address, _)] => {
                let address = (*address).clone();
                log::trace(format_args!("the sentinels name the master {address}"));
                // It may have been told a later one than those that answered now know.
                let before = self.found.take().filter(|(found, _)| *found == address).and_then(|(_, epoch)| epoch);
                self.found = Some((address.clone(), epoch_of(&address, &votes).max(before)));
                self.sentinels.sort_by_key(|sentinel| place(sentinel).unwrap_or(usize::MAX));
                let by_most = most_named(votes.iter()).into_iter().find(|(_, count)| *count >= self.majority());
                return Ok((address, by_most.map(|(named, _)| (named.clone(), epoch_of(named, &votes)))));
            }
            [] if failures.said.is_empty() => (
                ErrorKind::Misconfigured,
                format!("none of the sentinels knows a master \"{}\"", text::clean(&self.master)),
                "see its name in `redis-cli -p 26379 SENTINEL MASTERS`",
            ),
            [] => (
                failures.kind,
                format!("no sentinel named the master: {}", failures.said.join("; ")),
                "check that the servers run and the addresses are right",
            ),
            several => {
                let names: Vec<_> = several.iter().map(|(address, _)| address.to_string()).collect();
                (
                    ErrorKind::Unavailable,
                    format!("the sentinels disagree about the master: {}", names.join(", ")),
                    "see SENTINEL MASTERS at each: they do not monitor the same servers",
                )
            }
        };
        Err(Fault::Known { kind, cause, hint })
    }

    fn majority(&self) -> usize {
        self.sentinels.len() / 2 + 1
    }

    /// Asks all sentinels for the master, and collects their votes until all have answered or failed, or the limit is
    /// reached: one that was not asked may be the first to know of a failover. None has longer than [`PATIENCE`] once
    /// another has answered, or [`HEDGE`] once a majority has agreed.
    ///
    /// # Errors
    /// If the wait is cancelled.
    fn ask_all(&mut self, mut limit: Limit<'_>, failures: &mut Failures) -> Result<Vec<Vote>, Fault> {
        let (questions, since) = (self.questions(), Moment::now());
        let mut votes: Vec<Vote> = Vec::new();
        self.ask_connected(&questions, limit, failures);
        let all = 0..self.sentinels.len();
        let mut others: Vec<usize> = all.filter(|at| self.sentinels[*at].connection.is_none()).collect();
        others.sort_by_key(|at| self.sentinels[*at].missed);
        let mut others = others.into_iter();
        while votes.len() < self.sentinels.len() {
            // The time first: nxlock then reads every answer that came before it was over.
            let is_over = limit.until.passed();
            let asked: Vec<_> = self.sentinels.iter().filter_map(Sentinel::awaited_fd).collect();
            let number = asked.len() + votes.len();
            if !is_over && let Some(at) = others.next() {
                let within = if number < self.majority() { limit } else { limit.no_later_than(Moment::now() + HEDGE) };
                self.sentinels[at].open(&questions, &self.session, share(within, others.len() + 1), failures)?;
                continue;
            }
            if asked.is_empty() {
                break;
            }
            if let Woken::Cancelled = limit.wait_for(&asked)? {
                return Err(Fault::Cancelled);
            }
            self.read(&questions, limit, &mut votes, failures);
            if is_over {
                break;
            }
            if !votes.is_empty() {
                limit = limit.no_later_than(Moment::now() + PATIENCE);
            }
            if is_settled(&votes, self.majority()) {
                limit = limit.no_later_than(Moment::now() + HEDGE);
            }
        }
        let asked = (0..self.sentinels.len()).filter(|at| self.sentinels[*at].question.is_some());
        let silent: Vec<usize> = asked.chain(others).collect();
        for at in silent {
            let sentinel = &mut self.sentinels[at];
            sentinel.missed += u32::from(sentinel.question.is_some());
            let since = *sentinel.silent_since.get_or_insert(since);
            failures.add(&sentinel.address, Fault::TimeUp, since);
        }
        Ok(votes)
    }

    /// Asks for the master until the votes give a verdict on a server that has replied before `began`, no answer is worth
    /// waiting for, or the limit is reached. A confirmation waits for the other answers too, until [`HEDGE`] has passed.
    /// Reads the answers to earlier questions too. Begins with the connections that there are, if those are to a majority,
    /// and opens others in the background.
    ///
    /// # Errors
    /// If the wait is cancelled.
    fn ask_about(&mut self, peer: &Address, began: Moment, limit: Limit<'_>) -> Result<Option<Verdict>, Fault> {
        let questions = self.questions();
        let (mut votes, mut failures) = (Vec::new(), Failures::default());
        self.read(&questions, limit, &mut votes, &mut failures);
        for sentinel in self.sentinels.iter_mut().filter(|sentinel| sentinel.is_overdue()) {
            sentinel.miss();
        }
        self.ask_connected(&questions, limit, &mut failures);
        let hedge = began + HEDGE;
        let half = share(limit, 1).until;
        loop {
            // nxlock looks at each moment once, and first: it then reads every answer that came before the moment passed. A
            // moment that passes meanwhile ends the wait below at once.
            let [is_over, is_hedged, is_half_over] = [limit.until, hedge, half].map(Moment::passed);
            self.read(&questions, limit, &mut votes, &mut failures);
            let verdict = self.judged(peer, &votes, began, is_over);
            let awaited = |sentinels: &[Sentinel]| sentinels.iter().filter(|sentinel| sentinel.is_worth(began)).count();
            // The sentinel that leads a failover knows of it a second before the others.
            let may_be_refuted = verdict == Some(Verdict::Confirmed) && awaited(&self.sentinels) > 0 && !is_hedged;
            if is_over || verdict.is_some() && !may_be_refuted {
                return Ok(verdict);
            }
            if is_half_over {
                let silent = |sentinel: &&mut Sentinel| sentinel.missed == 0 && sentinel.question.is_some();
                self.sentinels.iter_mut().filter(silent).for_each(Sentinel::miss);
            }
            let fresh = votes.iter().filter(|vote| vote.asked >= began).count();
            let is_short = fresh + awaited(&self.sentinels) < self.majority();
            if is_short || is_hedged {
                for sentinel in &mut self.sentinels {
                    sentinel.begin_to_open(began, &questions, &self.session, &mut failures);
                }
            }
            if awaited(&self.sentinels) == 0 {
                return Ok(self.judged(peer, &votes, began, true));
            }
            let turns = [(hedge, is_hedged), (half, is_half_over)].into_iter().filter(|(_, has_passed)| !has_passed);
            let until = turns.fold(limit, |limit, (turn, _)| limit.no_later_than(turn));
            let asked: Vec<_> = self.sentinels.iter().filter_map(Sentinel::awaited_fd).collect();
            if let Woken::Cancelled = until.wait_for(&asked)? {
                return Err(Fault::Cancelled);
            }
        }
    }

    /// Returns the [`verdict`] without votes for a server that has denied to be that master.
    fn judged(&self, peer: &Address, votes: &[Vote], replied: Moment, are_all: bool) -> Option<Verdict> {
        let is_denied = |vote: &Vote| {
            self.denied.as_ref().is_some_and(|(by, epoch)| vote.address.as_ref() == Some(by) && vote.epoch == *epoch)
        };
        let heard: Vec<Vote> = votes.iter().filter(|vote| !is_denied(vote)).cloned().collect();
        let epoch = self.found.as_ref().filter(|(found, _)| found == peer).and_then(|(_, epoch)| *epoch);
        verdict(&heard, peer, epoch, self.majority(), replied, are_all)
    }

    /// Asks on the connections that there are.
    fn ask_connected(&mut self, questions: &[Cmd], limit: Limit<'_>, failures: &mut Failures) {
        for sentinel in &mut self.sentinels {
            if sentinel.is_free()
                && let Err(fault) = sentinel.put(questions, None, limit)
            {
                failures.add(&sentinel.address, fault, Moment::now());
            }
        }
    }

    /// Reads the answers that have come.
    fn read(&mut self, questions: &[Cmd], limit: Limit<'_>, votes: &mut Vec<Vote>, failures: &mut Failures) {
        let login = self.session.login.as_ref();
        for (by, sentinel) in self.sentinels.iter_mut().enumerate() {
            let asked = sentinel.asked();
            match sentinel.take_opened().and_then(|()| sentinel.read(by, questions, login, limit)) {
                Ok(None) => {}
                Ok(Some(vote)) => {
                    (sentinel.silent_since, sentinel.missed) = (None, 0);
                    votes.retain(|vote| vote.by != by);
                    votes.push(vote);
                }
                Err(fault) => {
                    sentinel.missed += u32::from(matches!(fault, Fault::TimeUp));
                    sentinel.hang_up();
                    failures.add(&sentinel.address, fault, asked);
                }
            }
        }
    }

    fn questions(&self) -> [Cmd; 2] {
        [self.question("GET-MASTER-ADDR-BY-NAME"), self.question("MASTER")]
    }

    fn question(&self, subcommand: &str) -> Cmd {
        let mut question = cmd("SENTINEL");
        question.arg(subcommand).arg(&self.master);
        question
    }
}

impl Sentinel {
    fn new(address: Address) -> Sentinel {
        Sentinel {
            address,
            connection: None,
            question: None,
            opening: None,
            tried: None,
            missed: 0,
            silent_since: None,
        }
    }

    /// When the outstanding question was asked, or the connect for it began.
    fn since(&self) -> Option<Moment> {
        let asked = self.question.as_ref().map(|question| question.asked);
        asked.or(self.opening.as_ref().map(|opening| opening.began))
    }

    /// The same, to measure how long it has been silent.
    fn asked(&self) -> Moment {
        self.since().unwrap_or_else(Moment::now)
    }

    fn is_asked(&self) -> bool {
        self.since().is_some()
    }

    /// Returns whether its connection may be dead: a packet filter or an address that has changed tells no error.
    fn is_overdue(&self) -> bool {
        let patience = if self.missed == 0 { PATIENCE } else { PATIENCE_AGAIN };
        self.since().is_some_and(|since| since.elapsed() >= patience)
    }

    /// Returns whether to wait for an answer to what was asked since `began`: not if a new connection did not bring any.
    fn is_worth(&self, began: Moment) -> bool {
        self.missed < 2 && self.since().is_some_and(|since| since >= began)
    }

    fn miss(&mut self) {
        self.missed = self.missed.saturating_add(1);
        self.hang_up();
    }

    /// Returns whether there is a connection to ask on. One that the sentinel has closed meanwhile is none.
    fn is_free(&mut self) -> bool {
        if self.question.is_none() && self.connection.as_ref().is_some_and(|connection| !connection.is_quiet()) {
            self.hang_up();
        }
        self.question.is_none() && self.connection.is_some()
    }

    fn hang_up(&mut self) {
        (self.connection, self.question, self.opening) = (None, None, None);
    }

    /// Returns a descriptor that is readable when the connect has ended, or something of the answer has come.
    fn awaited_fd(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        if let Some(opening) = &self.opening {
            return Some((opening.opened.fd(), PollFlags::POLLIN));
        }
        self.question.as_ref()?;
        Some((self.connection.as_ref()?.fd(), PollFlags::POLLIN))
    }

    fn endpoint(&self, session: &Session) -> Endpoint {
        let nameless = Session { login: None, db: 0, trust: session.trust.clone() };
        Endpoint { address: self.address.clone(), session: nameless }
    }

    /// Begins to connect and to ask, unless it is connected, or has failed since `began`. A thread of its own connects:
    /// nothing waits for a sentinel that is out of reach, and it is asked as soon as it is back.
    fn begin_to_open(&mut self, began: Moment, questions: &[Cmd], session: &Session, failures: &mut Failures) {
        if self.connection.is_some() || self.opening.is_some() || self.tried.is_some_and(|tried| tried >= began) {
            return;
        }
        let now = Moment::now();
        self.tried = Some(now);
        let (endpoint, packed) = (self.endpoint(session), packed(questions));
        let begun = Mailbox::open().and_then(|(opened, sender)| {
            let open = move || {
                let limit = Limit::until(now + OPENING);
                let connection = Connection::open(&endpoint, limit);
                sender.send(connection.and_then(|mut connection| {
                    let question = Question { asked: Moment::now(), login: None, replies: Vec::new() };
                    connection.send(&packed, limit)?;
                    Ok((connection, question))
                }));
            };
            thread::spawn("sentinel", open)?;
            Ok(opened)
        });
        match begun {
            Ok(opened) => self.opening = Some(Opening { began: now, opened }),
            Err(error) => failures.add(&self.address, error.into(), now),
        }
    }

    /// Takes a connection that has been opened in the background, if it is there.
    fn take_opened(&mut self) -> Result<(), Fault> {
        let Some(opening) = &mut self.opening else { return Ok(()) };
        let Arrived::Message(opened) = opening.opened.next(Limit::until(Moment::now()))? else { return Ok(()) };
        self.opening = None;
        let (connection, question) = opened?;
        (self.connection, self.question) = (Some(connection), Some(question));
        Ok(())
    }

    /// Connects, and asks.
    ///
    /// # Errors
    /// If the wait is cancelled.
    fn open(
        &mut self,
        questions: &[Cmd],
        session: &Session,
        limit: Limit<'_>,
        failures: &mut Failures,
    ) -> Result<(), Fault> {
        let began = Moment::now();
        let opened = Connection::open(&self.endpoint(session), limit);
        self.missed += u32::from(matches!(opened, Err(Fault::TimeUp)));
        let asked = opened.and_then(|connection| {
            self.connection = Some(connection);
            self.put(questions, None, limit)
        });
        match asked {
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            Err(fault) => failures.add(&self.address, fault, *self.silent_since.get_or_insert(began)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Sends the questions, behind the login if there is one.
    fn put(&mut self, questions: &[Cmd], login: Option<LoginSent>, limit: Limit<'_>) -> Result<(), Fault> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let auth = login.as_ref().map(|sent| auth(&sent.login, &sent.password));
        let requests: Vec<Cmd> = auth.into_iter().chain(questions.iter().cloned()).collect();
        let asked = Moment::now();
        match connection.send(&packed(&requests), limit) {
            Ok(()) => {
                self.question = Some(Question { asked, login, replies: Vec::new() });
                Ok(())
            }
            Err(no_reply) => {
                self.hang_up();
                Err(no_reply.fault)
            }
        }
    }

    /// Returns the answer to the outstanding question, if all of it has come. Sends the login only to a sentinel that
    /// requires one: many have no password, and must not learn the master's.
    fn read(
        &mut self,
        by: usize,
        questions: &[Cmd],
        login: Option<&Login>,
        limit: Limit<'_>,
    ) -> Result<Option<Vote>, Fault> {
        let (Some(connection), Some(question)) = (&mut self.connection, &mut self.question) else { return Ok(None) };
        let expected = questions.len() + usize::from(question.login.is_some());
        while question.replies.len() < expected {
            match connection.receive(Limit::until(Moment::now())) {
                Ok(reply) => question.replies.push(reply),
                Err(Fault::TimeUp) => return Ok(None),
                Err(fault) => return Err(fault),
            }
        }
        let (asked, sent) = (question.asked, question.login.take());
        let mut replies = std::mem::take(&mut question.replies).into_iter();
        self.question = None;
        let refusal = |reply: &Value| reply::refusal(reply, login);
        if let Some(LoginSent { login, password, is_again }) = &sent
            && let Some(reply @ Value::ServerError(_)) = replies.next()
        {
            let refusal = refusal(&reply);
            let may_be_old = !is_again && refusal.is_refusal();
            let replaced = if may_be_old { login.replaced(password, limit)? } else { None };
            let Some(password) = replaced else { return Err(refusal) };
            self.put(questions, Some(LoginSent { login: login.clone(), password, is_again: true }), limit)?;
            return Ok(None);
        }
        let (named, state) = (replies.next().unwrap_or(Value::Nil), replies.next().unwrap_or(Value::Nil));
        match &named {
            Value::ServerError(error) if error.code() == "NOAUTH" && login.is_some() && sent.is_none() => {
                let login = login.map(|login| {
                    let password = login.password(limit)?;
                    Ok::<_, Fault>(LoginSent { login: login.clone(), password, is_again: false })
                });
                self.put(questions, login.transpose()?, limit)?;
                Ok(None)
            }
            Value::ServerError(error) if !error.details().is_some_and(|said| said.contains("unknown command")) => {
                Err(refusal(&named))
            }
            named => Ok(Some(Vote { by, address: address(named)?, epoch: epoch(&state), asked })),
        }
    }
}

/// Without the connection: a copy asks on its own.
impl Clone for Sentinel {
    fn clone(&self) -> Sentinel {
        Sentinel::new(self.address.clone())
    }
}

/// Parses a reply of SENTINEL GET-MASTER-ADDR-BY-NAME.
fn address(said: &Value) -> Result<Option<Address>, Fault> {
    match said {
        Value::Nil => Ok(None),
        Value::Array(parts) => match parts.iter().map(reply::text).collect::<Vec<_>>().as_slice() {
            [Some(host), Some(port)] => {
                let port = port.raw().parse().map_err(|_| Fault::Garbled("it names no port".into()))?;
                Ok(Some(Address::Tcp { host: host.to_owned(), port }))
            }
            _ => Err(Fault::Garbled("it names no address".into())),
        },
        _ => Err(Fault::Garbled("it is not a sentinel".into())),
    }
}

/// Parses the field `config-epoch` of a reply of SENTINEL MASTER: pairs of a name and a value.
fn epoch(said: &Value) -> Option<u64> {
    let Value::Array(fields) = said else { return None };
    let pair = fields.chunks(2).find(|pair| reply::text(&pair[0]).is_some_and(|name| name.raw() == "config-epoch"))?;
    reply::text(pair.get(1)?)?.raw().parse().ok()
}

/// What votes say of a server.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Confirmed,
    /// This server is the master.
    Deposed(Address),
    /// It is the master by the failover of this epoch, later than that by which it was found: another was in between.
    Promoted(u64),
}

/// Returns whether a server that has replied at `replied` has been the master since it was found with this epoch, as far
/// as votes tell. One sentinel is enough to depose it if it knows of a later failover, else it takes a majority of all;
/// if these know only an earlier one, not before `are_all`: the next answer may be that of the sentinel by which it was
/// found. The reply is confirmed if a majority of all, asked since, name the server, or know only an earlier failover.
fn verdict(
    votes: &[Vote],
    peer: &Address,
    epoch: Option<u64>,
    majority: usize,
    replied: Moment,
    are_all: bool,
) -> Option<Verdict> {
    let elected = elected(votes);
    let [(named, count)] = elected.as_slice() else { return None };
    let known = epoch_of(named, votes);
    let later = known.filter(|known| epoch.is_some_and(|epoch| *known > epoch));
    if *named != peer {
        let by = || votes.iter().filter(|vote| vote.address.as_ref() == Some(*named));
        let are_earlier = by().all(|vote| vote.epoch.is_some() && vote.epoch < epoch);
        let is_outvoted = *count >= majority && (are_all || !are_earlier);
        return (later.is_some() || is_outvoted).then(|| Verdict::Deposed((*named).clone()));
    }
    if let Some(later) = later {
        return Some(Verdict::Promoted(later));
    }
    let agrees = |vote: &&Vote| vote.address.as_ref() == Some(peer) || is_stale(vote, votes);
    (votes.iter().filter(|vote| vote.asked >= replied).filter(agrees).count() >= majority).then_some(Verdict::Confirmed)
}

/// Returns whether a majority of all sentinels agree, and none knows of a later failover.
fn is_settled(votes: &[Vote], majority: usize) -> bool {
    matches!(elected(votes).as_slice(), [(_, count)] if *count >= majority)
}

/// Returns the servers that may be the master, each with the number of its votes: one, unless there is a draw. That of
/// the latest failover is the master, even if only one sentinel knows of it yet, as sentinels themselves have it. A vote
/// that does not tell its epoch cannot be compared, so with one of those the majority decides.
fn elected(votes: &[Vote]) -> Vec<(&Address, usize)> {
    let are_known = named(votes.iter()).all(|(_, epoch)| epoch.is_some());
    most_named(votes.iter().filter(|vote| !are_known || !is_stale(vote, votes)))
}

/// Returns whether a vote is of an earlier failover than another one.
fn is_stale(vote: &Vote, votes: &[Vote]) -> bool {
    let latest = named(votes.iter()).filter_map(|(_, epoch)| epoch).max();
    vote.address.is_some() && vote.epoch.is_some() && vote.epoch < latest
}

/// Returns the servers that most votes name, each with their number.
fn most_named<'a>(votes: impl Iterator<Item = &'a Vote>) -> Vec<(&'a Address, usize)> {
    let mut counts: Vec<(&Address, usize)> = Vec::new();
    for (address, _) in named(votes) {
        match counts.iter_mut().find(|(known, _)| *known == address) {
            Some((_, count)) => *count += 1,
            None => counts.push((address, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    counts.retain(|(_, count)| Some(*count) == most);
    counts
}

/// Returns the latest epoch of a server that votes tell.
fn epoch_of(server: &Address, votes: &[Vote]) -> Option<u64> {
    named(votes.iter()).filter(|(named, _)| *named == server).filter_map(|(_, epoch)| epoch).max()
}

/// Returns the server that each vote names, with its epoch.
fn named<'a>(votes: impl Iterator<Item = &'a Vote>) -> impl Iterator<Item = (&'a Address, Option<u64>)> {
    votes.filter_map(|vote| Some((vote.address.as_ref()?, vote.epoch)))
}

/// Without the password.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sentinels { sentinels, master, session, .. } = self;
        let mut hosts: Vec<_> = sentinels.iter().map(|sentinel| sentinel.address.to_string()).collect();
        // Sorted, so that the text does not depend on which one answered last.
        hosts.sort();
        let (scheme, user) = (session.scheme(), session.user());
        write!(f, "{scheme}+sentinel://{user}{}/{}{}", hosts.join(","), escaped(master), session.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> Address {
        Address::Tcp { host: "redis".into(), port }
    }

    fn votes(votes: &[(u16, Option<u64>, bool)]) -> Vec<Vote> {
        let vote = |(by, &(port, epoch, is_fresh)): (usize, &(u16, Option<u64>, bool))| Vote {
            by,
            address: Some(server(port)),
            epoch,
            asked: if is_fresh { Moment::after_boot(REPLIED) } else { Moment::after_boot(Duration::ZERO) },
        };
        votes.iter().enumerate().map(vote).collect()
    }

    const REPLIED: Duration = Duration::from_secs(7);

    fn elect(named: &[(u16, Option<u64>)]) -> Vec<Address> {
        let votes = votes(&named.iter().map(|&(port, epoch)| (port, epoch, true)).collect::<Vec<_>>());
        elected(&votes).into_iter().map(|(address, _)| address.clone()).collect()
    }

    #[test]
    fn the_latest_failover_counts_then_the_majority_and_a_draw_elects_nobody() {
        assert_eq!(elect(&[(1, Some(4)), (1, Some(4)), (2, Some(5))]), [server(2)]);
        assert_eq!(elect(&[(1, Some(0)), (2, Some(0)), (1, Some(0))]), [server(1)]);
        assert_eq!(elect(&[(2, Some(7)), (1, Some(7)), (3, Some(6)), (3, Some(6))]), [server(2), server(1)]);
        assert_eq!(elect(&[(3, None)]), [server(3)]);
        assert_eq!(elect(&[]), []);
    }

    #[test]
    fn an_epoch_that_is_not_told_of_all_outvotes_nobody() {
        assert_eq!(elect(&[(2, None), (1, Some(5)), (2, None)]), [server(2)]);
        assert_eq!(elect(&[(2, None), (1, Some(5))]), [server(2), server(1)]);
    }

    /// The verdict on server 1, of epoch 5, by three sentinels.
    fn of_three(named: &[(u16, Option<u64>, bool)]) -> Option<Verdict> {
        verdict(&votes(named), &server(1), Some(5), 2, Moment::after_boot(REPLIED), false)
    }

    #[test]
    fn one_that_knows_of_a_later_failover_deposes_and_others_only_together() {
        let deposed = |port| Some(Verdict::Deposed(server(port)));
        assert_eq!(of_three(&[(2, Some(6), true)]), deposed(2));
        assert_eq!(of_three(&[(1, Some(5), true), (1, Some(5), true), (2, Some(6), false)]), deposed(2));
        assert_eq!(of_three(&[(2, Some(4), true)]), None);
        assert_eq!(of_three(&[(2, None, true)]), None);
        assert_eq!(of_three(&[(2, None, true), (2, Some(4), true)]), deposed(2));
        let unknown = |named: &[_]| verdict(&votes(named), &server(1), None, 2, Moment::after_boot(REPLIED), false);
        assert_eq!(unknown(&[(2, Some(6), true)]), None);
        assert_eq!(unknown(&[(2, Some(6), true), (2, Some(6), true)]), deposed(2));
    }

    #[test]
    fn a_reply_from_before_a_server_was_deposed_does_not_count_when_it_is_the_master_once_more() {
        assert_eq!(of_three(&[(2, Some(6), false), (1, Some(7), true)]), Some(Verdict::Promoted(7)));
        assert_eq!(of_three(&[(1, Some(5), true), (1, Some(7), true)]), Some(Verdict::Promoted(7)));
    }

    #[test]
    fn a_majority_that_was_asked_since_the_reply_confirms_it() {
        assert_eq!(of_three(&[(1, Some(5), true), (1, None, true)]), Some(Verdict::Confirmed));
        assert_eq!(of_three(&[(1, Some(5), true), (1, Some(5), false)]), None);
        assert_eq!(of_three(&[]), None);
    }

    #[test]
    fn those_that_have_not_heard_of_the_failover_yet_do_not_depose_the_new_master() {
        let old = (2, Some(4), true);
        assert_eq!(of_three(&[(1, Some(5), true), old, old]), Some(Verdict::Confirmed));
        assert_eq!(of_three(&[(1, Some(5), true), (2, Some(4), false), (2, Some(4), false)]), None);
        assert_eq!(of_three(&[old, old]), None, "the third may be the one that knows");
        let all = verdict(&votes(&[old, old]), &server(1), Some(5), 2, Moment::after_boot(REPLIED), true);
        assert_eq!(all, Some(Verdict::Deposed(server(2))));
        assert_eq!(elect(&[(1, Some(5)), (2, Some(4)), (2, Some(4))]), [server(1)]);
    }

    #[test]
    fn an_epoch_is_read_from_among_the_other_fields() {
        let fields = |pairs: &[&str]| {
            Value::Array(pairs.iter().map(|field| Value::BulkString(field.as_bytes().to_vec())).collect())
        };
        assert_eq!(epoch(&fields(&["name", "config-epoch", "config-epoch", "12", "flags", "master"])), Some(12));
        assert_eq!(epoch(&fields(&["name", "main", "config-epoch"])), None);
        assert_eq!(epoch(&Value::Okay), None);
    }
}
