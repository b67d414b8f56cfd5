// SPDX-License-Identifier: Apache-2.0
//! Runs one target under libFuzzer; `AGEWISE_FUZZ` has its name.

#![no_main]

use std::sync::OnceLock;

use agewise_fuzz::{Target, by_name};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("AGEWISE_FUZZ").unwrap_or_default();
        by_name(&name).expect("AGEWISE_FUZZ is the name of a target")
    });
    (target.run)(bytes);
});
