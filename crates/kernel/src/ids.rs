// SPDX-License-Identifier: Apache-2.0
//! Ids of the objects of a reclaim policy: small integers, one type each.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// No object.
            pub const NONE: $name = $name(u32::MAX);

            /// The number as an index.
            #[inline]
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id! {
    /// One lruvec: the lists of one memory cgroup on one node.
    LruvecId
}
id! {
    /// One memory cgroup. [`MemcgId::ROOT`] always exists. Ids are not reused.
    MemcgId
}
id! {
    /// One NUMA node.
    NodeId
}
id! {
    /// One address space.
    MmId
}

impl MemcgId {
    /// The root of the tree.
    pub const ROOT: MemcgId = MemcgId(0);
}
