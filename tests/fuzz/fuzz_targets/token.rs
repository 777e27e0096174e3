//! A key's value, which any program may have written, and what nxlock shows of it.

#![no_main]

mod oracle;

use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::{
    Busy, CommandOptions, Fence, LockName, LockState, LockStatus, Lost, Named, NotYours, Owner, Prefix, QueuePlace,
    Refusal, Refused, Report, Row, Sharing, StatusRows, Tainted, Token, Waiter, Waiting, Wanted,
};
use serde_json::Value;

fuzz_target!(|value: &[u8]| {
    minted(value);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let granted = Fence(1_799_999_999_000_000);
    let ends = Some(Duration::from_millis(u64::MAX));
    for (ttl, fence) in [(None, None), (Some(Duration::ZERO), Some(granted)), (ends, Some(Fence(u64::MAX)))] {
        told(value, LockState::of_value(value, ttl, fence, now), now);
    }
});

fn told(value: &[u8], state: LockState, now: SystemTime) {
    let prefix: Prefix = "lock:".parse().expect("a prefix");
    let name: LockName = "deploy".parse().expect("a name");
    let lock = || Named::new(&name, &prefix);
    let place = QueuePlace { position: 2, length: 3 };
    let queue = Token::read(value).into_iter().map(|told| Waiter {
        position: 1,
        id: told.id,
        owner: told.owner,
        waiting: now.duration_since(told.born).unwrap_or_default(),
        reason: told.reason,
        terms: told.terms,
    });
    let status = LockStatus { state: state.clone(), queue: queue.collect(), knows_waiters: true, recorded: None };
    let (waited, sharing) = (Duration::from_secs(1), Sharing::Exclusive);
    let refused = Refused { state: state.clone(), place, waited, sharing, why: Refusal::Held };
    let reports = [
        Report::Busy(Busy { lock: lock(), refused, options: CommandOptions::default(), conflict_exit_code: None }),
        Report::NotYours(NotYours { lock: lock(), wanted: Wanted::Renew, state: state.clone(), ended: None }),
        Report::NotYours(NotYours { lock: lock(), wanted: Wanted::Break, state: state.clone(), ended: None }),
        Report::Status(StatusRows {
            rows: vec![Row { lock: lock(), status }],
            named: true,
            options: CommandOptions::default(),

            doubts: Vec::new(),
        }),
    ];
    let mut texts: Vec<String> = reports.iter().map(oracle::human).collect();
    texts.push(Lost::to_string(&Lost::Taken(state.clone())));
    let mut waiting = Waiting::new(&name, Sharing::Exclusive, true);
    waiting.held(&state, place);
    texts.push(oracle::said());
    texts.push(waiting.live());
    for report in &reports {
        let document = oracle::json(report);
        let holder = document.get("holder").unwrap_or(&document[0]["holder"]);
        same_holder(holder, &state);
        texts.push(document.to_string());
    }
    texts[4..7].iter().for_each(|line| oracle::harmless(line));
    unrevealed(value, &state, &texts);
}

/// Asserts that a document has the holder's fields unchanged.
fn same_holder(document: &Value, state: &LockState) {
    let Some(holder) = &state.holder else { return assert!(document.is_null(), "{document}") };
    assert_eq!(document["user"], holder.owner.user.raw());
    assert_eq!(document["host"], holder.owner.host.raw());
    assert_eq!(document["pid"], holder.owner.pid);
    assert_eq!(document["reason"].as_str(), holder.reason.as_ref().map(Tainted::raw));
    assert_eq!(document["id"], holder.id.as_str());
}

/// Asserts that no text has the random part of a token, unless its owner has written it elsewhere too.
fn unrevealed(value: &[u8], state: &LockState, texts: &[String]) {
    let (Some(holder), Ok(text)) = (&state.holder, str::from_utf8(value)) else { return };
    let random = text.split(':').nth(1).expect("a token has a random part");
    assert_eq!(random.len(), 26);
    let Owner { user, host, .. } = &holder.owner;
    let elsewhere = [Some(user), Some(host), holder.reason.as_ref()];
    if !elsewhere.iter().flatten().any(|field| field.raw().contains(random)) {
        assert!(texts.iter().all(|text| !text.contains(random)), "{texts:?}");
    }
}

/// Asserts that a token yields the fields that went into it, as far as they fit.
fn minted(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.splitn(3, '\n');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let owner = Owner {
        user: part().into(),
        host: part().into(),
        pid: u32::try_from(bytes.len()).unwrap_or(0),
        known_as: None,
    };
    let reason = part();
    let born = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_000_000_123);
    let token = Token::mint(&owner, Some(&reason), born).expect("a token");
    assert!(token.as_str().len() <= 512 && token.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
    let told = Token::read(token.as_str().as_bytes()).expect("it reads back");
    let begins = |whole: &Tainted, part: &Tainted| whole.raw().starts_with(part.raw());
    assert!(begins(&owner.user, &told.owner.user) && begins(&owner.host, &told.owner.host));
    assert!(reason.starts_with(told.reason.as_ref().map_or("", Tainted::raw)));
    assert_eq!((told.owner.pid, told.born), (owner.pid, born));
    assert_eq!(token.as_str().parse::<Token>().as_ref(), Ok(&token));
}
