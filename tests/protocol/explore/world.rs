//! One server, its clients, and everything that may happen next.
//!
//! Owns the client's loop (ask, wait, hold, give back), reduced to what the server can tell, and the
//! faults. A step that breaks a promise says which. Knows nothing of how the worlds are searched.

mod sameness;
mod setting;
mod suffering;

use crate::model::{Acquired, Ask, Mode, Model, Renewed, Token, Word};
use crate::setnx::STALE;
pub use setting::{BESIDE_SETNX, ENDLESS, FOREIGN, Fault, GRACE, Server, Setting, TRUE, TTL};

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
    Yes,
    No,
    Busy { look_in: u64, ticket: u64, free: bool },
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
    /// An outsider took from it what it had: what it believes until it asks again is not our doing.
    voided: bool,
    mail: bool,
    look_at: u64,
    flight: Option<Flight>,
    /// In line, and not served since, until then. Not known to the client or the server.
    owed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub model: Model,
    pub clients: Vec<Client>,
    pub faults: u8,
    last_fence: u64,
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
        let client = |token| Client {
            phase: Phase::Idle,
            frozen: false,
            token,
            sessions: setting.sessions,
            ticket: 0,
            deadline: 0,
            voided: false,
            mail: false,
            look_at: NEVER,
            flight: None,
            owed: 0,
        };
        let model = Model { now_us: START * 1000, drops: setting.drops, ..Model::default() };
        World { model, clients: (1..).map(client).take(setting.modes.len()).collect(), faults: 0, last_fence: 0 }
    }

    /// Something is to be done that should not wait.
    pub fn due(&self, i: usize) -> bool {
        let c = &self.clients[i];
        let now = self.model.now();
        let due = match c.phase {
            Phase::Waiting => c.mail || c.look_at <= now,
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
            suffers(Fault::Freeze, running && !c.frozen);
            suffers(Fault::LoseReply, running && !c.frozen && self.in_flight(i) == Some(true));
            suffers(Fault::LoseMail, running && c.mail);
            suffers(Fault::ForeignSet, i == 0 && self.model.lock.is_none());
            suffers(Fault::ForeignDel, i == 0 && self.model.lock.is_some());
            suffers(Fault::Flush, i == 0);
            suffers(Fault::RenewByVerb, c.phase == Phase::Holding);
            let is_mine =
                c.phase == Phase::Holding && self.model.value() == Some(c.token) && c.deadline > self.model.now();
            suffers(Fault::Lengthen, is_mine && free);
            suffers(Fault::Shorten, is_mine && free);
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
                c.mail = false;
                c.flight = Some(Flight { request: Request::Acquire { ticket: c.ticket }, sent: now, reply: None });
            }
            Step::Renew(i) => {
                world.clients[i].flight = Some(Flight { request: Request::Renew, sent: now, reply: None });
            }
            Step::Release(i) => {
                let c = &mut world.clients[i];
                (c.phase, c.deadline, c.owed) = (Phase::Leaving, 0, 0);
                c.flight = Some(Flight { request: Request::Release, sent: now, reply: None });
            }
            Step::Serve(i) => world.serve(i, setting)?,
            Step::Receive(i) => world.receive(i, setting)?,
            Step::Thaw(i) => world.clients[i].frozen = false,
            Step::Suffer(fault, i) => world.suffer(fault, i, setting),
        }
        world.one_holder()?;
        world.rebase();
        Ok(world)
    }

    fn serve(&mut self, i: usize, setting: &Setting) -> Result<(), String> {
        let flight = self.clients[i].flight.unwrap();
        let (token, now, mode) = (self.clients[i].token, self.model.now(), setting.modes[i]);
        let (before, in_line) = (self.model.value(), self.model.clone());
        self.model.now_us += 1;
        let reply = match flight.request {
            Request::Acquire { ticket } => {
                let (grace, lease) = (GRACE, setting.lease);
                let ask = Ask { token, ttl: TTL, mode, lease, grace, channel: mode == Mode::Queue, ticket };
                match (setting.server.acquire)(&mut self.model, &ask) {
                    Acquired::Granted { fence, .. } if Some(fence) != self.model.fence.as_ref().map(|f| f.is) => {
                        return Err(format!("{token} was granted with a fence that is not the lock's"));
                    }
                    Acquired::Granted { .. } => Reply::Yes,
                    Acquired::Busy { value, pttl, position, ticket, channel_used, .. } => {
                        let mut look_in = setting.heartbeat.unwrap_or(NEVER);
                        if (1..=setting.watchers).contains(&position) && pttl >= 0 {
                            look_in = look_in.min(pttl as u64 + position as u64);
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
                Renewed::Yes | Renewed::Longer(_) => Reply::Yes,
                Renewed::NotOurs { .. } => Reply::No,
            },
            Request::Release => {
                (setting.server.release)(&mut self.model, token);
                Reply::Yes
            }
        };
        // What was put back has not changed hands.
        let stays = |owner| before == Some(STALE) && in_line.holder.as_ref().map(|h| h.is) == Some(owner);
        let new = |owner: &Token| *owner < STALE && Some(*owner) != before && !stays(*owner);
        let owner = self.model.value().filter(new);
        if let Some(owner) = owner {
            self.changed_hands(owner, &in_line, owner == token && mode == Mode::Plain)?;
        }
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
        for (to, word) in std::mem::take(&mut self.model.said) {
            if let Some(c) = self.clients.iter_mut().find(|c| c.token == to && word != Word::Test) {
                c.mail = c.phase == Phase::Waiting;
            }
        }
    }

    fn changed_hands(&mut self, owner: Token, before: &Model, barges: bool) -> Result<(), String> {
        let fence = self.model.fence.as_ref().map_or(0, |f| f.is);
        if fence <= self.last_fence {
            return Err(format!("{owner} owns the lock with a fence that did not rise"));
        }
        self.last_fence = fence;
        let asked = |c: &Client| match c.flight {
            Some(Flight { request: Request::Acquire { ticket }, .. }) if ticket > 0 => Some(ticket),
            _ => None,
        };
        let ticket = |c: &Client| before.ticket(c.token).or(asked(c)).unwrap_or(u64::MAX);
        let new = self.clients.iter().find(|c| c.token == owner).map_or(u64::MAX, ticket);
        let now = before.now();
        let owed = |c: &Client| !c.frozen && c.phase == Phase::Waiting && c.owed >= now && c.token != owner;
        if let Some(c) = self.clients.iter().find(|c| !barges && owed(c) && c.ticket_known(before) < new) {
            return Err(format!("{} was overtaken by {owner}", c.token));
        }
        if let Some(c) = self.clients.iter_mut().find(|c| c.token == owner) {
            (c.owed, c.voided) = (0, false);
        }
        Ok(())
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
            (Request::Acquire { .. }, _) => {
                self.model.listening.remove(&c.token);
                c.deadline = sent + TTL;
                c.phase = if now < c.deadline { Phase::Holding } else { Phase::Leaving };
            }
            (Request::Renew, Reply::Yes) => c.deadline = sent + TTL,
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
                    voided: false,
                    mail: false,
                    look_at: NEVER,
                    ..*c
                };
            }
        }
        Ok(())
    }

    fn one_holder(&self) -> Result<(), String> {
        let now = self.model.now();
        let holds = |c: &&Client| c.phase == Phase::Holding && now < c.deadline && !c.voided;
        let holders = self.clients.iter().filter(holds).count();
        let foreign = usize::from(self.model.value() == Some(FOREIGN));
        if holders + foreign > 1 { Err("two hold the lock".to_string()) } else { Ok(()) }
    }
}

impl Client {
    /// Its place by the server's book, or by its own if the server has lost it.
    fn ticket_known(&self, server: &Model) -> u64 {
        let own = if self.ticket > 0 { self.ticket } else { u64::MAX };
        server.ticket(self.token).unwrap_or(own)
    }
}
