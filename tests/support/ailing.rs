//! A server that runs and does not do its work: read-only, out of memory, loading.

use std::time::Duration;

use super::{Redis, eventually};

/// The test sends the server this in a `PING` when the server begins to refuse what scripts write. MONITOR reports a PING, but
/// neither CONFIG nor REPLICAOF.
pub const REFUSES: &str = "refuses";
/// The test sends the server this in a `PING` when the server no longer refuses.
pub const SERVES: &str = "serves";

impl Redis {
    /// Makes the server read-only, as after a failover unknown to its clients: a replica of a master that is gone.
    pub fn becomes_read_only(&self) {
        self.refuses_by(&["REPLICAOF", "127.0.0.1", "1"]);
    }

    pub fn is_writable_again(&self) {
        self.serves_by(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Makes the server refuse every command that needs memory.
    pub fn runs_out_of_memory(&self) {
        self.refuses_by(&["CONFIG", "SET", "maxmemory", "1"]);
    }

    pub fn has_memory_again(&self) {
        self.serves_by(&["CONFIG", "SET", "maxmemory", "0"]);
    }

    /// Carries out a command by which the server begins to refuse, and says so at the same place in the server's order.
    fn refuses_by(&self, command: &[&str]) {
        let mut both = redis::pipe();
        both.atomic().cmd("PING").arg(REFUSES).ignore().cmd(command[0]).arg(&command[1..]).ignore();
        both.exec(&mut self.connection().expect("connected")).expect("both are carried out");
    }

    /// Carries out a command after which the server no longer refuses, and says so later: a full server refuses transactions.
    fn serves_by(&self, command: &[&str]) {
        self.ask::<()>(command);
        self.ask::<()>(&["PING", SERVES]);
    }

    /// Kills the server and restarts it with all its data, which it loads for about so long. Meanwhile it listens and
    /// answers LOADING. It must have an append-only file.
    pub fn restarts_loading(&mut self, about: Duration) {
        // Other keys make it slow: one millisecond each.
        let keys = u64::try_from(about.as_millis()).expect("it fits").max(1);
        let mut fill = redis::cmd("MSET");
        for key in 0..keys {
            fill.arg(format!("ballast:{key}")).arg("x");
        }
        fill.exec(&mut self.connection().expect("connected")).expect("filled");
        // Only while it loads an RDB file does the server process events that often; BGREWRITEAOF writes one.
        self.ask::<()>(&["BGREWRITEAOF"]);
        eventually("its file is rewritten", || {
            let state: String = self.ask(&["INFO", "persistence"]);
            state.contains("aof_rewrite_in_progress:0") && state.contains("aof_rewrite_scheduled:0")
        });
        self.restart_slowly_with(&["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]);
    }

    /// Waits until the server has loaded everything, and deletes the ballast.
    pub fn has_loaded(&self) {
        eventually("it has loaded", || self.serves());
        self.ask::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
        let keys: Vec<String> = self.ask(&["KEYS", "ballast:*"]);
        let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        self.ask::<()>(&words);
    }
}
