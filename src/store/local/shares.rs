//! Those who hold a lock together, as a file keeps them.
//!
//! A holder locks the byte of its share's number, through a file that is open only for reading. When the last process
//! that has this file open closes it, however it ends, the kernel reports IN_CLOSE_NOWRITE to the waiter at the front:
//! one descriptor tells the end of any number of holders. Everybody else opens the file for writing too, so that a look
//! at it wakes nobody.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use super::directory::OpenDirectory;
use super::fault::LocalError;
use super::lines::Lines;
use super::ofd_lock;
use super::record::Share;
use crate::error::ErrorKind;
use crate::lock::{Shares as Occupancy, SlotCount};
use crate::text;

pub type Shares = Lines<Share>;

/// How many numbers are tried for a share. Those of processes that had one are in the past, but for a few microseconds.
const TRIED: u64 = 64;

impl Shares {
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Returns how many hold the lock, and the least number of slots that any of them asked for.
    pub fn occupancy(&self) -> Occupancy {
        let least: Option<SlotCount> = self.all().filter_map(|share| share.sharing().slots()).min();
        Occupancy { held: Vec::new(), taken: self.all().count(), slots: least }
    }

    /// Returns the lowest slot that nobody has.
    pub fn free_slot(&self) -> u16 {
        let taken: BTreeSet<u16> = self.all().filter_map(|share| share.slot).collect();
        (0..u16::MAX).find(|slot| !taken.contains(slot)).unwrap_or(u16::MAX)
    }

    /// Returns a number that no share has, nor a process that had one, and not below `now`. `is_in_use` tells whether
    /// processes of the command of a share keep its number.
    ///
    /// # Errors
    /// If a process keeps all numbers that are tried: whoever may read the file can lock any number of bytes.
    pub fn free_number(
        &self,
        now: u64,
        is_in_use: impl Fn(u64) -> Result<bool, LocalError>,
    ) -> Result<u64, LocalError> {
        let first = self.all().map(|share| share.number.saturating_add(1)).max().unwrap_or(0).max(now);
        for number in first..first.saturating_add(TRIED) {
            if !self.is_kept(number)? && !is_in_use(number)? {
                return Ok(number);
            }
        }
        let cause = format!("another program keeps bytes of {} locked", text::path(&self.path));
        Err(LocalError::new(ErrorKind::Unreachable, cause, "see which one does (lslocks)"))
    }

    /// Returns whether a process has the share with this number open.
    pub fn is_kept(&self, number: u64) -> Result<bool, LocalError> {
        let kept = self.file.as_ref().map_or(Ok(false), |file| ofd_lock::is_kept(file, number));
        kept.map_err(|error| LocalError::unlockable(&self.path, &error))
    }

    /// Opens the file for one share, and locks its number.
    pub fn keep(&self, directory: &OpenDirectory, number: u64) -> Result<File, LocalError> {
        let gone = || LocalError::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        let file = directory.open_to_read(&self.path)?.ok_or_else(gone)?;
        ofd_lock::keep(&file, number).map_err(|error| LocalError::unlockable(&self.path, &error))?;
        Ok(file)
    }
}
