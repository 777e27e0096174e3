//! The file of a lock in a directory, changed by a program that knows its format.

use std::fmt::Write;
use std::fs;
use std::path::Path;

const HEADER: usize = 512;
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// FNV-1a, 64 bits.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(BASIS, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// The same by words, of the text.
fn sum_of_words(bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let add = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(23);
    let (words, rest) = bytes.as_chunks::<8>();
    add(words.iter().fold(BASIS, |sum, bytes| add(sum, word(bytes))), word(rest))
}

fn value(line: &str, name: &str) -> Option<String> {
    line.split_whitespace().find_map(|field| Some(field.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// Returns where the current header is, and what it says.
fn header(file: &[u8]) -> (usize, String) {
    let headers = [0, HEADER].into_iter().map(|at| (at, String::from_utf8_lossy(&file[at..at + HEADER]).into_owned()));
    let sequence = |header: &str| value(header, "sequence").map(|number| number.parse::<u64>().expect("a number"));
    headers.max_by_key(|(_, header)| sequence(header)).expect("two headers")
}

/// Returns where the current text is.
pub fn place(file: &[u8]) -> std::ops::Range<usize> {
    let (_, header) = header(file);
    let number = |name: &str| value(&header, name).expect("a field").parse::<usize>().expect("a number");
    number("at")..number("at") + number("length")
}

/// Returns where the current header is.
pub fn header_at(file: &[u8]) -> usize {
    header(file).0
}

/// Returns the state that a file has, as text.
pub fn text(file: &[u8]) -> String {
    let (number, text) = saves(file).pop().expect("a whole state");
    assert_eq!(value(&header(file).1, "sequence"), Some(number.to_string()), "{text}");
    text
}

/// Returns the state in the file at a path; nothing if there is none.
pub fn state(path: &Path) -> String {
    fs::read(path).map_or(String::new(), |file| text(&file))
}

/// Returns the states that a file has, each with the number of its save, the former first. It may be written meanwhile: only
/// what is whole.
pub fn saves(file: &[u8]) -> Vec<(u64, String)> {
    let save = |at: usize| {
        let header = file.get(at..at + HEADER)?;
        let (summed, _) = std::str::from_utf8(header).ok()?.trim_end().rsplit_once(" sum=")?;
        let number = |name: &str| value(summed, name)?.parse::<usize>().ok();
        let text = file.get(number("at")?..number("at")? + number("length")?)?;
        let is_whole = resummed(summed) == header && value(summed, "text")? == format!("{:016x}", sum_of_words(text));
        let save = (u64::try_from(number("sequence")?).ok()?, std::str::from_utf8(text).ok()?.to_owned());
        is_whole.then_some(save)
    };
    let mut saves: Vec<(u64, String)> = [0, HEADER].into_iter().filter_map(save).collect();
    saves.sort_unstable();
    saves
}

/// Returns the lines of a kind in a state.
pub fn lines<'a>(state: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    state.lines().filter(move |line| line.split(' ').next() == Some(kind))
}

/// Returns the value of a field of the first line of a kind.
#[track_caller]
pub fn field(file: &[u8], kind: &str, name: &str) -> String {
    let state = text(file);
    let found = lines(&state, kind).next().and_then(|line| value(line, name));
    found.unwrap_or_else(|| panic!("no {name} of a {kind} in {state}"))
}

/// Returns the same file with other values in all lines of a kind: each with the kind, the field and the value.
pub fn with(file: &[u8], values: &[(&str, &str, &str)]) -> Vec<u8> {
    let changed = |line: &str| {
        let kind = line.split(' ').next().unwrap_or_default();
        let field = |field: &str| {
            let name = field.split_once('=').map_or(field, |(name, _)| name);
            let value = values.iter().find(|(of, changed, _)| *of == kind && *changed == name);
            value.map_or_else(|| field.to_owned(), |(_, _, value)| format!("{name}={value}"))
        };
        line.split(' ').map(field).collect::<Vec<_>>().join(" ") + "\n"
    };
    let text: String = text(file).lines().map(changed).collect();
    sealed(&text, &header(file).1)
}

/// Returns a file with this state, and a header with the same boot.
fn sealed(text: &str, header: &str) -> Vec<u8> {
    let room = text.len().next_power_of_two().max(3584);
    let mut first = format!("nxlock-lock 4 sequence=1 at=1024 room={room} length={}", text.len());
    write!(first, " text={:016x} boot={}", sum_of_words(text.as_bytes()), value(header, "boot").expect("a boot"))
        .unwrap();
    let blank = " ".repeat(HEADER - 1) + "\n";
    let mut file = [resummed(&first).as_slice(), blank.as_bytes(), text.as_bytes()].concat();
    file.resize(1024 + 2 * room, b' ');
    file
}

/// Returns what a power failure in another boot may have left of a file: the headers, but neither text.
pub fn without_texts(file: &[u8], boot: &str) -> Vec<u8> {
    let mut left = vec![0; file.len()];
    for at in [0, HEADER] {
        let header = String::from_utf8_lossy(&file[at..at + HEADER]).into_owned();
        let written = header.trim_end().rsplit_once(" sum=").map(|(summed, _)| {
            let (place, _) = summed.rsplit_once(" boot=").expect("a boot");
            resummed(&format!("{place} boot={boot}"))
        });
        left[at..at + HEADER].copy_from_slice(&written.unwrap_or(file[at..at + HEADER].to_vec()));
    }
    left
}

/// Returns the same file of a version that does not exist yet, correct in every other way.
pub fn newer(file: &[u8]) -> Vec<u8> {
    let (at, header) = header(file);
    let (summed, _) = header.trim_end().rsplit_once(" sum=").expect("it has a checksum");
    let header = resummed(&summed.replacen("nxlock-lock 4", "nxlock-lock 5", 1));
    let mut file = file.to_vec();
    file[at..at + HEADER].copy_from_slice(&header);
    file
}

fn resummed(summed: &str) -> Vec<u8> {
    let line = format!("{summed} sum={:016x}", sum(summed.as_bytes()));
    format!("{line:0$}\n", HEADER - 1).into_bytes()
}
