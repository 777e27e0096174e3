//! Generates `completions/` and `man/` from the command line. `BLESS=1 cargo test docs` rewrites them.
//!
//! clap_mangen renders the options from `cli.rs`; `text.rs`, `prose.rs`, `places.rs`, `events.rs`, `keeper.rs`,
//! `old.rs`, `status.rs`, `faults.rs` and `recipes.rs` have the prose.

mod completions;
mod events;
mod faults;
mod keeper;
mod old;
mod places;
mod prose;
mod recipes;
mod roff;
mod status;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command as Process;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, text};
use prose::Section;

const SCRIPTS: [(Shell, &str); 3] = [
    (Shell::Bash, "completions/nxlock.bash"),
    (Shell::Zsh, "completions/_nxlock"),
    (Shell::Fish, "completions/nxlock.fish"),
];

/// A page's verb, if any; its sections after EXIT STATUS; the end of its `--help`.
const PAGES: [(Option<&str>, &[Section], &str); 7] = [
    (None, &prose::NXLOCK, text::AFTER_HELP),
    (Some("run"), &prose::RUN, text::RUN_HELP),
    (Some("acquire"), &prose::ACQUIRE, text::ACQUIRE_HELP),
    (Some("renew"), &prose::RENEW, text::RENEW_HELP),
    (Some("release"), &prose::RELEASE, text::RELEASE_HELP),
    (Some("status"), &prose::STATUS, text::STATUS_HELP),
    (Some("check"), &prose::CHECK, text::CHECK_HELP),
];

/// The pages of section 7: name, subject, sections.
const OVERVIEWS: [(&str, &str, &[Section]); 2] = [
    ("nxlock", "what its locks promise, and what becomes of that when something fails", &faults::NXLOCK_7),
    (
        "nxlock-recipes",
        "locks for cron, systemd, pipelines and containers, and coming from another lock",
        &recipes::RECIPES,
    ),
];

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
fn the_manual_pages_are_what_the_command_line_says() {
    for (verb, sections, help) in PAGES {
        let name = verb.map_or_else(|| "nxlock".to_owned(), |verb| format!("nxlock-{verb}"));
        agrees(&format!("man/{name}.1"), &page(&name, verb, sections, help));
    }
}

#[test]
fn the_pages_that_people_wrote_are_what_they_wrote() {
    let version = env!("CARGO_PKG_VERSION");
    for (name, about, sections) in OVERVIEWS {
        let mut text = format!(".TH {} 7 \"\" \"nxlock {version}\" \"nxlock manual\"\n", name.to_uppercase());
        text += &format!(".SH NAME\n{} \\- {about}\n", roff::escaped(name));
        for (heading, body) in sections {
            text += &format!(".SH {heading:?}\n{}", roff::prose(body));
        }
        text += &format!(".SH \"SEE ALSO\"\n{}", see_also(name, 7));
        agrees(&format!("man/{name}.7"), &roff::finished(&text));
    }
}

/// A new verb needs a page.
#[test]
fn every_verb_has_a_page() {
    let verbs: Vec<_> = Cli::command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let pages: Vec<_> = PAGES.iter().filter_map(|(verb, ..)| *verb).collect();
    assert_eq!(verbs, pages);
}

#[test]
fn what_help_ends_with_fits_on_eighty_columns() {
    for line in PAGES.iter().flat_map(|(.., help)| help.lines()) {
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
    assert!(committed == expected, "{path} is stale: run BLESS=1 cargo test docs");
}

fn page(name: &str, verb: Option<&str>, sections: &[Section], help: &str) -> String {
    let mut root = Cli::command();
    root.build();
    let command = match verb {
        Some(verb) => {
            let command = root.find_subcommand(verb).unwrap().clone();
            command.mut_arg("help", |help| help.hide(true)).mut_arg("version", |version| version.hide(true))
        }
        None => root.clone(),
    };
    let about = command.get_about().unwrap().to_string();
    let (exit_status, examples) = halves(help);
    let man = Man::new(command);
    // Without clap_mangen, which drops an empty date and so moves the next field into its place.
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(".TH {} 1 \"\" \"nxlock {version}\" \"nxlock manual\"\n", name.to_uppercase());
    text += &format!(".SH NAME\n{} \\- {}\n", roff::escaped(name), roff::escaped(&clause(&about)));
    text += &format!(".SH SYNOPSIS\n{}", synopsis(&root, verb));
    text += &roff::body(&rendered(|w| man.render_description_section(w)));
    text += &match verb {
        Some(_) => format!(".PP\n{}", roff::prose(prose::ELSEWHERE)),
        None => roff::body(&rendered(|w| man.render_subcommands_section(w))).replace(".SH Verbs", ".SH VERBS"),
    };
    text += &roff::subsections(&roff::body(&rendered(|w| man.render_options_section(w))));
    for (heading, body) in [("EXIT STATUS", exit_status.as_str())].iter().chain(sections) {
        text += &if heading.is_empty() { ".PP\n".to_owned() } else { format!(".SH {heading:?}\n") };
        text += &roff::prose(body);
    }
    if verb.is_some() {
        // JSON is the last section of each verb.
        text += &format!(".PP\n{}", roff::prose(prose::JSON_FAILED));
    }
    text += &format!(".SH EXAMPLES\n{}", roff::prose(&examples));
    text += &format!(".SH \"SEE ALSO\"\n{}", see_also(name, 1));
    roff::finished(&text)
}

fn rendered(section: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut bytes = Vec::new();
    section(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Returns the text of `--help` under `Exit status:` and under `Examples:`, unindented.
fn halves(help: &str) -> (String, String) {
    let (exit_status, examples) = help.split_once("\n\nExamples:\n").unwrap();
    let exit_status = exit_status.strip_prefix("Exit status:\n").unwrap();
    let flush = |text: &str| text.lines().map(|line| line.get(2..).unwrap_or_default()).collect::<Vec<_>>().join("\n");
    (flush(exit_status), flush(examples))
}

/// Turns a sentence into a clause.
fn clause(sentence: &str) -> String {
    let mut chars = sentence.trim_end_matches('.').chars();
    chars.next().unwrap().to_lowercase().chain(chars).collect()
}

/// Returns the usage of a verb, or of all verbs.
fn synopsis(root: &Command, verb: Option<&str>) -> String {
    let verbs = root.get_subcommands().filter(|command| verb.is_none_or(|verb| verb == command.get_name()));
    let usages = verbs.flat_map(|command| {
        let usage = command.get_overridden_usage().unwrap().to_string();
        usage.lines().map(|line| roff::usage(line.trim())).collect::<Vec<_>>()
    });
    usages.collect::<Vec<_>>().join(".br\n")
}

/// Returns references to all other pages. Of section 7, a verb's page has only those about it.
fn see_also(name: &str, section: u8) -> String {
    let verbs =
        PAGES.iter().map(|(verb, ..)| verb.map_or_else(|| "nxlock".to_owned(), |verb| format!("nxlock-{verb}")));
    let others = ["flock", "redis-cli", "timeout"].map(str::to_owned);
    let overviews = OVERVIEWS.iter().map(|(name, ..)| ((*name).to_owned(), 7));
    let overviews = overviews.filter(|_| section == 7 || name == "nxlock" || name == "nxlock-run");
    let all = verbs.chain(others).map(|page| (page, 1)).chain(overviews);
    let line = |(page, section): (String, u8)| format!(".BR {} ({section})", roff::escaped(&page));
    all.filter(|(page, of)| (page.as_str(), *of) != (name, section)).map(line).collect::<Vec<_>>().join(",\n") + "\n"
}

/// Checks the lists of exit statuses: each list has every number that its verb can end with, and no other.
mod exit_statuses {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::exit::Exit;
    use crate::lock::Lost;
    use crate::lock::{LockState, Prefix};
    use crate::report::Refused;
    use crate::report::{Busy, Checked, CheckedServer, Ending, Named, NotRun, NotYours, Ran, Released, Report, Wanted};
    use crate::store::{Finding, QueuePlace};

    fn lock() -> Named {
        Named::new(&"name".parse().unwrap(), &"lock:".parse::<Prefix>().unwrap())
    }

    fn ran(time_limit: bool, lost: Option<Lost>) -> Report {
        Report::Ran(Ran { lock: lock(), ending: Ending::Status(0), time_limit, lost, unreleased: None })
    }

    fn not_run(missing: bool) -> Report {
        let error = io::Error::other("");
        Report::NotRun(NotRun { lock: lock(), command: "x".into(), missing, error, given_back: true })
    }

    fn checked() -> Report {
        let findings = vec![Finding::warning("x", "", "")];
        Report::Checked(Checked { settings: Vec::new(), servers: vec![CheckedServer { url: None, findings }] })
    }

    /// Returns what a verb may report, beside its own failures.
    fn reports(verb: &str) -> Vec<Report> {
        let busy = || {
            let (state, place) = (LockState::free(None), QueuePlace { position: 0, length: 0 });
            let refused = Refused { state, place, waited: Duration::ZERO, nested: false };
            Report::Busy(Busy { lock: lock(), refused, options: String::new(), conflict_exit_code: None })
        };
        let not_yours =
            || Report::NotYours(NotYours { lock: lock(), wanted: Wanted::Renew, state: LockState::free(None) });
        match verb {
            "run" => {
                let lost = ran(true, Some(Lost::Unconfirmed(None)));
                vec![busy(), lost, ran(true, None), not_run(true), not_run(false)]
            }
            "acquire" => vec![busy()],
            "check" => vec![checked()],
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
        for (verb, _, help) in PAGES {
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
                "status" => BTreeSet::from(["0".to_owned(), "1".to_owned()]),
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
