//! What is promised of several servers: a majority of them decides, whatever the others do. What holds for
//! every kind of authority is in `contract`.

/// A minority is down, and a majority.
mod down;
/// Servers that come back empty while the lock is held.
mod forgetting;
/// Servers that neither answer nor close the connection.
mod hanging;
/// Requests and replies that are overtaken.
mod late;
/// How several servers are named, and which make no sense together.
mod naming;
/// Many who want it at the same moment.
mod racing;
/// Whose it is, told from what each server shows.
mod verdicts;

use crate::support::{Five, eventually};

/// Somebody else's vote.
const OTHERS: &[u8] = b"nx1:bbbbbbbbbbbbbbbbbbbbbbbbbb:u@h:1:1800000000000:";

/// Nothing of ours is left in any of them, long before a lease would have ended.
#[track_caller]
fn nothing_is_left(five: &Five) {
    eventually("nothing is left in any of them", || five.values().iter().all(Option::is_none));
}
