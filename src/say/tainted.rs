//! Text that somebody else wrote, who may want to fool whoever reads it: a server, another client, a sentinel.

use std::fmt;

use super::clean;

/// What a server sent. It can be formatted only as [`clean`] makes it; as it is, it is to be asked for by `raw`, for
/// what is no message: to compare, to parse, to connect to, for a document that is escaped as a whole.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Tainted<T = String>(T);

impl<T: AsRef<str>> Tainted<T> {
    pub fn new(text: T) -> Tainted<T> {
        Tainted(text)
    }

    pub fn raw(&self) -> &str {
        self.0.as_ref()
    }

    pub fn to_owned(&self) -> Tainted {
        Tainted(self.raw().to_owned())
    }
}

impl<'a> Tainted<&'a str> {
    /// The same, for longer than this value lives.
    pub fn into_raw(self) -> &'a str {
        self.0
    }
}

impl From<&str> for Tainted {
    fn from(text: &str) -> Tainted {
        Tainted(text.to_owned())
    }
}

impl From<String> for Tainted {
    fn from(text: String) -> Tainted {
        Tainted(text)
    }
}

impl<T: AsRef<str>> fmt::Display for Tainted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&clean(self.raw()))
    }
}

impl<T: AsRef<str>> fmt::Debug for Tainted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
