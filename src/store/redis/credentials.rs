//! Passwords, the login for a server, and where they come from. Knows no server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::credential_command::CredentialCommand;
use super::credential_file::{Contents, CredentialFile};
use super::fault::Fault;
use super::tls::{TlsFiles, Trust};
use crate::error::{Error, ErrorKind};
use crate::handover::Handed;
use crate::trusted::{self, Unfit};
use crate::wait::Limit;
use crate::{log, text};

/// A text that nobody may see: it cannot be printed, nor formatted for debugging.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Returns nothing for an empty text.
    pub fn of(text: String) -> Option<Secret> {
        (!text.is_empty()).then_some(Secret(text))
    }

    /// Returns the text, for the server alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn blotted_out_of(&self, text: &str) -> String {
        text.replace(&self.0, "***")
    }
}

/// How to log in: the user, and where the password comes from. Each connection asks for the password.
#[derive(Clone)]
pub struct Login {
    pub user: Option<String>,
    password: Password,
}

/// Where a password comes from.
#[derive(Clone)]
enum Password {
    /// A URL, or a variable.
    Given(Secret),
    Changing(Arc<Changing>),
}

/// A password that may be another one for each connection: the first line of a file, or of what a command prints.
struct Changing {
    source: Source,
    /// The passwords that servers may have been sent, the last one first.
    sent: Mutex<Vec<Secret>>,
}

enum Source {
    File(Arc<CredentialFile>),
    Command(CredentialCommand),
}

/// Where the user has the password read from.
pub enum PasswordSource<'a> {
    File(&'a Path),
    /// A shell command, and the limit of one execution.
    Command(&'a str, Duration),
}

/// Passwords, and the files for TLS.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Takes precedence over the password in a URL.
    password: Option<Password>,
    /// Used for a URL without a password.
    fallback: Option<Secret>,
    trust: Arc<Trust>,
}

/// Maximum bytes of a password file: more than any password has.
const LONGEST: u64 = 64 * 1024;
/// Maximum bytes of a file for TLS: more than all authorities of the world have.
const LONGEST_PEM: u64 = 16 << 20;
/// Number of passwords to recognise in what a server says: it may repeat one that was replaced since.
const RECOGNISED: usize = 8;

impl Credentials {
    /// Reads the password file, if one is named, and the environment. A command for the password is run, and the files for
    /// TLS are read, by the first connection that needs them.
    ///
    /// # Errors
    /// If a password file is named, and no password can be read from it.
    pub fn gather(password: Option<PasswordSource<'_>>, tls: &TlsFiles) -> Result<Credentials, Error> {
        // Two options may name the same pipe.
        let mut files: Vec<Arc<CredentialFile>> = Vec::new();
        let mut file = |path: &Path, longest| {
            let known = files.iter().find(|file| file.path() == path).cloned();
            known.unwrap_or_else(|| {
                files.push(Arc::new(CredentialFile::new(path, longest)));
                Arc::clone(&files[files.len() - 1])
            })
        };
        let source = password.map(|source| match source {
            PasswordSource::File(path) => Source::File(file(path, LONGEST)),
            PasswordSource::Command(text, within) => Source::Command(CredentialCommand::new(text.to_owned(), within)),
        });
        let mut pem = |path: &Option<PathBuf>| path.as_ref().map(|path| file(path, LONGEST_PEM));
        let trust = Arc::new(Trust::new(pem(&tls.ca), pem(&tls.cert), pem(&tls.key)));
        // A descriptor is not the caller's any more once the command has started.
        for file in files.iter().filter(|file| trusted::descriptor(file.path()).is_some()) {
            // The connection that needs it reports the error.
            let _ = file.read();
        }
        let password = source.map(Changing::begin).transpose()?.map(Arc::new).map(Password::Changing);
        // A password that is not UTF-8 could not be sent as intended.
        let fallback = std::env::var("REDISCLI_AUTH").ok().and_then(Secret::of);
        Ok(Credentials { password, fallback, trust })
    }

    /// Returns credentials of this password alone, for a URL without one.
    pub fn of_fallback(fallback: Option<Secret>) -> Credentials {
        Credentials { fallback, ..Credentials::default() }
    }

    /// Returns the login for a server whose URL has this user and this password.
    pub fn login(&self, user: Option<&str>, password: Option<&str>) -> Option<Login> {
        let of_url = || password.map(str::to_owned).and_then(Secret::of);
        let given = || of_url().or_else(|| self.fallback.clone()).map(Password::Given);
        let password = self.password.clone().or_else(given)?;
        Some(Login { user: user.map(str::to_owned), password })
    }

    /// Returns the trust settings for a server with TLS.
    pub fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust)
    }

    /// Returns what was read from files, for a process that takes the place of this one.
    pub fn handed(&self) -> Vec<Handed> {
        let password = match &self.password {
            Some(Password::Changing(password)) => password.handed(),
            Some(Password::Given(_)) | None => None,
        };
        password.into_iter().chain(self.trust.handed()).collect()
    }
}

impl Login {
    /// Returns the password as it is now.
    ///
    /// # Errors
    /// If it cannot be read, or the command that prints it fails, or does not end within the limit.
    pub fn password(&self, limit: Limit<'_>) -> Result<Secret, Fault> {
        match &self.password {
            Password::Given(password) => Ok(password.clone()),
            Password::Changing(password) => password.now(limit),
        }
    }

    /// Returns the password as it is now, for one more attempt at a server that has refused `refused`: it may have been
    /// replaced after it was read, and before the server was asked. Nothing if it is still the same, or cannot be told.
    ///
    /// # Errors
    /// If the wait is cancelled.
    pub fn replaced(&self, refused: &Secret, limit: Limit<'_>) -> Result<Option<Secret>, Fault> {
        match self.password(limit) {
            Ok(password) => Ok(Some(password).filter(|password| password.0 != refused.0)),
            Err(Fault::Cancelled) => Err(Fault::Cancelled),
            Err(_) => Ok(None),
        }
    }

    /// Replaces every occurrence of a password that the server was sent. Leaves a part of one as it is: it cannot be
    /// recognised.
    pub fn blotted_out_of(&self, text: &str) -> String {
        match &self.password {
            Password::Given(password) => password.blotted_out_of(text),
            Password::Changing(changing) => {
                changing.sent().iter().fold(text.to_owned(), |text, password| password.blotted_out_of(&text))
            }
        }
    }
}

impl Changing {
    /// Reads a file for the first time.
    fn begin(source: Source) -> Result<Changing, Error> {
        let changing = Changing { source, sent: Mutex::default() };
        if let Source::File(file) = &changing.source {
            changing.read(file).map_err(|(cause, hint)| Error {
                kind: ErrorKind::Misconfigured,
                action: format!("cannot take the password from {}", text::path(file.path())),
                cause,
                hint: hint.into(),
            })?;
        }
        Ok(changing)
    }

    fn now(&self, limit: Limit<'_>) -> Result<Secret, Fault> {
        let failed = |from: &str, (cause, hint)| Fault::Known {
            kind: ErrorKind::Misconfigured,
            cause: format!("cannot take the password from {from}: {cause}"),
            hint,
        };
        match &self.source {
            Source::File(file) => self.read(file).map_err(|why| failed(&text::path(file.path()), why)),
            Source::Command(command) => {
                let print = "have it print the password";
                let output = command.output(limit)?;
                self.first_line(&output).map_err(|cause| failed("--password-command", (cause, print)))
            }
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The cause, and a hint.
    fn read(&self, file: &CredentialFile) -> Result<Secret, (String, &'static str)> {
        let Contents { bytes, mode } = file.read().map_err(|unfit| match unfit {
            Unfit::Unreadable(error) => (text::plain(&error), hint(file.path())),
            Unfit::Untrusted { cause, hint } => (cause, hint),
        })?;
        if mode.is_some_and(|mode| mode & 0o077 != 0) && self.sent().is_empty() {
            let shown = text::path(file.path());
            let quoted = text::quoted(&shown);
            log::warn(format_args!("others may read the password in {shown}: chmod 600 {quoted}"));
        }
        self.first_line(&bytes).map_err(|cause| (cause, "write the password there"))
    }

    /// Returns the password in a text, and remembers it.
    ///
    /// # Errors
    /// The cause.
    fn first_line(&self, text: &[u8]) -> Result<Secret, String> {
        let whole = std::str::from_utf8(text).map_err(|_| "it is not UTF-8")?;
        let line = whole.lines().next().unwrap_or_default();
        let line = line.strip_suffix('\r').unwrap_or(line);
        let password = Secret::of(line.to_owned()).ok_or("its first line is empty")?;
        let mut sent = self.sent();
        sent.retain(|other| other.0 != password.0);
        sent.insert(0, password.clone());
        sent.truncate(RECOGNISED);
        Ok(password)
    }

    fn sent(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handed(&self) -> Option<Handed> {
        match &self.source {
            Source::File(file) => file.handed(),
            // The other process runs it too.
            Source::Command(_) => None,
        }
    }
}

fn hint(file: &Path) -> &'static str {
    match file.iter().any(|name| name.as_encoded_bytes().starts_with(b"~")) {
        true => "`~` is not expanded: write the path in full (--password-file, NXLOCK_PASSWORD_FILE)",
        false => "see --password-file, NXLOCK_PASSWORD_FILE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Option<Secret> {
        Secret::of(text.into())
    }

    #[test]
    fn the_file_goes_before_the_url_and_that_before_the_variable() {
        let order = |password, fallback, of_url| {
            let credentials = Credentials { password, fallback, ..Credentials::default() };
            let login = credentials.login(None, of_url);
            login.map(|login| login.password(Limit::NONE).map(|secret| secret.reveal().to_owned()).unwrap())
        };
        let file = || secret("file").map(Password::Given);
        assert_eq!(order(file(), secret("variable"), Some("url")).as_deref(), Some("file"));
        assert_eq!(order(None, secret("variable"), Some("url")).as_deref(), Some("url"));
        assert_eq!(order(None, secret("variable"), None).as_deref(), Some("variable"));
        assert_eq!(order(None, secret("variable"), Some("")).as_deref(), Some("variable"));
        assert_eq!(order(None, None, None), None);
    }

    #[test]
    fn a_password_that_was_replaced_is_blotted_out_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        std::fs::write(&path, "0ld\n").unwrap();
        let credentials = Credentials::gather(Some(PasswordSource::File(&path)), &TlsFiles::default()).unwrap();
        let login = credentials.login(None, None).unwrap();
        std::fs::write(&path, "n3w\n").unwrap();
        assert_eq!(login.password(Limit::NONE).unwrap().reveal(), "n3w");
        assert_eq!(login.blotted_out_of("0ld or n3w"), "*** or ***");
    }
}
