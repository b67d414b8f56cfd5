// SPDX-License-Identifier: Apache-2.0
//! Captures what libbpf prints while it loads, for the error message instead of our stderr.

use std::sync::Mutex;

use libbpf_rs::PrintLevel;

/// Enough for the end of a verifier log, which states the reason.
const KEEP_BYTES: usize = 6000;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SAID: Mutex<String> = Mutex::new(String::new());

/// Returns the result of `work` and the last messages libbpf printed during it.
pub fn collected<T>(work: impl FnOnce() -> T) -> (T, String) {
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, note)));
    let result = work();
    libbpf_rs::set_print(before);
    let mut said = SAID.lock().unwrap_or_else(|poison| poison.into_inner());
    let text = std::mem::take(&mut *said);
    let mut from = text.len().saturating_sub(KEEP_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    (result, text[from..].trim().replace('\n', "; "))
}

fn note(_level: PrintLevel, text: String) {
    SAID.lock()
        .unwrap_or_else(|poison| poison.into_inner())
        .push_str(&text);
}
