//! What a directory keeps of a lock: the lock itself, and beside it what the kernel is to be asked of its holders. Its
//! text; no I/O.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::fault::Flaw;
use super::format::{Entry, or_dash, write_fields};
use super::pid_view::Process;
use crate::lock::machine::{Begun, Broken, Claimant, Holder, Lock, Run, Waiter};
use crate::lock::{self, Fence, HolderId, RunEnd, Token};

/// Characters that could be taken for the end of a field.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'=');

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Prefix and name: the file name may be a shortened one.
    pub key: String,
    /// The boot in which the last holder came, if known: no claim outlives it.
    pub boot: Option<String>,
    pub lock: Lock<Token>,
    /// What keeps each holder.
    pub bindings: BTreeMap<Token, Binding>,
    /// When the recorded runs are forgotten, in µs since 1970.
    pub runs_until: u64,
}

/// What keeps a holder in possession of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// When it was granted the lock, or claimed its reservation, in µs since boot.
    pub granted: u64,
    pub life: Life,
    /// When a claim may end that the kernel ends, in µs since boot; its holder may release it before.
    pub not_before: Option<u64>,
    /// Of the byte that processes lock while they keep the claim; none if no process does.
    pub number: Option<u64>,
}

/// What ends a claim before its lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Nothing: no process keeps it.
    Lease,
    /// The end of the last process that has the claim open.
    Holder,
    /// The end of those processes and of the watched process.
    HolderAnd(Process),
}

/// Text forms of [`Life`].
const LEASE: &str = "lease";
const HOLDER: &str = "holder";

impl Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Life::Lease => f.write_str(LEASE),
            Life::Holder => f.write_str(HOLDER),
            Life::HolderAnd(process) => write!(f, "{HOLDER}+{process}"),
        }
    }
}

impl FromStr for Life {
    type Err = ();

    fn from_str(text: &str) -> Result<Life, ()> {
        match (text, text.strip_prefix(HOLDER)) {
            (LEASE, _) => Ok(Life::Lease),
            (_, Some("")) => Ok(Life::Holder),
            (_, Some(rest)) => rest.strip_prefix('+').ok_or(())?.parse().map(Life::HolderAnd),
            (_, None) => Err(()),
        }
    }
}

impl Binding {
    /// Returns that of a claim which nothing but its lease keeps.
    pub fn none(granted: u64) -> Binding {
        Binding { granted, life: Life::Lease, not_before: None, number: None }
    }
}

impl State {
    pub fn new(key: &str, boot: Option<&str>) -> State {
        State {
            key: key.to_owned(),
            boot: boot.map(str::to_owned),
            lock: Lock::default(),
            bindings: BTreeMap::new(),
            runs_until: 0,
        }
    }

    pub fn written(&self) -> String {
        let mut text = String::new();
        let mut line = |kind: &str, fields: &[(&str, &dyn Display)]| {
            text += kind;
            write_fields(&mut text, fields);
            text.push('\n');
        };
        let Lock { holders, generation, queue, fence, asked, broken, superseding, runs, .. } = &self.lock;
        let key = utf8_percent_encode(&self.key, ESCAPED);
        let (generation, boot) = (or_dash(generation.as_ref()), or_dash(self.boot.as_ref()));
        line("lock", &[("key", &key), ("fence", fence), ("generation", &generation), ("boot", &boot)]);
        for (token, holder) in holders {
            let binding = self.bindings.get(token).copied().unwrap_or(Binding::none(0));
            line(
                "holder",
                &[
                    ("fence", &holder.fence),
                    ("slot", &or_dash(holder.slot.as_ref())),
                    ("reserved_for", &or_dash(holder.reserved.as_ref())),
                    ("granted_us", &binding.granted),
                    ("until_ms", &or_dash(holder.end.as_ref())),
                    ("since_us", &holder.since),
                    ("life", &binding.life),
                    ("not_before_us", &or_dash(binding.not_before.as_ref())),
                    ("number", &or_dash(binding.number.as_ref())),
                    ("token", &token.as_str()),
                ],
            );
        }
        for Waiter { ticket, token, grace, .. } in queue {
            line("waiter", &[("ticket", ticket), ("grace_ms", grace), ("token", &token.as_str())]);
        }
        if let Some((ticket, token)) = &superseding.newest {
            line("newest", &[("ticket", ticket), ("token", &token.as_str())]);
        }
        if let Some((ticket, by)) = &superseding.dismissed {
            line("dismissed", &[("ticket", ticket), ("by", &by.as_str())]);
        }
        for (token, by) in &superseding.noted {
            line("noted", &[("token", &token.as_str()), ("by", &by.as_str())]);
        }
        if superseding.more {
            line("more", &[]);
        }
        for (of, by) in asked.iter().filter_map(|(of, by)| Some((of.as_ref()?, by))) {
            line("asked", &[("of", of), ("by", &by.as_str())]);
        }
        if let Some((Broken { by, until, .. }, of)) = broken.as_ref().and_then(|it| Some((it, it.of.as_ref()?))) {
            line("broken", &[("of", of), ("by", &by.as_str()), ("until_ms", until)]);
        }
        if self.has_runs() {
            line("runs", &[("since_us", &or_dash(runs.since.as_ref())), ("kept_until_us", &self.runs_until)]);
        }
        for (token, Begun { granted, waited, fence }) in &runs.begun {
            let fields: [(&str, &dyn Display); 4] =
                [("granted_us", granted), ("waited_ms", waited), ("fence", fence), ("token", &token.as_str())];
            line("begun", &fields);
        }
        let ended = runs.ended.iter().map(|run| ("ended", run)).chain(runs.done.iter().map(|run| ("done", run)));
        for (kind, Run { who, begun, ended, end }) in ended {
            line(
                kind,
                &[
                    ("granted_us", &begun.granted),
                    ("waited_ms", &begun.waited),
                    ("fence", &begun.fence),
                    ("ended_us", &or_dash(ended.as_ref())),
                    ("end", end),
                    ("token", &who.as_str()),
                ],
            );
        }
        text
    }

    /// Parses what `written` returned. `now` is the time by the clock of leases, in ms: a waiter's lease always runs,
    /// since the kernel tells who waits.
    ///
    /// # Errors
    /// If it is not in this format.
    pub fn read(text: &str, now: u64) -> Result<State, Flaw> {
        // A value may end with a carriage return.
        let mut lines = text.split_terminator('\n');
        let first = lines.next().filter(|line| line.starts_with("lock ")).map(Entry::of).ok_or(Flaw::Damaged)?;
        let key = percent_decode_str(first.text("key")?).decode_utf8().map_err(|_| Flaw::Damaged)?;
        let mut state = State { boot: first.optional("boot")?, ..State::new(&key, None) };
        state.lock.fence = first.parsed("fence")?;
        state.lock.generation = first.optional("generation")?;
        for line in lines {
            state.take(line, now)?;
        }
        state.lock.queue.sort_by(|one, other| one.order().cmp(&other.order()));
        Ok(state)
    }

    fn take(&mut self, line: &str, now: u64) -> Result<(), Flaw> {
        let (lock, entry) = (&mut self.lock, Entry::of(line));
        match line.split(' ').next().unwrap_or_default() {
            "holder" => {
                let token: Token = entry.parsed("token")?;
                let holder = Holder {
                    end: entry.optional("until_ms")?,
                    limit: token.limit(),
                    fence: entry.parsed("fence")?,
                    slot: entry.optional("slot")?,
                    since: entry.parsed("since_us")?,
                    reserved: entry.optional("reserved_for")?,
                };
                let binding = Binding {
                    granted: entry.parsed("granted_us")?,
                    life: entry.parsed("life")?,
                    not_before: entry.optional("not_before_us")?,
                    number: entry.optional("number")?,
                };
                self.bindings.insert(token.clone(), binding);
                lock.holders.insert(token, holder);
            }
            "waiter" => lock.queue.push(Waiter {
                ticket: entry.parsed("ticket")?,
                token: entry.parsed("token")?,
                lease: now,
                grace: entry.parsed("grace_ms")?,
                hears: true,
                beside_setnx: false,
            }),
            "newest" => lock.superseding.newest = Some((entry.parsed("ticket")?, entry.parsed("token")?)),
            "dismissed" => lock.superseding.dismissed = Some((entry.parsed("ticket")?, entry.parsed("by")?)),
            "noted" => _ = lock.superseding.noted.insert(entry.parsed("token")?, entry.parsed("by")?),
            "more" => lock.superseding.more = true,
            "asked" => _ = lock.asked.insert(Some(entry.parsed::<HolderId>("of")?), entry.parsed("by")?),
            "broken" => {
                let (of, by) = (Some(entry.parsed::<HolderId>("of")?), entry.parsed("by")?);
                lock.broken = Some(Broken { of, by, until: entry.parsed("until_ms")? });
            }
            "runs" => {
                lock.runs.since = entry.optional("since_us")?;
                self.runs_until = entry.parsed("kept_until_us")?;
            }
            "begun" => _ = lock.runs.begun.insert(entry.parsed("token")?, begun(&entry)?),
            "ended" => lock.runs.ended.push(run(&entry)?),
            "done" => lock.runs.done = Some(run(&entry)?),
            _ => return Err(Flaw::Damaged),
        }
        Ok(())
    }

    /// Forgets the recorded runs once it is time.
    pub fn forget_runs(&mut self, wall_us: u64) {
        if self.runs_until <= wall_us {
            self.lock.runs = Default::default();
        }
    }

    /// Returns whether runs are recorded.
    pub fn has_runs(&self) -> bool {
        self.lock.runs != Default::default()
    }
}

fn begun(entry: &Entry<'_>) -> Result<Begun, Flaw> {
    Ok(Begun {
        granted: entry.parsed("granted_us")?,
        waited: entry.parsed("waited_ms")?,
        fence: entry.parsed("fence")?,
    })
}

fn run(entry: &Entry<'_>) -> Result<Run<Token>, Flaw> {
    let (who, begun, ended) = (entry.parsed("token")?, begun(entry)?, entry.optional("ended_us")?);
    Ok(Run { who, begun, ended, end: entry.parsed::<RunEnd>("end")? })
}

/// Returns a run for people to read.
pub fn readable(run: &Run<Token>) -> Option<lock::Run> {
    Some(lock::Run {
        by: run.who.told()?,
        fence: Some(Fence(run.begun.fence)).filter(|fence| fence.0 > 0),
        waited: Duration::from_millis(run.begun.waited),
        granted: instant(run.begun.granted)?,
        ended: run.ended.and_then(instant),
        end: run.end,
    })
}

/// Returns the time this many microseconds after 1970.
pub fn instant(micros: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}
