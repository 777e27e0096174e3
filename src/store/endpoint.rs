//! What a URL of a Redis server says: parsing and printing, no I/O. A password goes in and never out.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use redis::{ConnectionAddr, IntoConnectionInfo};

/// One Redis server, and who we are there.
#[derive(Clone)]
pub struct Endpoint {
    pub address: Address,
    pub login: Option<Login>,
    pub db: i64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// What AUTH takes (Redis command AUTH).
#[derive(Clone)]
pub struct Login {
    pub user: Option<String>,
    pub password: String,
}

/// What of a path cannot stand in a URL as it is.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b',').add(b'@').add(b'\\');

/// How its server is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Tcp,
    Unix,
}

impl Endpoint {
    /// What stands behind `scheme://`.
    ///
    /// # Errors
    /// What is wrong with it, without repeating any of it.
    pub fn parse(scheme: Scheme, rest: &str) -> Result<Endpoint, String> {
        // White space and commas separate servers in a variable; in a user or password a comma is one.
        let behind_login = rest.rsplit('@').next().unwrap_or(rest);
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) || behind_login.contains(',') {
            return Err("it names several servers, and only one can be used".into());
        }
        let (word, known): (_, &[&str]) = match scheme {
            Scheme::Tcp => ("redis", &[]),
            Scheme::Unix => ("redis+unix", &["db", "user", "pass"]),
        };
        let url = redis::parse_redis_url(&format!("{word}://{rest}")).ok_or("it cannot be parsed")?;
        // Not repeated either: behind a `?` in a password stands the rest of it.
        if url.query_pairs().any(|(key, _)| !known.contains(&key.as_ref())) {
            return Err("nothing is known of what stands behind its `?`: write %3F in a password".into());
        }
        if url.fragment().is_some() {
            return Err("there is a `#` in it: write %23 in a password".into());
        }
        if scheme == Scheme::Tcp && !url.username().is_empty() && url.password().is_none() {
            return Err("it has a user and no password: write redis://:PASSWORD@host for a password alone".into());
        }
        let info = url.into_connection_info().map_err(|e| reason(&e))?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port: *port }
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err("it names a server that cannot be reached from here".into()),
        };
        let settings = info.redis_settings();
        if settings.db() < 0 {
            return Err(format!("there is no database {}", settings.db()));
        }
        let login = settings
            .password()
            .map(|password| Login { user: settings.username().map(str::to_owned), password: password.to_owned() });
        Ok(Endpoint { address, login, db: settings.db() })
    }
}

/// What the redis crate says of a URL; it repeats none of it. Behind a dash it names its own kinds.
fn reason(error: &redis::RedisError) -> String {
    let text = error.to_string().to_lowercase();
    text.split(" - ").next().unwrap_or(&text).to_owned()
}

/// Without the password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.login.as_ref().and_then(|login| login.user.as_deref());
        match &self.address {
            Address::Tcp { host, port } => {
                f.write_str("redis://")?;
                if let Some(user) = user {
                    write!(f, "{}@", user.escape_debug())?;
                }
                if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }?;
                if self.db != 0 {
                    write!(f, "/{}", self.db)?;
                }
                Ok(())
            }
            Address::Unix(path) => {
                write!(f, "unix://{}", percent_encode(path.as_os_str().as_bytes(), ESCAPED))?;
                if self.db != 0 {
                    write!(f, "?db={}", self.db)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_and_user_are_percent_decoded() {
        let endpoint = Endpoint::parse(Scheme::Tcp, "u%40x:p%2Fq@h").unwrap();
        let login = endpoint.login.unwrap();
        assert_eq!((login.user.as_deref(), login.password.as_str()), (Some("u@x"), "p/q"));
    }
}
