//! A URL says where locks live: which kind of authority, and which one. No I/O.

use std::fmt;

use super::endpoint::{Endpoint, Scheme};
use super::local::Directory;
use super::{Kind, Trouble};

/// Where locks live.
#[derive(Clone)]
pub enum Target {
    Redis(Endpoint),
    /// This machine, without a server.
    Local(Directory),
}

/// What named the server, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// `--server`, or NXLOCK_SERVER.
    Server,
    /// REDIS_URL.
    RedisUrl,
}

const FORMS: &str = "write redis://[user:password@]host[:port][/db], unix:///path/to/socket[?db=N], local: or \
                     local:/path/to/directory";

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
        Target::parse(url.trim()).map_err(|came| misconfigured(by, came))
    }

    fn parse(text: &str) -> Result<Target, String> {
        if let Some((scheme, path)) = text.split_once(':')
            && scheme.eq_ignore_ascii_case("local")
        {
            return Directory::named(path).map(Target::Local);
        }
        let (scheme, rest) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).ok_or("it is not a URL")?;
        let scheme = match scheme.to_ascii_lowercase().replacen("valkey", "redis", 1).as_str() {
            "redis" => Scheme::Tcp,
            "redis+unix" | "unix" => Scheme::Unix,
            _ => return Err(format!("the scheme `{scheme}` is not one of redis, redis+unix, unix, local")),
        };
        Endpoint::parse(scheme, rest).map(Target::Redis)
    }
}

/// What may be repeated. Anything else that stands there is no scheme, and perhaps a password.
fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

fn none_named() -> Trouble {
    Trouble {
        kind: Kind::Misconfigured,
        tried: "no lock server is named".into(),
        came: "there is no default, lest two hosts lock in different places".into(),
        remedy: "name it in one of three ways:\n  nxlock -s redis://host:6379 ...\n  \
                 export NXLOCK_SERVER=redis://host:6379\n  export REDIS_URL=redis://host:6379\n\
                 or, where this machine alone is to agree:\n  nxlock -s local: ..."
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
        match self {
            Target::Redis(endpoint) => endpoint.fmt(f),
            Target::Local(directory) => directory.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Target::parse(url).map_or_else(|came| format!("! {came}"), |target| target.to_string())
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
            ("unix:///a%20b%1B%25", "unix:///a%20b%1B%25"),
            ("local:", "local:"),
            ("LOCAL:/var/lib/my locks", "local:/var/lib/my locks"),
            ("local:///srv/locks", "local:/srv/locks"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn a_long_directory_is_shown_whole_since_it_is_typed_again() {
        let url = format!("local:/{}", "d".repeat(1000));
        assert_eq!(shown(&url), url);
    }

    #[test]
    fn a_url_that_would_be_misread_is_refused_without_being_repeated() {
        for url in [
            "host:6379",
            "http://s3cret@h",
            "redis://s3cret@h",
            "redis://:s3cret#x@h",
            "redis://h?password=s3cret",
            "redis://bob:12?s3cret@h",
            ":s3cret@h://",
            "redis://h/s3cret",
            "redis://h/-1",
            "redis://a redis://b",
            "redis://a,redis://b",
            "redis://:s3cret@a:1,b:2",
            "redis://",
            "unix://relative",
            "local",
            "local:relative",
            "local:/s3cret\u{202e}",
            "local://host/path",
        ] {
            let text = shown(url);
            assert!(text.starts_with("! "), "{url}: {text}");
            assert!(!text.contains("s3cret"), "{url}: {text}");
        }
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
