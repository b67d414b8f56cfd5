// SPDX-License-Identifier: Apache-2.0
//! What a report needs from its world: the generations of memory cgroups, by node.

use super::super::{Histogram, OldestPages};

/// The pages of every cgroup on every node, by generation. The lab has them in the lruvecs of its
/// simulated kernel; on a real machine they are kept by age maps.
pub trait Lruvecs {
    /// Names a cgroup.
    type Group: Clone + Ord;

    /// The clock of births. It never goes back; aging may take time.
    fn now_ms(&self) -> u64;

    /// The cgroups whose own pages together are those of `root` and everything below it; of all
    /// cgroups for `None`. Empty if it no longer exists.
    fn subtree(&self, root: Option<&Self::Group>) -> Vec<Self::Group>;

    /// When the youngest generation began; `None` if the cgroup is gone.
    fn youngest_birth_ms(&self, group: &Self::Group, node: u32) -> Option<u64>;

    /// Opens a new youngest generation, of both types whether there is swap or not: without anon
    /// the statistics would be wrong. May refuse, for want of CPU budget: the next refresh asks
    /// again, and the report's time stamp stays old.
    fn age(&mut self, group: &Self::Group, node: u32);

    /// Adds the ages of the cgroup's own pages.
    fn add_ages(
        &self,
        group: &Self::Group,
        node: u32,
        oldest: OldestPages,
        histogram: &mut Histogram,
    );

    /// Bytes of what [`add_ages`](Self::add_ages) counts: the page size, or 1.
    fn unit_bytes(&self) -> u64;
}
