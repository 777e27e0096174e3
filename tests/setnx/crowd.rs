//! Many old clients ("theirs") and many runs of nxlock ("ours"), killed at random, checked by their log.
//!
//! The tests check what nxlock promises, and no more. With clocks near the server's: no client is in the critical
//! section together with one of ours if the client keeps to its own time. With clocks that are far off: none of ours
//! takes over a lock that is valid by the server's clock, and no two of ours are in at the same time, unless one of
//! theirs has deleted the first one's lock, or the value that had overwritten it. Overlaps among theirs are ignored,
//! and an overlap of ours with a client whose clock is wrong is only counted.
//!
//! `NXLOCK_SETNX_SECONDS` lengthens a run.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::client::{Client, Replaced};
use super::{beside, is_ours, stamp};
use crate::support::{Redis, Running, eventually, lasts, now, text_of, wall};

const OF_EACH: u32 = 10;
const MARGIN: Duration = Duration::from_secs(2);

#[test]
fn near_clocks_let_nobody_in_beside_one_of_ours() {
    let told = contend(300);
    let mut wrong = Vec::new();
    for (first, second) in overlaps(&told.sections) {
        let theirs_is_late = [first, second].iter().any(|section| !section.ours && section.late);
        if (first.ours || second.ours) && !theirs_is_late {
            wrong.push(format!("{first:?} and {second:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", told.log);
    let of_ours = told.deleted.iter().filter(|deleted| deleted.ours).count();
    assert_eq!(of_ours, 0, "one of theirs has deleted a lock of ours");
}

#[test]
fn wild_clocks_make_none_of_ours_take_what_is_valid() {
    let told = contend(60_000);
    let beside_another = overlaps(&told.sections).filter(|(first, second)| first.ours && second.ours);
    // Compare the times of the grants: which command writes first is another matter.
    let excused = |(one, other): &(&Section, &Section)| {
        let (first, second) = (one.fence.min(other.fence), one.fence.max(other.fence));
        told.deleted.iter().any(|Deleted { micros, .. }| micros.start <= second && micros.end >= first)
    };
    let wrong: Vec<_> = beside_another.filter(|pair| !excused(pair)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", told.log);
}

/// One stay in the critical section, from line to line of the log.
#[derive(Debug)]
struct Section {
    who: String,
    ours: bool,
    from: usize,
    to: usize,
    /// When it was granted, by the server's clock, for one of ours; 0 for theirs.
    fence: u64,
    /// It stayed for longer than it believed to own the lock.
    late: bool,
}

struct Told {
    log: String,
    sections: Vec<Section>,
    deleted: Vec<Deleted>,
}

/// The time span in which one of theirs deleted the key, and whether the key held a value of ours.
struct Deleted {
    micros: Range<u64>,
    ours: bool,
}

fn overlaps(sections: &[Section]) -> impl Iterator<Item = (&Section, &Section)> {
    let after = |n: usize| sections[n + 1..].iter();
    let pairs = sections.iter().enumerate().flat_map(move |(n, first)| after(n).map(move |second| (first, second)));
    pairs.filter(|(first, second)| first.from < second.to && second.from < first.to)
}

/// The state that the threads of a run share.
struct Crowd<'a> {
    redis: &'a Redis,
    log: &'a Path,
    over: AtomicBool,
    calls: AtomicU32,
    counts: [AtomicU32; 8],
}

/// Ends a run when it is dropped, also after a failed check: otherwise the scope would never end and report it.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
enum Count {
    OurKills,
    OurLosses,
    OurTimeouts,
    TakenOver,
    PutBack,
    TheirCrashes,
    TheirLosses,
    TheirOvertakings,
}

impl Crowd<'_> {
    fn count(&self, what: Count, n: usize) {
        self.counts[what as usize].fetch_add(u32::try_from(n).unwrap(), Ordering::Relaxed);
    }

    fn counted(&self, what: Count) -> u32 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Writes the line at once, to keep the lines in the order of the events.
    fn writes(&self, line: &str) {
        File::options().append(true).open(self.log).unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Returns the time in microseconds; the server runs on this machine, by the same clock.
fn micros() -> u64 {
    u64::try_from(wall().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// A random number generator, which need not be a good one.
struct Dice(u64);

impl Dice {
    fn of(who: u32) -> Dice {
        let time = wall().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        Dice(u64::try_from(time & u128::from(u32::MAX)).unwrap() * 2_654_435_761 + u64::from(who) * 40_503 + 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Lets both kinds contend; the clocks of theirs differ from the server's by at most so many milliseconds.
#[expect(clippy::print_stdout, reason = "what was done")]
fn contend(clocks: i64) -> Told {
    let lasting = std::env::var("NXLOCK_SETNX_SECONDS").map_or(6, |text| text.parse().expect("seconds"));
    let redis = Redis::start();
    redis.leave_as_it_is();
    let log = redis.directory().join("log");
    File::create(&log).unwrap();
    redis.put(super::KEY, stamp(&redis, -60).as_bytes(), None);
    let crowd = Crowd {
        redis: &redis,
        log: &log,
        over: AtomicBool::new(false),
        calls: AtomicU32::new(0),
        counts: Default::default(),
    };
    std::thread::scope(|scope| {
        let crowd = &crowd;
        let _over = Over(&crowd.over);
        for n in 0..OF_EACH {
            scope.spawn(move || ours(crowd, &mut Dice::of(100 + n)));
        }
        eventually("what was abandoned is taken over", || crowd.counted(Count::TakenOver) > 0);
        for n in 0..OF_EACH {
            scope.spawn(move || theirs(crowd, n, clocks));
        }
        let began = now();
        // Both kinds must have been in, however slow the machine is.
        eventually("both kinds were in", || {
            let text = text_of(&log);
            text.contains("+ ours") && text.contains("+ theirs")
        });
        lasts(Duration::from_secs(lasting).saturating_sub(began.elapsed()));
    });
    let told = read(text_of(&log));
    let of = |ours| told.sections.iter().filter(move |section| section.ours == ours).count();
    let beside = overlaps(&told.sections).filter(|(first, second)| first.ours != second.ours).count();
    let among = overlaps(&told.sections).filter(|(first, second)| !first.ours && !second.ours).count();
    println!(
        "{lasting} s, clocks within {clocks} ms. Ours: {} calls, {} in, {} killed, {} lost (76), {} out of time (75), \
         {} taken over, {} put back. Theirs: {} in, {} crashed, {} of ours written over, {} locks of theirs taken, \
         {} of ours deleted. Overlaps: {beside} of both kinds, {among} among theirs",
        crowd.calls.load(Ordering::Relaxed),
        of(true),
        crowd.counted(Count::OurKills),
        crowd.counted(Count::OurLosses),
        crowd.counted(Count::OurTimeouts),
        crowd.counted(Count::TakenOver),
        crowd.counted(Count::PutBack),
        of(false),
        crowd.counted(Count::TheirCrashes),
        crowd.counted(Count::TheirLosses),
        crowd.counted(Count::TheirOvertakings),
        told.deleted.iter().filter(|deleted| deleted.ours).count(),
    );
    told
}

/// Runs one old client after another; each may crash while it holds the lock.
fn theirs(crowd: &Crowd<'_>, n: u32, clocks: i64) {
    let mut dice = Dice::of(n);
    let mut round = 0;
    while !crowd.is_over() {
        round += 1;
        let ahead = i64::try_from(dice.below(u64::try_from(2 * clocks).unwrap())).unwrap() - clocks;
        let mut client = Client::of(crowd.redis, 3 + i64::try_from(dice.below(2)).unwrap(), ahead);
        if !client.setnx() {
            let found = client.get();
            if found.is_some_and(|value| client.has_passed(&value)) {
                // The pause before GETSET makes the race.
                lasts(dice.millis(0, 30));
                match client.getset() {
                    Replaced::Owns => crowd.count(Count::TheirOvertakings, 1),
                    Replaced::Lost(old) if is_ours(Some(&old)) => crowd.count(Count::TheirLosses, 1),
                    Replaced::Lost(_) => {}
                }
            }
        }
        if client.left() > Duration::from_secs(1) {
            crowd.writes(&format!("+ theirs-{n}-{round}"));
            lasts(dice.millis(1, 20));
            let late = if client.left().is_zero() { " late" } else { "" };
            crowd.writes(&format!("- theirs-{n}-{round}{late}"));
            if dice.below(40) == 0 {
                crowd.count(Count::TheirCrashes, 1);
                client.crashes();
            } else {
                let before = micros();
                if let Some(value) = client.deletes() {
                    let whose = if is_ours(Some(&value)) { "ours" } else { "theirs" };
                    crowd.writes(&format!("deleted {whose} {before} {}", micros()));
                }
            }
        }
        lasts(dice.millis(20, 80));
    }
}

/// Runs nxlock again and again; each run may be killed before, while or after it holds the lock.
fn ours(crowd: &Crowd<'_>, dice: &mut Dice) {
    while !crowd.is_over() {
        let who = format!("ours-{}", crowd.calls.fetch_add(1, Ordering::Relaxed));
        // A killed command cannot log its end; its last beat shows how long it was in.
        let script = r#"exec >> "$LOG"; echo "+ $WHO $NXLOCK_FENCE"
            for beat in $BEATS; do sleep 0.005; echo "* $WHO"; done; echo "- $WHO""#;
        let beats = "beat ".repeat(usize::try_from(1 + dice.below(8)).unwrap());
        let margin = format!("{}ms", MARGIN.as_millis());
        let options = ["-v", "--server-timeout", "20s", "-t", "3s", "-w", "10s"];
        let mut words = beside("run", &[&options[..], &["--setnx-margin", &margin, "-c", script]].concat());
        if dice.below(4) == 0 {
            words.insert(1, "--no-queue");
        }
        let call = crowd.redis.nxlock(words.iter().map(|&word| word.to_owned()));
        let mut call = call.env("WHO", &who).env("LOG", crowd.log).env("BEATS", &beats).start();
        // The first lock is abandoned once: whoever takes it over has to live to say so.
        let may_be_killed = crowd.counted(Count::TakenOver) > 0;
        let kill = (dice.below(20) == 0 && may_be_killed).then(|| now() + dice.millis(0, 1500));
        eventually("it has ended, or is to be killed, or all is over", || {
            call.has_ended() || crowd.is_over() || kill.is_some_and(|at| now() >= at)
        });
        ends(crowd, call, &who);
    }
}

/// Kills a call that has not ended, and counts the outcome.
fn ends(crowd: &Crowd<'_>, mut call: Running, who: &str) {
    if !call.has_ended() {
        crowd.count(Count::OurKills, usize::from(!crowd.is_over()));
        call.signal(Signal::SIGKILL);
        eventually("it is gone", || call.has_ended());
    }
    let text = text_of(crowd.log);
    let stderr = call.stderr();
    crowd.count(Count::PutBack, stderr.matches("put back").count());
    if let Some((_, since)) = stderr.split_once("stale since ") {
        crowd.count(Count::TakenOver, 1);
        let fence = text.lines().filter_map(|line| line.strip_prefix(&format!("+ {who} "))).next();
        if let Some(fence) = fence {
            let stale = humantime::parse_rfc3339(&since[..24]).unwrap() + MARGIN;
            // The fence is the server's clock at the grant, or slightly more.
            let granted = SystemTime::UNIX_EPOCH + Duration::from_micros(fence.parse().unwrap());
            assert!(granted >= stale, "{who} has taken at {granted:?} what was valid until {stale:?}:\n{stderr}");
        }
    }
    match call.finish().status.code() {
        Some(76) => crowd.count(Count::OurLosses, 1),
        Some(75) => crowd.count(Count::OurTimeouts, 1),
        Some(0) | None => {}
        Some(other) => panic!("{who} has ended with {other}:\n{stderr}"),
    }
}

fn read(log: String) -> Told {
    let (mut sections, mut deleted) = (Vec::<Section>::new(), Vec::new());
    for (at, line) in log.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "+" => {
                let ours = words[1].starts_with("ours");
                let fence = words.get(2).map_or(0, |fence| fence.parse().unwrap());
                sections.push(Section { who: words[1].into(), ours, from: at, to: at, fence, late: false });
            }
            "*" | "-" => {
                let section = sections.iter_mut().rev().find(|section| section.who == words[1]).expect("it was in");
                (section.to, section.late) = (at, words.get(2) == Some(&"late"));
            }
            _ => {
                let micros = words[2].parse().unwrap()..words[3].parse().unwrap();
                deleted.push(Deleted { micros, ours: words[1] == "ours" });
            }
        }
    }
    Told { log, sections, deleted }
}
