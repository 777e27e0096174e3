//! `nxlock complete-names`: prints the names of locks, after `--ask` and `--break` the IDs of holders, and after
//! `--lost-signal` those of signals, for the scripts in `completions/` to offer. `nxlock complete-names --command` prints
//! how many words of the line are the command's: the shell completes that itself.
//!
//! A hidden interface, which the manual promises in NOTES: it prints these, and never anything else. After an error, or
//! longer than a person waits for a key, it prints none.

mod bash;

use std::ffi::{OsStr, OsString};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use clap::{ArgMatches, FromArgMatches};

use crate::cli::{GlobalArgs, LockArg, LostSignal, config};
use crate::clock::Moment;
use crate::lock::LockName;
use crate::store::Listed;
use crate::wait::Limit;
use crate::{cmd, log, text};
use bash::Typed;

const WORD: &str = "complete-names";
/// Time limit of everything, including the connect.
const BOUND: Duration = Duration::from_millis(300);
/// Maximum number of names, more than anybody reads.
const MOST: usize = 1000;
/// Placeholder for the word that is being typed: it is a valid name.
const HERE: &str = "the-word-that-is-typed";

/// Returns the names to offer, one a line, if nxlock was called for that.
pub fn asked() -> Option<Vec<String>> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let words: Vec<OsString> = words.collect();
    let (give, given) = channel();
    // In a thread of its own: a name server, or a pipe in place of a configuration file, may block it for longer.
    let look = move || _ = give.send(offer(&words).unwrap_or_default());
    let started = thread::Builder::new().name("names".into()).spawn(look);
    Some(started.ok().and_then(|_| given.recv_timeout(BOUND).ok()).unwrap_or_default())
}

/// Returns the names for a request: either the words so far, or from bash the text that the offer will replace, and the
/// line.
fn offer(words: &[OsString]) -> Option<Vec<String>> {
    match words {
        [what, by, line] if what == "--command" && by == "--bash" => {
            let words: Vec<OsString> = Typed::read(line.to_str()?)?.words.into_iter().map(OsString::from).collect();
            command_words(&words)
        }
        [what, words @ ..] if what == "--command" => command_words(words),
        [by, current, line] if by == "--bash" => {
            let typed = Typed::read(line.to_str()?)?;
            let (word, before) = typed.words.split_last()?;
            let before: Vec<OsString> = before.iter().map(OsString::from).collect();
            Some(typed.completed(current.to_str()?, &beginning(&names(&before, word.as_ref())?, word)))
        }
        [before @ .., word] => {
            let names = names(before, word)?;
            // Shells match names to the word by rules of their own: filter only a list that is too long.
            if names.len() > MOST { Some(beginning(&names, word.to_str()?)) } else { Some(names) }
        }
        [] => None,
    }
}

fn beginning(names: &[String], word: &str) -> Vec<String> {
    names.iter().filter(|name| name.starts_with(word)).take(MOST).cloned().collect()
}

/// Returns the options for a call that prints nothing but what it offers, and soon.
fn quiet(mut global: GlobalArgs) -> GlobalArgs {
    global.quiet = true;
    global.server_timeout = global.server_timeout.min(BOUND);
    log::begin(global.log_options(false), global.color.into());
    global
}

/// Returns the IDs of a lock's holders, if the words before name a lock to release.
fn ids(before: &[OsString]) -> Option<Vec<String>> {
    let (matches, global) = config::so_far(before)?;
    let (verb, named) = matches.subcommand()?;
    if verb != "release" {
        return None;
    }
    let lock = LockArg::from_arg_matches(named).ok()?;
    let global = quiet(global);
    let ids = cmd::holder_ids(&global, &lock, Limit::until(Moment::now() + BOUND)).ok()?;
    Some(ids.iter().map(ToString::to_string).collect())
}

/// Parses the words before the one that is being typed; [`HERE`] stands for that one.
fn parsed(before: &[OsString]) -> Option<(ArgMatches, GlobalArgs)> {
    let line: Vec<_> = before.iter().cloned().chain([HERE.into()]).collect();
    config::so_far(&line)
}

/// Returns how many words the command of `run` has, the last one of these included, if that is one of them.
fn command_words(words: &[OsString]) -> Option<Vec<String>> {
    let (word, before) = words.split_last()?;
    let (matches, _) = parsed(before)?;
    let ("run", run) = matches.subcommand()? else { return None };
    let count = |id| run.try_get_raw(id).ok().flatten().map_or(0, Iterator::count);
    // With --key, the first word is parsed as NAME.
    let words = count("command") + if count("key") > 0 { count("name") } else { 0 };
    let is_option =
        words == 1 && word.as_encoded_bytes().starts_with(b"-") && before.last().is_none_or(|last| last != "--");
    (words > 0 && count("shell") == 0 && !is_option).then(|| vec![words.to_string()])
}

/// Returns the names of the locks that are of use, if a lock's name may follow these words, or the IDs or signals that
/// may.
fn names(before: &[OsString], word: &OsStr) -> Option<Vec<String>> {
    if word.as_encoded_bytes().starts_with(b"-") {
        return None;
    }
    if let [before @ .., last] = before
        && (last == "--ask" || last == "--break")
    {
        return ids(before);
    }
    if before.last().is_some_and(|last| last == "--lost-signal") {
        return Some(LostSignal::names().map(str::to_owned).collect());
    }
    let (matches, global) = parsed(before)?;
    let (name, verb) = matches.subcommand()?;
    let raw = |id| verb.try_get_raw(id).ok().flatten();
    let is_here = |id| raw(id).and_then(|mut words| words.next_back()).is_some_and(|last| last == HERE);
    let is_name = ["name", "names"].into_iter().any(is_here) && raw("key").is_none();
    if !is_name && !["also", "also_shared"].into_iter().any(is_here) {
        return None;
    }
    let global = quiet(global);
    // Nobody releases or renews a lock that is free, and only what is recorded has a history.
    let listed = match name {
        "release" | "renew" => Listed::Held,
        "status" if verb.get_flag("history") => Listed::Histories,
        _ => Listed::Names,
    };
    let names = cmd::names(&global, listed, Limit::until(Moment::now() + BOUND)).ok()?;
    // Drop names that would be taken for an option, or would look like another name.
    let harmless = |name: &&str| !name.starts_with('-') && !name.contains(text::may_fool);
    Some(names.iter().map(LockName::as_str).filter(harmless).map(str::to_owned).collect())
}
