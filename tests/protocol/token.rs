//! The tokens of these tests: small values, and the texts that a server has in their place.

use crate::machine::{Claimant, Ending};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Tokens are ordered by this, as their texts are.
    pub who: u16,
    pub limit: u16,
    pub is_newest: bool,
    pub is_first: bool,
    /// Of the value of a SETNX client: when its lock ends, in ms.
    pub setnx_end: Option<u64>,
}

/// The value of another program.
pub const FOREIGN: Token = Token::exclusive(9999);
/// In place of holders whose shares are lost.
pub const UNKNOWN: Token = Token::exclusive(9998);

impl Token {
    pub const fn exclusive(who: u16) -> Token {
        Token { who, limit: 1, is_newest: false, is_first: false, setnx_end: None }
    }

    pub const fn sharing(who: u16, limit: u16) -> Token {
        Token { limit, ..Token::exclusive(who) }
    }

    pub const fn of_setnx(who: u16, end: u64) -> Token {
        Token { setnx_end: Some(end), ..Token::exclusive(who) }
    }

    /// Returns whether a client of these tests has it.
    pub fn is_ours(self) -> bool {
        self != FOREIGN && self != UNKNOWN && self.setnx_end.is_none()
    }
}

impl Claimant for Token {
    type Id = u16;
    type End = End;

    fn id(&self) -> u16 {
        self.who
    }

    fn limit(&self) -> u16 {
        self.limit
    }

    fn supersedes(&self) -> bool {
        self.is_newest
    }

    fn goes_first(&self) -> bool {
        self.is_first
    }

    fn setnx_end(&self) -> Option<u64> {
        self.setnx_end
    }
}

/// The outcome of a run, and its status and signal as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    pub outcome: &'static str,
    pub rest: &'static str,
}

impl Ending for End {
    const VANISHED: End = End { outcome: "vanished", rest: "|" };

    fn is_success(&self) -> bool {
        self.outcome == "done"
    }

    fn without_the_lock(self) -> End {
        End { outcome: "lost", ..self }
    }
}
