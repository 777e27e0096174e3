//! What a URL need not say: who we are, and whom we trust. The same for every server that is asked.

use std::sync::Arc;

use super::endpoint::Login;
use super::secure::{TlsFiles, Trust};

/// A password. It goes out to a server, and nowhere else: there is nothing to show it by.
#[derive(Clone)]
pub struct Secret(String);

/// How we prove who we are, and how a server does.
#[derive(Clone, Default)]
pub struct Access {
    /// Goes before a password in the URL.
    pub password: Option<Secret>,
    /// For a URL without one.
    pub fallback: Option<Secret>,
    pub tls: TlsFiles,
}

impl Secret {
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// As AUTH takes it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Access {
    /// Who we are at a server whose URL says this much.
    pub fn login(&self, user: Option<&str>, password: Option<&str>) -> Option<Login> {
        let in_url = password.map(|password| Secret::new(password.to_owned()));
        let password = self.password.clone().or(in_url).or_else(|| self.fallback.clone())?;
        Some(Login { user: user.map(str::to_owned), password })
    }

    pub fn trust(&self) -> Arc<Trust> {
        Arc::new(Trust::new(self.tls.clone()))
    }
}
