//! An alarm as plug-ins of Nagios and its kin print it: one line, with performance data after a bar.
//! <https://nagios-plugins.org/doc/guidelines.html>, sections 2.1 and 2.6.

use crate::lock::LockName;
use crate::report::alarm::{Alarm, Check, Measure, Verdict};

/// Maximum number of findings in the line: a pager shows no more.
const LISTED: usize = 5;

/// Returns the line.
pub fn line(alarm: &Alarm) -> String {
    let word = match alarm.verdict() {
        Verdict::Fine => "OK",
        Verdict::Unknown => "UNKNOWN",
        Verdict::Critical => "CRITICAL",
    };
    let data: Vec<String> = alarm.checks.iter().map(performance).collect();
    let data = if data.is_empty() { String::new() } else { format!(" | {}", data.join(" ")) };
    format!("{word}: {}{data}", unbarred(&summary(alarm)))
}

/// Returns the findings, the worst first; if all is fine, of a few locks each.
pub fn summary(alarm: &Alarm) -> String {
    let findings = |verdict| alarm.checks.iter().filter(move |check| check.verdict == verdict);
    let finding = |check: &Check| format!("{} {}", check.lock.name, check.says);
    let unknown = findings(Verdict::Unknown).map(finding).chain(alarm.unknown.clone());
    let bad: Vec<String> = findings(Verdict::Critical).map(finding).chain(unknown).collect();
    match (bad.as_slice(), alarm.checks.as_slice()) {
        ([], []) => "no lock".to_owned(),
        ([], few) if few.len() <= LISTED => few.iter().map(finding).collect::<Vec<_>>().join("; "),
        ([], many) => {
            let mut names: Vec<&LockName> = many.iter().map(|check| &check.lock.name).collect();
            names.dedup();
            format!("{} locks", names.len())
        }
        (bad, _) => {
            let more = bad.len().checked_sub(LISTED).filter(|more| *more > 0);
            let more = more.map(|more| format!("; and {more} more")).unwrap_or_default();
            bad[..bad.len().min(LISTED)].join("; ") + &more
        }
    }
}

/// Returns a measure as `'LABEL'=VALUE[UNIT];;MOST;0`.
fn performance(check: &Check) -> String {
    let (what, value, most, unit) = match &check.measure {
        Measure::Age(age, most) => ("age", age.map(|age| age.as_secs()), most.as_secs(), "s"),
        Measure::Held(held, most) => ("held", held.map(|held| held.as_secs()), most.as_secs(), "s"),
        Measure::Waiting(waiting, most) => {
            let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
            ("waiting", waiting.map(count), count(*most), "")
        }
    };
    let value = value.map_or_else(|| "U".to_owned(), |value| format!("{value}{unit}"));
    // A label has neither of these.
    let name = unbarred(&check.lock.name.to_string()).replace(['\'', '='], "_");
    format!("'{name} {what}'={value};;{most};0")
}

/// Returns a text without the bar that begins the performance data.
fn unbarred(text: &str) -> String {
    text.replace('|', "_")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::Prefix;
    use crate::report::Named;

    fn check(name: &str, measure: Measure, verdict: Verdict, says: &str) -> Check {
        Check { lock: Named::new(&name.parse().unwrap(), &Prefix::none()), measure, verdict, says: says.to_owned() }
    }

    #[test]
    fn a_line_begins_with_the_worst_and_ends_with_all_that_was_measured() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let late =
            check("nightly", Measure::Age(Some(hours(31)), hours(26)), Verdict::Critical, "has not succeeded for 31h");
        let odd = check("it's|a=b", Measure::Held(None, hours(1)), Verdict::Unknown, "is held by a|b");
        let fine = check("deploy", Measure::Waiting(Some(2), 5), Verdict::Fine, "has 2 waiters");
        let alarm = Alarm { checks: vec![fine, odd, late], unknown: None };
        assert_eq!(
            line(&alarm),
            "CRITICAL: nightly has not succeeded for 31h; it's_a=b is held by a_b \
             | 'deploy waiting'=2;;5;0 'it_s_a_b held'=U;;3600;0 'nightly age'=111600s;;93600;0"
        );
    }

    #[test]
    fn a_line_about_many_locks_is_short() {
        let of = |verdict, count: usize| {
            let check = |n: usize| check(&format!("job-{n}"), Measure::Waiting(Some(0), 0), verdict, "is so");
            summary(&Alarm { checks: (0..count).map(check).collect(), unknown: None })
        };
        assert_eq!(of(Verdict::Fine, 1), "job-0 is so");
        assert_eq!(of(Verdict::Fine, 100), "100 locks");
        assert_eq!(
            of(Verdict::Critical, 7),
            "job-0 is so; job-1 is so; job-2 is so; job-3 is so; job-4 is so; and 2 more"
        );
    }
}
