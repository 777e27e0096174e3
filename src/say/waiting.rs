//! The line that tells what is waited for: redrawn in place on a terminal, sparse in a log.

use std::io::IsTerminal;
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};

use super::scribe::{Text, offer};
use super::text::{cut, held_by_after, process, span};
use super::{Level, line, voice};
use crate::clock::Moment;
use crate::lock::{LockName, Occupancy};
use crate::store::{Place, Trouble};

/// How often a log is told that the wait goes on.
const LOG_EVERY: Duration = Duration::from_secs(30);
const REDRAW_EVERY: Duration = Duration::from_secs(1);

pub struct Waiting {
    name: LockName,
    began: Moment,
    form: Form,
    news: Option<News>,
    /// The kind of news that the log was told last.
    told: Option<String>,
    next_log: Moment,
    redraw_at: Moment,
    drawn: bool,
}

#[derive(PartialEq, Eq)]
enum Form {
    Silent,
    Live,
    Log,
}

/// What is waited for, as it was when the server told.
enum News {
    Held { occupancy: Occupancy, place: Place, seen: Moment },
    Trouble(Trouble),
}

impl Waiting {
    pub fn new(name: &LockName) -> Waiting {
        let voice = voice();
        let form = match () {
            () if voice.json || voice.level == Level::Quiet => Form::Silent,
            () if std::io::stderr().is_terminal() => Form::Live,
            () => Form::Log,
        };
        let now = Moment::now();
        let name = name.clone();
        Waiting {
            name,
            began: now,
            form,
            news: None,
            told: None,
            next_log: now,
            redraw_at: Moment::NEVER,
            drawn: false,
        }
    }

    /// The lock is somebody else's.
    pub fn held(&mut self, occupancy: &Occupancy, place: Place) {
        self.news = Some(News::Held { occupancy: occupancy.clone(), place, seen: Moment::now() });
        self.tell("held");
    }

    /// The server does not answer, or is not willing.
    pub fn trouble(&mut self, trouble: &Trouble) {
        self.news = Some(News::Trouble(trouble.clone()));
        self.tell(&trouble.came);
    }

    fn tell(&mut self, kind: &str) {
        match self.form {
            Form::Silent => {}
            Form::Live => self.redraw(),
            Form::Log => {
                let news = self.told.as_deref() != Some(kind);
                if news || self.next_log.passed() {
                    line(format_args!("nxlock: {}", self.text()));
                    self.told = Some(kind.to_owned());
                    self.next_log = Moment::now() + LOG_EVERY;
                }
            }
        }
    }

    /// For a log, which has room.
    fn text(&self) -> String {
        let what = match &self.news {
            None => String::new(),
            Some(News::Trouble(trouble)) => format!("{trouble}, trying again"),
            Some(News::Held { occupancy, place, seen }) => {
                let held = held_by_after(occupancy, seen.elapsed());
                let place = ahead(*place).map_or(String::new(), |ahead| format!(", {ahead}"));
                format!("{held}, lease {}{place}", lease_left(occupancy, *seen))
            }
        };
        format!("waiting for \"{}\": {what}; waited {}", self.name, self.waited())
    }

    /// For one line of a terminal: what changes comes first, since what does not fit is cut.
    fn live_text(&self) -> String {
        let what = match &self.news {
            None => String::new(),
            Some(News::Trouble(trouble)) => format!("; {}, trying again", trouble.came),
            Some(News::Held { occupancy, seen, .. }) => match &occupancy.holder {
                Some(holder) => {
                    let held = span(whole(holder.held + seen.elapsed()));
                    format!("; held {held} by {}, lease {}", process(&holder.owner), lease_left(occupancy, *seen))
                }
                None => format!("; {}", held_by_after(occupancy, seen.elapsed())),
            },
        };
        let place = match &self.news {
            Some(News::Held { place, .. }) => ahead(*place).map_or(String::new(), |ahead| format!("{ahead}, ")),
            Some(News::Trouble(_)) | None => String::new(),
        };
        format!("waiting for \"{}\": {place}waited {}{what}", self.name, self.waited())
    }

    /// What a terminal would be shown.
    #[cfg(fuzzing)]
    pub fn live(&self) -> String {
        self.live_text()
    }

    fn waited(&self) -> String {
        span(whole(self.began.elapsed()))
    }

    /// When the line is to be drawn again.
    pub fn redraw_at(&self) -> Moment {
        self.redraw_at
    }

    pub fn redraw(&mut self) {
        if self.form != Form::Live {
            return;
        }
        self.redraw_at = Moment::now() + REDRAW_EVERY;
        // The shell's prompt is there.
        if !is_in_the_foreground() {
            self.drawn = false;
            return;
        }
        let columns = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| usize::from(width.0));
        // The last column is left empty: writing it may wrap the line.
        let text = format!("\r{}\x1b[K", cut(&self.live_text(), columns.saturating_sub(1)));
        // Not through anstream, which takes escapes out where colours are unwanted.
        offer(&Text::Raw(text));
        self.drawn = true;
    }

    /// The wait is over. On a terminal nothing of it remains.
    pub fn end(&mut self, granted: bool) {
        if self.drawn && is_in_the_foreground() {
            offer(&Text::Raw("\r\x1b[K".into()));
        }
        self.drawn = false;
        if self.form == Form::Log && self.told.is_some() && granted {
            let waited = span(whole(self.began.elapsed()));
            offer(&Text::Styled(format!("nxlock: got \"{}\" after {waited}\n", self.name)));
        }
    }
}

/// Whether the terminal is our process group's just now. One that does not control us belongs to no group of our
/// session, tcgetpgrp(3), and nobody's prompt is there.
fn is_in_the_foreground() -> bool {
    tcgetpgrp(std::io::stderr()).map_or(true, |group| group == getpgrp())
}

/// Our place, from where we stand.
fn ahead(place: Place) -> Option<String> {
    match place.position {
        0 => None,
        1 => Some("we are next".to_owned()),
        n => Some(format!("{} ahead of us", n - 1)),
    }
}

fn lease_left(occupancy: &Occupancy, seen: Moment) -> String {
    match occupancy.ttl {
        Some(ttl) => span(ttl.saturating_sub(seen.elapsed())),
        None => "without end".to_owned(),
    }
}

/// Tenths of a second in a line that is redrawn once a second would only flicker.
fn whole(duration: Duration) -> Duration {
    if duration >= Duration::from_secs(1) { Duration::from_secs(duration.as_secs()) } else { duration }
}
