// SPDX-License-Identifier: Apache-2.0
//! Kernel memory of the BPF maps, by the kernel's own account.

use std::collections::BTreeMap;
use std::fs;

use agewise_host::pagecache::FileAges;
use anyhow::Context;
use serde::Serialize;

use super::Cached;

/// Bytes of BPF maps (`memlock` of their descriptors, which counts entries from Linux 6.4 on).
#[derive(Clone, Copy, Serialize)]
pub(super) struct Maps {
    /// Without any access.
    pub fixed_bytes: u64,
    /// Per page of a file of which every page was accessed since the last look; more for small
    /// files, since each takes a table for 512 pages.
    pub bytes_per_page: f64,
}

/// Measures the maps of a process that follows the page cache.
pub(super) fn measure(file: &Cached) -> anyhow::Result<Maps> {
    let others = map_bytes()?;
    let mut ages = FileAges::with_frames(1000)?;
    ages.look(&|_| true)?;
    let fixed_bytes = map_bytes()?.saturating_sub(others);
    file.read(0, file.pages)?;
    let more = map_bytes()?.saturating_sub(others + fixed_bytes);
    Ok(Maps {
        fixed_bytes,
        bytes_per_page: more as f64 / file.pages as f64,
    })
}

/// All maps that this process has open.
fn map_bytes() -> anyhow::Result<u64> {
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        // The descriptor of the directory itself is gone afterwards.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        if let Some(map) = field("map_id:") {
            maps.insert(map, field("memlock:").context("a map without memlock")?);
        }
    }
    Ok(maps.values().sum())
}
