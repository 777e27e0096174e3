//! Parses which lock a command line names, and its other words if --key replaces NAME.
//!
//! With --key, the first positional is not NAME but what follows NAME: a command or a token. clap cannot drop a
//! positional because an option is present, so the line is first parsed by a definition without NAME.

use std::convert::Infallible;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Subcommand, ValueHint};

use super::brief::brief;
use super::{Cli, CommandLine, VERBS, Verb};
use crate::lock::{Key, LockName};

/// The lock, by its name or by its key.
#[derive(Debug, Args)]
pub struct LockArg {
    /// Name of the lock: 1 to 200 bytes of UTF-8 without control characters or braces.
    #[arg(value_name = "NAME", value_hint = ValueHint::Other, required = true, conflicts_with = "key")]
    #[arg(hide_short_help = true)]
    pub name: Option<LockName>,

    /// Use KEY, without prefix, in place of NAME: for old scripts that use a fixed key.
    ///
    /// nxlock shows KEY as the lock's name. See nxlock-setnx(7).
    #[arg(long, value_name = "KEY", value_hint = ValueHint::Other, hide_short_help = true)]
    pub key: Option<Key>,
}

/// Parses a reason, which is shown in a line.
///
/// # Errors
/// None.
pub fn reason(text: &str) -> Result<String, Infallible> {
    let words = text.split(['\n', '\r', '\t']).map(str::trim).filter(|part| !part.is_empty());
    Ok(words.collect::<Vec<_>>().join(" "))
}

impl Cli {
    /// Parses a command line, whose first word is the program, by the definition that `adapted` makes of the command
    /// line's own.
    ///
    /// # Errors
    /// clap's error, or the help that the user requested.
    pub fn read(line: &[OsString], adapted: impl Fn(Command) -> Command) -> Result<(ArgMatches, Cli), clap::Error> {
        read_by_either(line, &|| adapted(definition_for(line))).map_err(|error| {
            // Help and error messages name all verbs.
            read_by_either(line, &|| adapted(definition_with_help_for(line))).err().unwrap_or(error)
        })
    }

    fn is_by_key(&self) -> bool {
        match &self.verb {
            Verb::Run(run) => run.lock.key.is_some(),
            Verb::Acquire(acquire) => acquire.lock.key.is_some(),
            Verb::Renew(renew) => renew.lock.key.is_some(),
            Verb::Release(release) => release.lock.key.is_some(),
            Verb::Status(status) => status.key.is_some(),
            Verb::Check(_) => false,
        }
    }
}

/// Returns the definition of the verbs that a line may name: to define all of them would cost a run 0.2 of what flock(1)
/// costs. clap's `Command::defer` defines a verb once it is named, but by a function that could not know the defaults
/// from files.
fn definition_for(line: &[OsString]) -> Command {
    let named = VERBS.into_iter().filter(|(name, _)| line.iter().any(|word| word == name));
    with_servers_on_both_sides(named.fold(CommandLine::<NoVerb>::command(), |command, (name, define)| {
        command.subcommand(define(Command::new(name)))
    }))
}

/// Accepts `--server` before the verb and after it. Of a global option, clap would drop those before the verb if there
/// are some after it, and fewer servers than the user named would keep the lock.
fn with_servers_on_both_sides(command: Command) -> Command {
    let command = command.mut_arg(SERVER, |server| server.global(false));
    let server = command.get_arguments().find(|arg| arg.get_id() == SERVER).cloned();
    command.mut_subcommands(|verb| verb.args(server.clone()))
}

const SERVER: &str = "server";

/// Returns the servers typed on one side of the verb.
fn servers(side: &ArgMatches) -> Option<Vec<String>> {
    let is_typed = side.value_source(SERVER)? == ValueSource::CommandLine;
    is_typed.then(|| side.get_many(SERVER).unwrap_or_default().cloned().collect())
}

/// Returns the definition of all verbs, with the help that a line may ask for.
fn definition_with_help_for(line: &[OsString]) -> Command {
    let asked = line.iter().find(|word| *word == "-h" || *word == "--help");
    let command = Cli::command();
    if asked.is_some_and(|asked| asked == "--help") { command } else { brief(command) }
}

/// Stands for verbs that are defined elsewhere.
#[derive(Debug, Subcommand)]
enum NoVerb {}

/// Parses a line with NAME or with --key.
fn read_by_either(line: &[OsString], definition: &dyn Fn() -> Command) -> Result<(ArgMatches, Cli), clap::Error> {
    if !line.iter().any(is_key_option) {
        return read_by(line, definition);
    }
    let nameless = read_by(line, &|| nameless(definition()));
    if nameless.as_ref().is_ok_and(|(_, cli)| cli.is_by_key()) {
        return nameless;
    }
    // The option may belong to the command, not to nxlock.
    match (nameless, read_by(line, definition)) {
        (_, Err(error)) if error.kind() == ErrorKind::ArgumentConflict => Err(error),
        (Err(error), Err(_)) => Err(error),
        (_, read) => read,
    }
}

fn read_by(line: &[OsString], definition: &dyn Fn() -> Command) -> Result<(ArgMatches, Cli), clap::Error> {
    let mut command = definition();
    let matches = command.try_get_matches_from_mut(line)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if let Some(after) = matches.subcommand().and_then(|(_, verb)| servers(verb)) {
        cli.global.server = [servers(&matches).unwrap_or_default(), after].concat();
    }
    Ok((matches, cli))
}

fn is_key_option(word: &OsString) -> bool {
    word == "--key" || word.as_encoded_bytes().starts_with(b"--key=")
}

/// Returns the definition without NAME as a positional: it becomes a hidden option, which conflicts with --key.
fn nameless(command: Command) -> Command {
    command.mut_subcommands(|verb| {
        if !verb.get_positionals().any(|arg| arg.get_id() == "name") {
            return verb;
        }
        verb.mut_arg("name", |name| name.index(None).long("name-in-place-of-key").hide(true).required(false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Cli, String> {
        let line: Vec<_> = words.split(' ').map(OsString::from).collect();
        Cli::read(&line, std::convert::identity).map(|(_, cli)| cli).map_err(|error| error.render().to_string())
    }

    fn run(words: &str) -> (String, Vec<OsString>) {
        match read(words).unwrap().verb {
            Verb::Run(run) => {
                let name = run.lock.key.map_or_else(|| run.lock.name.unwrap(), |key| key.name());
                (name.as_str().to_owned(), run.command)
            }
            _ => panic!("{words}"),
        }
    }

    #[test]
    fn every_verb_can_be_defined_alone() {
        let command = Cli::command();
        let defined: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!(VERBS.map(|(name, _)| name).as_slice(), defined);
    }

    #[test]
    fn a_verb_is_read_as_beside_all_others() {
        for line in [
            "nxlock run deploy -- ./deploy.sh -x",
            "nxlock run -n -t 10s --server redis://a -q deploy ls -l -s x",
            "nxlock run -s a -s b --json --shared deploy -c true",
            "nxlock -s a run --slots=4 --supersede --prefix= gpu sh -c true",
            "nxlock acquire --while-pid 1 -w 3s job --color never",
            "nxlock acquire --ttl 1m --export -v job",
            "nxlock renew --ttl 1m job 4123",
            "nxlock release job 4123 --server-timeout 3s",
            "nxlock release job --ask abcdefgh --reason why -w 1s",
            "nxlock status",
            "nxlock status --watch=2s --json a b",
            "nxlock --json status check run",
            "nxlock check -s local:",
        ] {
            let line: Vec<_> = line.split(' ').map(OsString::from).collect();
            let (_, alone) = read_by_either(&line, &|| definition_for(&line)).unwrap();
            let (_, beside) = read_by_either(&line, &|| with_servers_on_both_sides(Cli::command())).unwrap();
            assert_eq!(format!("{alone:?}"), format!("{beside:?}"), "{line:?}");
        }
    }

    #[test]
    fn servers_on_both_sides_of_the_verb_are_all_used() {
        for (line, servers) in [
            ("nxlock -s a -s b status -s c", "a b c"),
            ("nxlock -s a run --server=b -sc name -- x -s d", "a b c"),
            ("nxlock -qs a run -ns b -s c name true", "a b c"),
            ("nxlock -s a run --server=b --key k x -s d", "a b"),
            ("nxlock run name -s a true -s b", "a"),
            ("nxlock -s a -s b run name -n true -s c", "a b"),
        ] {
            assert_eq!(read(line).unwrap().global.server.join(" "), servers, "{line}");
        }
    }

    #[test]
    fn a_key_stands_in_the_place_of_a_name() {
        for (line, name, command) in [
            ("nxlock run --key lock.foo -- ls -l", "lock.foo", "ls -l"),
            ("nxlock run --key=lock.foo ls -l", "lock.foo", "ls -l"),
            ("nxlock --json run -n --key lock.foo grep -n x", "lock.foo", "grep -n x"),
            ("nxlock run deploy tool --key x", "deploy", "tool --key x"),
            ("nxlock run deploy -- --key=x", "deploy", "--key=x"),
            ("nxlock run --key lock.foo tool --key x", "lock.foo", "tool --key x"),
        ] {
            let words: Vec<_> = command.split(' ').map(OsString::from).collect();
            assert_eq!(run(line), (name.to_owned(), words), "{line}");
        }
        let Verb::Release(release) = read("nxlock release --key lock.foo 4123").unwrap().verb else { panic!() };
        assert_eq!(release.token.as_deref(), Some("4123"));
        let Verb::Renew(renew) = read("nxlock renew --ttl 1m --key lock.foo 4123").unwrap().verb else { panic!() };
        assert_eq!(renew.token.as_deref(), Some("4123"));
        assert!(read("nxlock status --key lock.foo").is_ok());
    }

    #[test]
    fn a_name_beside_a_key_is_refused() {
        for line in
            ["nxlock acquire --ttl 1m --key k job", "nxlock acquire job --ttl 1m --key k", "nxlock status --key k job"]
        {
            assert!(read(line).is_err(), "{line}");
        }
        for line in ["nxlock run deploy --key k true", "nxlock run --key k", "nxlock run --key x{}y true"] {
            let said = read(line).unwrap_err();
            assert!(said.contains("--key") || said.contains("COMMAND"), "{line}: {said}");
        }
    }
}
