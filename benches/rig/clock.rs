//! The time of this machine, the same in every process: CLOCK_MONOTONIC.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

pub fn now() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the kernel has CLOCK_MONOTONIC"))
}

#[expect(clippy::disallowed_methods, reason = "the one place where the benches sleep")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits until a condition is true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = now();
    while !is_so() {
        assert!(now() - began < Duration::from_secs(30), "still not so: {what}");
        pause(Duration::from_millis(1));
    }
}
