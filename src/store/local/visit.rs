//! One visit to a lock: its files read under their flock, and the rules by which it changes hands.
//!
//! Whoever visits may be killed at any instruction, and whatever was written until then must make
//! sense. So the record is written first, and the line is put in order after it: who has the lock and
//! still stands in line loses nothing and gains nothing by it.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::fault::{Fault, Flaw, shown};
use super::flock::Locked;
use super::line::Line;
use super::place::{Part, Place};
use super::process::{Presence, Sight};
use super::record::{Claim, Life, RECORD, Record, Waiter};
use super::stand::{Front, Stand};
use super::ticket;
use crate::clock::{Boot, Moment, wall};
use crate::lock::{Fence, Token};
use crate::store::{Kind, Manner};

/// What there is to be known of this machine: its boot, and the processes that we see.
pub struct Machine {
    pub boot: Boot,
    sight: OnceCell<Sight>,
}

impl Machine {
    pub fn new(boot: Boot) -> Machine {
        Machine { boot, sight: OnceCell::new() }
    }

    /// Found out when it is needed, which is seldom.
    pub fn sight(&self) -> &Sight {
        self.sight.get_or_init(|| Sight::new(&self.boot))
    }
}

/// A claim that lives with this process and those that it forks: the record's file, opened for this alone, with the
/// byte of the fence locked.
pub struct Held {
    file: File,
    fence: u64,
}

impl Held {
    /// The descriptor by which it is locked.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Ends it for all processes that have it open.
    pub fn let_go(self) {
        ticket::give_back(&self.file, self.fence);
    }
}

/// How long a lock is put aside for the next.
const GRACE: Duration = Duration::from_secs(1);

pub struct Visit<'a> {
    machine: &'a Machine,
    place: &'a Place,
    path: PathBuf,
    file: Locked,
    pub(super) record: Record,
    pub(super) line: Line,
    /// Microseconds after boot.
    pub(super) now: u64,
    /// The end of the process that the claim is kept for, if nobody keeps it any more.
    awaited: Option<OwnedFd>,
}

/// A question for the lock.
pub struct Ask<'a> {
    pub token: &'a Token,
    pub ttl: Duration,
    pub manner: Manner,
    pub life: Life,
    /// What the asker holds already.
    pub held: &'a mut Option<Held>,
    /// Where the asker stands in line, if it does.
    pub stand: &'a mut Option<Stand>,
}

impl<'a> Visit<'a> {
    /// Reads what stands in a record that the caller has locked, and in its line. It is unlocked when
    /// this is dropped.
    pub fn begin(machine: &'a Machine, place: &'a Place, key: &str, file: Arc<File>) -> Result<Visit<'a>, Fault> {
        let path = place.file(key, Part::Record);
        let locked = Locked(file);
        let record = record(&locked.0, &path)?.map_err(|flaw| Fault::flawed(&path, flaw))?;
        if record.key != key {
            let came = format!("{} is the record of another lock", shown(&path));
            return Err(Fault::new(Kind::Misconfigured, came, "use another NAME"));
        }
        let line = Line::read(place, place.file(key, Part::Line))?;
        let now = machine.boot.micros(Moment::now());
        Ok(Visit { machine, place, path, file: locked, record, line, now, awaited: None })
    }

    /// Asks for the lock: the fence, if it is ours now.
    pub fn acquire(&mut self, ask: &mut Ask<'_>) -> Result<Option<Fence>, Fault> {
        self.forget_the_dead()?;
        if self.held_with(ask.token) {
            return self.claim(ask).map(Some);
        }
        self.pass_over()?;
        let mut first = self.first()?;
        // Whoever finds it free with nobody waiting needs no place, and a full disk has none.
        if ask.manner == Manner::Queue && (first.is_some() || !self.is_free()?) {
            self.stand_in_line(ask)?;
            first = self.first()?;
        }
        let ours = first.as_ref().is_none_or(|first| first.token == *ask.token);
        self.settle()?;
        match first {
            _ if self.record.claim.is_some() => {}
            Some(first) if !ours && ask.manner != Manner::Plain => self.reserve(&first)?,
            _ => return self.grant(ask).map(Some),
        }
        match ask.stand {
            Some(stand) if ask.manner == Manner::Queue => self.listen(stand).map(|()| None),
            _ => Ok(None),
        }
    }

    /// Puts the end of the claim `ttl` from now; whether it was ours. Unbound, it no longer ends with
    /// its process.
    pub fn renew(&mut self, token: &Token, ttl: Duration, unbound: bool) -> Result<bool, Fault> {
        if !self.held_with(token) {
            self.settle()?;
            return Ok(false);
        }
        let until = self.in_future(ttl);
        if let Some(claim) = &mut self.record.claim {
            claim.until = until;
            if unbound {
                claim.life = Life::Lease;
            }
        }
        self.write().map(|()| true)
    }

    /// Ends a claim, or a wait; whether the lock was ours. It goes to the next in line.
    pub fn release(&mut self, token: &Token) -> Result<bool, Fault> {
        self.pass_over()?;
        self.line.remove(token)?;
        let ours = self.held_with(token);
        if ours {
            self.record.claim = None;
        } else {
            self.settle()?;
        }
        match self.first()? {
            Some(first) if self.record.claim.is_none() => self.reserve(&first)?,
            _ if ours => self.write()?,
            _ => {}
        }
        Ok(ours)
    }

    /// The token of whoever has it.
    pub fn holder(&self) -> Option<&Token> {
        self.record.claim.as_ref().map(|claim| &claim.token)
    }

    fn is_of_another_boot(&self) -> bool {
        self.machine.boot.is_other_than(self.record.boot.as_deref())
    }

    /// In a record of another boot, and in one whose boot is not known, tickets may be those of a clock that has begun
    /// anew since: of them only those are left whose waiters live.
    fn forget_the_dead(&mut self) -> Result<(), Fault> {
        if self.record.boot.as_deref() == self.machine.boot.id() && self.record.boot.is_some() {
            return Ok(());
        }
        let waiters: Vec<Waiter> = self.line.waiters().cloned().collect();
        for waiter in waiters {
            if !self.line.lives(waiter.ticket)? {
                self.line.remove(&waiter.token)?;
            }
        }
        Ok(())
    }

    fn held_with(&self, token: &Token) -> bool {
        let claim = self.record.claim.as_ref().filter(|claim| claim.token == *token && claim.until > self.now);
        claim.is_some() && !self.is_of_another_boot()
    }

    fn is_free(&mut self) -> Result<bool, Fault> {
        self.settle()?;
        Ok(self.record.claim.is_none())
    }

    /// Sees who still has it: not a holder whose lease is over, nor one that the kernel knows to be gone.
    pub(super) fn settle(&mut self) -> Result<(), Fault> {
        let Some(claim) = &self.record.claim else { return Ok(()) };
        let is_over = match (claim.reserved, claim.life) {
            _ if claim.until <= self.now => true,
            (Some(ticket), _) => !self.line.lives(ticket)?,
            // Granted later than now, it was granted by the clock of another boot.
            (None, Life::Lease) => self.is_of_another_boot() || claim.granted > self.now,
            (None, _) if self.is_held_open()? => false,
            (None, Life::Holder) => true,
            (None, Life::HolderAnd(_)) if self.is_of_another_boot() => true,
            (None, Life::HolderAnd(process)) => match self.machine.sight().presence(&process) {
                Presence::Runs(end) => {
                    self.awaited = Some(end);
                    false
                }
                Presence::Ended => true,
                Presence::Unseen => claim.granted > self.now,
            },
        };
        if is_over {
            self.record.claim = None;
        }
        Ok(())
    }

    /// Whether a process has the claim open that it was granted to, or one that this has forked.
    fn is_held_open(&self) -> Result<bool, Fault> {
        ticket::is_taken(&self.file.0, self.record.fence).map_err(|error| Fault::unlockable(&self.path, &error))
    }

    /// Who did not come for what was put aside for it stands in nobody's way any more.
    fn pass_over(&mut self) -> Result<(), Fault> {
        match self.record.claim.take_if(|claim| claim.reserved.is_some() && claim.until <= self.now) {
            Some(late) => self.line.remove(&late.token),
            None => Ok(()),
        }
    }

    /// The first in line that lives; the dead before it are dropped.
    fn first(&mut self) -> Result<Option<Waiter>, Fault> {
        while let Some(first) = self.line.first().cloned() {
            if self.may_be_next(&first)? {
                return Ok(Some(first));
            }
            self.line.remove(&first.token)?;
        }
        Ok(None)
    }

    /// The lock's owner may stand in line still: until it comes for it, or killed between two writes.
    pub(super) fn may_be_next(&self, waiter: &Waiter) -> Result<bool, Fault> {
        Ok(self.holder() != Some(&waiter.token) && self.line.lives(waiter.ticket)?)
    }

    fn stand_in_line(&mut self, ask: &mut Ask<'_>) -> Result<(), Fault> {
        let broken = |error| Fault::of(&self.path, &error);
        let file = self.line.file(self.place)?;
        let stands = ask.stand.as_ref().map_or(Ok(false), |stand| stand.is_in(file)).map_err(broken)?;
        if !stands {
            let ticket = self.line.next_ticket(self.now);
            let stand = Stand::take(self.line.opened_anew(self.place)?, ticket);
            *ask.stand = Some(stand.map_err(|error| Fault::unlockable(&self.path, &error))?);
        }
        // One that was passed over, since it did not come when it was called, has its old place again.
        match ask.stand {
            Some(stand) if self.line.find(ask.token).is_none() => {
                let waiter = Waiter { ticket: stand.ticket(), token: ask.token.clone() };
                self.line.put(self.place, waiter)
            }
            _ => Ok(()),
        }
    }

    /// Settles what a waiter listens to: the one ahead, and at the front the lock.
    fn listen(&mut self, stand: &mut Stand) -> Result<(), Fault> {
        let mut ahead = None;
        while let Some(waiter) = self.line.ahead_of(stand.ticket()).cloned() {
            if self.may_be_next(&waiter)? {
                ahead = Some(waiter.ticket);
                break;
            }
            self.line.remove(&waiter.token)?;
        }
        let claim = self.record.claim.as_ref();
        let until = self.machine.boot.moment(claim.map_or(self.now, |claim| claim.until));
        let front = match ahead {
            Some(_) => None,
            None => Some(Front {
                record: &self.file.0,
                holder: match claim {
                    Some(Claim { reserved: None, life: Life::Holder | Life::HolderAnd(_), .. }) => {
                        Some((self.opened_anew()?, self.record.fence))
                    }
                    _ => None,
                },
                process: self.awaited.take(),
                until,
            }),
        };
        // Ahead of the first is only who has yet to come for the lock.
        let ahead = ahead.or(claim.and_then(|claim| claim.reserved));
        let position = self.position(stand.ticket());
        stand.listen(position, ahead, front).map_err(|error| Fault::of(&self.path, &error))
    }

    fn grant(&mut self, ask: &mut Ask<'_>) -> Result<Fence, Fault> {
        let until = self.in_future(ask.ttl);
        let fence = self.next_fence();
        self.hold_open(ask, fence)?;
        self.change_hands(
            fence,
            Claim {
                token: ask.token.clone(),
                granted: self.now,
                until,
                since: millis_of_wall(),
                reserved: None,
                life: ask.life,
            },
        )?;
        self.line.remove(ask.token)?;
        Ok(Fence(fence))
    }

    /// Before it is written that this claim lives with its holder, it does.
    fn hold_open(&self, ask: &mut Ask<'_>, fence: u64) -> Result<(), Fault> {
        let is_held = ask.held.as_ref().is_some_and(|held| held.fence == fence);
        if is_held || ask.life == Life::Lease {
            return Ok(());
        }
        let file = self.opened_anew()?;
        ticket::take(&file, fence).map_err(|error| Fault::unlockable(&self.path, &error))?;
        *ask.held = Some(Held { file, fence });
        Ok(())
    }

    /// The record's file, opened once more: what is locked by it is locked apart from the record.
    fn opened_anew(&self) -> Result<File, Fault> {
        let gone = || Fault::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        self.place.open_file(&self.path)?.ok_or_else(gone)
    }

    /// For a waiter, until it comes for it or its grace is over: nobody can get between. It wakes as
    /// soon as this is written, and leaves the line itself, so nothing is left to do here that it would
    /// have to wait for.
    fn reserve(&mut self, waiter: &Waiter) -> Result<(), Fault> {
        let until = self.in_future(GRACE);
        self.change_hands(
            self.next_fence(),
            Claim {
                token: waiter.token.clone(),
                granted: self.now,
                until,
                since: millis_of_wall(),
                reserved: Some(waiter.ticket),
                life: Life::Lease,
            },
        )
    }

    /// Already ours, or put aside for us.
    fn claim(&mut self, ask: &mut Ask<'_>) -> Result<Fence, Fault> {
        self.hold_open(ask, self.record.fence)?;
        let (now, until) = (self.now, self.in_future(ask.ttl));
        if let Some(claim) = &mut self.record.claim {
            if claim.reserved.take().is_some() {
                (claim.granted, claim.since) = (now, millis_of_wall());
            }
            (claim.until, claim.life) = (until, ask.life);
        }
        self.write()?;
        self.line.remove(ask.token)?;
        Ok(Fence(self.record.fence))
    }

    /// The fence rises with every change of owner; the wall clock is its floor, in case its record is lost.
    fn next_fence(&self) -> u64 {
        let floor = wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        self.record.fence.saturating_add(1).max(u64::try_from(floor).unwrap_or(0))
    }

    fn change_hands(&mut self, fence: u64, claim: Claim) -> Result<(), Fault> {
        self.record.fence = fence;
        self.record.boot = self.machine.boot.id().map(str::to_owned);
        self.record.claim = Some(claim);
        self.write()
    }

    fn in_future(&self, after: Duration) -> u64 {
        self.now.saturating_add(u64::try_from(after.as_micros()).unwrap_or(u64::MAX))
    }

    fn write(&self) -> Result<(), Fault> {
        self.file.0.write_all_at(&written(&self.record)?, 0).map_err(|error| Fault::of(&self.path, &error))
    }
}

fn millis_of_wall() -> u64 {
    let since = wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What is to stand in a record.
pub fn written(record: &Record) -> Result<Vec<u8>, Fault> {
    let too_long = || Fault::new(Kind::Usage, "the prefix is too long for a file", "use a shorter --prefix");
    record.written().ok_or_else(too_long)
}

/// What stands in a record that the caller has locked.
pub fn record(file: &File, path: &Path) -> Result<Result<Record, Flaw>, Fault> {
    // No file is read whole that is not ours: a byte more than a record has tells.
    let mut bytes = [0; RECORD + 1];
    let length = file.read_at(&mut bytes, 0).map_err(|error| Fault::of(path, &error))?;
    Ok(Record::read(&bytes[..length]))
}
