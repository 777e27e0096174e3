//! Finds out what a server's access control lists permit (Redis documentation, ACL): tries every command that a lock
//! needs on keys of a lock that nobody has, in a form that changes nothing, so that all missing rules are reported at
//! once.

use redis::{Cmd, Value, cmd};

use super::client::Client;
use super::connection::{self, Connection};
use super::fault::Fault;
use super::list::glob_escaped;
use super::reply::{self, Unexpected};
use super::scripts::LOCK;
use crate::lock::{LockName, Prefix, companion_key};
use crate::wait::Limit;

/// The missing permissions, as rules for ACL SETUSER.
#[derive(Default)]
pub struct Rights {
    /// Needed for any lock.
    pub vital: Vec<String>,
    /// Needed to tell waiters and holders anything.
    pub messages: Vec<String>,
    /// Needed to know who listens.
    pub listeners: Vec<String>,
    /// Needed to see the locks of others and recorded runs: `status`, `release --break`, `run --record`.
    pub look: Vec<String>,
    /// Needed for scripts, if those are not permitted: nxlock then locks without them, and other rules are vital.
    pub scripts: Vec<String>,
    /// Needed so that a holder is told at once of changes of its lock.
    pub tells: Vec<String>,
    /// Needed so that scripts are not sent whole with each request.
    pub hashes: Vec<String>,
}

/// What a rule is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Scripts,
    /// Scripts by their hashes.
    Hashes,
    /// Within scripts.
    Script,
    /// With scripts and without.
    Both,
    /// To be told at once of changes.
    Tells,
    /// Without scripts.
    Scriptless,
    Messages,
    Listeners,
    Look,
    /// Within the scripts that look at recorded runs.
    History,
}

struct Probe {
    need: Need,
    rule: &'static str,
    /// The rule for its keys or its channel.
    pattern: String,
    request: Cmd,
}

/// The keys of a lock, and the patterns for the keys of all locks.
struct Keys {
    key: String,
    companion: String,
    /// Those of a waiter, and of a holder.
    channels: [String; 2],
    patterns: [String; 3],
}

/// Tries every command, and returns the missing rules.
pub fn find_out(client: &mut Client, prefix: &Prefix, name: &LockName, limit: Limit<'_>) -> Result<Rights, Fault> {
    let key = prefix.key(name);
    let all = format!("{}*", glob_escaped(prefix.as_str()));
    let keys = Keys {
        companion: companion_key(&key, "queue"),
        channels: ["wake", "holder"].map(|whose| format!("{key}:{whose}:check")),
        patterns: [format!("~{all}"), format!("~{{{all}}}:*"), format!("&{all}")],
        key,
    };
    let mut denied = Vec::new();
    // Follows redirects now, to the server that gets all the probes.
    client.turn_to(&keys.key);
    client.ask(&request("GET", &[&keys.key]), limit)?;
    let mut probes = probes(&keys);
    if client.is_of_a_cluster() {
        let request = request("CLUSTER", &["MYID"]);
        probes.push(Probe { need: Need::Listeners, rule: "+cluster|myid", pattern: String::new(), request });
    }
    let requests: Vec<Cmd> = probes.iter().map(|probe| probe.request.clone()).collect();
    for (probe, answer) in probes.iter().zip(client.ask_all(&requests, limit)?) {
        denied.extend(denial(&answer, probe.rule, &probe.pattern).map(|rule| (probe.need, rule)));
    }
    // HDEL is permitted, so a field that HSET writes can be removed again.
    if !denied.iter().any(|(_, rule)| rule == "+hdel" || rule.starts_with('~')) {
        let requests =
            [request("HSET", &[&keys.companion, "check", "1"]), request("HDEL", &[&keys.companion, "check"])];
        let answers = client.ask_all(&requests, limit)?;
        denied.extend(answers.first().and_then(|answer| denial(answer, "+hset", "")).map(|rule| (Need::Script, rule)));
    }
    let no_scripts = denied.iter().any(|(need, _)| *need == Need::Scripts);
    let subscriptions = keys.channels.each_ref().map(|channel| request("SUBSCRIBE", &[channel]));
    for answer in aside(client, &subscriptions, limit)? {
        denied.extend(denial(&answer, "+subscribe", &keys.patterns[2]).map(|rule| (Need::Messages, rule)));
    }
    if no_scripts {
        let transaction = [request("WATCH", &[&keys.key]), cmd("MULTI"), cmd("EXEC")];
        for (answer, rule) in aside(client, &transaction, limit)?.iter().zip(["+watch", "+multi", "+exec"]) {
            denied.extend(denial(answer, rule, &keys.patterns[0]).map(|rule| (Need::Scriptless, rule)));
        }
    }
    Ok(Rights::of(denied, no_scripts))
}

impl Rights {
    fn of(denied: Vec<(Need, String)>, no_scripts: bool) -> Rights {
        let mut rights = Rights::default();
        for (need, rule) in denied {
            let rules = match need {
                Need::Both | Need::Scriptless => &mut rights.vital,
                Need::Look => &mut rights.look,
                Need::Tells => &mut rights.tells,
                _ if no_scripts => &mut rights.scripts,
                Need::Script => &mut rights.vital,
                Need::Messages => &mut rights.messages,
                Need::Listeners => &mut rights.listeners,
                Need::History => &mut rights.look,
                Need::Hashes => &mut rights.hashes,
                Need::Scripts => continue,
            };
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rights
    }
}

fn probes(keys: &Keys) -> Vec<Probe> {
    let Keys { key, companion, channels, patterns: [all_keys, all_companions, all_channels] } = keys;
    let mut probes = Vec::new();
    let mut probe = |need, rule, pattern: &str, words: &[&str]| {
        let (name, args) = words.split_first().unwrap_or((&"PING", &[]));
        probes.push(Probe { need, rule, pattern: pattern.to_owned(), request: request(name, args) });
    };
    probe(Need::Scripts, "+eval", "", &["EVAL", "return 1", "0"]);
    probe(Need::Hashes, "+evalsha", "", &["EVALSHA", LOCK.sha, "0"]);
    probe(Need::Both, "+get", all_keys, &["GET", key]);
    // Only if the key exists, which it does not.
    probe(Need::Both, "+set", all_keys, &["SET", key, "check", "XX", "PX", "1"]);
    probe(Need::Both, "+del", all_keys, &["DEL", key]);
    probe(Need::Both, "+pttl", all_keys, &["PTTL", key]);
    probe(Need::Both, "+pexpire", all_keys, &["PEXPIRE", key, "1"]);
    probe(Need::Look, "+type", all_keys, &["TYPE", key]);
    // GET is the command most likely to be permitted, so it probes the pattern.
    probe(Need::Script, "+get", all_companions, &["GET", companion]);
    probe(Need::Script, "+time", "", &["TIME"]);
    probe(Need::Script, "+zadd", all_companions, &["ZADD", companion, "XX", "1", "check"]);
    probe(Need::Script, "+zrem", all_companions, &["ZREM", companion, "check"]);
    probe(Need::Script, "+zrange", all_companions, &["ZRANGE", companion, "0", "0"]);
    probe(Need::Script, "+zrank", all_companions, &["ZRANK", companion, "check"]);
    probe(Need::Script, "+zscore", all_companions, &["ZSCORE", companion, "check"]);
    probe(Need::Script, "+zcard", all_companions, &["ZCARD", companion]);
    probe(Need::Script, "+zcount", all_companions, &["ZCOUNT", companion, "0", "0"]);
    probe(Need::Script, "+hget", all_companions, &["HGET", companion, "check"]);
    probe(Need::Script, "+hmget", all_companions, &["HMGET", companion, "check"]);
    probe(Need::Script, "+hlen", all_companions, &["HLEN", companion]);
    probe(Need::Script, "+hdel", all_companions, &["HDEL", companion, "check"]);
    channels.iter().for_each(|channel| probe(Need::Messages, "+publish", all_channels, &["PUBLISH", channel, "t"]));
    probe(Need::Listeners, "+pubsub|numsub", "", &["PUBSUB", "NUMSUB", &channels[0]]);
    probe(Need::Tells, "+client|tracking", "", &["CLIENT", "TRACKING", "OFF"]);
    probe(Need::History, "+hgetall", all_companions, &["HGETALL", companion]);
    probe(Need::Look, "+scan", "", &["SCAN", "0", "COUNT", "1"]);
    probes
}

fn request(name: &str, args: &[&str]) -> Cmd {
    let mut request = cmd(name);
    request.arg(args);
    request
}

/// Sends requests on a connection of their own: one that subscribes, or is in a transaction that it may not end, can do
/// nothing else.
fn aside<const N: usize>(client: &mut Client, requests: &[Cmd; N], limit: Limit<'_>) -> Result<[Value; N], Fault> {
    let limit = client.within(limit);
    let mut connection = Connection::open(&client.reach(limit)?, limit)?;
    connection.send(&connection::packed(requests), limit)?;
    let mut answers = [const { Value::Nil }; N];
    for answer in &mut answers {
        *answer = connection.receive(limit)?;
    }
    Ok(answers)
}

/// Returns the missing rule, if a reply says that one is.
fn denial(answer: &Value, rule: &str, pattern: &str) -> Option<String> {
    let Unexpected::Error { code, text } = reply::unexpected(answer) else { return None };
    let text = text.raw().to_lowercase();
    match code.raw() {
        "NOPERM" if text.contains("access") && (text.contains("key") || text.contains("channel")) => {
            Some(pattern.to_owned())
        }
        "NOPERM" => Some(rule.to_owned()),
        // The error of EXEC if EXEC itself is not permitted.
        "EXECABORT" if text.contains("noperm") => Some(rule.to_owned()),
        // Renamed or removed: no rule brings it back.
        _ if text.contains("unknown command") => Some(rule.to_owned()),
        _ => None,
    }
}
