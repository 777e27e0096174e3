//! The terminal as a full screen. Owns its modes and writes every byte to it.
//!
//! Opens the terminal again, so that O_NONBLOCK does not affect a stream shared with the caller. Writes only what the
//! terminal accepts, so that a stopped terminal never blocks nxlock for long.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anstream::ColorChoice;
use nix::libc;
use nix::poll::PollFlags;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::clock::Moment;
use crate::descriptors;
use crate::wait::{Limit, Woken};

pub struct Terminal {
    terminal: File,
    /// Its modes before nxlock changed them.
    before: Termios,
    is_ours: bool,
    has_colours: bool,
}

/// Alternate screen, hidden cursor, no line wrap (XTerm Control Sequences).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// How long a write waits for a terminal that accepts nothing.
const PATIENCE: Duration = Duration::from_secs(1);

impl Terminal {
    /// Returns the terminal on stdout; none if stdout is no terminal or cannot move a cursor.
    pub fn of_stdout() -> Option<Terminal> {
        let stdout = io::stdout();
        let kind = std::env::var_os("TERM").filter(|kind| !kind.is_empty() && kind != "dumb");
        if !stdout.is_terminal() || kind.is_none() {
            return None;
        }
        // A process that changed its user may lack permission for the device, but not for /dev/tty.
        let terminal = ["/proc/self/fd/1", "/dev/tty"].into_iter().find_map(|path| {
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok()
        })?;
        let before = tcgetattr(&terminal).ok()?;
        let has_colours = anstream::AutoStream::choice(&stdout) != ColorChoice::Never;
        Some(Terminal { terminal, before, is_ours: false, has_colours })
    }

    /// Enters the full screen, or sets the modes again after another process may have changed them.
    ///
    /// # Errors
    /// Those of tcsetattr(3) and write(2).
    pub fn enter(&mut self) -> io::Result<()> {
        let mut raw = self.before.clone();
        cfmakeraw(&mut raw);
        let is_new = !std::mem::replace(&mut self.is_ours, true);
        tcsetattr(&self.terminal, SetArg::TCSANOW, &raw)?;
        if is_new { self.write(ENTER.as_bytes(), &[]) } else { Ok(()) }
    }

    /// Restores the terminal, unless another process group has taken it over. There is nowhere to report a failure.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.is_ours) && self.is_in_front() {
            let _ = self.write(LEAVE.as_bytes(), &[]);
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.before);
        }
    }

    /// Returns false if another process group is in the foreground. A terminal that does not control nxlock has no
    /// foreground group.
    fn is_in_front(&self) -> bool {
        tcgetpgrp(&self.terminal).map_or(true, |group| group == getpgrp())
    }

    /// Returns columns and rows.
    pub fn size(&self) -> (usize, usize) {
        descriptors::window(&self.terminal)
    }

    /// Shows these lines and nothing else. Stops early when a descriptor in `urgent` becomes readable.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub fn show(&mut self, lines: &[String], urgent: &[Option<BorrowedFd<'_>>]) -> io::Result<()> {
        if !self.is_ours {
            self.enter()?;
        }
        let mut bytes = "\x1b[H".to_owned();
        for (at, line) in lines.iter().enumerate() {
            bytes += if at == 0 { "" } else { "\r\n" };
            match self.has_colours {
                true => bytes += line,
                false => bytes += &anstream::adapter::strip_str(line).to_string(),
            }
            bytes += "\x1b[K";
        }
        bytes += "\x1b[J";
        self.write(bytes.as_bytes(), urgent)
    }

    /// Returns the bytes typed since the last call.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub fn typed(&mut self) -> io::Result<Vec<u8>> {
        let mut typed = [0; 1024];
        match self.terminal.read(&mut typed) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => Ok(typed[..length].to_vec()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns a descriptor that is readable after input and when the terminal is gone.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    /// Drops what the terminal does not accept in time: the next redraw is complete again.
    fn write(&mut self, mut bytes: &[u8], urgent: &[Option<BorrowedFd<'_>>]) -> io::Result<()> {
        let limit = Limit { until: Moment::now() + PATIENCE, cancel: urgent, ..Limit::NONE };
        while !bytes.is_empty() {
            match self.terminal.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if limit.wait_for(&[(self.terminal.as_fd(), PollFlags::POLLOUT)])? != Woken::Ready {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Restores the terminal on every path, a panic included.
impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}
