//! Random decisions that a seed repeats: SplitMix64, with one stream for each participant.

use std::time::Duration;

use crate::support::wall;

#[derive(Clone)]
pub struct Seed(u64);

pub fn fresh() -> u64 {
    let now = wall().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    u64::from(now.subsec_nanos()) ^ (now.as_secs() << 20)
}

impl Seed {
    pub fn of(seed: u64) -> Seed {
        Seed(seed)
    }

    /// Returns an independent stream.
    pub fn branch(&self, n: u64) -> Seed {
        let mut branch = Seed(self.0 ^ (n + 1).wrapping_mul(0xd134_2543_de82_ef95));
        branch.next();
        branch
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low`, below `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low * 1000, high * 1000))
    }

    /// Returns true in so many of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(0, 100) < chance
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.between(0, choices.len() as u64)).expect("it fits")]
    }
}
