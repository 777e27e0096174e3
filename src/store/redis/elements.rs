//! Counts the elements of a server's replies while their bytes arrive, before the parser makes values of them: three
//! bytes on the wire are a value of some fifty in memory. No I/O.

/// Where a stream of replies is (Redis serialization protocol specification, RESP3). Nested elements follow each other
/// as those of several replies do, so their depth does not matter.
pub struct Elements {
    seen: usize,
    place: Place,
}

enum Place {
    /// The next byte begins an element.
    Begin,
    /// In a line whose text does not matter. `ends` if a carriage return has just come.
    Line { ends: bool },
    /// In the line with the length of a string.
    Length { text: String, is_nil_below_zero: bool },
    /// So many bytes of a string are left, with the end of its line.
    String(usize),
}

/// More elements than any reply has: CLUSTER SLOTS with sixteen thousand ranges of several nodes each.
const MOST: usize = 1 << 19;
const NO_LENGTH: &str = "it does not speak the Redis protocol";
/// More characters than the length of a string has.
const LONGEST_LENGTH: usize = 24;

impl Elements {
    pub fn new() -> Elements {
        Elements { seen: 0, place: Place::Begin }
    }

    /// Begins to count anew, for the next reply. What was read ahead of it has been counted.
    pub fn begin(&mut self) {
        self.seen = 0;
    }

    /// Follows the next bytes.
    ///
    /// # Errors
    /// With the reason, if no server replies so.
    pub fn follow(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while let Some((first, rest)) = bytes.split_first() {
            bytes = match &mut self.place {
                Place::Begin => {
                    self.seen += 1;
                    self.place = match first {
                        b'$' => Place::Length { text: String::new(), is_nil_below_zero: true },
                        b'!' | b'=' => Place::Length { text: String::new(), is_nil_below_zero: false },
                        _ => Place::Line { ends: false },
                    };
                    rest
                }
                Place::Line { ends } => {
                    match (first, *ends) {
                        (b'\n', true) => self.place = Place::Begin,
                        _ => *ends = *first == b'\r',
                    }
                    rest
                }
                Place::Length { text, .. } if text.len() > LONGEST_LENGTH => return Err(NO_LENGTH),
                Place::Length { text, is_nil_below_zero } => {
                    text.push(char::from(*first));
                    if let Some(length) = text.strip_suffix("\r\n") {
                        // As the parser reads it.
                        let Ok(length) = length.trim().parse::<i64>() else { return Err(NO_LENGTH) };
                        self.place = match usize::try_from(length) {
                            Ok(length) => Place::String(length.saturating_add(2)),
                            Err(_) if *is_nil_below_zero => Place::Begin,
                            Err(_) => return Err(NO_LENGTH),
                        };
                    }
                    rest
                }
                Place::String(left) => {
                    let taken = bytes.len().min(*left);
                    *left -= taken;
                    if *left == 0 {
                        self.place = Place::Begin;
                    }
                    &bytes[taken..]
                }
            };
        }
        if self.seen > MOST { Err("its reply has too many elements") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many elements there are in a text that arrives in pieces of this many bytes.
    fn count(text: &str, piece: usize) -> Option<usize> {
        let mut elements = Elements::new();
        text.as_bytes().chunks(piece).all(|piece| elements.follow(piece).is_ok()).then_some(elements.seen)
    }

    #[test]
    fn elements_are_counted_in_whatever_pieces_they_arrive() {
        let texts = [
            ("+OK\r\n", 1),
            ("+\r\r\n:1\r\n", 2),
            ("*3\r\n$3\r\n\r\n*\r\n$-1\r\n*0\r\n", 4),
            ("%1\r\n+a\r\n=7\r\ntxt:$9\r\r\n_\r\n", 4),
            (">2\r\n$ 1 \r\nx\r\n!4\r\nERR \r\n~0\r\n", 4),
            ("$0\r\n\r\n$0\r\n\r\n", 2),
        ];
        for (text, elements) in texts {
            for piece in 1..=text.len() {
                assert_eq!(count(text, piece), Some(elements), "{text:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_length_that_no_server_writes_is_none() {
        for text in ["$x\r\n", "$\r\n", "=-1\r\n", "$                          1\r\n"] {
            assert_eq!(count(text, 1), None, "{text:?}");
        }
    }

    #[test]
    fn too_many_elements_are_refused_and_each_reply_has_as_many() {
        let mut elements = Elements::new();
        let half = ":1\r\n".repeat(MOST / 2);
        let mut is_borne = |bytes: &[u8]| elements.follow(bytes).is_ok();
        assert!(is_borne(half.as_bytes()) && is_borne(half.as_bytes()) && !is_borne(b"+"));
        elements.begin();
        assert!(elements.follow(half.as_bytes()).is_ok());
    }
}
