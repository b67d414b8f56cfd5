// SPDX-License-Identifier: Apache-2.0
//! What reports need from their world: the generations of memory cgroups, by node.

use super::super::{Histogram, OldestPages};

/// The pages of every cgroup on every node, by generation. In the lab they are in the lruvecs of
/// the simulated kernel; on a real machine, age maps provide them.
pub trait Lruvecs {
    /// Identifies a cgroup.
    type Group: Clone + Ord;

    /// The clock of births. It never goes back; aging may take time on it.
    fn now_ms(&self) -> u64;

    /// The cgroups whose own pages together are those of `root` and everything below it, or all
    /// cgroups if it is `None`. Empty if `root` no longer exists.
    fn subtree(&self, root: Option<&Self::Group>) -> Vec<Self::Group>;

    /// When the youngest generation began; `None` if the cgroup is gone.
    fn youngest_birth_ms(&self, group: &Self::Group, node: u32) -> Option<u64>;

    /// Opens a new youngest generation of both types, even without swap: without anon the
    /// statistics would be wrong. May refuse if it has no CPU budget left: the time stamp of the
    /// report then stays old, and the next refresh asks again.
    fn age(&mut self, group: &Self::Group, node: u32);

    /// Adds the ages of the cgroup's own pages.
    fn add_ages(
        &self,
        group: &Self::Group,
        node: u32,
        oldest: OldestPages,
        histogram: &mut Histogram,
    );

    /// The unit of [`add_ages`](Self::add_ages) in bytes: the page size, or 1.
    fn unit_bytes(&self) -> u64;
}
