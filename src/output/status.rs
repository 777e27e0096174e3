//! Lock status for people: a table of locks, and the details of one.

use std::path::Path;

use anstyle::{AnsiColor, Style};

use super::history::{self, Clock};
use super::table::{Cell, Layout, Yield};
use crate::duration::span;
use crate::lock::{Expiry, Holder, LockState, Recorded, Run, Share, Shares, Sharing, StateKind, Supersedes, words};
use crate::log::{DOUBTFUL, FAINT};
use crate::report::{CommandOptions, Named, Row};
use crate::store::{LockStatus, Waiter};
use crate::text::{clean, quoted};

const COLUMNS: usize = 9;
const HEADING: [&str; COLUMNS] = ["NAME", "STATE", "HOLDER", "ID", "HELD", "LEASE", "WAITING", "LAST RUN", "REASON"];
const NAME: usize = 0;
const HOLDER: usize = 2;
const ID: usize = 3;
const LEASE: usize = 5;
const WAITING: usize = 6;
const LAST: usize = 7;
const REASON: usize = 8;
/// Down to sixty columns the table keeps who holds what, for how long, and how many wait.
const YIELDS: [Yield; 23] = [
    (REASON, 10),
    (NAME, 20),
    (HOLDER, 20),
    (REASON, 0),
    (NAME, 16),
    (HOLDER, 16),
    (ID, 0),
    (LAST, 8),
    (NAME, 12),
    (HOLDER, 12),
    (LAST, 0),
    (NAME, 12),
    (WAITING, 4),
    (HOLDER, 12),
    (NAME, 10),
    (WAITING, 0),
    (NAME, 12),
    (HOLDER, 12),
    (NAME, 8),
    (LEASE, 0),
    (NAME, 12),
    (HOLDER, 12),
    (NAME, 6),
];

type Line = [Cell; COLUMNS];

/// A table of locks. With `queues`, each lock is followed by its holders, if it is shared, and its waiters.
pub struct Table {
    heading: Line,
    /// Per lock, its line and those of its queue.
    locks: Vec<Vec<Line>>,
    layout: Layout<COLUMNS>,
}

impl Table {
    pub fn of(rows: &[&Row], queues: bool, columns: Option<usize>) -> Table {
        Table::with_bars(rows, queues, columns, &|_| None)
    }

    /// Does the same, and draws a bar for the leases of which it is known how much is left.
    pub fn with_bars(
        rows: &[&Row],
        queues: bool,
        columns: Option<usize>,
        bar: &dyn Fn(&Row) -> Option<LeaseBar>,
    ) -> Table {
        let mut heading = HEADING.map(|word| Cell::styled(word, FAINT));
        let clock = if columns.is_some() { Clock::Local } else { Clock::Universal };
        let has_runs = |row: &&Row| row.status.recorded.as_ref().is_some_and(|recorded| !recorded.over.is_empty());
        let have_runs = rows.iter().any(has_runs);
        let is_wide = columns.is_some_and(|columns| columns >= history::WIDE);
        if !have_runs {
            heading[LAST].text.clear();
        }
        let below = |row: &Row| -> Vec<Line> {
            let is_mixed = is_mixed(&row.status);
            let shares = row.status.state.shares.iter();
            let shares = shares.flat_map(|shares| shares.held.iter().map(share).chain(unlisted(shares)));
            shares.chain(row.status.queue.iter().map(|waiting| waiter(waiting, is_mixed))).collect()
        };
        let below = |row: &Row| if queues { below(row) } else { Vec::new() };
        let first = |row: &Row| {
            let mut line = lock(row, clock, have_runs, is_wide);
            if let Some(bar) = bar(row).filter(|_| is_wide) {
                line[LEASE] = bar.cell(&line[LEASE].text);
            }
            line
        };
        let lines = |row: &&Row| std::iter::once(first(row)).chain(below(row)).collect();
        let locks: Vec<Vec<Line>> = rows.iter().map(lines).collect();
        let layout = Layout::of(std::iter::once(&heading).chain(locks.iter().flatten()), &YIELDS, columns);
        Table { heading, locks, layout }
    }

    pub fn heading(&self) -> String {
        self.layout.line(&self.heading)
    }

    /// Returns the lines of these locks, in order.
    pub fn lines(&self, which: std::ops::Range<usize>) -> impl Iterator<Item = String> {
        self.locks[which].iter().flatten().map(|line| self.layout.line(line))
    }

    /// Returns the whole table.
    pub fn text(&self) -> String {
        let lines = std::iter::once(self.heading()).chain(self.lines(0..self.locks.len()));
        lines.map(|line| line + "\n").collect()
    }
}

/// How much of a lease is left, as a live view draws it.
pub struct LeaseBar {
    /// Of the whole, from 0 to 1.
    pub left: f64,
    /// The holder should have renewed it by now.
    pub is_late: bool,
}

impl LeaseBar {
    const WIDTH: u8 = 6;

    fn cell(&self, text: &str) -> Cell {
        let style = if self.is_late { DOUBTFUL } else { AnsiColor::Cyan.on_default() };
        let is_full = |at: u8| f64::from(at) + 0.5 < self.left * f64::from(LeaseBar::WIDTH);
        let marks = (0..LeaseBar::WIDTH).map(|at| if is_full(at) { ('▰', style) } else { ('▱', FAINT) }).collect();
        Cell { marks, text: format!(" {text}"), style: if self.is_late { DOUBTFUL } else { Style::new() } }
    }
}

/// Returns the style that marks a state.
fn style(kind: &StateKind) -> Style {
    match kind {
        StateKind::Free => FAINT,
        StateKind::Held | StateKind::Shared => AnsiColor::Green.on_default(),
        StateKind::Reserved => AnsiColor::Cyan.on_default(),
        StateKind::Foreign => Style::new(),
        StateKind::Legacy
        | StateKind::NoExpiry
        | StateKind::WrongType(_)
        | StateKind::Contested
        | StateKind::Unknown
        | StateKind::Damaged => DOUBTFUL,
    }
}

fn state_cell(state: &LockState) -> Cell {
    let text = match state.shares.as_ref().map(|shares| (shares.taken, shares.slots)) {
        Some((taken, Some(slots))) => format!("{taken} of {}", slots.get()),
        _ => words::state_name(&state.kind).replace('_', " "),
    };
    Cell::styled(text, style(&state.kind))
}

fn dash() -> Cell {
    Cell::styled("-", FAINT)
}

/// Returns the rest of a lease.
fn lease(expiry: Expiry) -> String {
    expiry.left().map_or_else(|| "no end".to_owned(), span)
}

/// Returns the line of a lock; with `have_runs`, it says how its last run ended, and when, and shows the runs before if there
/// is room.
fn lock(row: &Row, clock: Clock, have_runs: bool, is_wide: bool) -> Line {
    let LockStatus { state, queue, knows_waiters, recorded } = &row.status;
    let last = have_runs.then(|| recorded.as_ref().and_then(|recorded| history::brief(recorded, clock, is_wide)));
    let mut holders = state.holders();
    let holder = holders.next().filter(|_| state.shares.is_none() || holders.next().is_none());
    let shared = state.shares.as_ref().filter(|_| holder.is_none());
    let who = match shared {
        Some(Shares { taken: 0, .. }) => None,
        Some(Shares { taken, .. }) => Some(format!("{taken} holders")),
        None => holder.map(|holder| words::process(&holder.owner)),
    };
    let held = shared.and_then(|shares| shares.held.iter().map(|share| share.holder.held).max());
    [
        row.lock.name.to_string().into(),
        state_cell(state),
        who.map_or_else(dash, Cell::from),
        holder.map_or_else(dash, |holder| holder.id.to_string().into()),
        holder.map(|holder| holder.held).or(held).map_or_else(dash, |held| span(held).into()),
        match state.expiry {
            Expiry::Unknown => dash(),
            expiry => lease(expiry).into(),
        },
        match queue.len() {
            0 if *knows_waiters => dash(),
            0 => Cell::styled("?", FAINT),
            _ => count(queue).into(),
        },
        last.map_or_else(Cell::default, |last| last.unwrap_or_else(dash)),
        match &state.legacy {
            Some(legacy) => words::validity(legacy, |time| clock.show(time)),
            None => holder.and_then(|holder| holder.reason.as_ref()).map(ToString::to_string).unwrap_or_default(),
        }
        .into(),
    ]
}

/// Maximum number of waiters that a server reports; it does not say whether there are more.
const TOLD: usize = 500;

fn count(queue: &[Waiter]) -> String {
    format!("{}{}", queue.len(), if queue.len() >= TOLD { "+" } else { "" })
}

/// Returns the line of one of several holders, shown under their lock.
fn share(share: &Share) -> Line {
    let state = match (share.is_claimed, share.sharing()) {
        (false, _) => "reserved",
        (true, Sharing::Slots(_)) => "slot",
        (true, Sharing::Shared | Sharing::Exclusive) => "shared",
    };
    let holder = &share.holder;
    [
        share.slot.map_or_else(|| "  -".to_owned(), |slot| format!("  #{slot}")).into(),
        state.into(),
        words::process(&holder.owner).into(),
        holder.id.to_string().into(),
        span(holder.held).into(),
        lease(share.expiry).into(),
        dash(),
        Cell::default(),
        holder.reason.as_ref().map(ToString::to_string).unwrap_or_default().into(),
    ]
}

/// Returns the line that says how many holders the server did not list, if any.
fn unlisted(shares: &Shares) -> Option<Line> {
    let more = shares.taken.checked_sub(shares.held.len()).filter(|more| *more > 0 && !shares.held.is_empty())?;
    let mut line = std::array::from_fn(|_| Cell::from(String::new()));
    line[0] = "  ...".to_owned().into();
    line[2] = format!("and {more} more").into();
    Some(line)
}

/// Returns the reason of a waiter, and how it would share the lock if not all waiters are alike.
fn reason(waiter: &Waiter, is_mixed: bool) -> String {
    let sharing = is_mixed.then(|| format!("({})", words::sharing(waiter.terms.sharing)));
    let supersedes = (waiter.terms.supersedes != Supersedes::Nobody).then(|| "(supersedes)".to_owned());
    let first = waiter.terms.goes_first.then(|| "(first)".to_owned());
    let reason = waiter.reason.as_ref().map(ToString::to_string);
    first.into_iter().chain(sharing).chain(supersedes).chain(reason).collect::<Vec<_>>().join(" ")
}

/// Returns whether a lock is shared, or a waiter would share it.
fn is_mixed(LockStatus { state, queue, .. }: &LockStatus) -> bool {
    state.kind == StateKind::Shared || queue.iter().any(|waiter| waiter.terms.sharing != Sharing::Exclusive)
}

/// Returns a waiter's line, shown under its lock. The time waited is in the column of the time held.
fn waiter(waiter: &Waiter, is_mixed: bool) -> Line {
    [
        format!("  {}.", waiter.position).into(),
        "waiting".into(),
        words::process(&waiter.owner).into(),
        waiter.id.to_string().into(),
        span(waiter.waiting).into(),
        dash(),
        dash(),
        Cell::default(),
        reason(waiter, is_mixed).into(),
    ]
}

/// Returns all that is known of one lock, and its queue, a line each. `options` are those of a command that would ask for
/// it or break it.
pub fn detail(row: &Row, options: Option<&CommandOptions>) -> String {
    let Row { lock, status: LockStatus { state, queue, knows_waiters, recorded } } = row;
    let (style, text) = match &state.holder {
        Some(_) => (style(&state.kind), words::state_name(&state.kind).to_owned()),
        None => (style(&state.kind), words::describe(state)),
    };
    let mut shown = format!("\"{}\" is {style}{text}{style:#}", lock.name);
    let last = recorded.as_ref().map(runs).unwrap_or_default();
    if state.kind == StateKind::Free {
        return format!("{shown}{last}\n");
    }
    shown += &block(lock, state, options, usize::MAX, Clock::Local);
    shown += &match (state.fence, &state.holder) {
        (Some(fence), Some(_)) => labelled("fence", &fence.0.to_string()),
        _ => String::new(),
    };
    shown += &labelled("key", &clean(&lock.key));
    let waiting = match queue.len() {
        0 if *knows_waiters => "nobody waits".to_owned(),
        0 => "who waits is not known".to_owned(),
        1 => "one waits".to_owned(),
        _ => format!("{} wait", count(queue)),
    };
    shown += &labelled("queue", &waiting);
    shown += &last;
    shown.push('\n');
    let is_mixed = is_mixed(&row.status);
    let places: Vec<[Cell; 5]> = queue.iter().map(|waiter| place(waiter, is_mixed)).collect();
    let layout = Layout::of(&places, &[], None);
    places.iter().for_each(|place| shown += &format!("{}\n", layout.line(place)));
    shown
}

/// Returns the last run and, if that did not succeed, the last that did.
fn runs(recorded: &Recorded) -> String {
    let line = |label: &str, run: &Run| labelled(label, &history::last(run, Clock::Local, Some(recorded)));
    let strip = history::strip(recorded, usize::MAX);
    let strip: String = strip.iter().map(|(mark, style)| format!("{style}{mark}{style:#}")).collect();
    let strip = if recorded.over.len() > 1 { labelled("runs", &strip) } else { String::new() };
    let last = recorded.over.first().map(|run| line("last", run)).unwrap_or_default() + &strip;
    let success = recorded.last_success.as_ref().filter(|success| recorded.over.first() != Some(*success));
    last + &success.map(|run| line("success", run)).unwrap_or_default()
}

fn place(waiter: &Waiter, is_mixed: bool) -> [Cell; 5] {
    [
        format!("    {}.", waiter.position).into(),
        words::process(&waiter.owner).into(),
        waiter.id.to_string().into(),
        format!("for {}", span(waiter.waiting)).into(),
        reason(waiter, is_mixed).into(),
    ]
}

fn labelled(label: &str, what: &str) -> String {
    format!("\n  {FAINT}{label:<7}{FAINT:#} {what}")
}

/// Returns one of several holders: `alice@web-3, pid 4711, id k3qd0a7x, slot 0, for 2m: train a`.
fn sharer(share: &Share) -> String {
    let holder = &share.holder;
    let slot = share.slot.map(|slot| format!(", slot {slot}")).unwrap_or_default();
    let time = if share.is_claimed { format!("for {}", span(holder.held)) } else { "reserved".to_owned() };
    let lease = match share.expiry {
        _ if holder.orphaned.is_some() => "its nxlock is gone".to_owned(),
        Expiry::WithCommand => "its lease has ended".to_owned(),
        expiry => format!("lease {}", lease(expiry)),
    };
    let no_ask = if holder.terms.no_ask { ", cannot be asked" } else { "" };
    let reason = holder.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{}, id {}{slot}, {time}, {lease}{no_ask}{reason}", words::who(holder), holder.id)
}

/// Returns who holds a lock, since when, the rest of its lease, the reason, and the commands that ask for it and break
/// it. Lists at most `most` of several holders.
pub fn block(lock: &Named, state: &LockState, options: Option<&CommandOptions>, most: usize, clock: Clock) -> String {
    let mut text = String::new();
    let mut line = |label: &str, what: String| text += &labelled(label, &what);
    if let Some(holder) = &state.holder {
        line("by", format!("{}, id {}", words::who(holder), holder.id));
        line("since", format!("{}, {} ago", clock.show(holder.since), span(holder.held)));
    }
    if let Some(shares) = state.shares.as_ref().filter(|shares| !shares.held.is_empty()) {
        shares.held.iter().take(most).for_each(|share| line("by", sharer(share)));
        match shares.taken.saturating_sub(shares.held.len().min(most)) {
            0 => {}
            more => line("", format!("and {more} more")),
        }
    }
    match state.expiry {
        Expiry::In(left) if state.kind == StateKind::Shared => {
            line("lease", format!("the last ends in {} unless it is renewed", span(left)));
        }
        Expiry::In(left) => line("lease", format!("{} left unless it is renewed", span(left))),
        Expiry::WithCommand if state.kind == StateKind::Shared => {
            line("lease", "none: a holder's share is kept by the processes of its command until they end".into());
        }
        Expiry::WithCommand if state.orphaned().is_some() => line("lease", format!("none: {}", words::ORPHANED)),
        Expiry::WithCommand => {
            line("lease", "ended: processes of its command keep the lock until they end".into());
        }
        Expiry::Never => line("lease", "none: it does not end by itself".into()),
        Expiry::Unknown => {}
    }
    if let Some(legacy) = &state.legacy {
        line("says", words::validity(legacy, |time| clock.show(time)));
    }
    if let Some(reason) = state.holder.as_ref().and_then(|holder| holder.reason.as_ref()) {
        line("reason", reason.to_string());
    }
    if let Some(file) = state.orphaned() {
        line("see", processes_of(file));
    }
    match options.and_then(|options| asks(lock, state, options)) {
        Some(asks) => line("ask", asks),
        None if state.holder.as_ref().is_some_and(|holder| holder.terms.no_ask) => {
            line("ask", "its holder cannot be asked to give up".into());
        }
        None => {}
    }
    if let Some(breaks) = options.and_then(|options| breaks(lock, state, options)) {
        line("break", breaks);
    }
    text
}

/// Returns the command that shows the processes which have this file open.
pub fn processes_of(file: &Path) -> String {
    format!("fuser {}", quoted(&file.to_string_lossy()))
}

/// Returns the command that asks a holder to give up, if one may be asked.
fn asks(lock: &Named, state: &LockState, options: &CommandOptions) -> Option<String> {
    let id = id_of(state, Holder::may_be_asked)?;
    Some(releases(lock, &format!("--ask {id}"), options))
}

/// Returns the ID of the holder, if it is of this kind; of several holders, a word that tells to choose.
fn id_of(state: &LockState, is_of_it: impl Fn(&Holder) -> bool) -> Option<String> {
    let holder = state.holders().find(|holder| is_of_it(holder))?;
    Some(if state.kind == StateKind::Shared { "ID".to_owned() } else { holder.id.to_string() })
}

/// Returns the command that breaks a lock.
fn breaks(lock: &Named, state: &LockState, options: &CommandOptions) -> Option<String> {
    let Some(id) = id_of(state, |_| true) else {
        let nobodys = matches!(
            state.kind,
            StateKind::Free | StateKind::Shared | StateKind::Contested | StateKind::Unknown | StateKind::Damaged
        );
        return (!nobodys).then(|| format!("redis-cli{} DEL {}", options.redis_cli, quoted(&lock.key)));
    };
    Some(releases(lock, &format!("--break {id}"), options))
}

/// Returns a call of `release` for this lock.
fn releases(Named { name, by_key, .. }: &Named, how: &str, options: &CommandOptions) -> String {
    let quoted = quoted(name.as_str());
    // A name that begins with a dash would be parsed as an option.
    let which = match name.as_str().starts_with('-') {
        _ if *by_key => format!("--key={quoted} {how}"),
        true => format!("{how} -- {quoted}"),
        false => format!("{quoted} {how}"),
    };
    format!("nxlock{} release {which}", options.nxlock)
}
