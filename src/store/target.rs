//! A URL says where locks live: which kind of authority, and which one. No I/O.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::access::{Access, Secret};
use super::endpoint::{self, Address, Endpoint, Entry, Scheme};
use super::local::Directory;
use super::route::{Cluster, Route, SENTINEL_PORT, Sentinels};
use super::{Kind, Trouble, several};

/// Where locks live.
#[derive(Clone)]
pub enum Target {
    Redis(Route),
    /// Several masters that know nothing of each other: what a majority says counts.
    Quorum(Vec<Endpoint>),
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

const FORMS: &str = "write redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path/to/socket[?db=N], \
                     redis+sentinel://host,host/master-name[/db], redis+cluster://host,host, local: or \
                     local:/path/to/directory";

impl Target {
    /// The server, or several, that the command line or the environment names.
    ///
    /// # Errors
    /// None named, a URL that says nothing we understand, or servers that cannot be used together.
    pub fn choose<'a>(
        servers: impl IntoIterator<Item = &'a str>,
        redis_url: Option<&str>,
        access: &Access,
    ) -> Result<Target, Trouble> {
        let servers: Vec<&str> = servers.into_iter().flat_map(several::parted).collect();
        let (urls, by) = match servers.is_empty() {
            false => (servers, Named::Server),
            true => (redis_url.map(several::parted).unwrap_or_default(), Named::RedisUrl),
        };
        let parse = |url| Target::parse(url, access).map_err(|came| misconfigured(by, came));
        match urls.as_slice() {
            [] => Err(none_named()),
            [url] => parse(url),
            several => several::together(several.iter().copied().map(parse).collect::<Result<_, _>>()?),
        }
    }

    /// Each of the servers, as it may be named again. Without the password.
    pub fn servers(&self) -> Vec<String> {
        match self {
            Target::Quorum(endpoints) => endpoints.iter().map(ToString::to_string).collect(),
            Target::Redis(_) | Target::Local(_) => vec![self.to_string()],
        }
    }

    /// Whether there is one master, that others know and copy.
    pub fn is_one_master(&self) -> bool {
        match self {
            Target::Redis(_) => true,
            Target::Quorum(_) | Target::Local(_) => false,
        }
    }

    /// Whether a URL says who we are.
    pub fn has_login(&self) -> bool {
        match self {
            Target::Redis(route) => route.entry().login.is_some(),
            Target::Quorum(endpoints) => endpoints.iter().any(|endpoint| endpoint.entry.login.is_some()),
            Target::Local(_) => false,
        }
    }

    /// The URLs, as they may be shown; nothing of what cannot be understood.
    pub fn shown<'a>(urls: impl IntoIterator<Item = &'a str>) -> Option<Vec<String>> {
        // Whatever is missing in them, it is not to be seen.
        let access = Access { fallback: Secret::of("any".into()), ..Access::default() };
        let shown = |url| Target::parse(url, &access).map(|target| target.to_string()).ok();
        urls.into_iter().flat_map(several::parted).map(shown).collect()
    }

    fn parse(text: &str, access: &Access) -> Result<Target, String> {
        if let Some(path) = here(text) {
            return Directory::named(path).map(Target::Local);
        }
        let (scheme, rest) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).ok_or("it is not a URL")?;
        let known = scheme.to_ascii_lowercase().replacen("valkey", "redis", 1);
        let one = |scheme| Endpoint::parse(scheme, rest, endpoint::PORT, access).map(Route::Straight);
        let route = match known.replacen("rediss", "redis+tls", 1).as_str() {
            "redis" => one(Scheme::Tcp)?,
            "redis+tls" => one(Scheme::Tls)?,
            "redis+unix" | "unix" => one(Scheme::Unix)?,
            "redis+sentinel" => sentinels(Scheme::Tcp, rest, access)?,
            "redis+tls+sentinel" => sentinels(Scheme::Tls, rest, access)?,
            "redis+cluster" => cluster(Scheme::Tcp, rest, access)?,
            "redis+tls+cluster" => cluster(Scheme::Tls, rest, access)?,
            _ => {
                let schemes = "redis, rediss, redis+unix, unix, redis+sentinel, redis+cluster, local";
                return Err(format!("the scheme `{scheme}` is not one of {schemes}"));
            }
        };
        Ok(Target::Redis(route))
    }
}

/// `[user:password@]host,host/master-name[/db]`
fn sentinels(scheme: Scheme, rest: &str, access: &Access) -> Result<Route, String> {
    let (hosts, entry, path) = several(scheme, rest, SENTINEL_PORT, access)?;
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    let name = percent_decode_str(name).decode_utf8().map_err(|_| "the master's name is not UTF-8")?;
    if name.is_empty() {
        return Err("behind the sentinels there must be the name of a master: host,host/NAME".into());
    }
    let db = match db {
        "" => 0,
        db => db
            .parse()
            .ok()
            .filter(|db| *db >= 0)
            .ok_or("behind the master's name there must be a database, or nothing")?,
    };
    Ok(Route::Sentinel(Sentinels::new(hosts, name.into_owned(), Entry { db, ..entry })))
}

/// `[user:password@]host,host`
fn cluster(scheme: Scheme, rest: &str, access: &Access) -> Result<Route, String> {
    let (hosts, entry, path) = several(scheme, rest, endpoint::PORT, access)?;
    if !matches!(path, "" | "0") {
        return Err("a cluster has database 0 alone".into());
    }
    Ok(Route::Cluster(Cluster::new(hosts, entry)))
}

/// Servers that are let in by the same login, and what stands behind them.
fn several<'a>(
    scheme: Scheme,
    rest: &'a str,
    port: u16,
    access: &Access,
) -> Result<(Vec<Address>, Entry, &'a str), String> {
    let (login, behind) = rest.rsplit_once('@').map_or(("", rest), |(login, behind)| (&rest[..=login.len()], behind));
    let (hosts, path) = behind.split_once('/').unwrap_or((behind, ""));
    if path.contains(['?', '#', ',']) || path.contains(char::is_whitespace) || path.contains(char::is_control) {
        return Err("behind its hosts there stands what is not understood".into());
    }
    let endpoints = hosts.split(',').map(|host| Endpoint::parse(scheme, &format!("{login}{host}"), port, access));
    let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
    let entry = endpoints.first().map(|endpoint| endpoint.entry.clone()).unwrap_or_default();
    Ok((endpoints.into_iter().map(|endpoint| endpoint.address).collect(), entry, path))
}

/// What stands behind `local:`, which wants no password from anybody.
pub fn here(url: &str) -> Option<&str> {
    url.trim().split_once(':').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("local")).map(|(_, path)| path)
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
        Named::Server => "--server (or NXLOCK_SERVER, or a configuration file)",
        Named::RedisUrl => "REDIS_URL",
    };
    Trouble { kind: Kind::Misconfigured, tried: format!("the URL in {by} cannot be used"), came, remedy: FORMS.into() }
}

/// Without the password.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Redis(route) => route.fmt(f),
            Target::Quorum(_) => f.write_str(&self.servers().join(" ")),
            Target::Local(directory) => directory.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Target::parse(url, &Access::default()).map_or_else(|came| format!("! {came}"), |target| target.to_string())
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
            ("rediss://h/2", "rediss://h:6379/2"),
            ("valkeys://bob:s3cret@h", "rediss://bob@h:6379"),
            ("redis+sentinel://b,a:1/main", "redis+sentinel://a:1,b:26379/main"),
            ("rediss+sentinel://:s3cret@[::1],b/my%20main/3", "rediss+sentinel://[::1]:26379,b:26379/my%20main/3"),
            ("redis+cluster://bob:s3cret@a,b:7001/0", "redis+cluster://bob@a:6379,b:7001"),
            ("valkeys+cluster://a", "rediss+cluster://a:6379"),
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
            "redis+sentinel://a,b",
            "redis+sentinel://a,b/main/s3cret",
            "redis+sentinel://a,,b/main",
            "redis+sentinel://a b/main",
            "redis+sentinel://a/main?s3cret",
            "redis+cluster://a/1",
            "redis+cluster://s3cret@a",
            "rediss+unix:///s",
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
            let trouble = Target::choose(server, redis_url, &Access::default()).map(|_| ()).unwrap_err();
            assert_eq!(trouble.kind, Kind::Misconfigured);
        }
        assert!(Target::choose(["", " "], Some("redis://h"), &Access::default()).is_ok());
    }
}
