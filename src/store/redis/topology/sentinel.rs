//! Finds the master that Sentinel names (Redis documentation, "Guidelines for Redis clients with support for Redis
//! Sentinel"), and does not believe a server that the sentinels have deposed.
//!
//! nxlock asks for every new connection, and uses the server only if that reports the role of a master. But a deposed
//! master may go on granting locks to those who reach it. So nxlock asks again after each reply, and believes the reply
//! only if the server is the master then. The number of the failover, the epoch, says which of two answers is the later
//! one. nxlock does not wait for a sentinel that still owes the answer to an earlier question, but reads that answer when
//! it comes. Where too few answer, nobody can know, and nxlock goes on with the server that it has.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;
use redis::{Cmd, Value, cmd};

use super::{Silence, befell, share};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::store::redis::connection::{Connection, auth, packed};
use crate::store::redis::credentials::Login;
use crate::store::redis::endpoint::{Address, Endpoint, Session, escaped};
use crate::store::redis::fault::Fault;
use crate::store::redis::reply;
use crate::wait::{Limit, Woken};
use crate::{log, text};

/// Default port of a sentinel.
pub const PORT: u16 = 26379;

/// How long a reply of the master may wait for the sentinels, and a sentinel that has answered for the others.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a majority has to answer before further sentinels are asked.
const HEDGE: Duration = Duration::from_millis(50);
/// How long nxlock does not connect again to a sentinel that let the time for that run out, while it has a master.
const SPARED: Duration = Duration::from_secs(10);

/// The sentinels that monitor one master.
#[derive(Clone)]
pub struct Sentinels {
    /// Ordered: those that answered last come first.
    sentinels: Vec<Sentinel>,
    master: String,
    session: Session,
    /// The epoch of the master, if the sentinels that named it told that.
    epoch: Option<u64>,
}

struct Sentinel {
    address: Address,
    connection: Option<Connection>,
    /// What is asked on the connection, and not answered yet.
    question: Option<Question>,
    /// When it last let the time for a connect run out.
    out_of_reach_since: Option<Moment>,
    /// When it was asked the first time of those since its last answer.
    silent_since: Option<Moment>,
}

struct Question {
    asked: Moment,
    /// The login is sent ahead of it.
    with_login: bool,
    /// The replies that have come.
    replies: Vec<Value>,
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
        Sentinels { sentinels, master, session, epoch: None }
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Connects to the master.
    pub fn open_master(&mut self, limit: Limit<'_>) -> Result<Connection, Fault> {
        let address = self.find(limit)?;
        let endpoint = Endpoint { address, session: self.session.clone() };
        let asked = Moment::now();
        let opened = Connection::open(&endpoint, limit).and_then(|mut connection| {
            let role = connection.converse(&[cmd("ROLE")], limit)?.pop().unwrap_or(Value::Nil);
            Ok((connection, role))
        });
        let (connection, role) =
            opened.map_err(|fault| befell(fault, &format!("the master {}", endpoint.address), asked))?;
        match role {
            Value::Array(said) if said.first().and_then(reply::text).is_some_and(|role| role.raw() == "master") => {
                Ok(connection)
            }
            Value::Array(_) => Err(Fault::Known {
                kind: ErrorKind::Unavailable,
                cause: format!("the sentinels name {}, which is not a master", endpoint.address),
                hint: "a failover is under way, or was: try again soon",
            }),
            other => Err(reply::refusal(&other, self.session.login.as_ref())),
        }
    }

    /// Asks whether the server that has replied is the master now. The limit is cut to [`PATIENCE`].
    ///
    /// # Errors
    /// If it is not: the reply is of no value. The request was carried out, but perhaps by that server alone.
    pub fn confirm(&mut self, peer: &Address, limit: Limit<'_>) -> Result<(), Fault> {
        let began = Moment::now();
        let (majority, epoch) = (self.majority(), self.epoch);
        let verdict = |votes: &[Vote]| verdict(votes, peer, epoch, majority, began);
        let limit = limit.no_later_than(began + PATIENCE);
        let votes = self.ask(began, limit, |votes| verdict(votes).is_some(), &mut Silence::default())?;
        match verdict(&votes) {
            Some(Verdict::Confirmed) => {}
            Some(Verdict::Deposed(master)) => {
                return Err(Fault::Known {
                    kind: ErrorKind::Unanswered,
                    cause: format!("{peer} is not the master any more: the sentinels name {master}"),
                    hint: "there was a failover: try again",
                });
            }
            None => log::trace(format_args!("too few sentinels tell whether {peer} is still the master")),
        }
        // A server may be made the master once more.
        let ours = votes.iter().filter(|vote| vote.address.as_ref() == Some(peer));
        self.epoch = ours.filter_map(|vote| vote.epoch).chain(self.epoch).max();
        Ok(())
    }

    /// Returns the address of the master.
    fn find(&mut self, limit: Limit<'_>) -> Result<Address, Fault> {
        let number = self.sentinels.len();
        // What one owes from an earlier question may be the answer of before the failover.
        self.sentinels.iter_mut().filter(|sentinel| sentinel.question.is_some()).for_each(Sentinel::hang_up);
        let mut silence = Silence::default();
        // One that was not asked yet may be the first to know of a failover.
        let all = |votes: &[Vote]| votes.len() == number;
        // The other half is for the master.
        let votes = self.ask(Moment::NEVER, share(limit, 1), all, &mut silence)?;
        // The next connection asks those that answered first.
        let order: Vec<Address> = votes.iter().map(|vote| self.sentinels[vote.by].address.clone()).collect();
        let place = |sentinel: &Sentinel| order.iter().position(|address| *address == sentinel.address);
        let (kind, cause, hint) = match elected(&votes).as_slice() {
            [(address, _)] => {
                let address = (*address).clone();
                log::trace(format_args!("the sentinels name the master {address}"));
                let named = votes.iter().filter(|vote| vote.address.as_ref() == Some(&address));
                self.epoch = named.filter_map(|vote| vote.epoch).max();
                self.sentinels.sort_by_key(|sentinel| place(sentinel).unwrap_or(usize::MAX));
                return Ok(address);
            }
            [] if silence.said.is_empty() => (
                ErrorKind::Misconfigured,
                format!("none of the sentinels knows a master \"{}\"", text::clean(&self.master)),
                "see its name in `redis-cli -p 26379 SENTINEL MASTERS`",
            ),
            [] => (
                silence.kind,
                format!("no sentinel named the master: {}", silence.said.join("; ")),
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

    /// Asks for the master, and collects votes until they are `enough`, all sentinels have answered or failed, or the
    /// limit is reached: none has longer than [`PATIENCE`] once another has answered, or [`HEDGE`] once a majority has
    /// agreed. Begins with a majority, and brings in another sentinel for one that fails, or is slow. Reads the answers
    /// to earlier questions too, but does not wait for those asked before `began`, nor for sentinels that were out of
    /// reach lately; with [`Moment::NEVER`], asks and waits for all.
    ///
    /// # Errors
    /// If the wait is cancelled.
    fn ask(
        &mut self,
        began: Moment,
        mut limit: Limit<'_>,
        enough: impl Fn(&[Vote]) -> bool,
        silence: &mut Silence,
    ) -> Result<Vec<Vote>, Fault> {
        let questions = [self.question("GET-MASTER-ADDR-BY-NAME"), self.question("MASTER")];
        let (awaits_all, since) = (began == Moment::NEVER, Moment::now());
        let mut votes: Vec<Vote> = Vec::new();
        self.read(&questions, limit, &mut votes, silence);
        for sentinel in &mut self.sentinels {
            if sentinel.is_free()
                && let Err(fault) = sentinel.put(&questions, None, limit)
            {
                silence.add(&sentinel.address, fault, Moment::now());
            }
        }
        let unconnected =
            |sentinel: &Sentinel| sentinel.connection.is_none() && (awaits_all || !sentinel.is_out_of_reach());
        let all = 0..self.sentinels.len();
        let mut others: Vec<usize> = all.filter(|at| unconnected(&self.sentinels[*at])).collect();
        others.sort_by_key(|at| self.sentinels[*at].is_out_of_reach());
        let mut others = others.into_iter();
        let mut hedge = Moment::now() + HEDGE;
        while !enough(&votes) {
            let is_awaited = |sentinel: &Sentinel| {
                sentinel.question.as_ref().is_some_and(|question| awaits_all || question.asked >= began)
            };
            let awaited = self.sentinels.iter().filter(|sentinel| is_awaited(sentinel)).count();
            if limit.until.passed() {
                break;
            }
            let asked = awaited + votes.len();
            if (awaits_all || awaited == 0 || asked < self.majority() || hedge.passed())
                && let Some(at) = others.next()
            {
                let within = if asked < self.majority() { limit } else { limit.no_later_than(Moment::now() + HEDGE) };
                self.sentinels[at].open(&questions, &self.session, share(within, others.len() + 1), silence)?;
                hedge = Moment::now() + HEDGE;
                continue;
            }
            if awaited == 0 {
                break;
            }
            let until = if others.len() > 0 { limit.no_later_than(hedge) } else { limit };
            let asked: Vec<_> = self.sentinels.iter().filter_map(Sentinel::awaited_fd).collect();
            if let Woken::Cancelled = until.wait_for(&asked)? {
                return Err(Fault::Cancelled);
            }
            self.read(&questions, limit, &mut votes, silence);
            if !votes.is_empty() {
                limit = limit.no_later_than(Moment::now() + PATIENCE);
            }
            if is_settled(&votes, self.majority()) {
                limit = limit.no_later_than(Moment::now() + HEDGE);
            }
        }
        if awaits_all {
            let asked = (0..self.sentinels.len()).filter(|at| self.sentinels[*at].question.is_some());
            let silent: Vec<usize> = asked.chain(others).collect();
            for at in silent {
                let sentinel = &mut self.sentinels[at];
                let since = *sentinel.silent_since.get_or_insert(since);
                silence.add(&sentinel.address, Fault::TimeUp, since);
            }
        }
        Ok(votes)
    }

    /// Reads the answers that have come.
    fn read(&mut self, questions: &[Cmd], limit: Limit<'_>, votes: &mut Vec<Vote>, silence: &mut Silence) {
        let login = self.session.login.as_ref();
        for (by, sentinel) in self.sentinels.iter_mut().enumerate() {
            let asked = sentinel.asked();
            match sentinel.read(by, questions, login, limit) {
                Ok(None) => {}
                Ok(Some(vote)) => {
                    sentinel.silent_since = None;
                    votes.retain(|vote| vote.by != by);
                    votes.push(vote);
                }
                Err(fault) => {
                    sentinel.hang_up();
                    silence.add(&sentinel.address, fault, asked);
                }
            }
        }
    }

    fn question(&self, subcommand: &str) -> Cmd {
        let mut question = cmd("SENTINEL");
        question.arg(subcommand).arg(&self.master);
        question
    }
}

impl Sentinel {
    fn new(address: Address) -> Sentinel {
        Sentinel { address, connection: None, question: None, out_of_reach_since: None, silent_since: None }
    }

    fn is_out_of_reach(&self) -> bool {
        self.out_of_reach_since.is_some_and(|since| since.elapsed() < SPARED)
    }

    /// When the outstanding question was asked.
    fn asked(&self) -> Moment {
        self.question.as_ref().map_or_else(Moment::now, |question| question.asked)
    }

    /// Returns whether there is a connection to ask on. One that the sentinel has closed meanwhile is none.
    fn is_free(&mut self) -> bool {
        if self.question.is_none() && self.connection.as_ref().is_some_and(|connection| !connection.is_quiet()) {
            self.hang_up();
        }
        self.question.is_none() && self.connection.is_some()
    }

    fn hang_up(&mut self) {
        (self.connection, self.question) = (None, None);
    }

    /// Returns a descriptor that is readable when something of the answer has come.
    fn awaited_fd(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.question.as_ref()?;
        Some((self.connection.as_ref()?.fd(), PollFlags::POLLIN))
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
        silence: &mut Silence,
    ) -> Result<(), Fault> {
        let began = Moment::now();
        let nameless = Session { login: None, db: 0, trust: session.trust.clone() };
        let opened = Connection::open(&Endpoint { address: self.address.clone(), session: nameless }, limit);
        self.out_of_reach_since = matches!(opened, Err(Fault::TimeUp)).then_some(began);
        let asked = opened.and_then(|connection| {
            self.connection = Some(connection);
            self.put(questions, None, limit)
        });
        match asked {
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            Err(fault) => silence.add(&self.address, fault, *self.silent_since.get_or_insert(began)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Sends the questions, behind the login if there is one.
    fn put(&mut self, questions: &[Cmd], login: Option<&Login>, limit: Limit<'_>) -> Result<(), Fault> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let requests: Vec<Cmd> = login.map(auth).transpose()?.into_iter().chain(questions.iter().cloned()).collect();
        let asked = Moment::now();
        match connection.send(&packed(&requests), limit) {
            Ok(()) => {
                self.question = Some(Question { asked, with_login: login.is_some(), replies: Vec::new() });
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
        let expected = questions.len() + usize::from(question.with_login);
        while question.replies.len() < expected {
            match connection.receive(Limit::until(Moment::now())) {
                Ok(reply) => question.replies.push(reply),
                Err(Fault::TimeUp) => return Ok(None),
                Err(fault) => return Err(fault),
            }
        }
        let (asked, with_login) = (question.asked, question.with_login);
        let mut replies = std::mem::take(&mut question.replies).into_iter();
        self.question = None;
        let refusal = |reply: &Value| reply::refusal(reply, login);
        if with_login && let Some(reply @ Value::ServerError(_)) = replies.next() {
            return Err(refusal(&reply));
        }
        let (named, told) = (replies.next().unwrap_or(Value::Nil), replies.next().unwrap_or(Value::Nil));
        match &named {
            Value::ServerError(error) if error.code() == "NOAUTH" && login.is_some() && !with_login => {
                self.put(questions, login, limit)?;
                Ok(None)
            }
            Value::ServerError(error) if !error.details().is_some_and(|said| said.contains("unknown command")) => {
                Err(refusal(&named))
            }
            named => Ok(Some(Vote { by, address: address(named)?, epoch: epoch(&told), asked })),
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
}

/// Returns whether a server that has replied at `replied` was the master then, as far as votes tell; it was named with
/// this epoch. Whoever knows of a later failover is right, even alone; otherwise a majority of all sentinels decides, by
/// what they were asked since.
fn verdict(votes: &[Vote], peer: &Address, epoch: Option<u64>, majority: usize, replied: Moment) -> Option<Verdict> {
    let others =
        || votes.iter().filter_map(|vote| vote.address.as_ref().filter(|named| *named != peer).zip(Some(vote)));
    let latest = others().filter(|(_, vote)| vote.epoch.is_some() && vote.epoch > epoch && epoch.is_some());
    let latest = latest.max_by_key(|(_, vote)| vote.epoch);
    // It may have been made the master once more since.
    let ours = votes.iter().filter(|vote| vote.address.as_ref() == Some(peer));
    let latest = latest.filter(|(_, vote)| ours.clone().all(|ours| ours.epoch < vote.epoch));
    if let Some((master, _)) = latest {
        return Some(Verdict::Deposed(master.clone()));
    }
    let is_outvoted = |(named, _): &(&Address, &Vote)| others().filter(|(other, _)| other == named).count() >= majority;
    if let Some((master, _)) = others().find(is_outvoted) {
        return Some(Verdict::Deposed(master.clone()));
    }
    (ours.filter(|vote| vote.asked >= replied).count() >= majority).then_some(Verdict::Confirmed)
}

/// Returns whether a majority of all sentinels agree, and none knows of a later failover.
fn is_settled(votes: &[Vote], majority: usize) -> bool {
    matches!(elected(votes).as_slice(), [(_, count)] if *count >= majority)
}

/// Returns the servers that most votes name, each with their number: one, unless there is a draw. If all votes tell
/// their epoch, those of the latest count.
fn elected(votes: &[Vote]) -> Vec<(&Address, usize)> {
    let votes: Vec<(&Address, Option<u64>)> =
        votes.iter().filter_map(|vote| vote.address.as_ref().map(|address| (address, vote.epoch))).collect();
    let are_known = votes.iter().all(|(_, epoch)| epoch.is_some());
    let latest = votes.iter().map(|(_, epoch)| *epoch).max().flatten();
    let mut counts: Vec<(&Address, usize)> = Vec::new();
    for (address, _) in votes.iter().filter(|(_, epoch)| !are_known || *epoch == latest) {
        match counts.iter_mut().find(|(known, _)| known == address) {
            Some((_, count)) => *count += 1,
            None => counts.push((*address, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    counts.retain(|(_, count)| Some(*count) == most);
    counts
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
        verdict(&votes(named), &server(1), Some(5), 2, Moment::after_boot(REPLIED))
    }

    #[test]
    fn one_that_knows_of_a_later_failover_deposes_and_others_only_together() {
        let deposed = |port| Some(Verdict::Deposed(server(port)));
        assert_eq!(of_three(&[(2, Some(6), true)]), deposed(2));
        assert_eq!(of_three(&[(1, Some(5), true), (1, Some(5), true), (2, Some(6), false)]), deposed(2));
        assert_eq!(of_three(&[(2, Some(4), true)]), None);
        assert_eq!(of_three(&[(2, None, true)]), None);
        assert_eq!(of_three(&[(2, None, true), (2, Some(4), true)]), deposed(2));
        assert_eq!(of_three(&[(2, Some(6), false), (1, Some(7), true)]), None, "it is the master once more");
        let unknown = |named: &[_]| verdict(&votes(named), &server(1), None, 2, Moment::after_boot(REPLIED));
        assert_eq!(unknown(&[(2, Some(6), true)]), None);
        assert_eq!(unknown(&[(2, Some(6), true), (2, Some(6), true)]), deposed(2));
    }

    #[test]
    fn a_majority_that_was_asked_since_the_reply_confirms_it() {
        assert_eq!(of_three(&[(1, Some(5), true), (1, None, true)]), Some(Verdict::Confirmed));
        assert_eq!(of_three(&[(1, Some(5), true), (1, Some(5), false)]), None);
        assert_eq!(of_three(&[]), None);
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
