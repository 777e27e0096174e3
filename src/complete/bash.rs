//! Parses a command line as it is typed in bash, and completes its last word.
//!
//! bash splits words at colons too, and inserts an offer into the line unchanged: this module therefore reads the line
//! itself, and quotes what it offers. Knows nothing of locks.

/// A line up to the cursor.
pub struct Typed {
    /// Without quotes; the last one is being typed.
    pub words: Vec<String>,
    open: Open,
    /// The line ends in a backslash, which quotes the next character: the common prefix of two names may end there.
    is_quoting: bool,
}

/// The quotes around the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    None,
    Single,
    Double,
}

impl Typed {
    /// Parses a line. Returns nothing if it has quotes that are not parsed here: `$'...'`, which has other escapes,
    /// `$"..."`, and those within `$(...)`, `${...}`, `$[...]` and backquotes. A name wrongly taken for quoted would be
    /// run as code.
    pub fn read(line: &str) -> Option<Typed> {
        let (mut words, mut word, mut open) = (Vec::new(), None::<String>, Open::None);
        let mut is_quoting = false;
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            if open == Open::None && matches!(c, ' ' | '\t' | '\n') {
                words.extend(word.take());
                continue;
            }
            let word = word.get_or_insert_default();
            match (open, c) {
                (Open::None, '$') if matches!(chars.peek(), Some('\'' | '"')) => return None,
                (Open::None | Open::Double, '$') if matches!(chars.peek(), Some('(' | '{' | '[')) => return None,
                (Open::None | Open::Double, '`') => return None,
                (Open::None, '\'') => open = Open::Single,
                (Open::None, '"') => open = Open::Double,
                (Open::Single, '\'') | (Open::Double, '"') => open = Open::None,
                (Open::None | Open::Double, '\\') => match chars.next() {
                    None => is_quoting = true,
                    Some(next) => {
                        if open == Open::Double && !matches!(next, '$' | '`' | '"' | '\\') {
                            word.push('\\');
                        }
                        word.push(next);
                    }
                },
                _ => word.push(c),
            }
        }
        words.push(word.unwrap_or_default());
        Some(Typed { words, open, is_quoting })
    }

    /// Returns what to insert in place of `current`, the end of the line as bash sees it, so that the word becomes one
    /// of `names`, which begin with it. Quotes each of them, also among several: bash inserts their common prefix, and
    /// with `menu-complete` one after the other.
    pub fn completed(&self, current: &str, names: &[String]) -> Vec<String> {
        let typed = self.words.last().map_or(0, String::len);
        let current = if self.is_quoting { current.strip_suffix('\\').unwrap_or(current) } else { current };
        let rests: Vec<&str> = names.iter().filter_map(|name| name.get(typed..)).collect();
        let inserted = |rest: &&str| self.closed(format!("{current}{}", self.quoted(rest)));
        match rests.as_slice() {
            [rest] => vec![inserted(rest) + if self.open == Open::None { " " } else { "" }],
            several => several.iter().map(inserted).collect(),
        }
    }

    /// Doubles an open quote at the end of the insertion. bash closes open quotes itself, but would take a quote that
    /// belongs to the name for the closing one.
    fn closed(&self, mut inserted: String) -> String {
        let quote = match self.open {
            Open::None => return inserted,
            Open::Single => '\'',
            Open::Double => '"',
        };
        if inserted.ends_with(quote) {
            inserted.push(quote);
        }
        inserted
    }

    /// Escapes text for the quotes that are open.
    fn quoted(&self, text: &str) -> String {
        let mut quoted = String::new();
        for c in text.chars() {
            match (self.open, c) {
                (Open::Single, '\'') => quoted.push_str(r"'\''"),
                // Within double quotes a backslash is no escape here: it would stay.
                (Open::Double, '!') => quoted.push_str(r#""'!'""#),
                (Open::Double, '$' | '`' | '"' | '\\') => quoted.extend(['\\', c]),
                (Open::None, c) if c.is_ascii() && !is_plain(c) => quoted.extend(['\\', c]),
                _ => quoted.push(c),
            }
        }
        quoted
    }
}

/// Returns whether a character means itself anywhere in a word.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '@' | '%' | '+' | ',' | '=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(line: &str, current: &str, names: &[&str]) -> Vec<String> {
        let typed = Typed::read(line).unwrap();
        let begins = |name: &&&str| name.starts_with(typed.words.last().unwrap());
        let names: Vec<_> = names.iter().filter(begins).map(|name| (*name).to_owned()).collect();
        typed.completed(current, &names)
    }

    #[test]
    fn words_are_read_as_bash_reads_them() {
        let words = |line| {
            let typed = Typed::read(line).unwrap();
            (typed.words.join("|"), typed.open)
        };
        assert_eq!(
            words(r#"nxlock  -s redis://h run "a b"'c'\ d"#),
            ("nxlock|-s|redis://h|run|a bc d".into(), Open::None)
        );
        assert_eq!(words("nxlock run "), ("nxlock|run|".into(), Open::None));
        assert_eq!(words(r#"x "a\$\x "#), (r"x|a$\x ".into(), Open::Double));
        assert_eq!(words("x 'a\\"), ("x|a\\".into(), Open::Single));
        assert_eq!(words("x ''"), ("x|".into(), Open::None));
        assert_eq!(words("x a\\"), ("x|a".into(), Open::None));
    }

    #[test]
    fn a_line_with_quotes_of_another_kind_is_not_read() {
        for line in [
            "nxlock run $'",
            "nxlock run $'tw",
            "nxlock run $\"",
            "nxlock run a$'b'c",
            r"nxlock --prefix $'it\'s' run ",
            r#"nxlock run "$(echo "x" "#,
            r#"nxlock run ${x:-"a""#,
            "nxlock run $[",
            "nxlock run `echo '",
            "nxlock run \"`",
        ] {
            assert!(Typed::read(line).is_none(), "{line}");
        }
        for (line, word) in [
            (r"x \$'a", "$a"),
            ("x '$'a", "$a"),
            (r#"x "$"a"#, "$a"),
            (r#"x "a$'b"#, "a$'b"),
            ("x '`$(${", "`$(${"),
            (r"x \`\$\(", "`$("),
            ("x $HOME", "$HOME"),
        ] {
            assert_eq!(Typed::read(line).unwrap().words, ["x", word], "{line}");
        }
    }

    #[test]
    fn a_quote_at_the_end_of_a_name_does_not_pass_for_the_closing_one() {
        assert_eq!(completed("nxlock run \"sa", "sa", &["say \"hi\""]), [r#"say \"hi\"""#]);
        assert_eq!(completed("nxlock run \"wo", "wo", &["wow!"]), [r#"wow"'!'"""#]);
        assert_eq!(completed("nxlock run 'do", "do", &["dogs'"]), [r"dogs'\'''"]);
        assert_eq!(completed("nxlock run \"do", "do", &["dogs'"]), ["dogs'"]);
        assert_eq!(completed("nxlock run do", "do", &["do\""]), [r#"do\" "#]);
        assert_eq!(completed("nxlock run \"a", "a", &["a\"", "a\"b"]), [r#"a\"""#, r#"a\"b"#]);
    }

    #[test]
    fn one_name_is_put_in_whole_with_its_quotes() {
        assert_eq!(completed("nxlock run tw", "tw", &["two words", "other"]), [r"two\ words "]);
        assert_eq!(completed(r"nxlock run two\ w", r"two\ w", &["two words"]), [r"two\ words "]);
        assert_eq!(completed("nxlock run 'it", "it", &["it's $x"]), [r"it'\''s $x"]);
        assert_eq!(completed("nxlock run \"it", "it", &["it's $x!"]), [r#"it's \$x"'!'"""#]);
        assert_eq!(completed("nxlock run a:b", "b", &["a:bc~"]), [r"bc\~ "], "bash parts it at the colon");
        assert_eq!(completed("nxlock run ", "", &["日本 é"]), [r"日本\ é "]);
    }

    #[test]
    fn each_of_several_has_its_quotes() {
        assert_eq!(completed("nxlock run ", "", &["job $1", "job $2"]), [r"job\ \$1", r"job\ \$2"]);
        assert_eq!(completed(r"nxlock run job\ \$", r"job\ \$", &["job $1", "job $2"]), [r"job\ \$1", r"job\ \$2"]);
        assert_eq!(completed("nxlock run ", "", &["`x`", "$(x)", ";x"]), [r"\`x\`", r"\$\(x\)", r"\;x"]);
        assert_eq!(completed("nxlock run \"", "", &["`x`", "$(x)", "!x"]), [r"\`x\`", r"\$(x)", r#""'!'"x"#]);
        assert_eq!(completed("nxlock run '", "", &["`x`", "it's"]), ["`x`", r"it'\''s"]);
        assert_eq!(completed("nxlock run é", "é", &["éa", "éb", "é"]), ["éa", "éb", "é"]);
        assert_eq!(completed("nxlock run x", "x", &["y"]), Vec::<String>::new());
    }

    #[test]
    fn a_backslash_that_several_agreed_on_is_gone_on_from() {
        assert_eq!(completed("nxlock run \\", "\\", &["`x`", "$(x)"]), [r"\`x\`", r"\$\(x\)"]);
        assert_eq!(completed("nxlock run \"\\", "\"\\", &["`x`", "$x"]), [r#""\`x\`"#, r#""\$x"#]);
    }
}
