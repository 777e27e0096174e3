//! How readers that wait behind a writer enter: from the end of its command to the start of the first and of the last of
//! theirs. Compared with flock(1) and its `--shared`.

use std::cell::RefCell;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::guard::Guard;
use super::scene::{new_name, read, start};
use super::within::stamping;
use crate::rig::{Contestant, Figures, Server, pause, rounds, until};

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
    let name = new_name();
    let stamps = server.directory().join(format!("{name}.stamps"));
    let mut writer = start(guard.call(server, &name, &stamping(&stamps, 0, true)), Stdio::piped());
    let leash = writer.stdin.take().expect("a pipe");
    until("the writer's command runs", || stamps.exists());
    let waits = |reader| -> Child {
        let child = start(guard.read(server, &name, &stamping(&stamps, reader, false)), Stdio::null());
        pause(Duration::from_millis(10));
        child
    };
    let mut all: Vec<Child> = (1..=readers).map(waits).collect();
    until("all wait", || guard.waiting(server, &name) == Some(readers));
    pause(Duration::from_millis(5));
    drop(leash);
    all.push(writer);
    for mut process in all {
        let status = process.wait().expect("it is our child");
        assert!(status.success(), "{status}");
    }
    let mut served = read(&stamps);
    served.sort_unstable();
    assert_eq!(served.len(), readers + 1, "everybody was served once");
    let end = served[0].1;
    (served[1].0 - end, served[readers].0 - end)
}
