//! The value in the key: its format, what it says, and what of it may be shown.
//!
//! `nx1:<128 random bits, base32>:<user>@<host>:<pid>:<unix ms>:<reason>`, printable ASCII, fields percent-encoded, 512
//! bytes at most. Fields with its terms follow, those that apply, in this order: `:N` if others may hold the lock too,
//! at most N in all, or any number if N is 0; `:newest` if its waiter dismisses older ones that say so too; `:running`
//! if that waiter also asks a holder that says so to give up; `:first` if it waits ahead of those that do not; `:noask` if its holder cannot be asked; `:lease` if no
//! process renews the lock; `:as=NAME` if its owner is known to people by another name than user and host. The random part
//! and the terms before that decide; the rest is for people. On a key shared with old
//! `SETNX` clients the value is a bare number, and its *identity*, a token with the number as its random part, is
//! stored beside it.

use super::{SHARED_VALUE, Sharing};
use crate::text::Tainted;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::ValueEnum;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const VERSION: &str = "nx1";
const MAX_LEN: usize = 512;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const RANDOM_LEN: usize = 26;
const ID_LEN: usize = 8;
/// The range of bare numbers: 19 digits, the first from 4 to 8. Read as seconds or as milliseconds, they are far beyond
/// any clock, and they fit in a signed 64-bit integer.
const FIRST_NUMBER: u64 = 4_000_000_000_000_000_000;
const NUMBERS: u64 = 5_000_000_000_000_000_000;
/// The characters that a field escapes, its separators among them.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b'+');

/// The variable that passes the tokens of all enclosing runs to runs within them: separated by spaces, the innermost
/// last.
pub const HELD: &str = "NXLOCK_HELD";

/// Whether a process renews a lock for as long as it needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// A process does, or may: tokens of earlier versions do not tell.
    Renewed,
    /// No process does: the lock expires unless its owner renews it by hand.
    LeaseOnly,
}

/// The field of the token of a lock that nobody renews.
const LEASE_ONLY: &str = "lease";
/// The field of a token whose waiter supersedes, and the one after it if it supersedes a holder too.
const NEWEST: &str = "newest";
const RUNNING: &str = "running";
/// The field of a token that waits ahead of those without it.
const FIRST: &str = "first";
/// The field of a token whose holder cannot be asked to give up.
const NO_ASK: &str = "noask";

/// The beginning of the field with the name by which the owner is known.
const KNOWN_AS: &str = "as=";

/// Whom a claim supersedes that is newer than theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Supersedes {
    #[default]
    #[value(skip)]
    Nobody,
    /// Those who wait with --supersede
    Waiting,
    /// Those, and a holder that runs with --supersede=running: it is asked to give up
    Running,
}

/// What a token says of its claim beside whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub upkeep: Upkeep,
    pub sharing: Sharing,
    pub supersedes: Supersedes,
    /// Its waiter is ahead of those that do not say so too.
    pub goes_first: bool,
    /// Its holder cannot be asked to give up, even if a process renews the lock.
    pub no_ask: bool,
}

impl Terms {
    pub fn exclusive(upkeep: Upkeep) -> Terms {
        let (sharing, supersedes) = (Sharing::Exclusive, Supersedes::Nobody);
        Terms { upkeep, sharing, supersedes, goes_first: false, no_ask: false }
    }

    /// Returns whether a process renews the lock, and may be asked to give it up.
    pub fn may_be_asked(&self) -> bool {
        self.upkeep == Upkeep::Renewed && !self.no_ask
    }

    /// Returns whether its holder gives up for a newer claim that says so too.
    pub fn gives_way(&self) -> bool {
        self.supersedes == Supersedes::Running && self.may_be_asked()
    }
}

/// Proof of a claim. Chosen before the first request, so that a retry after a lost reply is the same request; never
/// reused for a second claim, nor for a second ballot among several servers. Only its owner sees the whole token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(String);

/// The first characters of a token's random part: enough for people to tell holders apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(String);

/// The process that makes a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: Tainted,
    pub host: Tainted,
    pub pid: u32,
    /// What people call it, before user and host: a run of a pipeline, an agent.
    pub known_as: Option<Box<Tainted>>,
}

/// A name by which people know an owner: 1 to 64 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAs(String);

/// The contents of a token in the format above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub id: HolderId,
    pub owner: Owner,
    pub born: SystemTime,
    pub reason: Option<Tainted>,
    pub terms: Terms,
}

impl Token {
    /// Mints a token for a claim by `owner`, born `now`. Cuts a reason that does not fit.
    ///
    /// # Errors
    /// If the kernel provides no random bits, getrandom(2).
    pub fn mint(owner: &Owner, reason: Option<&str>, now: SystemTime) -> anyhow::Result<Token> {
        Token::mint_for(Terms::exclusive(Upkeep::Renewed), owner, reason, now)
    }

    /// Mints a token for a claim on these terms.
    ///
    /// # Errors
    /// As `mint`.
    pub fn mint_for(terms: Terms, owner: &Owner, reason: Option<&str>, now: SystemTime) -> anyhow::Result<Token> {
        Ok(Token(written(&random_part()?, owner, reason, now, terms)))
    }

    /// Returns a token of the same claim with a new random part, so that undoing one never undoes the other.
    ///
    /// # Errors
    /// As `mint`.
    pub fn renamed(&self) -> anyhow::Result<Token> {
        let mut fields: Vec<&str> = self.0.split(':').collect();
        let random = random_part()?;
        if let Some(part) = fields.get_mut(1) {
            *part = &random;
        }
        Ok(Token(fields.join(":")))
    }

    /// Returns a token with the id, the owner and the terms of this one, which proves nothing: others may see it.
    ///
    /// # Errors
    /// As `mint`.
    pub fn alias(&self) -> anyhow::Result<Token> {
        let other = self.renamed()?;
        let (ours, theirs) = (self.random_part(), other.random_part());
        let (Some(id), Some(rest)) = (ours.get(..ID_LEN), theirs.get(ID_LEN..)) else { return Ok(other) };
        let random = format!("{id}{rest}");
        Ok(Token(other.0.replacen(other.random_part(), &random, 1)))
    }

    /// Mints a token that is a bare number, which a client that reads values as times takes for one far in the future.
    ///
    /// # Errors
    /// As `mint`.
    pub fn mint_number() -> anyhow::Result<Token> {
        loop {
            let random = getrandom::u64().context("no random bits for a token")?;
            // Reject the incomplete last multiple of the range, so that each number is equally likely.
            if random < u64::MAX / NUMBERS * NUMBERS {
                return Ok(Token((FIRST_NUMBER + random % NUMBERS).to_string()));
            }
        }
    }

    /// Returns whether `mint_number` may have made this value.
    pub fn is_number(value: &[u8]) -> bool {
        value.len() == 19 && (b'4'..=b'8').contains(&value[0]) && value.iter().all(u8::is_ascii_digit)
    }

    /// Returns whether its lock is shared with old `SETNX` clients.
    pub fn is_beside_setnx(&self) -> bool {
        Token::is_number(self.0.as_bytes())
    }

    /// Returns the token to store beside a bare number, with what the number cannot say.
    pub fn identity(&self, terms: Terms, owner: &Owner, reason: Option<&str>, now: SystemTime) -> String {
        written(&self.0, owner, reason, now, terms)
    }

    /// Returns whether the token says that no process renews its lock.
    pub fn is_lease_only(&self) -> bool {
        self.terms().is_some_and(|terms| terms.upkeep == Upkeep::LeaseOnly)
    }

    /// Returns whether its waiter dismisses older ones of this kind, and is dismissed by newer ones.
    pub fn supersedes(&self) -> bool {
        self.terms().is_some_and(|terms| terms.supersedes != Supersedes::Nobody)
    }

    /// Returns whether its waiter is ahead of those that do not say so too.
    pub fn goes_first(&self) -> bool {
        self.terms().is_some_and(|terms| terms.goes_first)
    }

    /// Returns whether others may hold the lock together with this token.
    pub fn is_share(&self) -> bool {
        self.sharing() != Sharing::Exclusive
    }

    pub fn sharing(&self) -> Sharing {
        self.terms().map_or(Sharing::Exclusive, |terms| terms.sharing)
    }

    /// Returns the terms of its claim; none if it is not in the format above.
    fn terms(&self) -> Option<Terms> {
        Fields::of(self.0.as_bytes()).map(|fields| fields.terms)
    }

    /// Returns the beginning of this number's identity, which no other identity shares.
    pub fn identity_begin(&self) -> String {
        format!("{VERSION}:{}:", self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the id by which people know it; none for a token of another format.
    pub fn id(&self) -> Option<HolderId> {
        let value = self.0.as_bytes();
        let of_number = || Token::is_number(value).then(|| HolderId(self.0[..ID_LEN].to_owned()));
        Token::read(value).map(|told| told.id).or_else(of_number)
    }

    /// Returns the part that no other token has; the whole value if it is not in the format above.
    pub fn random_part(&self) -> &str {
        self.0.split(':').nth(1).unwrap_or(&self.0)
    }

    /// Returns what it says; none if it is not in the format above.
    pub fn told(&self) -> Option<Told> {
        Token::read(self.0.as_bytes())
    }

    /// Parses a value; none if it is not a token of this format.
    pub fn read(value: &[u8]) -> Option<Told> {
        let Fields { random, user, host, pid, born, reason, known_as, terms } = Fields::of(value)?;
        let reason = unescaped(reason);
        Some(Told {
            id: HolderId(random[..ID_LEN].to_owned()),
            owner: Owner {
                user: unescaped(user),
                host: unescaped(host),
                pid,
                known_as: known_as.map(unescaped).map(Box::new),
            },
            born,
            reason: Some(reason).filter(|reason| !reason.raw().is_empty()),
            terms,
        })
    }
}

/// The fields of a token, as they are written.
struct Fields<'a> {
    random: &'a str,
    user: &'a str,
    host: &'a str,
    pid: u32,
    born: SystemTime,
    reason: &'a str,
    known_as: Option<&'a str>,
    terms: Terms,
}

impl<'a> Fields<'a> {
    /// Splits a value; none if it is not a token of this format.
    fn of(value: &'a [u8]) -> Option<Fields<'a>> {
        let text = std::str::from_utf8(value).ok()?;
        let mut fields = text.split(':');
        let mut next = || fields.next();
        if next()? != VERSION {
            return None;
        }
        let random = next()?;
        let (user, host) = next()?.split_once('@')?;
        let pid = next()?.parse().ok()?;
        let born = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(next()?.parse().ok()?))?;
        let reason = next()?;
        let mut last = next();
        let sharing = match last.and_then(|field| field.parse().ok()).and_then(Sharing::of_number) {
            Some(sharing) => {
                last = next();
                sharing
            }
            None => Sharing::Exclusive,
        };
        let mut is_next = |field| {
            let is_next = last == Some(field);
            if is_next {
                last = next();
            }
            is_next
        };
        let supersedes = match (is_next(NEWEST), is_next(RUNNING)) {
            (false, _) => Supersedes::Nobody,
            (true, false) => Supersedes::Waiting,
            (true, true) => Supersedes::Running,
        };
        let goes_first = is_next(FIRST);
        let no_ask = is_next(NO_ASK);
        let upkeep = if is_next(LEASE_ONLY) { Upkeep::LeaseOnly } else { Upkeep::Renewed };
        let known_as = last.and_then(|field| field.strip_prefix(KNOWN_AS)).filter(|name| !name.is_empty());
        let is_base32 = random.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7'));
        let is_random = random.len() == RANDOM_LEN && is_base32;
        if !is_random && !Token::is_number(random.as_bytes()) {
            return None;
        }
        let terms = Terms { upkeep, sharing, supersedes, goes_first, no_ask };
        Some(Fields { random, user, host, pid, born, reason, known_as, terms })
    }
}

/// # Errors
/// If the kernel provides no random bits, getrandom(2).
fn random_part() -> anyhow::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).context("no random bits for a token")?;
    let bits = u128::from_be_bytes(random);
    // 26 digits of 5 bits are 130 bits: the lowest two of the last digit are zero.
    let place = |i: usize| if i < 25 { bits >> (123 - 5 * i) } else { bits << 2 };
    Ok((0..RANDOM_LEN).map(|i| char::from(BASE32[(place(i) & 31) as usize])).collect())
}

fn written(random: &str, owner: &Owner, reason: Option<&str>, now: SystemTime, terms: Terms) -> String {
    let born = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut text = format!("{VERSION}:{random}:{}@{}:", field(owner.user.raw(), 40), field(owner.host.raw(), 80));
    text += &format!("{}:{born}:", owner.pid);
    let mut end = terms.sharing.number().map(|number| format!(":{number}")).unwrap_or_default();
    for (applies, field) in [
        (terms.supersedes >= Supersedes::Waiting, NEWEST),
        (terms.supersedes >= Supersedes::Running, RUNNING),
        (terms.goes_first, FIRST),
        (terms.no_ask, NO_ASK),
        (terms.upkeep == Upkeep::LeaseOnly, LEASE_ONLY),
    ] {
        if applies {
            end += &format!(":{field}");
        }
    }
    if let Some(name) = &owner.known_as {
        end += &format!(":{KNOWN_AS}{}", field(name.raw(), 3 * KnownAs::LONGEST));
    }
    let room = MAX_LEN - text.len() - end.len();
    text += &field(reason.unwrap_or_default(), room);
    text += &end;
    text
}

/// Percent-encodes a field, cut to at most `room` bytes between characters.
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

fn unescaped(field: &str) -> Tainted {
    Tainted::new(percent_decode_str(field).decode_utf8_lossy().into_owned())
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 4 * MAX_LEN || text.chars().any(char::is_control) {
            return Err("not a token: give what `nxlock acquire` printed".into());
        }
        // RELEASE would take it for the token of the lock, and end every share.
        if text.starts_with(SHARED_VALUE) {
            return Err("not a token: this is the value of a shared lock".into());
        }
        Ok(Token(text.to_owned()))
    }
}

/// Never the whole token: debug output must not enable its reader to take the lock away.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id().map_or("?".to_owned(), |id| id.to_string());
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
        let number = text.bytes().all(|b| b.is_ascii_digit());
        if text.len() != ID_LEN || !(number || text.bytes().all(|b| BASE32.contains(&b))) {
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

impl KnownAs {
    const LONGEST: usize = 64;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KnownAs {
    type Err = String;

    fn from_str(text: &str) -> Result<KnownAs, String> {
        match text.len() {
            0 => return Err("it is empty".into()),
            1..=KnownAs::LONGEST => {}
            n => return Err(format!("{n} bytes is too long: {} at most", KnownAs::LONGEST)),
        }
        if text.chars().any(char::is_control) {
            return Err("control characters are not allowed".into());
        }
        Ok(KnownAs(text.to_owned()))
    }
}

impl Owner {
    /// Returns this process as an owner. An unknown host is "unknown", an unknown user is the user's number.
    pub fn this_process() -> Owner {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = host.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into());
        Owner { user: user_name().into(), host: host.into(), pid: std::process::id(), known_as: None }
    }

    /// The same, as people know it.
    pub fn this_process_as(name: Option<&KnownAs>) -> Owner {
        let known_as = name.map(|name| Box::new(name.as_str().into()));
        Owner { known_as, ..Owner::this_process() }
    }
}

/// Returns the effective user's name, from /etc/passwd or else the environment. Not by getpwuid(3): it loads its
/// modules at run time, which a statically linked program cannot rely on.
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
        Owner { user: user.into(), host: host.into(), pid: 4711, known_as: None }
    }

    #[test]
    fn a_token_tells_what_went_into_it() {
        let born = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_000_000_123);
        let token = Token::mint(&owner("al:ice", "web@3"), Some("why: 50 % \u{1b}[31m é"), born).unwrap();
        assert!(token.as_str().bytes().all(|b| b.is_ascii_graphic()), "{}", token.as_str());
        let told = token.told().unwrap();
        assert_eq!(told.owner, owner("al:ice", "web@3"));
        assert_eq!(told.born, born);
        assert_eq!(told.reason.as_ref().map(Tainted::raw), Some("why: 50 % \u{1b}[31m é"));
        assert_eq!(told.id.as_str(), &token.as_str()[4..12]);
    }

    #[test]
    fn a_renamed_token_tells_the_same_and_is_another() {
        let token = Token::mint_for(
            Terms::exclusive(Upkeep::LeaseOnly),
            &owner("alice", "web"),
            Some("w:y"),
            SystemTime::UNIX_EPOCH,
        )
        .unwrap();
        let renamed = token.renamed().unwrap();
        let (one, other) = (token.told(), renamed.told());
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_ne!(one.id, other.id);
        assert_eq!((one.owner, one.born, one.reason), (other.owner, other.born, other.reason));
        assert_eq!((one.terms, renamed.is_lease_only()), (other.terms, true));
    }

    #[test]
    fn a_token_is_at_most_512_bytes_and_cut_between_characters() {
        let long = "ü".repeat(300);
        let known_as = "ü".repeat(32);
        assert!(KnownAs::from_str(&known_as).is_ok());
        let owner = Owner { known_as: Some(Box::new(known_as.as_str().into())), ..owner(&long, &long) };
        let sharing = Sharing::Slots("10000".parse().unwrap());
        let terms = Terms {
            upkeep: Upkeep::LeaseOnly,
            sharing,
            supersedes: Supersedes::Running,
            goes_first: true,
            no_ask: true,
        };
        let token = Token::mint_for(terms, &owner, Some(&long), SystemTime::UNIX_EPOCH).unwrap();
        assert!(token.as_str().len() <= MAX_LEN, "{}", token.as_str().len());
        let told = token.told().unwrap();
        let reason = told.reason.unwrap();
        assert!(reason.raw().chars().count() > 10 && reason.raw().chars().all(|c| c == 'ü'));
        assert_eq!((told.owner.known_as.unwrap().raw(), told.terms), (known_as.as_str(), terms));
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
    fn a_bare_number_is_in_the_far_future_for_any_parser_and_its_identity_tells_the_rest() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_000_000_123);
        for _ in 0..1000 {
            let token = Token::mint_number().unwrap();
            let number: i64 = token.as_str().parse().unwrap();
            assert_eq!(token.as_str().len(), 19);
            assert!(token.is_beside_setnx() && number / 1000 > 100 * 1_795_000_000, "{number}");
            let identity =
                token.identity(Terms::exclusive(Upkeep::Renewed), &owner("al:ice", "web@3"), Some("why"), now);
            assert!(identity.starts_with(&token.identity_begin()));
            let told = Token::read(identity.as_bytes()).unwrap();
            assert_eq!(told.owner, owner("al:ice", "web@3"));
            assert_eq!((told.id.as_str(), told.reason.as_ref().map(Tainted::raw)), (&token.as_str()[..8], Some("why")));
            assert_eq!(HolderId::from_str(told.id.as_str()), Ok(told.id));
        }
        for other in ["1795000000", "9000000000000000000", "3999999999999999999", "400000000000000000x"] {
            assert!(!Token::is_number(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_token_says_as_whom_its_owner_is_known_whatever_that_is() {
        let born = SystemTime::UNIX_EPOCH;
        for name in ["deploy 4711", "a:lease", "noask", ":as=x", "=", "é|%\u{202e}", "4"] {
            let owner = Owner { known_as: Some(Box::new(name.into())), ..owner("a", "b") };
            for terms in [Terms::exclusive(Upkeep::Renewed), Terms::exclusive(Upkeep::LeaseOnly)] {
                let told = Token::mint_for(terms, &owner, Some(":as=y"), born).unwrap().told().unwrap();
                assert_eq!((&told.owner, told.terms), (&owner, terms), "{name}");
                assert_eq!(told.reason.unwrap().raw(), ":as=y");
            }
            let identity =
                Token::mint_number().unwrap().identity(Terms::exclusive(Upkeep::Renewed), &owner, None, born);
            assert_eq!(Token::read(identity.as_bytes()).unwrap().owner, owner);
        }
        for bad in ["", "a\nb", &"x".repeat(65)] {
            assert!(KnownAs::from_str(bad).is_err(), "{bad:?}");
        }
        assert!(KnownAs::from_str(&"x".repeat(64)).is_ok());
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

    #[test]
    fn a_token_says_that_nobody_renews_its_lock_and_earlier_ones_do_not() {
        let now = SystemTime::UNIX_EPOCH;
        for reason in [None, Some("why"), Some("lease"), Some(&"l:".repeat(400)[..])] {
            let mint = |upkeep| Token::mint_for(Terms::exclusive(upkeep), &owner("a", "b"), reason, now).unwrap();
            let (kept, left) = (mint(Upkeep::Renewed), mint(Upkeep::LeaseOnly));
            assert!(!kept.is_lease_only() && left.is_lease_only(), "{reason:?}");
            assert!(left.as_str().len() <= MAX_LEN);
            let told = |token: &Token| token.told().unwrap().reason.unwrap_or_default();
            assert!(told(&kept).raw().starts_with(told(&left).raw()));
        }
    }

    #[test]
    fn a_token_tells_its_terms_whatever_its_reason() {
        let slots = |text: &str| Sharing::Slots(text.parse().unwrap());
        let sharings = [Sharing::Exclusive, Sharing::Shared, slots("2"), slots("10000")];
        let upkeeps = [Upkeep::Renewed, Upkeep::LeaseOnly];
        let all = upkeeps.into_iter().flat_map(|upkeep| sharings.map(|sharing| (upkeep, sharing)));
        for (upkeep, sharing) in all {
            for (reason, supersedes, goes_first, no_ask) in [
                (None, Supersedes::Nobody, false, false),
                (Some("4"), Supersedes::Waiting, true, false),
                (Some("newest"), Supersedes::Nobody, false, true),
                (Some("x:4:newest:running"), Supersedes::Nobody, true, false),
                (Some("noask"), Supersedes::Running, false, false),
                (Some("first"), Supersedes::Nobody, false, false),
                (Some(&"4:".repeat(400)[..]), Supersedes::Running, true, true),
            ] {
                let terms = Terms { upkeep, sharing, supersedes, goes_first, no_ask };
                let token = Token::mint_for(terms, &owner("a", "b"), reason, SystemTime::UNIX_EPOCH).unwrap();
                assert_eq!(token.told().unwrap().terms, terms, "{}", token.as_str());
                let supersedes = supersedes != Supersedes::Nobody;
                assert_eq!((token.is_share(), token.supersedes()), (sharing != Sharing::Exclusive, supersedes));
                assert_eq!(token.goes_first(), goes_first);
                assert_eq!(terms.may_be_asked(), upkeep == Upkeep::Renewed && !no_ask);
                assert!(token.as_str().len() <= MAX_LEN);
            }
        }
    }
}
