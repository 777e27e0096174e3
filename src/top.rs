//! How locks stand, for as long as somebody watches: on a screen with keys, or as a text for each change.
//!
//! On a screen three parts share an inbox: the observer, a thread that alone speaks to the store; the screen, which
//! alone knows the terminal; and the picture, which knows what is shown and neither of them.

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
use keys::Keys;
use model::{Effect, Model};
use poller::{Task, Update};
use terminal::Terminal;

/// A key of several bytes whose rest does not come within this was that one key, Escape.
const REST_OF_A_KEY: Duration = Duration::from_millis(50);

/// Watches until somebody has seen enough.
///
/// # Errors
/// If the first look meets with trouble: later trouble is shown, and it is tried again.
pub fn watch(store: Box<dyn Store>, subject: Subject, every: Duration, as_json: bool) -> anyhow::Result<Report> {
    match Terminal::of_stdout().filter(|_| !as_json) {
        Some(terminal) => on_screen(terminal, store, subject, every),
        None => piped::watch(store, &subject, every, as_json),
    }
}

fn on_screen(terminal: Terminal, store: Box<dyn Store>, subject: Subject, every: Duration) -> anyhow::Result<Report> {
    let mut signals = Signals::listen()?;
    signals.begin_screen()?;
    let model = Model::new(&subject, every);
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
    /// When the look began that is under way.
    asked: Option<Moment>,
    /// When to look again.
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
                // How old it is goes on without news.
                redraw = Moment::now() + Duration::from_secs(1);
                if self.draw(signals).is_err() {
                    return Ok(end_of_terminal(signals));
                }
            }
            let look = if self.asked.is_none() { self.next } else { Moment::NEVER };
            let again = if is_begun { redraw } else { Moment::NEVER };
            let also = [signals.fds()[0], Some(self.terminal.fd()), None];
            let arrival = self.updates.next(again.min(rest_of_a_key).min(look), also)?;
            // How far a listing has got is seen soon enough.
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
        self.terminal.show(&lines, signals.fds())
    }

    /// What the observer has to say.
    fn read(&mut self, update: Update) -> anyhow::Result<Option<Report>> {
        match update {
            Update::Listing(found) => self.model.listing(found),
            Update::Seen(rows) => {
                self.looked();
                self.model.seen(rows);
            }
            Update::Error(error) if !self.model.has_been_seen() => return Err(error.into()),
            Update::Error(error) => {
                self.looked();
                self.model.error(error);
            }
            Update::Internal(lock, answer) => {
                self.model.broken(&lock, answer);
                self.next = Moment::now();
            }
        }
        Ok(None)
    }

    /// A look is over. One that takes long is not taken so often: the server has others to serve.
    fn looked(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.next = asked + self.every.max(asked.elapsed() * 2);
        }
    }

    fn press(&mut self, key: keys::Key) -> Option<Report> {
        match self.model.press(key) {
            Effect::Nothing => {}
            Effect::Quit => return Some(Report::Watched),
            Effect::Break(lock, id) => self.tasks.send(Task::Break(lock, id)),
            // Whoever is in the foreground with us is to stop as well; we do when we hear of it.
            Effect::Suspend => _ = kill(Pid::from_raw(0), Signal::SIGTSTP),
        }
        None
    }

    /// What came by signals.
    fn heed(&mut self, signals: &mut Signals) -> anyhow::Result<Option<Report>> {
        for notice in signals.notices() {
            match notice.number {
                // Drawn anew in any case, whatever size it has now.
                libc::SIGWINCH => {}
                libc::SIGTSTP => {
                    self.terminal.leave();
                    Signals::suspend(Signal::SIGTSTP);
                    self.terminal.enter().ok();
                }
                // Whoever stopped us may have changed the terminal.
                libc::SIGCONT => _ = self.terminal.enter(),
                number => return Ok(Signal::try_from(number).ok().map(Report::Interrupted)),
            }
        }
        Ok(None)
    }
}

/// The terminal is gone. If that was told by a signal as well, it counts.
fn end_of_terminal(signals: &mut Signals) -> Report {
    signals.stop_requested().map_or(Report::Watched, Report::Interrupted)
}
