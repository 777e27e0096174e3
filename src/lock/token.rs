//! The value in the key: what it looks like, what it says, and what of it may be shown.
//!
//! `nx1:<128 random bits, base32>:<user>@<host>:<pid>:<unix ms>:<reason>`, printable ASCII, fields
//! percent-encoded, 256 bytes at most. The random part decides; the rest is for people.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const VERSION: &str = "nx1";
const MAX_LEN: usize = 256;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const RANDOM_LEN: usize = 26;
const ID_LEN: usize = 8;
/// What may stand in a field as it is; the separators are not among it.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b'+');

/// The variable that carries the tokens of all runs around a process, to runs within them: separated by
/// spaces, the innermost last.
pub const HELD: &str = "NXLOCK_HELD";

/// Proof of a claim. Chosen before the first request, so that asking again after a lost reply is
/// the same question; never used for a second claim. Whole, it is shown to its owner only.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The first characters of a token's random part: enough for people to tell holders apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderId(String);

/// Who asks: a process on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: String,
    pub host: String,
    pub pid: u32,
}

/// What a token in the format above says.
pub struct Told {
    pub id: HolderId,
    pub owner: Owner,
    pub born: SystemTime,
    pub reason: Option<String>,
}

impl Token {
    /// A new token for a claim by `owner`, born `now`. A reason that does not fit is cut.
    ///
    /// # Errors
    /// If the kernel has no random bits to give, getrandom(2).
    pub fn mint(owner: &Owner, reason: Option<&str>, now: SystemTime) -> anyhow::Result<Token> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).context("no random bits for a token")?;
        let bits = u128::from_be_bytes(random);
        // 26 places of 5 bits are 130: the last place has its lowest two bits empty.
        let place = |i: usize| if i < 25 { bits >> (123 - 5 * i) } else { bits << 2 };
        let random = (0..RANDOM_LEN).map(|i| char::from(BASE32[(place(i) & 31) as usize]));
        let born = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut text = format!("{VERSION}:{}", random.collect::<String>());
        text += &format!(":{}@{}:{}:{born}:", field(&owner.user, 40), field(&owner.host, 80), owner.pid);
        let room = MAX_LEN - text.len();
        text += &field(reason.unwrap_or_default(), room);
        Ok(Token(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that no other token has; all of it, where it is not one of ours.
    pub fn random_part(&self) -> &str {
        self.0.split(':').nth(1).unwrap_or(&self.0)
    }

    /// What a value says if it is a token of this format.
    pub fn read(value: &[u8]) -> Option<Told> {
        let text = std::str::from_utf8(value).ok()?;
        let mut fields = text.split(':');
        let mut next = || fields.next();
        if next()? != VERSION {
            return None;
        }
        let random = next()?;
        let (user, host) = next()?.split_once('@')?;
        let pid = next()?.parse().ok()?;
        let born = Duration::from_millis(next()?.parse().ok()?);
        let reason = unescaped(next()?);
        if random.len() != RANDOM_LEN || !random.bytes().all(|b| BASE32.contains(&b)) {
            return None;
        }
        Some(Told {
            id: HolderId(random[..ID_LEN].to_owned()),
            owner: Owner { user: unescaped(user), host: unescaped(host), pid },
            born: SystemTime::UNIX_EPOCH.checked_add(born)?,
            reason: Some(reason).filter(|reason| !reason.is_empty()),
        })
    }
}

/// A field, percent-encoded, cut to at most `room` bytes between characters.
fn field(text: &str, room: usize) -> String {
    let mut encoded = String::new();
    for c in text.chars() {
        let next = utf8_percent_encode(c.encode_utf8(&mut [0; 4]), ESCAPED).to_string();
        if encoded.len() + next.len() > room {
            break;
        }
        encoded += &next;
    }
    encoded
}

fn unescaped(field: &str) -> String {
    percent_decode_str(field).decode_utf8_lossy().into_owned()
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 4 * MAX_LEN || text.chars().any(char::is_control) {
            return Err("not a token: give what `nxlock acquire` printed".into());
        }
        Ok(Token(text.to_owned()))
    }
}

/// Never the whole token: a debug print must not become a way to take a lock away.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = Token::read(self.0.as_bytes()).map_or("?".to_owned(), |told| told.id.to_string());
        write!(f, "Token({id}…)")
    }
}

impl HolderId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HolderId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() != ID_LEN || !text.bytes().all(|b| BASE32.contains(&b)) {
            return Err(format!("not a holder's id: {ID_LEN} characters, as `nxlock status` shows them"));
        }
        Ok(HolderId(text.to_owned()))
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Owner {
    /// This process. Names that cannot be found out are "unknown" and the user's number.
    pub fn this_process() -> Owner {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Owner {
            user: user_name(),
            host: host.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into()),
            pid: std::process::id(),
        }
    }
}

/// The effective user's name, by /etc/passwd and then the environment. Not by getpwuid(3): its
/// modules are loaded at run time, which a statically linked program cannot rely on.
fn user_name() -> String {
    let uid = nix::unistd::geteuid().as_raw().to_string();
    let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
    let passwd = String::from_utf8_lossy(&passwd);
    let known = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    let told = || std::env::var("LOGNAME").or_else(|_| std::env::var("USER")).ok();
    known.or_else(told).filter(|name| !name.is_empty()).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(user: &str, host: &str) -> Owner {
        Owner { user: user.into(), host: host.into(), pid: 4711 }
    }

    #[test]
    fn a_token_tells_what_went_into_it() {
        let born = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_000_000_123);
        let token = Token::mint(&owner("al:ice", "web@3"), Some("why: 50 % \u{1b}[31m é"), born).unwrap();
        assert!(token.as_str().bytes().all(|b| b.is_ascii_graphic()), "{}", token.as_str());
        let told = Token::read(token.as_str().as_bytes()).unwrap();
        assert_eq!(told.owner, owner("al:ice", "web@3"));
        assert_eq!(told.born, born);
        assert_eq!(told.reason.as_deref(), Some("why: 50 % \u{1b}[31m é"));
        assert_eq!(told.id.as_str(), &token.as_str()[4..12]);
    }

    #[test]
    fn a_token_is_at_most_256_bytes_and_cut_between_characters() {
        let long = "ü".repeat(300);
        let token = Token::mint(&owner(&long, &long), Some(&long), SystemTime::UNIX_EPOCH).unwrap();
        assert!(token.as_str().len() <= MAX_LEN, "{}", token.as_str().len());
        let told = Token::read(token.as_str().as_bytes()).unwrap();
        assert!(told.reason.unwrap().chars().all(|c| c == 'ü'));
    }

    #[test]
    fn tokens_differ_in_every_place_of_their_random_part() {
        let mint = || Token::mint(&owner("a", "b"), None, SystemTime::UNIX_EPOCH).unwrap();
        let many: Vec<_> = (0..200).map(|_| mint()).collect();
        for place in 4..4 + RANDOM_LEN {
            let first = many[0].as_str().as_bytes()[place];
            assert!(many.iter().any(|token| token.as_str().as_bytes()[place] != first), "place {place}");
        }
    }

    #[test]
    fn foreign_values_are_not_tokens() {
        for value in ["", "1800000000", "nx1:", "nx1:abc:u@h:1:2:", "nx2:aaaaaaaaaaaaaaaaaaaaaaaaaa:u@h:1:2:"] {
            assert!(Token::read(value.as_bytes()).is_none(), "{value:?}");
        }
        assert!(Token::read(&[0xff, 0xfe]).is_none());
    }

    #[test]
    fn a_debug_print_does_not_give_a_token_away() {
        let token = Token::mint(&owner("a", "b"), None, SystemTime::UNIX_EPOCH).unwrap();
        assert!(!format!("{token:?}").contains(&token.as_str()[12..30]));
    }
}
