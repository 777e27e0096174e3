//! `nxlock complete-names`: the names of locks, for the scripts in `completions/` to offer.
//!
//! A hidden interface, that the manual promises in NOTES: what it prints are names, and nothing else is ever said.
//! Whatever goes wrong, or takes longer than a person waits for a key, comes to no names.

mod bash;

use std::ffi::{OsStr, OsString};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::cli::config;
use crate::clock::Moment;
use crate::lock::LockName;
use crate::wait::Limit;
use crate::{cmd, log, text};
use bash::Typed;

const WORD: &str = "complete-names";
/// All of it, to connect included.
const BOUND: Duration = Duration::from_millis(300);
/// More than anybody looks through.
const MOST: usize = 1000;
/// What stands in the place of the word that is being typed: it could be a name.
const HERE: &str = "the-word-that-is-typed";

/// What is to be offered, one a line, if that is what we were called for.
pub fn asked() -> Option<Vec<String>> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let words: Vec<OsString> = words.collect();
    let (give, given) = channel();
    // Whatever holds it up, a name server or a file that is none, does not hold us up.
    let look = move || _ = give.send(offer(&words).unwrap_or_default());
    let started = thread::Builder::new().name("names".into()).spawn(look);
    Some(started.ok().and_then(|_| given.recv_timeout(BOUND).ok()).unwrap_or_default())
}

/// Either the words so far, or what bash knows: what it will put the offer in the place of, and the line.
fn offer(words: &[OsString]) -> Option<Vec<String>> {
    match words {
        [by, current, line] if by == "--bash" => {
            let typed = Typed::read(line.to_str()?)?;
            let (word, before) = typed.words.split_last()?;
            let before: Vec<OsString> = before.iter().map(OsString::from).collect();
            Some(typed.completed(current.to_str()?, &beginning(&names(&before, word.as_ref())?, word)))
        }
        [before @ .., word] => {
            let names = names(before, word)?;
            // Shells have ideas of their own about what resembles a word.
            if names.len() > MOST { Some(beginning(&names, word.to_str()?)) } else { Some(names) }
        }
        [] => None,
    }
}

fn beginning(names: &[String], word: &str) -> Vec<String> {
    names.iter().filter(|name| name.starts_with(word)).take(MOST).cloned().collect()
}

/// The locks that there are, if a name is what may stand behind these words.
fn names(before: &[OsString], word: &OsStr) -> Option<Vec<String>> {
    if word.as_encoded_bytes().starts_with(b"-") {
        return None;
    }
    let line: Vec<_> = before.iter().cloned().chain([HERE.into()]).collect();
    let (matches, mut global) = config::so_far(&line)?;
    let (_, verb) = matches.subcommand()?;
    let raw = |id| verb.try_get_raw(id).ok().flatten();
    let last = raw("name").or_else(|| raw("names"))?.next_back()?;
    if last != HERE || raw("key").is_some() {
        return None;
    }
    global.quiet = true;
    global.server_timeout = global.server_timeout.min(BOUND);
    log::begin(global.log_options(false), global.color.into());
    let names = cmd::names(&global, Limit::until(Moment::now() + BOUND)).ok()?;
    // What would be taken for an option, and what would look like something else.
    let harmless = |name: &&str| !name.starts_with('-') && !name.contains(text::may_fool);
    Some(names.iter().map(LockName::as_str).filter(harmless).map(str::to_owned).collect())
}
