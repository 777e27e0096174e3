//! The clocks: the only file that reads them.
//!
//! Leases are measured on CLOCK_BOOTTIME (clock_gettime(2)), which keeps counting while the machine sleeps, as the
//! server's clock does; `std::time::Instant` does not. The wall clock is shown to people, and measures how long ago a recorded
//! run of a local lock began: that outlives a boot.

use std::fs;
use std::io;
use std::ops::{Add, Sub};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use crate::{duration, proc};

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

    /// Returns the time left; zero if the moment has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_sub(Moment::now().0)
    }

    /// Returns the time since the moment; zero if it is still to come.
    pub fn elapsed(self) -> Duration {
        Moment::now().0.saturating_sub(self.0)
    }

    /// Reverses [`Moment::since_boot`].
    pub fn after_boot(duration: Duration) -> Moment {
        Moment(duration)
    }

    /// Returns the time since boot, as timerfd_settime(2) takes it; `None` for [`Moment::NEVER`].
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

/// One boot of this machine: the reference by which its processes agree on a moment.
pub struct Boot {
    /// Unknown in a container that has an id of its own, or no /proc/sys.
    id: Option<String>,
    /// Microseconds by which this process's clock is ahead of the machine's, time_namespaces(7).
    ahead: i64,
}

impl Boot {
    /// # Errors
    /// If there is no /proc, or while the process has left one time namespace and is not in the next: then nothing
    /// tells how far its clock is ahead.
    pub fn this() -> io::Result<Boot> {
        let offsets = match proc::short("/proc/self/timens_offsets") {
            // Kernels without time namespaces do not have this file.
            Err(_) => proc::short("/proc/self/stat").map(|_| Vec::new())?,
            Ok(offsets) => offsets,
        };
        let ahead = ahead(&String::from_utf8_lossy(&offsets)).unwrap_or(0);
        let namespace = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|file| file.ino());
        if ahead != 0 && namespace("time")? != namespace("time_for_children")? {
            return Err(io::Error::other("this process is between two time namespaces"));
        }
        Ok(Boot { id: proc::boot_id(), ahead })
    }

    /// Returns whether this process counts from the machine's boot itself. Times in /proc are by the reader's clock.
    pub fn is_by_our_clock(&self) -> bool {
        self.ahead == 0
    }

    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns whether this id is certainly that of another boot.
    pub fn is_other_than(&self, id: Option<&str>) -> bool {
        self.id().zip(id).is_some_and(|(this, other)| this != other)
    }

    /// Returns the microseconds from the machine's boot to a moment.
    pub fn micros(&self, moment: Moment) -> u64 {
        duration::micros(moment.0).saturating_add_signed(-self.ahead)
    }

    /// Returns the moment this many microseconds after the machine's boot.
    pub fn moment(&self, micros: u64) -> Moment {
        Moment(Duration::from_micros(micros.saturating_add_signed(self.ahead)))
    }
}

/// Returns, in microseconds, the offset of CLOCK_BOOTTIME in `/proc/PID/timens_offsets` (seconds and nanoseconds).
pub fn ahead(offsets: &str) -> Option<i64> {
    let mut fields = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_ascii_whitespace();
    let mut number = || fields.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000)?.checked_add(number()? / 1000)
}

/// Returns the time of the wall clock, for people.
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
        let apart = Boot { id: None, ahead: -3_000_000 };
        let together = Boot { id: None, ahead: 0 };
        let moment = Moment(Duration::from_secs(10));
        assert_eq!((together.micros(moment), apart.micros(moment)), (10_000_000, 13_000_000));
        assert_eq!(apart.moment(13_000_000), moment);
    }

    #[test]
    fn a_boot_is_another_only_if_both_are_known() {
        let this = Boot::this().unwrap();
        assert_eq!(this.id().unwrap().len(), 36);
        assert!(this.is_other_than(Some("another")) && !this.is_other_than(this.id()) && !this.is_other_than(None));
        assert!(!Boot { id: None, ahead: 0 }.is_other_than(Some("another")));
    }

    #[test]
    fn a_moment_that_has_come_leaves_nothing() {
        let now = Moment::now();
        assert!(now.passed());
        assert!((now + Duration::from_secs(60)).remaining() > Duration::from_secs(50));
    }
}
