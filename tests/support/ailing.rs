//! A server that is there and does not do its work: read-only, out of memory, loading.

use std::time::Duration;

use super::{Redis, eventually};

impl Redis {
    /// As after a failover that nobody told its clients of: a replica, of a master that is not there.
    pub fn becomes_read_only(&self) {
        self.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    }

    pub fn is_writable_again(&self) {
        self.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Refuses whatever needs memory.
    pub fn runs_out_of_memory(&self) {
        self.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    }

    pub fn has_memory_again(&self) {
        self.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    }

    /// Dies, and comes back with all it knew, for which it takes about so long. In the meantime it
    /// listens, and answers LOADING. It has to keep an append-only file.
    pub fn restarts_loading(&mut self, about: Duration) {
        // What takes the time is other keys, a millisecond each.
        let keys = u64::try_from(about.as_millis()).expect("it fits").max(1);
        let mut fill = redis::cmd("MSET");
        for key in 0..keys {
            fill.arg(format!("ballast:{key}")).arg("x");
        }
        fill.exec(&mut self.connection().expect("connected")).expect("filled");
        // Only while it reads a dump does it look up as often as that.
        self.ask::<()>(&["BGREWRITEAOF"]);
        eventually("its file is rewritten", || {
            let state: String = self.ask(&["INFO", "persistence"]);
            state.contains("aof_rewrite_in_progress:0") && state.contains("aof_rewrite_scheduled:0")
        });
        self.restart_once_with(&["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]);
    }

    /// It has loaded everything, and needs no ballast any more.
    pub fn has_loaded(&self) {
        eventually("it has loaded", || {
            self.try_ask::<String>(&["INFO", "persistence"]).is_ok_and(|s| s.contains("\nloading:0"))
        });
        self.ask::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
        let keys: Vec<String> = self.ask(&["KEYS", "ballast:*"]);
        let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        self.ask::<()>(&words);
    }
}
