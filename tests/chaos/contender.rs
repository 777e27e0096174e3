//! A contender: a thread that acquires locks, again and again, in different ways. Owns the faults of the processes that
//! this takes.

use std::fs::File;
use std::io::Write;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::pty::PtyMaster;
use nix::sys::signal::Signal;

use crate::arena::Shared;
use crate::process::{Process, children, command_of, guard_of, has_started, signal, starved_by, told};
use crate::record::{ALSO, Ailment, Attempt, Client, Mode, On, Starved, Who, boot_clock, nanos};
use crate::section::{CARRY_OUT, Orders};
use crate::seed::Seed;
use crate::shell;
use crate::support::{Condition, Network, Terminal, Way, lasts, program};

/// Longer than any wait: by then every holder ahead is done, or its lease has expired.
const STUCK: Duration = Duration::from_secs(60);

/// The work under the lock, and whether the command can be stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Ignores TERM.
    Deaf,
    /// The command obeys TERM, and its child ignores it.
    Tree,
    /// The command obeys TERM, and has started a daemon: a process in a session of its own, forked twice, that ignores
    /// TERM and lacks the environment that nxlock gave to the command.
    Daemon,
    Script,
    /// Ignores TERM, for longer than its lease, over a slow network of its own that is cut off.
    Severed,
    /// The shortest lease that nxlock accepts. It leaves no time for a slow machine, so the section is short.
    Shortest,
}

/// The parameters of one attempt.
struct Choice {
    name: usize,
    mode: Mode,
    /// The further locks.
    also: Vec<(usize, Mode)>,
    kind: Kind,
    ttl: Duration,
    length: Duration,
    beat: Duration,
    kill_after: Duration,
    queued: bool,
    near: bool,
    /// At a terminal, under a shell with job control.
    typed: bool,
    /// The options for the wait, and others.
    options: Vec<String>,
    plan: Option<Plan>,
}

/// A fault that happens to an attempt.
#[derive(Clone, Copy)]
struct Plan {
    ailment: Ailment,
    /// Counted from the start of the command, not of nxlock.
    inside: bool,
    after: Duration,
    lasts: Duration,
}

pub fn contend(shared: &Shared<'_>, mut seed: Seed) {
    while !shared.is_over() {
        let choice = choose(shared, &mut seed);
        attempt(shared, &choice);
        lasts(if seed.percent(10) { seed.millis(5, 60) } else { seed.millis(0, 4) });
    }
}

fn choose(shared: &Shared<'_>, seed: &mut Seed) -> Choice {
    // Half of them want one of the locks that can be shared.
    let (all, exclusive) = (shared.names.len() as u64, shared.exclusive as u64);
    let is_pool = exclusive == 0 || exclusive < all && seed.percent(50);
    // Most contenders want the first name, and none keeps it for long.
    let name = match is_pool {
        true => seed.between(exclusive, all),
        false if exclusive == 1 || seed.percent(shared.hot) => 0,
        false => seed.between(1, exclusive),
    };
    let mode = match is_pool {
        true => mode(seed, name == exclusive),
        false => Mode::Exclusive,
    };
    let kind = match seed.between(0, 100) {
        _ if seed.percent(shared.severed) => Kind::Severed,
        _ if seed.percent(shared.branching) => seed.one_of(&[Kind::Tree, Kind::Daemon, Kind::Daemon]),
        0..8 => Kind::Script,
        8..12 => Kind::Tree,
        24..30 => Kind::Daemon,
        12..20 => Kind::Deaf,
        22..24 => Kind::Shortest,
        _ => Kind::Plain,
    };
    let ailing = match kind {
        Kind::Severed | Kind::Shortest => false,
        Kind::Tree | Kind::Daemon => seed.percent(70),
        Kind::Plain | Kind::Deaf | Kind::Script => seed.percent(14),
    };
    let ttl = Duration::from_millis(match kind {
        Kind::Script => seed.one_of(&[1000, 2000]),
        Kind::Deaf | Kind::Tree | Kind::Daemon => seed.one_of(&[1000, 1000, 2000]),
        // The longer the lease, the more a clock drifts in it.
        Kind::Severed => seed.one_of(&[500, 1000, 2000, 4000, 4000]),
        Kind::Shortest => 100,
        Kind::Plain if ailing || name == 0 => seed.one_of(&[500, 500, 1000]),
        Kind::Plain => seed.one_of(&[300, 500, 500, 1000, 2000, 5000]),
    });
    // Those who share meet.
    let short = if mode.is_exclusive() { seed.millis(0, 15) } else { seed.millis(5, 60) };
    let length = match (kind, seed.between(0, 100)) {
        (Kind::Shortest, _) => short,
        (Kind::Severed, _) => ttl * 2,
        // Some still run when the lease of a killed holder has expired.
        (Kind::Daemon, 0..20) => ttl.mul_f64(1.3),
        (Kind::Tree | Kind::Daemon, _) => short + seed.millis(100, 300),
        (_, 0..4) if name > 0 && ttl <= Duration::from_secs(1) => ttl.mul_f64(1.2) + seed.millis(0, 500),
        (_, 4..10) => seed.millis(20, 120),
        (Kind::Deaf, _) => short + seed.millis(10, 100),
        (Kind::Plain | Kind::Script, _) => short,
    };
    let mut options = match seed.between(0, 100) {
        0..6 => vec!["-n".into()],
        6..20 => vec!["-w".into(), format!("{}ms", seed.between(5, 900))],
        _ => Vec::new(),
    };
    let queued = !seed.percent(8);
    if !queued {
        // With somebody always in line, its turn may never come.
        if options.is_empty() {
            options.extend(["-w", "20s"].map(String::from));
        }
        options.push("--no-queue".into());
    }
    match mode {
        Mode::Exclusive => {}
        Mode::Slots(count) => options.extend(["--slots".into(), count.to_string()]),
        Mode::Shared => options.push("--shared".into()),
    }
    // Several servers have no place for any of these.
    if !shared.is_several() && kind != Kind::Script {
        if queued && seed.percent(6) {
            options.push("--first".into());
        }
        if queued && seed.percent(10) {
            // Of several holders, none is the one to give up.
            let running = mode == Mode::Exclusive && seed.percent(50);
            options.push(if running { "--supersede=running" } else { "--supersede" }.into());
        }
        if seed.percent(20) {
            options.push("--record=5".into());
            if mode == Mode::Exclusive && seed.percent(20) {
                options.extend(["--unless-done".into(), format!("{}ms", seed.between(5, 300))]);
            }
        }
    }
    let name = usize::try_from(name).expect("it fits");
    // No process keeps those of a script, and the shortest lease is over before the last of several is granted.
    let may_have_more = !matches!(kind, Kind::Script | Kind::Shortest);
    let also = if may_have_more && seed.percent(shared.together) { further(shared, seed, name) } else { Vec::new() };
    for (other, mode) in &also {
        let option = if mode.is_exclusive() { "--also" } else { "--also-shared" };
        options.extend([option.to_owned(), shared.names[*other].clone()]);
    }
    // One that has lost its network and does not stop is killed when its lease ends, and not before.
    let kill_after = if kind == Kind::Severed { ttl } else { seed.millis(50, 200) };
    if kind != Kind::Script {
        options.extend(["--kill-after".into(), format!("{}ms", kill_after.as_millis())]);
        if seed.percent(3) {
            options.extend(["--at-least".into(), format!("{}ms", seed.between(1, 60))]);
        }
        if seed.percent(2) {
            options.extend(["--time-limit".into(), format!("{}ms", seed.between(1, 100))]);
        }
    }
    let near = kind != Kind::Severed && (shared.far.is_none() || seed.percent(50));
    let typed = match kind {
        Kind::Script | Kind::Severed | Kind::Shortest => false,
        Kind::Tree | Kind::Daemon => ailing && seed.percent(50),
        Kind::Plain | Kind::Deaf => ailing && seed.percent(20),
    };
    let plan = ailing.then(|| plan(seed, ttl, kind, typed));
    let plan = plan.or_else(|| (kind == Kind::Severed).then(|| severed(seed, ttl)));
    let beat = seed.millis(1, 5);
    Choice { name, mode, also, kind, ttl, length, beat, kill_after, queued, near, typed, options, plan }
}

/// Returns one or two locks to have beside this one, in any order. Those that can be shared are, mostly.
fn further(shared: &Shared<'_>, seed: &mut Seed, name: usize) -> Vec<(usize, Mode)> {
    let mut others: Vec<usize> = (0..shared.names.len()).filter(|other| *other != name).collect();
    let count = seed.between(1, ALSO as u64 + 1).min(others.len() as u64);
    let mut chosen = Vec::new();
    for _ in 0..count {
        let at = usize::try_from(seed.between(0, others.len() as u64)).expect("it fits");
        let other = others.swap_remove(at);
        let is_shared = other >= shared.exclusive && seed.percent(70);
        chosen.push((other, if is_shared { Mode::Shared } else { Mode::Exclusive }));
    }
    chosen
}

/// Returns how one of several users of a lock shares it: mostly by slots, or mostly as readers.
fn mode(seed: &mut Seed, by_slots: bool) -> Mode {
    match (by_slots, seed.between(0, 100)) {
        (true, 0..55) => Mode::Slots(3),
        (true, 55..70) => Mode::Slots(2),
        (true, 70..80) | (false, 0..60) => Mode::Shared,
        (false, 60..70) => Mode::Slots(4),
        (_, 95..) => Mode::Slots(1),
        _ => Mode::Exclusive,
    }
}

fn plan(seed: &mut Seed, ttl: Duration, kind: Kind, typed: bool) -> Plan {
    use Ailment::{
        Cancelled, CommandKilled, FrozenAlone, FrozenWithCommand, GroupKilled, GuardKilled, Killed, Suspended,
        TypedInterrupt, TypedStop,
    };
    let ailment = match kind {
        _ if typed => {
            seed.one_of(&[TypedInterrupt, TypedInterrupt, TypedStop, TypedStop, Killed, GuardKilled, GroupKilled])
        }
        Kind::Tree | Kind::Daemon => {
            seed.one_of(&[Killed, Killed, GuardKilled, GroupKilled, Cancelled, Cancelled, FrozenWithCommand, Suspended])
        }
        Kind::Script => {
            seed.one_of(&[Killed, CommandKilled, FrozenAlone, FrozenAlone, FrozenWithCommand, Suspended, Cancelled])
        }
        _ => seed.one_of(&[
            Killed,
            GuardKilled,
            GroupKilled,
            CommandKilled,
            FrozenAlone,
            FrozenAlone,
            FrozenWithCommand,
            Suspended,
            Cancelled,
        ]),
    };
    // A fault says something about a tree only after the tree has started.
    let after = match kind {
        Kind::Tree | Kind::Daemon if seed.percent(70) => seed.millis(10, 120),
        _ if seed.percent(70) => seed.millis(0, 30),
        _ => seed.millis(0, 300),
    };
    let lasts = match ailment {
        // Mostly for less than the rest of a lease, and sometimes for all of it.
        FrozenAlone if seed.percent(80) => ttl.mul_f64(seed.between(1, 25) as f64 / 100.0),
        FrozenAlone | FrozenWithCommand | Suspended | TypedStop => ttl.mul_f64(seed.between(20, 180) as f64 / 100.0),
        _ => Duration::ZERO,
    };
    Plan { ailment, inside: false, after, lasts }
}

fn severed(seed: &mut Seed, ttl: Duration) -> Plan {
    let after = ttl.mul_f64(seed.between(10, 120) as f64 / 100.0);
    // A contender that waits has no lease that could end.
    Plan { ailment: Ailment::Severed, inside: seed.percent(75), after, lasts: ttl * 3 }
}

fn attempt(shared: &Shared<'_>, choice: &Choice) {
    let will_not_stop = matches!(choice.kind, Kind::Deaf | Kind::Tree | Kind::Daemon | Kind::Severed);
    let has = |name: &str| choice.options.iter().any(|option| option == name);
    let who = shared.journal.asks(Attempt {
        name: choice.name,
        client: if choice.kind == Kind::Script { Client::Script } else { Client::Run },
        mode: choice.mode,
        also: choice.also.clone(),
        ttl: nanos(choice.ttl),
        queued: choice.queued,
        first: has("--first"),
        near: choice.near,
        dawdles: if will_not_stop { nanos(choice.kill_after) } else { 0 },
        // A script may be stopped between `acquire` and `release`.
        outlasted: choice.kind == Kind::Script || has("--at-least"),
        may_be_refused: ["-n", "-w", "--supersede", "--supersede=running", "--unless-done"].into_iter().any(has),
        supersedes_holders: has("--supersede=running"),
        is_limited: has("--time-limit"),
        asked: boot_clock(),
        ended: None,
        starved: Starved::default(),
    });
    let own = (choice.kind == Kind::Severed).then(|| Network::to_socket(shared.socket.as_ref().expect("a server")));
    if let Some(own) = &own {
        // A lease counted from the reply would be believed in for too long; still, each renewal arrives within the
        // time that it has, unless the machine is busy. Every other network is fast: there, most arrive.
        if who.is_multiple_of(2) {
            own.is(Way::Back, Condition::Delayed(choice.ttl / 8));
        }
    }
    let command = call(shared, choice, who, own.as_ref());
    let (keyboard, terminal) = choice.typed.then(Terminal::pair).unzip();
    let said = File::options().create(true).append(true).open(shared.directory.join("stderr")).expect("a log");
    let mut process = Process::start(&command, terminal.as_ref(), &said);
    drop(terminal);
    let is_script = choice.kind == Kind::Script;
    let at = At { own: own.as_ref(), keyboard: keyboard.as_ref(), is_script };
    let ended = choice.plan.and_then(|plan| befall(shared, who, &mut process, plan, at));
    match ended.or_else(|| process.ends_within(STUCK)) {
        Some(status) => {
            let at = boot_clock();
            let mut starved = process.starved();
            if let Some(in_all) = choice.typed.then(|| starved_by(&told_by_shell(shared, who))).flatten() {
                // Only at the end of the job did its shell read it.
                starved = Starved::default();
                starved.reads(at, in_all);
            }
            starved.reads(at, starved.in_all() + process.starved_guard());
            shared.journal.ended(who, at, told(status), starved);
        }
        None => {
            process.signal(Signal::SIGKILL);
            process.ends_within(Duration::from_secs(5));
        }
    }
}

fn call(shared: &Shared<'_>, choice: &Choice, who: Who, own: Option<&Network>) -> Command {
    let ttl = format!("{}ms", choice.ttl.as_millis());
    let mut asks: Vec<String> =
        [&shared.names[choice.name], "-t", &ttl, "--reason", &format!("c{who}")].map(str::to_owned).into();
    asks.extend(choice.options.iter().cloned());
    let myself = std::env::current_exe().expect("we run");
    let mut job = Vec::new();
    let mut command = if choice.kind == Kind::Script {
        let mut command = Command::new(myself);
        command.args(CARRY_OUT);
        command
    } else {
        let command = myself.to_str().expect("a path of ours").to_owned();
        let mut words: Vec<String> = [program(), "-q", "run"].map(str::to_owned).into();
        words.extend(asks.iter().cloned().chain(["--".into(), command]).chain(CARRY_OUT.map(str::to_owned)));
        if choice.typed {
            let left_stopped = choice.plan.map_or(Duration::ZERO, |plan| plan.lasts);
            job.extend(shell::environment(&words, left_stopped, &told_by_shell(shared, who)));
            let mut command = Command::new(myself);
            command.args(CARRY_OUT);
            command
        } else {
            let mut command = Command::new(program());
            command.args(&words[1..]);
            command
        }
    };
    let orders = Orders {
        who,
        ttl: choice.ttl,
        length: choice.length,
        beat: choice.beat,
        deaf: matches!(choice.kind, Kind::Deaf | Kind::Severed),
        tree: choice.kind == Kind::Tree,
        daemon: choice.kind == Kind::Daemon,
        script: (choice.kind == Kind::Script).then_some(asks),
    };
    let server = match own {
        Some(own) => format!("unix://{}", own.socket().display()),
        None if choice.near => shared.near.clone(),
        None => shared.far.clone().expect("a network"),
    };
    shared.lead(&mut command);
    command.env("NXLOCK_SERVER", server).envs(orders.environment(&shared.journal.log)).envs(job);
    command
}

/// Returns the file in which the shell reports on its job.
fn told_by_shell(shared: &Shared<'_>, who: Who) -> String {
    shared.directory.join(format!("job-{who}")).display().to_string()
}

/// The resources of one attempt.
#[derive(Clone, Copy)]
struct At<'a> {
    own: Option<&'a Network>,
    keyboard: Option<&'a PtyMaster>,
    is_script: bool,
}

/// Applies a fault. Returns the attempt's exit status if it ends before the fault, or meanwhile.
fn befall(shared: &Shared<'_>, who: Who, process: &mut Process, plan: Plan, at: At<'_>) -> Option<ExitStatus> {
    let nxlock = loop {
        // Under a shell nxlock is the job, which takes a moment to start.
        match at.keyboard.map(|_| children(process.pid())).as_deref() {
            None => break process.pid(),
            Some([job, ..]) => break *job,
            Some([]) => {}
        }
        let ended = process.ends_within(Duration::from_millis(2));
        if ended.is_some() {
            return ended;
        }
    };
    let over = boot_clock() + nanos(STUCK);
    while plan.inside && !has_started(nxlock) && boot_clock() < over {
        let ended = process.ends_within(Duration::from_millis(10));
        if ended.is_some() {
            return ended;
        }
    }
    let mut ended = process.ends_within(plan.after);
    if ended.is_some() {
        return ended;
    }
    let types = |mut keyboard: &PtyMaster, key: &[u8]| keyboard.write_all(key).expect("the terminal takes it");
    if matches!(plan.ailment, Ailment::Killed | Ailment::GroupKilled) {
        process.leaves_to(guard_of(nxlock));
    }
    let from = boot_clock();
    match plan.ailment {
        Ailment::Killed => signal(nxlock, Signal::SIGKILL),
        Ailment::GuardKilled => signal(guard_of(nxlock)?, Signal::SIGKILL),
        // nxlock leads its process group: that of a session, or of a job.
        Ailment::GroupKilled => signal(-nxlock, Signal::SIGKILL),
        Ailment::CommandKilled => signal(command_of(nxlock)?, Signal::SIGKILL),
        Ailment::TypedInterrupt => types(at.keyboard.expect("a terminal"), b"\x03"),
        Ailment::TypedStop => {
            types(at.keyboard.expect("a terminal"), b"\x1a");
            ended = process.ends_within(plan.lasts);
        }
        Ailment::FrozenAlone | Ailment::Suspended => {
            let how = if plan.ailment == Ailment::Suspended { Signal::SIGTSTP } else { Signal::SIGSTOP };
            process.signal(how);
            lasts(plan.lasts);
            process.signal(Signal::SIGCONT);
        }
        Ailment::FrozenWithCommand => {
            let frozen = process.freezes_with_its_command();
            lasts(plan.lasts);
            process.signal(Signal::SIGCONT);
            // nxlock continues its own command; a script does not continue its children.
            if at.is_script {
                frozen.into_iter().for_each(|pid| signal(pid, Signal::SIGCONT));
            }
        }
        Ailment::Severed => {
            let network = at.own.expect("a network");
            network.is(Way::There, Condition::BlackHoled);
            ended = process.ends_within(plan.lasts);
            // An nxlock that still waited would wait for its server forever, as it should.
            network.clears();
        }
        _ => process.signal([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP][who % 3]),
    }
    shared.journal.befell(plan.ailment, On::Attempt(who), from);
    ended
}
