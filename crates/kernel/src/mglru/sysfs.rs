// SPDX-License-Identifier: Apache-2.0
//! The text of `/sys/kernel/mm/lru_gen/enabled` and `min_ttl_ms`.

use crate::lru::{Lru, Mode};

use super::command::WriteError;
use super::profile::DebugfsSyntax;
use super::scan::parse_u32;
use super::switch::set_enabled;
use super::{jiffies_to_msecs, msecs_to_jiffies};

const CORE: u32 = 1 << 0;
const LEAF_WALK: u32 = 1 << 1;
const TABLE_BITS: u32 = 1 << 2;

/// Reads `enabled`: what is written, less what the processor cannot do.
#[must_use]
pub fn enabled_show(lru: &Lru) -> String {
    let core = lru.mode == Mode::MultiGen;
    if lru.mglru.profile.debugfs == DebugfsSyntax::Patches {
        return format!("{}\n", u32::from(core));
    }
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    let caps = bit(core, CORE)
        | bit(lru.mglru.walks(), LEAF_WALK)
        | bit(lru.mglru.clears_table_bits(), TABLE_BITS);
    format!("0x{caps:04x}\n")
}

/// Writes `enabled`: `y`, `n` or a number, whose unknown bits are ignored. Switching the core
/// converts all lists at once.
///
/// # Errors
/// [`WriteError::Invalid`] for anything else.
pub fn enabled_store(lru: &mut Lru, text: &[u8]) -> Result<usize, WriteError> {
    let caps = match text.first().map(u8::to_ascii_lowercase) {
        None => return Ok(0),
        Some(b'n') => 0,
        Some(b'y') => u32::MAX,
        Some(b'0' | b'f') if lru.mglru.profile.debugfs == DebugfsSyntax::Patches => 0,
        Some(b'1' | b't') if lru.mglru.profile.debugfs == DebugfsSyntax::Patches => u32::MAX,
        Some(_) => parse_u32(text, None).ok_or(WriteError::Invalid)?,
    };
    set_enabled(lru, caps & CORE != 0);
    if lru.mglru.profile.debugfs != DebugfsSyntax::Patches {
        lru.mglru.walks_leaves = caps & LEAF_WALK != 0;
        lru.mglru.uses_table_bits = caps & TABLE_BITS != 0;
    }
    Ok(text.len())
}

/// Reads `min_ttl_ms`: the value written, rounded up to ticks.
#[must_use]
pub fn min_ttl_show(lru: &Lru) -> String {
    let ms = jiffies_to_msecs(msecs_to_jiffies(lru.mglru.min_ttl_ms));
    format!("{ms}\n")
}

/// Writes `min_ttl_ms`.
///
/// # Errors
/// [`WriteError::Invalid`] if it is not an unsigned 32-bit number.
pub fn min_ttl_store(lru: &mut Lru, text: &[u8]) -> Result<usize, WriteError> {
    if text.is_empty() {
        return Ok(0);
    }
    let base = (lru.mglru.profile.debugfs == DebugfsSyntax::Patches).then_some(10);
    lru.mglru.min_ttl_ms = parse_u32(text, base).ok_or(WriteError::Invalid)?;
    Ok(text.len())
}
