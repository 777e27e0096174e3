//! The generated parts of a manual page, from clap's definition of the command line and the prose of `text.rs`.

use clap::{Arg, Command};
use roff::{Inline, Roff, bold, italic, roman};

/// Returns the description of a verb, or of the program.
pub fn description(command: &Command) -> String {
    let text = command.get_long_about().or_else(|| command.get_about()).unwrap().to_string();
    let mut page = Roff::new();
    paragraphs(&mut page, &text, "PP");
    finished(&page)
}

/// Returns the options, those without a heading first; all under one in the page of the program, which has no others.
pub fn options(options: &[&Arg]) -> String {
    let mut headings: Vec<Option<&str>> = vec![None];
    for option in options {
        if !headings.contains(&option.get_help_heading()) {
            headings.push(option.get_help_heading());
        }
    }
    let mut page = Roff::new();
    for heading in headings {
        if let Some(heading) = heading {
            page.control("SS", [heading]);
        }
        let under = |option: &&&Arg| option.get_help_heading() == heading;
        let (positionals, named): (Vec<_>, Vec<_>) = options.iter().filter(under).partition(|arg| arg.is_positional());
        named.into_iter().chain(positionals).for_each(|arg| self::option(&mut page, arg));
    }
    finished(&page)
}

fn option(page: &mut Roff, option: &Arg) {
    page.control("TP", []).text(tag(option));
    let text = option.get_long_help().or_else(|| option.get_help()).unwrap().to_string();
    // clap has dropped the full stop of a text that is one paragraph.
    let is_cut = text.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '`' | ')'));
    paragraphs(page, &(text + if is_cut { "." } else { "" }), "sp");
    let values: Vec<_> = option.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
    if !values.is_empty() && !option.is_hide_possible_values_set() && option.get_action().takes_values() {
        page.control("sp", []).text([italic("Possible values:")]).control("RS", ["7"]);
        for value in values {
            let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
            page.control("IP", ["\\(bu", "2"]).text(inlines(&format!("{}{help}", value.get_name())));
        }
        page.control("RE", []);
    }
    if let Some(variable) = option.get_env() {
        let variable = bold(variable.to_string_lossy());
        let text = [roman("May also be specified with the "), variable, roman(" environment variable.")];
        page.control("RS", []).text(text).control("RE", []);
    }
}

/// Returns an option's names, its value and its default.
fn tag(option: &Arg) -> Vec<Inline> {
    let value =
        option.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    if option.is_positional() {
        let (before, behind) = if option.is_required_set() { ("<", ">") } else { ("[", "]") };
        return vec![roman(before), italic(value), roman(behind)];
    }
    let short = option.get_short().map(|short| bold(format!("-{short}")));
    let long = option.get_long().map(|long| bold(format!("--{long}")));
    let comma = (short.is_some() && long.is_some()).then(|| roman(", "));
    let mut tag: Vec<_> = [short, comma, long].into_iter().flatten().collect();
    if option.get_action().takes_values() {
        let (before, behind) = if option.is_require_equals_set() { ("[=", "]") } else { (" ", "") };
        tag.extend([roman(before), italic(format!("<{value}>")), roman(behind)]);
        let defaults = option.get_default_values().iter().map(|value| value.to_string_lossy());
        let defaults = defaults.collect::<Vec<_>>().join(",");
        if !defaults.is_empty() && !option.is_hide_default_value_set() {
            tag.push(roman(format!(" [default: {defaults}]")));
        }
    }
    tag
}

/// Returns the verbs, each with its page.
pub fn verbs(root: &Command) -> String {
    let mut page = Roff::new();
    for verb in root.get_subcommands() {
        let about = format!("{}.", verb.get_about().unwrap());
        page.control("TP", []).text([roman(format!("nxlock-{}(1)", verb.get_name()))]).text(inlines(&about));
    }
    finished(&page)
}

/// Returns lines of usage: literal words in bold, placeholders in italics.
pub fn usage(lines: &str) -> String {
    let mut page = Roff::new();
    for (at, line) in lines.lines().enumerate() {
        if at > 0 {
            page.control("br", []);
        }
        let mut words = Vec::new();
        for word in line.split_whitespace() {
            let core = word.trim_matches(['[', ']', '.']);
            let is_literal = core.chars().any(char::is_lowercase) || core.starts_with('-');
            let (before, behind) = word.split_once(core).unwrap();
            let space = if words.is_empty() { "" } else { " " };
            let core = if is_literal { bold(core) } else { italic(core) };
            words.extend([roman(format!("{space}{before}")), core, roman(behind)]);
        }
        page.text(words);
    }
    finished(&page)
}

/// Returns prose as `text.rs` has it.
pub fn prose(text: &str) -> String {
    let mut page = Roff::new();
    for (at, block) in text.split("\n\n").enumerate() {
        if at > 0 {
            page.control("PP", []);
        }
        self::block(&mut page, block);
    }
    finished(&page)
}

/// Adds a paragraph, which may be followed by verbatim lines, or a list.
fn block(page: &mut Roff, text: &str) {
    let (mut is_list, mut is_verbatim) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let item = line.split_once("  ").filter(|(term, _)| !term.is_empty());
        match (line.strip_prefix("    "), item) {
            // Continues the line before.
            (Some(rest), _) if is_list => _ = page.text(inlines(rest.trim_start())),
            (Some(rest), _) => {
                if !std::mem::replace(&mut is_verbatim, true) {
                    if at > 0 {
                        page.control("PP", []);
                    }
                    page.control("RS", ["4"]).control("EX", []);
                }
                page.text([roman(rest)]);
            }
            (None, Some((term, rest))) => {
                is_list = true;
                let term = if term.contains('`') { inlines(term) } else { vec![bold(term)] };
                page.control("TP", []).text(term).text(inlines(rest.trim_start()));
            }
            (None, None) => _ = page.text(inlines(line)),
        }
    }
    if is_verbatim {
        page.control("EE", []).control("RE", []);
    }
}

/// Adds paragraphs, with a request between two.
fn paragraphs(page: &mut Roff, text: &str, between: &str) {
    for (at, paragraph) in text.split("\n\n").enumerate() {
        if at > 0 {
            page.control(between, []);
        }
        page.text(inlines(&paragraph.replace('\n', " ")));
    }
}

/// Returns text with its `code` in bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts: Vec<&str> = text.split('`').collect();
    assert!(parts.len() % 2 == 1, "a lone backtick: {text}");
    parts.iter().enumerate().map(|(at, part)| if at % 2 == 1 { bold(*part) } else { roman(*part) }).collect()
}

/// Returns the source, in lines of a length that people can edit, but for verbatim ones.
fn finished(page: &Roff) -> String {
    let mut text = String::new();
    let mut is_verbatim = false;
    // The crate's own escapes of the two depend on a preamble, and on where they are.
    for line in page.to_roff().replace("\\\\", "\\e").replace('\'', "\\(aq").lines() {
        is_verbatim = (is_verbatim || line == ".EX") && line != ".EE";
        if is_verbatim || line.starts_with('.') {
            text += &format!("{line}\n");
        } else {
            text += &folded(line);
        }
    }
    text
}

/// Breaks a line between words.
fn folded(line: &str) -> String {
    let mut text = String::new();
    let mut length = 0;
    for word in line.split(' ') {
        if length > 0 && length + word.len() > 78 {
            // No request begins a line.
            text += if word.starts_with('.') { "\n\\&" } else { "\n" };
            length = 0;
        } else if length > 0 {
            text.push(' ');
        }
        length += word.len() + 1;
        text += word;
    }
    text + "\n"
}
