//! When to ask again for a lock that somebody else has: there is no queue over several servers, and who
//! came at the same moment is not to come again at the same moment.

use std::time::Duration;

use crate::clock::Moment;
use crate::lock::{HolderId, Occupancy};

const AT_FIRST: Duration = Duration::from_millis(200);
const AT_MOST: Duration = Duration::from_secs(1);

pub struct Again {
    holder: Option<HolderId>,
    within: Duration,
    pub at: Moment,
}

impl Again {
    pub fn new() -> Again {
        Again { holder: None, within: AT_FIRST, at: Moment::now() }
    }

    /// Within a time that grows while the same holder is seen, but no later than a quorum can be free.
    pub fn after(&mut self, occupancy: &Occupancy) {
        let holder = occupancy.holder.as_ref().map(|holder| holder.id.clone());
        self.within = match &self.holder {
            before @ Some(_) if *before == holder => (self.within * 2).min(AT_MOST),
            _ => AT_FIRST,
        };
        self.holder = holder;
        let pause = up_to(self.within);
        self.at = Moment::now() + occupancy.ttl.map_or(pause, |ttl| pause.min(ttl + Duration::from_millis(1)));
    }
}

/// At random: more than nothing, and no more than this.
fn up_to(longest: Duration) -> Duration {
    // Without random bits there is no jitter, and no harm.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    longest.mul_f64((f64::from(random) + 1.0) / (f64::from(u32::MAX) + 1.0))
}
