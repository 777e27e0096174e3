//! nxlock-protocol(7) names everything that is on the wire, and a client that follows it shares locks with nxlock.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::turns::Turn;
use crate::support::{Nxlock, Redis};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

fn page() -> String {
    read("man/nxlock-protocol.7")
}

/// Returns the words that follow a text, wherever it occurs.
fn words_after(source: &str, text: &str) -> BTreeSet<String> {
    let is_of_a_word = |c: char| c.is_ascii_lowercase() || c == '_';
    let words =
        source.split(text).skip(1).map(|rest| rest.chars().take_while(|c| is_of_a_word(*c)).collect::<String>());
    words.filter(|word| !word.is_empty()).collect()
}

/// Asserts that the page has each word in bold.
#[track_caller]
fn are_named(what: &str, least: usize, words: BTreeSet<String>) {
    assert!(words.len() >= least, "too few of {what} were found: {words:?}");
    let page = page();
    let missing: Vec<_> = words.into_iter().filter(|word| !page.contains(&format!("\\fB{word}\\fR"))).collect();
    assert!(missing.is_empty(), "nxlock-protocol(7) does not name these of {what}: {missing:?}");
}

#[test]
fn the_page_of_the_protocol_names_each_key_with_its_type() {
    let script = read("src/store/redis/lock.lua");
    let header = script.lines().take_while(|line| line.starts_with("--"));
    let mut found = 0;
    for line in header {
        let words: Vec<&str> = line.trim_start_matches("-- KEYS").trim_start_matches("--").split_whitespace().collect();
        if let [key, kind @ ("string" | "zset" | "hash"), ..] = words[..] {
            assert!(page().contains(&format!("\\fB{key}\\fR ({kind})\n")), "{key} is a {kind}");
            found += 1;
        }
    }
    assert_eq!(found, 8);
    // In the order in which the script has them.
    let locals = script.lines().find_map(|line| line.strip_prefix("local K, F, H, T, Q, W = "));
    assert_eq!(locals, Some("KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]"));
    assert!(page().contains("6 LOCK FENCE SHARES TERMS QUEUE WAITERS OPERATION"));
}

#[test]
fn the_page_of_the_protocol_names_each_operation_field_and_message() {
    let script = read("src/store/redis/lock.lua");
    are_named("the operations", 8, words_after(&script, "operation == '"));
    are_named("the fields of requests", 20, words_after(&script, "arg."));
    let chosen = ["arg.mode == '", "arg.mode ~= '", "arg.how == '"].map(|text| words_after(&script, text));
    are_named("the values of fields", 4, chosen.into_iter().flatten().collect());
    let verdicts = &words_after(&script, "'verdict', '") | &words_after(&script, "seen('");
    are_named("the verdicts", 11, verdicts);
    let told = script.lines().filter(|line| line.contains("tell(") || line.contains("tell_holder("));
    let letters: BTreeSet<String> = told
        .flat_map(|line| line.split('\'').skip(1).step_by(2))
        .filter(|word| word.len() == 1)
        .map(str::to_owned)
        .collect();
    are_named("the messages", 7, letters);
}

#[test]
fn the_page_of_the_protocol_names_each_field_of_an_answer() {
    let mut fields = words_after(&read("src/store/redis/lock.lua"), "answer[#answer + 1] = '");
    for file in ["redis.rs", "redis/claim.rs", "redis/recording.rs", "redis/reply.rs"] {
        let source = read(&format!("src/store/{file}"));
        for reader in ["get", "number", "text", "list", "says", "who"] {
            fields.append(&mut words_after(&source, &format!(".{reader}(\"")));
        }
    }
    are_named("the fields of answers", 24, fields);
}

/// What the page does by redis-cli(1).
#[test]
fn a_client_that_follows_the_page_of_the_protocol_shares_its_lock_with_nxlock() {
    let page = page();
    let (_, example) = page.split_once(".SH \"EXAMPLES\"").unwrap();
    let (_, example) = example.split_once(".EX\n").unwrap();
    let example = example.split_once(".EE").unwrap().0.replace("\\-", "-");
    let (before, calls) = example.split_once("\n\n").unwrap();
    let redis = Redis::start();
    let cli = format!("redis-cli -s '{}' ", redis.socket().display());
    let call = |script: &str| {
        let call = Nxlock::by("sh", ["-ec", &script.replace("redis-cli ", &cli)]).in_directory(Path::new(ROOT));
        call.env("USER", "ann").run().exits(0)
    };
    let [acquire, renew, release] = calls.lines().collect::<Vec<_>>().try_into().unwrap();
    let taken = call(&format!("{before}\n{acquire}\necho $token"));
    assert!(taken.text().contains("granted"), "{}", taken.both());
    let token = taken.text().lines().last().unwrap().to_owned();
    let seen = redis.nxlock(["--json", "status", "deploy"]).run().json();
    let holder = &seen[0]["holder"];
    assert_eq!((&holder["user"], &holder["reason"]), (&"ann".into(), &"by hand".into()), "{seen}");
    let ours = before.lines().filter(|line| !line.starts_with("random=") && !line.starts_with("token="));
    let ours = ours.map(|line| format!("{line}\n")).collect::<String>() + &format!("token={token}\n");
    assert!(call(&format!("{ours}{renew}")).text().contains("kept"));
    let mut waiter = Turn::of(redis.nxlock(["run", "deploy", "-c", "echo 'up '; read x; exit 0"]));
    waiter.running.says("waiting for");
    assert!(call(&format!("{ours}{release}")).text().contains("released"));
    waiter.up();
    assert!(call(&format!("{ours}{renew}")).text().contains("not_yours"));
    waiter.leaves();
}
