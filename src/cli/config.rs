//! What was asked for: the command line, completed by the environment and by what configuration files say.
//!
//! The files' values become the defaults of the command line's own options, and it is read a second time: so
//! there is one definition of an option (`cli.rs`), and one order. Knows nothing of what the values mean.

#[cfg(test)]
mod example;
mod file;
mod keys;
mod settings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::{Cli, GlobalArgs, Verb, given};
use crate::error::Error;
use file::Entry;
use keys::Scope;

pub use file::shown;
pub use settings::Origin;
pub use settings::Setting;
pub use settings::Settings;

/// What was asked for, and whether the files that complete it can be made sense of.
pub struct Asked {
    pub cli: Cli,
    /// Told only to who asks for them: `check`.
    pub settings: Result<Settings, Error>,
}

/// Reads the command line.
///
/// # Errors
/// If it makes no sense, or is for help: for clap to say.
pub fn asked() -> Result<Asked, clap::Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let (mut matches, mut cli) = Cli::read(&words, Cli::command)?;
    let counted = match heard(&matches) {
        Ok(counted) => counted,
        Err(error) => return Ok(Asked { cli, settings: Err(error) }),
    };
    if !counted.is_empty() {
        (matches, cli) = Cli::read(&words, || with_defaults(&counted))?;
    }
    let told = matches.subcommand_name() == Some("check");
    let settings = if told { Settings::of(&Cli::command(), &matches, &counted) } else { Settings::default() };
    match lone_half(&cli).or_else(|| lone_margin(&cli, &matches)) {
        None => Ok(Asked { cli, settings: Ok(settings) }),
        Some((lone, lacking)) => {
            let cause = format!("it is of no use without {lacking}");
            match counted.iter().find(|entry| entry.key == lone) {
                Some(entry) => Ok(Asked { cli, settings: Err(entry.location.error(lone, cause)) }),
                None => Err(Cli::command().error(
                    clap::error::ErrorKind::MissingRequiredArgument,
                    format!("--{lone} needs --{lacking} beside it"),
                )),
            }
        }
    }
}

/// What is known of a command line that is still being typed: its words, and what is in force for every verb.
/// Nothing, where that cannot be told.
pub fn so_far(words: &[OsString]) -> Option<(ArgMatches, GlobalArgs)> {
    let read = |definition: Command| definition.ignore_errors(true).try_get_matches_from(words).ok();
    let mut matches = read(Cli::command())?;
    let counted = heard(&matches).ok()?;
    if !counted.is_empty() {
        matches = read(with_defaults(&counted))?;
    }
    let global = GlobalArgs::from_arg_matches(&matches).ok()?;
    Some((matches, global))
}

/// What the files say that is to be heard.
fn heard(matches: &ArgMatches) -> Result<Vec<Entry>, Error> {
    let named = given(matches.get_one::<PathBuf>("config"));
    Ok(entries(named.map(PathBuf::as_path))?.into_iter().filter(|entry| counts(entry, matches)).collect())
}

/// What the files say, once for each option: the first to say something of it is heard.
fn entries(named: Option<&Path>) -> Result<Vec<Entry>, Error> {
    let mut entries: Vec<Entry> = Vec::new();
    let files = file::found(named)?;
    if files.is_empty() {
        return Ok(entries);
    }
    let command = Cli::command();
    for file in files {
        let later = file.entries(&command)?;
        let unheard = |entry: &Entry| !entries.iter().any(|first| first.key == entry.key || first.excludes(entry));
        let later: Vec<_> = later.into_iter().filter(unheard).collect();
        entries.extend(later);
    }
    Ok(entries)
}

/// Whether an entry is to be heard beside what was typed and what is in the environment.
fn counts(entry: &Entry, matches: &ArgMatches) -> bool {
    let contrary = keys::rivals(entry.key).any(|rival| !entry.is_off() && was_given(rival, matches));
    let named_otherwise = entry.key == "server" && !is_blank("REDIS_URL");
    !contrary && !named_otherwise && !was_given(entry.key, matches)
}

/// On the command line, or by a variable that is not empty.
fn was_given(key: &str, matches: &ArgMatches) -> bool {
    let id = keys::id(key);
    let of = |matches: &ArgMatches| matches.try_contains_id(&id).is_ok().then(|| matches.value_source(&id)).flatten();
    match of(matches).or_else(|| matches.subcommand().and_then(|(_, matches)| of(matches))) {
        Some(ValueSource::CommandLine) => true,
        // An empty prefix is a prefix.
        Some(ValueSource::EnvVariable) => key == "prefix" || !is_blank(&variable_of(key)),
        _ => false,
    }
}

fn variable_of(key: &str) -> String {
    format!("NXLOCK_{}", keys::id(key).to_uppercase())
}

fn is_blank(variable: &str) -> bool {
    std::env::var_os(variable).is_none_or(|value| value.to_string_lossy().trim().is_empty())
}

/// The command line, with what the files say as its defaults.
fn with_defaults(entries: &[Entry]) -> Command {
    entries.iter().fold(Cli::command(), |command, entry| {
        let id = keys::id(entry.key);
        let set = |option: Arg| {
            // One that is empty would go before its default.
            let option = if was_set_empty(&option) { option.env(Resettable::Reset) } else { option };
            option.default_value(entry.value.clone())
        };
        let of = |verb: &'static str, command: Command| command.mut_subcommand(verb, |verb| verb.mut_arg(&id, set));
        match entry.scope {
            Scope::GlobalArgs => command.mut_arg(&id, set),
            Scope::RunAndAcquire => of("acquire", of("run", command)),
            Scope::Run => of("run", command),
        }
    })
}

fn was_set_empty(option: &Arg) -> bool {
    option.get_env().is_some_and(|name| is_blank(&name.to_string_lossy()))
}

/// A margin that was typed, and nothing that it is one of. A file may have it for whoever asks for the other.
fn lone_margin(cli: &Cli, matches: &ArgMatches) -> Option<(&'static str, &'static str)> {
    let setnx = match &cli.verb {
        Verb::Run(run) => &run.setnx,
        Verb::Acquire(acquire) => &acquire.setnx,
        _ => return None,
    };
    (!setnx.setnx_compat && was_given("setnx-margin", matches)).then_some(("setnx-margin", "setnx-compat"))
}

/// A certificate without its key, or a key without its certificate, and what is lacking.
fn lone_half(cli: &Cli) -> Option<(&'static str, &'static str)> {
    let options = &cli.global;
    match (given(options.tls_cert.as_ref()), given(options.tls_key.as_ref())) {
        (Some(_), None) => Some(("tls-cert", "tls-key")),
        (None, Some(_)) => Some(("tls-key", "tls-cert")),
        _ => None,
    }
}
