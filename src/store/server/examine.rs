//! Whether a Redis server is fit to keep locks: it is met, asked about itself, and a lock is tried.

use std::time::{Duration, SystemTime};

use redis::{Cmd, Value, cmd};

use super::super::examine::{Examination, Examined, Finding, Seen, Trial, finely, scratch_name, try_lock};
use super::super::line::Line;
use super::super::reply::{self, What};
use super::info::{Info, Saving};
use super::rights::{self, Rights};
use super::{Server, Trouble};
use crate::clock::{Moment, wall};
use crate::limit::Limit;
use crate::lock::{LockName, beside};
use crate::say::{Tainted, clean, span};
use crate::store::Kind;

const PINGS: usize = 5;
/// What people notice.
const APART: Duration = Duration::from_secs(1);

/// # Errors
/// If the server is not to be met.
pub fn examine(server: &mut Server, limit: Limit<'_>) -> Result<Examination, Trouble> {
    let met = meet(server, limit)?;
    let what = What { verb: "check the servers", name: None };
    let shards = server.wire.shards(patiently(server)).map_err(|fault| server.unanswered(&what, fault))?;
    let name = scratch_name()?;
    let mut findings = Vec::new();
    let mut masters = Vec::new();
    // Masters have slots, and others have none.
    let mut can_write = true;
    if shards.is_empty() {
        can_write = look_into(server, &mut findings);
    }
    for shard in shards {
        server.wire.turn_to_shard(&shard);
        let mut findings = Vec::new();
        look_into(server, &mut findings);
        masters.push(Examined { url: shard.to_string(), findings });
    }
    findings.insert(findings.len().min(1), met);
    if let Err(trouble) = look_around(server, &name, can_write, &mut findings) {
        findings.push(Finding::of_trouble("answers", &trouble));
    }
    let mut examination = Examination::of(&server.wire, findings);
    examination.servers.extend(masters);
    Ok(examination)
}

/// How long a question takes.
fn meet(server: &mut Server, limit: Limit<'_>) -> Result<Finding, Trouble> {
    let what = What { verb: "check the server", name: None };
    let mut took = Vec::with_capacity(PINGS);
    // The first one connects, and is not counted.
    for nth in 0..=PINGS {
        let asked = Moment::now();
        let limit = if nth == 0 { limit } else { patiently(server) };
        let answer = server.wire.ask(&cmd("PING"), limit).map_err(|fault| server.unanswered(&what, fault))?;
        // Who may not PING has had an answer all the same.
        if let Value::ServerError(_) = answer {
            let trouble = what.misunderstood(&server.wire, reply::unexpected(&answer));
            if !trouble.came.contains("NOPERM") {
                return Err(trouble);
            }
        }
        if nth > 0 {
            took.push(asked.elapsed());
        }
    }
    took.sort();
    let median = took.get(PINGS / 2).copied().unwrap_or_default();
    Ok(Finding::fine("round trip", format!("{}, the median of {PINGS}", finely(median))))
}

/// Its own bound is enough for each question.
fn patiently(server: &Server) -> Limit<'static> {
    Limit::until(Moment::now() + server.wire.timeout)
}

/// What it tells of itself; whether it can be written to. Where it does not tell that, it is taken for a master: a
/// lock that is tried will show it.
fn look_into(server: &mut Server, findings: &mut Vec<Finding>) -> bool {
    match told(server) {
        Ok((info, saving)) => {
            findings.extend([info.version(), info.role(server.min_replicas), info.persistence(&saving), info.memory()]);
            return !info.is_replica();
        }
        Err(Silence::Refusal(why)) => {
            let also =
                if server.wire.is_one_of_several() { ", nor whether it is another server than the others" } else { "" };
            let found = format!("not permitted to look at its role, persistence and memory{also} ({why})");
            findings.push(Finding::warning("server", found, acl(server, &["+info".into(), "+config|get".into()])));
        }
        Err(Silence::Trouble(trouble)) => findings.push(Finding::of_trouble("answers", &trouble)),
    }
    true
}

enum Silence {
    /// In the server's own words.
    Refusal(String),
    Trouble(Trouble),
}

impl From<Trouble> for Silence {
    fn from(trouble: Trouble) -> Silence {
        Silence::Trouble(trouble)
    }
}

fn told(server: &mut Server) -> Result<(Info, Saving), Silence> {
    let answer = tell(server, &cmd("INFO"))?.map_err(Silence::Refusal)?;
    let saving = Saving { save: setting(server, "save")?, appendfsync: setting(server, "appendfsync")? };
    Ok((Info::new(&reply::text(&answer).unwrap_or_default()), saving))
}

/// What it lets us do.
fn look_around(
    server: &mut Server,
    name: &LockName,
    can_write: bool,
    findings: &mut Vec<Finding>,
) -> Result<(), Trouble> {
    findings.extend(clock(server)?);
    let rights = find_out(server, name)?;
    findings.extend(permissions(server, &rights));
    // Where something is missing, what was taken could perhaps not be given back.
    if can_write && rights.vital.is_empty() {
        locks(server, name, &rights, findings);
    }
    Ok(())
}

/// An answer, or the server's words for why there is none.
fn tell(server: &mut Server, question: &Cmd) -> Result<Result<Value, String>, Trouble> {
    let what = What { verb: "check the server", name: None };
    let limit = patiently(server);
    let answer = server.wire.ask(question, limit).map_err(|fault| server.unanswered(&what, fault))?;
    Ok(match &answer {
        Value::ServerError(error) => Err(Tainted::new(error.details().unwrap_or(error.code())).to_string()),
        _ => Ok(answer),
    })
}

/// A setting of the server's, where we may see it.
fn setting(server: &mut Server, name: &str) -> Result<Option<String>, Trouble> {
    let mut get = cmd("CONFIG");
    get.arg("GET").arg(name);
    let answer = tell(server, &get)?.ok();
    let value = answer.and_then(|answer| reply::array(answer).ok()).and_then(|pair| pair.into_iter().nth(1));
    Ok(value.as_ref().and_then(reply::text).map(|value| value.to_string()))
}

/// Its clock beside ours. Of no matter to a lease, which both count from its beginning.
fn clock(server: &mut Server) -> Result<Option<Finding>, Trouble> {
    let before = wall();
    let Ok(answer) = tell(server, &cmd("TIME"))? else { return Ok(None) };
    let after = wall();
    let Some(theirs) = time(&answer) else { return Ok(None) };
    let round_trip = after.duration_since(before).unwrap_or_default();
    let ours = before + round_trip / 2;
    let (apart, way) = match theirs.duration_since(ours) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    Ok(Some(if apart > APART + round_trip / 2 {
        let found = format!(
            "the server's is {} {way} this machine's; leases are not affected, since they are counted from when they \
             are granted, but the times that are shown are the server's",
            span(apart)
        );
        Finding::warning("clock", found, "see what sets the clocks of both (timedatectl, chronyc tracking)")
    } else {
        Finding::fine("clock", format!("within {} of this machine's", span(APART)))
    }))
}

/// Seconds and microseconds.
fn time(answer: &Value) -> Option<SystemTime> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let number = |value| reply::integer(value).and_then(|n| u64::try_from(n).ok());
    let since = Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn find_out(server: &mut Server, name: &LockName) -> Result<Rights, Trouble> {
    let what = What { verb: "check the server", name: None };
    let limit = patiently(server);
    let prefix = server.prefix.clone();
    rights::find_out(&mut server.wire, &prefix, name, limit).map_err(|fault| server.unanswered(&what, fault))
}

/// What is not permitted, and the line that permits it.
fn permissions(server: &Server, rights: &Rights) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !rights.scripts.is_empty() {
        let found = "scripts are not run for us (EVAL): no queue and no fence, every waiter polls";
        findings.push(Finding::warning("scripts", found, acl(server, &rights.scripts)));
    }
    if !rights.vital.is_empty() {
        let found = format!("missing: {}", rights.vital.join(" "));
        let all: Vec<_> = [&rights.vital, &rights.calls, &rights.look].into_iter().flatten().cloned().collect();
        findings.push(Finding::obstacle("permissions", Kind::Refused, found, acl(server, &all)));
    } else if !rights.look.is_empty() {
        let found = format!("missing for `status` and `release --break`: {}", rights.look.join(" "));
        findings.push(Finding::warning("permissions", found, acl(server, &rights.look)));
    } else {
        findings.push(Finding::fine("permissions", "all that every verb asks for"));
    }
    findings
}

fn acl(server: &Server, rules: &[String]) -> String {
    let login = server.wire.route().entry().login.as_ref();
    let user = login.and_then(|login| login.user.as_deref()).unwrap_or("default");
    let mut unique: Vec<&str> = Vec::new();
    for rule in rules {
        if !unique.contains(&rule.as_str()) {
            unique.push(rule);
        }
    }
    format!("ACL SETUSER {} {}", clean(user), clean(&unique.join(" ")))
}

/// The real thing, by the same code as every verb.
fn locks(server: &mut Server, name: &LockName, rights: &Rights, findings: &mut Vec<Finding>) {
    let timeout = server.wire.timeout;
    let mut other = Server::new(server.wire.route().clone(), server.prefix.clone(), timeout, server.min_replicas);
    let limit = || Limit::until(Moment::now() + timeout);
    let seen = Seen {
        look: !rights.look.iter().any(|rule| rule == "+type"),
        heard: |other: &Server| other.line.as_ref().is_some_and(Line::hears),
    };
    let tried = try_lock([&mut *server, &mut other], name, limit, &seen);
    forget(server, name);
    let Trial { fence, queued, heard, handed_over } = match tried {
        Ok(trial) => trial,
        Err(trouble) => return findings.push(Finding::of_trouble("locks", &trouble)),
    };
    let fence = if fence.is_some() { "with a fence" } else { "without a fence" };
    let found = format!("taken {fence}, renewed, handed over in {} and given back", finely(handed_over));
    findings.push(Finding::fine("locks", found));
    if queued && heard {
        findings.push(Finding::fine("waiters", "stand in line, and are called"));
    } else if queued {
        let found = "stand in line, but are not called (SUBSCRIBE, PUBLISH): the first polls";
        let remedy = match rights.calls.as_slice() {
            [] => "see whether something between here and the server keeps messages back".to_owned(),
            rules => acl(server, rules),
        };
        findings.push(Finding::warning("waiters", found, remedy));
    }
}

/// The fence would end by itself, in a day.
fn forget(server: &mut Server, name: &LockName) {
    let mut delete = cmd("DEL");
    delete.arg(beside(&server.prefix.key(name), "fence"));
    let limit = patiently(server);
    let _ = server.wire.ask(&delete, limit);
}
