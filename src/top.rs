//! Live status of locks: a screen with keys, or text that is printed again on each change.
//!
//! On a screen three parts share a mailbox: the poller, a thread that alone talks to the store; the terminal, which
//! alone knows the screen; and the model, which knows what is shown and neither of the other two.

mod keys;
mod model;
mod order;
mod piped;
mod poller;
mod terminal;
mod view;

use std::time::Duration;

use anyhow::Context;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock::Moment;
use crate::list::Subject;
use crate::mailbox::{Arrived, MailSender, Mailbox};
use crate::report::Report;
use crate::signals::Signals;
use crate::store::Store;
use crate::wait::Limit;
use keys::Keys;
use model::{Effect, Model};
use poller::{Task, Update};
use terminal::Terminal;

/// How long the rest of an escape sequence may take; after that the key was Escape.
const REST_OF_A_KEY: Duration = Duration::from_millis(50);

/// Watches until the user quits or the reader of stdout leaves. `place` says where the locks are.
///
/// # Errors
/// If the first poll fails. Later poll errors are shown, and the poll is retried.
pub fn watch(
    store: Box<dyn Store>,
    subject: Subject,
    place: &str,
    every: Duration,
    as_json: bool,
) -> anyhow::Result<Report> {
    match Terminal::of_stdout().filter(|_| !as_json) {
        Some(terminal) => on_screen(terminal, store, subject, place, every),
        None => piped::watch(store, &subject, every, as_json),
    }
}

fn on_screen(
    terminal: Terminal,
    store: Box<dyn Store>,
    subject: Subject,
    place: &str,
    every: Duration,
) -> anyhow::Result<Report> {
    let mut signals = Signals::listen()?;
    signals.begin_screen()?;
    let model = Model::new(&subject, place, every);
    let (updates, tasks) = poller::begin(store, subject).context("cannot look at locks")?;
    let keys = Keys::default();
    LiveView { terminal, model, keys, updates, tasks, every, asked: None, next: Moment::now() }.go_on(&mut signals)
}

struct LiveView {
    terminal: Terminal,
    model: Model,
    keys: Keys,
    updates: Mailbox<Update>,
    tasks: MailSender<Task>,
    every: Duration,
    /// Start of the poll under way.
    asked: Option<Moment>,
    /// Start of the next poll.
    next: Moment,
}

impl LiveView {
    fn go_on(mut self, signals: &mut Signals) -> anyhow::Result<Report> {
        let mut redraw = Moment::now();
        let mut rest_of_a_key = Moment::NEVER;
        loop {
            if self.asked.is_none() && self.next.passed() {
                self.tasks.send(Task::Look);
                self.asked = Some(Moment::now());
            }
            let is_begun = self.model.is_begun();
            if is_begun && redraw.passed() {
                // The displayed age grows without updates.
                redraw = Moment::now() + Duration::from_secs(1);
                if self.draw(signals).is_err() {
                    return Ok(end_of_terminal(signals));
                }
            }
            let look = if self.asked.is_none() { self.next } else { Moment::NEVER };
            let again = if is_begun { redraw } else { Moment::NEVER };
            let [arrivals, _] = signals.fds();
            let cancel = &[arrivals, Some(self.terminal.fd())];
            let arrival =
                self.updates.next(Limit { until: again.min(rest_of_a_key).min(look), cancel, ..Limit::NONE })?;
            // The regular redraw shows the progress of a listing soon enough.
            if !matches!(arrival, Arrived::Time | Arrived::Message(Update::Listing(_))) {
                redraw = Moment::now();
            }
            match arrival {
                Arrived::Time if rest_of_a_key.passed() => {
                    rest_of_a_key = Moment::NEVER;
                    let key = self.keys.give_up();
                    if let Some(report) = key.and_then(|key| self.press(key)) {
                        return Ok(report);
                    }
                    redraw = Moment::now();
                }
                Arrived::Time => {}
                Arrived::Message(update) => {
                    if let Some(report) = self.read(update)? {
                        return Ok(report);
                    }
                }
                Arrived::Readable => {
                    if let Some(report) = self.heed(signals)? {
                        return Ok(report);
                    }
                    let Ok(typed) = self.terminal.typed() else { return Ok(end_of_terminal(signals)) };
                    for key in self.keys.of(&typed) {
                        if let Some(report) = self.press(key) {
                            return Ok(report);
                        }
                    }
                    rest_of_a_key = if self.keys.are_whole() { Moment::NEVER } else { Moment::now() + REST_OF_A_KEY };
                }
            }
        }
    }

    fn draw(&mut self, signals: &Signals) -> std::io::Result<()> {
        let (columns, rows) = self.terminal.size();
        let lines = view::lines(&mut self.model, columns, rows);
        self.terminal.show(&lines, &signals.fds())
    }

    /// Handles a message from the poller.
    fn read(&mut self, update: Update) -> anyhow::Result<Option<Report>> {
        match update {
            Update::Listing(found) => self.model.listing(found),
            Update::Seen(seen) => {
                self.looked();
                self.model.seen(seen);
            }
            Update::Error(error) if !self.model.has_been_seen() => return Err(error.into()),
            Update::Error(error) => {
                self.looked();
                self.model.error(error);
            }
            Update::Broken(lock, answer) => {
                self.model.broken(&lock, answer);
                self.next = Moment::now();
            }
            Update::Asked(lock, answer) => self.model.asked(&lock, answer),
        }
        Ok(None)
    }

    /// Ends a poll. The next one starts no sooner than twice its duration after its start: the server has other
    /// clients.
    fn looked(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.next = asked + self.every.max(asked.elapsed() * 2);
        }
    }

    fn press(&mut self, key: keys::Key) -> Option<Report> {
        match self.model.press(key) {
            Effect::Nothing => {}
            Effect::Quit => return Some(Report::Watched),
            Effect::Do(action, lock, id) => self.tasks.send(Task::Do(action, lock, id)),
            // Stop the whole process group, as the terminal driver does; nxlock stops when it receives the signal.
            Effect::Suspend => _ = kill(Pid::from_raw(0), Signal::SIGTSTP),
        }
        None
    }

    /// Handles the signals received.
    fn heed(&mut self, signals: &mut Signals) -> anyhow::Result<Option<Report>> {
        for notice in signals.notices() {
            match notice.number {
                // The loop redraws in any case, at the current size.
                libc::SIGWINCH => {}
                libc::SIGTSTP => {
                    self.terminal.leave();
                    Signals::suspend(Signal::SIGTSTP);
                    self.terminal.enter().ok();
                }
                // Another process may have changed the terminal meanwhile.
                libc::SIGCONT => _ = self.terminal.enter(),
                number => return Ok(Signal::try_from(number).ok().map(Report::Interrupted)),
            }
        }
        Ok(None)
    }
}

/// Returns the report after the terminal is gone. A signal that said so as well takes precedence.
fn end_of_terminal(signals: &mut Signals) -> Report {
    signals.stop_requested().map_or(Report::Watched, Report::Interrupted)
}
