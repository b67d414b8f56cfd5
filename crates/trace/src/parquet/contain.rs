// SPDX-License-Identifier: Apache-2.0
//! Panics of the Parquet library on files that are wrong.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread expects panics.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read`. Returns `None` if it panics, and no message of the panic is printed: the Parquet
/// library panics on some files that are wrong, which is an error of the file.
///
/// `read` must leave nothing behind that is used after a panic.
pub fn contained<T>(read: impl FnOnce() -> T) -> Option<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                before(info);
            }
        }));
    });
    CONTAINED.set(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    CONTAINED.set(false);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static SAID: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn a_contained_panic_says_nothing_and_others_do() {
        panic::set_hook(Box::new(|_| SAID.set(SAID.get() + 1)));
        assert_eq!(contained(|| 7), Some(7));
        assert_eq!(contained(|| -> u32 { panic!("wrong") }), None);
        assert_eq!(SAID.get(), 0);
        assert!(catch_unwind(|| panic!("wrong")).is_err());
        assert_eq!(SAID.get(), 1);
    }
}
