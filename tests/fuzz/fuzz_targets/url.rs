//! A server's URL, from a command line, the environment or a file.

#![no_main]

mod oracle;

use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::{Credentials, Report, Target};

/// A password in a URL; no URL of the corpus contains it.
const SECRET: &str = "s3cr3tpw";

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let text = text.as_ref();
    for chosen in [
        Target::choose(Some(text), None, &Credentials::default()),
        Target::choose(None, Some(text), &Credentials::default()),
    ] {
        match chosen {
            Ok(target) => accepted(&target),
            Err(error) => _ = oracle::human(&Report::Failed(error)),
        }
    }
    let (front, back) = text.split_once('\n').unwrap_or(("", text));
    if text.contains(SECRET) {
        return;
    }
    for scheme in ["redis", "rediss", "unix", "redis+unix", "redis+sentinel", "redis+cluster"] {
        concealed(&format!("{scheme}://{front}:{SECRET}@{back}"));
        concealed(&format!("{scheme}://{front}:12?{SECRET}@{back}"));
        concealed(&format!("{scheme}://{front}:12#{SECRET}@{back}"));
        concealed(&format!("{scheme}://{front}?pass={SECRET}&{back}"));
        concealed(&format!("{scheme}://{front}?{back}&pass={SECRET}"));
    }
});

/// Asserts that a URL is shown as it can be typed again, with the same meaning. A login is not shown whole.
fn accepted(target: &Target) {
    let shown = target.to_string();
    oracle::harmless_line(&shown);
    if target.has_login() {
        return;
    }
    let again = match Target::choose([shown.as_str()], None, &Credentials::default()) {
        Ok(again) => again,
        Err(error) => panic!("{shown:?}: {error}"),
    };
    assert_eq!(again.to_string(), shown);
    assert_eq!(std::mem::discriminant(&again), std::mem::discriminant(target), "{shown:?} is of another kind");
}

/// Asserts that no message repeats a password, not even one that was not recognized as such.
fn concealed(url: &str) {
    let text = match Target::choose(Some(url), None, &Credentials::default()) {
        // A path is shown, and nothing in it is a password.
        Ok(target) if target.has_login() && !target.to_string().starts_with("unix") => target.to_string(),
        Ok(_) => return,
        Err(error) => oracle::human(&Report::Failed(error)),
    };
    assert!(!text.contains(SECRET), "{url:?}: {text}");
}
