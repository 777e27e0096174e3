//! Several servers named at once: where one ends and the next begins, and which may vote together. No I/O.

use super::endpoint::Endpoint;
use super::route::Route;
use super::target::Target;
use super::{Kind, Trouble};

/// A text parted where white space or a comma stands before what begins like another server: either may
/// also stand within a path, or between the hosts of one URL.
pub fn parted(text: &str) -> Vec<&str> {
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
    parts.push(&text[begin..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn begins_a_server(text: &str) -> bool {
    let scheme = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')).count();
    let (scheme, rest) = text.split_at(scheme);
    !scheme.is_empty() && (rest.starts_with("://") || (scheme.eq_ignore_ascii_case("local") && rest.starts_with(':')))
}

/// What several servers are together.
///
/// # Errors
/// If they cannot outvote each other.
pub fn together(targets: Vec<Target>) -> Result<Target, Trouble> {
    let mut endpoints: Vec<Endpoint> = Vec::with_capacity(targets.len());
    for target in targets {
        let Target::Redis(Route::Straight(endpoint)) = target else {
            // Behind white space in a password, what is taken for a directory may be its rest.
            let whom = if let Target::Local(_) = target { "local:".to_owned() } else { target.to_string() };
            return Err(senseless(
                format!("{whom} cannot be one of several servers"),
                "name servers of their own, redis://, rediss:// or unix://, or this one alone",
            ));
        };
        // Another database of a server goes down with it.
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

fn senseless(came: String, remedy: &str) -> Trouble {
    Trouble { kind: Kind::Usage, tried: "these servers cannot be used".into(), came, remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Access;

    #[test]
    fn white_space_and_commas_part_servers_only_where_another_begins() {
        for (text, parts) in [
            ("redis://a", &["redis://a"][..]),
            ("redis://a redis://b\tvalkey://c", &["redis://a", "redis://b", "valkey://c"]),
            ("redis://a,redis://b, unix:///c d", &["redis://a", "redis://b", "unix:///c d"]),
            (" redis://a ,, redis://b\n", &["redis://a", "redis://b"]),
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

    fn chosen(servers: &[&str]) -> Result<String, Kind> {
        let target = Target::choose(servers.iter().copied(), None, &Access::default());
        target.map(|target| target.to_string()).map_err(|trouble| trouble.kind)
    }

    #[test]
    fn three_or_more_servers_vote() {
        assert_eq!(
            chosen(&["redis://a", "redis://b,redis://c"]),
            Ok("redis://a:6379 redis://b:6379 redis://c:6379".into())
        );
        assert!(chosen(&["redis://a redis://b redis://c redis://d"]).is_ok(), "an even number too");
        assert_eq!(chosen(&["redis://a", ""]), Ok("redis://a:6379".into()));
        // What is several by --server is never the name of one directory by REDIS_URL.
        for text in ["redis://a redis://b redis://c", "local:/a,redis://b"] {
            let by_variable = Target::choose(None, Some(text), &Access::default());
            assert_eq!(by_variable.map(|target| target.to_string()).map_err(|trouble| trouble.kind), chosen(&[text]));
        }
    }

    #[test]
    fn what_may_be_the_rest_of_a_password_is_not_repeated() {
        let trouble = Target::choose(["redis://u local:/s3cr3tpw@host"], None, &Access::default()).err();
        let said = trouble.expect("it is refused").to_string();
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
            assert_eq!(chosen(servers), Err(Kind::Usage), "{servers:?}");
        }
        for servers in [&["redis://a", "redis://b", "c"][..], &["local:/a", "redis:"], &["redis://a b redis://c"]] {
            assert_eq!(chosen(servers), Err(Kind::Misconfigured), "{servers:?}");
        }
    }
}
