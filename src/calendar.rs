//! Instants as a user types them. Local time is that of TZ, or of /etc/localtime.

use std::path::Path;
use std::str::FromStr;
use std::time::SystemTime;

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// An instant, as it was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instant {
    Universal(DateTime),
    Local(DateTime),
    /// The next time at which a local clock shows this.
    Next(Time),
}

const UNIVERSAL: [&str; 2] = ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ"];
const LOCAL: [&str; 2] = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"];
const OF_A_DAY: [&str; 2] = ["%H:%M:%S", "%H:%M"];

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Instant, String> {
        let date = |forms: [&str; 2]| forms.into_iter().find_map(|form| DateTime::strptime(form, text).ok());
        let time = || OF_A_DAY.into_iter().find_map(|form| Time::strptime(form, text).ok());
        let local = || date(LOCAL).map(Instant::Local).or_else(|| time().map(Instant::Next));
        date(UNIVERSAL).map(Instant::Universal).or_else(local).ok_or_else(|| {
            "write 2026-11-30T08:00Z or, in local time, '2026-11-30 08:00' or 08:00; seconds may follow".to_owned()
        })
    }
}

impl Instant {
    /// Returns when that is. A local time that a change of the clocks skips is as late as it would be without the change, and
    /// of one that comes twice the first counts (RFC 5545, 3.3.5).
    ///
    /// # Errors
    /// If there is no local time, or no such instant.
    pub fn resolve(self, now: SystemTime) -> Result<SystemTime, String> {
        let zoned = match self {
            Instant::Universal(date) => date.to_zoned(TimeZone::UTC),
            Instant::Local(date) => date.to_zoned(local_zone()?),
            Instant::Next(time) => {
                let now = Timestamp::try_from(now).map_err(|error| error.to_string())?.to_zoned(local_zone()?);
                next(time, &now)
            }
        };
        zoned.map(|zoned| zoned.timestamp().into()).map_err(|error| error.to_string())
    }
}

fn next(time: Time, now: &Zoned) -> Result<Zoned, jiff::Error> {
    let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone())?;
    if today > *now {
        return Ok(today);
    }
    now.date().tomorrow()?.to_datetime(time).to_zoned(now.time_zone().clone())
}

/// Returns the zone of local time: UTC on a machine where none is set.
fn local_zone() -> Result<TimeZone, String> {
    let is_set = std::env::var_os("TZ").is_some() || Path::new("/etc/localtime").exists();
    if !is_set {
        return Ok(TimeZone::UTC);
    }
    TimeZone::try_system().map_err(|error| format!("local time is not known: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(text: &str) -> Zoned {
        text.parse().unwrap()
    }

    #[test]
    fn an_instant_is_typed_in_three_forms() {
        for (text, instant) in
            [("2026-11-30T08:00Z", 1_796_025_600), ("2026-11-30T08:00:01Z", 1_796_025_601), ("1970-01-01T00:00:09Z", 9)]
        {
            let parsed: Instant = text.parse().unwrap();
            assert_eq!(
                parsed.resolve(SystemTime::UNIX_EPOCH),
                Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(instant))
            );
        }
        assert!(matches!("2026-11-30 08:00".parse(), Ok(Instant::Local(_))));
        assert!(matches!("2026-11-30 08:00:59".parse(), Ok(Instant::Local(_))));
        assert!(matches!("08:00".parse(), Ok(Instant::Next(_))) && matches!("23:59:59".parse(), Ok(Instant::Next(_))));
        for bad in ["", "8", "24:00", "08:60", "2026-11-30", "2026-11-30T08:00", "2026-11-31 08:00", "tomorrow", "10m"]
        {
            assert!(bad.parse::<Instant>().unwrap_err().contains("08:00"), "{bad}");
        }
    }

    #[test]
    fn a_time_of_a_day_is_the_next_one() {
        let berlin = |text: &str| at(&format!("{text}[Europe/Berlin]"));
        let next = |time: &str, now: Zoned| next(Time::strptime("%H:%M", time).unwrap(), &now).unwrap();
        for (now, time, expected) in [
            ("2026-11-27T18:00+01:00", "18:01", "2026-11-27T18:01+01:00"),
            ("2026-11-27T18:00+01:00", "18:00", "2026-11-28T18:00+01:00"),
            ("2026-12-31T23:59+01:00", "08:00", "2027-01-01T08:00+01:00"),
            // The clocks go forward from 2:00 to 3:00: 2:30 is as late as without.
            ("2026-03-28T12:00+01:00", "02:30", "2026-03-29T03:30+02:00"),
            // They go back from 3:00 to 2:00: the first 2:30 counts; when that is over, tomorrow's.
            ("2026-10-24T12:00+02:00", "02:30", "2026-10-25T02:30+02:00"),
            ("2026-10-25T02:40+02:00", "02:30", "2026-10-26T02:30+01:00"),
        ] {
            assert_eq!(next(time, berlin(now)), berlin(expected), "{now} {time}");
        }
    }
}
