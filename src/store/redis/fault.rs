//! The reasons for a missing reply, and whether a byte of the request was sent.

use std::io;

use nix::errno::Errno;

use crate::error::ErrorKind;

/// The reason for a missing reply.
#[derive(Debug)]
pub enum Fault {
    TimeUp,
    /// The limit's wait was cancelled: nobody wants the reply any more.
    Cancelled,
    /// There is no connection, or it ended.
    Ended(io::Error),
    /// The server sent something that is not a reply.
    Garbled(String),
    /// A more precise error than any of these.
    Known {
        kind: ErrorKind,
        cause: String,
        hint: &'static str,
    },
}

impl Fault {
    /// Returns whether the server refuses access: to this password, for example.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Fault::Known { kind: ErrorKind::Refused, .. })
    }

    /// Returns the same fault, as one after which a later attempt may help.
    pub fn that_may_pass(self) -> Fault {
        match self {
            Fault::Known {
                kind: ErrorKind::Refused | ErrorKind::Misconfigured | ErrorKind::Untrusted,
                cause,
                hint,
            } => Fault::Known { kind: ErrorKind::Unavailable, cause, hint },
            other => other,
        }
    }
}

/// The failure of a request that has no reply.
#[derive(Debug)]
pub struct NoReply {
    pub fault: Fault,
    /// A byte of the request may have left this machine, so the server may have executed it. The connection counts the
    /// bytes that the socket, or TLS above it, has taken.
    pub sent: bool,
}

impl NoReply {
    /// Treats the request as not sent. For one that changes nothing, it does not matter whether the server executed it.
    pub fn of_read(self) -> NoReply {
        NoReply { sent: false, ..self }
    }
}

impl From<Fault> for NoReply {
    fn from(fault: Fault) -> NoReply {
        NoReply { fault, sent: false }
    }
}

impl From<NoReply> for Fault {
    fn from(no_reply: NoReply) -> Fault {
        no_reply.fault
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Ended(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        Fault::Ended(errno.into())
    }
}
