//! lock.lua as the tests call it: the keys that a request needs, and the forms of what it keeps and says.

use crate::machine::Word;

/// The script as nxlock sends it, not a copy.
pub const LUA: &str = include_str!("../../src/store/redis/lock.lua");

/// The companions of the lock's key, in the script's order.
pub const COMPANIONS: [&str; 7] = ["fence", "shares", "terms", "queue", "waiters", "newest", "runs"];

/// Subtracted from the ticket of one that goes first.
pub const AHEAD: i64 = 1 << 52;

/// Returns the key of a companion.
pub fn companion(key: &str, name: &str) -> String {
    format!("{{{key}}}:{name}")
}

/// Returns the keys of a request with this token, if it has one, for a run that is recorded or not.
pub fn keys(key: &str, token: &str, is_recorded: bool) -> Vec<String> {
    let supersedes = token.split(':').skip(6).any(|term| term == "newest");
    let is_needed = |name: &&str| (*name != "newest" || supersedes) && (*name != "runs" || is_recorded);
    let companions = COMPANIONS.into_iter().filter(is_needed).map(|name| companion(key, name));
    [key.to_owned()].into_iter().chain(companions).collect()
}

/// Returns a word as a waiter receives it.
pub fn word(word: Word) -> String {
    match word {
        Word::Granted => "g".into(),
        Word::Look => "n".into(),
        Word::LookAt(end) => format!("e{end}"),
        Word::Superseded => "s".into(),
        Word::Test => "t".into(),
    }
}
