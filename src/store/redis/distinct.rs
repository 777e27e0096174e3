//! Whether several servers are several: one that is reached at two addresses would have two votes, and would take
//! both with it when it fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis::{Cmd, Value, cmd};

use super::endpoint::Endpoint;
use super::fault::Fault;
use super::reply;
use crate::error::ErrorKind;
use crate::log;

/// Who answered last at which address, by its run_id: a server makes up a new one at each start. Shared by those who
/// speak to one of the servers each.
#[derive(Clone, Default)]
pub struct Distinct(Arc<Mutex<HashMap<String, String>>>);

impl Distinct {
    /// What makes a server tell who it is (Redis command INFO).
    pub fn question() -> Cmd {
        let mut info = cmd("INFO");
        info.arg("server");
        info
    }

    /// Takes note of what a server answered to that. One that may not tell is taken for another than the others.
    ///
    /// # Errors
    /// If it has answered at another address before.
    pub fn hear(&self, from: &Endpoint, answer: &Value) -> Result<(), Fault> {
        let from = from.to_string();
        let info = reply::text(answer);
        let told = info.as_ref().and_then(|info| info.raw().lines().find_map(|line| line.strip_prefix("run_id:")));
        let Some(run_id) = told.map(str::trim).filter(|run_id| !run_id.is_empty()) else {
            log::trace(format_args!("{from} does not tell its run_id (INFO), and is taken for a server of its own"));
            return Ok(());
        };
        // Whoever panicked with it has left nothing half done.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let other = known.iter().find(|(at, id)| **at != from && *id == run_id).map(|(at, _)| at.clone());
        match other {
            None => {
                known.insert(from, run_id.to_owned());
                Ok(())
            }
            Some(other) => {
                // Two that have changed places meanwhile are not each other's for ever.
                known.remove(&from);
                Err(Fault::Known {
                    kind: ErrorKind::Misconfigured,
                    cause: format!("it is the same server as {other}, by its run_id"),
                    hint: "name each server once: it has one vote, however many addresses",
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Scheme;
    use super::*;
    use crate::store::redis::credentials::Credentials;

    fn at(host: &str) -> Endpoint {
        Endpoint::parse(Scheme::Tcp, host, 6379, &Credentials::default()).unwrap()
    }

    fn info(run_id: &str) -> Value {
        Value::BulkString(format!("# Server\r\nredis_version:7.0.15\r\nrun_id:{run_id}\r\n").into_bytes())
    }

    #[test]
    fn a_server_may_come_back_as_another_and_is_not_two() {
        let servers = Distinct::default();
        let hear = |host, run_id| servers.hear(&at(host), &info(run_id)).is_ok();
        assert!(hear("a", "1") && hear("b", "2") && hear("a", "1") && hear("a", "3"));
        assert!(!hear("c", "2") && !hear("c", "2") && hear("b", "2") && hear("c", "4"));
        // They change places.
        assert!(!hear("a", "2") && hear("b", "3") && hear("a", "2"));
    }

    #[test]
    fn those_that_do_not_tell_are_not_the_same() {
        let servers = Distinct::default();
        for host in ["a", "b"] {
            assert!(servers.hear(&at(host), &Value::Nil).is_ok());
            assert!(servers.hear(&at(host), &info("")).is_ok());
        }
    }
}
