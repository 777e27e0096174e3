//! What time it is: the only file that asks.
//!
//! Leases are measured on CLOCK_BOOTTIME (clock_gettime(2)), which goes on counting while the
//! machine sleeps, as the server's clock does; `std::time::Instant` stops then. The wall clock is
//! only ever told to people.

use std::fs;
use std::io;
use std::ops::{Add, Sub};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use crate::proc;

/// A point in time on this machine, counted from its boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    pub const NEVER: Moment = Moment(Duration::MAX);

    pub fn now() -> Moment {
        // Fails only for a clock that the kernel does not have; CLOCK_BOOTTIME is in Linux since 2.6.39.
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has CLOCK_BOOTTIME");
        Moment(Duration::from(time))
    }

    pub fn passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Nothing if it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_sub(Moment::now().0)
    }

    /// Nothing if it is still to come.
    pub fn elapsed(self) -> Duration {
        Moment::now().0.saturating_sub(self.0)
    }

    /// Since boot, as timerfd_settime(2) takes it; nothing for [`Moment::NEVER`].
    pub fn since_boot(self) -> Option<Duration> {
        (self != Moment::NEVER).then_some(self.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        if self == Moment::NEVER { self } else { Moment(self.0.saturating_sub(duration)) }
    }
}

/// One boot of this machine: what its processes can agree on a moment by.
pub struct Boot {
    id: String,
    /// By how many microseconds this process's clock is ahead of the machine's, time_namespaces(7).
    ahead: i64,
}

impl Boot {
    /// # Errors
    /// Where there is no /proc, random(4); and while a process has left one time namespace and is not
    /// in the next, since then nothing tells how far its clock is ahead.
    pub fn this() -> io::Result<Boot> {
        let text = |path| Ok::<_, io::Error>(String::from_utf8_lossy(&proc::short(path)?).trim_end().to_owned());
        let id = text("/proc/sys/kernel/random/boot_id")?;
        // Not there in kernels without time namespaces.
        let offsets = text("/proc/self/timens_offsets").unwrap_or_default();
        let ahead = ahead(&offsets).unwrap_or(0);
        let namespace = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|file| file.ino());
        if ahead != 0 && namespace("time")? != namespace("time_for_children")? {
            return Err(io::Error::other("this process is between two time namespaces"));
        }
        Ok(Boot { id, ahead })
    }

    /// Whether this process counts from the machine's boot itself. What /proc tells of times is by the
    /// clock of whoever reads it.
    pub fn is_told_by_our_clock(&self) -> bool {
        self.ahead == 0
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Microseconds from the machine's boot to a moment.
    pub fn micros(&self, moment: Moment) -> u64 {
        u64::try_from(moment.0.as_micros()).unwrap_or(u64::MAX).saturating_add_signed(-self.ahead)
    }

    /// The moment so many microseconds after the machine's boot.
    pub fn moment(&self, micros: u64) -> Moment {
        Moment(Duration::from_micros(micros.saturating_add_signed(self.ahead)))
    }
}

/// The offset of CLOCK_BOOTTIME in `/proc/PID/timens_offsets`: seconds and nanoseconds.
pub fn ahead(offsets: &str) -> Option<i64> {
    let mut fields = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_ascii_whitespace();
    let mut number = || fields.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000)?.checked_add(number()? / 1000)
}

/// The wall clock, for people.
#[expect(clippy::disallowed_methods, reason = "the one place that asks")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_does_not_come() {
        assert!(!Moment::NEVER.passed());
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::NEVER - Duration::from_secs(1), Moment::NEVER);
    }

    #[test]
    fn processes_whose_clocks_are_apart_agree_on_a_moment() {
        assert_eq!(ahead("monotonic           0         0\nboottime        86400  5000000\n"), Some(86_400_005_000));
        assert_eq!(ahead("boottime 9223372036854775807 0\n"), None, "farther than can be counted");
        let apart = Boot { id: String::new(), ahead: -3_000_000 };
        let together = Boot { id: String::new(), ahead: 0 };
        let moment = Moment(Duration::from_secs(10));
        assert_eq!((together.micros(moment), apart.micros(moment)), (10_000_000, 13_000_000));
        assert_eq!(apart.moment(13_000_000), moment);
        assert_eq!(Boot::this().unwrap().id().len(), 36);
    }

    #[test]
    fn a_moment_that_has_come_leaves_nothing() {
        let now = Moment::now();
        assert!(now.passed());
        assert!((now + Duration::from_secs(60)).remaining() > Duration::from_secs(50));
    }
}
