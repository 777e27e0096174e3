//! How readers that wait behind a writer enter: from the end of its command to the start of the first and of the last of
//! theirs. Compared with flock(1) and its `--shared`.

use std::cell::RefCell;
use std::time::Duration;

use super::guard::Guard;
use super::scene::{gather, read};
use crate::rig::{Contestant, Figures, Server, rounds};

const GUARDS: [Guard; 4] = [Guard::Flock, Guard::NxlockTcp, Guard::NxlockUnix, Guard::NxlockLocal];

/// The latencies until the first reader, and until the last.
#[derive(Default)]
struct Sum {
    first: Figures,
    last: Figures,
}

/// Returns a row of the table for each guard.
pub fn compare(server: &Server, readers: usize, count: usize) -> Vec<(String, Vec<String>)> {
    let sums: Vec<RefCell<Sum>> = GUARDS.iter().map(|_| RefCell::default()).collect();
    let contestants = GUARDS.iter().zip(&sums).map(|(&guard, sum)| {
        Box::new(move || {
            let (first, last) = enter(server, guard, readers);
            sum.borrow_mut().first.add(first);
            sum.borrow_mut().last.add(last);
        }) as Contestant<'_>
    });
    rounds(count, &mut contestants.collect::<Vec<_>>());
    let halves: Vec<[f64; 2]> = sums.iter().map(|sum| sum.borrow().halves()).collect();
    let row = |(guard, half): (&Guard, &[f64; 2])| {
        let ratios = [half[0] / halves[0][0], half[1] / halves[0][1]];
        (guard.name(), half.iter().chain(&ratios).map(|figure| format!("{figure:.2}")).collect())
    };
    GUARDS.iter().zip(&halves).map(row).collect()
}

impl Sum {
    fn halves(&self) -> [f64; 2] {
        [self.first.percentile(50), self.last.percentile(50)]
    }
}

fn enter(server: &Server, guard: Guard, readers: usize) -> (Duration, Duration) {
    let stamps = gather(server, guard, Guard::read, readers, Duration::from_millis(10)).disperse();
    let mut served = read(&stamps);
    served.sort_unstable();
    assert_eq!(served.len(), readers + 1, "everybody was served once");
    let end = served[0].1;
    (served[1].0 - end, served[readers].0 - end)
}
