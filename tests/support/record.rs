//! The files of a lock in a directory, changed by a program that knows their format.

/// FNV-1a, 64 bits.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the fields of a line, without its checksum.
fn summed(line: &[u8]) -> String {
    let text = String::from_utf8(line.to_vec()).expect("it is text");
    let (summed, told) = text.trim_end().rsplit_once(" sum=").expect("it has a checksum");
    assert_eq!(told, format!("{:016x}", sum(summed.as_bytes())), "the checksum is known");
    summed.to_owned()
}

/// Returns the value of a field of a line.
pub fn field(line: &[u8], name: &str) -> String {
    let begin = format!("{name}=");
    let summed = summed(line);
    let value = summed.split(' ').find_map(|field| field.strip_prefix(&begin));
    value.unwrap_or_else(|| panic!("no {name} in {summed}")).to_owned()
}

/// Returns the same line with other values, and with the right checksum.
pub fn with(line: &[u8], values: &[(&str, &str)]) -> Vec<u8> {
    let changed = |field: &str| {
        let name = field.split_once('=').map_or(field, |(name, _)| name);
        let value = values.iter().find(|(changed, _)| *changed == name);
        value.map_or_else(|| field.to_owned(), |(_, value)| format!("{name}={value}"))
    };
    let summed = summed(line).split(' ').map(changed).collect::<Vec<_>>().join(" ");
    resummed(&summed, line.len())
}

/// Returns a line of a version that does not exist yet, correct in every other way.
pub fn newer(line: &[u8]) -> Vec<u8> {
    let summed = summed(line);
    let mut words = summed.splitn(3, ' ');
    let (kind, version, rest) = (words.next(), words.next(), words.next());
    let (kind, rest) = kind.zip(rest).expect("a kind, a version and fields");
    assert!(matches!(version, Some("2" | "3")), "the version of now: {version:?}");
    resummed(&format!("{kind} 4 {rest}"), line.len())
}

fn resummed(summed: &str, length: usize) -> Vec<u8> {
    let line = format!("{summed} sum={:016x}", sum(summed.as_bytes()));
    format!("{line:0$}\n", length - 1).into_bytes()
}
