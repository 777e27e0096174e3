//! Finds, reads and parses configuration files into one entry per option, with its location. Must not know the command
//! line's own values.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Command;
use nix::libc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, Scope, Shape};
use crate::error::{Error, ErrorKind};
use crate::report::Location;
use crate::text;
use crate::trusted::{self, Unfit};

/// The machine's file; the user's file takes precedence.
const OF_THE_MACHINE: &str = "/etc/nxlock/config.toml";
/// Maximum size of a file in bytes.
const LONGEST: u64 = 1 << 20;

/// The value of an option in a file.
#[derive(Clone)]
pub struct Entry {
    pub key: &'static str,
    pub scope: Scope,
    pub value: String,
    pub location: Location,
}

/// A file's text.
pub struct Source {
    pub path: PathBuf,
    pub text: String,
}

/// Returns the existing files by precedence: the named one, or else the user's and the machine's.
///
/// # Errors
/// If a file exists and cannot be read: it may say where the locks are.
pub fn found(named: Option<&Path>) -> Result<Vec<Source>, Error> {
    if let Some(path) = named {
        return read(path, trusted::open)
            .map(|text| vec![Source { path: path.to_owned(), text }])
            .map_err(|e| unreadable(path, &e));
    }
    let mut files = Vec::new();
    if let Some(path) = of_the_user() {
        // HOME is no descriptor of the caller's, whatever it looks like.
        match read(&path, trusted::open_found) {
            Ok(text) => files.push(Source { path, text }),
            Err(unfit) if is_absent(&unfit) || is_out_of_reach(&unfit, &path) => {}
            Err(unfit) => return Err(unreadable(&path, &unfit)),
        }
    }
    let path = Path::new(OF_THE_MACHINE);
    match read(path, trusted::open_found) {
        Ok(text) => files.push(Source { path: path.to_owned(), text }),
        Err(unfit) if is_absent(&unfit) => {}
        Err(unfit) => return Err(unreadable(path, &unfit)),
    }
    Ok(files)
}

/// Returns the user's file; none without a home directory, as may happen under cron. Relative paths are ignored, as in
/// the XDG Base Directory Specification.
fn of_the_user() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(directory.join("nxlock/config.toml"))
}

fn is_absent(unfit: &Unfit) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(unfit, Unfit::Unreadable(error) if matches!(error.kind(), NotFound | NotADirectory))
}

/// Returns whether the user may not search HOME: it is another user's, as after su(1).
fn is_out_of_reach(unfit: &Unfit, path: &Path) -> bool {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    matches!(unfit, Unfit::Unreadable(error) if is_denied(error)) && fs::symlink_metadata(path).is_err()
}

fn read(path: &Path, open: fn(&Path) -> Result<File, Unfit>) -> Result<String, Unfit> {
    let mut text = String::new();
    open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::other("it is longer than 1 MiB").into());
    }
    // TOML has no byte order mark; editors of other systems write one.
    Ok(text.strip_prefix('\u{feff}').map_or(text.clone(), str::to_owned))
}

fn unreadable(path: &Path, unfit: &Unfit) -> Error {
    let (kind, cause, hint) = match unfit {
        // The limit of this process, whatever is in the file.
        Unfit::Unreadable(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            (ErrorKind::Internal, text::plain(error), "see how many files this process may open (ulimit -n)")
        }
        Unfit::Unreadable(error) if error.kind() == io::ErrorKind::InvalidData => {
            (ErrorKind::Misconfigured, "it is not UTF-8".to_owned(), "write it in UTF-8, as TOML requires")
        }
        Unfit::Unreadable(error) => {
            let hint = "make it readable for this user, or name another: --config FILE";
            (ErrorKind::Misconfigured, text::plain(error), hint)
        }
        Unfit::Untrusted { cause, hint } => (ErrorKind::Misconfigured, cause.clone(), *hint),
    };
    Error { kind, action: format!("cannot read the configuration in {}", text::path(path)), cause, hint: hint.into() }
}

impl Source {
    /// Parses the file, in the order of its lines.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn entries(&self, command: &Command) -> Result<Vec<Entry>, Error> {
        let table = DeTable::parse(&self.text).map_err(|error| {
            // The error's Display would show the line, which may contain a password.
            let location = self.location(error.span().unwrap_or_default());
            let first = error.message().lines().next().unwrap_or_default();
            location.error("", format!("it is not TOML: {}", text::clean(first)))
        })?;
        let mut pairs: Vec<_> = table.get_ref().iter().collect();
        pairs.sort_by_key(|(key, _)| key.span().start);
        let mut entries: Vec<Entry> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let location = self.location(key.span());
            let name: &str = key.get_ref().as_ref();
            let entry = self.entry(command, name, value, &location).map_err(|cause| location.error(name, cause))?;
            if let Some(other) = entries.iter().find(|other| other.excludes(&entry)) {
                let cause = format!("it conflicts with `{}` in line {}", other.key, other.location.line);
                return Err(location.error(name, cause));
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn entry(
        &self,
        command: &Command,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        location: &Location,
    ) -> Result<Entry, String> {
        let value = value.get_ref();
        if let DeValue::Table(_) = value {
            return Err("tables are not supported: write each key by itself, as in `ttl = \"30s\"`".into());
        }
        let known = keys::keys().find(|(key, _)| *key == name);
        let Some((key, scope)) = known else { return Err(keys::misplaced(command, name)) };
        let option = keys::option(command, key, scope).ok_or("there is no such option")?;
        let shape = keys::shape(key, option);
        let mut text = text(shape, value)?;
        if shape == Shape::Path && !text.is_empty() {
            // Never a bare word: an option may interpret that as something other than a file.
            let directory =
                self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            text = directory.join(text).to_string_lossy().into_owned();
        }
        if shape != Shape::Flag {
            keys::admit(option, &text).map_err(|why| text::clean(&why))?;
        }
        Ok(Entry { key, scope, value: text, location: location.clone() })
    }

    fn location(&self, span: Range<usize>) -> Location {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        Location { path: self.path.clone(), line: before.matches('\n').count() + 1 }
    }
}

impl Entry {
    /// Returns whether it is a flag set to false, which contradicts nothing.
    pub fn is_off(&self) -> bool {
        self.value == "false" && self.key != "prefix" && self.key != "reason"
    }

    /// Returns whether the two contradict each other.
    pub fn excludes(&self, other: &Entry) -> bool {
        !self.is_off() && !other.is_off() && keys::rivals(self.key).any(|rival| rival == other.key)
    }
}

/// Returns a value as it would be written on the command line.
fn text(shape: Shape, value: &DeValue<'_>) -> Result<String, String> {
    let wanted = match (shape, value) {
        (Shape::Flag, DeValue::Boolean(on)) => return Ok(on.to_string()),
        (Shape::Flag, _) => "true or false",
        (Shape::Number | Shape::Span, DeValue::Integer(number)) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            return number.map(|number| number.to_string()).map_err(|_| "the number is too large".into());
        }
        (Shape::Number, _) => "a number",
        (Shape::Span, DeValue::Float(number)) => return Ok(number.as_str().to_owned()),
        (_, DeValue::String(text)) => return Ok(text.to_string()),
        (Shape::Texts, DeValue::Array(elements)) => {
            let texts = elements.iter().map(|element| element.get_ref().as_str());
            return match texts.collect::<Option<Vec<_>>>() {
                // Separated as in the variable.
                Some(texts) if !texts.is_empty() => Ok(texts.join(" ")),
                _ => Err("expected a string or an array of strings".into()),
            };
        }
        (Shape::Texts, _) => "a string or an array of strings",
        (Shape::Span, _) => "a string such as \"30s\"",
        (Shape::Path | Shape::Text, _) => "a string",
    };
    let article = if value.type_str().starts_with(['a', 'i']) { "an" } else { "a" };
    Err(format!("expected {wanted}, found {article} {}", value.type_str()))
}
