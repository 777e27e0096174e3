//! Collects `--server` options from both sides of the verb: clap alone would take those after the verb and drop the
//! others, and fewer servers than the user named would keep the lock.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

const SERVER: &str = "server";

/// Returns all servers typed, if there are some on each side of the verb.
pub fn on_both_sides(words: &[OsString], definition: &dyn Fn() -> Command) -> Option<Vec<String>> {
    // Parsing the line again takes as long as everything else before the request for the lock.
    if words.iter().filter(|word| may_name_one(word.as_encoded_bytes())).count() < 2 {
        return None;
    }
    let command = definition().mut_arg(SERVER, |server| server.global(false));
    let server = command.get_arguments().find(|arg| arg.get_id() == SERVER)?.clone();
    let command = command.mut_subcommands(|verb| verb.arg(server.clone()));
    let matches = command.try_get_matches_from(words).ok()?;
    let (_, verb) = matches.subcommand()?;
    let (before, behind) = (typed(&matches)?, typed(verb)?);
    Some([before, behind].concat())
}

/// Returns whether a word may be `--server`, or have an `s` among short options. A command's own word that looks like
/// it only costs a second parse.
fn may_name_one(word: &[u8]) -> bool {
    word.starts_with(b"--server") || (word.starts_with(b"-") && !word.starts_with(b"--") && word.contains(&b's'))
}

fn typed(matches: &ArgMatches) -> Option<Vec<String>> {
    let typed = matches.value_source(SERVER)? == ValueSource::CommandLine;
    typed.then(|| matches.get_many(SERVER).unwrap_or_default().cloned().collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn servers(line: &str) -> Option<Vec<String>> {
        on_both_sides(&line.split(' ').map(Into::into).collect::<Vec<_>>(), &Cli::command)
    }

    #[test]
    fn servers_on_both_sides_of_the_verb_are_all_used() {
        let all = Some(["a", "b", "c"].map(str::to_owned).to_vec());
        assert_eq!(servers("nxlock -s a -s b status -s c"), all);
        assert_eq!(servers("nxlock -s a run --server=b -sc name -- x -s d"), all);
        assert_eq!(servers("nxlock -qs a run -ns b -s c name true"), all);
        assert_eq!(servers("nxlock run name -s a true -s b"), None);
        assert_eq!(servers("nxlock -s a -s b run name -n true -s c"), None);
    }
}
