//! Finds where each value of a server ends, while its bytes arrive, and counts its elements, before the parser makes
//! values of them: three bytes on the wire are a value of some fifty in memory. No I/O.

/// Where a stream of values is (Redis serialization protocol specification, RESP2 and RESP3).
pub struct Framing {
    /// Elements of this value so far.
    seen: usize,
    /// Elements that are still to come before this value ends. Their depth does not matter.
    open: usize,
    place: Place,
}

enum Place {
    /// The next byte begins an element.
    Begin,
    /// In a line whose text does not matter. `ends` if a carriage return has just come.
    Line { ends: bool },
    /// In the line with the length of a string or the number of elements.
    Length { text: String, of: Counted },
    /// So many bytes of a string are left, with the end of its line.
    String(usize),
}

#[derive(Clone, Copy)]
enum Counted {
    /// A string; nil below zero.
    String,
    /// A string that cannot be nil.
    Blob,
    /// So many elements, or nil below zero.
    Array,
    /// So many elements, each of so many values, and so many values behind them.
    Elements { each: usize, behind: usize },
}

/// More elements than any value has: CLUSTER SLOTS with sixteen thousand ranges of several nodes each.
const MOST: usize = 1 << 19;
const NO_LENGTH: &str = "it does not speak the Redis protocol";
/// More characters than the length of a string has.
const LONGEST_LENGTH: usize = 24;

impl Framing {
    pub fn new() -> Framing {
        Framing { seen: 0, open: 0, place: Place::Begin }
    }

    /// Follows the next bytes to the end of a value. Returns how many bytes that takes; nothing if the value goes on
    /// behind them.
    ///
    /// # Errors
    /// With the reason, if no server replies so.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let mut taken = 1;
            let ends = match &mut self.place {
                Place::Begin => {
                    self.begin_element(*byte);
                    false
                }
                Place::Line { ends } => {
                    let line_ends = *ends && *byte == b'\n';
                    *ends = *byte == b'\r';
                    line_ends
                }
                Place::Length { text, .. } if text.len() > LONGEST_LENGTH => return Err(NO_LENGTH),
                Place::Length { text, of } => {
                    text.push(char::from(*byte));
                    let of = *of;
                    match text.strip_suffix("\r\n") {
                        // As the parser reads it.
                        Some(length) => {
                            let length = length.trim().parse().map_err(|_| NO_LENGTH)?;
                            self.begin_counted(length, of)?
                        }
                        None => false,
                    }
                }
                Place::String(left) => {
                    taken = (bytes.len() - at).min(*left);
                    *left -= taken;
                    *left == 0
                }
            };
            at += taken;
            if ends {
                self.place = Place::Begin;
                if self.open == 0 {
                    self.seen = 0;
                    return Ok(Some(at));
                }
            }
        }
        Ok(None)
    }

    fn begin_element(&mut self, kind: u8) {
        self.seen += 1;
        self.open = self.open.saturating_sub(1);
        let length = |of| Place::Length { text: String::new(), of };
        self.place = match kind {
            b'$' => length(Counted::String),
            b'!' | b'=' => length(Counted::Blob),
            b'*' => length(Counted::Array),
            b'~' | b'>' => length(Counted::Elements { each: 1, behind: 0 }),
            b'%' => length(Counted::Elements { each: 2, behind: 0 }),
            // What it is an attribute of follows it.
            b'|' => length(Counted::Elements { each: 2, behind: 1 }),
            _ => Place::Line { ends: false },
        };
    }

    /// Begins what is behind a length. Returns whether the element ends with it.
    fn begin_counted(&mut self, length: i64, of: Counted) -> Result<bool, &'static str> {
        let (each, behind) = match (of, usize::try_from(length)) {
            (Counted::String | Counted::Array, Err(_)) => return Ok(true),
            (Counted::Blob | Counted::Elements { .. }, Err(_)) => return Err(NO_LENGTH),
            (Counted::String | Counted::Blob, Ok(length)) => {
                self.place = Place::String(length.saturating_add(2));
                return Ok(false);
            }
            (Counted::Array, Ok(_)) => (1, 0),
            (Counted::Elements { each, behind }, Ok(_)) => (each, behind),
        };
        let more = usize::try_from(length).unwrap_or(usize::MAX).saturating_mul(each).saturating_add(behind);
        self.open = self.open.saturating_add(more);
        if self.seen.saturating_add(self.open) > MOST { Err("its reply has too many elements") } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns where the values end in a text that arrives in pieces of this many bytes.
    fn ends(text: &str, piece: usize) -> Option<Vec<usize>> {
        let (mut framing, mut ends, mut begun) = (Framing::new(), Vec::new(), 0);
        for piece in text.as_bytes().chunks(piece) {
            let mut rest = piece;
            while let Some(n) = framing.follow(rest).ok()? {
                rest = &rest[n..];
                ends.push(begun + piece.len() - rest.len());
            }
            begun += piece.len();
        }
        Some(ends)
    }

    #[test]
    fn values_end_in_whatever_pieces_they_arrive() {
        let texts = [
            ("+OK\r\n", &[5][..]),
            ("+\r\r\n:1\r\n", &[4, 8]),
            ("*3\r\n$3\r\n\r\n*\r\n$-1\r\n*0\r\n", &[22]),
            ("%1\r\n+a\r\n=7\r\ntxt:$9\r\r\n_\r\n", &[21, 24]),
            (">2\r\n$ 1 \r\nx\r\n!4\r\nERR \r\n~0\r\n", &[23, 27]),
            ("|1\r\n+a\r\n+b\r\n*1\r\n:1\r\n+c\r\n", &[20, 24]),
            ("*2\r\n*1\r\n*0\r\n*-1\r\n$0\r\n\r\n$0\r\n\r\n", &[17, 23, 29]),
        ];
        for (text, at) in texts {
            for piece in 1..=text.len() {
                assert_eq!(ends(text, piece).as_deref(), Some(at), "{text:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_value_ends_where_the_parser_ends() {
        let values = [
            "+OK\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "(12345678901234567890\r\n",
            "=5\r\ntxt:x\r\n",
            "!5\r\nERR x\r\n",
            "%2\r\n+a\r\n:1\r\n+b\r\n~1\r\n+c\r\n",
            ">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
            "|1\r\n+a\r\n+b\r\n*1\r\n:1\r\n",
        ];
        for text in values {
            assert_eq!(ends(text, 1), Some(vec![text.len()]), "{text:?}");
            assert!(redis::parse_redis_value(text.as_bytes()).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn a_length_that_no_server_writes_is_none() {
        for text in ["$x\r\n", "$\r\n", "=-1\r\n", "%-1\r\n", ">-1\r\n", "*?\r\n", "$                          1\r\n"] {
            assert_eq!(ends(text, 1), None, "{text:?}");
        }
    }

    #[test]
    fn too_many_elements_are_refused_and_each_value_has_as_many() {
        let mut framing = Framing::new();
        let follow = |framing: &mut Framing, text: &str| {
            let mut rest = text.as_bytes();
            while let Some(n) = framing.follow(rest)? {
                rest = &rest[n..];
            }
            Ok::<_, &str>(())
        };
        let most = format!("*{}\r\n{}", MOST - 1, ":1\r\n".repeat(MOST - 1));
        assert!(follow(&mut framing, &most).is_ok() && follow(&mut framing, &most).is_ok());
        let half = format!("*{}\r\n{}", MOST, ":1\r\n".repeat(MOST / 2));
        assert!(follow(&mut framing, &half).is_err());
        let nested = format!("*2\r\n{}*{}\r\n", &most, MOST / 2);
        assert!(follow(&mut Framing::new(), &nested).is_err());
        for text in [format!("*{MOST}\r\n"), format!("%{}\r\n", MOST / 2), "|9223372036854775807\r\n".into()] {
            assert!(follow(&mut Framing::new(), &text).is_err(), "{text:?}");
        }
    }
}
