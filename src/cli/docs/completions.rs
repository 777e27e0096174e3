//! The completion scripts: clap_complete's of the options, and what has them offer the names of locks.
//!
//! The binary tells whether a name is what is being typed, and which there are (`complete.rs`); each shell has its own way
//! to ask.

use clap::CommandFactory;
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
    else
        _nxlock "$@"
    fi
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
"#;

pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nxlock", &mut script);
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

/// With the IDs as what completes the options that take one, and the names of further locks.
fn of_fish(script: &str) -> String {
    let mut found = 0;
    let lines = script.lines().map(|line| {
        let is_id = line.contains("subcommand release\"") && (line.contains(" -l ask ") || line.contains(" -l break "));
        let is_name = line.contains(" -l also ") || line.contains(" -l also-shared ");
        if !is_id && !is_name {
            return format!("{line}\n");
        }
        found += 1;
        let no_files = if is_id { " -f" } else { "" };
        format!("{line}{no_files} -a '(__fish_nxlock_finds_names; and string join \\n $__fish_nxlock_names)'\n")
    });
    let script = lines.collect();
    assert_eq!(found, 6, "--ask and --break, and of run and acquire --also and --also-shared");
    script
}

/// With _nxlock_names as what completes NAME, each of several, and the IDs to ask and to break.
fn naming(script: &str) -> String {
    let mut found = 0;
    let lines = script.lines().map(|line| {
        let begins = ["':name -- ", "'*::names -- ", "'*--also=", "'*--also-shared="];
        let is_name = begins.iter().any(|begin| line.starts_with(begin));
        let is_id = line.starts_with('\'') && ["--ask=", "--break="].iter().any(|option| line.contains(option));
        match line.strip_suffix(if is_id { ":_default' \\" } else { ":' \\" }).filter(|_| is_name || is_id) {
            Some(spec) => {
                found += 1;
                format!("{spec}:_nxlock_names' \\\n")
            }
            None => format!("{line}\n"),
        }
    });
    let script = lines.collect();
    assert_eq!(found, 11, "run, acquire, their further locks, renew, release, its --ask and --break, and status");
    script
}
