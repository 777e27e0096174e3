//! Checks whether a Redis server is fit to keep locks: connects, reads its own information, and tries a lock.

use std::time::{Duration, SystemTime};

use redis::{Cmd, Value, cmd};

use super::Server;
use super::acl::{self, Rights};
use super::client::Client;
use super::info::{Info, Saving};
use super::pushes::Wanted;
use super::reply::{self, Operation, Peer, Unexpected};
use crate::clock::{Moment, wall};
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::lock::{LockName, companion_key};
use crate::store::probe::{Finding, Probed, ProbedServer, Trial, finely, scratch_name, try_lock};
use crate::text::clean;
use crate::wait::Limit;

const PINGS: usize = 5;
const CHECK: Operation<'_> = Operation { verb: "check the server", name: None };
/// A clock difference that people notice.
const APART: Duration = Duration::from_secs(1);

/// # Errors
/// If the server cannot be reached.
pub fn probe(server: &mut Server, limit: Limit<'_>) -> Result<Probed, Error> {
    let met = meet(server, limit)?;
    let operation = Operation { verb: "check the servers", name: None };
    let shards = server.client.shards(patiently(server)).map_err(|fault| server.unanswered(&operation, fault))?;
    let name = scratch_name()?;
    let mut findings = Vec::new();
    let mut masters = Vec::new();
    // In a cluster only masters have slots, so every shard accepts writes.
    let mut can_write = true;
    if shards.is_empty() {
        let info = look_into(server, &mut findings);
        can_write = info.as_ref().is_none_or(|info| !info.is_replica());
        if let Some(info) = info
            && let Some(finding) = kind(server, &info)?
        {
            findings.truncate(1);
            findings.extend([met, finding]);
            return Ok(Probed::of(&server.client, findings));
        }
    }
    for shard in shards {
        server.client.turn_to_shard(&shard);
        let mut findings = Vec::new();
        look_into(server, &mut findings);
        masters.push(ProbedServer { url: shard.to_string(), findings });
    }
    findings.insert(findings.len().min(1), met);
    if let Err(error) = look_around(server, &name, can_write, &mut findings) {
        findings.push(Finding::of_error("answers", &error));
    }
    let mut probed = Probed::of(&server.client, findings);
    probed.servers.extend(masters);
    Ok(probed)
}

/// Measures the round trip.
fn meet(server: &mut Server, limit: Limit<'_>) -> Result<Finding, Error> {
    let mut took = Vec::with_capacity(PINGS);
    // The first one includes the connect, and is not counted.
    for nth in 0..=PINGS {
        let asked = Moment::now();
        let limit = if nth == 0 { limit } else { patiently(server) };
        let answer = server.client.ask(&cmd("PING"), limit).map_err(|fault| server.unanswered(&CHECK, fault))?;
        // The server replied, even if the user may not PING.
        if let Value::ServerError(_) = answer {
            let unexpected = reply::unexpected(&answer);
            if !matches!(&unexpected, Unexpected::Error { code, .. } if code.raw() == "NOPERM") {
                return Err(CHECK.misunderstood(&server.client, unexpected));
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

/// Returns a limit for one request: the server's own time-out.
fn patiently(server: &Server) -> Limit<'static> {
    Limit::until(Moment::now() + server.client.timeout)
}

/// Adds what the server reports about itself, and returns that. If it does not say, it counts as a master: trying a lock
/// will show.
fn look_into(server: &mut Server, findings: &mut Vec<Finding>) -> Option<Info> {
    match info(server) {
        Ok((info, saving)) => {
            findings.extend([info.version(), info.role(server.options.durability.replicas)]);
            if server.client.topology().is_named() {
                findings.push(info.failover());
            }
            findings.extend([
                info.persistence(&saving),
                info.durability(server.options.durability.on_disk, &saving),
                info.memory(),
            ]);
            return Some(info);
        }
        Err(NoInfo::Refused(why)) => {
            let also = if server.client.is_one_of_several() {
                ", nor whether it is another server than the others"
            } else {
                ""
            };
            let found = format!("not permitted to look at its role, persistence and memory{also} ({why})");
            findings.push(Finding::warning("server", found, acl(server, &["+info".into(), "+config|get".into()])));
        }
        Err(NoInfo::Failed(error)) => findings.push(Finding::of_error("answers", &error)),
    }
    None
}

/// Reports a server that keeps no locks, or not all: a sentinel, or one node of a cluster.
fn kind(server: &mut Server, info: &Info) -> Result<Option<Finding>, Error> {
    let mut question = cmd("CLUSTER");
    question.arg("INFO");
    let cluster = if info.is_in_cluster() { ask(server, &question)?.ok() } else { None };
    let cluster = cluster.as_ref().and_then(reply::text).map(|answer| Info::new(&answer));
    Ok(info.kind(&server.client.to_string(), cluster.as_ref()))
}

/// Why the server reports nothing of itself.
enum NoInfo {
    /// In its own words.
    Refused(String),
    Failed(Error),
}

impl From<Error> for NoInfo {
    fn from(error: Error) -> NoInfo {
        NoInfo::Failed(error)
    }
}

fn info(server: &mut Server) -> Result<(Info, Saving), NoInfo> {
    let answer = ask(server, &cmd("INFO"))?.map_err(NoInfo::Refused)?;
    let saving = Saving { save: setting(server, "save")?, appendfsync: setting(server, "appendfsync")? };
    Ok((Info::new(&reply::text(&answer).unwrap_or_default()), saving))
}

/// Adds findings about the clock, the permissions and a scratch lock.
fn look_around(
    server: &mut Server,
    name: &LockName,
    can_write: bool,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    findings.extend(clock(server)?);
    let rights = find_out(server, name)?;
    findings.extend(permissions(server, &rights));
    findings.push(holders(server, name, &rights));
    // With a permission missing, nxlock might not be able to release the lock.
    if can_write && rights.vital.is_empty() {
        locks(server, name, &rights, findings);
    }
    Ok(())
}

/// Returns a reply, or the text of the server's error.
fn ask(server: &mut Server, question: &Cmd) -> Result<Result<Value, String>, Error> {
    let limit = patiently(server);
    let answer = server.client.ask(question, limit).map_err(|fault| server.unanswered(&CHECK, fault))?;
    Ok(match &answer {
        Value::ServerError(error) => Err(reply::said(error, server.client.login()).to_string()),
        _ => Ok(answer),
    })
}

/// Returns a setting of the server, if the user may read it.
fn setting(server: &mut Server, name: &str) -> Result<Option<String>, Error> {
    let mut get = cmd("CONFIG");
    get.arg("GET").arg(name);
    let answer = ask(server, &get)?.ok();
    let value = answer.and_then(|answer| reply::array(answer).ok()).and_then(|pair| pair.into_iter().nth(1));
    Ok(value.as_ref().and_then(reply::text).map(|value| value.to_string()))
}

/// Compares the server's clock with this machine's. A difference does not affect a lease, whose time both count from
/// its start.
fn clock(server: &mut Server) -> Result<Option<Finding>, Error> {
    let before = wall();
    let Ok(answer) = ask(server, &cmd("TIME"))? else { return Ok(None) };
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

/// Parses a reply of TIME: seconds and microseconds.
fn time(answer: &Value) -> Option<SystemTime> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let number = |value| reply::integer(value).and_then(|n| u64::try_from(n).ok());
    let since = Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn find_out(server: &mut Server, name: &LockName) -> Result<Rights, Error> {
    let limit = patiently(server);
    let prefix = server.options.prefix.clone();
    acl::find_out(&mut server.client, &prefix, name, limit).map_err(|fault| server.unanswered(&CHECK, fault))
}

/// Reports missing permissions, with the command that grants them.
fn permissions(server: &Server, rights: &Rights) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !rights.scripts.is_empty() {
        let found = "scripts are not run for us (EVAL): no queue and no fence, every waiter polls";
        findings.push(Finding::warning("scripts", found, acl(server, &rights.scripts)));
    }
    if !rights.hashes.is_empty() {
        let found = "scripts are sent whole with each request (EVALSHA)";
        findings.push(Finding::warning("scripts", found, acl(server, &rights.hashes)));
    }
    if !rights.vital.is_empty() {
        let found = format!("missing: {}", rights.vital.join(" "));
        let all = [&rights.vital, &rights.hashes, &rights.messages, &rights.listeners, &rights.tells, &rights.look];
        let all: Vec<_> = all.into_iter().flatten().cloned().collect();
        findings.push(Finding::obstacle("permissions", ErrorKind::Refused, found, acl(server, &all)));
    } else if !rights.look.is_empty() {
        let found = format!("missing for `status`, `release --break` and `run --record`: {}", rights.look.join(" "));
        findings.push(Finding::warning("permissions", found, acl(server, &rights.look)));
    } else if !rights.listeners.is_empty() {
        let found = format!(
            "missing to notice at once that a waiter is gone, and to tell a holder who broke its lock: {}",
            rights.listeners.join(" ")
        );
        findings.push(Finding::warning("permissions", found, acl(server, &rights.listeners)));
    } else {
        let of_use = [&rights.scripts, &rights.hashes, &rights.messages, &rights.tells];
        let has_all = of_use.iter().all(|rules| rules.is_empty());
        let found = if has_all { "all that every verb asks for" } else { "enough for every verb" };
        findings.push(Finding::fine("permissions", found));
    }
    findings
}

/// Reports whether a holder is told at once of changes of its lock, and of requests to give it up: asks for that on a
/// connection of its own. Without scripts there are no such requests, nor to several servers.
fn holders(server: &Server, name: &LockName, rights: &Rights) -> Finding {
    let key = server.options.prefix.key(name);
    let wanted = Wanted { channel: format!("{key}:holder:check"), key, is_shared: false };
    let limit = patiently(server);
    let told = Client::new(server.client.topology().clone(), server.client.timeout).meet_and_ask_for(wanted, limit);
    let told = told.unwrap_or_default();
    let has_requests = rights.scripts.is_empty() && !server.client.is_one_of_several();
    let hears_requests = told.messages && rights.messages.is_empty() || !has_requests;
    let found = match (told.changes, hears_requests) {
        (true, true) if has_requests => {
            return Finding::fine("holders", "are told at once of a lost lock, and of requests");
        }
        (true, true) => return Finding::fine("holders", "are told at once of a lost lock"),
        (true, false) => "a request to give a lock up is noticed at the next renewal (SUBSCRIBE, PUBLISH)",
        (false, true) => "a deleted lock is noticed at the next renewal (CLIENT TRACKING)",
        (false, false) => {
            "a deleted lock, and a request to give it up, are noticed at the next renewal (CLIENT TRACKING, SUBSCRIBE, PUBLISH)"
        }
    };
    let lost = [(!told.changes, &rights.tells), (!hears_requests, &rights.messages)];
    let missing = lost.into_iter().filter(|(is_lost, _)| *is_lost).flat_map(|(_, rules)| rules.clone());
    let hint = match missing.collect::<Vec<_>>().as_slice() {
        [] => "see whether something between here and the server keeps RESP3 (HELLO, CLIENT TRACKING) back".to_owned(),
        rules => acl(server, rules),
    };
    Finding::warning("holders", found, hint)
}

fn acl(server: &Server, rules: &[String]) -> String {
    let login = server.client.topology().session().login.as_ref();
    let user = login.and_then(|login| login.user.as_deref()).unwrap_or("default");
    let mut unique: Vec<&str> = Vec::new();
    for rule in rules {
        if !unique.contains(&rule.as_str()) {
            unique.push(rule);
        }
    }
    format!("ACL SETUSER {} {}", clean(user), clean(&unique.join(" ")))
}

/// Tries a lock, by the same code as every verb.
fn locks(server: &mut Server, name: &LockName, rights: &Rights, findings: &mut Vec<Finding>) {
    let timeout = server.client.timeout;
    let mut other = Server::new(server.client.topology().clone(), server.options.clone());
    let limit = || Limit::until(Moment::now() + timeout);
    let may_look = !rights.look.iter().any(|rule| rule == "+type");
    let trial = try_lock([&mut *server, &mut other], name, limit, may_look);
    forget(server, name);
    let Trial { fence, queued, heard, handed_over } = match trial {
        Ok(trial) => trial,
        Err(error) => return findings.push(Finding::of_error("locks", &error)),
    };
    let fence = if fence.is_some() { "with a fence" } else { "without a fence" };
    let found = format!("taken {fence}, renewed, handed over in {} and released", finely(handed_over));
    findings.push(Finding::fine("locks", found));
    if queued && heard {
        findings.push(Finding::fine("waiters", "queue, and are woken"));
    } else if queued {
        let found = "queue, but cannot be woken (SUBSCRIBE, PUBLISH): the first polls";
        let hint = match rights.messages.as_slice() {
            [] => "see whether something between here and the server keeps messages back".to_owned(),
            rules => acl(server, rules),
        };
        findings.push(Finding::warning("waiters", found, hint));
    }
}

/// Deletes the scratch lock's fence, which would otherwise expire in a day.
fn forget(server: &mut Server, name: &LockName) {
    let mut delete = cmd("DEL");
    delete.arg(companion_key(&server.options.prefix.key(name), "fence"));
    let limit = patiently(server);
    let _ = server.client.ask(&delete, limit);
}
