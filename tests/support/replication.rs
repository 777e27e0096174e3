//! Masters and replicas, with or without sentinels.

use super::{Redis, eventually};

/// The credentials of a replica. Without them the master refuses it.
pub const REPLICA: [&str; 4] = ["--masteruser", "replica", "--masterauth", "a replica's"];

/// The ACL user that a master has for replicas.
const MASTER: [&str; 7] = ["--user", "replica", "on", ">a replica's", "+psync", "+replconf", "+ping"];

/// Returns the options of every server that may be a master or a replica.
pub fn replicated() -> Vec<String> {
    let at_once = ["--repl-diskless-sync-delay", "0", "--repl-diskless-sync", "yes"];
    [&REPLICA[..], &MASTER, &at_once].concat().into_iter().map(str::to_owned).collect()
}

impl Redis {
    pub fn is_master(&self) -> bool {
        self.try_ask::<String>(&["INFO", "replication"]).is_ok_and(|info| info.contains("role:master"))
    }

    pub fn is_in_step(&self) -> bool {
        self.try_ask::<String>(&["INFO", "replication"]).is_ok_and(|info| info.contains("master_link_status:up"))
    }

    fn replicas(&self) -> usize {
        let info: String = self.ask(&["INFO", "replication"]);
        let count = info.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
        count.and_then(|count| count.trim().parse().ok()).expect("a master knows its replicas")
    }

    /// Disconnects the replicas: no later write reaches one.
    pub fn cuts_its_replicas_off(&self) {
        self.ask::<()>(&["ACL", "SETUSER", "replica", "off"]);
        self.ask::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
        eventually("the replicas are cut off", || self.replicas() == 0);
    }

    /// Waits until all writes have reached so many replicas.
    pub fn has_told(&self, replicas: usize) {
        // WAIT covers the writes of its own connection, and thus all earlier ones.
        let mut connection = self.connection().expect("connected");
        let mut told = redis::pipe();
        told.cmd("SET").arg("{lock:job}:told").arg("x").ignore().cmd("DEL").arg("{lock:job}:told").ignore();
        told.exec(&mut connection).expect("written");
        eventually("the replicas have everything", || {
            let heard: usize = redis::cmd("WAIT").arg(replicas).arg(100).query(&mut connection).expect("it counts");
            heard >= replicas
        });
    }
}
