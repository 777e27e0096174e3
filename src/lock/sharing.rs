//! How many may hold a lock at a time, and who holds one together with others.

use std::str::FromStr;

use super::{Expiry, Fence, Holder};

/// How many may hold a lock while a holder does, itself included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    #[default]
    Exclusive,
    /// At most this many, each in a slot of its own.
    Slots(SlotCount),
    /// As many as like.
    Shared,
}

/// A number of slots, 1 to 10000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotCount(u16);

/// The slot of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// From 0, and less than `of`.
    pub number: u16,
    pub of: SlotCount,
}

/// One of the holders of a shared lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub holder: Holder,
    pub expiry: Expiry,
    pub fence: Option<Fence>,
    pub slot: Option<u16>,
    /// False while the share is reserved for a waiter that has not claimed it yet.
    pub is_claimed: bool,
}

impl Share {
    pub fn sharing(&self) -> Sharing {
        self.holder.terms.sharing
    }
}

/// The holders of a shared lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// By slot, then by time; empty if only their number is known.
    pub held: Vec<Share>,
    /// How many there are.
    pub taken: usize,
    /// The least number of slots that any of them asked for; none if any number may hold it.
    pub slots: Option<SlotCount>,
}

impl Sharing {
    /// Returns what a token says of it: the number of slots, 0 for any number; none if at most one may hold the lock.
    pub fn number(self) -> Option<u16> {
        match self {
            Sharing::Exclusive | Sharing::Slots(SlotCount(1)) => None,
            Sharing::Slots(SlotCount(count)) => Some(count),
            Sharing::Shared => Some(0),
        }
    }

    /// Parses that number.
    pub fn of_number(number: u16) -> Option<Sharing> {
        match number {
            0 => Some(Sharing::Shared),
            count => SlotCount::of(count).map(Sharing::Slots),
        }
    }

    /// Returns how many may hold the lock; none for any number.
    pub fn slots(self) -> Option<SlotCount> {
        match self {
            Sharing::Exclusive => Some(SlotCount(1)),
            Sharing::Slots(count) => Some(count),
            Sharing::Shared => None,
        }
    }
}

impl Shares {
    /// Returns whether holders asked for different numbers of slots.
    pub fn is_mixed(&self) -> bool {
        let mut numbers = self.held.iter().filter_map(|share| share.sharing().slots());
        let first = numbers.next();
        numbers.any(|number| Some(number) != first)
    }

    /// Returns whether one more may hold the lock.
    pub fn fits(&self, sharing: Sharing) -> bool {
        let least = self.slots.into_iter().chain(sharing.slots()).min();
        least.is_none_or(|least| self.taken < usize::from(least.get()))
    }
}

impl SlotCount {
    const MAX: u16 = 10_000;

    pub fn of(count: u16) -> Option<SlotCount> {
        (1..=SlotCount::MAX).contains(&count).then_some(SlotCount(count))
    }

    pub fn get(self) -> u16 {
        self.0
    }
}

impl FromStr for SlotCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        count.and_then(SlotCount::of).ok_or_else(|| {
            let hint = if text.ends_with('%') || text.starts_with('+') {
                ": nxlock does not know how many CPUs the other machines have"
            } else {
                ""
            };
            format!("give a number from 1 to {}{hint}", SlotCount::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_slots_is_a_plain_number() {
        for (text, count) in [("1", 1), ("4", 4), ("10000", 10_000)] {
            assert_eq!(text.parse::<SlotCount>().unwrap().get(), count);
        }
        for text in ["", "0", "10001", "70000", "+4", "-1", "50%", "x", "4 "] {
            assert!(text.parse::<SlotCount>().unwrap_err().contains("1 to 10000"), "{text}");
        }
    }

    #[test]
    fn one_slot_is_exclusive_for_others() {
        let slots = |count| Sharing::Slots(SlotCount::of(count).unwrap());
        assert_eq!((slots(1).number(), Sharing::Exclusive.number()), (None, None));
        for sharing in [slots(2), slots(10_000), Sharing::Shared] {
            assert_eq!(Sharing::of_number(sharing.number().unwrap()), Some(sharing));
        }
        assert_eq!(Sharing::of_number(10_001), None);
    }
}
