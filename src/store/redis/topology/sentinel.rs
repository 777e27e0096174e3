//! Finds the master that Sentinel names (Redis documentation, "Guidelines for Redis clients with support for Redis
//! Sentinel"): asks for every new connection, and believes it only if the server itself reports the role of a master.

use std::fmt;

use redis::{Cmd, Value, cmd};

use super::{befell, first_to_tell};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::store::redis::connection::{Connection, auth};
use crate::store::redis::endpoint::{Address, Endpoint, Session, escaped};
use crate::store::redis::fault::Fault;
use crate::store::redis::reply;
use crate::wait::Limit;
use crate::{log, text};

/// Default port of a sentinel.
pub const PORT: u16 = 26379;

#[derive(Clone)]
pub struct Sentinel {
    /// Ordered: the one that answered last comes first.
    sentinels: Vec<Address>,
    master: String,
    session: Session,
}

impl Sentinel {
    pub fn new(sentinels: Vec<Address>, master: String, session: Session) -> Sentinel {
        Sentinel { sentinels, master, session }
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

    /// Returns the address of the master, from the first sentinel that knows it.
    fn find(&mut self, limit: Limit<'_>) -> Result<Address, Fault> {
        let silence = match first_to_tell(&self.sentinels, limit, |sentinel, share| self.ask(sentinel, share))? {
            Ok((at, address)) => {
                log::trace(format_args!("{} names the master {address}", self.sentinels[at]));
                self.sentinels.rotate_left(at);
                return Ok(address);
            }
            Err(silence) => silence,
        };
        if silence.said.is_empty() {
            return Err(Fault::Known {
                kind: ErrorKind::Misconfigured,
                cause: format!("none of the sentinels knows a master \"{}\"", text::clean(&self.master)),
                hint: "see its name in `redis-cli -p 26379 SENTINEL MASTERS`",
            });
        }
        Err(Fault::Known {
            kind: silence.kind,
            cause: format!("no sentinel named the master: {}", silence.said.join("; ")),
            hint: "check that the servers run and the addresses are right",
        })
    }

    /// Asks one sentinel. Sends the login only if the sentinel requires one: many have no password, and must not learn
    /// the master's.
    fn ask(&self, sentinel: &Address, limit: Limit<'_>) -> Result<Option<Address>, Fault> {
        let nameless = Session { login: None, db: 0, trust: self.session.trust.clone() };
        let mut connection = Connection::open(&Endpoint { address: sentinel.clone(), session: nameless }, limit)?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let mut said = one(&mut connection, &question, limit)?;
        if let (Value::ServerError(error), Some(login)) = (&said, &self.session.login)
            && error.code() == "NOAUTH"
        {
            said = match one(&mut connection, &auth(login), limit)? {
                Value::Okay => one(&mut connection, &question, limit)?,
                refusal => refusal,
            };
        }
        match &said {
            Value::Nil => Ok(None),
            Value::Array(parts) => match parts.iter().map(reply::text).collect::<Vec<_>>().as_slice() {
                [Some(host), Some(port)] => {
                    let port = port.raw().parse().map_err(|_| Fault::Garbled("it names no port".into()))?;
                    Ok(Some(Address::Tcp { host: host.to_owned(), port }))
                }
                _ => Err(Fault::Garbled("it names no address".into())),
            },
            Value::ServerError(error) if !error.details().is_some_and(|said| said.contains("unknown command")) => {
                Err(reply::refusal(&said, self.session.login.as_ref()))
            }
            _ => Err(Fault::Garbled("it is not a sentinel".into())),
        }
    }
}

fn one(connection: &mut Connection, request: &Cmd, limit: Limit<'_>) -> Result<Value, Fault> {
    Ok(connection.converse(std::slice::from_ref(request), limit)?.pop().unwrap_or(Value::Nil))
}

/// Without the password.
impl fmt::Display for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sentinel { sentinels, master, session } = self;
        let mut hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
        // Sorted, so that the text does not depend on which one answered last.
        hosts.sort();
        let (scheme, user) = (session.scheme(), session.user());
        write!(f, "{scheme}+sentinel://{user}{}/{}{}", hosts.join(","), escaped(master), session.path())
    }
}
