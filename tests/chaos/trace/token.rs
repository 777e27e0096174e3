//! Tokens as a server has them: texts.

use std::borrow::Cow;

use crate::machine::{Claimant, Ending};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub String);

impl Token {
    /// Returns what the token says behind its reason.
    fn terms(&self) -> impl Iterator<Item = &str> {
        self.0.strip_prefix("nx1:").into_iter().flat_map(|fields| fields.split(':').skip(5))
    }
}

impl Claimant for Token {
    type Id = String;
    type End = End;

    fn id(&self) -> String {
        self.0.strip_prefix("nx1:").unwrap_or(&self.0).chars().take(8).collect()
    }

    fn limit(&self) -> u16 {
        self.terms().next().and_then(|limit| limit.parse().ok()).unwrap_or(1)
    }

    fn supersedes(&self) -> bool {
        self.terms().any(|term| term == "newest")
    }

    fn goes_first(&self) -> bool {
        self.terms().any(|term| term == "first")
    }

    fn setnx_end(&self) -> Option<u64> {
        None
    }
}

/// The outcome of a run, and its status and signal as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct End {
    pub outcome: Cow<'static, str>,
    pub rest: Cow<'static, str>,
}

impl End {
    /// Reads `outcome|status|signal`.
    pub fn read(text: &str) -> Option<End> {
        let (outcome, rest) = text.split_once('|')?;
        Some(End { outcome: outcome.to_owned().into(), rest: rest.to_owned().into() })
    }
}

impl Ending for End {
    const VANISHED: End = End { outcome: Cow::Borrowed("vanished"), rest: Cow::Borrowed("|") };

    fn is_success(&self) -> bool {
        self.outcome == "done"
    }

    fn without_the_lock(self) -> End {
        End { outcome: Cow::Borrowed("lost"), ..self }
    }
}
