//! Generates `man/config.toml`: a configuration file with every key, what it means, and a value. `BLESS=1 cargo test
//! --bin nxlock` rewrites it.

use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use super::file::Source;
use super::keys::{self, RIVALS, Scope, Shape, keys};
use crate::cli::{Cli, docs};

const PATH: &str = "man/config.toml";

const ABOUT: &str = "\
# A configuration of nxlock: /etc/nxlock/config.toml for a machine, or ~/.config/nxlock/config.toml for a user.
#
# The command line goes before the environment, that before the user's file, and that before the machine's.
# `nxlock check` shows what is in force. CONFIGURATION in nxlock(1) has the rules.
#
# Every key is listed, with its default, or with an example where it has none.
";

const GROUPS: [(Scope, &str); 3] =
    [(Scope::GlobalArgs, "For every verb"), (Scope::RunAndAcquire, "For run and acquire"), (Scope::Run, "For run")];

fn example() -> String {
    let command = Cli::command();
    let mut text = ABOUT.to_owned();
    for (group, heading) in GROUPS {
        text += &format!("\n# {heading}\n");
        for (key, scope) in keys().filter(|(_, scope)| *scope == group) {
            let option = option(&command, key, scope);
            let help = option.get_help().expect("every option has a help").to_string();
            text += &format!("\n{}\n#{key} = {}\n", commented(&help), value(key, option));
        }
    }
    text
}

fn option<'a>(command: &'a Command, key: &str, scope: Scope) -> &'a Arg {
    keys::option(command, key, scope).expect("keys are options")
}

/// Wraps a help text in comment lines of at most eighty columns.
fn commented(help: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in help.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 79 => *line += &format!(" {word}"),
            _ => lines.push(format!("# {word}")),
        }
    }
    lines.join("\n")
}

/// Returns the default, or an example that the option's parser accepts.
fn value(key: &str, option: &Arg) -> String {
    let default = option.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    let shape = keys::shape(key, option);
    let other = || match (key, shape) {
        ("password-file", _) => "password",
        ("password-command", _) => "pass show redis",
        ("reason", _) => "by cron",
        ("as", _) => "runner 4",
        ("supersede", _) => "waiting",
        ("conflict-exit-code", _) => "75",
        ("record", _) => "20",
        ("unless-done", _) => "20h",
        (_, Shape::Flag) => "false",
        (_, Shape::Number) => "1",
        (_, Shape::Span) => "10m",
        (_, Shape::Path) => "file.pem",
        (_, Shape::Text | Shape::Texts) => "redis://cache:6379",
    };
    let value = default.unwrap_or_else(|| other().to_owned());
    match shape {
        Shape::Flag | Shape::Number => value,
        Shape::Span | Shape::Path | Shape::Text | Shape::Texts => format!("{value:?}"),
    }
}

#[test]
fn the_example_has_every_key_and_each_may_be_uncommented() {
    let text = example();
    docs::agrees(PATH, &text);
    for (key, _) in keys() {
        let line = format!("#{key} = ");
        assert_eq!(text.lines().filter(|text| text.starts_with(&line)).count(), 1, "{key}");
        let alone = text.replace(&line, &line[1..]);
        let source = Source { path: PathBuf::from(PATH), text: alone };
        let entries = source.entries(&Cli::command()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(entries.iter().map(|entry| entry.key).collect::<Vec<_>>(), [key]);
    }
    let lines = text.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| line.contains(" = "));
    let all: Vec<_> = lines.filter(|line| RIVALS.iter().all(|(_, rival)| !line.starts_with(rival))).collect();
    let source = Source { path: PathBuf::from(PATH), text: all.join("\n") };
    source.entries(&Cli::command()).unwrap_or_else(|error| panic!("{error}"));
}
