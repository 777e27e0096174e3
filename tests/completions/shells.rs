//! Completion in real shells, at a terminal: the test types a line with Tab in it, and checks the arguments that the
//! shell then passes to nxlock.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{clear, with_locks};
use crate::support::{Nxlock, Redis, Terminal, eventually, text_of, write_program};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/completions");

/// A shell that has loaded its completion script, and a function in place of nxlock that logs its arguments.
struct Shell {
    directory: TempDir,
    terminal: Terminal,
}

/// Returns `None` if the shell is not installed, and reports it.
#[expect(clippy::print_stderr, reason = "who runs the tests is to know what they did not")]
fn start(shell: &str, server: Option<&Redis>) -> Option<Shell> {
    let mut look = Command::new(shell);
    if look.arg("-c").arg("true").stdin(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        assert_ne!(shell, "bash", "bash is always there");
        eprintln!("skipped: {shell} is not installed, and its completions are not tested");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().to_owned();
    let noted = home.join("noted");
    let noted = noted.display();
    let words: Vec<String> = match shell {
        "bash" => {
            let script = format!(
                "PS1='ready> '; unset HISTFILE; bind 'set bell-style none'\n\
                 nxlock() {{ printf '%s\\n' \"$@\" end >> {noted}; }}\nsource {SCRIPTS}/nxlock.bash\n"
            );
            vec!["--noprofile".into(), "--rcfile".into(), file(&home, "rc", &script), "-i".into()]
        }
        "zsh" => {
            let script = format!(
                "PS1='ready> '; unsetopt beep\nfpath=({SCRIPTS} $fpath); autoload -Uz compinit; compinit -D -u\n\
                 nxlock() {{ printf '%s\\n' \"$@\" end >> {noted}; }}\n"
            );
            file(&home, ".zshrc", &script);
            vec!["-d".into(), "-i".into()]
        }
        "fish" => {
            let script = format!(
                "function fish_prompt; echo 'ready> '; end; set -g fish_greeting\n\
                 function nxlock; printf '%s\\n' $argv end >> {noted}; end\nsource {SCRIPTS}/nxlock.fish\n"
            );
            let script = file(&home, "init.fish", &script);
            vec!["--no-config".into(), "-i".into(), "-C".into(), format!("source {script}")]
        }
        _ => unreachable!("{shell}"),
    };
    let call = Nxlock::by(shell, words).env("HOME", &home).env("ZDOTDIR", &home).in_directory(&home);
    let call = server.into_iter().fold(call, |call, redis| call.env("NXLOCK_SERVER", redis.url()));
    let mut terminal = Terminal::start(call);
    terminal.resize(200, 50);
    terminal.shows("ready>");
    Some(Shell { directory, terminal })
}

fn file(home: &Path, name: &str, text: &str) -> String {
    fs::write(home.join(name), text).unwrap();
    home.join(name).display().to_string()
}

impl Shell {
    fn noted(&self) -> PathBuf {
        self.directory.path().join("noted")
    }

    /// Types a call, and returns its arguments.
    #[track_caller]
    fn words(&mut self, typed: &str) -> Vec<String> {
        let _ = fs::remove_file(self.noted());
        self.terminal.types(&format!("{typed}\r"));
        let noted = self.noted();
        eventually(&format!("it is called: {typed:?}\n{}", self.terminal.screen()), || {
            text_of(&noted).ends_with("end\n")
        });
        text_of(&noted).trim_end_matches("end\n").lines().map(str::to_owned).collect()
    }

    /// Asserts that the typed line becomes these arguments. Retries, since a first try may time out on a busy machine.
    #[track_caller]
    fn completes(&mut self, typed: &str, words: &[&str]) {
        eventually(&format!("{typed:?} becomes {words:?}"), || self.words(typed) == words);
    }
}

const NAMES: [&str; 7] =
    ["two words", "it's $HOME", "$(touch x)", "a:b:c", "naïve 日本", "wild * [a] ~ \"q\" \\ & ; !", "zqx lock"];

fn names_are_completed(shell: &str) {
    let redis = with_locks(&NAMES);
    redis.put("other:thing", b"somebody", Some(600_000));
    let Some(mut shell) = start(shell, Some(&redis)) else {
        redis.delete("other:thing");
        return clear(&redis);
    };
    shell.completes("nxlock run tw\t", &["run", "two words"]);
    shell.completes("nxlock status it\t", &["status", "it's $HOME"]);
    shell.completes("nxlock release \\$\t", &["release", "$(touch x)"]);
    shell.completes("nxlock renew a:b\t", &["renew", "a:b:c"]);
    shell.completes("nxlock acquire --ttl 1m na\t", &["acquire", "--ttl", "1m", "naïve 日本"]);
    shell.completes("nxlock release wi\t", &["release", NAMES[5]]);
    shell.completes("nxlock run 'two w\t", &["run", "two words"]);
    shell.completes("nxlock run \"it\t", &["run", "it's $HOME"]);
    shell.completes("nxlock --prefix other: run th\t", &["--prefix", "other:", "run", "thing"]);
    shell.completes("nxlock status a:b:c tw\t", &["status", "a:b:c", "two words"]);
    shell.completes("nxlock run --no-que\t", &["run", "--no-queue"]);
    // The command is no lock.
    assert_eq!(shell.words("nxlock run job zq\t"), ["run", "job", "zq"]);
    shell.completes(
        "nxlock acquire job --while-pid 1 --lost-signal WIN\t",
        &["acquire", "job", "--while-pid", "1", "--lost-signal", "WINCH"],
    );
    assert!(!shell.directory.path().join("x").exists(), "nothing was expanded");
    redis.delete("other:thing");
    clear(&redis);
}

/// Anybody who may write keys chooses names, and the shell would run what it inserts unquoted.
const HOSTILE: [&str; 6] = ["$(touch x)", "&& touch x", "=touch", "`touch x`", "touch;touch x", "~root"];

/// The names have no common prefix, and a menu inserts each one whole. `more` is the number of Tabs before the first
/// name; `choose` accepts the name shown.
fn no_name_is_run_that_is_put_in(shell_name: &str, menu: &str, more: usize, choose: &str) {
    let redis = with_locks(&HOSTILE);
    let Some(mut shell) = start(shell_name, Some(&redis)) else { return clear(&redis) };
    shell.completes("nxlock run \\`\t", &["run", "`touch x`"]);
    shell.terminal.types(menu);
    let mut chosen = Vec::new();
    // fish cannot quote a tilde in a candidate, so this name is not offered.
    let offered = if shell_name == "fish" { &HOSTILE[..5] } else { &HOSTILE };
    for nth in 1..=offered.len() {
        let typed = format!("nxlock run {}{choose}", "\t".repeat(nth + more));
        // On a busy machine a first try may time out, and nothing is inserted: by the first Tabs, which makes it a name
        // before this one, or by any.
        eventually("a name is put in", || match shell.words(&typed).as_slice() {
            [verb] if verb == "run" => false,
            [_, name] if chosen.contains(name) => false,
            words => {
                assert_eq!(words.len(), 2, "a name is one word: {words:?}\n{}", shell.terminal.screen());
                assert!(HOSTILE.contains(&words[1].as_str()), "it is a name: {words:?}\n{}", shell.terminal.screen());
                chosen.push(words[1].clone());
                true
            }
        });
    }
    chosen.sort_unstable();
    assert_eq!(chosen, offered, "each was put in");
    assert!(!shell.directory.path().join("x").exists(), "nothing was run");
    clear(&redis);
}

#[test]
fn no_name_is_run_that_bash_puts_in() {
    no_name_is_run_that_is_put_in("bash", "bind TAB:menu-complete\r", 0, "");
}

#[test]
fn no_name_is_put_into_quotes_that_are_not_read() {
    // In these quotes a backslash keeps a quote from being the closing one.
    let hostile = r"$\'; touch x; #";
    let redis = with_locks(&[hostile]);
    let Some(mut shell) = start("bash", Some(&redis)) else { return clear(&redis) };
    shell.completes("nxlock run \\$\\\\\t", &["run", hostile]);
    for typed in ["$'\t'", "$'$\t'", "$\"\t\"", "a $'b\\'c' \t"] {
        is_not_put_in(&mut shell, typed);
    }
    redis.delete(&format!("lock:{hostile}"));
    redis.put("lock:$(echo x; touch x; #", b"somebody", Some(600_000));
    shell.completes("nxlock run \\$\t", &["run", "$(echo x; touch x; #"]);
    is_not_put_in(&mut shell, "\"$(echo \"x\t\")\"");
    clear(&redis);
}

/// Asserts that the name, which is a command, was neither inserted nor run.
#[track_caller]
fn is_not_put_in(shell: &mut Shell, typed: &str) {
    let words = shell.words(&format!("nxlock run {typed}"));
    let screen = shell.terminal.screen();
    assert!(!words.concat().contains("touch"), "{typed:?} became {words:?}\n{screen}");
    assert!(!shell.directory.path().join("x").exists(), "{typed:?}: it was run\n{screen}");
}

#[test]
fn bash_closes_the_quotes_around_a_name_that_ends_in_one() {
    let names = ["say \"hi\"", "the dogs'", "wow!"];
    let redis = with_locks(&names);
    let Some(mut shell) = start("bash", Some(&redis)) else { return clear(&redis) };
    for (nth, beginning) in ["sa", "th", "wo"].into_iter().enumerate() {
        for quote in ["", "'", "\""] {
            shell.completes(&format!("nxlock run {quote}{beginning}\t"), &["run", names[nth]]);
        }
    }
    clear(&redis);
}

#[test]
fn no_name_is_run_that_zsh_puts_in() {
    no_name_is_run_that_is_put_in("zsh", "bindkey '^I' menu-complete\r", 0, "");
}

#[test]
fn no_name_is_run_that_fish_puts_in() {
    // The first Tab opens the menu.
    no_name_is_run_that_is_put_in("fish", "", 1, "\r");
}

/// The shell's own completion: a program of PATH in the place of the command, and files for its arguments.
fn the_command_is_completed(shell: &str) {
    let Some(mut shell) = start(shell, None) else { return };
    write_program(&shell.directory.path().join("gruezi-mitenand"), "#!/bin/sh\n");
    fs::write(shell.directory.path().join("somefile"), "").unwrap();
    let path = format!("PATH={}:$PATH", shell.directory.path().display());
    shell.terminal.types(&format!("export {path}\r"));
    shell.completes("nxlock run job -- gruez\t", &["run", "job", "--", "gruezi-mitenand"]);
    shell.completes("nxlock run job --ttl 1m gruez\t", &["run", "job", "--ttl", "1m", "gruezi-mitenand"]);
    shell.completes("nxlock run job -- cat somef\t", &["run", "job", "--", "cat", "somefile"]);
    // What is no file has none offered.
    for option in ["--ttl", "-s", "--reason"] {
        assert_eq!(shell.words(&format!("nxlock run {option} somef\t")), ["run", option, "somef"]);
    }
    assert_eq!(shell.words("nxlock status --max-age somef\t"), ["status", "--max-age", "somef"]);
}

fn without_a_server_nothing_is_said(shell: &str) {
    let Some(mut shell) = start(shell, None) else { return };
    assert_eq!(shell.words("nxlock run tw\t"), ["run", "tw"]);
    let screen = shell.terminal.screen();
    assert!(!screen.contains("nxlock:") && !screen.contains("no server"), "{screen}");
}

#[test]
fn bash_completes_names() {
    names_are_completed("bash");
    the_command_is_completed("bash");
    without_a_server_nothing_is_said("bash");
}

#[test]
fn zsh_completes_names() {
    names_are_completed("zsh");
    the_command_is_completed("zsh");
    without_a_server_nothing_is_said("zsh");
}

#[test]
fn fish_completes_names() {
    names_are_completed("fish");
    the_command_is_completed("fish");
    without_a_server_nothing_is_said("fish");
}
