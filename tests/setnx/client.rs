//! The published algorithm, faithfully: SETNX with `now + timeout + 1` in whole seconds, by a clock that may be wrong;
//! GETSET if the time found has passed; DEL if its own time has not.

use std::time::{Duration, SystemTime};

use redis::{Connection, cmd};

use super::KEY;
use crate::support::{Redis, wall};

pub struct Client {
    connection: Connection,
    timeout: i64,
    /// How far its clock is ahead, in milliseconds.
    ahead: i64,
    /// Until when it believes to own the lock.
    own: Option<i64>,
}

/// The outcome of a GETSET.
#[derive(Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The old time had passed: the client owns the lock.
    Owns,
    /// Another client was faster and owns the lock; this is its value, now overwritten.
    Lost(String),
}

impl Client {
    pub fn of(redis: &Redis, timeout: i64, ahead: i64) -> Client {
        Client { connection: redis.connection().expect("connected"), timeout, ahead, own: None }
    }

    /// Returns the time by its clock, in milliseconds.
    fn now(&self) -> i64 {
        let now = wall().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
        i64::try_from(now).expect("it fits") + self.ahead
    }

    fn new_time(&self) -> i64 {
        self.now() / 1000 + self.timeout + 1
    }

    /// Returns whether the time in a value has passed. Parses leniently: leading digits, or 0 without any.
    pub fn has_passed(&self, value: &str) -> bool {
        let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<i64>().unwrap_or(0) < self.now() / 1000
    }

    /// Step 1. Returns whether the key was free and is now its own.
    pub fn setnx(&mut self) -> bool {
        let time = self.new_time();
        let set: bool = cmd("SETNX").arg(KEY).arg(time).query(&mut self.connection).expect("SETNX");
        self.own = set.then_some(time);
        set
    }

    /// Step 2. Returns what the key holds.
    pub fn get(&mut self) -> Option<String> {
        cmd("GET").arg(KEY).query(&mut self.connection).expect("GET")
    }

    /// Step 3, after it found a time that had passed.
    pub fn getset(&mut self) -> Replaced {
        let time = self.new_time();
        let old: Option<String> = cmd("GETSET").arg(KEY).arg(time).query(&mut self.connection).expect("GETSET");
        match old {
            Some(old) if !self.has_passed(&old) => Replaced::Lost(old),
            _ => {
                self.own = Some(time);
                Replaced::Owns
            }
        }
    }

    /// Goes through all steps once; returns whether it owns the lock.
    pub fn tries(&mut self) -> bool {
        self.setnx() || {
            let found = self.get();
            found.is_some_and(|value| self.has_passed(&value)) && self.getset() == Replaced::Owns
        }
    }

    /// Returns how long it still believes to own the lock; zero if it does not.
    pub fn left(&self) -> Duration {
        let left = self.own.map_or(0, |time| time * 1000 - self.now());
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    /// Releases the lock if its time has not passed; returns whether there was a key to delete.
    pub fn releases(&mut self) -> bool {
        self.deletes().is_some()
    }

    /// Does the same, and returns what it deleted (GETDEL is DEL that returns the value).
    pub fn deletes(&mut self) -> Option<String> {
        let in_time = !self.left().is_zero();
        self.own = None;
        if !in_time {
            return None;
        }
        cmd("GETDEL").arg(KEY).query(&mut self.connection).expect("GETDEL")
    }

    /// Crashes, and leaves its lock behind.
    pub fn crashes(&mut self) {
        self.own = None;
    }
}
