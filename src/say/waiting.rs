//! The line that tells what is waited for: redrawn in place on a terminal, sparse in a log.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::text::{cut, held_by, span};
use super::{Level, line, voice};
use crate::clock::Moment;
use crate::lock::{LockName, Occupancy};
use crate::store::Trouble;

/// How often a log is told that the wait goes on.
const LOG_EVERY: Duration = Duration::from_secs(30);
const REDRAW_EVERY: Duration = Duration::from_secs(1);

pub struct Waiting {
    name: LockName,
    began: Moment,
    form: Form,
    /// What the log was told last: that the lock is held, or of which trouble.
    told: Option<String>,
    next_log: Moment,
    drawn: bool,
}

#[derive(PartialEq, Eq)]
enum Form {
    Silent,
    Live,
    Log,
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
        Waiting { name: name.clone(), began: now, form, told: None, next_log: now, drawn: false }
    }

    /// The lock is somebody else's.
    pub fn held(&mut self, occupancy: &Occupancy) {
        let lease = occupancy.ttl.map_or("no expiry".to_owned(), |ttl| format!("{} of its lease left", span(ttl)));
        self.tell("held", || format!("{}, {lease}", held_by(occupancy)));
    }

    /// The server does not answer, or is not willing.
    pub fn trouble(&mut self, trouble: &Trouble) {
        self.tell(&trouble.came, || format!("{trouble}, trying again"));
    }

    fn tell(&mut self, kind: &str, what: impl Fn() -> String) {
        match self.form {
            Form::Silent => {}
            Form::Live => {
                let text =
                    format!("waiting for \"{}\": {}; waited {}", self.name, what(), span(whole(self.began.elapsed())));
                self.draw(&text);
            }
            Form::Log => {
                let news = self.told.as_deref() != Some(kind);
                if news || self.next_log.passed() {
                    line(format_args!(
                        "nxlock: waiting for \"{}\": {}; waited {}",
                        self.name,
                        what(),
                        span(whole(self.began.elapsed()))
                    ));
                    self.told = Some(kind.to_owned());
                    self.next_log = Moment::now() + LOG_EVERY;
                }
            }
        }
    }

    /// A pause, cut to when the line is to be drawn again.
    pub fn until_redraw(&self, pause: Duration) -> Duration {
        match self.form {
            Form::Live => pause.min(REDRAW_EVERY),
            Form::Log | Form::Silent => pause,
        }
    }

    fn draw(&mut self, text: &str) {
        let columns = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| usize::from(width.0));
        // The last column is left empty: writing it may wrap the line.
        let text = format!("\r{}\x1b[K", cut(text, columns.saturating_sub(1)));
        // Not through anstream, which takes escapes out where colours are unwanted.
        let _ = std::io::stderr().write_all(text.as_bytes());
        self.drawn = true;
    }

    /// The wait is over. On a terminal nothing of it remains.
    pub fn end(&mut self, granted: bool) {
        if self.drawn {
            // Not through anstream, which would take the escape out where colours are unwanted.
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
            self.drawn = false;
        }
        if self.form == Form::Log && self.told.is_some() && granted {
            line(format_args!("nxlock: got \"{}\" after {}", self.name, span(whole(self.began.elapsed()))));
        }
    }
}

/// Tenths of a second in a line that is redrawn once a second would only flicker.
fn whole(duration: Duration) -> Duration {
    if duration >= Duration::from_secs(1) { Duration::from_secs(duration.as_secs()) } else { duration }
}
