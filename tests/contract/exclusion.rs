//! Mutual exclusion, however many callers compete, and fences that rise with every grant.

use crate::support::turns::{break_it, counted, ends_by_itself, release};
use crate::support::{Authority, Nxlock, Running, text_of};

/// Increments a counter that only the lock protects.
const INCREMENT: &str = "read n < \"$COUNTER\"; echo $((n + 1)) > \"$COUNTER\"";

pub fn a_crowd_at_once_loses_no_update(authority: &impl Authority) {
    let crowd = authority.crowd();
    let counter = authority.directory().join("counter");
    std::fs::write(&counter, "0\n").unwrap();
    // A server may take long to reply to so many first connections at once, each with a TLS handshake.
    let words = ["-q", "run", "counter", "--server-timeout", "20s", "-c", INCREMENT];
    let start = |_| authority.nxlock(words).env("COUNTER", &counter).start();
    counted(&counter, (0..crowd).map(start).collect(), crowd);
}

pub fn callers_who_come_again_and_again_lose_no_update(authority: &impl Authority) {
    let counter = authority.directory().join("counter");
    std::fs::write(&counter, "0\n").unwrap();
    let script = r#"for i in 1 2 3 4 5 6 7 8; do nxlock -q run counter --server-timeout 20s "$@" || exit; done"#;
    let start = |who: usize| {
        let options = if who.is_multiple_of(3) { &["--no-queue", "-c", INCREMENT][..] } else { &["-c", INCREMENT] };
        authority.sh(script, options).env("COUNTER", &counter).start()
    };
    counted(&counter, (0..12).map(start).collect(), 12 * 8);
}

pub fn fences_rise_however_a_grant_ends(authority: &impl Authority) {
    let mut fences = Vec::new();
    for options in [&[][..], &["--no-queue"]] {
        for end in ["given back", "broken", "expired"] {
            let ttl = if end == "expired" { "100ms" } else { "1m" };
            // A grant that is answered after half of such a short lease is asked for again.
            let words = ["--json", "acquire", "job", "--ttl", ttl, "--server-timeout", "20s"];
            let granted = authority.nxlock(words.iter().chain(options).copied()).run().exits(0).json();
            fences.push(granted["fence"].as_u64().expect("every grant has a fence"));
            match end {
                "given back" => release(authority, granted["token"].as_str().unwrap()),
                "broken" => break_it(authority),
                _ => ends_by_itself(authority),
            }
        }
        let words = ["run", "job"].iter().chain(options).chain(&["-c", "echo $NXLOCK_FENCE"]).copied();
        fences.push(authority.nxlock(words).run().exits(0).text().trim().parse().expect("a fence"));
    }
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}

pub fn fences_rise_in_the_order_of_the_grants(authority: &impl Authority) {
    let log = authority.directory().join("log");
    let run = |options: &[&'static str]| {
        let words = ["-q", "run", "job"].iter().chain(options).chain(&["-c", "echo $NXLOCK_FENCE >> \"$LOG\""]);
        authority.nxlock(words.copied())
    };
    let acquire = r#"
        vars=$(nxlock -q acquire job --ttl 1m --export) && eval "$vars" || exit
        echo $NXLOCK_FENCE >> "$LOG"
        nxlock release job"#;
    let call = |who: usize| -> Nxlock {
        match who % 3 {
            0 => run(&[]),
            1 => run(&["--no-queue"]),
            _ => authority.sh(acquire, &[]),
        }
    };
    // A server may take long to reply to so many at once.
    let call = |who: usize| call(who).env("LOG", &log).env("NXLOCK_SERVER_TIMEOUT", "20s");
    let callers: Vec<Running> = (0..30).map(|who| call(who).start()).collect();
    for caller in callers {
        caller.finish().exits(0).says_nothing();
    }
    let fences: Vec<u64> = text_of(&log).lines().map(|line| line.parse().expect("a fence")).collect();
    assert_eq!(fences.len(), 30);
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}
