// SPDX-License-Identifier: Apache-2.0
//! Every policy that runs on a trace alone: the field's yardsticks, and the kernel's LRUs as pools.

use agewise_trace::yardstick::{PolicySpec, YARDSTICKS};

use crate::{kernel_pool, reuse_pool};

/// The kernel's LRUs in a memory cgroup of the capacity.
pub static KERNELS: &[&PolicySpec] = &[
    &kernel_pool::CLASSIC,
    &kernel_pool::CLASSIC_MAPPED,
    &kernel_pool::MGLRU_6_12,
    &kernel_pool::MGLRU_6_12_MAPPED,
    &kernel_pool::MGLRU_7_2,
    &kernel_pool::MGLRU_7_2_MAPPED,
];

/// What agewise decides itself.
pub static OWN: &[&PolicySpec] = &[&reuse_pool::SPEC];

/// Every policy.
pub fn all() -> impl Iterator<Item = &'static PolicySpec> {
    YARDSTICKS.iter().chain(KERNELS).chain(OWN).copied()
}

/// The policy of this name (case and `-`, `_`, `:`, `.` do not matter).
#[must_use]
pub fn by_name(name: &str) -> Option<&'static PolicySpec> {
    all().find(|spec| spec.is_called(name))
}

/// The names of all policies, for messages.
#[must_use]
pub fn names() -> String {
    all().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for spec in all() {
            for name in [spec.name].iter().chain(spec.aliases) {
                assert_eq!(by_name(name).unwrap().name, spec.name);
            }
        }
        assert!(by_name("nonsense").is_none());
    }
}
