// SPDX-License-Identifier: Apache-2.0
//! Whether the mappings of a process, which are expensive to read, must be read again.

/// When the mappings were last read, and the cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MapsRead {
    pub cpu_ns: u64,
    /// Size of the address space at that time.
    pub virtual_bytes: u64,
    /// Looks since then.
    pub looks: u32,
}

/// If reading the mappings takes longer than this, the list is reused.
const MAPS_DEAR_NS: u64 = 1_000_000;
/// Looks for which it is reused at most: memory may be remapped without the address space growing.
const MAPS_KNOWN_LOOKS: u32 = 8;

impl MapsRead {
    pub fn is_good_for(&self, virtual_bytes: u64) -> bool {
        self.cpu_ns > MAPS_DEAR_NS
            && self.virtual_bytes == virtual_bytes
            && self.looks < MAPS_KNOWN_LOOKS
    }
}
