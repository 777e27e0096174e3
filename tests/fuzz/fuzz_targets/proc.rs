//! The files of /proc: a process may have any name, and a mount any option.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::{Stat, ahead, files, number_is};

fuzz_target!(|bytes: &[u8]| {
    if let Some(stat) = Stat::read(bytes) {
        // The name ends at the last parenthesis, and its content does not matter.
        let after = bytes.iter().rposition(|byte| *byte == b')').expect("a name");
        let named = [b"1 (x) (".as_slice(), &[0xff, b'\n', b')'], &bytes[after + 1..]].concat();
        let same = Stat::read(&named).expect("the same under another name");
        assert_eq!((stat.parent, stat.started), (same.parent, same.started));
    }
    let text = String::from_utf8_lossy(bytes);
    if let Some(micros) = ahead(&text) {
        assert!(text.contains("boottime"), "{micros}");
    }
    if number_is(7, &text) {
        assert!(text.contains("NSpid:"));
    }
    for device in [0, 48, u64::MAX] {
        assert!(files::network_fuse(&text, device).is_none_or(|kind| text.contains(kind)));
    }
});
