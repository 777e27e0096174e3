//! The file of a lock on this machine.

#![no_main]

mod oracle;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::files::{Process, State, sealed};
use nxlock::fuzzed::{
    AcquireMode, Acquired, Asker, Asking, Busy, Claim, CommandOptions, Credentials, Durability, Error, History, Limit,
    Listed, LockName, Look, Moment, Named, NotYours, Owner, Prefix, QueuePlace, Recording, Refusal, Refused, Released,
    Renewed, Report, Row, RunEnd, Sharing, StatusRows, Store, StoreOptions, Supersedes, Target, Terms, Token, Ttl,
    Upkeep, Wanted, open,
};

/// A directory with the file of one lock.
struct Ground {
    url: String,
    record: PathBuf,
    boot: String,
}

static GROUND: LazyLock<Ground> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("nxlock-fuzz-{}", std::process::id()));
    let url = format!("local:{}", directory.display());
    let mut claim = claim();
    let granted = store(&url).acquire(&mut claim, Ttl::at_least(Duration::ZERO), AcquireMode::Once, limit());
    assert!(granted.is_ok());
    let record = fs::read_dir(&directory).expect("it was made").next().expect("a record").expect("a record").path();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot").trim().to_owned();
    Ground { url, record, boot }
});

fuzz_target!(|bytes: &[u8]| {
    // As a file, and as the text of one, in which `@boot` stands for this boot's id.
    fs::write(&GROUND.record, bytes).expect("a record");
    visited();
    let text = String::from_utf8_lossy(bytes).replace("@boot", &GROUND.boot);
    reads_back(&text);
    let file = sealed(&text, Some(&GROUND.boot)).expect("a file");
    fs::write(&GROUND.record, file).expect("a record");
    visited();
});

fn reads_back(text: &str) {
    if let Ok(state) = State::read(text, 0) {
        let written = state.written();
        let again = State::read(&written, 0).expect("what was written is read");
        assert_eq!(again.written(), written);
    }
    if let Ok(process) = text.parse::<Process>() {
        assert_eq!(process.to_string().parse(), Ok(process));
    }
}

/// Asserts that with any content each verb ends, and that its messages are harmless.
fn visited() {
    let claim = claim();
    let ttl = Ttl::at_least(Duration::from_secs(1));
    let mut reports = Vec::new();
    let lock = || Named::new(&claim.name, &"lock:".parse().expect("a prefix"));
    let mut store = store(&GROUND.url);
    match store.names(Listed::Names, limit()) {
        Ok(names) => assert!(names.len() <= 2),
        Err(error) => reports.push(Report::Failed(error)),
    }
    reports.push(match store.look(&claim.name, Look::All, limit()) {
        Ok(status) => {
            let (rows, options) = (vec![Row { lock: lock(), status }], CommandOptions::default());
            Report::Status(StatusRows { rows, named: true, options, doubts: Vec::new() })
        }
        Err(error) => Report::Failed(error),
    });
    let not_yours = |wanted, state| Report::NotYours(NotYours { lock: lock(), wanted, state, ended: None });
    match store.renew(&claim, ttl, limit()) {
        Ok(Renewed::NotYours(state)) => reports.push(not_yours(Wanted::Renew, state)),
        Ok(Renewed::Kept(_) | Renewed::Longer(_)) => {}
        Err(error) => reports.push(Report::Failed(error)),
    }
    reports.push(match store.history(&claim.name, limit()) {
        Ok(recorded) => Report::Histories(vec![History { lock: lock(), recorded }]),
        Err(error) => Report::Failed(error),
    });
    let busy = |state, place, why| {
        let (waited, sharing) = (Duration::ZERO, Sharing::Exclusive);
        let refused = Refused { state, place, waited, sharing, why };
        Report::Busy(Busy { lock: lock(), refused, options: CommandOptions::default(), conflict_exit_code: None })
    };
    for mode in [AcquireMode::Once, AcquireMode::Queue] {
        match store.acquire(&mut claim.clone(), ttl, mode, limit()) {
            Ok(Acquired::Granted(lease)) => assert!(lease.fence.is_some_and(|fence| fence.0 > 0)),
            Ok(Acquired::Held(state, place) | Acquired::Nested(state, place)) => {
                reports.push(busy(state, place, Refusal::Held))
            }
            // None of several locks: there is one.
            Ok(Acquired::TooLate | Acquired::Lost(_) | Acquired::Asked(..)) => {}
            Ok(Acquired::Undecided(state, error)) => {
                reports.push(busy(state, QueuePlace::default(), Refusal::Undecided(error)));
            }
            Ok(Acquired::Superseded(by, state, place)) => reports.push(busy(state, place, Refusal::Superseded(by))),
            Ok(Acquired::Done(run, state, place)) => reports.push(busy(state, place, Refusal::Done(run))),
            Err(error) => reports.push(Report::Failed(error)),
        }
    }
    let asker = Asker { of: claim.token.id().expect("an id"), by: claim.token.clone() };
    for asked in [
        store.ask(&claim.name, &asker, Asking::ToGiveUp, limit()),
        store.ask(&claim.name, &asker, Asking::NoMore, limit()),
    ] {
        reports.extend(asked.err().map(Report::Failed));
    }
    match store.release(&claim, limit()) {
        Ok(Released::NotYours(state) | Released::Lost(state)) => reports.push(not_yours(Wanted::Release, state)),
        Ok(Released::Done) => {}
        Err(error) => reports.push(Report::Failed(error)),
    }
    for report in &reports {
        oracle::human(report);
        oracle::json(report);
    }
}

fn claim() -> Claim {
    let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
    let terms = Terms { supersedes: Supersedes::Waiting, ..Terms::exclusive(Upkeep::Renewed) };
    let token = Token::mint_for(terms, &owner, None, SystemTime::UNIX_EPOCH).expect("a token");
    let kept = "2".parse().expect("a number of runs");
    let recording = Recording::new(token.as_str(), kept, Some(Duration::from_secs(3600)));
    let recording = Some(Recording { end: Some(RunEnd::exited(0)), ..recording });
    Claim { recording, ..Claim::of("deploy".parse::<LockName>().expect("a name"), token) }
}

fn store(url: &str) -> Box<dyn Store> {
    let target = Target::choose([url], None, &Credentials::default()).ok().expect("a directory");
    let prefix = "lock:".parse::<Prefix>().expect("a prefix");
    open(target, StoreOptions { prefix, timeout: Duration::from_secs(5), durability: Durability::default() })
}

fn limit() -> Limit<'static> {
    Limit::until(Moment::now() + Duration::from_secs(5))
}
