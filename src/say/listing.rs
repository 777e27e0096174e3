//! The line that tells how far a long listing has got: on a terminal alone, and only while it lasts.

use std::io::IsTerminal;
use std::time::Duration;

use super::scribe::{Text, offer};
use super::{Level, voice};
use crate::clock::Moment;

/// Before this, nobody wonders.
const PATIENCE: Duration = Duration::from_secs(1);
const REDRAW_EVERY: Duration = Duration::from_millis(200);

pub struct Listing {
    is_shown: bool,
    redraw_at: Moment,
    drawn: bool,
}

impl Listing {
    pub fn begin() -> Listing {
        let voice = voice();
        let is_shown = !voice.json && voice.level > Level::Quiet && std::io::stderr().is_terminal();
        Listing { is_shown, redraw_at: Moment::now() + PATIENCE, drawn: false }
    }

    /// So many have been found by now.
    pub fn found(&mut self, locks: usize) {
        if self.is_shown && self.redraw_at.passed() {
            offer(&Text::Raw(format!("\rlisting locks: {locks} so far\x1b[K")));
            self.drawn = true;
            self.redraw_at = Moment::now() + REDRAW_EVERY;
        }
    }
}

/// However it ends, nothing of it remains.
impl Drop for Listing {
    fn drop(&mut self) {
        if self.drawn {
            offer(&Text::Raw("\r\x1b[K".into()));
        }
    }
}
