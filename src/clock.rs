//! What time it is: the only file that asks.
//!
//! Leases are measured on CLOCK_BOOTTIME (clock_gettime(2)), which goes on counting while the
//! machine sleeps, as the server's clock does; `std::time::Instant` stops then. The wall clock is
//! only ever told to people.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

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
    fn a_moment_that_has_come_leaves_nothing() {
        let now = Moment::now();
        assert!(now.passed());
        assert!((now + Duration::from_secs(60)).remaining() > Duration::from_secs(50));
    }
}
