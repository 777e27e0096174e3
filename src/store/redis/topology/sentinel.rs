//! Finds the master that Sentinel names (Redis documentation, "Guidelines for Redis clients with support for Redis
//! Sentinel"), and does not believe a server that the sentinels have deposed.
//!
//! nxlock asks for every new connection, and uses the server only if that reports the role of a master. A connection to
//! a deposed master may stay open, and that server may go on granting locks to those who reach it; so nxlock asks again
//! after each reply on a connection that it had already, and believes the reply only if the server is still the master.
//! Where no sentinel can be asked, nobody can know, and nxlock goes on with the server that it has.

use std::fmt;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::{Silence, befell, share};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::store::redis::connection::{Connection, auth};
use crate::store::redis::credentials::Login;
use crate::store::redis::endpoint::{Address, Endpoint, Session, escaped};
use crate::store::redis::fault::Fault;
use crate::store::redis::reply;
use crate::wait::Limit;
use crate::{log, text};

/// Default port of a sentinel.
pub const PORT: u16 = 26379;

/// How long nxlock does not wait again for a sentinel that has not answered, while it has a master.
const SPARED: Duration = Duration::from_secs(10);

/// The sentinels that monitor one master.
#[derive(Clone)]
pub struct Sentinels {
    /// Ordered: those that answered last come first.
    sentinels: Vec<Sentinel>,
    master: String,
    session: Session,
    /// When nxlock last began to ask for a master to connect to.
    named_at: Option<Moment>,
}

struct Sentinel {
    address: Address,
    /// Without an outstanding request.
    connection: Option<Connection>,
    /// When it last let the time run out.
    silent_since: Option<Moment>,
}

/// The name of a master by one sentinel.
struct Vote {
    /// The index of the sentinel.
    by: usize,
    address: Address,
    /// The number of the failover that made this server the master; unknown until the sentinels disagree, and if the
    /// sentinel does not tell.
    epoch: u64,
}

/// What the sentinels say together.
enum Named {
    Master(Address),
    /// Of the failovers that they know of, none is the latest, and of the servers, none has a majority.
    Disputed(Vec<Address>),
    /// Those that answered know no master of this name.
    Unknown,
    Silent(Silence),
}

/// Which sentinels to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    All,
    /// Those that were not silent just now.
    Responsive,
}

impl Sentinels {
    pub fn new(addresses: Vec<Address>, master: String, session: Session) -> Sentinels {
        let sentinels = addresses.into_iter().map(Sentinel::new).collect();
        Sentinels { sentinels, master, session, named_at: None }
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

    /// Asks whether the server that has replied is still the master. The sentinels that named it after `since`, when
    /// the exchange began, are not asked again.
    ///
    /// # Errors
    /// If they name another server: the reply is of no value. The request was carried out, but perhaps by that server
    /// alone.
    pub fn confirm(&mut self, peer: &Endpoint, since: Moment, limit: Limit<'_>) -> Result<(), Fault> {
        if self.named_at.is_some_and(|named_at| named_at >= since) {
            return Ok(());
        }
        let names = match self.ask(Whom::Responsive, limit)? {
            Named::Master(address) => vec![address],
            Named::Disputed(addresses) => addresses,
            Named::Unknown | Named::Silent(_) => {
                log::trace(format_args!("no sentinel tells whether {} is still the master", peer.address));
                return Ok(());
            }
        };
        if names.contains(&peer.address) {
            return Ok(());
        }
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Err(Fault::Known {
            kind: ErrorKind::Unanswered,
            cause: format!("{} is not the master any more: the sentinels name {}", peer.address, names.join(" or ")),
            hint: "there was a failover: try again",
        })
    }

    /// Returns the address of the master.
    fn find(&mut self, limit: Limit<'_>) -> Result<Address, Fault> {
        let asked = Moment::now();
        let (kind, cause, hint) = match self.ask(Whom::All, limit)? {
            Named::Master(address) => {
                log::trace(format_args!("the sentinels name the master {address}"));
                self.named_at = Some(asked);
                return Ok(address);
            }
            Named::Disputed(addresses) => {
                let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                (
                    ErrorKind::Unavailable,
                    format!("the sentinels disagree about the master: {}", names.join(", ")),
                    "see SENTINEL MASTERS at each: they do not monitor the same servers",
                )
            }
            Named::Unknown => (
                ErrorKind::Misconfigured,
                format!("none of the sentinels knows a master \"{}\"", text::clean(&self.master)),
                "see its name in `redis-cli -p 26379 SENTINEL MASTERS`",
            ),
            Named::Silent(silence) => (
                silence.kind,
                format!("no sentinel named the master: {}", silence.said.join("; ")),
                "check that the servers run and the addresses are right",
            ),
        };
        Err(Fault::Known { kind, cause, hint })
    }

    /// Asks for the master until a majority of all sentinels agree, or all have been asked. If they disagree, the
    /// latest failover counts; if they know of none that is the latest, the majority of those that answered.
    ///
    /// # Errors
    /// If the wait is cancelled.
    fn ask(&mut self, whom: Whom, limit: Limit<'_>) -> Result<Named, Fault> {
        let majority = self.sentinels.len() / 2 + 1;
        self.sentinels.sort_by_key(Sentinel::is_silent);
        let responsive = self.sentinels.iter().filter(|sentinel| !sentinel.is_silent()).count();
        let all: Vec<usize> = match whom {
            Whom::All => (0..self.sentinels.len()).collect(),
            Whom::Responsive => (0..responsive).collect(),
        };
        let (first, others) = all.split_at(majority.min(all.len()));
        let mut silence = Silence::default();
        let mut votes = self.votes(first, limit, &mut silence)?;
        if votes.len() < majority || !agree(&votes) {
            votes.extend(self.votes(others, limit, &mut silence)?);
        }
        if !agree(&votes) {
            let mut epochs = Vec::new();
            for vote in votes {
                epochs.extend(self.vote_with_epoch(vote, limit)?);
            }
            votes = epochs;
        }
        // The next connection asks the one that answered first.
        if let Some(vote) = votes.first() {
            let at = vote.by;
            self.sentinels.rotate_left(at);
        }
        Ok(match elected(&votes).as_slice() {
            [] if silence.said.is_empty() && !all.is_empty() => Named::Unknown,
            [] => Named::Silent(silence),
            [address] => Named::Master((*address).clone()),
            several => Named::Disputed(several.iter().map(|address| (*address).clone()).collect()),
        })
    }

    /// Asks some sentinels at once, and returns the votes of those that know the master. Each gets a share of the time,
    /// so that one that hangs leaves enough for the others and for what comes after.
    fn votes(&mut self, whom: &[usize], limit: Limit<'_>, silence: &mut Silence) -> Result<Vec<Vote>, Fault> {
        let question = self.question("GET-MASTER-ADDR-BY-NAME");
        let mut asked = Vec::new();
        for (nth, at) in whom.iter().enumerate() {
            let share = share(limit, whom.len() - nth);
            let begun = self.sentinels[*at].begin(&question, &self.session, share);
            asked.push((*at, Moment::now(), begun));
        }
        let mut votes = Vec::new();
        for (nth, (at, since, begun)) in asked.into_iter().enumerate() {
            let share = share(limit, whom.len() - nth);
            let login = self.session.login.clone();
            let sentinel = &mut self.sentinels[at];
            let answer = begun.and_then(|connection| sentinel.hear(connection, &question, login.as_ref(), share));
            match answer {
                Ok(Some(address)) => votes.push(Vote { by: at, address, epoch: 0 }),
                Ok(None) => {}
                Err(Fault::Cancelled) => return Err(Fault::Cancelled),
                Err(fault) => {
                    if matches!(fault, Fault::TimeUp) {
                        sentinel.silent_since = Some(Moment::now());
                    }
                    silence.add(&sentinel.address, fault, since);
                }
            }
        }
        Ok(votes)
    }

    /// Asks the sentinel of a vote again, and for the number of the failover with it.
    fn vote_with_epoch(&mut self, vote: Vote, limit: Limit<'_>) -> Result<Option<Vote>, Fault> {
        let questions = [self.question("GET-MASTER-ADDR-BY-NAME"), self.question("MASTER")];
        let sentinel = &mut self.sentinels[vote.by];
        let Some(mut connection) = sentinel.connection.take() else { return Ok(Some(vote)) };
        let replies = match connection.converse(&questions, share(limit, 2)).map_err(Fault::from) {
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            // What it said before stays its vote.
            Err(_) => return Ok(Some(vote)),
            Ok(replies) => replies,
        };
        sentinel.connection = Some(connection);
        let [name, told] = replies.as_slice() else { return Ok(Some(vote)) };
        Ok(address(name).ok().flatten().map(|address| Vote { address, epoch: epoch(told).unwrap_or(0), ..vote }))
    }

    fn question(&self, subcommand: &str) -> Cmd {
        let mut question = cmd("SENTINEL");
        question.arg(subcommand).arg(&self.master);
        question
    }
}

impl Sentinel {
    fn new(address: Address) -> Sentinel {
        Sentinel { address, connection: None, silent_since: None }
    }

    fn is_silent(&self) -> bool {
        self.silent_since.is_some_and(|since| since.elapsed() < SPARED)
    }

    /// Sends a question, and returns the connection to hear the answer on.
    fn begin(&mut self, question: &Cmd, session: &Session, limit: Limit<'_>) -> Result<Connection, Fault> {
        let mut connection = match self.connection.take().filter(Connection::is_quiet) {
            Some(connection) => connection,
            None => {
                let nameless = Session { login: None, db: 0, trust: session.trust.clone() };
                Connection::open(&Endpoint { address: self.address.clone(), session: nameless }, limit)?
            }
        };
        connection.send(&question.get_packed_command(), limit)?;
        Ok(connection)
    }

    /// Receives the answer. Sends the login only if the sentinel requires one: many have no password, and must not
    /// learn the master's.
    fn hear(
        &mut self,
        mut connection: Connection,
        question: &Cmd,
        login: Option<&Login>,
        limit: Limit<'_>,
    ) -> Result<Option<Address>, Fault> {
        let mut said = connection.receive(limit)?;
        if let (Value::ServerError(error), Some(login)) = (&said, login)
            && error.code() == "NOAUTH"
        {
            said = match one(&mut connection, &auth(login)?, limit)? {
                Value::Okay => one(&mut connection, question, limit)?,
                refusal => refusal,
            };
        }
        let named = match &said {
            Value::ServerError(error) if !error.details().is_some_and(|said| said.contains("unknown command")) => {
                return Err(reply::refusal(&said, login));
            }
            said => address(said)?,
        };
        (self.connection, self.silent_since) = (Some(connection), None);
        Ok(named)
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

fn agree(votes: &[Vote]) -> bool {
    votes.windows(2).all(|two| two[0].address == two[1].address)
}

/// Returns the servers that the votes of the latest failover name most often: one, unless there is a draw.
fn elected(votes: &[Vote]) -> Vec<&Address> {
    let latest = votes.iter().map(|vote| vote.epoch).max();
    let mut counts: Vec<(&Address, usize)> = Vec::new();
    for vote in votes.iter().filter(|vote| Some(vote.epoch) == latest) {
        match counts.iter_mut().find(|(address, _)| *address == &vote.address) {
            Some((_, count)) => *count += 1,
            None => counts.push((&vote.address, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    counts.into_iter().filter(|(_, count)| Some(*count) == most).map(|(address, _)| address).collect()
}

fn one(connection: &mut Connection, request: &Cmd, limit: Limit<'_>) -> Result<Value, Fault> {
    Ok(connection.converse(std::slice::from_ref(request), limit)?.pop().unwrap_or(Value::Nil))
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

    fn elect(votes: &[(u16, u64)]) -> Vec<Address> {
        let vote = |&(port, epoch): &(u16, u64)| Vote { by: 0, address: server(port), epoch };
        let votes: Vec<Vote> = votes.iter().map(vote).collect();
        elected(&votes).into_iter().cloned().collect()
    }

    #[test]
    fn the_latest_failover_counts_then_the_majority_and_a_draw_elects_nobody() {
        assert_eq!(elect(&[(1, 4), (1, 4), (2, 5)]), [server(2)]);
        assert_eq!(elect(&[(1, 0), (2, 0), (1, 0)]), [server(1)]);
        assert_eq!(elect(&[(2, 7), (1, 7), (3, 6), (3, 6), (3, 6)]), [server(2), server(1)]);
        assert_eq!(elect(&[(3, 0)]), [server(3)]);
        assert_eq!(elect(&[]), []);
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
