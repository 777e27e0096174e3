//! The scripts as nxlock sends them, and the hashes by which a server knows them (Redis command EVALSHA).

/// A script: always the same text, so that a server's cache holds one of each.
pub struct Script {
    pub text: &'static [u8],
    /// The SHA1 of the text, in hexadecimal digits.
    pub sha: &'static str,
}

/// Returns a text as it is sent, and its hash: made by the compiler, so that no start pays for them.
macro_rules! script {
    ($file:literal) => {{
        const SOURCE: &str = include_str!($file);
        const TEXT: [u8; sent::<0>(SOURCE).1] = sent(SOURCE).0;
        const SHA: [u8; 40] = sha1(&TEXT);
        Script { text: &TEXT, sha: digits(&SHA) }
    }};
}

/// The rules of a lock.
pub static LOCK: Script = script!("lock.lua");
/// The operations on one key each, while the keys of a lock are moving from one server to another.
pub static MOVING: Script = script!("moving.lua");

/// Returns a script without comment lines and indentation, as far as it fits into `N` bytes, and its length.
const fn sent<const N: usize>(source: &str) -> ([u8; N], usize) {
    let source = source.as_bytes();
    let (mut kept, mut length) = ([0; N], 0);
    let mut at = 0;
    while at < source.len() {
        while source[at] == b' ' {
            at += 1;
        }
        let comment = source[at] == b'-' && source[at + 1] == b'-';
        let empty = source[at] == b'\n';
        loop {
            if !comment && !empty {
                if length < N {
                    kept[length] = source[at];
                }
                length += 1;
            }
            at += 1;
            if source[at - 1] == b'\n' {
                break;
            }
        }
    }
    (kept, length)
}

/// Returns the SHA1 of a text (FIPS 180-4), in hexadecimal digits.
const fn sha1(text: &[u8]) -> [u8; 40] {
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let blocks = (text.len() + 8) / 64 + 1;
    let bits = (text.len() as u64 * 8).to_be_bytes();
    let mut block = 0;
    while block < blocks {
        let mut words = [0u32; 80];
        let mut i = 0;
        while i < 64 {
            let at = block * 64 + i;
            let byte = match () {
                () if at < text.len() => text[at],
                () if at == text.len() => 0x80,
                () if block + 1 == blocks && i >= 56 => bits[i - 56],
                () => 0,
            };
            words[i / 4] = words[i / 4] << 8 | byte as u32;
            i += 1;
        }
        let mut i = 16;
        while i < 80 {
            words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
            i += 1;
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        let mut i = 0;
        while i < 80 {
            let (f, k) = match i / 20 {
                0 => (b & c | !b & d, 0x5a82_7999),
                1 => (b ^ c ^ d, 0x6ed9_eba1),
                2 => (b & c | b & d | c & d, 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6u32),
            };
            let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(words[i]);
            (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
            i += 1;
        }
        let more = [a, b, c, d, e];
        let mut i = 0;
        while i < 5 {
            state[i] = state[i].wrapping_add(more[i]);
            i += 1;
        }
        block += 1;
    }
    let mut hex = [0; 40];
    let mut i = 0;
    while i < 40 {
        hex[i] = b"0123456789abcdef"[(state[i / 8] >> (28 - i % 8 * 4) & 15) as usize];
        i += 1;
    }
    hex
}

const fn digits(bytes: &[u8; 40]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(digits) => digits,
        Err(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_sent_without_its_comments_and_with_all_the_rest() {
        for (script, source) in [(&LOCK, include_str!("lock.lua")), (&MOVING, include_str!("moving.lua"))] {
            let lines = source.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--"));
            let expected: String = lines.flat_map(|line| [line, "\n"]).collect();
            assert_eq!(std::str::from_utf8(script.text).unwrap(), expected);
        }
    }

    #[test]
    fn a_hash_is_that_of_the_standard() {
        for (text, sha) in [
            ("", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            ("abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (&"a".repeat(55), "c1c8bbdc22796e28c0e15163d20899b65621d65a"),
            (&"a".repeat(56), "c2db330f6083854c99d4b5bfb6e8f29f201be699"),
            (&"a".repeat(64), "0098ba824b5c16427bd7a1122a5a442a25ec644d"),
        ] {
            assert_eq!(digits(&sha1(text.as_bytes())), sha, "{} bytes", text.len());
        }
    }
}
