// SPDX-License-Identifier: Apache-2.0
//! The size of a page: the unit of every count here, and that of this kernel.

pub use agewise_policy::table::PAGE_BYTES;
use agewise_policy::table::PAGES_PER_TABLE;

/// Bytes that one sight of a scan ([`TableSight`](crate::access::TableSight)) covers.
pub const TABLE_BYTES: u64 = PAGE_BYTES * PAGES_PER_TABLE as u64;

/// Bytes in one page of this kernel, in which its own counters count.
pub fn kernel_page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Pages of [`PAGE_BYTES`] in one page of this kernel.
pub fn pages_per_kernel_page() -> u64 {
    (kernel_page_bytes() / PAGE_BYTES).max(1)
}
