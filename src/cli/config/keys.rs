//! The keys of a configuration file: which options, of which verbs, and the type of their values. Everything else comes
//! from their one definition, `cli.rs`.

use std::any::TypeId;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};

use crate::cli::SETTINGS;
use crate::lock::{RunCount, Ttl};
use crate::notify::Destination;

/// The verbs that have the option.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    GlobalArgs,
    RunAndAcquire,
    Run,
}

/// Returns the long names of the options allowed in a file.
pub fn keys() -> impl Iterator<Item = (&'static str, Scope)> {
    // A file does not name another.
    let settings = SETTINGS.iter().map(|setting| setting.name).filter(|name| *name != "config");
    settings.map(|name| (name, Scope::GlobalArgs)).chain(OTHERS)
}

const OTHERS: [(&str, Scope); 25] = [
    ("json", Scope::GlobalArgs),
    ("quiet", Scope::GlobalArgs),
    ("verbose", Scope::GlobalArgs),
    ("color", Scope::GlobalArgs),
    ("wait", Scope::RunAndAcquire),
    ("no-wait", Scope::RunAndAcquire),
    ("no-queue", Scope::RunAndAcquire),
    ("supersede", Scope::RunAndAcquire),
    ("conflict-exit-code", Scope::RunAndAcquire),
    ("setnx-compat", Scope::RunAndAcquire),
    ("setnx-margin", Scope::RunAndAcquire),
    ("reason", Scope::RunAndAcquire),
    ("as", Scope::RunAndAcquire),
    ("min-replicas", Scope::RunAndAcquire),
    ("durable", Scope::RunAndAcquire),
    ("events", Scope::RunAndAcquire),
    // Not `acquire`: its user has to say how long.
    ("ttl", Scope::Run),
    ("at-least", Scope::Run),
    ("time-limit", Scope::Run),
    ("kill-after", Scope::Run),
    ("on-lost", Scope::Run),
    ("descendants", Scope::Run),
    ("no-ask", Scope::Run),
    ("record", Scope::Run),
    ("unless-done", Scope::Run),
];

/// Options that contradict each other, of which a file may set one or both: one that is given excludes the other. clap
/// notices no contradiction with a file, whose values are defaults to it.
pub const RIVALS: [(&str, &str); 10] = [
    ("wait", "no-wait"),
    ("quiet", "verbose"),
    ("password-file", "password-command"),
    ("json", "export"),
    ("json", "metrics"),
    ("no-queue", "supersede"),
    ("no-queue", "first"),
    ("setnx-compat", "supersede"),
    ("setnx-compat", "shared"),
    ("setnx-compat", "slots"),
];

/// The type of an option's value in TOML.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Flag,
    Number,
    /// A string. The option's own parser reports what is wrong with a number.
    Span,
    /// A string that may be a relative path.
    Path,
    Text,
    /// A string, or an array of them.
    Texts,
}

pub fn rivals(key: &str) -> impl Iterator<Item = &'static str> {
    let other = move |(one, other): &(&'static str, &'static str)| match key {
        _ if key == *one => Some(*other),
        _ if key == *other => Some(*one),
        _ => None,
    };
    RIVALS.iter().filter_map(other)
}

/// Returns clap's id of an option.
pub fn id(key: &str) -> String {
    key.replace('-', "_")
}

/// Returns the option of the command line that a key sets.
pub fn option<'a>(command: &'a Command, key: &str, scope: Scope) -> Option<&'a Arg> {
    let of = |command: &'a Command| command.get_arguments().find(|arg| arg.get_long() == Some(key));
    match scope {
        Scope::GlobalArgs => of(command),
        Scope::RunAndAcquire | Scope::Run => command.find_subcommand("run").and_then(of),
    }
}

pub fn shape(key: &str, option: &Arg) -> Shape {
    let parsed = option.get_value_parser().type_id();
    match option.get_action() {
        ArgAction::SetTrue => Shape::Flag,
        _ if key == "server" => Shape::Texts,
        _ if [TypeId::of::<u8>(), TypeId::of::<u32>(), TypeId::of::<RunCount>()]
            .iter()
            .any(|number| parsed == *number) =>
        {
            Shape::Number
        }
        _ if parsed == TypeId::of::<Duration>() || parsed == TypeId::of::<Ttl>() => Shape::Span,
        _ if parsed == TypeId::of::<PathBuf>() || parsed == TypeId::of::<Destination>() => Shape::Path,
        _ => Shape::Text,
    }
}

/// Validates a value with the option's own parser.
///
/// # Errors
/// The parser's own message.
pub fn admit(option: &Arg, value: &str) -> Result<(), String> {
    let alone = Arg::new("value").long("value").value_parser(option.get_value_parser().clone());
    let command = Command::new("nxlock").no_binary_name(true).arg(alone);
    let Err(error) = command.try_get_matches_from([format!("--value={value}")]) else { return Ok(()) };
    if let Some(why) = std::error::Error::source(&error) {
        return Err(why.to_string());
    }
    let words = |kind| match error.get(kind) {
        Some(ContextValue::Strings(words)) => words.join(", "),
        _ => String::new(),
    };
    match words(ContextKind::ValidValue) {
        known if known.is_empty() => Err("it is empty".into()),
        known => Err(format!("it is none of {known}")),
    }
}

/// Returns the message for a key that is not allowed in a file.
pub fn misplaced(command: &Command, key: &str) -> String {
    let commands = std::iter::once(command).chain(command.get_subcommands());
    let mut options = commands.flat_map(Command::get_arguments).filter_map(Arg::get_long);
    if options.any(|option| option == key) || matches!(key, "help" | "version") {
        return "this option can only be given on the command line".into();
    }
    let known = keys().map(|(key, _)| Arg::new(key).long(key));
    let asked = Command::new("nxlock").no_binary_name(true).args(known);
    let near = asked.try_get_matches_from([format!("--{key}")]).err();
    match near.as_ref().and_then(|error| error.get(ContextKind::SuggestedArg)) {
        Some(ContextValue::String(near)) => {
            format!("unknown key: did you mean `{}`?", near.trim_start_matches('-'))
        }
        _ => "unknown key: see CONFIGURATION in nxlock(1)".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// A new option has to be added to one of the two lists.
    #[test]
    fn each_option_may_stand_in_a_file_or_says_why_not() {
        let only_typed = [
            "config",
            "key",
            "shell",
            "export",
            "while-pid",
            "lost-signal",
            "until",
            "ask",
            "break",
            "watch",
            "history",
            "limit",
            "metrics",
            "max-age",
            "max-held",
            "max-waiting",
            "help",
            "version",
            // How many may hold a lock is a property of its name, not of a host.
            "shared",
            "slots",
            // Nor is who goes first.
            "first",
            // Nor which locks one command needs.
            "also",
            "also-shared",
        ];
        let command = Cli::command();
        let commands = std::iter::once(&command).chain(command.get_subcommands());
        let options: BTreeSet<_> = commands.flat_map(Command::get_arguments).filter_map(Arg::get_long).collect();
        let thought_of: BTreeSet<_> = keys().map(|(key, _)| key).chain(only_typed).collect();
        assert_eq!(options.difference(&thought_of).collect::<Vec<_>>(), Vec::<&&str>::new());
        for (key, scope) in keys() {
            let option = option(&command, key, scope).unwrap_or_else(|| panic!("{key}"));
            assert_eq!(option.get_id().as_str(), id(key));
        }
    }

    #[test]
    fn what_a_file_may_contradict_is_known_to_it() {
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands() {
            let may_be_in_file = |option: &str| {
                keys().any(|(key, scope)| {
                    key == option
                        && match scope {
                            Scope::GlobalArgs => true,
                            Scope::RunAndAcquire => matches!(verb.get_name(), "run" | "acquire"),
                            Scope::Run => verb.get_name() == "run",
                        }
                })
            };
            for one in verb.get_arguments() {
                for other in verb.get_arg_conflicts_with(one) {
                    let (Some(one), Some(other)) = (one.get_long(), other.get_long()) else { continue };
                    if may_be_in_file(one) || may_be_in_file(other) {
                        assert!(rivals(one).any(|rival| rival == other), "--{one}, --{other}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_key_that_has_no_place_is_distinguished_from_one_that_is_misspelt() {
        let command = Cli::command();
        assert!(misplaced(&command, "break").contains("command line"));
        assert!(misplaced(&command, "server_timeout").contains("`server-timeout`"));
        assert!(misplaced(&command, "xyzzy").contains("CONFIGURATION"));
    }
}
