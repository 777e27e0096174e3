//! Records what would go to stderr, for the fuzz targets.

use std::cell::RefCell;

thread_local! {
    static CAPTURED: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(super) fn put(text: &str) {
    CAPTURED.with_borrow_mut(|captured| captured.push_str(text));
}

/// Returns everything since the last call, with its styles.
pub fn take() -> String {
    CAPTURED.take()
}
