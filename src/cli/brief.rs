//! The definition that `-h` shows: one screen of 80 columns, with the options that are used most. `--help` and the
//! manual show everything. Which options are left out, each option's definition says (`hide_short_help`).

use clap::{Arg, ArgAction, Command};

/// Variables that `-h` shows, of those that set options: without them, most users have to give the option.
const SHOWN: [&str; 2] = ["NXLOCK_SERVER", "NXLOCK_TOKEN"];

/// Returns a definition with brief help.
pub fn brief(command: Command) -> Command {
    let command =
        command.mut_args(terse).after_help("Recipes: man nxlock-recipes. All options and examples: nxlock --help");
    let of_every_verb: Vec<Arg> = command.get_arguments().map(|arg| arg.clone().hide_short_help(true)).collect();
    without_help_and_version(command).mut_subcommands(|verb| {
        let name = verb.get_name().to_owned();
        without_help_and_version(verb.mut_args(terse).args(&of_every_verb))
            .after_help(format!("All options and examples: nxlock {name} --help. Of every verb: nxlock -h"))
    })
}

/// Accepts -h and -V, and does not list them: whoever reads the screen has typed -h, and its last line names --help.
fn without_help_and_version(command: Command) -> Command {
    command
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::Help).hide_short_help(true))
        .arg(Arg::new("version").short('V').long("version").action(ArgAction::Version).hide_short_help(true))
}

fn terse(arg: Arg) -> Arg {
    let shows_variable = arg.get_env().is_none_or(|name| SHOWN.iter().any(|shown| name == *shown));
    let takes_value = arg.get_action().takes_values();
    arg.hide_env(!shows_variable).hide_possible_values(takes_value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Returns what `-h` shows, of nxlock and of each verb.
    fn screens() -> Vec<String> {
        let shown = |line: &[&str]| {
            let shown = brief(Cli::command()).term_width(80).try_get_matches_from(line).unwrap_err();
            shown.render().to_string()
        };
        let command = Cli::command();
        let of_verbs = command.get_subcommands().map(|verb| shown(&["nxlock", verb.get_name(), "-h"]));
        std::iter::once(shown(&["nxlock", "-h"])).chain(of_verbs).collect()
    }

    #[test]
    fn the_first_fits_on_a_screen_of_24_lines_with_a_prompt_and_each_on_one_of_31() {
        for (at, screen) in screens().iter().enumerate() {
            let most = if at == 0 { 23 } else { 30 };
            assert!(screen.lines().count() <= most, "{} lines:\n{screen}", screen.lines().count());
            assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
            // clap wraps a longer one.
            let last = screen.lines().last().unwrap_or_default();
            assert!(last.starts_with("All options") || last.starts_with("Recipes: "), "{screen}");
        }
    }

    #[test]
    fn an_option_takes_one_line() {
        for screen in screens() {
            let continues = |line: &&str| line.starts_with("          ");
            assert_eq!(screen.lines().find(continues), None, "{screen}");
        }
    }
}
