//! A server's replies: the bytes of one connection after another, separated by a line `--`. The first byte selects the
//! request.

#![no_main]

mod oracle;

use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anstream::ColorChoice;
use clap::Parser;
use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::{
    AcquireMode, Acquired, Asker, Busy, Claim, CommandOptions, Credentials, Durability, Error, History, Level, Limit,
    Listed, LockName, LockState, LogOptions, Look, Moment, Named, NotYours, Owner, Prefix, Refusal, Refused, Released,
    Renewed, Report, Row, Sharing, StatusRows, Store, StoreOptions, Target, Token, Ttl, Waiting, Wanted, begin_log,
    open,
};

/// The replies on the next connections.
static ANSWERS: Mutex<VecDeque<Vec<u8>>> = Mutex::new(VecDeque::new());

/// A server that sends what it is told to, to any request, and then no more.
static SERVER: LazyLock<String> = LazyLock::new(|| {
    begin_log(LogOptions { level: Level::Verbose, json: false, is_run: false }, ColorChoice::Auto);
    let path = std::env::temp_dir().join(format!("nxlock-fuzz-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    thread::spawn(move || {
        // Kept open for a while: a closed connection is another kind of reply.
        let mut open = VecDeque::new();
        for mut stream in listener.incoming().flatten() {
            let answer = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let _ = stream.write_all(&answer.unwrap_or_default());
            let _ = stream.shutdown(Shutdown::Write);
            open.push_back(stream);
            open.truncate(8);
            if open.len() == 8 {
                open.pop_front();
            }
        }
    });
    format!("unix://{}", path.display())
});

fuzz_target!(|bytes: &[u8]| {
    let Some((verb, answers)) = bytes.split_first() else { return };
    // More than the socket buffer holds would have to wait for a reader.
    if answers.len() > 64 * 1024 {
        return;
    }
    let target = Target::choose([SERVER.as_str()], None, &Credentials::default()).ok().expect("a server");
    *ANSWERS.lock().unwrap_or_else(PoisonError::into_inner) = split(answers);
    let prefix = "lock:".parse::<Prefix>().expect("a prefix");
    let options = StoreOptions { prefix, timeout: Duration::from_secs(5), durability: Durability::default() };
    let mut store = open(target, options);
    let name: LockName = "deploy".parse().expect("a name");
    let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
    let token = Token::mint(&owner, None, SystemTime::UNIX_EPOCH).expect("a token");
    let random = token.random_part().to_owned();
    let claim = Claim::of(name, token);
    let report = asked(*verb, &mut *store, &claim);
    let mut texts = vec![oracle::said()];
    if let Some(report) = report {
        texts.push(oracle::human(&report));
        texts.push(oracle::json(&report).to_string());
        if let Report::Failed(error) = &report {
            let mut waiting = Waiting::new(&claim.name, Sharing::Exclusive, true);
            waiting.error(error);
            oracle::harmless(&waiting.live());
            texts.push(oracle::said());
        }
    }
    assert!(texts.iter().all(|text| !text.contains(&random)), "{texts:?}");
});

fn split(mut answers: &[u8]) -> VecDeque<Vec<u8>> {
    const BETWEEN: &[u8] = b"\n--\n";
    let mut all = VecDeque::new();
    while let Some(at) = answers.windows(BETWEEN.len()).position(|window| window == BETWEEN) {
        all.push_back(answers[..at].to_vec());
        answers = &answers[at + BETWEEN.len()..];
    }
    all.push_back(answers.to_vec());
    all
}

fn asked(verb: u8, store: &mut dyn Store, claim: &Claim) -> Option<Report> {
    let ttl = Ttl::at_least(Duration::from_secs(30));
    let report = match verb {
        b'o' => acquire(store, claim, AcquireMode::Once),
        b'q' => acquire(store, claim, AcquireMode::Queue),
        b'p' => acquire(store, claim, AcquireMode::Plain),
        b'w' => store.renew(claim, ttl, limit()).map(|renewed| match renewed {
            Renewed::Kept(_) | Renewed::Longer(_) => None,
            Renewed::NotYours(state) => Some(not_yours(claim, Wanted::Renew, state)),
        }),
        b'r' => store.release(claim, limit()).map(|released| rebuff(claim, Wanted::Release, released)),
        b'b' => {
            let breaker = Asker { of: "abcdefgh".parse().expect("an id"), by: claim.token.clone() };
            store.break_lock(&claim.name, &breaker, limit()).map(|released| rebuff(claim, Wanted::Break, released))
        }
        b'n' => listed(store),
        // A holder that is told: the replies to the renewal, to what it asks to be told, and what it is told.
        b't' => store.renew(claim, ttl, limit()).and_then(|_| {
            store.listen(claim, limit());
            store.news();
            let renewed = store.renew(claim, ttl, limit());
            store.news();
            renewed.map(|_| None)
        }),
        b'h' => store
            .history(&claim.name, limit())
            .map(|recorded| Some(Report::Histories(vec![History { lock: named(&claim.name), recorded }]))),
        _ => store.look(&claim.name, Look::All, limit()).map(|status| {
            let (rows, options) = (vec![Row { lock: named(&claim.name), status }], CommandOptions::default());
            Some(Report::Status(StatusRows { rows, named: true, options, doubts: Vec::new() }))
        }),
    };
    report.unwrap_or_else(|error| Some(Report::Failed(error)))
}

fn acquire(store: &mut dyn Store, claim: &Claim, mode: AcquireMode) -> Result<Option<Report>, Error> {
    let acquired = store.acquire(&mut claim.clone(), Ttl::at_least(Duration::from_secs(30)), mode, limit())?;
    let Acquired::Held(state, place) = acquired else { return Ok(None) };
    store.pause(Limit::until(Moment::now()));
    let mut waiting = Waiting::new(&claim.name, Sharing::Exclusive, true);
    waiting.held(&state, place);
    oracle::harmless(&waiting.live());
    oracle::said();
    let (waited, sharing) = (Duration::from_secs(2), Sharing::Exclusive);
    let refused = Refused { state, place, waited, sharing, why: Refusal::Held };
    let lock = named(&claim.name);
    Ok(Some(Report::Busy(Busy { lock, refused, options: CommandOptions::default(), conflict_exit_code: None })))
}

/// Lists all names that the server returns, and the status of the first ones.
fn listed(store: &mut dyn Store) -> Result<Option<Report>, Error> {
    let mut rows = Vec::new();
    for name in store.names(Listed::Names, limit())?.into_iter().take(4) {
        let status = store.look(&name, Look::All, limit())?;
        rows.push(Row { lock: named(&name), status });
    }
    Ok(Some(Report::Status(StatusRows { rows, named: false, options: CommandOptions::default(), doubts: Vec::new() })))
}

fn rebuff(claim: &Claim, wanted: Wanted, released: Released) -> Option<Report> {
    match released {
        Released::Done => None,
        Released::NotYours(state) | Released::Lost(state) => Some(not_yours(claim, wanted, state)),
    }
}

fn not_yours(claim: &Claim, wanted: Wanted, state: LockState) -> Report {
    Report::NotYours(NotYours { lock: named(&claim.name), wanted, state, ended: None })
}

fn named(name: &LockName) -> Named {
    Named::new(name, &"lock:".parse().expect("a prefix"))
}

fn limit() -> Limit<'static> {
    Limit::until(Moment::now() + Duration::from_secs(5))
}
