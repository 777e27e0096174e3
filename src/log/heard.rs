//! What would have been said on stderr, for the fuzz targets to look at.

use std::cell::RefCell;

thread_local! {
    static HEARD: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(super) fn put(text: &str) {
    HEARD.with_borrow_mut(|heard| heard.push_str(text));
}

/// All of it since the last time, with its styles.
pub fn take() -> String {
    HEARD.take()
}
