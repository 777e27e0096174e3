//! The file of a lock: its state, saved whole or not at all.
//!
//! The file has two headers and two texts. A save writes the text that is not current, and then the header that is not,
//! which makes it current: 512 bytes in one pwrite(2) within a page. A process that is killed in between, or has no room,
//! leaves the state as it was. Within a boot the newest header therefore names a text that is whole. After a power failure
//! the disk may have some pages as they were and others as they became: then the older header counts, if its text is
//! whole, and else nothing is left. No claim outlives the boot in which the headers were written, so the lock is free;
//! what is lost is the record of its runs.
//!
//! There is room for both texts before they are needed, so that a full disk keeps no lock from being renewed or released.

use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::fault::{Flaw, LocalError};
use super::flock::uninterrupted;
use super::format::{self, or_dash, sum_of_words};
use super::state::State;
use crate::clock::Boot;
use crate::error::ErrorKind;
use crate::log;

const KIND: (&str, u32) = ("nxlock-lock", 4);
/// Bytes of a header. A page is a multiple, so it does not cross a page boundary.
const HEADER: usize = 512;
/// Bytes of both.
const HEADERS: usize = 2 * HEADER;
/// Least room for a text: with this, the file has two pages.
const ROOM: usize = 3584;
/// Room that a newcomer leaves free: a release may need some for a reservation, and for the record of a run.
const SLACK: usize = 2048;
/// So many times more room than is needed is given back.
const TOO_MUCH: usize = 8;
/// More than one machine can need.
const AT_MOST: usize = 1 << 28;

/// Who wants a state saved, as far as it concerns room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saver {
    /// One that comes in or joins the queue. It leaves room for others to leave.
    Newcomer,
    /// One that stays or leaves.
    Other,
}

/// What a file has as its state.
#[derive(Debug)]
pub struct Saved {
    header: Header,
    /// Which of the two headers that is.
    slot: usize,
    text: String,
}

/// Where the text of a state is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Header {
    /// Grows with each save.
    sequence: u64,
    at: usize,
    room: usize,
    length: usize,
    sum: u64,
    /// The boot in which it was saved, if known.
    boot: Option<String>,
}

impl Header {
    fn of(text: &str, sequence: u64, (at, room): (usize, usize), boot: Option<&str>) -> Header {
        let (length, sum) = (text.len(), sum_of_words(text.as_bytes()));
        Header { sequence, at, room, length, sum, boot: boot.map(str::to_owned) }
    }

    fn written(&self) -> Option<Vec<u8>> {
        let Header { sequence, at, room, length, sum, boot } = self;
        let (sum, boot) = (format!("{sum:016x}"), or_dash(boot.as_ref()));
        let place: [(&str, &dyn std::fmt::Display); 4] =
            [("sequence", sequence), ("at", at), ("room", room), ("length", length)];
        format::write(KIND, &[&place[..], &[("text", &sum), ("boot", &boot)]].concat(), HEADER)
    }

    /// Parses a header; none if it was never written.
    fn read(bytes: &[u8]) -> Result<Option<Header>, Flaw> {
        if bytes == blank(HEADER) {
            return Ok(None);
        }
        let entry = format::read(KIND, bytes)?;
        let header = Header {
            sequence: entry.parsed("sequence")?,
            at: entry.parsed("at")?,
            room: entry.parsed("room")?,
            length: entry.parsed("length")?,
            sum: u64::from_str_radix(entry.text("text")?, 16).map_err(|_| Flaw::Damaged)?,
            boot: entry.optional("boot")?,
        };
        let is_sound = (HEADERS..=AT_MOST).contains(&header.at)
            && (ROOM..=AT_MOST).contains(&header.room)
            && header.length <= header.room;
        if is_sound { Ok(Some(header)) } else { Err(Flaw::Damaged) }
    }

    /// Returns the text that it names, if that is whole. `begin` is the beginning of the file.
    fn text(&self, file: &File, begin: &[u8]) -> io::Result<Option<String>> {
        let bytes = match begin.get(self.at..self.at + self.length) {
            Some(bytes) => bytes.to_vec(),
            None if u64::try_from(self.at + self.length).unwrap_or(u64::MAX) > file.metadata()?.len() => {
                return Ok(None);
            }
            None => {
                let mut bytes = vec![0; self.length];
                file.read_exact_at(&mut bytes, offset(self.at))?;
                bytes
            }
        };
        let text = Some(bytes).filter(|bytes| sum_of_words(bytes) == self.sum);
        Ok(text.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    /// Returns where the next text goes, with this room: it leaves the current one as it is.
    fn next(&self, room: usize) -> usize {
        if self.at >= HEADERS + room { HEADERS } else { (self.at + self.room).max(HEADERS + room) }
    }
}

/// Returns the content of a new file.
pub fn created(state: &State, boot: Option<&str>) -> Result<Vec<u8>, LocalError> {
    let text = state.written();
    let room = room_for(text.len() + SLACK);
    let header = Header::of(&text, 1, (HEADERS, room), boot).written().ok_or_else(too_long)?;
    let rest = blank(2 * room - text.len());
    Ok([header, blank(HEADER), text.into_bytes(), rest].concat())
}

/// Reads the state of a lock from its file, which the caller has locked; no state if a power failure has left none.
/// `now` as in [`State::read`].
pub fn load(
    file: &File,
    path: &Path,
    boot: &Boot,
    now: u64,
) -> Result<Result<(Saved, Option<State>), Flaw>, LocalError> {
    let failed = |error| LocalError::of(path, &error);
    let mut begin = [0; HEADERS + 2 * ROOM];
    let length = uninterrupted(|| file.read_at(&mut begin, 0)).map_err(failed)?;
    let begin = &begin[..length];
    let header = |slot: usize| {
        let end = begin.len().min((slot + 1) * HEADER);
        Header::read(begin.get(slot * HEADER..end).unwrap_or_default())
    };
    let headers = match header(0).and_then(|first| Ok([first, header(1)?])) {
        Ok(headers) => headers,
        Err(flaw) => return Ok(Err(flaw)),
    };
    let mut headers: Vec<(usize, Header)> =
        headers.into_iter().enumerate().filter_map(|(slot, header)| Some((slot, header?))).collect();
    headers.sort_by_key(|(_, header)| Reverse(header.sequence));
    let newest = headers.first().map(|(slot, header)| Saved::lost(header.sequence, *slot));
    for (slot, header) in headers {
        if let Some(text) = header.text(file, begin).map_err(failed)? {
            return Ok(State::read(&text, now).map(|state| (Saved { header, slot, text }, Some(state))));
        }
        // A kill does not do that.
        if !boot.is_other_than(header.boot.as_deref()) {
            return Ok(Err(Flaw::Damaged));
        }
    }
    Ok(newest.map(|saved| (saved, None)).ok_or(Flaw::Damaged))
}

impl Saved {
    /// Returns what a file has whose newest header is that of a text which is lost: the next header is newer. A new file
    /// had room for two such texts.
    fn lost(sequence: u64, slot: usize) -> Saved {
        let text = String::new();
        Saved { header: Header::of(&text, sequence, (HEADERS, ROOM), None), slot, text }
    }

    /// Writes a state in place of the one that was loaded. `commits` is called right before that counts, unless nothing
    /// has changed.
    ///
    /// # Errors
    /// If it cannot be written: the state is as it was.
    pub fn save(
        &mut self,
        file: &File,
        path: &Path,
        state: &State,
        (boot, saver): (Option<&str>, Saver),
        commits: impl FnOnce(),
    ) -> Result<(), LocalError> {
        let text = state.written();
        if text == self.text {
            return Ok(());
        }
        let failed = |error| LocalError::of(path, &error);
        if text.len() > AT_MOST / 4 {
            return Err(LocalError::new(ErrorKind::Unavailable, "too many processes use this lock", ""));
        }
        let (at, room) = self.write(file, &text, saver).map_err(failed)?;
        let header = Header::of(&text, self.header.sequence + 1, (at, room), boot);
        let slot = 1 - self.slot;
        let written = header.written().ok_or_else(too_long)?;
        commits();
        file.write_all_at(&written, offset(slot * HEADER)).map_err(failed)?;
        if room < self.header.room {
            // Not to zero bytes: after that, ext4 flushes what is written when the file is closed, and the next process
            // would wait for the disk (ext4(5), auto_da_alloc).
            let shortened = file.set_len(offset(HEADERS + 2 * room));
            let _ = shortened.inspect_err(|error| log::trace(format_args!("a lock's file stays long: {error}")));
        }
        *self = Saved { header, slot, text };
        Ok(())
    }

    /// Writes the text of the next state, and returns its place and room.
    fn write(&self, file: &File, text: &str, saver: Saver) -> io::Result<(usize, usize)> {
        let (now, wanted) = (self.header.room, room_for(text.len() + SLACK));
        let is_far_behind = self.header.at >= HEADERS + 2 * wanted;
        if wanted > now {
            match self.grow(file, text, wanted) {
                Err(error) if saver == Saver::Other && text.len() <= now => {
                    log::trace(format_args!("a lock's file does not grow: {error}"));
                }
                grown => return grown.map(|at| (at, wanted)),
            }
        }
        let room = if wanted * TOO_MUCH <= now && is_far_behind { wanted } else { now };
        let at = self.header.next(room);
        file.write_all_at(text.as_bytes(), offset(at)).map(|()| (at, room))
    }

    /// Writes a text behind the current one, with room for the one after it too.
    fn grow(&self, file: &File, text: &str, room: usize) -> io::Result<usize> {
        let at = self.header.next(room);
        let end = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(at);
        let bytes = [blank(at - end), text.as_bytes().to_vec(), blank(room - text.len())].concat();
        file.write_all_at(&bytes, offset(end)).map(|()| at)
    }
}

/// Returns the room for a text of this length: of few sizes, so that it seldom changes.
fn room_for(length: usize) -> usize {
    let mut room = ROOM;
    while room < length {
        room *= 2;
    }
    room
}

fn blank(length: usize) -> Vec<u8> {
    let mut blank = vec![b' '; length];
    if let Some(last) = blank.last_mut() {
        *last = b'\n';
    }
    blank
}

fn offset(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}

fn too_long() -> LocalError {
    LocalError::new(ErrorKind::Internal, "a header is too long for its place", "")
}

/// Returns a file with any text as the state of a lock.
#[cfg(fuzzing)]
pub fn sealed(text: &str, boot: Option<&str>) -> Option<Vec<u8>> {
    let header = Header::of(text, 1, (HEADERS, room_for(text.len())), boot).written()?;
    Some([&header, &*blank(HEADER), text.as_bytes()].concat())
}

#[cfg(test)]
mod tests;
