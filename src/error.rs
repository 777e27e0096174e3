//! Errors that a user can act on: what was tried, what came back, what to do.

use std::fmt;

/// A failed operation.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    /// The action that failed, and where: `cannot acquire "deploy" at redis://cache:6379`.
    pub action: String,
    /// The answer or the error that came back.
    pub cause: String,
    /// The remedy for the user.
    pub hint: String,
}

/// Kinds of errors, by what can be done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No reply, and the request changed nothing: no byte of it left this machine, or it only reads. A retry may help.
    Unreachable,
    /// No reply to a request that may have been carried out. A retry may help.
    Unanswered,
    /// A "not now": a later retry may help.
    Unavailable,
    /// A reply that is not to be relied on: a certificate that no trusted authority vouches for, a grant that too few
    /// replicas have.
    Untrusted,
    /// A "no" that stays no: wrong password, no permission.
    Refused,
    /// A wrong setup: no server named, a bad URL.
    Misconfigured,
    /// The key holds something that cannot be a lock.
    WrongType,
    /// A key that belongs to the lock holds something else.
    Damaged,
    /// The user's request makes no sense.
    Usage,
    /// A failure of nxlock itself.
    Internal,
}

impl Error {
    /// Returns an error for a failure of nxlock itself.
    pub fn internal(action: &str, cause: &impl ToString) -> Error {
        Error { kind: ErrorKind::Internal, action: action.into(), cause: cause.to_string(), hint: String::new() }
    }

    /// Returns the same error for a request that changes nothing: whether it was carried out does not matter.
    pub fn of_read(self) -> Error {
        Error { kind: if self.kind == ErrorKind::Unanswered { ErrorKind::Unreachable } else { self.kind }, ..self }
    }

    /// Returns whether a retry may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::Unanswered | ErrorKind::Unavailable)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.cause)
    }
}

impl std::error::Error for Error {}
