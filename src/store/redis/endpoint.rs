//! Parses and prints the URL of a Redis server. No I/O. Reads passwords, and never prints one.

use super::credentials::{Credentials, Login};
use super::tls::Trust;
use crate::text::{self, Tainted};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_encode, utf8_percent_encode};
use redis::{ConnectionAddr, IntoConnectionInfo};

/// One Redis server, and how to log in there.
#[derive(Clone)]
pub struct Endpoint {
    pub address: Address,
    pub session: Session,
}

/// What all servers of one topology share.
#[derive(Clone, Default)]
pub struct Session {
    pub login: Option<Login>,
    pub db: i64,
    /// The authorities that must vouch for the server; set if the connection uses TLS.
    pub trust: Option<Arc<Trust>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    Tcp { host: Tainted, port: u16 },
    Unix(PathBuf),
}

/// Characters that a path in a URL escapes.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b',').add(b'@').add(b'\\');
/// Characters that a user or the name of a master escapes.
const ESCAPED_WORD: &AsciiSet = &ESCAPED.add(b'/').add(b':');

/// Default port of a server.
pub const PORT: u16 = 6379;

/// The transport to a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Tcp,
    Tls,
    Unix,
}

impl Endpoint {
    /// Parses what follows `scheme://`. `port` is the default port.
    ///
    /// # Errors
    /// The cause, without repeating any of the URL.
    pub fn parse(scheme: Scheme, rest: &str, port: u16, credentials: &Credentials) -> Result<Endpoint, String> {
        // White space and commas separate servers in a variable; in a user or a password, a comma is itself.
        let behind_login = rest.rsplit('@').next().unwrap_or(rest);
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) || behind_login.contains(',') {
            return Err("it has several hosts: for several servers, write a URL for each, as in redis://a redis://b \
                        redis://c; for the nodes of a cluster, redis+cluster://a,b,c"
                .into());
        }
        let (word, known): (_, &[&str]) = match scheme {
            Scheme::Tcp | Scheme::Tls => ("redis", &[]),
            Scheme::Unix => ("redis+unix", &["db", "user", "pass"]),
        };
        let url = redis::parse_redis_url(&format!("{word}://{rest}")).ok_or("it cannot be parsed")?;
        // Not repeated either: after a `?` in a password comes the rest of the password.
        if url.query_pairs().any(|(key, _)| !known.contains(&key.as_ref())) {
            return Err("unknown parameter after `?`: write %3F in a password".into());
        }
        let keys: Vec<_> = url.query_pairs().map(|(key, _)| key).collect();
        if keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key)) {
            return Err("a parameter after `?` is given twice".into());
        }
        if url.fragment().is_some() {
            return Err("there is a `#` in it: write %23 in a password".into());
        }
        let named_port = url.port();
        let info = url.into_connection_info().map_err(|e| reason(&e))?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, _) => {
                // The crate has escaped what is not ASCII.
                if host.contains('%') {
                    return Err("the host name is not ASCII: write it in the form that begins with xn--".into());
                }
                // DNS ignores case; the files of this machine may not.
                let host = Tainted::from(host.trim_matches(['[', ']']).to_ascii_lowercase());
                Address::Tcp { host, port: named_port.unwrap_or(port) }
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err("it names a server that cannot be reached from here".into()),
        };
        let settings = info.redis_settings();
        if settings.db() < 0 {
            return Err(format!("there is no database {}", settings.db()));
        }
        let login = credentials.login(settings.username(), settings.password());
        if login.is_none() && settings.username().is_some() {
            return Err("it has a user, and there is no password: write redis://:PASSWORD@host for a password \
                        alone, or give it by --password-file or REDISCLI_AUTH"
                .into());
        }
        let trust = (scheme == Scheme::Tls).then(|| credentials.trust());
        Ok(Endpoint { address, session: Session { login, db: settings.db(), trust } })
    }

    /// Returns the options with which redis-cli(1) connects to it. Without the password, which REDISCLI_AUTH may give.
    pub fn redis_cli(&self) -> String {
        let Endpoint { address, session } = self;
        let mut options = match address {
            Address::Tcp { host, port } => format!(" -h {host} -p {port}"),
            Address::Unix(path) => format!(" -s {}", text::quoted(&text::path(path))),
        };
        if session.trust.is_some() {
            options += " --tls";
        }
        if let Some(user) = session.login.as_ref().and_then(|login| login.user.as_deref()) {
            options += &format!(" --user {}", text::quoted(user));
        }
        if session.db != 0 {
            options += &format!(" -n {}", session.db);
        }
        options
    }
}

/// Returns the redis crate's reason, which repeats nothing of the URL. After a dash it names error kinds of its own.
fn reason(error: &redis::RedisError) -> String {
    let text = error.to_string().to_lowercase();
    text.split(" - ").next().unwrap_or(&text).to_owned()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.raw().contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", percent_encode(path.as_os_str().as_bytes(), ESCAPED)),
        }
    }
}

impl Session {
    /// Returns the scheme of a URL for this session.
    pub fn scheme(&self) -> &'static str {
        if self.trust.is_some() { "rediss" } else { "redis" }
    }

    /// Returns the user as it precedes the host in a URL.
    pub fn user(&self) -> String {
        let user = self.login.as_ref().and_then(|login| login.user.as_deref());
        user.map(|user| format!("{}@", escaped(user))).unwrap_or_default()
    }

    /// Returns the database as it ends a URL.
    pub fn path(&self) -> String {
        if self.db == 0 { String::new() } else { format!("/{}", self.db) }
    }
}

/// Escapes a word for any part of a URL.
pub fn escaped(word: &str) -> String {
    utf8_percent_encode(word, ESCAPED_WORD).to_string()
}

/// Without the password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { address, session } = self;
        match address {
            Address::Tcp { .. } => write!(f, "{}://{}{address}{}", session.scheme(), session.user(), session.path()),
            Address::Unix(_) if session.db == 0 => write!(f, "unix://{address}"),
            Address::Unix(_) => write!(f, "unix://{address}?db={}", session.db),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::credentials::Secret;
    use crate::wait::Limit;

    fn login(url: &str, credentials: &Credentials) -> Option<(Option<String>, String)> {
        let endpoint = Endpoint::parse(Scheme::Tcp, url, PORT, credentials).unwrap();
        endpoint
            .session
            .login
            .map(|login| (login.user.clone(), login.password(Limit::NONE).unwrap().reveal().to_owned()))
    }

    #[test]
    fn the_password_and_user_are_percent_decoded() {
        let expected = Some((Some("u@x".to_owned()), "p/q".to_owned()));
        assert_eq!(login("u%40x:p%2Fq@h", &Credentials::default()), expected);
    }

    #[test]
    fn a_user_in_the_url_and_a_password_from_elsewhere_are_one_login() {
        let credentials = Credentials::of_fallback(Secret::of("pw".into()));
        for (scheme, rest) in [(Scheme::Tcp, "bob@h"), (Scheme::Unix, "/s?user=bob")] {
            let login =
                Endpoint::parse(scheme, rest, PORT, &credentials).ok().and_then(|endpoint| endpoint.session.login);
            assert_eq!(
                login.as_ref().map(|login| login.password(Limit::NONE).unwrap().reveal().to_owned()).as_deref(),
                Some("pw")
            );
            assert_eq!(login.and_then(|login| login.user).as_deref(), Some("bob"));
            assert!(
                Endpoint::parse(scheme, rest, PORT, &Credentials::default()).is_err_and(|cause| !cause.contains("bob"))
            );
        }
    }
}
