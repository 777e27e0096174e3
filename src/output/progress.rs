//! Lines that show progress while nxlock waits or lists: redrawn in place on a terminal, sparse in a log.

use std::io::IsTerminal;
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};

use crate::clock::Moment;
use crate::descriptors;
use crate::duration::span;
use crate::error::Error;
use crate::lock::words::{ends_after, held_by_after, process};
use crate::lock::{Expiry, LockName, LockState, Sharing, StateKind};
use crate::log::{self, Level, Text, line, offer};
use crate::store::QueuePlace;
use crate::text::shortened;

/// Interval between log lines about an unchanged wait.
const LOG_EVERY: Duration = Duration::from_secs(30);
const REDRAW_EVERY: Duration = Duration::from_secs(1);
/// How old what a terminal shows of the lock may be. A waiter far back would ask more seldom by itself.
const FRESH: Duration = Duration::from_secs(2);

pub struct Waiting {
    name: LockName,
    sharing: Sharing,
    began: Moment,
    form: Form,
    news: Option<News>,
    /// Kind of the news logged last.
    logged: Option<String>,
    next_log: Moment,
    redraw_at: Moment,
    drawn: bool,
    /// That others asked for another number of slots was reported.
    is_warned: bool,
}

#[derive(PartialEq, Eq)]
enum Form {
    Silent,
    Live,
    Log,
}

/// The reason for the wait, as last reported by the server.
enum News {
    Held { state: LockState, place: QueuePlace, seen: Moment },
    Error(Error),
}

impl News {
    /// Returns the lock that is waited for, if it is one of several.
    fn name(&self) -> Option<&LockName> {
        if let News::Held { state, .. } = self { state.name.as_ref() } else { None }
    }
}

impl Waiting {
    /// `waits` is false if nothing is to be waited for: one that is refused at once is told so once.
    pub fn new(name: &LockName, sharing: Sharing, waits: bool) -> Waiting {
        let options = log::options();
        let form = match () {
            () if !waits || options.json || options.level == Level::Quiet => Form::Silent,
            () if std::io::stderr().is_terminal() => Form::Live,
            () => Form::Log,
        };
        let now = Moment::now();
        let name = name.clone();
        Waiting {
            name,
            sharing,
            began: now,
            form,
            news: None,
            logged: None,
            next_log: now,
            redraw_at: Moment::NEVER,
            drawn: false,
            is_warned: false,
        }
    }

    /// Shows that another holder has the lock.
    pub fn held(&mut self, state: &LockState, place: QueuePlace) {
        self.warn_of_other_numbers(state);
        self.news = Some(News::Held { state: state.clone(), place, seen: Moment::now() });
        let kind = if state.orphaned().is_some() { "orphaned" } else { "held" };
        self.tell(&format!("{kind} {}", self.waits_for()));
    }

    /// Reports once that others asked for another number of slots.
    fn warn_of_other_numbers(&mut self, state: &LockState) {
        let is_another = state.name.as_ref().is_some_and(|name| *name != self.name);
        let others = state.shares.as_ref().and_then(|shares| shares.slots).filter(|_| !is_another);
        if let (Some(others), Sharing::Slots(asked)) = (others, self.sharing)
            && others != asked
            && !std::mem::replace(&mut self.is_warned, true)
        {
            log::note(format_args!(
                "\"{}\" is held with {} slots by others, and {} were asked for: the least counts",
                self.name,
                others.get(),
                asked.get()
            ));
        }
    }

    /// Shows that the server does not answer or cannot serve the request now.
    pub fn error(&mut self, error: &Error) {
        self.news = Some(News::Error(error.clone()));
        self.tell(&error.cause);
    }

    fn tell(&mut self, kind: &str) {
        match self.form {
            Form::Silent => {}
            Form::Live => self.redraw(),
            Form::Log => {
                let news = self.logged.as_deref() != Some(kind);
                if news || self.next_log.passed() {
                    line(format_args!("nxlock: {}", self.text()));
                    self.logged = Some(kind.to_owned());
                    self.next_log = Moment::now() + LOG_EVERY;
                }
            }
        }
    }

    /// Returns the line for a log, which has room.
    fn text(&self) -> String {
        let what = match &self.news {
            None => String::new(),
            Some(News::Error(error)) => format!("{error}, trying again"),
            Some(News::Held { state, place, seen }) => {
                let held = held_by_after(state, seen.elapsed());
                let place = ahead(*place).map_or(String::new(), |ahead| format!(", {ahead}"));
                format!("{held}{}{}{place}", why(state), ends_after(state, seen.elapsed()))
            }
        };
        format!("waiting for \"{}\": {what}; waited {}", self.waits_for(), self.waited())
    }

    /// Returns the line for a terminal. What changes comes first, since a long line is cut.
    fn live_text(&self) -> String {
        let what = match &self.news {
            None => String::new(),
            Some(News::Error(error)) => format!("; {}, trying again", error.cause),
            Some(News::Held { state, seen, .. }) => match &state.holder {
                Some(holder) if !matches!(state.kind, StateKind::Contested | StateKind::Unknown) => {
                    let held = span(whole(holder.held + seen.elapsed()));
                    let ends = ends_after(state, seen.elapsed());
                    format!("; held {held} by {}{ends}{}", process(&holder.owner), why(state))
                }
                _ if state.expiry == Expiry::WithCommand => {
                    format!("; {}{}", held_by_after(state, seen.elapsed()), ends_after(state, seen.elapsed()))
                }
                _ => format!("; {}", held_by_after(state, seen.elapsed())),
            },
        };
        let place = match &self.news {
            Some(News::Held { place, .. }) => ahead(*place).map_or(String::new(), |ahead| format!("{ahead}, ")),
            Some(News::Error(_)) | None => String::new(),
        };
        format!("waiting for \"{}\": {place}waited {}{what}", self.waits_for(), self.waited())
    }

    /// Returns what a terminal would show.
    #[cfg(fuzzing)]
    pub fn live(&self) -> String {
        self.live_text()
    }

    fn waits_for(&self) -> &LockName {
        self.news.as_ref().and_then(News::name).unwrap_or(&self.name)
    }

    fn waited(&self) -> String {
        span(whole(self.began.elapsed()))
    }

    /// Returns when to ask again, so that what is shown or logged next is true.
    pub fn asks_at(&self) -> Moment {
        match (&self.news, &self.form) {
            (Some(News::Held { seen, .. }), Form::Live) => *seen + FRESH,
            (Some(News::Held { .. }), Form::Log) => self.next_log,
            (Some(News::Held { .. }), Form::Silent) | (Some(News::Error(_)) | None, _) => Moment::NEVER,
        }
    }

    /// Returns when to redraw the line.
    pub fn redraw_at(&self) -> Moment {
        self.redraw_at
    }

    pub fn redraw(&mut self) {
        if self.form != Form::Live {
            return;
        }
        self.redraw_at = Moment::now() + REDRAW_EVERY;
        // In the background the line belongs to the shell's prompt.
        if !is_in_the_foreground() {
            self.drawn = false;
            return;
        }
        let (columns, _) = descriptors::window(std::io::stderr());
        // Leave the last column empty: writing it may wrap the line.
        offer(&Text::Line(shortened(&self.live_text(), columns.saturating_sub(1)).into_owned()));
        self.drawn = true;
    }

    /// Ends the wait. On a terminal, erases the line.
    pub fn end(&mut self, granted: bool) {
        if self.drawn && is_in_the_foreground() {
            offer(&Text::Line(String::new()));
        }
        self.drawn = false;
        if self.form == Form::Log && self.logged.is_some() && granted {
            let waited = span(whole(self.began.elapsed()));
            offer(&Text::Styled(format!("nxlock: got \"{}\" after {waited}\n", self.name)));
        }
    }
}

/// Returns whether the process group of nxlock is in the foreground. A terminal that does not control nxlock belongs to
/// no group of its session, tcgetpgrp(3), and shows no prompt of it.
fn is_in_the_foreground() -> bool {
    tcgetpgrp(std::io::stderr()).map_or(true, |group| group == getpgrp())
}

/// Returns why the holder has the lock, if it says so.
fn why(state: &LockState) -> String {
    let reason = state.holder.as_ref().and_then(|holder| holder.reason.as_ref());
    reason.map(|reason| format!(", for \"{reason}\"")).unwrap_or_default()
}

/// Describes the waiter's place in the queue.
fn ahead(place: QueuePlace) -> Option<String> {
    match place.position {
        0 => None,
        1 => Some("we are next".to_owned()),
        n => Some(format!("{} ahead of us", n - 1)),
    }
}

/// Truncates to whole seconds: tenths would only flicker in a line that is redrawn once a second.
fn whole(duration: Duration) -> Duration {
    if duration >= Duration::from_secs(1) { Duration::from_secs(duration.as_secs()) } else { duration }
}

/// Delay before the first progress line.
const LISTING_AFTER: Duration = Duration::from_secs(1);
const LISTING_EVERY: Duration = Duration::from_millis(200);

pub struct Listing {
    is_shown: bool,
    redraw_at: Moment,
    drawn: bool,
}

impl Listing {
    pub fn begin() -> Listing {
        let options = log::options();
        let is_shown = !options.json && options.level > Level::Quiet && std::io::stderr().is_terminal();
        Listing { is_shown, redraw_at: Moment::now() + LISTING_AFTER, drawn: false }
    }

    /// Shows the number of locks found so far.
    pub fn found(&mut self, locks: usize) {
        if self.is_shown && self.redraw_at.passed() {
            offer(&Text::Line(format!("listing locks: {locks} so far")));
            self.drawn = true;
            self.redraw_at = Moment::now() + LISTING_EVERY;
        }
    }
}

/// Erases the line, however the listing ends.
impl Drop for Listing {
    fn drop(&mut self) {
        if self.drawn {
            offer(&Text::Line(String::new()));
        }
    }
}
