//! One Redis authority, however it is reached: its keys, its scripts, its answers.

mod claim;
mod examine;
mod info;
mod listing;
mod moving;
mod replicas;
mod rights;
mod setnx;
mod voting;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::connect::NoReply;
use super::ladder::{self, Obstacle};
use super::line::Line;
use super::reply::{self, Unexpected, What};
use super::route::Route;
use super::script::Script;
use super::wire::Wire;
use super::{
    Acquired, Examination, Kind, Manner, Page, Released, Renewed, Standing, Store, Survey, Trouble, poll_pause,
};
use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::lock::{Hold, HolderId, LockName, Occupancy, Prefix, State, Token, Ttl, beside};
use crate::say;
use setnx::{Told, script_for};

pub struct Server {
    wire: Wire,
    prefix: Prefix,
    /// The last script was refused: the server runs none, or none for us.
    denies_scripts: bool,
    /// It has run one before: then a refusal may pass.
    runs_scripts: bool,
    /// Our place in the queue of the lock that we wait for.
    line: Option<Line>,
    /// When it is worth asking again, for who does not stand in line.
    look_at: Moment,
    /// What the last request took: how long we must be given to claim a lock.
    round_trip: Duration,
    /// So many replicas must have a grant.
    min_replicas: u32,
    told: Told,
    /// Whose grant may have no fence yet.
    unfenced: Option<Token>,
}

impl Server {
    pub fn new(route: impl Into<Route>, prefix: Prefix, timeout: Duration, min_replicas: u32) -> Server {
        let wire = Wire::new(route.into(), timeout);
        Server {
            wire,
            prefix,
            denies_scripts: false,
            runs_scripts: false,
            line: None,
            look_at: Moment::now(),
            round_trip: Duration::ZERO,
            min_replicas,
            told: Told::default(),
            unfenced: None,
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
        let answer = self.answer(what, script, &self.packed(script, what.name, args), limit)?;
        answer.map_err(|unexpected| what.misunderstood(&self.wire, unexpected))
    }

    /// What a script answers, or what the server says instead.
    fn answer(
        &mut self,
        what: &What<'_>,
        script: Script,
        command: &Cmd,
        limit: Limit<'_>,
    ) -> Result<Result<Vec<Value>, Unexpected>, Trouble> {
        self.turn_to(what);
        let reply = self.wire.ask(command, limit).map_err(|no_reply| match script {
            Script::Inspect => self.unanswered(what, no_reply).of_a_read(),
            _ => self.unanswered(what, no_reply),
        })?;
        let answer = reply::array(reply);
        self.runs_scripts |= answer.is_ok();
        if answer.as_ref().is_err_and(reply::denies_scripts) {
            say::trace(format_args!("{} does not run scripts for us: no queue, no fence", self.wire));
            self.denies_scripts = true;
        }
        Ok(answer)
    }

    /// By script; or, if the server does not run scripts for us, without one. A refusal lasts only where no script
    /// was ever run, and where the server lets us do it without.
    fn either<T>(
        &mut self,
        what: &What<'_>,
        by_script: impl FnOnce(&mut Server) -> Result<T, Trouble>,
        by_ladder: impl FnOnce(&mut Wire, &str) -> Result<T, Obstacle>,
    ) -> Result<T, Trouble> {
        if self.runs_scripts || !self.denies_scripts {
            self.denies_scripts = false;
            let answer = by_script(self);
            if !self.denies_scripts {
                return answer;
            }
        }
        self.turn_to(what);
        let key = what.name.map(|name| self.prefix.key(name)).unwrap_or_default();
        by_ladder(&mut self.wire, &key).map_err(|obstacle| {
            let trouble = self.obstructed(what, obstacle);
            self.denies_scripts &= trouble.kind != Kind::Refused;
            trouble
        })
    }

    fn turn_to(&mut self, what: &What<'_>) {
        if let Some(name) = what.name {
            self.wire.turn_to(&self.prefix.key(name));
        }
    }

    fn unanswered(&self, what: &What<'_>, no_reply: impl Into<NoReply>) -> Trouble {
        what.unanswered(&self.wire, self.wire.began.elapsed().min(self.wire.timeout), no_reply.into())
    }

    fn packed(&self, script: Script, name: Option<&LockName>, args: &[&str]) -> Cmd {
        let lock = name.map(|name| self.prefix.key(name)).unwrap_or_default();
        let mut command = cmd("EVAL");
        command.arg(script.text()).arg(1 + script.beside().len()).arg(&lock);
        for what in script.beside() {
            command.arg(beside(&lock, what));
        }
        command.arg(args);
        command
    }

    fn senseless(&self, what: &What<'_>) -> Trouble {
        what.misunderstood(&self.wire, Unexpected::Shape)
    }

    /// Who has a lock and who waits for it, and the key's value where it is text.
    fn look(&mut self, what: &What<'_>, limit: Limit<'_>) -> Result<(Standing, Option<String>), Trouble> {
        let seen = self.either(
            what,
            |server| match server.script_unless_moving(what, Script::Inspect, &[], limit)? {
                Some(answer) => server.understood(what, answer, limit),
                None => server.look_moving(what, limit),
            },
            |wire, key| ladder::look(wire, key, limit),
        );
        match seen {
            Err(trouble) if trouble.kind == Kind::WrongType => self.look_at_damaged(what, limit),
            seen => seen,
        }
    }

    /// The same for a lock beside which a key of another type lies: what the lock's own key tells.
    fn look_at_damaged(&mut self, what: &What<'_>, limit: Limit<'_>) -> Result<(Standing, Option<String>), Trouble> {
        let key = what.name.map(|name| self.prefix.key(name)).unwrap_or_default();
        self.turn_to(what);
        let (mut standing, value) =
            ladder::look(&mut self.wire, &key, limit).map_err(|obstacle| self.obstructed(what, obstacle))?;
        if !matches!(standing.occupancy.state, State::WrongType(_)) {
            standing.occupancy.state = State::Damaged;
        }
        Ok((standing, value))
    }

    fn obstructed(&self, what: &What<'_>, obstacle: Obstacle) -> Trouble {
        match obstacle {
            Obstacle::NoReply(no_reply) => self.unanswered(what, no_reply),
            // Not of the first reply, whose redirections are followed: it has moved after that.
            Obstacle::Unexpected(unexpected) if self.wire.is_of_a_cluster() && reply::redirects(&unexpected) => {
                let trouble = what.misunderstood(&self.wire, unexpected);
                Trouble { kind: Kind::Unwilling, remedy: "try again soon".into(), ..trouble }
            }
            Obstacle::Unexpected(unexpected) => what.misunderstood(&self.wire, unexpected),
        }
    }

    /// What INSPECT has answered.
    fn understood(
        &mut self,
        what: &What<'_>,
        mut answer: Vec<Value>,
        limit: Limit<'_>,
    ) -> Result<(Standing, Option<String>), Trouble> {
        let value = answer.get(1).cloned().unwrap_or(Value::Nil);
        if let Some(shown) = answer.get_mut(1) {
            *shown = self.told(what, &value, limit);
        }
        let standing = standing(&answer).ok_or_else(|| self.senseless(what))?;
        Ok((standing, reply::text(&value).map(|value| value.raw().to_owned())))
    }

    /// What RELEASE has answered: nothing if it is done, or whose the lock is.
    fn ours(&mut self, what: &What<'_>, token: &Token, limit: Limit<'_>) -> Result<Option<Occupancy>, Trouble> {
        let script = script_for(Script::Release, token);
        let Some(answer) = self.script_unless_moving(what, script, &[token.as_str()], limit)? else {
            return self.release_moving(what, token, limit);
        };
        match answer.split_first().map(|(done, rest)| (reply::integer(done), rest)) {
            // 2: put aside for the next.
            Some((Some(1 | 2), _)) => Ok(None),
            Some((Some(0), rest)) => self.occupancy(what, rest, limit).map(Some),
            _ => Err(self.senseless(what)),
        }
    }

    /// What RENEW has answered.
    fn renewed(
        &mut self,
        what: &What<'_>,
        answer: &[Value],
        until: Moment,
        limit: Limit<'_>,
    ) -> Result<Renewed, Trouble> {
        if let [Value::Int(1), moved, ..] = answer
            && reply::integer(moved) == Some(-1)
        {
            // The first in line has set its timer by the expiry before. Whom that does not reach finds out by itself.
            let _ = self.script(what, Script::Nudge, &[""], limit);
        }
        match answer {
            [Value::Int(1), ..] if matches!(answer.get(2), Some(Value::Int(1))) => Ok(Renewed::PutBack(until)),
            [Value::Int(1), left, ..] => match (reply::integer(left), reply::integer(left).map(u64::try_from)) {
                (Some(-1 | 0), _) => Ok(Renewed::Until(until)),
                (_, Some(Ok(left))) => Ok(Renewed::Longer(Duration::from_millis(left))),
                _ => Err(self.senseless(what)),
            },
            [Value::Int(0), seen @ ..] => Ok(Renewed::NotYours(self.occupancy(what, seen, limit)?)),
            _ => Err(self.senseless(what)),
        }
    }

    fn release_as(&mut self, what: &What<'_>, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        let whose = self.either(
            what,
            |server| server.ours(what, &hold.token, limit),
            |wire, key| ladder::release(wire, key, hold, limit),
        );
        Ok(match not_a_lock(whose)? {
            None => Released::Done,
            Some(occupancy) => Released::NotYours(occupancy),
        })
    }

    /// Sends a release behind a request that nobody waits for any more, if there is one: should that be carried
    /// out only now, so is this. Whether there was one.
    pub fn undo_outstanding(&mut self, hold: &Hold, limit: Limit<'_>) -> bool {
        let is_in_doubt = self.wire.is_in_doubt();
        if is_in_doubt {
            let script = script_for(Script::Release, &hold.token);
            let mut undo = vec![self.packed(script, Some(&hold.name), &[hold.token.as_str()])];
            if self.wire.is_of_a_cluster() {
                undo.extend(self.release_moving_there(hold));
            }
            self.wire.send_behind(&undo, limit);
        }
        is_in_doubt
    }
}

/// What a renewal may do to the expiry, as RENEW is told.
fn how(may_shorten: bool) -> &'static str {
    if may_shorten { "set" } else { "prolong" }
}

/// Something else than a lock has taken the key's place: then it is nobody's lock.
fn not_a_lock(whose: Result<Option<Occupancy>, Trouble>) -> Result<Option<Occupancy>, Trouble> {
    match whose {
        Err(trouble) if trouble.kind == Kind::WrongType => Ok(Some(reply::wrong_type("another type"))),
        whose => whose,
    }
}

impl Store for Server {
    fn acquire(&mut self, hold: &mut Hold, ttl: Ttl, manner: Manner, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        let what = What::to("acquire", &hold.name);
        let by_script = |server: &mut Server| server.acquire_by_script(&what, hold, ttl, manner, limit);
        let acquired = match hold.token.is_beside_setnx() {
            true => self.only_by_script(&what, by_script),
            false => self.either(&what, by_script, |wire, key| ladder::acquire(wire, key, hold, ttl, limit)),
        }?;
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
        if hold.token.is_beside_setnx() {
            return self.renew_beside_setnx(&what, hold, ttl, limit);
        }
        let ttl_ms = ttl.millis().to_string();
        let args = [hold.token.as_str(), &ttl_ms, how(hold.may_shorten())];
        let renewed = self.either(
            &what,
            |server| {
                let asked = Moment::now();
                match server.script_unless_moving(&what, Script::Renew, &args, limit)? {
                    Some(answer) => server.renewed(&what, &answer, ttl.believed_until(asked), limit),
                    None => server.renew_moving(&what, &hold.token, ttl, how(hold.may_shorten()), limit),
                }
            },
            |wire, key| ladder::renew(wire, key, hold, ttl, limit),
        );
        match renewed {
            Err(trouble) if trouble.kind == Kind::WrongType => Ok(Renewed::NotYours(reply::wrong_type("another type"))),
            renewed => renewed,
        }
    }

    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        self.line = None;
        let released = self.release_as(&What::to("release", &hold.name), hold, limit);
        self.undo_outstanding(hold, limit);
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
        self.release_as(&what, &Hold { name: name.clone(), token, lives_with: None, beside_setnx: None }, limit)
    }

    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Standing, Trouble> {
        Ok(self.look(&What::to("inspect", name), limit)?.0)
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        self.listed(limit)
    }

    fn survey(&mut self, survey: &mut Survey, limit: Limit<'_>) -> Result<Option<Page>, Trouble> {
        self.surveyed(survey, limit)
    }

    fn examine(&mut self, limit: Limit<'_>) -> Result<Examination, Trouble> {
        examine::examine(self, limit)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.wire.lifeline()
    }
}

/// What INSPECT tells.
fn standing(answer: &[Value]) -> Option<Standing> {
    let [kind, seen @ .., reserved, Value::Array(queue)] = answer else { return None };
    let kind = reply::text(kind)?;
    let mut occupancy = match kind.raw() {
        "string" | "none" => reply::occupancy(seen)?,
        other => reply::wrong_type(other),
    };
    // Nothing lies beside a bare number before it is claimed.
    if reply::integer(reserved)? == 1 && matches!(occupancy.state, State::Held | State::Foreign) {
        occupancy.state = State::Reserved;
    }
    let queue = reply::waiters(queue, seen.last()?)?;
    Some(Standing { occupancy, queue })
}
