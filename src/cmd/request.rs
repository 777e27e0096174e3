//! A request for a lock, made once from the arguments of `run` or `acquire`.

use std::time::Duration;

use super::{Wants, named, open_with_credentials};
use crate::acquire::{self, Preparation, Queueing, Wait, WaitOptions, Waited};
use crate::cli::{Acquire, AlsoArgs, EventArgs, GlobalArgs, RecordingArgs, Run, SetnxArgs, SharingArgs, WaitArgs};
use crate::clock::wall;
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::lock::{
    Also, BesideSetnx, Claim, Fence, HELD, Key, Lease, Lifetime, LockName, LockState, Owner, Prefix, Sharing, Slot,
    Supersedes, Terms, Token, Ttl, Upkeep, words,
};
use crate::output::history::Clock;
use crate::output::progress::Waiting;
use crate::report::{self, Busy, Named, NotYours, Report, Wanted};
use crate::signals::Signals;
use crate::store::{Credentials, Several, Store};
use crate::text::local_instant;
use crate::{log, notify};

/// A request for a lock.
pub struct Request<'a> {
    pub global: &'a GlobalArgs,
    pub lock: Named,
    /// The further locks.
    also: Vec<Further>,
    prefix: Prefix,
    lifetime: Lifetime,
    /// Of the lease; with --until, when it was granted.
    pub ttl: Ttl,
    terms: Terms,
    /// The process that the claim lives with.
    owner_pid: Option<u32>,
    wait_args: &'a WaitArgs,
    setnx: &'a SetnxArgs,
    event_args: &'a EventArgs,
    recording: Option<&'a RecordingArgs>,
    /// The lock stays locked for so long after the grant.
    at_least: Option<Duration>,
}

/// A further lock.
struct Further {
    lock: Named,
    /// Its name under the prefix of the store.
    name: LockName,
    sharing: Sharing,
}

/// The outcome of a request.
pub enum Answer {
    Granted(Lease),
    Refused(Box<Report>),
}

impl<'a> Request<'a> {
    /// Returns the request of a `run`, which renews its lock.
    ///
    /// # Errors
    /// If options contradict each other.
    pub fn of_run(global: &'a GlobalArgs, asked: &'a Run) -> Result<Request<'a>, Error> {
        let terms = terms(Upkeep::Renewed, &asked.sharing, &asked.wait_args, asked.no_ask)?;
        let (lock, prefix) = named(global, &asked.lock)?;
        let also = further(global, &lock, &asked.also)?;
        Ok(Request {
            global,
            lock,
            also,
            prefix,
            lifetime: Lifetime::For(asked.ttl),
            ttl: asked.ttl,
            terms,
            owner_pid: Some(std::process::id()),
            wait_args: &asked.wait_args,
            setnx: &asked.setnx,
            event_args: &asked.event_args,
            recording: Some(&asked.recording),
            at_least: asked.at_least,
        })
    }

    /// Returns the request of an `acquire`. With --while-pid a keeper renews the lock, and the claim lives with the
    /// watched process: if the keeper is killed, nobody gets a lock in a directory before that process has ended or the
    /// lease has expired.
    ///
    /// # Errors
    /// If options contradict each other.
    pub fn of_acquire(global: &'a GlobalArgs, asked: &'a Acquire) -> Result<Request<'a>, Error> {
        let upkeep = if asked.while_pid.is_some() { Upkeep::Renewed } else { Upkeep::LeaseOnly };
        // A process that gets no signal cannot give up.
        let no_ask = asked.while_pid.is_some() && asked.lost_signal.0.is_none();
        let terms = terms(upkeep, &asked.sharing, &asked.wait_args, no_ask)?;
        let (lock, prefix) = named(global, &asked.lock)?;
        let also = further(global, &lock, &asked.also)?;
        if !also.is_empty() && asked.while_pid.is_none() {
            return Err(Error {
                kind: ErrorKind::Usage,
                action: "cannot use --also, or --also-shared, here".into(),
                cause: "no process would renew the locks, and give all of them back if one is lost".into(),
                hint: "use --while-pid".into(),
            });
        }
        let lifetime = lifetime(asked)?;
        let ttl = lifetime.ttl(wall()).unwrap_or(Ttl::at_least(Ttl::MIN));
        Ok(Request {
            global,
            lock,
            also,
            prefix,
            lifetime,
            ttl,
            terms,
            owner_pid: asked.while_pid,
            wait_args: &asked.wait_args,
            setnx: &asked.setnx,
            event_args: &asked.event_args,
            recording: None,
            at_least: None,
        })
    }

    /// Makes a new claim, and begins to report its events.
    pub fn claim(&self) -> anyhow::Result<Claim> {
        let owner = Owner::this_process_as(self.wait_args.known_as.as_ref());
        let (reason, now) = (self.wait_args.reason.as_deref(), wall());
        let (token, beside_setnx) = if self.setnx.setnx_compat {
            let token = Token::mint_number()?;
            let identity = token.identity(self.terms, &owner, reason, now);
            (token, Some(BesideSetnx { margin: self.setnx.setnx_margin, identity }))
        } else {
            (Token::mint_for(self.terms, &owner, reason, now)?, None)
        };
        let (owner_pid, enclosing) = (self.owner_pid, enclosing()?);
        let mut claim = Claim { owner_pid, beside_setnx, enclosing, ..Claim::of(self.lock.name.clone(), token) };
        claim.recording = self.recording.and_then(|recording| recording.recording(&claim));
        claim.at_least = self.at_least;
        for Further { name, sharing, .. } in &self.also {
            let terms = Terms { sharing: *sharing, supersedes: Supersedes::Nobody, ..self.terms };
            let token = Token::mint_for(terms, &owner, reason, now)?;
            let enclosing = claim.enclosing.clone();
            let also = Claim { owner_pid, enclosing, ..Claim::of(name.clone(), token) };
            claim.also.push(Also { claim: also, fence: None });
        }
        let also: Vec<Named> = self.also.iter().map(|further| further.lock.clone()).collect();
        notify::begin(self.event_args.events.as_ref(), &self.lock, &also, &claim)?;
        Ok(claim)
    }

    /// Returns the keys of all locks, the first one's first.
    pub fn keys(&self) -> Vec<String> {
        let also = self.also.iter().map(|further| &further.lock);
        [&self.lock].into_iter().chain(also).map(|lock| lock.key.clone()).collect()
    }

    /// Returns the further locks with what was granted.
    pub fn also(&self, granted: impl IntoIterator<Item = (Token, Option<Fence>)>) -> Vec<report::Also> {
        let locks = self.also.iter().map(|further| further.lock.clone());
        locks.zip(granted).map(|(lock, (token, fence))| report::Also { lock, token, fence }).collect()
    }

    /// Returns the lock that a state is of.
    fn named(&self, claim: &Claim, state: &LockState) -> Named {
        let name = &claim.part_of(state).name;
        let further = self.also.iter().find(|further| further.name == *name);
        further.map_or(&self.lock, |further| &further.lock).clone()
    }

    /// Opens the store, and returns the credentials for it too.
    ///
    /// # Errors
    /// If no server is named, or it cannot do what is requested.
    pub fn open(&self) -> Result<(Box<dyn Store>, Credentials), Error> {
        let wants = Wants {
            durability: self.wait_args.durability(),
            beside_setnx: self.setnx.setnx_compat,
            sharing: self.terms.sharing,
            supersedes: self.terms.supersedes != Supersedes::Nobody,
            goes_first: self.terms.goes_first,
            records: self.recording.and_then(RecordingArgs::option),
            also_shares: self.also.iter().any(|further| further.sharing != Sharing::Exclusive),
            ..Wants::default()
        };
        let (store, credentials) = open_with_credentials(self.global, self.prefix.clone(), wants)?;
        if self.also.is_empty() {
            return Ok((store, credentials));
        }
        Ok((Box::new(Several::new(store, &self.keys())), credentials))
    }

    /// Waits for the lock.
    pub fn wait_for(
        &mut self,
        store: &mut dyn Store,
        claim: &mut Claim,
        signals: &mut Signals,
        preparation: &dyn Preparation,
    ) -> anyhow::Result<Answer> {
        let options = self.wait_options();
        let mut waiting = Waiting::new(&self.lock.name, self.terms.sharing, options.wait != Wait::Not);
        let waited = acquire::for_grant(store, claim, options, signals, &mut waiting, preparation);
        let granted = matches!(waited, Ok(Waited::Granted(..)));
        waiting.end(granted);
        // From here on a lease runs.
        log::urgent(granted);
        Ok(match waited? {
            Waited::Granted(lease, ttl) => {
                self.ttl = ttl;
                Answer::Granted(self.granted(claim, lease))
            }
            Waited::Interrupted(signal) => Answer::Refused(Box::new(Report::Interrupted(signal))),
            Waited::Lost(state) => {
                let (lock, wanted) = (self.named(claim, &state), Wanted::Hold);
                Answer::Refused(Box::new(Report::NotYours(NotYours { lock, wanted, state, ended: None })))
            }
            Waited::Busy(refused) => {
                let lock = self.named(claim, &refused.state);
                Answer::Refused(Box::new(Report::Busy(Busy {
                    options: super::options(self.global, &lock),
                    lock,
                    refused: *refused,
                    conflict_exit_code: self.wait_args.conflict_exit_code,
                })))
            }
        })
    }

    /// Notes and reports a grant.
    fn granted(&self, claim: &mut Claim, mut lease: Lease) -> Lease {
        // With one slot, the lock is exclusive.
        if let (None, Sharing::Slots(of)) = (lease.slot, self.terms.sharing)
            && of.get() == 1
        {
            lease.slot = Some(Slot { number: 0, of });
        }
        if let Some(recording) = &mut claim.recording {
            (recording.granted, recording.fence) = (Some(lease.granted), lease.fence);
        }
        notify::granted(claim, &lease, self.ttl);
        if let Some(stale) = &lease.taken_over {
            let since = words::validity(stale, |time| Clock::of(&std::io::stderr()).show(time));
            log::note(format_args!("took over \"{}\" from an old SETNX client: {since}", self.lock.name));
        }
        lease
    }

    fn wait_options(&self) -> WaitOptions {
        let wait = match self.wait_args.wait {
            _ if self.wait_args.no_wait => Wait::Not,
            None => Wait::ForEver,
            Some(Duration::ZERO) => Wait::Not,
            Some(wait) => Wait::AtMost(wait),
        };
        let queue = if self.wait_args.no_queue { Queueing::Not } else { Queueing::InLine };
        WaitOptions { lifetime: self.lifetime, wait, queue, server_timeout: self.global.server_timeout }
    }
}

/// Returns the terms of a claim.
///
/// # Errors
/// If they contradict each other.
fn terms(upkeep: Upkeep, sharing: &SharingArgs, waiting: &WaitArgs, no_ask: bool) -> Result<Terms, Error> {
    let (sharing, supersedes) = (sharing.sharing(), waiting.supersede.unwrap_or_default());
    let terms = Terms { upkeep, sharing, supersedes, goes_first: waiting.first, no_ask };
    let cause = match terms.supersedes {
        Supersedes::Running if terms.sharing != Sharing::Exclusive => {
            "a lock that is shared has several holders, and none of them is the one to give up"
        }
        Supersedes::Running if terms.no_ask => "--no-ask, or --lost-signal none, keeps newer ones from asking this one",
        Supersedes::Nobody | Supersedes::Waiting | Supersedes::Running => return Ok(terms),
    };
    Err(Error {
        kind: ErrorKind::Usage,
        action: "cannot use --supersede=running here".into(),
        cause: cause.into(),
        hint: "use --supersede, which concerns only those who wait".into(),
    })
}

/// Returns the further locks.
///
/// # Errors
/// If there are too many, or one is named twice.
fn further(global: &GlobalArgs, lock: &Named, asked: &AlsoArgs) -> Result<Vec<Further>, Error> {
    let refused = |cause: String, hint: &str| Error {
        kind: ErrorKind::Usage,
        action: "cannot take these locks at once".into(),
        cause,
        hint: hint.into(),
    };
    let mut further: Vec<Further> = Vec::new();
    for (name, sharing) in asked.locks() {
        let also = Named::new(name, &global.prefix);
        let others = further.iter().map(|further| &further.lock).chain([lock]);
        if let Some(other) = others.into_iter().find(|other| other.key == also.key) {
            let cause = match other.name == also.name {
                true => format!("\"{name}\" is named twice"),
                false => format!("\"{name}\" and \"{}\" have the same key", other.name),
            };
            return Err(refused(cause, "name it once"));
        }
        // Under an exact key the prefix is no part of the store's.
        let in_store = if lock.by_key { also.key.parse().map(|key: Key| key.name()) } else { Ok(name.clone()) };
        let name = in_store.map_err(|cause| refused(cause, "use a shorter --prefix"))?;
        further.push(Further { lock: also, name, sharing: *sharing });
    }
    if further.len() >= MOST {
        return Err(refused(format!("there are {}, and {MOST} may be held together", further.len() + 1), "name fewer"));
    }
    Ok(further)
}

/// Maximum number of locks that are held together.
const MOST: usize = 16;

/// The variable with the number of locks that are held together.
const COUNT: &str = "NXLOCK_COUNT";

/// Returns the variables that name the further locks, and those of an enclosing run, which are to be unset.
pub fn numbered(also: &[report::Also]) -> Vec<(String, Option<String>)> {
    let are_inherited = std::env::var_os(COUNT).is_some();
    if also.is_empty() && !are_inherited {
        return Vec::new();
    }
    let mut variables = vec![(COUNT.to_owned(), (!also.is_empty()).then(|| (also.len() + 1).to_string()))];
    for number in 2..=MOST {
        let also = also.get(number - 2);
        for (variable, value) in [
            ("NAME", also.map(|also| also.lock.name.as_str().to_owned())),
            ("KEY", also.map(|also| also.lock.key.clone())),
            ("TOKEN", also.map(|also| also.token.as_str().to_owned())),
            ("FENCE", also.and_then(|also| also.fence).map(|fence| fence.0.to_string())),
        ] {
            variables.push((format!("NXLOCK_{variable}_{number}"), value));
        }
    }
    variables.retain(|(_, value)| value.is_some() || are_inherited);
    variables
}

/// Returns for how long an `acquire` wants its lock.
///
/// # Errors
/// If it is to end in the past, or too far in the future.
fn lifetime(asked: &Acquire) -> Result<Lifetime, Error> {
    let Some(until) = asked.until else { return Ok(Lifetime::For(asked.ttl())) };
    let now = wall();
    let cause = match until.resolve(now) {
        Err(cause) => cause,
        Ok(end) => match end.duration_since(now) {
            Err(_) => match local_instant(end) {
                // Before 1970: a year of two digits.
                shown if shown.is_empty() => "that has passed".to_owned(),
                shown => format!("{shown} has passed"),
            },
            Ok(left) if left > Ttl::MAX => "that is more than ten years from now".to_owned(),
            Ok(left) => {
                log::trace(format_args!("until {}, for {}", local_instant(end), span(left)));
                return Ok(Lifetime::Until(end));
            }
        },
    };
    let hint = "give a time to come: 2026-11-30T08:00Z or, in local time, '2026-11-30 08:00' or 08:00".to_owned();
    Err(Error { kind: ErrorKind::Usage, action: "cannot use --until".into(), cause, hint })
}

/// Maximum number of enclosing runs: a server looks for each of them in the list of a lock's holders.
const MAX_ENCLOSING: usize = 256;

/// Maximum number of tokens that a script is told it holds. One that takes and releases locks again and again keeps those
/// around it and its last ones.
const EXPORTED: usize = 2 * MOST;

/// Returns the tokens that a script holds with these, as its environment names them.
pub fn held_with<'a>(tokens: impl IntoIterator<Item = &'a Token>) -> String {
    let mut held = enclosing().unwrap_or_default();
    held.extend(tokens.into_iter().cloned());
    if held.len() > EXPORTED {
        held.drain(EXPORTED / 2..held.len() - EXPORTED / 2);
    }
    held.iter().map(Token::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the tokens of the enclosing runs, innermost last.
///
/// # Errors
/// If there are too many.
fn enclosing() -> Result<Vec<Token>, Error> {
    let held = std::env::var_os(HELD).unwrap_or_default();
    let tokens: Vec<Token> = held.to_string_lossy().split(' ').filter_map(|token| token.parse().ok()).collect();
    if tokens.len() > MAX_ENCLOSING {
        return Err(Error {
            kind: ErrorKind::Usage,
            action: format!("cannot tell whether {HELD} has the lock"),
            cause: format!("it has {} tokens, and {MAX_ENCLOSING} at most are looked for", tokens.len()),
            hint: "leave out those of runs that have ended".into(),
        });
    }
    Ok(tokens)
}
