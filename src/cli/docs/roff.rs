//! Prose to man(7): paragraphs, lists, and what stands as it is.

/// As a line of text: nothing in it is taken for a request or an escape.
pub fn escaped(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}

/// What clap_mangen renders, without the preamble that it repeats; paragraphs stay in their list
/// item, and a text that has lost its full stop gets it back.
pub fn body(rendered: &str) -> String {
    let lines: Vec<&str> =
        rendered.lines().filter(|line| !line.starts_with(".ie ") && !line.starts_with(".el ")).collect();
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let begins_item = |back| at.checked_sub(back).is_some_and(|before| lines[before] == ".TP");
        // clap_mangen's name for it, which its preamble defines.
        let line = line.replace("\\*(Aq", "\\(aq");
        match line.trim_end() {
            // Around an empty line, which says the same.
            ".br" => {}
            "" => text += ".sp\n",
            ".RS 14" => text += ".RS 7\n",
            line if begins_item(2) && line.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '`' | ')')) => {
                text += &format!("{line}.\n");
            }
            line => text += &format!("{line}\n"),
        }
    }
    text
}

/// Its sections, but for the first, as parts of one.
pub fn subsections(options: &str) -> String {
    let mut text = String::new();
    for line in options.lines() {
        match line.strip_prefix(".SH ").map(|heading| heading.trim_matches('"')) {
            Some(heading) if heading != "OPTIONS" => {
                let (first, rest) = heading.split_at(1);
                text += &format!(".SS \"{first}{}\"\n", rest.to_lowercase());
            }
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

/// `code` in bold, in lines of a length that people can edit, except where text stands as it is.
pub fn finished(page: &str) -> String {
    let mut text = String::new();
    let mut literal = false;
    for line in page.replace(".PP\n.TP\n", ".TP\n").lines() {
        literal = (literal || line == ".EX") && line != ".EE";
        if literal || line.starts_with('.') {
            text += &format!("{line}\n");
            continue;
        }
        let parts: Vec<&str> = line.split('`').collect();
        assert!(parts.len() % 2 == 1, "a lone backtick: {line}");
        let bold =
            |(at, part): (usize, &&str)| if at % 2 == 1 { format!("\\fB{part}\\fR") } else { (*part).to_owned() };
        text += &folded(&parts.iter().enumerate().map(bold).collect::<String>());
    }
    text
}

/// Broken between words.
fn folded(line: &str) -> String {
    let mut text = String::new();
    let mut length = 0;
    for word in line.split(' ') {
        if length > 0 && length + word.len() > 78 {
            text.push('\n');
            length = 0;
        } else if length > 0 {
            text.push(' ');
        }
        let word = if length == 0 && word.starts_with('.') && !text.is_empty() {
            format!("\\&{word}")
        } else {
            word.to_owned()
        };
        length += word.len() + 1;
        text += &word;
    }
    text + "\n"
}

/// A line of usage: what is typed in bold, what it stands for in italics.
pub fn usage(line: &str) -> String {
    let words = line.split(' ').map(|word| {
        let core = word.trim_matches(['[', ']', '.']);
        let font = if core.chars().any(char::is_lowercase) || core.starts_with('-') { 'B' } else { 'I' };
        escaped(word).replacen(&escaped(core), &format!("\\f{font}{}\\fR", escaped(core)), 1)
    });
    words.collect::<Vec<_>>().join(" ") + "\n"
}

/// Prose, as `text.rs` writes it.
pub fn prose(text: &str) -> String {
    let blocks = text.split("\n\n").map(block);
    blocks.collect::<Vec<_>>().join(".PP\n")
}

fn block(text: &str) -> String {
    let mut roff = String::new();
    let mut literal = false;
    for line in text.lines() {
        let set_in = line.strip_prefix("    ");
        let item = line.split_once("  ").filter(|(term, _)| !term.is_empty());
        match (set_in, item) {
            // Goes on from the line before.
            (Some(rest), _) if roff.contains(".TP") => roff += &format!("{}\n", escaped(rest.trim_start())),
            (Some(rest), _) => {
                if !literal {
                    roff += if roff.is_empty() { ".RS 4\n.EX\n" } else { ".PP\n.RS 4\n.EX\n" };
                    literal = true;
                }
                roff += &format!("{}\n", escaped(rest));
            }
            (None, Some((term, rest))) => {
                let tag = if term.contains('`') { escaped(term) } else { format!("\\fB{}\\fR", escaped(term)) };
                roff += &format!(".TP\n{tag}\n{}\n", escaped(rest.trim_start()));
            }
            (None, _) => roff += &format!("{}\n", escaped(line)),
        }
    }
    if literal {
        roff += ".EE\n.RE\n";
    }
    roff
}
