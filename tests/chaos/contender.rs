//! One who wants a lock, again and again, each time in another way; and what befalls the processes
//! that it takes.

use std::fs::File;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::arena::Shared;
use crate::process::{Process, signal, told};
use crate::record::{Ailment, Attempt, Manner, On, Who, boot_clock, nanos};
use crate::section::{CARRY_OUT, Orders};
use crate::seed::Seed;
use crate::support::{Condition, Network, Way, lasts, program};

/// Nobody has to wait for so long: whoever is ahead is done, or its lease ends.
const STUCK: Duration = Duration::from_secs(60);

/// What is done under the lock, and whether the command wants to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Does not hear TERM.
    Deaf,
    /// The command hears TERM, and its child does not.
    Tree,
    Script,
    /// Deaf, for longer than its lease, over a slow network of its own that is severed.
    Severed,
    /// Under the shortest lease there is. Such a one has no time for a slow machine, so little is done.
    Shortest,
}

/// One attempt, as it was decided.
struct Choice {
    name: usize,
    kind: Kind,
    ttl: Duration,
    length: Duration,
    beat: Duration,
    kill_after: Duration,
    queued: bool,
    near: bool,
    /// How long it waits, and what else it asks for.
    options: Vec<String>,
    plan: Option<Plan>,
}

/// Something that befalls an attempt.
#[derive(Clone, Copy)]
struct Plan {
    ailment: Ailment,
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
    // The first name is the one that everybody wants, and nobody keeps for long.
    let name = if shared.names.len() == 1 || seed.percent(60) { 0 } else { seed.between(1, shared.names.len() as u64) };
    let kind = match seed.between(0, 100) {
        _ if seed.percent(shared.severed) => Kind::Severed,
        0..8 => Kind::Script,
        8..12 => Kind::Tree,
        12..20 => Kind::Deaf,
        22..24 => Kind::Shortest,
        _ => Kind::Plain,
    };
    let ailing = match kind {
        Kind::Severed | Kind::Shortest => false,
        Kind::Tree => seed.percent(60),
        Kind::Plain | Kind::Deaf | Kind::Script => seed.percent(14),
    };
    let ttl = Duration::from_millis(match kind {
        Kind::Script => seed.one_of(&[1000, 2000]),
        Kind::Deaf | Kind::Tree => seed.one_of(&[1000, 1000, 2000]),
        Kind::Severed => seed.one_of(&[500, 1000, 2000]),
        Kind::Shortest => 100,
        Kind::Plain if ailing || name == 0 => seed.one_of(&[500, 500, 1000]),
        Kind::Plain => seed.one_of(&[300, 500, 500, 1000, 2000, 5000]),
    });
    let short = seed.millis(0, 15);
    let length = match (kind, seed.between(0, 100)) {
        (Kind::Shortest, _) => short,
        (Kind::Severed, _) => ttl * 2,
        (Kind::Tree, _) => short + seed.millis(100, 300),
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
        options.push("--no-queue".into());
    }
    let kill_after = seed.millis(50, 200);
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
    let name = usize::try_from(name).expect("it fits");
    let plan = ailing.then(|| plan(seed, ttl, kind));
    let plan = plan.or_else(|| (kind == Kind::Severed).then(|| severed(seed, ttl)));
    Choice { name, kind, ttl, length, beat: seed.millis(1, 5), kill_after, queued, near, options, plan }
}

fn plan(seed: &mut Seed, ttl: Duration, kind: Kind) -> Plan {
    use Ailment::{Cancelled, CommandKilled, FrozenAlone, FrozenWithCommand, Killed, Suspended};
    let after = if seed.percent(70) { seed.millis(0, 30) } else { seed.millis(0, 300) };
    // What a command has started outlives a kill -9 of nxlock, as is documented.
    let ailment = match kind {
        Kind::Tree => seed.one_of(&[Cancelled, Cancelled, FrozenWithCommand, Suspended]),
        _ => seed.one_of(&[Killed, CommandKilled, FrozenAlone, FrozenAlone, FrozenWithCommand, Suspended, Cancelled]),
    };
    let lasts = match ailment {
        // Mostly for less than is left of a lease, and sometimes for all of it.
        FrozenAlone if seed.percent(80) => ttl.mul_f64(seed.between(1, 25) as f64 / 100.0),
        FrozenAlone | FrozenWithCommand | Suspended => ttl.mul_f64(seed.between(20, 180) as f64 / 100.0),
        _ => Duration::ZERO,
    };
    Plan { ailment, after, lasts }
}

fn severed(seed: &mut Seed, ttl: Duration) -> Plan {
    Plan { ailment: Ailment::Severed, after: ttl.mul_f64(seed.between(25, 130) as f64 / 100.0), lasts: ttl * 3 }
}

fn attempt(shared: &Shared<'_>, choice: &Choice) {
    let will_not_stop = matches!(choice.kind, Kind::Deaf | Kind::Tree | Kind::Severed);
    let who = shared.journal.asks(Attempt {
        name: choice.name,
        manner: if choice.kind == Kind::Script { Manner::Script } else { Manner::Run },
        ttl: nanos(choice.ttl),
        queued: choice.queued,
        near: choice.near,
        dawdles: if will_not_stop { nanos(choice.kill_after) } else { 0 },
        asked: boot_clock(),
        ended: None,
        starved: 0,
    });
    let own = (choice.kind == Kind::Severed).then(|| Network::to_socket(shared.socket.as_ref().expect("a server")));
    if let Some(own) = &own {
        // A lease that is counted from the answer is then believed in for too long, and still each renewal
        // comes in the time that it is given.
        own.is(Way::Back, Condition::Delayed(choice.ttl / 8));
    }
    let mut process = Process::start(call(shared, choice, who, own.as_ref()));
    let ended = choice.plan.and_then(|plan| befall(shared, who, &mut process, plan, own.as_ref()));
    match ended.or_else(|| process.ends_within(STUCK)) {
        Some(status) => shared.journal.ended(who, told(status), process.starved()),
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
    let mut command = if choice.kind == Kind::Script {
        let mut command = Command::new(myself);
        command.args(CARRY_OUT);
        command
    } else {
        let mut command = Command::new(program());
        command.args(["-q", "run"]).args(&asks).arg("--").arg(myself).args(CARRY_OUT);
        command
    };
    let orders = Orders {
        who,
        ttl: choice.ttl,
        length: choice.length,
        beat: choice.beat,
        deaf: matches!(choice.kind, Kind::Deaf | Kind::Severed),
        tree: choice.kind == Kind::Tree,
        script: (choice.kind == Kind::Script).then_some(asks),
    };
    let server = match own {
        Some(own) => format!("unix://{}", own.socket().display()),
        None if choice.near => shared.near.clone(),
        None => shared.far.clone().expect("a network"),
    };
    let said = File::options().create(true).append(true).open(shared.directory.join("stderr")).expect("a log");
    let (mark, value) = shared.mark.split_once('=').expect("a variable");
    command.env_clear().env("NXLOCK_SERVER", server).env("NXLOCK_SERVER_TIMEOUT", "2s").env(mark, value);
    command.envs(orders.environment(&shared.journal.log));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    command
}

/// Its end, if that comes first, or while we wait.
fn befall(
    shared: &Shared<'_>,
    who: Who,
    process: &mut Process,
    plan: Plan,
    own: Option<&Network>,
) -> Option<ExitStatus> {
    let mut ended = process.ends_within(plan.after);
    if ended.is_some() {
        return ended;
    }
    let from = boot_clock();
    match plan.ailment {
        Ailment::Killed => process.signal(Signal::SIGKILL),
        Ailment::CommandKilled => match process.children().first() {
            Some(command) => signal(*command, Signal::SIGKILL),
            None => return None,
        },
        Ailment::FrozenAlone | Ailment::Suspended => {
            let how = if plan.ailment == Ailment::Suspended { Signal::SIGTSTP } else { Signal::SIGSTOP };
            process.signal(how);
            lasts(plan.lasts);
            process.signal(Signal::SIGCONT);
        }
        Ailment::FrozenWithCommand => {
            process.freezes_with_its_command();
            lasts(plan.lasts);
            process.signal(Signal::SIGCONT);
        }
        Ailment::Severed => {
            let network = own.expect("a network");
            network.is(Way::There, Condition::BlackHoled);
            ended = process.ends_within(plan.lasts);
            // One that was still waiting would wait for its server for ever, as it should.
            network.clears();
        }
        _ => process.signal([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP][who % 3]),
    }
    shared.journal.befell(plan.ailment, On::Attempt(who), from);
    ended
}
