//! How long before the end of a lease nxlock must act, so that the command is gone by then. `Rules` makes moments of it
//! for a command, and the keeper for the process it watches. The end is when nxlock believes that the lease ends,
//! `Ttl::believed_until`.

use std::time::Duration;

use crate::lock::Ttl;

/// Returns how long before the end of the lease nxlock tells the command to stop: a fifth of the ttl, at least 200 ms
/// and at most 10 s; or the time that the command is to have, up to a quarter of the ttl, if that is longer. Never more
/// than a third of the ttl: a server may be down for a while.
pub fn stop_before(ttl: Ttl, kill_after: Duration) -> Duration {
    let ttl = ttl.get();
    let fifth = (ttl / 5).clamp(Duration::from_millis(200), Duration::from_secs(10));
    let asked_for = (kill_after + Duration::from_millis(100)).min(ttl / 4);
    fifth.max(asked_for).min(ttl / 3)
}

/// Returns how long before the end of the lease nxlock kills what is left: time for nxlock to wake up and for the
/// processes to end while ten others compete for the CPU.
pub fn kill_before(ttl: Ttl, kill_after: Duration) -> Duration {
    let reserve = (ttl.get() / 100).max(Duration::from_millis(250));
    reserve.min(stop_before(ttl, kill_after) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn margins(ttl_ms: u64, kill_after_ms: u64) -> (u128, u128) {
        let ttl = Ttl::at_least(Duration::from_millis(ttl_ms));
        let kill_after = Duration::from_millis(kill_after_ms);
        (stop_before(ttl, kill_after).as_millis(), kill_before(ttl, kill_after).as_millis())
    }

    #[test]
    fn the_default_lease_leaves_the_command_its_five_seconds() {
        assert_eq!(margins(30_000, 5_000), (6_000, 300));
    }

    #[test]
    fn a_longer_grace_begins_earlier_as_far_as_a_quarter_of_the_lease() {
        assert_eq!(margins(60_000, 12_000), (12_100, 600));
        assert_eq!(margins(60_000, 40_000), (15_000, 600));
        assert_eq!(margins(3_000, 5_000), (750, 250));
    }

    #[test]
    fn even_the_shortest_lease_leaves_time_to_renew_and_to_kill() {
        assert_eq!(margins(100, 5_000), (33, 16));
        assert_eq!(margins(500, 0), (166, 83));
    }
}
