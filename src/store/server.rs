//! One Redis authority, however it is reached: its keys, its scripts, its answers.

mod examine;
mod info;
mod replicas;
mod rights;
mod voting;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::connect::Fault;
use super::ladder::{self, Ladder, Obstacle};
use super::line::{self, Line};
use super::reply::{self, Unexpected, What};
use super::route::Route;
use super::script::Script;
use super::wire::Wire;
use super::{Acquired, Examination, Kind, Manner, Released, Renewed, Standing, Store, Trouble, poll_pause};
use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::lock::{Fence, Hold, HolderId, Lease, LockName, Occupancy, Prefix, State, Ttl};
use crate::say;

pub struct Server {
    wire: Wire,
    prefix: Prefix,
    /// How to go about it if the server does not let us run scripts.
    ladder: Option<Ladder>,
    /// Our place in the queue of the lock that we wait for.
    line: Option<Line>,
    /// When it is worth asking again, for who does not stand in line.
    look_at: Moment,
    /// What the last request took: how long we must be given to claim a lock.
    round_trip: Duration,
    /// So many replicas must have a grant.
    min_replicas: u32,
}

impl Server {
    pub fn new(route: impl Into<Route>, prefix: Prefix, timeout: Duration, min_replicas: u32) -> Server {
        let wire = Wire::new(route.into(), timeout);
        Server {
            wire,
            prefix,
            ladder: None,
            line: None,
            look_at: Moment::now(),
            round_trip: Duration::ZERO,
            min_replicas,
        }
    }

    /// One request, one reply. The whole text of a script is always sent: one round trip whatever
    /// the server has forgotten, and no permission to load scripts.
    fn script(
        &mut self,
        what: &What<'_>,
        script: Script,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Vec<Value>, Trouble> {
        let command = self.packed(script, what.name, args);
        self.turn_to(what);
        let reply = self.wire.ask(&command, limit).map_err(|fault| self.unanswered(what, fault))?;
        reply::array(reply).map_err(|unexpected| {
            if self.ladder.is_none() && reply::denies_scripts(&unexpected) {
                say::trace(format_args!("{} does not run scripts for us: no queue, no fence", self.wire));
                self.ladder = Some(Ladder::default());
            }
            what.misunderstood(&self.wire, unexpected)
        })
    }

    /// By script, or by the ladder if there it turns out that scripts are not for us.
    fn either<T>(
        &mut self,
        what: &What<'_>,
        by_script: impl FnOnce(&mut Server) -> Result<T, Trouble>,
        by_ladder: impl FnOnce(&mut Ladder, &mut Wire, &str) -> Result<T, Obstacle>,
    ) -> Result<T, Trouble> {
        if self.ladder.is_none() {
            let answer = by_script(self);
            if self.ladder.is_none() {
                return answer;
            }
        }
        self.turn_to(what);
        let key = what.name.map(|name| self.prefix.key(name)).unwrap_or_default();
        let ladder = self.ladder.get_or_insert_default();
        by_ladder(ladder, &mut self.wire, &key).map_err(|obstacle| match obstacle {
            Obstacle::Fault(fault) => self.unanswered(what, fault),
            Obstacle::Unexpected(unexpected) => what.misunderstood(&self.wire, unexpected),
        })
    }

    fn turn_to(&mut self, what: &What<'_>) {
        if let Some(name) = what.name {
            self.wire.turn_to(&self.prefix.key(name));
        }
    }

    fn unanswered(&self, what: &What<'_>, fault: Fault) -> Trouble {
        what.unanswered(&self.wire, self.wire.began.elapsed().min(self.wire.timeout), fault)
    }

    fn packed(&self, script: Script, name: Option<&LockName>, args: &[&str]) -> Cmd {
        let lock = name.map(|name| self.prefix.key(name)).unwrap_or_default();
        let mut command = cmd("EVAL");
        command.arg(script.text()).arg(1 + script.beside().len()).arg(&lock);
        for what in script.beside() {
            // The braces put what belongs to a lock into its slot in a cluster.
            command.arg(format!("{{{lock}}}:{what}"));
        }
        command.arg(args);
        command
    }

    fn senseless(&self, what: &What<'_>) -> Trouble {
        what.misunderstood(&self.wire, Unexpected::Shape)
    }

    /// Who has a lock and who waits for it, and the key's value where it is text.
    fn look(&mut self, what: &What<'_>, limit: Limit<'_>) -> Result<(Standing, Option<String>), Trouble> {
        self.either(
            what,
            |server| {
                let answer = server.script(what, Script::Inspect, &[], limit)?;
                standing(&answer).ok_or_else(|| server.senseless(what))
            },
            |_, wire, key| ladder::look(wire, key, limit),
        )
    }

    /// How long a lock is put aside for us: time enough to come and claim it.
    fn grace(&self, ttl: Ttl) -> Duration {
        let enough = self.round_trip * 4 + Duration::from_millis(500);
        enough.max(Duration::from_secs(1)).min(ttl.get())
    }

    /// Renewing and releasing answer alike: done, or whose it is.
    fn ours(
        &mut self,
        what: &What<'_>,
        script: Script,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Option<Occupancy>, Trouble> {
        let answer = self.script(what, script, args, limit)?;
        match answer.split_first().map(|(done, rest)| (reply::integer(done), rest)) {
            // 2: put aside for the next.
            Some((Some(1 | 2), _)) => Ok(None),
            Some((Some(0), rest)) => reply::occupancy(rest).map(Some).ok_or_else(|| self.senseless(what)),
            _ => Err(self.senseless(what)),
        }
    }

    fn release_as(&mut self, what: &What<'_>, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        let whose = self.either(
            what,
            |server| server.ours(what, Script::Release, &[hold.token.as_str()], limit),
            |ladder, wire, key| ladder.release(wire, key, hold, limit),
        );
        Ok(match not_a_lock(whose)? {
            None => Released::Done,
            Some(occupancy) => Released::NotYours(occupancy),
        })
    }

    fn acquire_by_script(
        &mut self,
        what: &What<'_>,
        hold: &Hold,
        ttl: Ttl,
        manner: Manner,
        limit: Limit<'_>,
    ) -> Result<Acquired, Trouble> {
        let grace = self.grace(ttl);
        let millis = |duration: Duration| duration.as_millis().to_string();
        let (ttl_ms, lease_ms, grace_ms) = (millis(ttl.get()), millis(line::LEASE), millis(grace));
        let mut hops = 0;
        let (asked, answer) = loop {
            let (word, channel, ticket) = match manner {
                Manner::Once => ("once", String::new(), String::new()),
                Manner::Plain => ("plain", String::new(), String::new()),
                Manner::Queue => {
                    let (channel, ticket) = self.listen(what, hold, limit)?;
                    ("queue", channel, ticket)
                }
            };
            let args = [hold.token.as_str(), &ttl_ms, word, &lease_ms, &grace_ms, &channel, &ticket];
            // Before the request leaves: the server's count begins later than ours.
            let asked = Moment::now();
            let answer = self.script(what, Script::Acquire, &args, limit)?;
            hops += 1;
            // Answered by another server than the one that we listen to: it could not call us.
            if manner != Manner::Queue || self.is_within_earshot() || is_grant(&answer) || hops == HOPS {
                break (asked, answer);
            }
        };
        self.round_trip = asked.elapsed();
        match answer.as_slice() {
            [Value::Int(1), fence] => Ok(Acquired::Granted(self.granted(reply::fence(fence), ttl, asked))),
            [Value::Int(0), value, pttl, queued @ .., fence, now] => {
                let seen = [value.clone(), pttl.clone(), fence.clone(), now.clone()];
                let (Some(occupancy), Some(queued)) = (reply::occupancy(&seen), reply::queued(queued)) else {
                    return Err(self.senseless(what));
                };
                if let Some(line) = self.line.as_mut().filter(|_| manner == Manner::Queue) {
                    line.stands(&queued, &occupancy, grace);
                }
                Ok(Acquired::Held(occupancy, queued.place))
            }
            _ => Err(self.senseless(what)),
        }
    }

    /// Sees to it that we can be called by the server that is about to be asked: on which channel, and our
    /// ticket there.
    fn listen(&mut self, what: &What<'_>, hold: &Hold, limit: Limit<'_>) -> Result<(String, String), Trouble> {
        self.turn_to(what);
        let node = self.wire.reach(limit).map_err(|fault| self.unanswered(what, fault))?;
        let line = self.line.get_or_insert_with(|| Line::new(channel_of(&self.prefix, hold)));
        let listening = line.listen(&node, self.wire.within(limit));
        let heard = (line.channel().to_owned(), line.ticket().to_owned());
        listening.map_err(|fault| self.unanswered(what, fault))?;
        Ok(heard)
    }

    /// Whether the server that has answered last is the one that we listen to, if to any.
    fn is_within_earshot(&self) -> bool {
        let ear = self.line.as_ref().and_then(Line::listens_to);
        ear.zip(self.wire.answered()).is_none_or(|(ear, answered)| ear.address == answered.address)
    }

    fn granted(&mut self, fence: Option<Fence>, ttl: Ttl, asked: Moment) -> Lease {
        self.line = None;
        Lease { fence, asked, granted: Moment::now(), until: ttl.believed_until(asked) }
    }
}

/// So often a queue is looked for that moves from one server to another.
const HOPS: usize = 3;

fn is_grant(answer: &[Value]) -> bool {
    matches!(answer.first(), Some(Value::Int(1)))
}

/// Something else than a lock has taken the key's place: then it is nobody's lock.
fn not_a_lock(whose: Result<Option<Occupancy>, Trouble>) -> Result<Option<Occupancy>, Trouble> {
    match whose {
        Err(trouble) if trouble.kind == Kind::WrongType => Ok(Some(reply::wrong_type("another type"))),
        whose => whose,
    }
}

impl Store for Server {
    fn acquire(&mut self, hold: &Hold, ttl: Ttl, manner: Manner, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        let what = What::to("acquire", &hold.name);
        let acquired = self.either(
            &what,
            |server| server.acquire_by_script(&what, hold, ttl, manner, limit),
            |ladder, wire, key| ladder.acquire(wire, key, hold, ttl, limit),
        )?;
        match &acquired {
            Acquired::Granted(_) => self.replicated(&what, hold, ttl, limit)?,
            Acquired::Held(occupancy, _) => self.look_at = Moment::now() + poll_pause(occupancy),
        }
        Ok(acquired)
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        if let Some(line) = &mut self.line {
            return line.wait(limit);
        }
        limit.rest(self.look_at, &[])
    }

    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        let what = What::to("renew", &hold.name);
        let asked = Moment::now();
        let args = [hold.token.as_str(), &ttl.millis().to_string()];
        let whose = self.either(
            &what,
            |server| server.ours(&what, Script::Renew, &args, limit),
            |ladder, wire, key| ladder.renew(wire, key, hold, ttl, limit),
        );
        Ok(match not_a_lock(whose)? {
            None => Renewed::Until(ttl.believed_until(asked)),
            Some(occupancy) => Renewed::NotYours(occupancy),
        })
    }

    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        self.line = None;
        let released = self.release_as(&What::to("release", &hold.name), hold, limit);
        // An earlier request may still be on its way: should it be carried out only now, so is this.
        let release = self.packed(Script::Release, Some(&hold.name), &[hold.token.as_str()]);
        self.wire.send_behind(&release, limit);
        released
    }

    fn take_away(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Trouble> {
        let what = What::to("break", name);
        let (Standing { occupancy, .. }, value) = self.look(&what, limit)?;
        let seen = occupancy.holder.as_ref().is_some_and(|holder| holder.id == *id);
        let Some(token) = value.filter(|_| seen).and_then(|value| value.parse().ok()) else {
            return Ok(Released::NotYours(occupancy));
        };
        // The whole value is compared again when it is deleted, so the holder that was seen is the
        // one that loses it.
        self.release_as(&what, &Hold { name: name.clone(), token, lives_with: None }, limit)
    }

    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Standing, Trouble> {
        Ok(self.look(&What::to("inspect", name), limit)?.0)
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        let what = What { verb: "list the locks", name: None };
        let prefix = self.prefix.as_str().to_owned();
        let pattern = format!("{}*", glob_escaped(&prefix));
        let mut names = Vec::new();
        let shards = self.wire.shards(limit).map_err(|fault| self.unanswered(&what, fault))?;
        // Without shards there is one server to ask.
        for shard in shards.iter().map(Some).chain(shards.is_empty().then_some(None)) {
            shard.into_iter().for_each(|shard| self.wire.turn_to_shard(shard));
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
                let reply = self.wire.ask(&scan, limit).map_err(|fault| self.unanswered(&what, fault))?;
                let page = reply::array(reply).map_err(|unexpected| what.misunderstood(&self.wire, unexpected))?;
                let [next, Value::Array(keys)] = page.as_slice() else { return Err(self.senseless(&what)) };
                let keys = keys.iter().filter_map(reply::text).filter_map(|key| key.strip_prefix(&prefix));
                // A key whose rest is no name is no lock: our own fences, for one, begin with a brace.
                names.extend(keys.filter_map(|name| name.parse::<LockName>().ok()));
                cursor = reply::text(next).ok_or_else(|| self.senseless(&what))?.to_owned();
                if cursor == "0" {
                    break;
                }
            }
        }
        // SCAN may give a key twice, and so may two servers of which one hands its keys to the other.
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn examine(&mut self, limit: Limit<'_>) -> Result<Examination, Trouble> {
        examine::examine(self, limit)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.wire.lifeline()
    }
}

/// What INSPECT tells.
fn standing(answer: &[Value]) -> Option<(Standing, Option<String>)> {
    let [kind, seen @ .., reserved, Value::Array(queue)] = answer else { return None };
    let mut occupancy = match reply::text(kind)? {
        "string" | "none" => reply::occupancy(seen)?,
        other => reply::wrong_type(other),
    };
    if reply::integer(reserved)? == 1 && occupancy.state == State::Held {
        occupancy.state = State::Reserved;
    }
    let queue = reply::waiters(queue, seen.last()?)?;
    Some((Standing { occupancy, queue }, reply::text(seen.first()?).map(str::to_owned)))
}

/// Where a waiter is called: nobody else listens there.
fn channel_of(prefix: &Prefix, hold: &Hold) -> String {
    format!("{}:wake:{}", prefix.key(&hold.name), hold.token.random_part())
}

/// A text that a glob-style pattern of SCAN takes for itself.
fn glob_escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
