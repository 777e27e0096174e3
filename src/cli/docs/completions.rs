//! The completion scripts: clap_complete's of the options, and what has them offer the names of locks.
//!
//! The binary tells whether a name is what is being typed, and which there are (`complete.rs`); each shell has its own way
//! to ask.

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;

use super::Cli;

/// Behind clap_complete's own: names in the place of what it offers, where there are some.
const BASH: &str = r#"
_nxlock_or_names() {
    local names
    names=$(command "$1" complete-names --bash "$2" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null </dev/null)
    if [[ -n ${names} ]]; then
        mapfile -t COMPREPLY <<< "${names}"
        compopt -o nospace
        return
    fi
    # How many words of the command there are: bash completes the first, and files for the others.
    case $(command "$1" complete-names --command --bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null </dev/null) in
        '') _nxlock "$@" ;;
        1) mapfile -t COMPREPLY < <(compgen -c -- "$2" | sort -u) ;;
        *) COMPREPLY=() ;;
    esac
}
"#;

/// Where clap_complete's registration begins: older ones of bash lack an option of it.
const OPTIONS: &str = "\nif [[ \"${BASH_VERSINFO[0]}\" -eq 4";

/// The words as they are before _arguments takes some away.
const ZSH_BEGIN: &str = r#"
    local -a nxlock_words
    nxlock_words=("${(@)words[1,CURRENT-1]}" "${PREFIX}")
"#;

const ZSH: &str = r#"
(( $+functions[_nxlock_names] )) ||
_nxlock_names() {
    local -a names
    local expl
    names=("${(@f)$(command ${(Q)nxlock_words[1]} complete-names "${(@Q)nxlock_words}" 2>/dev/null </dev/null)}")
    names=("${(@)names:#}")
    _wanted locks expl 'lock' compadd -a names
}
"#;

/// fish quotes what it puts in, but for what it would itself expand at the beginning of a word: that is not offered.
const FISH: &str = r#"
function __fish_nxlock_finds_names
    set -l words (commandline -opc)
    command -q $words[1]
    or return
    set -l word (commandline -ct | string unescape)
    set -g __fish_nxlock_names (command $words[1] complete-names $words "$word" 2>/dev/null </dev/null | string match -rv '^(~|%self)')
    set -q __fish_nxlock_names[1]
end

complete -c nxlock -n "__fish_nxlock_using_subcommand run acquire renew release status; and __fish_nxlock_finds_names" -f -a '$__fish_nxlock_names'

function __fish_nxlock_finds_command
    set -l words (commandline -opc)
    command -q $words[1]
    or return
    set -l word (commandline -ct | string unescape)
    set -l count (command $words[1] complete-names --command $words "$word" 2>/dev/null </dev/null)
    test -n "$count"
    or return
    set -l before
    test $count -gt 1
    and set before (string escape -- $words[(math 1 - $count)..-1])
    set -g __fish_nxlock_command (string join ' ' -- $before (commandline -ct))
end

complete -c nxlock -n "__fish_nxlock_using_subcommand run; and __fish_nxlock_finds_command" -f -a '(complete -C "$__fish_nxlock_command")'
"#;

pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_files(Cli::command()), "nxlock", &mut script);
    let script = String::from_utf8(script).unwrap();
    match shell {
        Shell::Bash => {
            let (functions, registered) = script.split_once(OPTIONS).unwrap();
            let ours = registered.replace("complete -F _nxlock ", "complete -F _nxlock_or_names ");
            assert_ne!(registered, ours);
            format!("{functions}{BASH}{OPTIONS}{ours}")
        }
        Shell::Zsh => {
            let (start, rest) = script.split_once("    local ret=1\n").unwrap();
            let rest = naming(rest);
            let (functions, begin) = rest.split_once("\n(( $+functions[_nxlock_commands] ))").unwrap();
            format!(
                "{start}    local ret=1\n{ZSH_BEGIN}{functions}\n{}\n(( $+functions[_nxlock_commands] )){begin}",
                ZSH.trim()
            )
        }
        Shell::Fish => of_fish(&script) + FISH,
        _ => unreachable!("{shell} has no script"),
    }
}

/// With nothing as what completes a value that is not said to be a file: shells offer files for it otherwise.
fn without_files(command: Command) -> Command {
    let other = |arg: Arg| match (arg.get_action().takes_values(), arg.get_value_hint()) {
        (true, ValueHint::Unknown) => arg.value_hint(ValueHint::Other),
        _ => arg,
    };
    command.mut_args(other).mut_subcommands(|verb| verb.mut_args(other))
}

/// With the IDs as what completes the options that take one, signals, and the names of further locks.
fn of_fish(script: &str) -> String {
    let mut found = 0;
    let lines = script.lines().map(|line| {
        let is_id = line.contains("subcommand release\"") && (line.contains(" -l ask ") || line.contains(" -l break "));
        let others = [" -l also ", " -l also-shared ", " -l lost-signal "];
        if !is_id && !others.iter().any(|option| line.contains(option)) {
            return format!("{line}\n");
        }
        found += 1;
        format!("{line} -a '(__fish_nxlock_finds_names; and string join \\n $__fish_nxlock_names)'\n")
    });
    let script = lines.collect();
    assert_eq!(found, 7, "--ask and --break, --lost-signal, and of run and acquire --also and --also-shared");
    script
}

/// With _nxlock_names as what completes NAME, each of several, signals, and the IDs to ask and to break; and with the
/// command's own completion after NAME.
fn naming(script: &str) -> String {
    let mut found = 0;
    let lines = script.lines().map(|line| {
        let begins = ["':name -- ", "'*::names -- ", "'*--also=", "'*--also-shared=", "'--lost-signal="];
        let is_name = begins.iter().any(|begin| line.starts_with(begin));
        let is_id = line.starts_with('\'') && ["--ask=", "--break="].iter().any(|option| line.contains(option));
        let name = line.strip_suffix(":' \\").filter(|_| is_name || is_id).map(|spec| (spec, "_nxlock_names"));
        let command = line.strip_suffix(":_cmdambivalent' \\").map(|spec| (spec, "_normal"));
        match name.or(command) {
            Some((spec, by)) => {
                found += 1;
                format!("{spec}:{by}' \\\n")
            }
            None => format!("{line}\n"),
        }
    });
    let script = lines.collect();
    assert_eq!(
        found, 13,
        "names: run, acquire, their further locks, renew, release, status; --ask, --break, --lost-signal; the command"
    );
    script
}
