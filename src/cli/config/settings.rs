//! The settings in force, and where each comes from, for `check`.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::file::Entry;
use super::keys::{Scope, id};
use crate::cli::SETTINGS;
use crate::report::{Origin, Setting};
use crate::store::Durability;

/// The settings in force.
#[derive(Default)]
pub struct Settings {
    pub list: Vec<Setting>,
    /// What `run` and `acquire` would require.
    pub durability: Durability,
}

impl Settings {
    /// Collects the settings. `entries` are the files' entries that take effect.
    pub fn of(command: &Command, matches: &ArgMatches, entries: &[Entry]) -> Settings {
        let options = command.get_arguments().filter(|option| !matches!(option.get_id().as_str(), "help" | "version"));
        let mut list: Vec<_> = options.filter_map(|option| global(option, matches, entries)).collect();
        // Options of other verbs can only come from a file here.
        let others = entries.iter().filter(|entry| entry.scope != Scope::GlobalArgs);
        list.extend(others.map(|entry| Setting {
            name: entry.key.to_owned(),
            value: Some(entry.value.clone()),
            origin: Origin::File(entry.location.clone()),
        }));
        let value = |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
        let replicas = value("min-replicas").and_then(|value| value.parse().ok()).unwrap_or(0);
        let durability = Durability { replicas, on_disk: value("durable") == Some("true") };
        Settings { list, durability }
    }
}

fn global(option: &Arg, matches: &ArgMatches, entries: &[Entry]) -> Option<Setting> {
    let name = option.get_id().as_str();
    let is_typed = |side: &&ArgMatches| side.value_source(name) == Some(ValueSource::CommandLine);
    // --server may be typed after the verb alone.
    let matches = matches.subcommand().map(|(_, verb)| verb).filter(is_typed).unwrap_or(matches);
    let from_file = entries.iter().find(|entry| entry.scope == Scope::GlobalArgs && id(entry.key) == name);
    let setting = SETTINGS.iter().find(|setting| option.get_long() == Some(setting.name));
    let origin = match (matches.value_source(name), from_file) {
        (Some(ValueSource::CommandLine), _) => Origin::Flag,
        (Some(ValueSource::EnvVariable), _) => Origin::Environment(variable(option)),
        (_, Some(entry)) => Origin::File(entry.location.clone()),
        _ if setting.is_some_and(|setting| !setting.is_file && !setting.is_secret) => Origin::Default,
        _ => return None,
    };
    let raw = matches.get_raw(name).into_iter().flatten();
    let words: Vec<_> = raw.map(|word| word.to_string_lossy().into_owned()).collect();
    let is_secret = setting.is_some_and(|setting| setting.is_secret);
    let value = Some(words.join(" ")).filter(|_| !words.is_empty() && !is_secret);
    Some(Setting { name: option.get_long().unwrap_or(name).to_owned(), value, origin })
}

fn variable(option: &Arg) -> String {
    option.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
