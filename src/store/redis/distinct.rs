//! Checks that several servers are distinct: one that is reached at two addresses would have two votes, and both would
//! be lost when it fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis::{Cmd, Value, cmd};

use super::endpoint::Endpoint;
use super::fault::Fault;
use super::reply;
use crate::error::ErrorKind;
use crate::log;

/// The run_id of the server that replied last at each address; a server chooses a new one at each start. Shared by the
/// clients of all servers.
#[derive(Clone, Default)]
pub struct Distinct(Arc<Mutex<HashMap<String, String>>>);

impl Distinct {
    /// Returns the request for a server's identity (Redis command INFO).
    pub fn question() -> Cmd {
        let mut info = cmd("INFO");
        info.arg("server");
        info
    }

    /// Records a server's reply to that. A server that may not tell counts as distinct.
    ///
    /// # Errors
    /// If the same server has replied at another address before.
    pub fn record(&self, from: &Endpoint, answer: &Value) -> Result<(), Fault> {
        let from = from.to_string();
        let info = reply::text(answer);
        let run_id = info.as_ref().and_then(|info| info.raw().lines().find_map(|line| line.strip_prefix("run_id:")));
        let Some(run_id) = run_id.map(str::trim).filter(|run_id| !run_id.is_empty()) else {
            log::trace(format_args!("{from} does not tell its run_id (INFO), and is taken for a server of its own"));
            return Ok(());
        };
        // A thread that panicked with the mutex has left nothing half done.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let other = known.iter().find(|(at, id)| **at != from && *id == run_id).map(|(at, _)| at.clone());
        match other {
            None => {
                known.insert(from, run_id.to_owned());
                Ok(())
            }
            Some(other) => {
                // Two servers that have meanwhile swapped addresses must not be refused for ever.
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
        let record = |host, run_id| servers.record(&at(host), &info(run_id)).is_ok();
        assert!(record("a", "1") && record("b", "2") && record("a", "1") && record("a", "3"));
        assert!(!record("c", "2") && !record("c", "2") && record("b", "2") && record("c", "4"));
        // They swap addresses.
        assert!(!record("a", "2") && record("b", "3") && record("a", "2"));
    }

    #[test]
    fn those_that_do_not_tell_are_not_the_same() {
        let servers = Distinct::default();
        for host in ["a", "b"] {
            assert!(servers.record(&at(host), &Value::Nil).is_ok());
            assert!(servers.record(&at(host), &info("")).is_ok());
        }
    }
}
