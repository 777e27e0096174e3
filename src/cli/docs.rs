//! Generates `completions/` and `man/` from the command line. `BLESS=1 cargo test --bin nxlock` rewrites them.
//!
//! A manual page is written in `man/*.in`, in man(7), with markers for what the command line says: `@SYNOPSIS@`,
//! `@DESCRIPTION@`, `@VERBS@`, `@OPTIONS@`, `@EXIT_STATUS@`, `@EXAMPLES@`, and `@VERSION@`.

mod completions;
mod roff;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command as Process;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use super::{Cli, text};

const SCRIPTS: [(Shell, &str); 3] = [
    (Shell::Bash, "completions/nxlock.bash"),
    (Shell::Zsh, "completions/_nxlock"),
    (Shell::Fish, "completions/nxlock.fish"),
];

/// A page's verb, if any, and the end of its `--help`.
const PAGES: [(Option<&str>, &str); 7] = [
    (None, text::AFTER_HELP),
    (Some("run"), text::RUN_HELP),
    (Some("acquire"), text::ACQUIRE_HELP),
    (Some("renew"), text::RENEW_HELP),
    (Some("release"), text::RELEASE_HELP),
    (Some("status"), text::STATUS_HELP),
    (Some("check"), text::CHECK_HELP),
];

/// The pages that the command line has no part in.
const OVERVIEWS: [&str; 5] =
    ["nxlock.7", "nxlock-figures.7", "nxlock-protocol.7", "nxlock-recipes.7", "nxlock-setnx.7"];

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn the_completions_are_what_the_command_line_says_and_shells_load_them() {
    for (shell, path) in SCRIPTS {
        agrees(path, &completions::script(shell));
    }
    shells_load_them_and_say_nothing();
}

#[test]
fn the_manual_pages_say_what_the_command_line_says() {
    for (verb, help) in PAGES {
        let name = verb.map_or_else(|| "nxlock".to_owned(), |verb| format!("nxlock-{verb}"));
        let page = format!("{name}.1");
        agrees(&format!("man/{page}"), &filled(&page, &markers(verb, help)));
    }
    for page in OVERVIEWS {
        agrees(&format!("man/{page}"), &filled(page, &[]));
    }
}

/// A new verb needs a page.
#[test]
fn every_verb_has_a_page() {
    let verbs: Vec<_> = Cli::command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let pages: Vec<_> = PAGES.iter().filter_map(|(verb, _)| *verb).collect();
    assert_eq!(verbs, pages);
}

#[test]
fn what_help_ends_with_fits_on_eighty_columns() {
    for line in PAGES.iter().flat_map(|(_, help)| help.lines()) {
        assert!(line.chars().count() <= 78, "{line}");
    }
}

/// bash always; zsh and fish where they are installed, which `tests/run` ensures.
fn shells_load_them_and_say_nothing() {
    let bash = "source completions/nxlock.bash; COMP_WORDS=(nxlock run --) COMP_CWORD=2; \
                _nxlock nxlock -- run; echo \"${COMPREPLY[@]}\"";
    let zsh = "fpath=($PWD/completions $fpath); autoload -Uz compinit; compinit -D -u; \
               autoload +X _nxlock; echo $_comps[nxlock]; functions _nxlock";
    let fish = "source completions/nxlock.fish; complete -C 'nxlock run --'";
    for (shell, args) in [
        ("bash", ["--norc", "--noprofile", "-c", bash].as_slice()),
        ("zsh", &["-f", "-c", zsh]),
        ("fish", &["--no-config", "-c", fish]),
    ] {
        let output = match Process::new(shell).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && shell != "bash" => continue,
            output => output.unwrap(),
        };
        let offered = String::from_utf8_lossy(&output.stdout);
        assert!(output.stderr.is_empty(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(offered.contains("--time-limit"), "{shell}: {offered}");
    }
}

pub fn agrees(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let committed = fs::read_to_string(&file).unwrap_or_default();
    if committed != expected && std::env::var_os("BLESS").is_some_and(|bless| bless == "1") {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        return fs::write(&file, expected).unwrap();
    }
    assert!(committed == expected, "{path} is stale: run BLESS=1 cargo test --bin nxlock");
}

/// Returns a page's template with its markers replaced.
fn filled(page: &str, markers: &[(&str, String)]) -> String {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("man/{page}.in"));
    let mut text = fs::read_to_string(template).unwrap().replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    for (marker, value) in markers {
        let line = format!("\n@{marker}@\n");
        assert_eq!(text.matches(&line).count(), 1, "{page}.in has one line @{marker}@");
        text = text.replace(&line, &format!("\n{value}"));
    }
    text
}

/// Returns what the command line says of a verb, or of all.
fn markers(verb: Option<&str>, help: &str) -> Vec<(&'static str, String)> {
    let mut root = Cli::command();
    root.build();
    let command = verb.map_or(&root, |verb| root.find_subcommand(verb).unwrap());
    // nxlock(1) describes the options of every verb, once.
    let is_described =
        |arg: &&Arg| verb.is_some() && root.get_arguments().any(|global| global.get_id() == arg.get_id());
    let options: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_described(arg)).collect();
    let (exit_status, examples) = halves(help);
    let mut markers = vec![
        ("SYNOPSIS", synopsis(&root, verb)),
        ("DESCRIPTION", roff::description(command)),
        ("OPTIONS", roff::options(&options)),
        ("EXIT_STATUS", roff::prose(&exit_status)),
        ("EXAMPLES", roff::prose(&examples)),
    ];
    if verb.is_none() {
        markers.push(("VERBS", roff::verbs(&root)));
    }
    markers
}

/// Returns the text of `--help` under `Exit status:` and under `Examples:`, unindented.
fn halves(help: &str) -> (String, String) {
    let (exit_status, examples) = help.split_once("\n\nExamples:\n").unwrap();
    let exit_status = exit_status.strip_prefix("Exit status:\n").unwrap();
    let flush = |text: &str| text.lines().map(|line| line.get(2..).unwrap_or_default()).collect::<Vec<_>>().join("\n");
    (flush(exit_status), flush(examples))
}

/// Returns the usage of a verb, or of all verbs.
fn synopsis(root: &Command, verb: Option<&str>) -> String {
    let verbs = root.get_subcommands().filter(|command| verb.is_none_or(|verb| verb == command.get_name()));
    let usages = verbs.map(|command| command.get_overridden_usage().unwrap().to_string());
    roff::usage(&usages.collect::<Vec<_>>().join("\n"))
}

/// Checks the lists of exit statuses: each list has every number that its verb can end with, and no other.
mod exit_statuses {
    use std::collections::BTreeSet;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::exit::Exit;
    use crate::lock::{LockState, Lost, Owner, Prefix, Sharing, Token};
    use crate::report::{
        Answer, Asked, Busy, Checked, CheckedServer, CommandOptions, Ending, Named, NotRun, NotYours, Ran, Refusal,
        Refused, Released, Report, Wanted,
    };
    use crate::store::{Finding, QueuePlace};

    fn lock() -> Named {
        Named::new(&"name".parse().unwrap(), &"lock:".parse::<Prefix>().unwrap())
    }

    fn ran(time_limit: bool, lost: Option<Lost>) -> Report {
        Report::Ran(Ran { lock: lock(), ending: Ending::Status(0), time_limit, lost, asked_by: None, unreleased: None })
    }

    fn not_run(missing: bool) -> Report {
        let error = io::Error::other("");
        let before_dashes = false;
        Report::NotRun(NotRun { lock: lock(), command: "x".into(), before_dashes, missing, error, given_back: true })
    }

    fn checked() -> Report {
        let findings = vec![Finding::warning("x", "", "")];
        Report::Checked(Checked { settings: Vec::new(), servers: vec![CheckedServer { url: None, findings }] })
    }

    fn refuses() -> Report {
        let (owner, now) = (Owner::this_process(), SystemTime::UNIX_EPOCH);
        let token = Token::mint(&owner, None, now).unwrap();
        let state = LockState::of_value(token.as_str().as_bytes(), None, None, now);
        let (holder, waited) = (state.holder.unwrap(), Duration::ZERO);
        Report::Asked(Asked { lock: lock(), holder, answer: Answer::Refuses, waited })
    }

    /// Returns what a verb may report, beside its own failures.
    fn reports(verb: &str) -> Vec<Report> {
        let busy = || {
            let (state, place) = (LockState::free(None), QueuePlace { position: 0, length: 0 });
            let (waited, sharing) = (Duration::ZERO, Sharing::Exclusive);
            let refused = Refused { state, place, waited, sharing, why: Refusal::Held };
            Report::Busy(Busy { lock: lock(), refused, options: CommandOptions::default(), conflict_exit_code: None })
        };
        let not_yours = || {
            let state = LockState::free(None);
            Report::NotYours(NotYours { lock: lock(), wanted: Wanted::Renew, state, ended: None })
        };
        match verb {
            "run" => {
                let lost = ran(true, Some(Lost::Unconfirmed(None)));
                vec![busy(), lost, ran(true, None), not_run(true), not_run(false)]
            }
            "acquire" => vec![busy()],
            "check" => vec![checked()],
            "release" => vec![not_yours(), refuses()],
            _ => vec![not_yours()],
        }
    }

    fn listed(help: &str) -> BTreeSet<String> {
        let (list, _) = halves(help);
        let terms = list.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_once("  "));
        let numbers = terms.flat_map(|(term, _)| term.split(", ").map(str::to_owned));
        numbers.filter(|number| number != "other").collect()
    }

    #[test]
    fn each_number_that_a_verb_can_end_with_is_in_its_list() {
        let mut all = BTreeSet::from(["0".to_owned(), "1".to_owned()]);
        for (verb, help) in PAGES {
            let Some(verb) = verb else { continue };
            let kinds = [
                ErrorKind::Unreachable,
                ErrorKind::Unanswered,
                ErrorKind::Unavailable,
                ErrorKind::Untrusted,
                ErrorKind::Refused,
                ErrorKind::Misconfigured,
                ErrorKind::Usage,
                ErrorKind::Internal,
            ];
            let failed = kinds.map(|kind| Report::Failed(Error { kind, ..Error::internal("", &"") }));
            let mut numbers: BTreeSet<_> = match verb {
                // Its 0 is the command's.
                "run" => BTreeSet::new(),
                // The first two of what is held and what is free, all but the second of alarms.
                "status" => ["0", "1", "2", "3"].map(str::to_owned).into(),
                _ => BTreeSet::from(["0".to_owned()]),
            };
            let reports = failed.into_iter().chain(if verb == "status" { Vec::new() } else { reports(verb) });
            numbers.extend(reports.map(|report| match Exit::from(&report) {
                Exit::Status(status) => status.to_string(),
                Exit::Signal(signal) => panic!("{signal}"),
            }));
            assert_eq!(listed(help), numbers, "{verb}");
            all.extend(numbers);
        }
        assert_eq!(listed(text::AFTER_HELP), all);
        assert_eq!(Exit::from(&Report::Released(Released { lock: lock(), broken: false })), Exit::Status(0));
    }
}
