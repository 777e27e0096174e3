//! Records what would go to stderr, for the fuzz targets.

use std::cell::RefCell;

thread_local! {
    static HEARD: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(super) fn put(text: &str) {
    HEARD.with_borrow_mut(|heard| heard.push_str(text));
}

/// Returns everything since the last call, with its styles.
pub fn take() -> String {
    HEARD.take()
}
