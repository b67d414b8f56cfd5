// SPDX-License-Identifier: Apache-2.0
//! Data exchanged with the BPF program: the mirror of `bpf/layout.h`.

use agewise_policy::table::PAGES_PER_TABLE;

pub use crate::access::AddressRange as Range;

/// Most ranges per call.
pub const MAX_RANGES: usize = 1024;

/// Part of a last-level table, which is in the given slot: 512 entries.
pub const KIND_TABLE: u32 = 0;
/// A leaf one level up (2 MiB, if pages have 4 KiB), or such an entry in migration.
pub const KIND_PMD: u32 = 1;
/// A leaf two levels up (1 GiB).
pub const KIND_PUD: u32 = 2;
/// A last-level table that could not be read or was inconsistent; the next three numbers are tables
/// one, two and three levels above it.
pub const KIND_BAD_TABLE: u32 = 3;

/// All ranges were walked.
pub const RC_DONE: u32 = 0;
/// The output is full: call again.
pub const RC_FULL: u32 = 1;
/// No such task.
pub const RC_NO_TASK: u32 = 2;
/// The task has no address space.
pub const RC_NO_MM: u32 = 3;
/// The task is a kernel thread.
pub const RC_KTHREAD: u32 = 4;
/// The address space was replaced during the call.
pub const RC_CHANGED: u32 = 5;
/// The task id belongs to another process.
pub const RC_OTHER_TASK: u32 = 6;

/// One finding of the walk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// First address it applies to.
    pub va: u64,
    /// The raw entry.
    pub entry: u64,
    /// `KIND_*`.
    pub kind: u32,
    /// Table slot, if the kind is `KIND_TABLE`.
    pub slot: u32,
}

/// A raw page table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its entries.
    pub e: [u64; PAGES_PER_TABLE],
}

/// The control block. See `struct pw_ctl` for the fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Ctl {
    pub direct_map: u64,
    pub addr_mask: u64,
    pub type_mask: u64,
    pub type_table: u64,
    pub pointer_bits: u64,
    pub mmu_bits: u64,
    pub start_ticks: u64,
    pub va: u64,
    pub tid: u32,
    pub tgid: u32,
    pub levels: u32,
    pub page_shift: u32,
    pub search_shift: u32,
    pub first_range: u32,
    pub n_ranges: u32,
    pub rc: u32,
    pub next_va: u64,
    pub next_range: u32,
    pub n_entries: u32,
    pub n_tables: u32,
    pub unreadable: u32,
    pub retries: u32,
    pub seen_start_boottime: u64,
    pub search_phys: u64,
    pub search_magic: u64,
    pub search_steps: u64,
    pub search_found: u64,
    pub search_symbol: u64,
    pub search_from: u64,
}
