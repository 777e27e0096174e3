//! One server, its clients, and everything that may happen next.
//!
//! Owns the client's loop (ask, wait, hold, give back), reduced to what the server can tell, and the
//! faults. A step that breaks a promise says which. Knows nothing of how the worlds are searched.

mod holders;
mod sameness;
mod setting;
mod suffering;

use crate::model::{Acquired, Ask, Mode, Model, Renewed, Token, Word};
use crate::setnx::STALE;
use crate::shares::{BRIEFLY, Taken, share};
use holders::{Fences, holders, holders_after, holds};
pub use setting::{BESIDE_SETNX, ENDLESS, FOREIGN, Fault, GRACE, SHARING, Server, Setting, TRUE, TTL};

const START: u64 = 1000;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    Waiting,
    Holding,
    Leaving,
    Done,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Acquire { ticket: u64 },
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    /// With the slot that comes with a grant.
    Yes(Option<usize>),
    No,
    Busy {
        look_in: u64,
        ticket: u64,
        free: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flight {
    request: Request,
    sent: u64,
    reply: Option<Reply>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    pub frozen: bool,
    pub token: Token,
    sessions: u8,
    ticket: u64,
    /// Holds, as it believes, before this instant.
    deadline: u64,
    slot: Option<usize>,
    /// An outsider took from it what it had: what it believes until it asks again is not our doing.
    voided: bool,
    mail: bool,
    look_at: u64,
    /// The end of the reservation that a message has announced since its last request.
    told_to_look: u64,
    flight: Option<Flight>,
    /// In line, and not served since, until then. Not known to the client or the server.
    owed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub model: Model,
    pub clients: Vec<Client>,
    pub faults: u8,
    fences: Fences,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start(usize),
    Ask(usize),
    Renew(usize),
    Release(usize),
    Serve(usize),
    Receive(usize),
    Thaw(usize),
    Tick,
    Suffer(Fault, usize),
}

impl World {
    pub fn new(setting: &Setting) -> World {
        let client = |(who, limit): (Token, &Option<usize>)| Client {
            phase: Phase::Idle,
            frozen: false,
            token: limit.map_or(who, |limit| share(who, limit)),
            sessions: setting.sessions,
            ticket: 0,
            deadline: 0,
            slot: None,
            voided: false,
            mail: false,
            look_at: NEVER,
            told_to_look: NEVER,
            flight: None,
            owed: 0,
        };
        let model = Model { now_us: START * 1000, drops: setting.drops, shares: setting.shares(), ..Model::default() };
        let clients = (1..).zip(&setting.limits).map(client).take(setting.modes.len()).collect();
        World { model, clients, faults: 0, fences: Fences::default() }
    }

    /// Something is to be done that should not wait.
    pub fn due(&self, i: usize) -> bool {
        let c = &self.clients[i];
        let now = self.model.now();
        let due = match c.phase {
            Phase::Waiting => c.mail || c.look_at.min(c.told_to_look) <= now,
            Phase::Holding => c.deadline <= now,
            Phase::Leaving => true,
            _ => false,
        };
        due && c.flight.is_none()
    }

    pub fn in_flight(&self, i: usize) -> Option<bool> {
        self.clients[i].flight.map(|flight| flight.reply.is_some())
    }

    pub fn steps(&self, setting: &Setting) -> Vec<Step> {
        let mut steps = self.possible(setting);
        if setting.prompt {
            let active = || (0..self.clients.len()).filter(|&i| !self.clients[i].frozen);
            if active().any(|i| self.in_flight(i).is_some() || self.due(i)) {
                steps.retain(|step| *step != Step::Tick);
            }
            if let Some(i) = active().find(|&i| self.in_flight(i).is_some()) {
                let concerns =
                    |step: &Step| matches!(step, Step::Serve(j) | Step::Receive(j) | Step::Suffer(_, j) if *j == i);
                steps.retain(concerns);
            }
        }
        steps
    }

    fn possible(&self, setting: &Setting) -> Vec<Step> {
        let mut steps = vec![Step::Tick];
        for (i, c) in self.clients.iter().enumerate() {
            let may = |fault: Fault| setting.faults.contains(&fault) && self.faults < setting.at_most;
            let free = c.flight.is_none() && !c.frozen;
            match c.phase {
                Phase::Idle if free => steps.push(Step::Start(i)),
                Phase::Waiting if free => {
                    if self.due(i) {
                        steps.push(Step::Ask(i));
                    }
                    steps.push(Step::Release(i));
                }
                Phase::Holding if free => {
                    if self.model.now() < c.deadline {
                        steps.push(Step::Renew(i));
                    }
                    steps.push(Step::Release(i));
                }
                Phase::Leaving if free => steps.push(Step::Release(i)),
                _ => {}
            }
            match self.in_flight(i) {
                Some(false) => steps.push(Step::Serve(i)),
                Some(true) if !c.frozen => steps.push(Step::Receive(i)),
                _ => {}
            }
            let running = !matches!(c.phase, Phase::Idle | Phase::Done | Phase::Crashed);
            let mut suffers = |fault, possible| {
                if possible && may(fault) {
                    steps.push(Step::Suffer(fault, i));
                }
            };
            suffers(Fault::Crash, running);
            suffers(Fault::HolderCrashes, c.phase == Phase::Holding && free);
            suffers(Fault::Freeze, running && !c.frozen);
            suffers(Fault::LoseReply, running && !c.frozen && self.in_flight(i) == Some(true));
            suffers(Fault::LoseMail, running && (c.mail || c.told_to_look != NEVER));
            suffers(Fault::ForeignSet, i == 0 && self.model.lock.is_none());
            suffers(Fault::ForeignDel, i == 0 && self.model.lock.is_some());
            suffers(Fault::Flush, i == 0);
            suffers(Fault::RenewByVerb, c.phase == Phase::Holding);
            let is_mine = c.phase == Phase::Holding && c.deadline > self.model.now() && holds(&self.model, c.token);
            suffers(Fault::Lengthen, is_mine && free);
            suffers(Fault::Shorten, is_mine && free);
            suffers(Fault::LoseShares, i == 0 && !self.model.shares.ends.is.is_empty());
            suffers(Fault::LoseTerms, i == 0 && !self.model.shares.is_without_terms());
            suffers(Fault::WriteOver, i == 0 && self.model.value().is_some_and(|value| value < STALE));
            if c.frozen && running {
                steps.push(Step::Thaw(i));
            }
        }
        steps
    }

    /// The world after `step`, or the promise that it breaks.
    pub fn after(&self, step: Step, setting: &Setting) -> Result<World, String> {
        let mut world = self.clone();
        let now = world.model.now();
        match step {
            Step::Tick => {
                world.model.now_us += 1000;
                world.model.expire();
            }
            Step::Start(i) => {
                world.model.listening.insert(world.clients[i].token);
                world.clients[i].phase = Phase::Waiting;
                world.clients[i].look_at = now;
            }
            Step::Ask(i) => {
                let c = &mut world.clients[i];
                (c.mail, c.told_to_look) = (false, NEVER);
                c.flight = Some(Flight { request: Request::Acquire { ticket: c.ticket }, sent: now, reply: None });
            }
            Step::Renew(i) => {
                world.clients[i].flight = Some(Flight { request: Request::Renew, sent: now, reply: None });
            }
            Step::Release(i) => {
                let c = &mut world.clients[i];
                (c.phase, c.deadline, c.slot, c.owed) = (Phase::Leaving, 0, None, 0);
                c.forget_the_line();
                c.flight = Some(Flight { request: Request::Release, sent: now, reply: None });
            }
            Step::Serve(i) => world.serve(i, setting)?,
            Step::Receive(i) => world.receive(i, setting)?,
            Step::Thaw(i) => world.clients[i].frozen = false,
            Step::Suffer(fault, i) => world.suffer(fault, i, setting),
        }
        world.keep_the_rule()?;
        world.rebase();
        Ok(world)
    }

    fn serve(&mut self, i: usize, setting: &Setting) -> Result<(), String> {
        let flight = self.clients[i].flight.unwrap();
        let (token, now, mode) = (self.clients[i].token, self.model.now(), setting.modes[i]);
        let before = self.model.clone();
        self.model.now_us += 1;
        let reply = match flight.request {
            Request::Acquire { ticket } => {
                let (grace, lease) = (GRACE, setting.lease);
                let ask = Ask { token, ttl: TTL, mode, lease, grace, channel: mode == Mode::Queue, ticket };
                match (setting.server.acquire)(&mut self.model, &ask) {
                    Acquired::Granted { fence, entered } => {
                        let slot = entered.and_then(|entered| entered.slot);
                        self.is_granted(token, fence, slot)?;
                        Reply::Yes(slot)
                    }
                    Acquired::Busy { value, pttl, position, ticket, channel_used, taken, .. } => {
                        if let Some(taken) = taken {
                            self.is_told(token, taken, setting)?;
                        }
                        let ends_in = match taken {
                            // A tick is a long time here.
                            Some(Taken { look: BRIEFLY, .. }) => 0,
                            Some(Taken { look, .. }) => look,
                            None => pttl,
                        };
                        let mut look_in = setting.heartbeat.unwrap_or(NEVER);
                        if (1..=setting.watchers).contains(&position) && ends_in >= 0 {
                            look_in = look_in.min(ends_in as u64 + position as u64);
                        }
                        if !channel_used || value.is_none() || (position == 1 && matches!(value, Some(FOREIGN | STALE)))
                        {
                            look_in = 1;
                        }
                        Reply::Busy { look_in, ticket, free: value.is_none() }
                    }
                }
            }
            Request::Renew => match (setting.server.renew)(&mut self.model, token, TTL, false) {
                Renewed::Yes | Renewed::Longer(_) => {
                    self.clients[i].voided = false;
                    Reply::Yes(None)
                }
                Renewed::NotOurs { .. } => Reply::No,
            },
            Request::Release => {
                (setting.server.release)(&mut self.model, token);
                Reply::Yes(None)
            }
        };
        self.changes_hands(&before, (mode == Mode::Plain).then_some(token), setting)?;
        if let Reply::Busy { ticket, .. } = reply {
            self.clients[i].owed = if ticket > 0 { now + setting.lease } else { 0 };
        }
        self.deliver();
        let c = &mut self.clients[i];
        c.flight = (c.phase != Phase::Crashed).then_some(Flight { reply: Some(reply), ..flight });
        Ok(())
    }

    /// What the server has said.
    fn deliver(&mut self) {
        let now = self.model.now();
        for (to, word) in std::mem::take(&mut self.model.said) {
            let waits = |c: &&mut Client| c.token == to && c.phase == Phase::Waiting;
            match (self.clients.iter_mut().find(waits), word) {
                (Some(c), Word::LookIn(ms)) => c.told_to_look = c.told_to_look.min(now + ms + 1),
                (Some(c), Word::Granted | Word::Look) => c.mail = true,
                (Some(_), Word::Test) | (None, _) => {}
            }
        }
    }

    /// Checks all who have the lock now, and did not before or not with this fence.
    fn changes_hands(&mut self, before: &Model, barges: Option<Token>, setting: &Setting) -> Result<(), String> {
        // One that is over counts until a call drops it, and a call may leave it: then its client may still claim it.
        let since = if setting.batch.is_some() { 0 } else { before.now() };
        let (had, have) = (holders_after(before, since), holders(&self.model));
        // What was put back has not changed hands.
        let stays = |owner| before.value() == Some(STALE) && before.holder.as_ref().map(|h| h.is) == Some(owner);
        for new in have.iter().filter(|held| !had.contains(held) && !stays(held.token)) {
            self.fences.rise(new)?;
            if had.iter().all(|held| held.token != new.token) {
                self.nobody_is_overtaken(new.token, before, barges == Some(new.token))?;
            }
        }
        for c in &mut self.clients {
            if have.iter().any(|held| held.token == c.token && !had.contains(held) && !stays(c.token)) {
                (c.owed, c.voided) = (0, false);
            }
        }
        Ok(())
    }

    /// A waiter that comes in by the same step is not overtaken.
    fn nobody_is_overtaken(&self, owner: Token, before: &Model, barges: bool) -> Result<(), String> {
        let asked = |c: &Client| match c.flight {
            Some(Flight { request: Request::Acquire { ticket }, .. }) if ticket > 0 => Some(ticket),
            _ => None,
        };
        let ticket = |c: &Client| before.ticket(c.token).or(asked(c)).unwrap_or(u64::MAX);
        let new = self.clients.iter().find(|c| c.token == owner).map_or(u64::MAX, ticket);
        let now = before.now();
        let waits = |c: &Client| !c.frozen && c.phase == Phase::Waiting && !holds(&self.model, c.token);
        let owed = |c: &Client| waits(c) && c.owed >= now;
        match self.clients.iter().find(|c| !barges && owed(c) && c.ticket_known(before) < new) {
            Some(c) => Err(format!("{} was overtaken by {owner}", c.token)),
            None => Ok(()),
        }
    }

    fn receive(&mut self, i: usize, setting: &Setting) -> Result<(), String> {
        let now = self.model.now();
        let c = &mut self.clients[i];
        let Some(Flight { request, sent, reply: Some(reply) }) = c.flight.take() else { return Ok(()) };
        let gives_up = setting.gives_up.filter(|_| setting.modes[i] == Mode::Once);
        match (request, reply) {
            (Request::Acquire { .. }, Reply::Busy { free, .. }) if gives_up.is_some_and(|gives_up| gives_up(free)) => {
                if free {
                    return Err(format!("{} was told that a free lock is busy", c.token));
                }
                c.phase = Phase::Done;
            }
            (Request::Acquire { .. }, Reply::Busy { look_in, ticket, .. }) => {
                c.look_at = now.saturating_add(look_in);
                c.ticket = ticket;
            }
            (Request::Acquire { .. }, Reply::Yes(slot)) => {
                self.model.listening.remove(&c.token);
                (c.deadline, c.slot) = (sent + TTL, slot);
                c.forget_the_line();
                c.phase = if now < c.deadline { Phase::Holding } else { Phase::Leaving };
            }
            (Request::Renew, Reply::Yes(_)) => c.deadline = sent + TTL,
            _ => {
                self.model.listening.remove(&c.token);
                let sessions = c.sessions - 1;
                let phase = if sessions > 0 { Phase::Idle } else { Phase::Done };
                let token = c.token + if sessions > 0 { 10 } else { 0 };
                *c = Client {
                    phase,
                    token,
                    sessions,
                    ticket: 0,
                    deadline: 0,
                    slot: None,
                    voided: false,
                    mail: false,
                    look_at: NEVER,
                    told_to_look: NEVER,
                    ..*c
                };
            }
        }
        Ok(())
    }
}

impl Client {
    /// It waits no longer: what it knows of its place makes no difference.
    fn forget_the_line(&mut self) {
        (self.ticket, self.mail) = (0, false);
        (self.look_at, self.told_to_look) = (NEVER, NEVER);
    }

    /// Its place by the server's book, or by its own if the server has lost it.
    fn ticket_known(&self, server: &Model) -> u64 {
        let own = if self.ticket > 0 { self.ticket } else { u64::MAX };
        server.ticket(self.token).unwrap_or(own)
    }
}
