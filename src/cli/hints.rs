//! Tips for a command line that was refused: what to write in place of what people type from habit. clap prints a tip
//! below its error. Must not know what the options do.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error};

use super::Cli;
use crate::lock::LockName;

/// Options of flock(1), and of other tools, that nxlock does not have.
const HABITS: [(&[&str], &str); 10] = [
    (&["-x", "-e", "--exclusive"], "a lock is exclusive unless --shared or --slots is given: leave this option out"),
    (
        &["-u", "--unlock"],
        "`nxlock run` releases the lock when its command ends; `nxlock release NAME` releases what `nxlock acquire` \
         took",
    ),
    (&["--nonblock", "--nb"], "write -n or --no-wait, after the verb"),
    (&["--timeout"], "--wait D limits the wait for the lock, and --time-limit D, of run, the command"),
    (
        &["--force", "-f", "--steal"],
        "nobody takes a lock unseen: write `nxlock release NAME --ask ID` or, as the last resort, `--break ID`, with the ID \
         that `nxlock status NAME` shows",
    ),
    (&["-o", "--close", "-F", "--no-fork"], "the command never inherits the lock: leave this option out"),
    (&["--lease", "--expire", "--expiry"], "write --ttl D"),
    (&["--name"], "the name stands alone, after the verb: `nxlock run NAME -- COMMAND`"),
    (&["--all", "-a"], "write `nxlock status`, without names"),
    (&["-w"], "write --watch, or --watch=D"),
];

/// Words for a verb that nxlock calls otherwise, and what to write.
const SYNONYMS: [(&[&str], &str); 11] = [
    (
        &["lock"],
        "`nxlock run NAME -- COMMAND` holds a lock around a command, and `nxlock acquire NAME --ttl D` only takes it",
    ),
    (&["exec", "hold", "with"], "write `nxlock run NAME -- COMMAND`"),
    (&["get", "take"], "write `nxlock acquire NAME --ttl D`"),
    (&["unlock", "free", "del", "rm"], "write `nxlock release NAME`"),
    (&["extend", "refresh", "touch"], "write `nxlock renew NAME --ttl D`"),
    (
        &["break", "force", "kill", "steal"],
        "write `nxlock release NAME --break ID`, with the ID that `nxlock status` shows",
    ),
    (&["list", "ls", "show", "info", "top", "watch"], "write `nxlock status`, or `nxlock status --watch`"),
    (&["who", "holder", "owner", "query"], "write `nxlock status NAME`, or `nxlock status` for all locks"),
    (&["history", "log", "runs", "last"], "write `nxlock status --history NAME`, of runs with --record"),
    (&["version"], "write `nxlock --version`"),
    (&["help"], "write `nxlock --help`, or `nxlock run --help`"),
];

const NO_NAME: &str = "the NAME of the lock is missing: `nxlock run NAME -- COMMAND`";
const RUN: &str =
    "write the command after the name: `nxlock run NAME -- COMMAND`; `nxlock acquire` takes a lock without a command";
const HOW_LONG: &str = "--ttl 10m takes the lock for so long; --while-pid $$ keeps it until this shell ends";
const VERB: &str = "to run a command under a lock, write `nxlock run NAME -- COMMAND`";
const SHARED: &str =
    "-s names the server; in place of flock's -s write --shared, as in `nxlock run --shared NAME -- COMMAND`";
const NEGATIVE: &str = "there is no such option, and no option takes a negative value";

/// Returns an error with the tip for it, if there is one, in place of clap's.
pub fn hinted(mut error: Error, line: &[OsString]) -> Error {
    let tip = tip(&error, line);
    match error.kind() {
        // clap's own tip is to pass the word behind `--`, which would make it the command.
        ErrorKind::UnknownArgument => _ = error.remove(ContextKind::Suggested),
        ErrorKind::MissingRequiredArgument => readably(&mut error),
        _ => {}
    }
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

/// Writes that a command is missing without clap's notation for a group.
fn readably(error: &mut Error) {
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) {
        let readable =
            |text: &String| if text.contains("COMMAND") { "COMMAND, or -c TEXT".into() } else { text.clone() };
        let missing = missing.iter().map(readable).collect();
        error.insert(ContextKind::InvalidArg, ContextValue::Strings(missing));
    }
}

fn tip(error: &Error, line: &[OsString]) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => instead_of_verb(word(error, ContextKind::InvalidSubcommand)?, error, line),
        ErrorKind::MissingSubcommand => Some(VERB.into()),
        ErrorKind::UnknownArgument => instead_of_option(word(error, ContextKind::InvalidArg)?, error),
        ErrorKind::MissingRequiredArgument => Some(missing(error, line)?.into()),
        _ => None,
    }
}

fn word(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word),
        _ => None,
    }
}

/// Returns whether these words begin with flock's -s and a name in the place of our -s and a URL.
fn begin_as_flocks(words: &[OsString]) -> bool {
    matches!(words, [option, name, ..] if option == "-s" && !name.as_encoded_bytes().contains(&b':'))
}

/// Returns the tip for a word in the place of a verb: another tool's verb, or a lock's name whose verb was left out.
fn instead_of_verb(word: &str, error: &Error, line: &[OsString]) -> Option<String> {
    let at = line.iter().position(|given| given == word)?;
    let is_followed_by_command = line.get(at + 1).is_some_and(|next| next == "--");
    if begin_as_flocks(at.checked_sub(2).and_then(|before| line.get(before..)).unwrap_or_default()) {
        return Some(SHARED.into());
    }
    if !is_followed_by_command {
        if let Some((_, tip)) = SYNONYMS.iter().find(|(words, _)| words.contains(&word)) {
            return Some((*tip).into());
        }
        // clap has found a verb with a similar name.
        if error.get(ContextKind::SuggestedSubcommand).is_some() {
            return None;
        }
    }
    // A URL or a token in this place is a slip, and a secret.
    let is_secret = word.contains('@') || word.contains("//") || word.starts_with("nx1:");
    let name = word.parse::<LockName>().ok().filter(|_| !is_secret);
    Some(match name.as_ref().and_then(|name| shlex::try_quote(name.as_str()).ok()) {
        Some(name) => format!("to run a command under this lock, write `nxlock run {name} -- COMMAND`"),
        None => VERB.into(),
    })
}

/// Returns the tip for an option that is unknown where it was given.
fn instead_of_option(option: &str, error: &Error) -> Option<String> {
    let usage = usage(error);
    let tip = HABITS.iter().find(|(options, _)| options.contains(&option));
    if let Some((_, tip)) = tip.filter(|(options, _)| is_meant(options[0], &usage)) {
        return Some((*tip).into());
    }
    if option.strip_prefix('-').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit())) {
        return Some(NEGATIVE.into());
    }
    let command = Cli::command();
    let owners: Vec<&str> = command.get_subcommands().filter(|verb| has(verb, option)).map(Command::get_name).collect();
    if owners.is_empty() {
        return None;
    }
    let (first, owners) = (owners[0], owners.join(", "));
    Some(match usage.contains("<VERB>") {
        true => format!("{option} is an option of {owners}: write it after the verb, as in `nxlock {first} {option}`"),
        false => format!("{option} is an option of {owners}"),
    })
}

/// Returns whether somebody who gives this option to a verb with this usage may mean what its tip says.
fn is_meant(option: &str, usage: &str) -> bool {
    let is_of = |verbs: &[&str]| verbs.iter().any(|verb| usage.contains(verb));
    match option {
        "--name" => true,
        "--all" | "-w" => is_of(&["nxlock status"]),
        "--lease" => is_of(&["nxlock run", "nxlock acquire", "nxlock renew"]),
        // Other verbs have no command, and wait for no lock.
        _ => is_of(&["<VERB>", "nxlock run", "nxlock acquire", "nxlock release"]),
    }
}

fn has(verb: &Command, option: &str) -> bool {
    verb.get_arguments().any(|arg| {
        arg.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long))
            || arg
                .get_short()
                .is_some_and(|short| option.strip_prefix('-').is_some_and(|rest| rest.chars().eq([short])))
    })
}

/// Returns the tip for the first argument that is missing.
fn missing(error: &Error, line: &[OsString]) -> Option<&'static str> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let lacks = |part: &str| missing.iter().any(|argument| argument.contains(part));
    let behind_run = line.iter().position(|word| word == "run").and_then(|at| line.get(at + 1..)).unwrap_or_default();
    match () {
        () if lacks("COMMAND") && begin_as_flocks(behind_run) => Some(SHARED),
        () if lacks("COMMAND") && behind_run.first().is_some_and(|word| word == "--") => Some(NO_NAME),
        () if lacks("COMMAND") => Some(RUN),
        () if lacks("--ttl") && usage(error).contains("--while-pid") => Some(HOW_LONG),
        () => None,
    }
}

/// Returns the usage of the definition, of a verb or of all, that the line does not agree with.
fn usage(error: &Error) -> String {
    error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what clap prints of a refused line.
    fn refusal(line: &str) -> String {
        let line = shlex::split(line).unwrap().into_iter().map(OsString::from).collect::<Vec<_>>();
        let error = Cli::read(&line, std::convert::identity).unwrap_err();
        hinted(error, &line).render().to_string()
    }

    #[test]
    fn habits_get_a_tip() {
        for (line, tip) in [
            ("nxlock run deploy", "`nxlock run NAME -- COMMAND`"),
            ("nxlock run deploy", "COMMAND, or -c TEXT"),
            ("nxlock run -- true", "the NAME of the lock is missing"),
            ("nxlock run --name deploy -- true", "the name stands alone"),
            ("nxlock acquire deploy --lease 5s", "--ttl D"),
            ("nxlock status --all", "without names"),
            ("nxlock status -w", "--watch=D"),
            ("nxlock deploy -- ./x", "`nxlock run deploy -- COMMAND`"),
            ("nxlock 'a job' ./x", "`nxlock run 'a job' -- COMMAND`"),
            ("nxlock lock deploy", "`nxlock acquire NAME --ttl D`"),
            // A lock may be called so.
            ("nxlock list -- ./x", "`nxlock run list -- COMMAND`"),
            ("nxlock list", "`nxlock status`"),
            ("nxlock who deploy", "`nxlock status NAME`"),
            ("nxlock history", "`nxlock status --history NAME`"),
            ("nxlock version", "`nxlock --version`"),
            ("nxlock release deploy --force", "`--break ID`"),
            ("nxlock run deploy --force -- ./x", "`--break ID`"),
            ("nxlock -q", "`nxlock run NAME -- COMMAND`"),
            ("nxlock -x deploy ./x", "exclusive"),
            ("nxlock run -x deploy ./x", "exclusive"),
            ("nxlock -u deploy", "`nxlock release NAME`"),
            ("nxlock -s deploy ./x", "--shared"),
            ("nxlock run -s deploy ./x", "--shared"),
            ("nxlock -n deploy ./x", "`nxlock run -n`"),
            ("nxlock --wait 5s run deploy ./x", "--wait is an option of run, acquire, release"),
            ("nxlock acquire --time-limit 5s deploy", "--time-limit is an option of run"),
            ("nxlock acquire deploy", "--while-pid"),
            ("nxlock run -w -5s deploy ./x", "negative"),
            ("nxlock stauts", "similar subcommand exists: 'status'"),
            ("nxlock release-notes -- ./x", "`nxlock run release-notes -- COMMAND`"),
            ("nxlock nightly mail -s report root", "`nxlock run nightly -- COMMAND`"),
            ("nxlock -s cache run deploy", "`nxlock run NAME -- COMMAND`"),
            ("nxlock u:secret@host:6379 -- ./x", "`nxlock run NAME -- COMMAND`"),
        ] {
            let said = refusal(line);
            assert!(said.contains(tip), "{line}:\n{said}");
            assert_eq!(said.matches("tip: ").count(), 1, "{line}:\n{said}");
        }
        for line in ["nxlock status --timeout 5s", "nxlock renew deploy --ttl 1m --nonblock", "nxlock status -o json"] {
            assert!(!refusal(line).contains("tip: "), "{line} has no such option, nor another for that");
        }
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_option_and_the_range() {
        for number in ["-1", "256"] {
            let said = refusal(&format!("nxlock run deploy -E {number} true"));
            assert!(said.contains("--conflict-exit-code") && said.contains("0..=255"), "{said}");
            assert!(!said.contains("tip: "), "{said}");
        }
    }

    #[test]
    fn clap_does_not_advise_to_make_a_command_of_an_option() {
        let said = refusal("nxlock run deploy -z true");
        assert!(!said.contains("tip: "), "{said}");
    }
}
