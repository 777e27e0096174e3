//! Passwords, the login for a server, and where they come from. Knows no server.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::tls::{TlsFiles, Trust};
use crate::error::{Error, ErrorKind};
use crate::trusted::{self, Unfit};
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

    /// Replaces every occurrence in a text. Leaves a part of the secret as it is: it cannot be recognised.
    pub fn blotted_out_of(&self, text: &str) -> String {
        text.replace(&self.0, "***")
    }
}

/// The arguments of AUTH (Redis command AUTH).
#[derive(Clone)]
pub struct Login {
    pub user: Option<String>,
    pub password: Secret,
}

/// Passwords, and the files for TLS.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Takes precedence over the password in a URL.
    pub password: Option<Secret>,
    /// Used for a URL without a password.
    pub fallback: Option<Secret>,
    pub tls: TlsFiles,
}

/// Maximum bytes read: more than any password has.
const LONGEST: u64 = 64 * 1024;

impl Credentials {
    /// Reads the password file, if one is named, and the environment.
    ///
    /// # Errors
    /// If a password file is named, and no password can be read from it.
    pub fn gather(password_file: Option<&Path>, tls: TlsFiles) -> Result<Credentials, Error> {
        let password = password_file.map(read).transpose()?;
        // A password that is not UTF-8 could not be sent as intended.
        let fallback = std::env::var("REDISCLI_AUTH").ok().and_then(Secret::of);
        Ok(Credentials { password, fallback, tls })
    }

    /// Returns the login for a server whose URL has this user and this password.
    pub fn login(&self, user: Option<&str>, password: Option<&str>) -> Option<Login> {
        Some(Login { user: user.map(str::to_owned), password: self.password_beside(password)? })
    }

    /// Returns the trust settings for a server with TLS.
    pub fn trust(&self) -> Arc<Trust> {
        Arc::new(Trust::new(self.tls.clone()))
    }

    /// Returns the password for a server whose URL has this one.
    fn password_beside(&self, of_url: Option<&str>) -> Option<Secret> {
        let of_url = || of_url.map(str::to_owned).and_then(Secret::of);
        self.password.clone().or_else(of_url).or_else(|| self.fallback.clone())
    }
}

fn read(path: &Path) -> Result<Secret, Error> {
    let shown = text::path(path);
    let wrong = |cause: String, hint: &str| Error {
        kind: ErrorKind::Misconfigured,
        action: format!("cannot take the password from {shown}"),
        cause,
        hint: hint.into(),
    };
    let (text, mode) = contents(path).map_err(|unfit| match unfit {
        Unfit::Unreadable(error) => wrong(text::plain(&error), "see --password-file, NXLOCK_PASSWORD_FILE"),
        Unfit::Untrusted { cause, hint } => wrong(cause, hint),
    })?;
    if mode & 0o077 != 0 {
        let quoted = shlex::try_quote(&shown).unwrap_or_default();
        log::warn(format_args!("others may read the password in {shown}: chmod 600 {quoted}"));
    }
    let entry = text.lines().next().unwrap_or_default();
    let entry = entry.strip_suffix('\r').unwrap_or(entry);
    Secret::of(entry.to_owned()).ok_or_else(|| wrong("its first line is empty".into(), "write the password there"))
}

/// Returns the contents of a file and, if it is a regular file, its mode.
fn contents(path: &Path) -> Result<(String, u32), Unfit> {
    let file = trusted::open(path)?;
    let found = file.metadata()?;
    let mode = if found.is_file() { found.permissions().mode() } else { 0 };
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok((text, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_goes_before_the_url_and_that_before_the_variable() {
        let secret = |text: &str| Secret::of(text.into());
        let order = |password, fallback, of_url| {
            let credentials = Credentials { password, fallback, tls: TlsFiles::default() };
            credentials.password_beside(of_url).map(|secret| secret.reveal().to_owned())
        };
        assert_eq!(order(secret("file"), secret("variable"), Some("url")).as_deref(), Some("file"));
        assert_eq!(order(None, secret("variable"), Some("url")).as_deref(), Some("url"));
        assert_eq!(order(None, secret("variable"), None).as_deref(), Some("variable"));
        assert_eq!(order(None, secret("variable"), Some("")).as_deref(), Some("variable"));
        assert_eq!(order(None, None, None), None);
    }
}
