//! One server, its clients, and everything that may happen next.
//!
//! Owns the client's loop (ask, wait, hold, give back), reduced to what the server can tell, and the
//! faults. A step that breaks a promise says which. Knows nothing of how the worlds are searched.

mod holders;
mod sameness;
mod setting;
mod suffering;

use crate::keys::Server;
use crate::machine::{Mode, Op, Renewal, State, Verdict, Word};
use crate::token::{FOREIGN, Token};
use holders::{Fences, holders, holders_after, holds};
pub use setting::{ENDLESS, Fault, GRACE, STALE, Scripts, Setting, TTL};

const START: u64 = 1000;
const NEVER: u64 = u64::MAX;
/// When a client asks again whom only another waiter ahead keeps out.
const BRIEFLY: u64 = 500;

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
    Yes(Option<u16>),
    No,
    Busy {
        look_in: u64,
        ticket: u64,
        free: bool,
    },
    /// A newer one has dismissed it.
    Superseded,
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
    slot: Option<u16>,
    /// An outsider took from it what it had: what it believes until it asks again is not our doing.
    voided: bool,
    mail: bool,
    look_at: u64,
    /// The end of the reservation that a message has announced since its last request.
    told_to_look: u64,
    flight: Option<Flight>,
    /// In line, and not served since, until then. Not known to the client or the server.
    owed: u64,
    /// A newer one has joined the queue or come in while it waited.
    dismissed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub server: Server,
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
        let client = |(who, token): (u16, &Token)| Client {
            phase: Phase::Idle,
            frozen: false,
            token: Token { who, ..*token },
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
            dismissed: false,
        };
        let clients = (1..).zip(&setting.tokens).map(client).take(setting.modes.len()).collect();
        let server = Server::new(START * 1000, setting.bounds());
        World { server, clients, faults: 0, fences: Fences::default() }
    }

    /// Something is to be done that should not wait.
    pub fn due(&self, i: usize) -> bool {
        let c = &self.clients[i];
        let now = self.server.now();
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
        let lock = &self.server.lock;
        let (is_free, is_shared) = (lock.holders.is_empty(), lock.generation.is_some());
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
                    if self.server.now() < c.deadline {
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
            suffers(Fault::ForeignSet, i == 0 && is_free);
            suffers(Fault::ForeignDel, i == 0 && !is_free);
            suffers(Fault::Flush, i == 0);
            suffers(Fault::RenewByVerb, c.phase == Phase::Holding);
            let is_mine = c.phase == Phase::Holding && c.deadline > self.server.now() && holds(&self.server, c.token);
            suffers(Fault::Lengthen, is_mine && free);
            suffers(Fault::Shorten, is_mine && free);
            suffers(Fault::LoseShares, i == 0 && is_shared);
            suffers(Fault::LoseTerms, i == 0 && is_shared);
            suffers(Fault::WriteOver, i == 0 && !is_shared && lock.holders.keys().any(|token| token.is_ours()));
            if c.frozen && running {
                steps.push(Step::Thaw(i));
            }
        }
        steps
    }

    /// The world after `step`, or the promise that it breaks.
    pub fn after(&self, step: Step, setting: &Setting) -> Result<World, String> {
        let mut world = self.clone();
        let now = world.server.now();
        match step {
            Step::Tick => {
                world.server.around.now_us += 1000;
                world.server.expire();
            }
            Step::Start(i) => {
                world.server.around.listening.insert(world.clients[i].token);
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
        let (token, now, mode) = (self.clients[i].token, self.server.now(), setting.modes[i]);
        let before = self.server.clone();
        self.server.around.now_us += 1;
        let reply = match flight.request {
            Request::Acquire { ticket } => {
                // One that supersedes gets its ticket first, and joins with it.
                let asks = if mode == Mode::Queue && token.is_newest && ticket == 0 { Mode::Once } else { mode };
                let reply = (setting.scripts)(&mut self.server, &Op::Acquire(setting.asks(&token, asks, ticket)));
                match reply.verdict {
                    Verdict::Granted(grant) => {
                        self.is_granted(token, grant.fence, grant.slot)?;
                        Reply::Yes(grant.slot)
                    }
                    Verdict::Waiting(waiting) => {
                        self.refusal_says(token, &reply.state, setting)?;
                        // A tick is a long time here.
                        let ends_in = waiting.look_in.map(|look| if look == BRIEFLY { 0 } else { look });
                        let mut look_in = setting.heartbeat.unwrap_or(NEVER);
                        if let Some(ends_in) = ends_in
                            && (1..=setting.watchers).contains(&waiting.place)
                        {
                            look_in = look_in.min(ends_in + waiting.place as u64);
                        }
                        let is_free = reply.state.count == 0;
                        let is_others = self.server.lock.holders.keys().any(|token| !token.is_ours());
                        let joins = asks != mode;
                        if joins || reply.again || is_free || !waiting.hears || waiting.place == 1 && is_others {
                            look_in = if joins { 0 } else { 1 };
                        }
                        Reply::Busy { look_in, ticket: waiting.ticket, free: is_free }
                    }
                    Verdict::Superseded(_) if token.is_newest => Reply::Superseded,
                    other => return Err(format!("{token:?} asked for the lock, and the reply is {other:?}")),
                }
            }
            Request::Renew => {
                let renewal = Renewal { token: &token, ttl: TTL, prolongs: false, beside_setnx: setting.beside_setnx };
                match (setting.scripts)(&mut self.server, &Op::Renew(renewal)).verdict {
                    Verdict::Kept { .. } | Verdict::Longer(_) => {
                        self.clients[i].voided = false;
                        Reply::Yes(None)
                    }
                    _ => Reply::No,
                }
            }
            Request::Release => {
                (setting.scripts)(
                    &mut self.server,
                    &Op::Release { token: &token, by: None, keeps: None, record: None },
                );
                Reply::Yes(None)
            }
        };
        self.dismisses(&before, setting)?;
        self.changes_hands(&before, (mode == Mode::Plain).then_some(token), setting)?;
        if let Reply::Busy { .. } = reply {
            let is_queued = self.server.lock.waiter(&token).is_some();
            self.clients[i].owed = if is_queued { now + setting.lease } else { 0 };
        }
        self.deliver();
        let c = &mut self.clients[i];
        c.flight = (c.phase != Phase::Crashed).then_some(Flight { reply: Some(reply), ..flight });
        Ok(())
    }

    /// What the server has said.
    fn deliver(&mut self) {
        let now = self.server.now();
        for (to, word) in std::mem::take(&mut self.server.around.said) {
            let waits = |c: &&mut Client| c.token == to && c.phase == Phase::Waiting;
            match (self.clients.iter_mut().find(waits), word) {
                (Some(c), Word::LookAt(end)) => c.told_to_look = c.told_to_look.min(end.max(now) + 1),
                (Some(c), Word::Granted | Word::Look | Word::Superseded) => c.mail = true,
                (Some(_), Word::Test) | (None, _) => {}
            }
        }
    }

    /// Checks all who have the lock now, and did not before or not with this fence.
    fn changes_hands(&mut self, before: &Server, barges: Option<Token>, setting: &Setting) -> Result<(), String> {
        // One that is over counts until a call drops it, and a call may leave it: then its client may still claim it.
        let since = if setting.batch.is_some() { 0 } else { before.now() };
        let (had, have) = (holders_after(before, since), holders(&self.server));
        // What was put back has not changed hands.
        let is_over = before.lock.holders.contains_key(&STALE);
        let stays = |owner| is_over && before.lock.owner.as_ref().is_some_and(|(token, _)| *token == owner);
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
    fn nobody_is_overtaken(&self, owner: Token, before: &Server, barges: bool) -> Result<(), String> {
        let asked = |c: &Client| match c.flight {
            Some(Flight { request: Request::Acquire { ticket }, .. }) if ticket > 0 => Some(ticket),
            _ => None,
        };
        let queued = |c: &Client| before.lock.waiter(&c.token).map(|own| own.ticket);
        let ticket = |c: &Client| queued(c).or(asked(c)).unwrap_or(u64::MAX);
        let new = self.clients.iter().find(|c| c.token == owner).map_or(u64::MAX, ticket);
        let is_before = |c: &Client| (!c.token.is_first, c.ticket_known(before)) < (!owner.is_first, new);
        let now = before.now();
        let waits = |c: &Client| !c.frozen && c.phase == Phase::Waiting && !holds(&self.server, c.token);
        let owed = |c: &Client| waits(c) && c.owed >= now;
        match self.clients.iter().find(|c| !barges && owed(c) && is_before(c)) {
            Some(c) => Err(format!("{:?} was overtaken by {owner:?}", c.token)),
            None => Ok(()),
        }
    }

    /// Of those that supersede, only the newest waits: when one joins or comes in, all that wait are dismissed.
    fn dismisses(&mut self, before: &Server, setting: &Setting) -> Result<(), String> {
        if !setting.tokens.iter().any(|token| token.is_newest) {
            return Ok(());
        }
        let lock = &self.server.lock;
        let waiting: Vec<Token> = lock.queue.iter().map(|w| w.token).filter(|token| token.is_newest).collect();
        if waiting.len() > 1 {
            return Err(format!("two that supersede wait: {waiting:?}"));
        }
        for c in &mut self.clients {
            let is_there = waiting.contains(&c.token) || lock.holders.contains_key(&c.token);
            let had = before.lock.holders.contains_key(&c.token);
            if c.dismissed && is_there && !had {
                return Err(format!("{:?} was dismissed, and is there again", c.token));
            }
            let waited = before.lock.waiter(&c.token).is_some();
            let newer = waiting.iter().chain(lock.holders.keys()).filter(|by| by.is_newest && **by != c.token);
            let joined = |by: &Token| before.lock.waiter(by).is_none() && !before.lock.holders.contains_key(by);
            if c.token.is_newest && waited && newer.copied().any(|by| joined(&by)) {
                c.dismissed = true;
                c.owed = 0;
            }
            if lock.holders.contains_key(&c.token) {
                c.dismissed = false;
            }
        }
        Ok(())
    }

    fn receive(&mut self, i: usize, setting: &Setting) -> Result<(), String> {
        let now = self.server.now();
        let c = &mut self.clients[i];
        let Some(Flight { request, sent, reply: Some(reply) }) = c.flight.take() else { return Ok(()) };
        let gives_up = setting.gives_up.filter(|_| setting.modes[i] == Mode::Once);
        match (request, reply) {
            (Request::Acquire { .. }, Reply::Busy { free, .. }) if gives_up.is_some_and(|gives_up| gives_up(free)) => {
                if free {
                    return Err(format!("{:?} was told that a free lock is busy", c.token));
                }
                c.phase = Phase::Done;
            }
            (Request::Acquire { .. }, Reply::Busy { look_in, ticket, .. }) => {
                c.look_at = now.saturating_add(look_in);
                c.ticket = ticket;
            }
            (Request::Acquire { .. }, Reply::Yes(slot)) => {
                self.server.around.listening.remove(&c.token);
                (c.deadline, c.slot) = (sent + TTL, slot);
                c.forget_the_line();
                c.phase = if now < c.deadline { Phase::Holding } else { Phase::Leaving };
            }
            // It leaves, so that the server forgets it.
            (Request::Acquire { .. }, Reply::Superseded) => {
                c.forget_the_line();
                (c.phase, c.owed) = (Phase::Leaving, 0);
            }
            (Request::Renew, Reply::Yes(_)) => c.deadline = sent + TTL,
            _ => {
                self.server.around.listening.remove(&c.token);
                let sessions = c.sessions - 1;
                let phase = if sessions > 0 { Phase::Idle } else { Phase::Done };
                let who = c.token.who + if sessions > 0 { 10 } else { 0 };
                let token = Token { who, ..c.token };
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
                    dismissed: false,
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
    fn ticket_known(&self, server: &Server) -> u64 {
        let own = if self.ticket > 0 { self.ticket } else { u64::MAX };
        server.lock.waiter(&self.token).map_or(own, |own| own.ticket)
    }
}
