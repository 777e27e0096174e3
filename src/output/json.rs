//! Reports for programs: one document with stable names, durations as `*_ms`, instants as RFC 3339.
//!
//! A struct or a variant is a schema: its fields are those of the document, sorted by name.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::duration::millis;
use crate::error::{Error, ErrorKind};
use crate::lock::{
    self, Expiry, HolderId, LockName, LockState, Lost, Owner, Sharing, Slot, SlotCount, StateKind, Supersedes, Token,
    Told, words,
};
use crate::log;
use crate::report::alarm::{self, Alarm, Measure};
use crate::report::{self, Answer, Ending, Named, Origin, Ran, Refusal, Report, Wanted};
use crate::store::{self, Verdict};
use crate::text::{self, Tainted, instant};

/// A document about a lock.
#[derive(Serialize)]
struct Outcome<'a> {
    outcome: &'static str,
    #[serde(flatten)]
    lock: Name<'a>,
    #[serde(flatten)]
    more: More<'a>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
    key: &'a str,
}

/// The fields beside the outcome and the lock.
#[derive(Serialize)]
#[serde(untagged)]
enum More<'a> {
    Acquired(Acquired<'a>),
    Busy(Box<Busy<'a>>),
    Renewed { ttl_ms: u64 },
    Released { broken: bool },
    Asked { holder: Holder<'a>, waited_ms: u64 },
    NotYours(NotYours<'a>),
    Ended(Ended<'a>),
    NotRun { command: Cow<'a, str>, message: String },
}

#[derive(Serialize)]
struct Acquired<'a> {
    token: &'a str,
    fence: Option<u64>,
    ttl_ms: u64,
    keeper: Option<i32>,
    #[serde(flatten)]
    shared: Shared,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<AlsoAcquired<'a>>,
}

#[derive(Serialize)]
struct AlsoAcquired<'a> {
    #[serde(flatten)]
    lock: Name<'a>,
    token: &'a str,
    fence: Option<u64>,
}

#[derive(Serialize)]
struct Busy<'a> {
    #[serde(flatten)]
    state: State<'a>,
    queue_length: usize,
    waited_ms: u64,
    nested: bool,
    superseded_by: Option<Claimant<'a>>,
    done: Option<Run<'a>>,
    #[serde(flatten)]
    undecided: Option<Reason<'a>>,
}

#[derive(Serialize)]
struct NotYours<'a> {
    #[serde(flatten)]
    state: State<'a>,
    wanted: &'static str,
}

#[derive(Serialize)]
struct Ended<'a> {
    #[serde(flatten)]
    end: End,
    time_limit: bool,
    lost: Option<Loss<'a>>,
    asked_by: Option<Claimant<'a>>,
    unreleased: Option<Unreleased>,
}

/// The document of a failure, which may be about no lock.
#[derive(Serialize)]
struct Failed<'a> {
    outcome: &'static str,
    #[serde(flatten)]
    reason: Reason<'a>,
}

#[derive(Serialize)]
struct Reason<'a> {
    message: String,
    remedy: &'a str,
}

/// One of the locks of a claim.
#[derive(Serialize)]
pub struct Also<'a> {
    pub name: &'a str,
    pub key: &'a str,
    pub id: Option<&'a str>,
    pub fence: Option<u64>,
}

/// How a grant is shared.
#[derive(Serialize)]
pub struct Shared {
    pub shared: bool,
    pub slot: Option<u16>,
    pub slots: Option<u16>,
}

/// The process of a claim or a request.
#[derive(Serialize)]
pub struct Claimant<'a> {
    id: &'a str,
    host: &'a str,
    user: &'a str,
    pid: u32,
    #[serde(rename = "as")]
    known_as: Option<&'a str>,
    reason: Option<&'a str>,
}

#[derive(Serialize)]
pub struct Holder<'a> {
    #[serde(flatten)]
    by: Claimant<'a>,
    since: String,
    held_ms: u64,
    may_be_asked: bool,
}

/// One of the holders.
#[derive(Serialize)]
struct Share<'a> {
    #[serde(flatten)]
    holder: Holder<'a>,
    ttl_ms: Option<u64>,
    fence: Option<u64>,
    slot: Option<u16>,
    slots: Option<u16>,
    claimed: bool,
}

#[derive(Serialize)]
struct State<'a> {
    state: &'static str,
    holder: Option<Holder<'a>>,
    /// None if they are not known.
    holders: Option<Vec<Share<'a>>>,
    taken: Option<usize>,
    slots: Option<u16>,
    ttl_ms: Option<u64>,
    fence: Option<u64>,
}

/// A lock in the array of `status`.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    lock: Name<'a>,
    #[serde(flatten)]
    state: State<'a>,
    queue: Vec<Waiter<'a>>,
    legacy: Option<Legacy>,
    last_success: Option<Run<'a>>,
    last_failure: Option<Run<'a>>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Waiter<'a> {
    position: usize,
    #[serde(flatten)]
    by: Claimant<'a>,
    waiting_ms: u64,
    shared: bool,
    slots: Option<u16>,
    supersedes: bool,
    first: bool,
}

#[derive(Serialize)]
struct Legacy {
    valid_until: String,
    stale: bool,
}

/// A lock in the array of `status --history`.
#[derive(Serialize)]
struct History<'a> {
    #[serde(flatten)]
    lock: Name<'a>,
    running: Vec<RunUnderWay<'a>>,
    history: Vec<Run<'a>>,
    last_success: Option<Run<'a>>,
    last_failure: Option<Run<'a>>,
    warnings: Vec<&'static str>,
}

/// A recorded run that has not ended.
#[derive(Serialize)]
struct RunUnderWay<'a> {
    #[serde(flatten)]
    by: Claimant<'a>,
    fence: Option<u64>,
    asked: String,
    granted: String,
    waited_ms: u64,
    held_ms: u64,
}

/// A recorded run.
#[derive(Serialize)]
pub struct Run<'a> {
    #[serde(flatten)]
    by: Claimant<'a>,
    fence: Option<u64>,
    asked: String,
    granted: String,
    ended: Option<String>,
    waited_ms: u64,
    held_ms: Option<u64>,
    outcome: &'static str,
    #[serde(flatten)]
    end: End,
}

/// The document of an alarm.
#[derive(Serialize)]
struct Judged<'a> {
    outcome: &'static str,
    message: String,
    checks: Vec<Check<'a>>,
}

/// One lock, judged by one limit.
#[derive(Serialize)]
struct Check<'a> {
    #[serde(flatten)]
    lock: Name<'a>,
    outcome: &'static str,
    message: &'a str,
    #[serde(flatten)]
    measure: Measured,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Measured {
    Age { age_ms: Option<u64>, max_age_ms: u64 },
    Held { held_ms: Option<u64>, max_held_ms: u64 },
    Waiting { waiting: Option<usize>, max_waiting: usize },
}

/// How a command ended: one of the two.
#[derive(Serialize)]
pub struct End {
    pub status: Option<u8>,
    pub signal: Option<i32>,
}

#[derive(Serialize)]
pub struct Loss<'a> {
    pub how: &'static str,
    pub message: String,
    /// Who broke the lock.
    pub by: Option<Claimant<'a>>,
    /// Of several locks, the one that was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
}

#[derive(Serialize)]
struct Unreleased {
    message: String,
    ends_in_ms: u64,
}

/// The document of `check`.
#[derive(Serialize)]
struct Checked<'a> {
    outcome: &'static str,
    settings: Vec<Setting<'a>>,
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
struct Setting<'a> {
    name: &'a str,
    value: Option<&'a str>,
    origin: &'static str,
    variable: Option<&'a str>,
    file: Option<String>,
    line: Option<usize>,
}

#[derive(Serialize)]
struct Server<'a> {
    url: Option<&'a str>,
    findings: Vec<Finding<'a>>,
}

#[derive(Serialize)]
struct Finding<'a> {
    topic: &'static str,
    found: &'a str,
    verdict: &'static str,
    remedy: Option<&'a str>,
}

/// Returns the document for stdout; none for `run`, whose stdout belongs to its command.
pub fn stdout(report: &Report) -> Option<String> {
    Some(text(report)? + "\n").filter(|_| !log::is_run())
}

/// Returns the document as text.
pub fn text(report: &Report) -> Option<String> {
    match report {
        // Row by row: one value of all rows would take several times the memory.
        Report::Status(status) => {
            let rows = status.rows.iter().map(|one| text::escaped(&value(row(one, &status.doubts))));
            Some(format!("[{}]", rows.collect::<Vec<_>>().join(",")))
        }
        report => Some(text::escaped(&document(report)?)),
    }
}

pub fn stderr(report: &Report) -> Option<Value> {
    document(report).filter(|_| log::is_run())
}

pub fn document(report: &Report) -> Option<Value> {
    let (outcome, lock, more) = match report {
        Report::Acquired(acquired) => {
            let report::Acquired { token, keeper, fence, slot, ttl, .. } = acquired;
            let (token, fence, ttl_ms, keeper) = (token.as_str(), fence.map(|it| it.0), ttl.millis(), *keeper);
            let shared = shared(&acquired.token, *slot);
            let also = acquired.also.iter().map(also_acquired).collect();
            ("acquired", &acquired.lock, More::Acquired(Acquired { token, fence, ttl_ms, keeper, shared, also }))
        }
        Report::Busy(busy) => {
            let refused = &busy.refused;
            let word = match &refused.why {
                Refusal::Held | Refusal::Nested => "held",
                Refusal::Undecided(error) => kind(error),
                Refusal::Superseded(_) => "superseded",
                Refusal::Done(_) => "already_done",
            };
            let more = Box::new(Busy {
                state: state(&refused.state),
                queue_length: refused.place.length - usize::from(refused.place.position > 0),
                waited_ms: millis(refused.waited),
                nested: matches!(refused.why, Refusal::Nested),
                superseded_by: refused.superseded_by().map(claimant),
                done: refused.done().map(run),
                undecided: refused.undecided().map(reason),
            });
            (word, &busy.lock, More::Busy(more))
        }
        Report::Renewed(renewed) => ("renewed", &renewed.lock, More::Renewed { ttl_ms: renewed.ttl.millis() }),
        Report::Released(released) => ("released", &released.lock, More::Released { broken: released.broken }),
        Report::Asked(asked) => {
            let word = match asked.answer {
                Answer::Asked => "asked",
                Answer::NoLongerHolds => "no_longer_held",
                Answer::StillHeld => "still_held",
                Answer::Refuses => "refuses",
            };
            (word, &asked.lock, More::Asked { holder: holder(&asked.holder), waited_ms: millis(asked.waited) })
        }
        Report::NotYours(not_yours) => {
            let wanted = match not_yours.wanted {
                Wanted::Renew => "renew",
                Wanted::Release => "release",
                Wanted::Break => "break",
                Wanted::Ask => "ask",
                Wanted::Hold => "hold",
            };
            ("not_yours", &not_yours.lock, More::NotYours(NotYours { state: state(&not_yours.state), wanted }))
        }
        Report::Ran(ran) => ("ended", &ran.lock, More::Ended(ended(ran))),
        Report::NotRun(not_run) => {
            let (command, message) = (not_run.command.to_string_lossy(), text::plain(&not_run.error));
            ("not_run", &not_run.lock, More::NotRun { command, message })
        }
        Report::Histories(histories) => return Some(value(histories.iter().map(history).collect::<Vec<_>>())),
        Report::Checked(checked) => return Some(value(check(checked))),
        Report::Failed(error) => return Some(value(Failed { outcome: kind(error), reason: reason(error) })),
        Report::Alarm(alarm) => return Some(value(judged(alarm))),
        Report::Status(_) | Report::Metrics(..) | Report::Watched | Report::Interrupted(_) | Report::Said(_) => {
            return None;
        }
    };
    Some(value(Outcome { outcome, lock: name(lock), more }))
}

/// Serializes a document: strings, numbers and names of fields, none of which can fail.
pub fn value(document: impl Serialize) -> Value {
    serde_json::to_value(document).unwrap_or_default()
}

fn name(lock: &Named) -> Name<'_> {
    Name { name: lock.name.as_str(), key: &lock.key }
}

fn also_acquired(also: &report::Also) -> AlsoAcquired<'_> {
    AlsoAcquired { lock: name(&also.lock), token: also.token.as_str(), fence: also.fence.map(|it| it.0) }
}

pub fn shared(token: &Token, slot: Option<Slot>) -> Shared {
    let shared = token.sharing() == Sharing::Shared;
    Shared { shared, slot: slot.map(|slot| slot.number), slots: slot.map(|slot| slot.of.get()) }
}

pub fn claimant(by: &Told) -> Claimant<'_> {
    process(&by.id, &by.owner, by.reason.as_ref())
}

fn process<'a>(id: &'a HolderId, owner: &'a Owner, reason: Option<&'a Tainted>) -> Claimant<'a> {
    let (host, user, known_as) = (owner.host.raw(), owner.user.raw(), owner.known_as.as_deref().map(Tainted::raw));
    Claimant { id: id.as_str(), host, user, pid: owner.pid, known_as, reason: reason.map(Tainted::raw) }
}

pub fn run(run: &lock::Run) -> Run<'_> {
    Run {
        by: claimant(&run.by),
        fence: run.fence.map(|fence| fence.0),
        asked: instant(run.asked()),
        granted: instant(run.granted),
        ended: run.ended.map(instant),
        waited_ms: millis(run.waited),
        held_ms: run.held().map(millis),
        outcome: run.end.outcome.name(),
        end: End { status: run.end.status, signal: run.end.signal },
    }
}

fn history(history: &report::History) -> History<'_> {
    let recorded = &history.recorded;
    History {
        lock: name(&history.lock),
        running: recorded.under_way.iter().map(|run| run_under_way(run, recorded)).collect(),
        history: recorded.over.iter().map(run).collect(),
        last_success: recorded.last_success.as_ref().map(run),
        last_failure: recorded.last_failure.as_ref().map(run),
        warnings: history.warning().into_iter().collect(),
    }
}

fn run_under_way<'a>(run: &'a lock::RunUnderWay, recorded: &lock::Recorded) -> RunUnderWay<'a> {
    RunUnderWay {
        by: claimant(&run.by),
        fence: run.fence.map(|fence| fence.0),
        asked: instant(run.granted.checked_sub(run.waited).unwrap_or(run.granted)),
        granted: instant(run.granted),
        waited_ms: millis(run.waited),
        held_ms: millis(recorded.age(run.granted)),
    }
}

fn state(state: &LockState) -> State<'_> {
    let (holders, taken, slots) = match (&state.shares, &state.holder) {
        (Some(shares), _) => {
            let are_known = !shares.held.is_empty() || shares.taken == 0;
            let holders = are_known.then(|| shares.held.iter().map(share).collect());
            (holders, Some(shares.taken), shares.slots.map(SlotCount::get))
        }
        (None, Some(by)) if matches!(state.kind, StateKind::Held | StateKind::Reserved) => {
            let sole = Share {
                holder: holder(by),
                ttl_ms: ttl(state.expiry),
                fence: state.fence.map(|fence| fence.0),
                slot: None,
                slots: Some(1),
                claimed: state.kind == StateKind::Held,
            };
            (Some(vec![sole]), Some(1), Some(1))
        }
        (None, _) if state.kind == StateKind::Free => (Some(Vec::new()), Some(0), None),
        (None, _) => (None, None, None),
    };
    State {
        state: words::state_name(&state.kind),
        holder: state.holder.as_ref().map(holder),
        holders,
        taken,
        slots,
        ttl_ms: ttl(state.expiry),
        fence: state.fence.map(|fence| fence.0),
    }
}

pub fn holder(holder: &lock::Holder) -> Holder<'_> {
    Holder {
        by: process(&holder.id, &holder.owner, holder.reason.as_ref()),
        since: instant(holder.since),
        held_ms: millis(holder.held),
        may_be_asked: holder.may_be_asked(),
    }
}

fn share(share: &lock::Share) -> Share<'_> {
    Share {
        holder: holder(&share.holder),
        ttl_ms: ttl(share.expiry),
        fence: share.fence.map(|fence| fence.0),
        slot: share.slot,
        slots: share.sharing().slots().map(SlotCount::get),
        claimed: share.is_claimed,
    }
}

fn waiter(waiter: &store::Waiter) -> Waiter<'_> {
    Waiter {
        position: waiter.position,
        by: process(&waiter.id, &waiter.owner, waiter.reason.as_ref()),
        waiting_ms: millis(waiter.waiting),
        shared: waiter.terms.sharing == Sharing::Shared,
        slots: waiter.terms.sharing.slots().map(SlotCount::get),
        supersedes: waiter.terms.supersedes != Supersedes::Nobody,
        first: waiter.terms.goes_first,
    }
}

fn row<'a>(row: &'a report::Row, doubts: &[String]) -> Row<'a> {
    let (seen, recorded) = (&row.status.state, row.status.recorded.as_ref());
    Row {
        lock: name(&row.lock),
        state: state(seen),
        queue: row.status.queue.iter().map(waiter).collect(),
        legacy: seen.legacy.map(|it| Legacy { valid_until: instant(it.valid_until), stale: it.stale }),
        last_success: recorded.and_then(|recorded| recorded.last_success.as_ref()).map(run),
        last_failure: recorded.and_then(|recorded| recorded.last_failure.as_ref()).map(run),
        warnings: seen.warning().into_iter().chain(doubts.iter().cloned()).collect(),
    }
}

fn judged(alarm: &Alarm) -> Judged<'_> {
    let word = |verdict| match verdict {
        alarm::Verdict::Fine => "ok",
        alarm::Verdict::Unknown => "unknown",
        alarm::Verdict::Critical => "critical",
    };
    let checks = alarm.checks.iter().map(|check| {
        let measure = match check.measure {
            Measure::Age(age, most) => Measured::Age { age_ms: age.map(millis), max_age_ms: millis(most) },
            Measure::Held(held, most) => Measured::Held { held_ms: held.map(millis), max_held_ms: millis(most) },
            Measure::Waiting(waiting, max_waiting) => Measured::Waiting { waiting, max_waiting },
        };
        Check { lock: name(&check.lock), outcome: word(check.verdict), message: &check.says, measure }
    });
    Judged { outcome: word(alarm.verdict()), message: super::alarm::summary(alarm), checks: checks.collect() }
}

fn check(checked: &report::Checked) -> Checked<'_> {
    let outcome = match (checked.obstacle(), checked.warnings()) {
        (Some(_), _) => "unfit",
        (None, 0) => "fit",
        (None, _) => "fit_with_warnings",
    };
    let (settings, servers) = (checked.settings.iter().map(setting), checked.servers.iter().map(server));
    Checked { outcome, settings: settings.collect(), servers: servers.collect() }
}

fn setting(setting: &report::Setting) -> Setting<'_> {
    let (origin, variable, place) = match &setting.origin {
        Origin::Flag => ("flag", None, None),
        Origin::Environment(variable) => ("environment", Some(variable.as_str()), None),
        Origin::File(place) => ("file", None, Some(place)),
        Origin::Default => ("default", None, None),
    };
    Setting {
        name: &setting.name,
        value: setting.value.as_deref(),
        origin,
        variable,
        file: place.map(|place| text::path(&place.path)),
        line: place.map(|place| place.line),
    }
}

fn server(server: &report::CheckedServer) -> Server<'_> {
    Server { url: server.url.as_deref(), findings: server.findings.iter().map(finding).collect() }
}

fn finding(finding: &store::Finding) -> Finding<'_> {
    let (verdict, remedy) = match &finding.verdict {
        Verdict::Fine => ("fine", None),
        Verdict::Warning(remedy) => ("warning", Some(remedy.as_str())),
        Verdict::Obstacle(_, remedy) => ("obstacle", Some(remedy.as_str())),
    };
    Finding { topic: finding.topic, found: &finding.found, verdict, remedy }
}

fn ended(ran: &Ran) -> Ended<'_> {
    let unreleased =
        |it: &report::Unreleased| Unreleased { message: it.error.to_string(), ends_in_ms: millis(it.ends_in) };
    Ended {
        end: command_end(&ran.ending),
        time_limit: ran.time_limit,
        lost: ran.lost.as_ref().map(loss),
        asked_by: ran.asked_by.as_deref().map(claimant),
        unreleased: ran.unreleased.as_ref().map(unreleased),
    }
}

pub fn command_end(ending: &Ending) -> End {
    match *ending {
        Ending::Status(status) => End { status: Some(status), signal: None },
        Ending::Killed { signal, .. } => End { status: None, signal: Some(signal) },
    }
}

pub fn loss(lost: &Lost) -> Loss<'_> {
    let by = if let Lost::Taken(state) = lost { state.broken_by.as_deref() } else { None };
    let how = match lost {
        _ if by.is_some() => "broken",
        Lost::Taken(state) if state.kind == StateKind::Free => "expired",
        Lost::Taken(_) => "taken",
        Lost::Unconfirmed(_) => "unconfirmed",
    };
    Loss { how, message: lost.to_string(), by: by.map(claimant), name: lost.name().map(LockName::as_str) }
}

fn reason(error: &Error) -> Reason<'_> {
    Reason { message: error.to_string(), remedy: &error.hint }
}

pub fn kind(error: &Error) -> &'static str {
    match error.kind {
        ErrorKind::Unreachable | ErrorKind::Unanswered | ErrorKind::Unavailable | ErrorKind::Untrusted => "unreachable",
        ErrorKind::Refused => "refused",
        ErrorKind::Misconfigured | ErrorKind::WrongType | ErrorKind::Damaged => "misconfigured",
        ErrorKind::Usage => "usage",
        ErrorKind::Internal => "broken",
    }
}

fn ttl(expiry: Expiry) -> Option<u64> {
    expiry.left().map(millis)
}
