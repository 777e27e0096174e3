//! How often to do what others can cause. Pure: reads no clock.

use std::time::Duration;

use crate::clock::Moment;

/// So many times at once, and then once in each interval; after a rest at once again.
pub struct Pace {
    at_once: u32,
    apart: Duration,
    /// When the next one would be due if none had come at once; none if nothing was done yet.
    due: Option<Moment>,
}

impl Pace {
    pub const fn of(at_once: u32, apart: Duration) -> Pace {
        Pace { at_once, apart, due: None }
    }

    /// Returns from when on it may be done again; nothing if it may be at any time.
    pub fn next(&self) -> Option<Moment> {
        self.due.map(|due| due - self.apart * self.at_once.saturating_sub(1))
    }

    /// Takes notice that it is done so many times now, which may be more often than it is to be: the pause after that is
    /// longer.
    pub fn done(&mut self, times: usize, now: Moment) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.apart.saturating_mul(times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: Duration = Duration::from_millis(250);

    #[test]
    fn the_first_few_come_at_once_and_the_others_one_by_one() {
        let (mut pace, now) = (Pace::of(4, QUARTER), Moment::now());
        assert_eq!(pace.next(), None);
        for _ in 0..4 {
            assert!(pace.next().is_none_or(|next| next <= now));
            pace.done(1, now);
        }
        assert_eq!(pace.next(), Some(now + QUARTER));
        pace.done(1, now + QUARTER);
        assert_eq!(pace.next(), Some(now + QUARTER * 2));
        let later = now + QUARTER * 40;
        pace.done(1, later);
        assert!(pace.next() < Some(later), "after a rest");
    }

    #[test]
    fn what_is_done_more_often_at_once_is_followed_by_a_longer_pause() {
        let (mut pace, now) = (Pace::of(4, QUARTER), Moment::now());
        pace.done(16, now);
        assert_eq!(pace.next(), Some(now + QUARTER * 13));
    }
}
