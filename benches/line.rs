//! What ten thousand waiters cost the server, alone and at a hand-off, what it costs that a thousand are killed at once, and
//! how long it takes until all are in line again when the server has lost all keys.
//!
//! `cargo bench -- line` (with `--quick` for fewer waiters, and shorter). The waiters are no processes: this program speaks
//! the protocol for all of them, each on a connection of its own, as `src/store/redis/queue.rs` does.

#[path = "line/member.rs"]
mod member;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::rig::{Figures, Server, Table, circumstances, now, quick};
use member::{Called, Member};

/// How long a waiter takes at least from a message that says to ask soon.
const SOON: Duration = Duration::from_millis(100);

pub fn measure() {
    let (many, names) = if quick() { (1000, 100) } else { (10_000, 1000) };
    println!("line: {}\n", circumstances(&server()));
    for (waiters, names) in [(10, 1), (100, 1), (many, 1), (many, names)] {
        idle(waiters, names);
    }

    let mut table = Table::new(&["hand-offs", "p50 ms", "p99 ms", "max ms"]);
    for waiters in [10, many] {
        let server = server();
        let mut line = Line::of(&server, 1, waiters);
        line.rest(Duration::from_secs(if quick() { 3 } else { 10 }));
        let mut figures = Figures::default();
        for _ in 0..if quick() { 50 } else { 500 } {
            figures.add(line.hand_off().0);
            line.joins(0);
            line.rest(Duration::from_millis(20));
        }
        let cells = [50, 99, 100].map(|p| format!("{:.2}", figures.percentile(p)));
        table.row(&format!("{waiters} waiting"), &cells);
        if waiters == many {
            let killed = many / 10;
            line.kill(killed);
            let cells = |took: Duration| ["", "", &format!("{:.2}", took.as_secs_f64() * 1000.0)].map(str::to_owned);
            let (took, releases) = line.hand_off();
            table.row(&format!("after {killed} of them were killed ({releases} releases)"), &cells(took));
            line.rest(Duration::from_millis(20));
            table.row("the one after that", &cells(line.hand_off().0));
        }
    }
    println!("{}", table.text());

    let mut table = Table::new(&["all keys are lost", "the next holds it, s", "all in line, s", "CPU, s"]);
    for waiters in [10, 100, many] {
        let server = server();
        let mut line = Line::of(&server, 1, waiters);
        line.rest(Duration::from_secs(if quick() { 3 } else { 10 }));
        let cpu = server.cpu();
        let (next, all) = line.is_forgotten();
        let cells = [next, all, server.cpu() - cpu].map(|took| format!("{:.2}", took.as_secs_f64()));
        table.row(&format!("{waiters} waiting"), &cells);
    }
    println!("{}", table.text());
}

/// Measures what waiters cost a server while nothing happens.
fn idle(waiters: usize, names: usize) {
    let server = server();
    let before = memory(&server);
    let mut line = Line::of(&server, names, waiters / names);
    let each = (memory(&server) - before) as f64 / 1024.0 / waiters as f64;
    line.rest(Duration::from_secs(if quick() { 5 } else { 40 }));
    let time = Duration::from_secs(if quick() { 10 } else { 60 });
    server.forget_stats();
    let cpu = server.cpu();
    line.rest(time);
    let used = (server.cpu() - cpu).as_secs_f64() / time.as_secs_f64();
    let stats = server.stats();
    let asked = stats.scripts() as f64 / time.as_secs_f64();
    println!("  {waiters} waiters on {names} names, idle: {each:.1} KiB of the server's memory each");
    // A waiter whose request is too late is dropped from the queue, and comes back.
    let late = stats.of("zadd");
    println!("    {asked:.1} requests a second, {late} of them late in {time:?}: {:.2} % of a core", used * 100.0);
}

fn server() -> Server {
    Server::with(&["--maxclients", "15000"].map(str::to_owned))
}

fn memory(server: &Server) -> u64 {
    let info: String = server.ask(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    used.expect("it tells how much memory it uses")
}

/// The waiters of some names, and one holder of each.
struct Line<'a> {
    server: &'a Server,
    script: String,
    epoll: Epoll,
    /// Each at the place by which epoll knows it; none if it has left.
    members: Vec<Option<Member>>,
    /// When each asks next.
    due: BTreeSet<(Duration, usize)>,
    /// The last that was granted a lock.
    holder: usize,
}

impl<'a> Line<'a> {
    fn of(server: &'a Server, names: usize, each: usize) -> Line<'a> {
        let script = server.ask(&["SCRIPT", "LOAD", include_str!("../src/store/redis/lock.lua")]);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
        let mut line = Line { server, script, epoll, members: Vec::new(), due: BTreeSet::new(), holder: 0 };
        for _ in 0..=each {
            (0..names).for_each(|name| line.joins(name));
        }
        line
    }

    /// Lets another one ask for a lock: it holds it, or waits.
    fn joins(&mut self, name: usize) {
        let at = self.members.len();
        let member = Member::new(self.server, name, at);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, at as u64);
        self.epoll.add(member.as_fd(), event).expect("it is watched");
        self.members.push(Some(member));
        self.asks(at);
    }

    fn asks(&mut self, at: usize) {
        let Some(member) = &mut self.members[at] else { return };
        self.due.remove(&(member.asks_at, at));
        member.asks(&self.script);
        match member.holds {
            true => self.holder = at,
            false => _ = self.due.insert((member.asks_at, at)),
        }
    }

    /// Lets the waiters do what they do, for so long or until another one has the lock.
    fn goes_on(&mut self, until: Duration, is_over: impl Fn(&Line<'_>) -> bool) {
        while !is_over(self) && now() < until {
            while let Some((_, at)) = self.due.first().copied().filter(|(due, _)| *due <= now()) {
                self.asks(at);
            }
            let next = self.due.first().map_or(until, |(due, _)| until.min(*due));
            let left = next.saturating_sub(now()).as_millis() + 1;
            let mut events = [EpollEvent::empty(); 64];
            let left = EpollTimeout::try_from(left.min(1000)).expect("it is short");
            let count = self.epoll.wait(&mut events, left).expect("epoll");
            events[..count].iter().for_each(|event| self.hears(usize::try_from(event.data()).expect("small")));
        }
    }

    fn hears(&mut self, at: usize) {
        let Some(member) = &mut self.members[at] else { return };
        match member.hears() {
            Called::ToAsk => self.asks(at),
            Called::ToAskSoon => self.asks_within(SOON, at),
            Called::ToAskInTurn => {
                let turn = member.turn();
                self.asks_within(turn, at);
            }
            Called::No => {}
        }
    }

    fn asks_within(&mut self, time: Duration, at: usize) {
        let Some(member) = self.members[at].as_mut().filter(|member| !member.holds) else { return };
        self.due.remove(&(member.asks_at, at));
        member.asks_at = member.asks_at.min(now() + time);
        self.due.insert((member.asks_at, at));
    }

    fn rest(&mut self, time: Duration) {
        self.goes_on(now() + time, |_| false);
    }

    /// Lets the holder release the lock. Returns how long it takes until the next one knows that it holds it, and how many
    /// requests the release takes.
    fn hand_off(&mut self) -> (Duration, usize) {
        let (began, holder) = (now(), self.holder);
        let releases = self.members[holder].as_mut().expect("it holds the lock").releases(&self.script);
        self.goes_on(began + Duration::from_secs(60), |line| line.holder != holder);
        assert_ne!(self.holder, holder, "nobody has come in");
        let took = now() - began;
        self.members[holder] = None;
        (took, releases)
    }

    /// Lets the server lose all keys. Returns how long it takes until one of those that wait holds the lock, and until all
    /// others are in line again.
    fn is_forgotten(&mut self) -> (Duration, Duration) {
        let (began, holder) = (now(), self.holder);
        let waiting = self.members.iter().flatten().count() - 1;
        self.members[holder] = None;
        let _: String = self.server.ask(&["FLUSHALL"]);
        let limit = began + Duration::from_secs(60);
        self.goes_on(limit, |line| line.holder != holder);
        let next = now() - began;
        let in_line = |line: &Line<'_>| line.server.ask::<usize>(&["ZCARD", "{lock:bench0}:queue"]);
        while in_line(self) < waiting - 1 {
            assert!(now() < limit, "{} of {waiting} are in line", in_line(self));
            self.rest(Duration::from_millis(20));
        }
        (next, now() - began)
    }

    /// Kills the first of those that wait, as many as this.
    fn kill(&mut self, count: usize) {
        let waits = |at: &usize| self.members[*at].as_ref().is_some_and(|member| !member.holds);
        let first: Vec<usize> = (0..self.members.len()).filter(waits).take(count).collect();
        for at in first {
            if let Some(member) = self.members[at].take() {
                self.due.remove(&(member.asks_at, at));
            }
        }
    }
}
