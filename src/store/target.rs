//! A URL says where locks live: parsing and printing, no I/O. A password goes in and never out.

use std::fmt;
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::{Kind, Trouble};

/// Where a lock server is, and who we are there.
#[derive(Clone)]
pub struct Target {
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

/// What named the server, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// `--server`, or NXLOCK_SERVER.
    Server,
    /// REDIS_URL.
    RedisUrl,
}

const FORMS: &str = "write redis://[user:password@]host[:port][/db] or unix:///path/to/socket[?db=N]";

impl Target {
    /// The server that the command line or the environment names.
    ///
    /// # Errors
    /// None named, or a URL that says nothing we understand.
    pub fn choose(server: Option<&str>, redis_url: Option<&str>) -> Result<Target, Trouble> {
        let named =
            |text: Option<&str>, by| text.filter(|text| !text.trim().is_empty()).map(|text| (text.to_owned(), by));
        let Some((url, by)) = named(server, Named::Server).or_else(|| named(redis_url, Named::RedisUrl)) else {
            return Err(none_named());
        };
        Target::parse(url.trim(), by)
    }

    fn parse(text: &str, by: Named) -> Result<Target, Trouble> {
        let bad = |came: String| misconfigured(by, came);
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("it is not a URL".into()))?;
        let scheme = match scheme.to_ascii_lowercase().replacen("valkey", "redis", 1).as_str() {
            "redis" => "redis",
            "redis+unix" | "unix" => "redis+unix",
            _ => {
                return Err(bad(format!(
                    "the scheme `{}` is not one of redis, redis+unix, unix",
                    scheme.escape_debug()
                )));
            }
        };
        // White space and commas separate servers in a variable; in a user or password a comma is one.
        let behind_login = rest.rsplit('@').next().unwrap_or(rest);
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) || behind_login.contains(',') {
            return Err(bad("it names several servers, and only one can be used".into()));
        }
        let url =
            redis::parse_redis_url(&format!("{scheme}://{rest}")).ok_or_else(|| bad("it cannot be parsed".into()))?;
        let known: &[&str] = if scheme == "redis" { &[] } else { &["db", "user", "pass"] };
        if let Some((key, _)) = url.query_pairs().find(|(key, _)| !known.contains(&key.as_ref())) {
            return Err(bad(format!("nothing is known of `?{}=`", key.escape_debug())));
        }
        if url.fragment().is_some() {
            return Err(bad("there is a `#` in it: write %23 in a password".into()));
        }
        if scheme == "redis" && !url.username().is_empty() && url.password().is_none() {
            return Err(bad("it has a user and no password: write redis://:PASSWORD@host for a password alone".into()));
        }
        let info = url.into_connection_info().map_err(|e| bad(reason(&e)))?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port: *port }
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(bad("it names a server that cannot be reached from here".into())),
        };
        let settings = info.redis_settings();
        if settings.db() < 0 {
            return Err(bad(format!("there is no database {}", settings.db())));
        }
        let login = settings
            .password()
            .map(|password| Login { user: settings.username().map(str::to_owned), password: password.to_owned() });
        Ok(Target { address, login, db: settings.db() })
    }
}

/// What the redis crate says of a URL; it repeats none of it. Behind a dash it names its own kinds.
fn reason(error: &redis::RedisError) -> String {
    let text = error.to_string().to_lowercase();
    text.split(" - ").next().unwrap_or(&text).to_owned()
}

fn none_named() -> Trouble {
    Trouble {
        kind: Kind::Misconfigured,
        tried: "no lock server is named".into(),
        came: "there is no default, lest two hosts lock in different places".into(),
        remedy: "name it in one of three ways:\n  nxlock -s redis://host:6379 ...\n  \
                 export NXLOCK_SERVER=redis://host:6379\n  export REDIS_URL=redis://host:6379"
            .into(),
    }
}

/// The URL itself is not repeated: it may hold a password in any of its parts.
fn misconfigured(by: Named, came: String) -> Trouble {
    let by = match by {
        Named::Server => "--server (or NXLOCK_SERVER)",
        Named::RedisUrl => "REDIS_URL",
    };
    Trouble { kind: Kind::Misconfigured, tried: format!("the URL in {by} cannot be used"), came, remedy: FORMS.into() }
}

/// Without the password.
impl fmt::Display for Target {
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
                write!(f, "unix://{}", path.display())?;
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

    fn shown(url: &str) -> String {
        Target::parse(url, Named::Server).map_or_else(|e| format!("! {}", e.came), |target| target.to_string())
    }

    #[test]
    fn a_url_names_a_server_and_is_shown_without_its_password() {
        for (url, expected) in [
            ("redis://h", "redis://h:6379"),
            ("REDIS://h:7000/3", "redis://h:7000/3"),
            ("valkey://h", "redis://h:6379"),
            ("redis://:s3cret@h", "redis://h:6379"),
            ("redis://bob:s3cret@h/1", "redis://bob@h:6379/1"),
            ("redis://[::1]:6380", "redis://[::1]:6380"),
            ("unix:///run/r.sock", "unix:///run/r.sock"),
            ("redis+unix:///run/r.sock?db=2", "unix:///run/r.sock?db=2"),
            ("valkey+unix:///run/r.sock?user=bob&pass=s3cret", "unix:///run/r.sock"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn a_url_that_would_be_misread_is_refused_without_being_repeated() {
        for url in [
            "host:6379",
            "http://s3cret@h",
            "redis://s3cret@h",
            "redis://:s3cret#x@h",
            "redis://h?password=s3cret",
            "redis://h/s3cret",
            "redis://h/-1",
            "redis://a redis://b",
            "redis://a,redis://b",
            "redis://:s3cret@a:1,b:2",
            "redis://",
            "unix://relative",
        ] {
            let text = shown(url);
            assert!(text.starts_with("! "), "{url}: {text}");
            assert!(!text.contains("s3cret"), "{url}: {text}");
        }
    }

    #[test]
    fn the_password_and_user_are_percent_decoded() {
        let target = Target::parse("redis://u%40x:p%2Fq@h", Named::Server).unwrap();
        let login = target.login.unwrap();
        assert_eq!((login.user.as_deref(), login.password.as_str()), (Some("u@x"), "p/q"));
    }

    #[test]
    fn an_empty_name_is_no_name() {
        for (server, redis_url) in [(None, None), (Some(""), None), (Some(" "), Some(""))] {
            let trouble = Target::choose(server, redis_url).map(|_| ()).unwrap_err();
            assert_eq!(trouble.kind, Kind::Misconfigured);
        }
        assert!(Target::choose(Some(""), Some("redis://h")).is_ok());
    }
}
