//! Passes lines to the journal by a background writer, and counts those that it cannot write.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::journal::{Destination, Journal, LONGEST, Unopened};
use crate::error::Error;
use crate::thread::{BackgroundWriter, FLUSH_AT_EXIT};
use crate::{log, text};

pub struct Writer {
    at: Destination,
    /// Set until the background writer starts.
    journal: Option<Journal>,
    writer: Option<BackgroundWriter<String>>,
    held_back: Vec<String>,
    unwritten: Arc<Unwritten>,
}

#[derive(Default)]
struct Unwritten {
    lines: AtomicUsize,
    /// Why the first of them was not written.
    why: OnceLock<String>,
}

impl Unwritten {
    fn add(&self, why: impl FnOnce() -> String) {
        self.lines.fetch_add(1, Ordering::SeqCst);
        self.why.get_or_init(why);
    }
}

impl Writer {
    /// Opens a destination; none if it is empty. A destination that cannot be written to now is no error: no run fails
    /// for that.
    ///
    /// # Errors
    /// If the destination can never be written to.
    pub fn open(at: &Destination) -> Result<Option<Writer>, Error> {
        let unwritten = Arc::new(Unwritten::default());
        let journal = match Journal::open(at) {
            Ok(None) => return Ok(None),
            Ok(journal) => journal,
            Err(Unopened::Wrong(error)) => return Err(error),
            Err(Unopened::Unavailable(error)) => {
                unwritten.why.get_or_init(|| text::plain(&error));
                None
            }
        };
        Ok(Some(Writer { at: at.clone(), journal, writer: None, held_back: Vec::new(), unwritten }))
    }

    /// Holds a line back until the next one, unless the background writer runs: to start it now would cost time.
    pub fn hold_back(&mut self, line: String) {
        match self.writer {
            None => self.held_back.push(line),
            Some(_) => self.put(line),
        }
    }

    pub fn put(&mut self, line: String) {
        self.flush();
        self.hand_over(line);
    }

    /// Writes the lines held back.
    pub fn flush(&mut self) {
        if let Some(mut journal) = self.journal.take() {
            let unwritten = Arc::clone(&self.unwritten);
            let write = move |line: String| match write(&mut journal, &line) {
                Ok(()) => {}
                Err(error) => unwritten.add(|| text::plain(&error)),
            };
            match BackgroundWriter::begin("events", write) {
                Ok(writer) => self.writer = Some(writer),
                Err(error) => _ = self.unwritten.why.get_or_init(|| text::plain(&error)),
            }
        }
        for line in std::mem::take(&mut self.held_back) {
            self.hand_over(line);
        }
    }

    fn hand_over(&self, line: String) {
        if !self.writer.as_ref().is_some_and(|writer| writer.put(line)) {
            self.unwritten.add(not_read);
        }
    }

    /// Flushes for at most [`FLUSH_AT_EXIT`], and warns of the lines not written.
    pub fn end(mut self) {
        self.flush();
        let mut lines = 0;
        if let Some(writer) = &self.writer {
            writer.settle(FLUSH_AT_EXIT);
            lines = writer.outstanding();
        }
        lines += self.unwritten.lines.load(Ordering::SeqCst);
        if lines > 0 {
            let events = if lines == 1 { "an event was".to_owned() } else { format!("{lines} events were") };
            let why = self.unwritten.why.get_or_init(not_read);
            log::warn(format_args!("{events} not written to {}: {why}", self.at));
        }
    }
}

fn not_read() -> String {
    "nobody takes them".to_owned()
}

fn write(journal: &mut Journal, line: &str) -> io::Result<()> {
    if line.len() > LONGEST {
        return Err(io::Error::other("it is too long to be written at once"));
    }
    journal.write(line)
}
