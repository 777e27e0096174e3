//! Why there is no reply, and whether a byte of the request left.

use std::io;

use nix::errno::Errno;

use crate::error::ErrorKind;

/// Why there is no reply.
#[derive(Debug)]
pub enum Fault {
    TimeUp,
    /// A bell of the limit rang: nobody wants the reply any more.
    Cancelled,
    /// There is no connection, or it broke.
    Ended(io::Error),
    /// What came is not a reply.
    Garbled(String),
    /// What is wrong is known better than by any of these.
    Known {
        kind: ErrorKind,
        cause: String,
        hint: &'static str,
    },
}

/// Why a request has no reply.
#[derive(Debug)]
pub struct NoReply {
    pub fault: Fault,
    /// A byte of the request left this machine: the server may have executed it.
    pub sent: bool,
}

impl NoReply {
    /// For a request that changes nothing: whether the server executed it does not matter.
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
