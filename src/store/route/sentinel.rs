//! The master that Sentinel names (Redis documentation, "Guidelines for Redis clients with support for Redis
//! Sentinel"): asked for with every new connection, and believed only if it says itself that it is one.

use std::fmt;

use redis::{Cmd, Value, cmd};

use super::{befell, first_to_tell};
use crate::clock::Moment;
use crate::limit::Limit;
use crate::say;
use crate::store::Kind;
use crate::store::connect::{Fault, Link, auth};
use crate::store::endpoint::{Address, Endpoint, Entry, escaped};
use crate::store::reply;

/// Where a sentinel listens that is not said to listen elsewhere.
pub const PORT: u16 = 26379;

#[derive(Clone)]
pub struct Sentinels {
    /// The one that answered last comes first.
    sentinels: Vec<Address>,
    master: String,
    entry: Entry,
}

impl Sentinels {
    pub fn new(sentinels: Vec<Address>, master: String, entry: Entry) -> Sentinels {
        Sentinels { sentinels, master, entry }
    }

    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// A connection to the master.
    pub fn open_master(&mut self, limit: Limit<'_>) -> Result<Link, Fault> {
        let address = self.find(limit)?;
        let endpoint = Endpoint { address, entry: self.entry.clone() };
        let asked = Moment::now();
        let opened = Link::open(&endpoint, limit).and_then(|mut link| {
            let role = link.converse(&[cmd("ROLE")], limit)?.pop().unwrap_or(Value::Nil);
            Ok((link, role))
        });
        let (link, role) = opened.map_err(|fault| befell(fault, &format!("the master {}", endpoint.address), asked))?;
        match role {
            Value::Array(said) if said.first().and_then(reply::text).is_some_and(|role| role.raw() == "master") => {
                Ok(link)
            }
            Value::Array(_) => Err(Fault::Told {
                kind: Kind::Unwilling,
                came: format!("the sentinels name {}, and that is not a master", endpoint.address),
                remedy: "a failover is under way, or was: try again soon",
            }),
            other => Err(Fault::Greeting(other)),
        }
    }

    /// Where the master is, by the first sentinel that knows.
    fn find(&mut self, limit: Limit<'_>) -> Result<Address, Fault> {
        let silence = match first_to_tell(&self.sentinels, limit, |sentinel, share| self.ask(sentinel, share))? {
            Ok((at, address)) => {
                say::trace(format_args!("{} names the master {address}", self.sentinels[at]));
                self.sentinels.rotate_left(at);
                return Ok(address);
            }
            Err(silence) => silence,
        };
        if silence.said.is_empty() {
            return Err(Fault::Told {
                kind: Kind::Misconfigured,
                came: format!("none of the sentinels knows a master \"{}\"", say::clean(&self.master)),
                remedy: "see its name in `redis-cli -p 26379 SENTINEL MASTERS`",
            });
        }
        Err(Fault::Told {
            kind: silence.kind,
            came: format!("no sentinel tells where the master is: {}", silence.said.join("; ")),
            remedy: "see whether they run, and whether the addresses are right",
        })
    }

    /// What one sentinel says. It is told who we are only if it asks: many have no password, and the master's
    /// is none of their business.
    fn ask(&self, sentinel: &Address, limit: Limit<'_>) -> Result<Option<Address>, Fault> {
        let nameless = Entry { login: None, db: 0, trust: self.entry.trust.clone() };
        let mut link = Link::open(&Endpoint { address: sentinel.clone(), entry: nameless }, limit)?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let mut said = one(&mut link, &question, limit)?;
        if let (Value::ServerError(error), Some(login)) = (&said, &self.entry.login)
            && error.code() == "NOAUTH"
        {
            said = match one(&mut link, &auth(login), limit)? {
                Value::Okay => one(&mut link, &question, limit)?,
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
                Err(Fault::Greeting(said))
            }
            _ => Err(Fault::Garbled("it is not a sentinel".into())),
        }
    }
}

fn one(link: &mut Link, request: &Cmd, limit: Limit<'_>) -> Result<Value, Fault> {
    Ok(link.converse(std::slice::from_ref(request), limit)?.pop().unwrap_or(Value::Nil))
}

/// Without the password.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sentinels { sentinels, master, entry } = self;
        let mut hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
        // Always the same text, whichever answered last.
        hosts.sort();
        let (scheme, user) = (entry.scheme(), entry.user());
        write!(f, "{scheme}+sentinel://{user}{}/{}{}", hosts.join(","), escaped(master), entry.path())
    }
}
