//! Parses the URLs that say where locks live: the kind of store, the servers, and which of several may vote together.
//! No I/O.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::local::Directory;
use super::redis::credentials::{Credentials, Secret};
use super::redis::endpoint::{self, Address, Endpoint, Scheme, Session};
use super::redis::topology::{Cluster, SENTINEL_PORT, Sentinels, Topology};
use crate::error::{Error, ErrorKind};

const NO_URL: &str = "it is not a URL";

/// The place where locks live.
#[derive(Clone)]
pub enum Target {
    Redis(Topology),
    /// Several masters that know nothing of each other: a majority decides.
    Quorum(Vec<Endpoint>),
    /// This machine, without a server.
    Local(Directory),
}

/// The source of a URL, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedBy {
    /// `--server`, or NXLOCK_SERVER.
    Server,
    /// REDIS_URL.
    RedisUrl,
}

const FORMS: &str = "write redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path/to/socket[?db=N], \
                     redis+sentinel://host,host/master-name[/db], redis+cluster://host,host, local: or \
                     local:/path/to/directory";

impl Target {
    /// Returns the target that the command line or the environment names.
    ///
    /// # Errors
    /// If none is named, a URL cannot be parsed, or the servers cannot be used together.
    pub fn choose<'a>(
        servers: impl IntoIterator<Item = &'a str>,
        redis_url: Option<&str>,
        credentials: &Credentials,
    ) -> Result<Target, Error> {
        let servers: Vec<&str> = servers.into_iter().flat_map(parted).collect();
        let (urls, by) = match servers.is_empty() {
            false => (servers, NamedBy::Server),
            true => (redis_url.map(parted).unwrap_or_default(), NamedBy::RedisUrl),
        };
        let parse = |url| Target::parse(url, credentials).map_err(|cause| misconfigured(by, url, cause));
        match urls.as_slice() {
            [] => Err(none_named()),
            [url] => parse(url),
            hosts_of => together(hosts_of.iter().copied().map(parse).collect::<Result<_, _>>()?),
        }
    }

    /// Returns the URL of each server, as nxlock accepts it again. Without the password.
    pub fn servers(&self) -> Vec<String> {
        match self {
            Target::Quorum(endpoints) => endpoints.iter().map(ToString::to_string).collect(),
            Target::Redis(_) | Target::Local(_) => vec![self.to_string()],
        }
    }

    /// Returns whether the URLs, or the credentials they were parsed with, yield a login.
    pub fn has_login(&self) -> bool {
        match self {
            Target::Redis(topology) => topology.session().login.is_some(),
            Target::Quorum(endpoints) => endpoints.iter().any(|endpoint| endpoint.session.login.is_some()),
            Target::Local(_) => false,
        }
    }

    /// Returns the URLs as they may be shown, or nothing if one cannot be parsed.
    pub fn shown<'a>(urls: impl IntoIterator<Item = &'a str>, has_password: bool) -> Option<Vec<String>> {
        let targets = Target::to_show(urls, has_password)?;
        Some(targets.iter().map(ToString::to_string).collect())
    }

    /// Returns the targets that URLs name, each alone, or nothing if one cannot be parsed. In a URL without a password, what
    /// looks like a user may be a password that lacks its colon: it counts as a user only if there is a password from
    /// elsewhere.
    pub fn to_show<'a>(urls: impl IntoIterator<Item = &'a str>, has_password: bool) -> Option<Vec<Target>> {
        let fallback = Secret::of("any".into()).filter(|_| has_password);
        let credentials = Credentials::of_fallback(fallback);
        let urls: Vec<&str> = urls.into_iter().collect();
        if urls.iter().any(|text| may_hide_a_password(text)) {
            return None;
        }
        urls.into_iter().flat_map(parted).map(|url| Target::parse(url, &credentials).ok()).collect()
    }

    /// Returns whether a password stands in one of the URLs.
    pub fn have_password<'a>(urls: impl IntoIterator<Item = &'a str>) -> bool {
        let mut urls = urls.into_iter().flat_map(parted);
        urls.any(|url| Target::parse(url, &Credentials::default()).is_ok_and(|target| target.has_login()))
    }

    /// Returns the options with which redis-cli(1) finds the key of a lock.
    pub fn redis_cli(&self) -> String {
        match self {
            Target::Redis(Topology::Single(endpoint)) => endpoint.redis_cli(),
            Target::Redis(Topology::Cluster(cluster)) => {
                format!(" -c{}", cluster.seed().as_ref().map(Endpoint::redis_cli).unwrap_or_default())
            }
            Target::Redis(Topology::Sentinel(_)) => " -h MASTER".to_owned(),
            Target::Quorum(_) | Target::Local(_) => String::new(),
        }
    }

    fn parse(text: &str, credentials: &Credentials) -> Result<Target, String> {
        if let Some(path) = here(text) {
            return Directory::named(path).map(Target::Local);
        }
        let (scheme, rest) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).ok_or(NO_URL)?;
        let known = scheme.to_ascii_lowercase().replacen("valkey", "redis", 1);
        let one = |scheme| Endpoint::parse(scheme, rest, endpoint::PORT, credentials).map(Topology::Single);
        let topology = match known.replacen("rediss", "redis+tls", 1).as_str() {
            "redis" => one(Scheme::Tcp)?,
            "redis+tls" => one(Scheme::Tls)?,
            "redis+unix" | "unix" => one(Scheme::Unix)?,
            "redis+sentinel" => sentinels(Scheme::Tcp, rest, credentials)?,
            "redis+tls+sentinel" => sentinels(Scheme::Tls, rest, credentials)?,
            "redis+cluster" => cluster(Scheme::Tcp, rest, credentials)?,
            "redis+tls+cluster" => cluster(Scheme::Tls, rest, credentials)?,
            _ => {
                let schemes = "redis, rediss, redis+unix, unix, redis+sentinel, rediss+sentinel, redis+cluster, \
                               rediss+cluster, local; valkey may stand for redis";
                return Err(format!("the scheme `{scheme}` is not one of {schemes}"));
            }
        };
        Ok(Target::Redis(topology))
    }
}

/// `[user:password@]host,host/master-name[/db]`
fn sentinels(scheme: Scheme, rest: &str, credentials: &Credentials) -> Result<Topology, String> {
    let (hosts, session, path) = hosts_of(scheme, rest, SENTINEL_PORT, credentials)?;
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    let name = percent_decode_str(name).decode_utf8().map_err(|_| "the master's name is not UTF-8")?;
    if name.is_empty() {
        return Err("the master's name is missing after the sentinels: write host,host/NAME".into());
    }
    let db = match db {
        "" => 0,
        db => db.parse().ok().filter(|db| *db >= 0).ok_or("only a database number may follow the master's name")?,
    };
    Ok(Topology::Sentinel(Sentinels::new(hosts, name.into_owned(), Session { db, ..session })))
}

/// `[user:password@]host,host`
fn cluster(scheme: Scheme, rest: &str, credentials: &Credentials) -> Result<Topology, String> {
    let (hosts, session, path) = hosts_of(scheme, rest, endpoint::PORT, credentials)?;
    if !matches!(path, "" | "0") {
        return Err("a cluster has database 0 alone".into());
    }
    Ok(Topology::Cluster(Cluster::new(hosts, session)))
}

/// Parses servers that share a login, and returns the path after them too.
fn hosts_of<'a>(
    scheme: Scheme,
    rest: &'a str,
    port: u16,
    credentials: &Credentials,
) -> Result<(Vec<Address>, Session, &'a str), String> {
    let (login, behind) = rest.rsplit_once('@').map_or(("", rest), |(login, behind)| (&rest[..=login.len()], behind));
    let (hosts, path) = behind.split_once('/').unwrap_or((behind, ""));
    if behind.contains(['?', '#']) || path.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control()) {
        return Err("unexpected text after the host list".into());
    }
    let endpoints = hosts.split(',').map(|host| Endpoint::parse(scheme, &format!("{login}{host}"), port, credentials));
    let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
    let session = endpoints.first().map(|endpoint| endpoint.session.clone()).unwrap_or_default();
    Ok((endpoints.into_iter().map(|endpoint| endpoint.address).collect(), session, path))
}

/// Returns what follows `local:`. Such a URL needs no password.
pub fn here(url: &str) -> Option<&str> {
    url.trim().split_once(':').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("local")).map(|(_, path)| path)
}

/// Returns whether a scheme may be repeated in a message. Any other text in its place is no scheme, and may be a
/// password.
fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

fn none_named() -> Error {
    Error {
        kind: ErrorKind::Misconfigured,
        action: "no lock server is named".into(),
        cause: "nxlock has no default, so that two hosts never lock in different places".into(),
        hint: "name it in one of four ways:\n  nxlock -s redis://host:6379 ...\n  \
                 export NXLOCK_SERVER=redis://host:6379\n  export REDIS_URL=redis://host:6379\n  \
                 server = \"redis://host:6379\" in ~/.config/nxlock/config.toml or /etc/nxlock/config.toml\n\
                 or, where this machine alone is to agree:\n  nxlock -s local: ..."
            .into(),
    }
}

/// Repeats the URL only if it is an address without a scheme: any part of another may contain a password.
fn misconfigured(by: NamedBy, url: &str, cause: String) -> Error {
    let by = match by {
        NamedBy::Server => "--server (or NXLOCK_SERVER, or a configuration file)",
        NamedBy::RedisUrl => "REDIS_URL",
    };
    let action = |shown: &str| format!("the URL{shown} in {by} cannot be used");
    let (action, hint) = match meant(url) {
        Some(meant) => (action(&format!(" \"{url}\"")), format!("write {meant}")),
        // flock(1) has another -s.
        None => (action(""), format!("{FORMS}; for a shared lock, write --shared")),
    };
    Error { kind: ErrorKind::Misconfigured, action, cause, hint }
}

/// Returns the URL that somebody means who gives an address alone: a host and a port, an absolute path, or `local`.
fn meant(address: &str) -> Option<String> {
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    match address.rsplit_once(':') {
        Some((host, port)) if is_plain(host) && port.parse::<u16>().is_ok() => Some(format!("redis://{address}")),
        None if address == "local" => Some("local:".to_owned()),
        None if address == "localhost" => Some("redis://localhost".to_owned()),
        None => {
            let is_path = address.strip_prefix('/').is_some_and(|path| path.split('/').all(is_plain));
            is_path.then(|| {
                format!("unix://{address} for the server's socket, or local:{address} for a directory of locks")
            })
        }
        Some(_) => None,
    }
}

/// Without the password.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Redis(topology) => topology.fmt(f),
            Target::Quorum(_) => f.write_str(&self.servers().join(" ")),
            Target::Local(directory) => directory.fmt(f),
        }
    }
}

/// Splits a text at white space and commas, but only before the beginning of another server: either may also occur
/// within a path, or between the hosts of one URL.
fn parted(text: &str) -> Vec<&str> {
    let is_between = |c: char| c.is_whitespace() || c == ',';
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, c) in text.char_indices() {
        let next = &text[at + c.len_utf8()..];
        if is_between(c) && begins_a_server(next) {
            parts.push(text[begin..at].trim_end_matches(is_between));
            begin = at + c.len_utf8();
        }
    }
    let last = &text[begin..];
    // A directory may have such a name.
    parts.push(if here(last).is_some() { last } else { last.trim_end_matches(is_between) });
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Returns whether a comma after a password parts what looks like servers: what follows may be the rest of the password.
fn may_hide_a_password(text: &str) -> bool {
    let parameter = text.find("pass=").map(|at| &text[at..]);
    parameter.is_some_and(|rest| {
        rest.match_indices(',')
            .any(|(at, _)| begins_a_server(&rest[at + 1..]) && !rest[..at].contains(char::is_whitespace))
    })
}

fn begins_a_server(text: &str) -> bool {
    let scheme = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')).count();
    let (scheme, rest) = text.split_at(scheme);
    !scheme.is_empty() && (rest.starts_with("://") || (scheme.eq_ignore_ascii_case("local") && rest.starts_with(':')))
}

/// Combines several servers into one target.
///
/// # Errors
/// If they cannot outvote each other.
fn together(targets: Vec<Target>) -> Result<Target, Error> {
    let mut endpoints: Vec<Endpoint> = Vec::with_capacity(targets.len());
    for target in targets {
        let Target::Redis(Topology::Single(endpoint)) = target else {
            // What looks like a directory may be the rest of a password with white space.
            let server = if let Target::Local(_) = target { "local:".to_owned() } else { target.to_string() };
            return Err(senseless(
                format!("{server} cannot be one of several servers"),
                "name servers of their own, redis://, rediss:// or unix://, or this one alone",
            ));
        };
        // Another database of the same server fails with it.
        if endpoints.iter().any(|before| before.address == endpoint.address) {
            return Err(senseless(
                format!("{endpoint} is named twice"),
                "a server has one vote: name each once, whatever its databases",
            ));
        }
        endpoints.push(endpoint);
    }
    if endpoints.len() == 2 {
        return Err(senseless("2 servers can't outvote each other".to_owned(), "name 1, or 3 or more"));
    }
    Ok(Target::Quorum(endpoints))
}

fn senseless(cause: String, hint: &str) -> Error {
    Error { kind: ErrorKind::Usage, action: "these servers cannot be used".into(), cause, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Target::parse(url, &Credentials::default())
            .map_or_else(|cause| format!("! {cause}"), |target| target.to_string())
    }

    #[test]
    fn redis_cli_is_told_where_a_key_is() {
        for (url, options) in [
            ("redis://cache", " -h cache -p 6379"),
            ("rediss://bob:pw@cache:7000/2", " -h cache -p 7000 --tls --user bob -n 2"),
            ("unix:///run/my%20redis?db=1", " -s '/run/my redis' -n 1"),
            ("redis+cluster://[::1],b", " -c -h ::1 -p 6379"),
            ("redis+sentinel://a,b/main", " -h MASTER"),
        ] {
            let target = Target::parse(url, &Credentials::default()).unwrap_or_else(|why| panic!("{url}: {why}"));
            assert_eq!(target.redis_cli(), options, "{url}");
        }
    }

    #[test]
    fn a_url_names_a_server_and_is_shown_without_its_password() {
        for (url, expected) in [
            ("redis://h", "redis://h:6379"),
            ("REDIS://h:7000/3", "redis://h:7000/3"),
            ("valkey://h", "redis://h:6379"),
            ("redis://LocalHost", "redis://localhost:6379"),
            ("redis+cluster://A,b", "redis+cluster://a:6379,b:6379"),
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
    fn a_user_without_a_password_may_be_a_password_without_its_colon_and_is_not_shown() {
        for url in [
            "redis://s3cret@h",
            "rediss://s3cret@h/1",
            "unix:///s?user=s3cret",
            "redis+sentinel://s3cret@a,b/main",
            "redis+cluster://s3cret@a,b",
            "redis://a,redis://s3cret@b,redis://c",
        ] {
            assert_eq!(Target::shown([url], false), None, "{url}");
        }
        assert_eq!(Target::shown(["redis://bob@h"], true).unwrap(), ["redis://bob@h:6379"]);
        assert_eq!(
            Target::shown(["redis://bob:s3cret@h redis://h"], false).unwrap(),
            ["redis://bob@h:6379", "redis://h:6379"]
        );
    }

    #[test]
    fn the_rest_of_a_password_with_a_comma_is_not_shown_as_a_server() {
        for url in ["unix:///s?pass=a,redis://s3cret", "unix:///s?user=bob&pass=a,local:s3cret"] {
            assert_eq!(Target::shown([url], false), None, "{url}");
        }
        let two = "unix:///s?pass=a unix:///t?pass=b";
        assert_eq!(Target::shown([two], false).unwrap(), ["unix:///s", "unix:///t"]);
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
            "redis://b\u{fc}cher.example",
            "unix:///s?db=1&db=2",
            "redis+sentinel://bob:pw@h?/main&pass=s3cret",
            "redis+cluster://h?",
            "unix:///s?pass=s3cret&pass=other",
            "redis://a,b,c",
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
            let error = Target::choose(server, redis_url, &Credentials::default()).map(|_| ()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Misconfigured);
        }
        assert!(Target::choose(["", " "], Some("redis://h"), &Credentials::default()).is_ok());
    }

    #[test]
    fn white_space_and_commas_part_servers_only_where_another_begins() {
        for (text, parts) in [
            ("redis://a", &["redis://a"][..]),
            ("redis://a redis://b\tvalkey://c", &["redis://a", "redis://b", "valkey://c"]),
            ("redis://a,redis://b, unix:///c d", &["redis://a", "redis://b", "unix:///c d"]),
            (" redis://a ,, redis://b\n", &["redis://a", "redis://b"]),
            ("redis://a,redis://b,redis://c,", &["redis://a", "redis://b", "redis://c"]),
            ("local:/a,", &["local:/a,"]),
            ("redis://:p,q@a,redis://b", &["redis://:p,q@a", "redis://b"]),
            ("redis+sentinel://a,b,c/main", &["redis+sentinel://a,b,c/main"]),
            ("local:/var/lib/my locks", &["local:/var/lib/my locks"]),
            ("redis://a local:", &["redis://a", "local:"]),
            ("redis://a b", &["redis://a b"]),
            ("", &[]),
        ] {
            assert_eq!(parted(text), parts, "{text}");
        }
    }

    fn chosen(servers: &[&str]) -> Result<String, ErrorKind> {
        let target = Target::choose(servers.iter().copied(), None, &Credentials::default());
        target.map(|target| target.to_string()).map_err(|error| error.kind)
    }

    #[test]
    fn three_or_more_servers_vote() {
        assert_eq!(
            chosen(&["redis://a", "redis://b,redis://c"]),
            Ok("redis://a:6379 redis://b:6379 redis://c:6379".into())
        );
        assert!(chosen(&["redis://a redis://b redis://c redis://d"]).is_ok(), "an even number too");
        assert_eq!(chosen(&["redis://a", ""]), Ok("redis://a:6379".into()));
        // What --server reads as several is never one directory in REDIS_URL.
        for text in ["redis://a redis://b redis://c", "local:/a,redis://b"] {
            let by_variable = Target::choose(None, Some(text), &Credentials::default());
            assert_eq!(by_variable.map(|target| target.to_string()).map_err(|error| error.kind), chosen(&[text]));
        }
    }

    #[test]
    fn what_may_be_the_rest_of_a_password_is_not_repeated() {
        let error = Target::choose(["redis://u local:/s3cr3tpw@host"], None, &Credentials::default()).err();
        let said = error.expect("it is refused").to_string();
        assert!(said.contains("local: cannot be one") && !said.contains("s3cr3tpw"), "{said}");
    }

    #[test]
    fn servers_that_cannot_outvote_each_other_are_refused() {
        for servers in [
            &["redis://a", "redis://b"][..],
            &["redis://a", "redis://a"],
            &["redis://a", "redis://b", "redis://a/1"],
            &["redis://a", "redis://b", "redis://u:p@a:6379"],
            &["redis://a", "redis://b", "local:"],
            &["local:/a", "local:/b", "local:/c"],
        ] {
            assert_eq!(chosen(servers), Err(ErrorKind::Usage), "{servers:?}");
        }
        for servers in [&["redis://a", "redis://b", "c"][..], &["local:/a", "redis:"], &["redis://a b redis://c"]] {
            assert_eq!(chosen(servers), Err(ErrorKind::Misconfigured), "{servers:?}");
        }
    }
}
