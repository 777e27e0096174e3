//! Makes a value of the bytes in which a server sends it, once [`super::framing`] has found where it ends (Redis serialization
//! protocol specification, RESP2 and RESP3). No I/O.
//!
//! What is in RESP3 becomes what the server says in RESP2: above a connection, nothing knows another. A push stays a push.
//!
//! The parser of the redis crate does the same, but a short run would pay for it: it first asks the processor what it
//! can do, and in a virtual machine the hypervisor answers, in a twentieth of the time that flock(1) takes. Errors are left
//! to it: nothing else can make them.

use redis::{PushKind, Value};

/// More values within each other than any reply has.
const DEEPEST: usize = 100;

/// Returns the value of which these are the bytes; `None` if no server sends them.
pub fn value(bytes: &[u8]) -> Option<Value> {
    let mut rest = bytes;
    let value = element(&mut rest, 1)?;
    rest.is_empty().then_some(value)
}

/// Takes the first element from the bytes.
fn element(rest: &mut &[u8], depth: usize) -> Option<Value> {
    if depth > DEEPEST {
        return None;
    }
    let begin = *rest;
    let kind = *begin.first()?;
    let line = line(rest)?;
    let number = || line.trim().parse::<i64>().ok();
    // Below zero it is that of nil.
    let length = || number().map(|number| usize::try_from(number).ok());
    Some(match kind {
        b'+' if line == "OK" => Value::Okay,
        b'+' => Value::SimpleString(line.into()),
        b':' => Value::Int(number()?),
        b'$' => match length()? {
            Some(length) => Value::BulkString(string(rest, length)?.into()),
            None => Value::Nil,
        },
        b'*' => match length()? {
            Some(count) => Value::Array(elements(rest, count, depth)?),
            None => Value::Nil,
        },
        b'~' => Value::Array(elements(rest, length()??, depth)?),
        b'%' => Value::Array(elements(rest, length()??.checked_mul(2)?, depth)?),
        b'|' => {
            elements(rest, length()??.checked_mul(2)?, depth)?;
            element(rest, depth + 1)?
        }
        b'>' => push(rest, length()??, depth)?,
        b'_' => Value::Nil,
        b'#' => Value::Int(["f", "t"].iter().position(|text| *text == line)?.try_into().ok()?),
        b',' => line.trim().parse::<f64>().ok().map(|number| Value::BulkString(number.to_string().into()))?,
        b'(' => Value::BulkString(line.into()),
        // Behind its format, which is three characters and a colon.
        b'=' => Value::BulkString(String::from_utf8_lossy(string(rest, length()??)?).split_once(':')?.1.into()),
        b'-' => error(begin, rest)?,
        b'!' => {
            string(rest, length()??)?;
            error(begin, rest)?
        }
        _ => return None,
    })
}

/// Takes the elements of one at this depth.
fn elements(rest: &mut &[u8], count: usize, depth: usize) -> Option<Vec<Value>> {
    (0..count).map(|_| element(rest, depth + 1)).collect()
}

/// Takes a line from the bytes, and returns what is between its first byte and its end.
fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = rest.get(1..end)?;
    *rest = &rest[end + 2..];
    str::from_utf8(line).ok()
}

/// Takes a string of this many bytes, and the end of its line.
fn string<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (string, behind) = rest.split_at_checked(length)?;
    *rest = behind.strip_prefix(b"\r\n")?;
    Some(string)
}

/// Returns the error that begins here, and ends before the rest.
fn error(begin: &[u8], rest: &[u8]) -> Option<Value> {
    redis::parse_redis_value(&begin[..begin.len() - rest.len()]).ok()
}

/// Takes a push of this many elements. The first is a string that says of what kind it is.
fn push(rest: &mut &[u8], count: usize, depth: usize) -> Option<Value> {
    if count > 0 && !matches!(rest.first(), Some(b'$' | b'+')) {
        return None;
    }
    let mut elements = elements(rest, count, depth)?.into_iter();
    let kind = match elements.next() {
        Some(Value::BulkString(kind)) => String::from_utf8(kind).ok()?,
        Some(Value::SimpleString(kind)) => kind,
        Some(_) => return None,
        None => String::new(),
    };
    let kind = match &kind[..] {
        "invalidate" => PushKind::Invalidate,
        "message" => PushKind::Message,
        "subscribe" => PushKind::Subscribe,
        _ => PushKind::Other(kind),
    };
    Some(Value::Push { kind, data: elements.collect() })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::framing::Framing;
    use super::*;

    /// Returns what the parser of the redis crate makes of the same bytes.
    fn parsed(bytes: &[u8]) -> Option<Value> {
        redis::parse_redis_value(bytes).ok().map(as_resp2)
    }

    fn as_resp2(value: Value) -> Value {
        match value {
            Value::Array(values) | Value::Set(values) => Value::Array(values.into_iter().map(as_resp2).collect()),
            Value::Map(pairs) => {
                Value::Array(pairs.into_iter().flat_map(|(field, value)| [as_resp2(field), as_resp2(value)]).collect())
            }
            Value::Attribute { data, .. } => as_resp2(*data),
            Value::VerbatimString { text, .. } => Value::BulkString(text.into_bytes()),
            Value::Double(number) => Value::BulkString(number.to_string().into_bytes()),
            Value::BigNumber(digits) => Value::BulkString(digits),
            Value::Boolean(is_so) => Value::Int(is_so.into()),
            Value::Push { kind, data } => Value::Push { kind, data: data.into_iter().map(as_resp2).collect() },
            other => other,
        }
    }

    /// Returns values as servers send them, of every type.
    fn sent() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            "\\+(OK|[ -~]{0,6}|é\r)",
            "-(ERR|NOSCRIPT|MOVED 1|[A-Z]{3} [ -~]{0,6})",
            ":(| )-?[0-9]{0,20} ?",
            "[$*]-[1-9]",
            "#[tfx]",
            "_",
            ",(-?[0-9]{1,3}(\\.[0-9])?|inf|nan|1e5|x)",
            "\\([0-9]{1,30}",
        ];
        let line = line.prop_map(|line: String| (line + "\r\n").into_bytes());
        let text = prop_oneof![vec(any::<u8>(), 0..6), "(txt|mkd|):[ -~]{0,4}".prop_map(String::into_bytes)];
        let counted = ("[$=!]", text)
            .prop_map(|(kind, text)| [format!("{kind}{}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat());
        let kind = "(invalidate|message|subscribe|other)".prop_map(|kind| format!("${}\r\n{kind}\r\n", kind.len()));
        prop_oneof![line, counted].prop_recursive(4, 40, 6, move |inner| {
            let many = ("[*~>%|]", vec(inner.clone(), 0..6)).prop_map(|(kind, elements)| {
                let count = match &kind[..] {
                    "%" => elements.len() / 2,
                    "|" => elements.len().saturating_sub(1) / 2,
                    _ => elements.len(),
                };
                [format!("{kind}{count}\r\n").into_bytes(), elements.concat()].concat()
            });
            let push = (kind.clone(), vec(inner, 0..3)).prop_map(|(kind, elements)| {
                [format!(">{}\r\n{kind}", elements.len() + 1).into_bytes(), elements.concat()].concat()
            });
            prop_oneof![many, push]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_value_is_what_the_parser_of_the_crate_says(sent in sent(), at in any::<prop::sample::Index>(), byte in any::<Option<u8>>()) {
            let mut bytes = sent;
            if let Some(byte) = byte {
                *at.get_mut::<u8>(&mut bytes) = byte;
            }
            if let Ok(Some(end)) = Framing::new().follow(&bytes) {
                prop_assert_eq!(value(&bytes[..end]), parsed(&bytes[..end]));
            }
        }
    }

    #[test]
    fn values_lie_as_deep_within_each_other_as_the_parser_of_the_crate_allows() {
        for depth in [1, DEEPEST - 1, DEEPEST, 100_000] {
            let text = format!("{}:1\r\n", "*1\r\n".repeat(depth));
            assert_eq!(value(text.as_bytes()), parsed(text.as_bytes()), "{depth}");
        }
    }

    #[test]
    fn what_is_cut_off_is_no_value() {
        for text in ["*2\r\n$1\r\nx\r\n:1\r\n", "%1\r\n+a\r\n=5\r\ntxt:x\r\n", ">2\r\n+message\r\n!5\r\nERR x\r\n"] {
            assert!(value(text.as_bytes()).is_some(), "{text:?}");
            for end in 0..text.len() {
                assert_eq!(value(&text.as_bytes()[..end]), None, "{:?}", &text[..end]);
            }
        }
    }
}
