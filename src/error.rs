//! What went wrong, so that a user can act on it: what was tried, what came back, what to do.

use std::fmt;

/// Why we could not find out.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    /// What was being done, where: `cannot acquire "deploy" at redis://cache:6379`.
    pub action: String,
    /// What came back.
    pub cause: String,
    /// What to do about it.
    pub hint: String,
}

/// What can be done about trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No answer, and no byte of a request left this machine: nothing happened. Asking again may help.
    Unreachable,
    /// No answer to a request that may have been carried out. Asking again may help.
    Unanswered,
    /// A "not now": asking again later may help.
    Unavailable,
    /// There is an answer, and it is not one to rely on: a certificate that nobody we trust vouches for, a grant
    /// that too few replicas have.
    Untrusted,
    /// A "no" that stays no: wrong password, no permission.
    Refused,
    /// Something that was set up wrongly: no server named, a bad URL.
    Misconfigured,
    /// The key holds something that cannot be a lock.
    WrongType,
    /// What was asked for makes no sense.
    Usage,
    /// Our own failure.
    Internal,
}

impl Error {
    /// A failure of our own.
    pub fn internal(action: &str, cause: &impl ToString) -> Error {
        Error { kind: ErrorKind::Internal, action: action.into(), cause: cause.to_string(), hint: String::new() }
    }

    /// The same trouble for a request that changes nothing: it does not matter whether it was carried out.
    pub fn of_read(self) -> Error {
        Error { kind: if self.kind == ErrorKind::Unanswered { ErrorKind::Unreachable } else { self.kind }, ..self }
    }

    /// Whether asking again may help.
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
