//! The files of a lock on this machine.

#![no_main]

mod oracle;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::files::{Asker, Line, Process, Record, RecordedRun, Share, Superseder, Waiter, sum};
use nxlock::fuzzed::{
    AcquireMode, Acquired, Asking, Busy, Claim, Credentials, Error, History, Limit, LockName, Look, Moment, Named, NotYours, Owner,
    Prefix, QueuePlace, Recording, Refusal, Refused, Released, Renewed, Report, Row, RunEnd, Sharing, StatusRows,
    Store, Supersedes, Target, Terms, Token, Ttl, Upkeep, Wanted, open,
};

/// A directory with the files of one lock.
struct Ground {
    target: Target,
    record: PathBuf,
    line: PathBuf,
    shares: PathBuf,
    superseded: PathBuf,
    askers: PathBuf,
    runs: PathBuf,
}

static GROUND: LazyLock<Ground> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("nxlock-fuzz-{}", std::process::id()));
    let target = Target::choose([format!("local:{}", directory.display()).as_str()], None, &Credentials::default())
        .ok()
        .expect("a directory");
    let mut claim = claim();
    let granted = store(&target).acquire(&mut claim, Ttl::at_least(Duration::ZERO), AcquireMode::Once, limit());
    assert!(granted.is_ok());
    let record = fs::read_dir(&directory).expect("it was made").next().expect("a record").expect("a record").path();
    let (line, shares) = (record.with_extension("line"), record.with_extension("shares"));
    let (superseded, askers) = (record.with_extension("superseded"), record.with_extension("askers"));
    let runs = record.with_extension("runs");
    Ground { target, record, line, shares, superseded, askers, runs }
});

fuzz_target!(|bytes: &[u8]| {
    // As they are, and with the checksum and the boot id that make them valid.
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        reads_back(&bytes);
        let after = |line: &[u8]| line.iter().position(|byte| *byte == b'\n').map_or(line.len(), |end| end + 1);
        let (record, rest) = bytes.split_at(after(&bytes));
        fs::write(&GROUND.record, record).expect("a record");
        // The first line that is not a waiter's begins the shares, then what was superseded, then those that ask, then the runs.
        let before = |rest: &[u8], kinds: &[&[u8]]| -> usize {
            let goes_on = |line: &&[u8]| !kinds.iter().any(|kind| line.starts_with(kind));
            rest.split_inclusive(|byte| *byte == b'\n').take_while(goes_on).map(<[u8]>::len).sum()
        };
        let kinds: [&[u8]; 4] = [b"nxlock-share", b"nxlock-superseder", b"nxlock-asker", b"nxlock-run"];
        let (waiters, rest) = rest.split_at(before(rest, &kinds));
        let (shares, rest) = rest.split_at(before(rest, &kinds[1..]));
        let (superseded, rest) = rest.split_at(before(rest, &kinds[2..]));
        let (askers, runs) = rest.split_at(before(rest, &kinds[3..]));
        fs::write(&GROUND.line, waiters).expect("a line");
        fs::write(&GROUND.shares, shares).expect("shares");
        fs::write(&GROUND.superseded, superseded).expect("what was superseded");
        fs::write(&GROUND.askers, askers).expect("those that ask");
        fs::write(&GROUND.runs, runs).expect("the runs");
        visited();
    }
});

fn reads_back(bytes: &[u8]) {
    if let Ok(record) = Record::read(bytes) {
        if let Some(written) = record.written() {
            assert_eq!(Record::read(&written), Ok(record.clone()));
            assert_eq!(record.written(), Some(written));
        } else {
            assert!(bytes.len() > 600);
        }
    }
    if let Ok(waiter) = Waiter::read(bytes)
        && let Some(written) = waiter.written()
    {
        assert_eq!(Waiter::read(&written), Ok(waiter));
    }
    if let Ok(share) = Share::read(bytes)
        && let Some(written) = share.written()
    {
        assert_eq!(Share::read(&written), Ok(share));
    }
    if let Ok(superseder) = Superseder::read(bytes)
        && let Some(written) = superseder.written()
    {
        assert_eq!(Superseder::read(&written), Ok(superseder));
    }
    if let Ok(asker) = Asker::read(bytes)
        && let Some(written) = asker.written()
    {
        assert_eq!(Asker::read(&written), Ok(asker));
    }
    if let Ok(run) = RecordedRun::read(bytes)
        && let Some(written) = run.written()
    {
        assert_eq!(RecordedRun::read(&written), Ok(run));
    }
    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(process) = text.parse::<Process>()
    {
        assert_eq!(process.to_string().parse(), Ok(process));
    }
}

/// Returns each line with its checksum, padded to its size; `@boot` stands for this boot's id.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    static BOOT: LazyLock<String> =
        LazyLock::new(|| fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot").trim().to_owned());
    let text = String::from_utf8_lossy(bytes).replace("@boot", &BOOT);
    let mut all = Vec::new();
    for line in text.lines() {
        let size = match line.split(' ').next() {
            Some("nxlock-lock") => 2048,
            Some("nxlock-share" | "nxlock-superseder") => 1024,
            _ => 512,
        };
        let mut line = line.to_owned();
        line += &format!(" sum={:016x}", sum(line.as_bytes()));
        let room = size - (line.len() + 1) % size;
        line += &" ".repeat(room % size);
        all.extend(line.into_bytes());
        all.push(b'\n');
    }
    all
}

/// Asserts that with any content each verb ends, and that its messages are harmless.
fn visited() {
    let claim = claim();
    let ttl = Ttl::at_least(Duration::from_secs(1));
    let mut reports = Vec::new();
    let lock = || Named::new(&claim.name, &"lock:".parse().expect("a prefix"));
    let mut store = store(&GROUND.target);
    match store.names(limit()) {
        Ok(names) => assert!(names.len() <= 2),
        Err(error) => reports.push(Report::Failed(error)),
    }
    reports.push(match store.look(&claim.name, Look::All, limit()) {
        Ok(status) => {
            let (rows, options) = (vec![Row { lock: lock(), status }], String::new());
            Report::Status(StatusRows { rows, named: true, options, last: None, doubts: Vec::new() })
        }
        Err(error) => Report::Failed(error),
    });
    let not_yours = |wanted, state| Report::NotYours(NotYours { lock: lock(), wanted, state });
    match store.renew(&claim, ttl, limit()) {
        Ok(Renewed::NotYours(state)) => reports.push(not_yours(Wanted::Renew, state)),
        Ok(Renewed::Kept(_) | Renewed::Longer(_)) => {}
        Err(error) => reports.push(Report::Failed(error)),
    }
    reports.push(match store.history(&claim.name, limit()) {
        Ok(runs) => Report::Histories(vec![History { lock: lock(), runs }]),
        Err(error) => Report::Failed(error),
    });
    let busy = |state, place, why| {
        let (waited, sharing) = (Duration::ZERO, Sharing::Exclusive);
        let refused = Refused { state, place, waited, sharing, why };
        Report::Busy(Busy { lock: lock(), refused, options: String::new(), conflict_exit_code: None })
    };
    for mode in [AcquireMode::Once, AcquireMode::Queue] {
        match store.acquire(&mut claim.clone(), ttl, mode, limit()) {
            Ok(Acquired::Granted(lease)) => assert!(lease.fence.is_some_and(|fence| fence.0 > 0)),
            Ok(Acquired::Held(state, place) | Acquired::Nested(state, place)) => reports.push(busy(state, place, Refusal::Held)),
            Ok(Acquired::TooLate) => {}
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
    let owner = Owner { user: "u".into(), host: "h".into(), pid: 1 };
    let terms = Terms { supersedes: Supersedes::Waiting, ..Terms::exclusive(Upkeep::Renewed) };
    let token = Token::mint_for(terms, &owner, None, SystemTime::UNIX_EPOCH).expect("a token");
    let kept = "2".parse().expect("a number of runs");
    let recording = Recording::new(token.as_str(), kept, Some(Duration::from_secs(3600)));
    let recording = Some(Recording { end: Some(RunEnd::exited(0)), ..recording });
    Claim { recording, ..Claim::of("deploy".parse::<LockName>().expect("a name"), token) }
}

fn store(target: &Target) -> Box<dyn Store> {
    open(target.clone(), "lock:".parse::<Prefix>().expect("a prefix"), Duration::from_secs(5), 0)
}

fn limit() -> Limit<'static> {
    Limit::until(Moment::now() + Duration::from_secs(5))
}
