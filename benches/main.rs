//! Measurements of whole processes, compared with others of the same run. The benches print, and people judge.
//!
//! `cargo bench` runs all of them, `cargo bench -- overhead` the named ones; `--quick` runs fewer rounds. The bench `former`
//! needs an earlier build: `NXLOCK_BENCH_FORMER=FILE`.

#![expect(clippy::print_stdout, reason = "a bench prints")]

mod crowd;
mod former;
mod handoff;
mod line;
mod listing;
mod overhead;
mod rig;
mod topology;
mod windows;

// The listing is first: it takes the peak memory of all children so far for its own.
const BENCHES: [(&str, fn()); 9] = [
    ("listing", listing::measure),
    ("overhead", overhead::measure),
    ("handoff", handoff::measure),
    ("sharing", handoff::measure_sharing),
    ("topology", topology::measure),
    ("crowd", crowd::measure),
    ("line", line::measure),
    ("windows", windows::measure),
    ("former", former::measure),
];

fn main() {
    if handoff::ran_another_role() {
        return;
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for (name, measure) in BENCHES {
        if named.is_empty() || named.iter().any(|word| word == name) {
            measure();
        }
    }
}
