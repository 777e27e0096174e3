//! A crowd on one machine, some of which are killed at any instruction: mutual exclusion holds, and no update is lost.

use std::collections::HashSet;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Patient, as_long_as_it_goes_on};
use crate::support::turns::{acquire, release};
use crate::support::{Authority, Local, children_of, eventually, eventually_some, is_alive, text_of, wall};

const CALLERS: usize = 100;
const TIMES: usize = 10;

/// Starts all callers. Each runs nxlock until it has succeeded $TIMES times; runs may be killed in between. Any other
/// status is printed.
const CROWD: &str = r#"
    caller() {
        i=0
        while [ $i -lt $TIMES ]; do
            nxlock -q run job -c "$1"; s=$?
            case $s in 0) i=$((i + 1));; 137) ;; *) echo "a run has ended with $s";; esac
        done
    }
    n=0; while [ $n -lt $CALLERS ]; do caller "$1" & n=$((n + 1)); done; wait"#;

/// One increment, which only the lock protects. The counter is written all at once or not at all; /bin/true leaves time
/// for a kill before that.
const INCREMENT: &str = r#"
    p=${NXLOCK_TOKEN#*:*:*:}; p=${p%%:*}
    read n < "$COUNTER"; echo "begin $p $n" >> "$LOG"
    /bin/true; n=$((n + 1)); printf '%-9d\n' $n 1<> "$COUNTER"; echo "end $p $n" >> "$LOG""#;

/// Varies the process that is killed: xorshift64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

fn parent(pid: i32) -> Option<i32> {
    let stat = text_of(Path::new(&format!("/proc/{pid}/stat")));
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the process that has begun and not ended, according to the last line.
fn at_work(log: &Path) -> Option<i32> {
    let file = File::open(log).ok()?;
    let mut tail = vec![0; 100];
    let begin = file.metadata().ok()?.len().saturating_sub(100);
    let length = file.read_at(&mut tail, begin).ok()?;
    let tail = String::from_utf8_lossy(&tail[..length]).into_owned();
    tail.lines().next_back()?.strip_prefix("begin ")?.split(' ').next()?.parse().ok()
}

/// What the log says, read line by line.
struct Told<'a> {
    killed: &'a HashSet<i32>,
    /// The process at work, and the count that it read.
    at_work: Option<(i32, u64)>,
    /// Possible values of the counter: a killed process may or may not have written it.
    counter: RangeInclusive<u64>,
    ends: usize,
    cut_off: usize,
}

impl Told<'_> {
    fn line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap_or_default();
        let (what, who, n) = (next(), next().parse::<i32>().unwrap(), next().parse::<u64>().unwrap());
        match what {
            "begin" => {
                if let Some((before, _)) = self.at_work.replace((who, n)) {
                    assert!(self.killed.contains(&before), "{who} has begun while {before} was at work");
                    self.cut_off += 1;
                }
                assert!(self.counter.contains(&n), "{who} has read {n}, which should be {:?}", self.counter);
                self.counter = n..=n + 1;
            }
            "end" => {
                assert_eq!(self.at_work.take(), Some((who, n - 1)), "whoever ends was at work");
                self.counter = n..=n;
                self.ends += 1;
            }
            _ => panic!("`{line}` in the log"),
        }
    }
}

#[test]
fn a_hundred_at_once_of_which_some_are_killed_lose_no_update() {
    let local = Patient(Local::start());
    let (counter, log) = (local.directory().join("counter"), local.directory().join("log"));
    fs::write(&counter, "0        \n").unwrap();
    let seed = u64::try_from(wall().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()).unwrap() | 1;
    let mut chance = Chance(seed);
    // Until all have come, nobody gets so far that it leaves again.
    let token = acquire(&local, "1h");
    let crowd = local.sh(CROWD, &[INCREMENT]).env("COUNTER", &counter).env("LOG", &log);
    let mut crowd = crowd.env("CALLERS", CALLERS.to_string()).env("TIMES", TIMES.to_string()).start();
    eventually("they have come", || children_of(crowd.pid()).len() == CALLERS);
    let callers = children_of(crowd.pid());
    release(&local, &token);
    eventually("the first is at work", || !text_of(&log).is_empty());

    let mut killed = HashSet::new();
    let (mut holders, mut others) = (0, 0);
    while !crowd.has_ended() {
        let holds = chance.below(2) == 0;
        let caller = callers[chance.below(callers.len())];
        let found = || if holds { at_work(&log) } else { children_of(caller).first().copied() };
        // No other process may be killed: a pid may have been reused.
        let is_theirs = |pid: &i32| parent(*pid).is_some_and(|parent| callers.contains(&parent));
        let has_returned = || !holds && children_of(crowd.pid()).iter().all(|pid| *pid != caller);
        let victim = eventually_some("somebody is there to be killed", || match found().filter(is_theirs) {
            None if has_returned() || !is_alive(crowd.pid()) => Some(None),
            None => None,
            victim => Some(victim),
        });
        if let Some(victim) = victim.filter(|victim| kill(Pid::from_raw(*victim), Signal::SIGKILL).is_ok()) {
            killed.insert(victim);
            *(if holds { &mut holders } else { &mut others }) += 1;
        }
        let length = || fs::metadata(&log).unwrap().len();
        let seen = length() + u64::try_from(chance.below(1000)).unwrap();
        as_long_as_it_goes_on(&log, || crowd.has_ended() || length() > seen);
    }
    crowd.finish().exits(0).prints("");

    let text = text_of(&log);
    let of_seed = format!("with the seed {seed}");
    let mut told = Told { killed: &killed, at_work: None, counter: 0..=0, ends: 0, cut_off: 0 };
    text.lines().for_each(|line| told.line(line));
    let count = text_of(&counter).trim().parse().unwrap();
    assert!(told.counter.contains(&count), "{count} is not {:?}, {of_seed}", told.counter);
    let wanted = CALLERS * TIMES;
    assert!(told.ends >= wanted && told.ends <= wanted + killed.len(), "{} ends {of_seed}", told.ends);
    let count = usize::try_from(count).unwrap();
    assert!(count >= told.ends && count <= told.ends + told.cut_off + 1, "{count} with {} ends {of_seed}", told.ends);
    assert!(holders >= 10 && others >= 10, "{holders} holders and {others} others were killed {of_seed}");
}
