//! The command line, completed by the environment and by configuration files.
//!
//! Values from files become defaults of the command line's own options, and the command line is parsed a second time:
//! so there is one definition of an option (`cli.rs`), and one order. Must not know what the values mean.

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

use super::global::Setting;
use super::{Cli, GlobalArgs, SETTINGS, Verb, given, hints};
use crate::error::{Error, ErrorKind};
use crate::handover;
use crate::lock::KnownAs;
use file::Entry;
use keys::Scope;

pub use settings::Settings;

/// The parsed command line, and whether the configuration files are valid.
pub struct Asked {
    pub cli: Cli,
    /// Filled in for `check` only.
    pub settings: Result<Settings, Error>,
}

/// Parses the command line.
///
/// # Errors
/// If it is wrong or asks for help: clap prints both.
pub fn asked() -> Result<Asked, clap::Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let hinted = |error| hints::hinted(error, &words);
    let variable = variable_of_as();
    let usual = |definition: Command| {
        let definition = without_empty_variables(definition);
        if let Ok(true) = variable { definition } else { without_variable(definition) }
    };
    let (mut matches, mut cli) = Cli::read(&words, usual).map_err(hinted)?;
    if let Err(error) = &variable
        && matches!(cli.verb, Verb::Run(_) | Verb::Acquire(_))
    {
        return Ok(Asked { cli, settings: Err(error.clone()) });
    }
    let entries = match effective_entries(&matches) {
        Ok(entries) => entries,
        Err(error) => return Ok(Asked { cli, settings: Err(error) }),
    };
    if !entries.is_empty() {
        (matches, cli) = Cli::read(&words, |definition| with_defaults(usual(definition), &entries)).map_err(hinted)?;
    }
    let settings = match &cli.verb {
        Verb::Check(_) => Settings::of(&Cli::command(), &matches, &entries),
        _ => Settings::default(),
    };
    if given(cli.global.password_file.as_ref()).is_some() && cli.global.password_command().is_some() {
        let both = "--password-file and --password-command (or NXLOCK_PASSWORD_FILE and NXLOCK_PASSWORD_COMMAND) exclude \
                    each other";
        return Err(Cli::command().error(clap::error::ErrorKind::ArgumentConflict, both));
    }
    match lone_half(&cli).or_else(|| lone_margin(&cli, &matches)) {
        None => Ok(Asked { cli, settings: Ok(settings) }),
        Some((lone, lacking)) => {
            let cause = format!("it requires {lacking}");
            match entries.iter().find(|entry| entry.key == lone) {
                Some(entry) => Ok(Asked { cli, settings: Err(entry.location.error(lone, cause)) }),
                None => Err(Cli::command()
                    .error(clap::error::ErrorKind::MissingRequiredArgument, format!("--{lone} requires --{lacking}"))),
            }
        }
    }
}

/// Parses a command line that is still being typed. Returns its words, and the global options in force; none if they
/// cannot be determined.
pub fn so_far(words: &[OsString]) -> Option<(ArgMatches, GlobalArgs)> {
    let read = |definition: Command| definition.ignore_errors(true).try_get_matches_from(words).ok();
    let mut matches = read(Cli::command())?;
    let entries = effective_entries(&matches).ok()?;
    if !entries.is_empty() {
        matches = read(with_defaults(Cli::command(), &entries))?;
    }
    let global = GlobalArgs::from_arg_matches(&matches).ok()?;
    Some((matches, global))
}

/// Returns the entries of the files that take effect.
fn effective_entries(matches: &ArgMatches) -> Result<Vec<Entry>, Error> {
    // The other nxlock has read them, and hands on what they say.
    if handover::received().is_some() {
        return Ok(Vec::new());
    }
    let named = given(matches.get_one::<PathBuf>("config"));
    Ok(entries(named.map(PathBuf::as_path))?.into_iter().filter(|entry| counts(entry, matches)).collect())
}

/// Returns the entries of the files, one per option: the first file that sets it wins.
fn entries(named: Option<&Path>) -> Result<Vec<Entry>, Error> {
    let mut entries: Vec<Entry> = Vec::new();
    let files = file::found(named)?;
    if files.is_empty() {
        return Ok(entries);
    }
    let command = Cli::command();
    for file in files {
        let later = file.entries(&command)?;
        let is_new = |entry: &Entry| !entries.iter().any(|first| first.key == entry.key || first.excludes(entry));
        let later: Vec<_> = later.into_iter().filter(is_new).collect();
        entries.extend(later);
    }
    Ok(entries)
}

/// Returns whether an entry takes effect beside the command line and the environment.
fn counts(entry: &Entry, matches: &ArgMatches) -> bool {
    let contrary = keys::rivals(entry.key).any(|rival| !entry.is_off() && was_given(rival, matches));
    let named_otherwise = entry.key == "server" && !is_blank("REDIS_URL");
    !contrary && !named_otherwise && !was_given(entry.key, matches)
}

/// Returns whether the command line or a variable that is not empty sets the option.
fn was_given(key: &str, matches: &ArgMatches) -> bool {
    let id = keys::id(key);
    let of = |matches: &ArgMatches| matches.try_contains_id(&id).is_ok().then(|| matches.value_source(&id)).flatten();
    let sources = [of(matches), matches.subcommand().and_then(|(_, verb)| of(verb))];
    // An empty prefix is valid.
    let counts = |setting: &Setting| setting.name == key && (key == "prefix" || !is_blank(setting.variable));
    sources.contains(&Some(ValueSource::CommandLine))
        || sources.contains(&Some(ValueSource::EnvVariable)) && SETTINGS.iter().any(counts)
}

fn is_blank(variable: &str) -> bool {
    std::env::var_os(variable).is_none_or(|value| value.to_string_lossy().trim().is_empty())
}

/// Returns a definition with the files' values as defaults.
fn with_defaults(definition: Command, entries: &[Entry]) -> Command {
    entries.iter().fold(definition, |command, entry| {
        let id = keys::id(entry.key);
        let set = |option: Arg| {
            // An empty variable would take precedence over the default.
            without_empty_variable(option).default_value(entry.value.clone())
        };
        match entry.scope {
            Scope::GlobalArgs => command.mut_arg(&id, set),
            Scope::RunAndAcquire => of_verbs(&["run", "acquire"], command, &id, set),
            Scope::Run => of_verbs(&["run"], command, &id, set),
        }
    })
}

/// Changes an option of these verbs.
fn of_verbs(verbs: &[&str], command: Command, id: &str, change: impl Fn(Arg) -> Arg) -> Command {
    command.mut_subcommands(|verb| match verbs.contains(&verb.get_name()) {
        true => verb.mut_arg(id, &change),
        false => verb,
    })
}

/// The option that a variable sets, and the verbs that have it.
const AS: &str = "as";
const NAMED_VERBS: [&str; 3] = ["run", "acquire", "release"];

/// Returns whether the variable of `--as` is set: an empty one is not.
///
/// # Errors
/// If its value is not allowed.
fn variable_of_as() -> Result<bool, Error> {
    let Some(value) = std::env::var_os("NXLOCK_AS").filter(|value| !value.is_empty()) else { return Ok(false) };
    let name = value.to_str().ok_or_else(|| "it is not UTF-8".to_owned());
    name.and_then(str::parse::<KnownAs>).map(|_| true).map_err(|cause| Error {
        kind: ErrorKind::Misconfigured,
        action: "cannot use NXLOCK_AS".into(),
        cause,
        hint: "set it to 1 to 64 bytes of text, or to nothing".into(),
    })
}

fn without_variable(definition: Command) -> Command {
    of_verbs(&NAMED_VERBS, definition, AS, |option| option.env(Resettable::Reset))
}

/// Returns a definition in which an empty variable does not count: of the options that accept no empty value.
fn without_empty_variables(definition: Command) -> Command {
    let of_any = |verb: Command| {
        let has = |id: &&str| verb.get_arguments().any(|option| option.get_id() == id);
        let ids: Vec<&str> = ["server_timeout", "token"].into_iter().filter(has).collect();
        ids.into_iter().fold(verb, |verb, id| verb.mut_arg(id, without_empty_variable))
    };
    of_any(definition).mut_subcommands(of_any)
}

fn without_empty_variable(option: Arg) -> Arg {
    let was_set_empty = option.get_env().is_some_and(|name| is_blank(&name.to_string_lossy()));
    if was_set_empty { option.env(Resettable::Reset) } else { option }
}

/// Returns a margin given without --setnx-compat, and that option. A file may set it for those who use the other.
fn lone_margin(cli: &Cli, matches: &ArgMatches) -> Option<(&'static str, &'static str)> {
    let setnx = match &cli.verb {
        Verb::Run(run) => &run.setnx,
        Verb::Acquire(acquire) => &acquire.setnx,
        _ => return None,
    };
    (!setnx.setnx_compat && was_given("setnx-margin", matches)).then_some(("setnx-margin", "setnx-compat"))
}

/// Returns a certificate without its key or a key without its certificate, and what is missing.
fn lone_half(cli: &Cli) -> Option<(&'static str, &'static str)> {
    let options = &cli.global;
    match (given(options.tls_cert.as_ref()), given(options.tls_key.as_ref())) {
        (Some(_), None) => Some(("tls-cert", "tls-key")),
        (None, Some(_)) => Some(("tls-key", "tls-cert")),
        _ => None,
    }
}
