//! One Redis authority, however it is reached: its keys, its scripts, its answers.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::connect::{Fault, Link};
use super::reply::{self, Unexpected};
use super::{Acquired, Kind, Released, Renewed, Standing, Store, Target, Trouble};
use crate::clock::Moment;
use crate::limit::Limit;
use crate::lock::{Hold, HolderId, Lease, LockName, Occupancy, Prefix, State, Ttl};
use crate::say;

const ACQUIRE: &str = include_str!("acquire.lua");
const RENEW: &str = include_str!("renew.lua");
const RELEASE: &str = include_str!("release.lua");
const INSPECT: &str = include_str!("inspect.lua");

pub struct Server {
    target: Target,
    prefix: Prefix,
    /// Bound on one connect and on one reply.
    timeout: Duration,
    link: Option<Link>,
    /// A connection with a request outstanding that nobody waits for any more: what is sent on it
    /// is executed after that request.
    spent: Option<Link>,
}

impl Server {
    pub fn new(target: Target, prefix: Prefix, timeout: Duration) -> Server {
        Server { target, prefix, timeout, link: None, spent: None }
    }

    /// One request, one reply. The whole text of a script is always sent: one round trip whatever
    /// the server has forgotten, and no permission to load scripts.
    fn script(
        &mut self,
        what: &What<'_>,
        script: &str,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Vec<Value>, Trouble> {
        let command = self.packed(script, what.name, args);
        let reply = self.ask(&command, limit).map_err(|fault| self.unreachable(what, fault))?;
        reply::array(reply).map_err(|unexpected| self.unexpected(what, unexpected))
    }

    fn packed(&self, script: &str, name: Option<&LockName>, args: &[&str]) -> Cmd {
        let lock = name.map(|name| self.prefix.key(name)).unwrap_or_default();
        // The braces put the fence into the lock's slot in a cluster.
        let fence = format!("{{{lock}}}:fence");
        let mut command = cmd("EVAL");
        command.arg(script).arg(2).arg(lock).arg(fence).arg(args);
        command
    }

    fn ask(&mut self, command: &Cmd, limit: Limit<'_>) -> Result<Value, Fault> {
        let within = |timeout| limit.no_later_than(Moment::now() + timeout);
        // One that the server has closed while it lay idle is of no use.
        let mut link = match self.link.take().filter(Link::is_quiet) {
            Some(link) => link,
            None => self.connect(within(self.timeout))?,
        };
        let limit = within(self.timeout);
        link.send(&command.get_packed_command(), limit)?;
        match link.receive(limit) {
            Ok(reply) => {
                self.link = Some(link);
                Ok(reply)
            }
            Err(fault) => {
                if matches!(fault, Fault::TimeUp | Fault::Bell) {
                    self.spent = Some(link);
                }
                Err(fault)
            }
        }
    }

    /// Connects, and says who we are where that is needed: nothing is sent for a server without
    /// password and for its first database.
    fn connect(&self, limit: Limit<'_>) -> Result<Link, Fault> {
        let mut link = Link::open(&self.target, limit)?;
        say::trace(format_args!("connected to {}", self.target));
        let mut greetings = Vec::new();
        if let Some(login) = &self.target.login {
            let mut auth = cmd("AUTH");
            if let Some(user) = &login.user {
                auth.arg(user);
            }
            auth.arg(&login.password);
            greetings.push(auth);
        }
        if self.target.db != 0 {
            let mut select = cmd("SELECT");
            select.arg(self.target.db);
            greetings.push(select);
        }
        let packed: Vec<u8> = greetings.iter().flat_map(Cmd::get_packed_command).collect();
        link.send(&packed, limit)?;
        for _ in &greetings {
            let reply = link.receive(limit)?;
            if let Value::ServerError(_) = reply {
                return Err(Fault::Greeting(reply));
            }
        }
        Ok(link)
    }

    fn unreachable(&self, what: &What<'_>, fault: Fault) -> Trouble {
        let (kind, came, remedy) = match fault {
            Fault::Greeting(reply) => return self.unexpected(what, reply::unexpected(&reply)),
            Fault::TimeUp => (
                Kind::Unreachable,
                format!("no answer within {}", say::span(self.timeout)),
                "see whether it hangs (redis-cli ping), or give it more time (--server-timeout)",
            ),
            Fault::Bell => (Kind::Unreachable, "interrupted".to_owned(), ""),
            Fault::Ended(error) => {
                let remedy = match error.kind() {
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                        "see whether it runs, and whether the address is right"
                    }
                    io::ErrorKind::PermissionDenied => "see the permissions of the socket",
                    _ => "see the server's log",
                };
                (Kind::Unreachable, lower(&error), remedy)
            }
            Fault::Garbled(came) => {
                (Kind::Unreachable, came, "see whether the port is that of a Redis server without TLS")
            }
        };
        Trouble { kind, tried: self.tried(what), came, remedy: remedy.to_owned() }
    }

    fn unexpected(&self, what: &What<'_>, unexpected: Unexpected) -> Trouble {
        let (kind, came, remedy) = match unexpected {
            Unexpected::Error { code, text } => {
                let (kind, remedy) = reply::meaning(&code);
                (kind, format!("the server says \"{}\"", say::clean(&text)), remedy)
            }
            Unexpected::Shape => {
                (Kind::Broken, "an answer that makes no sense".to_owned(), "see whether it is a Redis server")
            }
        };
        Trouble { kind, tried: self.tried(what), came, remedy: remedy.to_owned() }
    }

    fn tried(&self, what: &What<'_>) -> String {
        match what.name {
            Some(name) => format!("cannot {} \"{name}\" at {}", what.verb, self.target),
            None => format!("cannot {} at {}", what.verb, self.target),
        }
    }

    fn senseless(&self, what: &What<'_>) -> Trouble {
        self.unexpected(what, Unexpected::Shape)
    }

    /// Who has a lock, and the key's value where it is text.
    fn look(&mut self, what: &What<'_>, limit: Limit<'_>) -> Result<(Occupancy, Option<String>), Trouble> {
        let answer = self.script(what, INSPECT, &[], limit)?;
        let seen = match answer.split_first() {
            Some((kind, rest)) => match reply::text(kind) {
                Some("string" | "none") => reply::occupancy(rest),
                Some(other) => Some(reply::wrong_type(other)),
                None => None,
            },
            None => None,
        };
        let value = answer.get(1).and_then(reply::text).map(str::to_owned);
        seen.map(|occupancy| (occupancy, value)).ok_or_else(|| self.senseless(what))
    }

    /// Renewing and releasing answer alike: done, or whose it is.
    fn ours(
        &mut self,
        what: &What<'_>,
        script: &str,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Option<Occupancy>, Trouble> {
        let answer = match self.script(what, script, args, limit) {
            // Something else than a lock has taken the key's place: it is nobody's lock.
            Err(trouble) if trouble.kind == Kind::Misconfigured => return Ok(Some(reply::wrong_type("another type"))),
            answer => answer?,
        };
        match answer.split_first().map(|(done, rest)| (reply::integer(done), rest)) {
            Some((Some(1), _)) => Ok(None),
            Some((Some(0), rest)) => reply::occupancy(rest).map(Some).ok_or_else(|| self.senseless(what)),
            _ => Err(self.senseless(what)),
        }
    }
}

/// What is being done, for messages.
struct What<'a> {
    verb: &'static str,
    name: Option<&'a LockName>,
}

impl<'a> What<'a> {
    fn to(verb: &'static str, name: &'a LockName) -> What<'a> {
        What { verb, name: Some(name) }
    }
}

impl Store for Server {
    fn acquire(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        let what = What::to("acquire", &hold.name);
        // Before the request leaves: the server's count begins later than ours.
        let asked = Moment::now();
        let answer = self.script(&what, ACQUIRE, &[hold.token.as_str(), &ttl.millis().to_string()], limit)?;
        match answer.as_slice() {
            [Value::Int(1), fence] => Ok(Acquired::Granted(Lease {
                fence: reply::fence(fence),
                asked,
                granted: Moment::now(),
                until: ttl.believed_until(asked),
            })),
            [Value::Int(0), rest @ ..] => {
                reply::occupancy(rest).map(Acquired::Held).ok_or_else(|| self.senseless(&what))
            }
            _ => Err(self.senseless(&what)),
        }
    }

    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        let asked = Moment::now();
        let args = [hold.token.as_str(), &ttl.millis().to_string()];
        Ok(match self.ours(&What::to("renew", &hold.name), RENEW, &args, limit)? {
            None => Renewed::Until(ttl.believed_until(asked)),
            Some(occupancy) => Renewed::NotYours(occupancy),
        })
    }

    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        if let Some(mut spent) = self.spent.take() {
            // Behind a request that may still be waiting there, so that it cannot come after us.
            let _ =
                spent.send(&self.packed(RELEASE, Some(&hold.name), &[hold.token.as_str()]).get_packed_command(), limit);
        }
        Ok(match self.ours(&What::to("release", &hold.name), RELEASE, &[hold.token.as_str()], limit)? {
            None => Released::Done,
            Some(occupancy) => Released::NotYours(occupancy),
        })
    }

    fn take_away(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Trouble> {
        let what = What::to("break", name);
        let (occupancy, value) = self.look(&what, limit)?;
        // The whole value is compared again when it is deleted, so the holder that was seen is the
        // one that loses it.
        let seen = occupancy.holder.as_ref().is_some_and(|holder| holder.id == *id);
        let Some(token) = value.filter(|_| seen) else { return Ok(Released::NotYours(occupancy)) };
        Ok(match self.ours(&what, RELEASE, &[&token], limit)? {
            None => Released::Done,
            Some(occupancy) => Released::NotYours(occupancy),
        })
    }

    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Standing, Trouble> {
        let (occupancy, _) = self.look(&What::to("inspect", name), limit)?;
        Ok(Standing { occupancy })
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        let what = What { verb: "list the locks", name: None };
        let prefix = self.prefix.as_str().to_owned();
        let pattern = format!("{}*", glob_escaped(&prefix));
        let mut names = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
            let reply = self.ask(&scan, limit).map_err(|fault| self.unreachable(&what, fault))?;
            let page = reply::array(reply).map_err(|unexpected| self.unexpected(&what, unexpected))?;
            let [next, Value::Array(keys)] = page.as_slice() else { return Err(self.senseless(&what)) };
            let keys = keys.iter().filter_map(reply::text).filter_map(|key| key.strip_prefix(&prefix));
            // A key whose rest is no name is no lock: our own fences, for one, begin with a brace.
            names.extend(keys.filter_map(|name| name.parse::<LockName>().ok()));
            cursor = reply::text(next).ok_or_else(|| self.senseless(&what))?.to_owned();
            if cursor == "0" {
                break;
            }
        }
        // SCAN may give a key twice.
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn pause(&mut self, occupied: &Occupancy) -> Duration {
        // Between 50 and 150 ms, so that waiters do not come in step, but no longer than the lease runs.
        let jitter = 50 + u64::from(getrandom::u32().unwrap_or(0)) % 101;
        let poll = Duration::from_millis(jitter);
        match occupied {
            Occupancy { state: State::Held | State::Foreign, ttl: Some(ttl), .. } => {
                poll.min(*ttl + Duration::from_millis(1))
            }
            _ => poll,
        }
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(Link::fd)
    }
}

/// A text that a glob-style pattern of SCAN takes for itself.
fn glob_escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// An I/O error in the middle of a sentence: without capital letter and number.
fn lower(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
