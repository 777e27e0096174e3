//! Answers that come from a replica: they may be old.

use redis::cmd;

use super::Server;
use super::info::{Info, SILENT};
use super::reply::{self, Operation};
use super::topology::Topology;
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::wait::Limit;

const LOOK: Operation<'_> = Operation { verb: "look at locks", name: None };

impl Server {
    /// Returns what to know of answers of this server if it is a replica, or does not tell whether it is. Sentinel and
    /// Cluster name masters only.
    ///
    /// # Errors
    /// If it does not hear from its master: what it shows may be of any age.
    pub fn doubtful_origin(&mut self, limit: Limit<'_>) -> Result<Option<String>, Error> {
        let Topology::Single(server) = self.client.topology() else { return Ok(None) };
        let server = server.to_string();
        let mut request = cmd("INFO");
        request.arg("replication");
        let reply = self.client.ask(&request, limit).map_err(|no_reply| self.unanswered(&LOOK, no_reply).of_read())?;
        let Some(info) = reply::text(&reply).map(|text| Info::new(&text)) else {
            return Ok(Some(format!(
                "{server} does not tell whether it is a replica (INFO): if it is one, what it shows may be old"
            )));
        };
        let Some(master) = info.master() else { return Ok(None) };
        if info.is_linked() {
            let age = span(SILENT);
            return Ok(Some(format!("{server} is a replica of {master}: what it shows may be up to {age} old")));
        }
        Err(Error {
            kind: ErrorKind::Unavailable,
            action: LOOK.action(&self.client),
            cause: format!("it is a replica of {master}, and does not hear from it: what it would show may be old"),
            hint: format!("name the master: redis://{master}"),
        })
    }
}
