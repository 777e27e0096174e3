//! A file of entries: a line of fixed size for each, in no order, or a blank line. The caller must hold the flock of
//! the lock's record to read and to write it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::directory::OpenDirectory;
use super::fault::{Flaw, LocalError};
use crate::error::ErrorKind;
use crate::lock::Token;

/// An entry, which is that of one token.
pub trait Line: Sized {
    /// Bytes of a line. A page is a multiple, so no line crosses a page boundary.
    const SIZE: usize;

    fn token(&self) -> &Token;

    /// Formats the entry; `None` if the token is longer than any that nxlock makes.
    fn written(&self) -> Option<Vec<u8>>;

    fn read(bytes: &[u8]) -> Result<Self, Flaw>;
}

pub struct Lines<L> {
    pub(super) path: PathBuf,
    /// `None` if there has never been an entry.
    pub(super) file: Option<File>,
    pub(super) lines: Vec<Option<L>>,
    /// Places of the entries that were forgotten and are not blank yet.
    forgotten: Vec<usize>,
}

/// Bytes of a file that is not worth shortening.
const SHORT: usize = 4096;
/// More entries than one machine can have.
const AT_MOST: usize = 1 << 16;

impl<L: Line> Lines<L> {
    pub fn read(directory: &OpenDirectory, path: PathBuf) -> Result<Lines<L>, LocalError> {
        let mut all = Lines { path, file: None, lines: Vec::new(), forgotten: Vec::new() };
        if let Some(file) = directory.open_file(&all.path)? {
            let file = all.file.insert(file);
            let failed = |error| LocalError::of(&all.path, &error);
            let length = usize::try_from(file.metadata().map_err(failed)?.len()).unwrap_or(usize::MAX);
            if length > AT_MOST * L::SIZE {
                return Err(LocalError::flawed(&all.path, Flaw::Damaged));
            }
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, 0).map_err(failed)?;
            let blank = blank(L::SIZE);
            all.lines.reserve(length / L::SIZE);
            for line in bytes.chunks(L::SIZE) {
                let entry = if line == blank { Ok(None) } else { L::read(line).map(Some) };
                all.lines.push(entry.map_err(|flaw| LocalError::flawed(&all.path, flaw))?);
            }
        }
        Ok(all)
    }

    /// Returns the file, and creates it if there is none.
    pub fn file(&mut self, directory: &OpenDirectory) -> Result<&File, LocalError> {
        if self.file.is_none() {
            directory.create_file(&self.path, b"")?;
            self.file = directory.open_file(&self.path)?;
        }
        let gone = || LocalError::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        self.file.as_ref().ok_or_else(gone)
    }

    /// Opens the file once more: the new open file description has locks of its own.
    pub fn opened_anew(&self, directory: &OpenDirectory) -> Result<File, LocalError> {
        let gone = || LocalError::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        directory.open_file(&self.path)?.ok_or_else(gone)
    }

    /// Returns the file, if it has been opened.
    pub fn opened(&self) -> Option<&File> {
        self.file.as_ref()
    }

    pub fn all(&self) -> impl Iterator<Item = &L> {
        self.lines.iter().flatten()
    }

    pub fn find(&self, token: &Token) -> Option<&L> {
        self.all().find(|entry| entry.token() == token)
    }

    /// Adds an entry, or replaces that of its token.
    pub fn put(&mut self, directory: &OpenDirectory, entry: L) -> Result<(), LocalError> {
        self.file(directory)?;
        let written = entry
            .written()
            .ok_or_else(|| LocalError::new(ErrorKind::Internal, "the token is too long for its file", ""))?;
        let at = self.place(entry.token()).or_else(|| self.lines.iter().position(Option::is_none));
        let at = at.unwrap_or(self.lines.len());
        self.write(at, &written)?;
        if at == self.lines.len() {
            self.lines.push(None);
        }
        self.forgotten.retain(|place| *place != at);
        self.lines[at] = Some(entry);
        Ok(())
    }

    pub fn remove(&mut self, token: &Token) -> Result<(), LocalError> {
        let Some(at) = self.place(token) else { return Ok(()) };
        self.lines[at] = None;
        // A short file keeps its length: truncating it would cost more than reading it.
        let is_last = self.lines.len() > SHORT / L::SIZE && self.lines.iter().all(Option::is_none);
        if is_last { self.clear() } else { self.write(at, &blank(L::SIZE)) }
    }

    /// Forgets the entries that are over, without writing.
    pub fn forget(&mut self, is_over: impl Fn(&L) -> bool) {
        for (at, line) in self.lines.iter_mut().enumerate() {
            if line.take_if(|entry| is_over(entry)).is_some() {
                self.forgotten.push(at);
            }
        }
    }

    /// Blanks what was forgotten.
    pub fn blank_forgotten(&mut self) -> Result<(), LocalError> {
        let blank = blank(L::SIZE);
        while let Some(at) = self.forgotten.last() {
            self.write(*at, &blank)?;
            self.forgotten.pop();
        }
        Ok(())
    }

    /// Removes all entries.
    fn clear(&mut self) -> Result<(), LocalError> {
        // Not to zero bytes: after that, ext4 flushes what is written when the file is closed, and the next process
        // would wait for the disk (ext4(5), auto_da_alloc).
        self.write(0, &blank(L::SIZE))?;
        self.lines = vec![None];
        self.forgotten.clear();
        let length = u64::try_from(L::SIZE).unwrap_or(u64::MAX);
        let shortened = self.file.as_ref().map_or(Ok(()), |file| file.set_len(length));
        shortened.map_err(|error| LocalError::of(&self.path, &error))
    }

    fn place(&self, token: &Token) -> Option<usize> {
        self.lines.iter().position(|line| line.as_ref().is_some_and(|entry| entry.token() == token))
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), LocalError> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let offset = u64::try_from(at * L::SIZE).unwrap_or(u64::MAX);
        let written = self.file.as_ref().ok_or_else(gone).and_then(|file| file.write_all_at(bytes, offset));
        written.map_err(|error| LocalError::of(&self.path, &error))
    }
}

fn blank(size: usize) -> Vec<u8> {
    let mut blank = vec![b' '; size - 1];
    blank.push(b'\n');
    blank
}

#[cfg(test)]
impl<L> Lines<L> {
    /// Returns lines that no file has.
    pub fn of(lines: Vec<Option<L>>) -> Lines<L> {
        Lines { path: PathBuf::new(), file: None, lines, forgotten: Vec::new() }
    }
}
