//! Random numbers from a seed, so that a history can be had again.

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        // Neighbouring seeds begin far from each other.
        let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Returns a number below this one.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns an index below this one.
    pub fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap()
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Returns one of these, as often as their weights say.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut at = self.below(choices.iter().map(|(weight, _)| weight).sum());
        let (_, chosen) =
            choices.iter().find(|(weight, _)| at.checked_sub(*weight).map(|rest| at = rest).is_none()).unwrap();
        *chosen
    }
}
