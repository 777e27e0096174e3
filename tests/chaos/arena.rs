//! An arena: one place where locks live, its contenders, and its faults, all at once.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::asker;
use crate::contender;
use crate::ground::{Failing, Failovers, Ground, Login, Moves, OneMachine, Server, Several, everything_but_forgetting};
use crate::observer;
use crate::outsider;
use crate::process::{gone_within, swept};
use crate::record::{Ailment, Journal, Left, On, Record, boot_clock, nanos};
use crate::seed::Seed;
use crate::support::{Redis, lasts};
use crate::trace;

pub struct Spec {
    name: &'static str,
    ground: Box<dyn Ground>,
    names: Vec<&'static str>,
    /// The names of locks that are also shared.
    pools: Vec<&'static str>,
    contenders: u64,
    outsiders: u64,
    /// Percentage of attempts at exclusive locks that want the first of them.
    hot: u64,
    /// Percentage of attempts that lose their network while they ignore TERM, and must be killed in time.
    severed: u64,
    /// Percentage of attempts that start processes which outlive their command.
    branching: u64,
    /// Percentage of attempts that want several locks at once.
    together: u64,
    /// How many ask holders to give up.
    askers: u64,
    /// They also take locks from their holders.
    breaks: bool,
}

impl Spec {
    fn new(name: &'static str, ground: impl Ground + 'static, names: &[&'static str], contenders: u64) -> Spec {
        let ground = Box::new(ground);
        Spec {
            name,
            ground,
            names: names.to_vec(),
            pools: Vec::new(),
            contenders,
            outsiders: 0,
            hot: 60,
            severed: 0,
            branching: 0,
            together: 0,
            askers: 0,
            breaks: false,
        }
    }

    /// No faults of the server: all contention is between processes, and most happens here.
    pub fn bare() -> Spec {
        let server = Server::new(Redis::start(), &[Ailment::ScriptsForgotten], (100, 500));
        Spec { outsiders: 1, together: 25, askers: 1, ..Spec::new("bare", server, &["hot", "mild"], 7) }
    }

    /// The same, but most commands start processes that outlive them. Many commands, nxlocks and guards are killed.
    pub fn killed() -> Spec {
        let server = Server::new(Redis::start(), &[Ailment::ScriptsForgotten], (100, 500));
        Spec {
            branching: 60,
            together: 25,
            askers: 1,
            pools: vec!["pool"],
            ..Spec::new("killed", server, &["hot", "mild", "cold"], 6)
        }
    }

    /// A server with every fault that loses no data, and with a clock as fast as the margin allows.
    pub fn lasting() -> Spec {
        let login = Login::new();
        let users = login.users().display().to_string();
        let options = ["--appendonly", "yes", "--appendfsync", "always", "--aclfile", &users];
        let redis = Redis::with_clock(9_000, &options);
        let server = Server::new(redis, &everything_but_forgetting(), (20, 300)).with(login);
        Spec {
            together: 25,
            askers: 1,
            pools: vec!["pool"],
            ..Spec::new("lasting", server, &["hot", "mild", "cold"], 7)
        }
    }

    /// A server that loses data. Only here may two holders overlap, for a limited time.
    pub fn forgetful() -> Spec {
        use Ailment::{Deleted, Emptied, Flushed, Hung, Overwritten, ScriptsForgotten, SetForward};
        let ailments = [Deleted, Emptied, Flushed, Hung, Overwritten, ScriptsForgotten, SetForward];
        let server = Server::new(Redis::with_clock(0, &[]), &ailments, (200, 1200));
        Spec {
            outsiders: 1,
            askers: 1,
            breaks: true,
            pools: vec!["pool"],
            ..Spec::new("forgetful", server, &["hot", "mild"], 5)
        }
    }

    /// A server on whose clock leases expire as early as the margin allows, and holders that do not learn of it.
    pub fn drifting() -> Spec {
        let server = Server::new(Redis::with_clock(9_900, &[]), &[Ailment::ScriptsForgotten], (100, 500));
        let names = ["hot", "mild", "cool", "cold", "icy", "still"];
        // Many hold a lock at once, each for a whole lease or more.
        Spec { severed: 50, hot: 15, ..Spec::new("drifting", server, &names, 8) }
    }

    /// Every lock is shared by some and exclusive for others. No faults of the server.
    pub fn sharing() -> Spec {
        let server = Server::new(Redis::start(), &[Ailment::ScriptsForgotten], (100, 500));
        Spec { outsiders: 1, askers: 1, pools: vec!["pool", "report"], ..Spec::new("sharing", server, &[], 9) }
    }

    /// Five servers that vote, of which some are down or slow at any time.
    pub fn several() -> Spec {
        Spec { branching: 10, together: 25, ..Spec::new("several", Several::new(), &["hot", "mild", "cold"], 5) }
    }

    /// A master that sentinels replace, and that does not know it. A lock that the next master does not have may
    /// overlap with another, for a limited time.
    pub fn deposed() -> Spec {
        Spec { pools: vec!["pool"], ..Spec::new("deposed", Failovers::new(), &["hot", "mild"], 5) }
    }

    /// A cluster that moves the slots of the locks from node to node all the time.
    pub fn moving() -> Spec {
        Spec { together: 25, askers: 1, pools: vec!["pool"], ..Spec::new("moving", Moves::new(), &["hot", "mild"], 6) }
    }

    /// A place whose fault injector itself fails.
    pub fn failing(why: &'static str) -> Spec {
        Spec::new("failing", Failing(OneMachine::new(), why), &["hot"], 2)
    }

    /// No server: a directory of this machine.
    pub fn serverless() -> Spec {
        Spec {
            branching: 20,
            together: 25,
            askers: 1,
            pools: vec!["pool"],
            ..Spec::new("serverless", OneMachine::new(), &["hot", "mild"], 7)
        }
    }
}

/// State that all participants of an arena share.
pub struct Shared<'a> {
    pub journal: &'a Journal,
    /// Those of the locks that are always exclusive, then those of the others.
    pub names: Vec<String>,
    /// How many of them are always exclusive.
    pub exclusive: usize,
    pub near: String,
    pub far: Option<String>,
    pub socket: Option<PathBuf>,
    pub hot: u64,
    pub severed: u64,
    pub branching: u64,
    pub together: u64,
    pub breaks: bool,
    pub directory: PathBuf,
    /// The file of the password that the server wants.
    pub password: Option<PathBuf>,
    /// An environment variable that all processes started here inherit.
    pub mark: String,
    over: &'a AtomicBool,
}

impl Shared<'_> {
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether several servers vote.
    pub fn is_several(&self) -> bool {
        self.near.contains(' ')
    }

    /// Gives a process the environment of this arena, and no other.
    pub fn lead(&self, command: &mut Command) {
        let (mark, value) = self.mark.split_once('=').expect("a variable");
        command.env_clear().env("NXLOCK_SERVER_TIMEOUT", "2s").env(mark, value);
        if let Some(password) = &self.password {
            command.env("NXLOCK_PASSWORD_FILE", password);
        }
    }
}

pub struct Arena {
    spec: Spec,
    seed: Seed,
    directory: TempDir,
}

impl Arena {
    pub fn open(spec: Spec, seed: Seed) -> Arena {
        let directory = tempfile::Builder::new().prefix("nxc").tempdir().expect("a directory for the arena");
        Arena { spec, seed, directory }
    }

    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    pub fn run(self, duration: Duration) -> Record {
        let Arena { spec, seed, directory } = self;
        let Spec { name: arena, mut ground, names, pools, contenders, outsiders, hot, severed, branching, .. } = spec;
        let journal = Journal::at(&directory.path().join("log"));
        std::fs::write(&journal.log, "").expect("a log");
        let over = AtomicBool::new(false);
        let everybody_left = AtomicBool::new(false);
        let shared = Shared {
            journal: &journal,
            names: names.iter().chain(&pools).map(|&name| name.to_owned()).collect(),
            exclusive: names.len(),
            near: ground.near(),
            far: ground.far(),
            socket: ground.socket(),
            hot,
            severed,
            branching,
            together: spec.together,
            breaks: spec.breaks,
            directory: directory.path().to_owned(),
            password: ground.password(),
            mark: format!("CHAOS_ARENA={}", directory.path().display()),
            over: &over,
        };
        let _sweeper = swept(&shared.mark);
        let (files, traced, masters, voted) = (ground.files(), ground.traced(), ground.masters(), shared.is_several());
        let nodes = ground.nodes();
        let began = boot_clock();
        let mut injector = seed.branch(0);
        let ((sights, unwatched), traces) = thread::scope(|scope| {
            let (shared, everybody_left, seed, files) = (&shared, &everybody_left, &seed, files.as_ref());
            let enough = move || everybody_left.load(Ordering::Relaxed);
            // If one thread panics, the others end as well.
            let _ends = (Sets(&over), Sets(everybody_left));
            let observer = scope.spawn(move || {
                let poll = match (&shared.socket, files) {
                    (Some(socket), _) => observer::at_server(shared, socket),
                    (None, Some(files)) => observer::at_directory(shared, files),
                    (None, None) if !nodes.is_empty() => observer::at_nodes(shared, &nodes),
                    (None, None) => return Default::default(),
                };
                observer::watch(shared.names.len(), poll, enough)
            });
            let masters = &masters;
            let at_servers = traced.iter().map(|socket| scope.spawn(move || trace::follow(socket, masters, enough)));
            let in_files = files.map(|files| scope.spawn(move || trace::saves::follow(files, enough)));
            let traces: Vec<_> = at_servers.chain(in_files).collect();
            for processor in processors() {
                scope.spawn(move || feel_the_pulse(processor, shared.journal, everybody_left));
            }
            let mut others = Vec::new();
            for n in 1..=contenders {
                others.push(scope.spawn(move || contender::contend(shared, seed.branch(n))));
            }
            for n in 1..=spec.askers {
                others.push(scope.spawn(move || asker::goes_on(shared, seed.branch(2000 + n))));
            }
            if let Some(socket) = &shared.socket {
                for n in 1..=outsiders {
                    others.push(scope.spawn(move || outsider::contend(shared, socket, seed.branch(1000 + n))));
                }
            }
            // Not from `began`: on a busy machine it takes a while until all of them are there.
            let ends = boot_clock() + nanos(duration);
            while boot_clock() < ends {
                ground.suffers(&mut injector, &shared.names, shared.journal);
            }
            over.store(true, Ordering::Relaxed);
            for other in others {
                other.join().expect("it ends well");
            }
            everybody_left.store(true, Ordering::Relaxed);
            let traces = traces.into_iter().map(|trace| trace.join().expect("it ends well")).collect();
            (observer.join().expect("it ends well"), traces)
        });
        let ended = boot_clock();
        let names = shared.names.clone();
        // A process that waited for a killed script goes on until it notices.
        let processes = gone_within(&shared.mark, Duration::from_secs(15));
        let mut left: Vec<Left> = processes.into_iter().map(Left::of_nobody).collect();
        left.extend(ground.left());
        let (attempts, stamps, faults, torn) = journal.close();
        Record { arena, names, began, ended, attempts, stamps, faults, sights, unwatched, traces, voted, left, torn }
    }
}

/// Sets a flag when dropped.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the processors on which this process may run.
pub fn processors() -> Vec<usize> {
    let ours = sched_getaffinity(Pid::from_raw(0)).expect("processors");
    (0..CpuSet::count()).filter(|&processor| ours.is_set(processor).unwrap_or(false)).collect()
}

/// Lets this thread run before all that has no such priority, sched(7), if that is permitted.
pub fn runs_before_others() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: sched_setscheduler(2) reads one sched_param; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
}

/// Detects when a processor runs nobody, by not running itself: a virtual processor may stop for a while, with the
/// threads on it, while the others go on. Where it may, it runs before all that the arenas start, sched(7): elsewhere it
/// takes a busy processor for one that has stopped.
fn feel_the_pulse(processor: usize, journal: &Journal, enough: &AtomicBool) {
    const BEAT: Duration = Duration::from_millis(5);
    const MISSED: Duration = Duration::from_millis(30);
    let mut alone = CpuSet::new();
    alone.set(processor).expect("one of ours");
    sched_setaffinity(Pid::from_raw(0), &alone).expect("it is ours");
    runs_before_others();
    let mut last = boot_clock();
    while !enough.load(Ordering::Relaxed) {
        lasts(BEAT);
        let now = boot_clock();
        if now - last > nanos(MISSED) {
            journal.befell(Ailment::Stalled, On::All, last);
        }
        last = now;
    }
}
