//! A terminal, and its user.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};

use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::Signal;
use nix::unistd::setsid;

use super::nxlock::clear_away;
use super::{LIMIT, Nxlock, now, pause};

/// A program in the foreground of a terminal of its own, with all three streams on it.
pub struct Terminal {
    /// `None` after a hangup.
    master: Option<PtyMaster>,
    /// Kept open, so that the output can still be read after the program has ended.
    slave: Option<File>,
    child: Child,
    mark: String,
    shown: Vec<u8>,
    read_to: usize,
}

impl Terminal {
    /// Returns the two sides of a new terminal: the user's and the programs'.
    pub fn pair() -> (PtyMaster, File) {
        // Closed at exec: no process of another test may keep a terminal open.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let master = posix_openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal of ours");
        let name = ptsname_r(&master).expect("its name");
        let slave = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name).expect("opened");
        (master, slave)
    }

    pub fn start(mut call: Nxlock) -> Terminal {
        let (master, slave) = Terminal::pair();
        let copy = || Stdio::from(slave.try_clone().expect("another descriptor"));
        call.command.stdin(copy()).stdout(copy()).stderr(copy()).env("TERM", "xterm");
        let mark = call.mark();
        // SAFETY: setsid(2) and ioctl(2) are async-signal-safe.
        unsafe {
            call.command.pre_exec(|| {
                setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = call.command.spawn().expect("it starts");
        Terminal { master: Some(master), slave: Some(slave), child, mark, shown: Vec::new(), read_to: 0 }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Types keys: `\x03` is Ctrl-C, `\x1a` Ctrl-Z.
    pub fn types(&mut self, keys: &str) {
        self.master().write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    fn master(&mut self) -> &mut PtyMaster {
        self.master.as_mut().expect("it was not hung up")
    }

    /// Hangs up, as by a closed window or a lost connection.
    pub fn hang_up(&mut self) {
        self.slave = None;
        self.master = None;
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: TIOCSWINSZ reads a winsize, ioctl_tty(2).
        let set =
            unsafe { libc::ioctl(self.master.as_ref().expect("a terminal").as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(set, 0, "the terminal takes its size");
    }

    /// Waits until the screen shows this after the previous match; returns the text in between.
    #[track_caller]
    pub fn shows(&mut self, text: &str) -> String {
        let began = now();
        loop {
            self.read();
            let screen = String::from_utf8_lossy(&self.shown[self.read_to..]).into_owned();
            if let Some(at) = screen.find(text) {
                self.read_to += at + text.len();
                return screen[..at].to_owned();
            }
            assert!(began.elapsed() < LIMIT, "the terminal does not show `{text}`:\n{}", self.screen());
            pause(began.elapsed());
        }
    }

    /// Returns all that was ever shown.
    pub fn screen(&mut self) -> String {
        self.read();
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            match self.master.as_mut().map_or(Ok(0), |master| master.read(&mut buffer)) {
                Ok(0) => return,
                Ok(n) => self.shown.extend(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    #[track_caller]
    pub fn finish(&mut self) -> ExitStatus {
        let began = now();
        loop {
            self.read();
            if let Some(status) = self.child.try_wait().expect("it is ours to wait for") {
                self.read();
                return status;
            }
            assert!(began.elapsed() < LIMIT, "it does not end:\n{}", self.screen());
            pause(began.elapsed());
        }
    }

    #[track_caller]
    pub fn exits(&mut self, status: i32) {
        let ended = self.finish();
        assert_eq!(ended.code(), Some(status), "{ended:?}:\n{}", self.screen());
    }

    #[track_caller]
    pub fn dies_of(&mut self, signal: Signal) {
        let ended = self.finish();
        assert_eq!(ended.signal(), Some(signal as i32), "{ended:?}:\n{}", self.screen());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        clear_away(std::slice::from_ref(&self.mark));
    }
}
