//! The waiters of a lock, as a file keeps them: tickets define their order.

use super::fault::LocalError;
use super::lines::Lines;
use super::ofd_lock;
use super::record::Waiter;

pub type Waiters = Lines<Waiter>;

impl Waiters {
    /// Returns whether the waiter with this ticket is alive.
    pub fn lives(&self, ticket: u64) -> Result<bool, LocalError> {
        let taken = self.file.as_ref().map_or(Ok(false), |file| ofd_lock::is_taken(file, ticket));
        taken.map_err(|error| LocalError::unlockable(&self.path, &error))
    }

    pub fn first(&self) -> Option<&Waiter> {
        self.all().min_by_key(|waiter| waiter.ticket)
    }

    /// Returns the waiter right before a ticket.
    pub fn ahead_of(&self, ticket: u64) -> Option<&Waiter> {
        self.all().filter(|waiter| waiter.ticket < ticket).max_by_key(|waiter| waiter.ticket)
    }

    /// Returns a ticket behind all others, and not before `now`.
    pub fn next_ticket(&self, now: u64) -> u64 {
        self.all().map(|waiter| waiter.ticket.saturating_add(1)).max().unwrap_or(0).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_last_number_there_is_no_other() {
        let waiter = Waiter { ticket: u64::MAX, token: "t".parse().unwrap() };
        assert_eq!(Waiters::of(vec![None, Some(waiter)]).next_ticket(1), u64::MAX);
    }
}
