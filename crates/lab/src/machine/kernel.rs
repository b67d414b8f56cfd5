// SPDX-License-Identifier: Apache-2.0
//! Kernels that can be simulated, each with the rules of its parts. Nothing else in the lab depends
//! on a version; a new kernel is one line here, plus a profile if its rules are new.

use agewise_damon::profile::Profile as DamonProfile;
use agewise_kernel::classic;
use agewise_kernel::mglru::ablation::Ablation;
use agewise_kernel::mglru::profile::{Profile, V6, V6_12, V6_14, V7_2};
use agewise_kernel::reclaim::counters_profile::{self, CountersProfile};
use agewise_kernel::reclaim::migration_profile;

/// A kernel, described by the profiles of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The multi-gen LRU, which also gives the kernel its name.
    pub mglru: &'static Profile,
    /// The classic LRU.
    pub classic: classic::Settings,
    pub damon: DamonProfile,
    /// Counters of reclaim in `memory.stat` and `/proc/vmstat`.
    pub counters: &'static CountersProfile,
    /// Moves between nodes.
    pub migration: migration_profile::Profile,
    /// Number of cgroups whose charges a CPU can keep in stock (`NR_MEMCG_STOCK`).
    pub stock_slots: usize,
    /// Features of the multi-gen LRU that are switched off.
    pub ablation: Ablation,
    /// SHA-256 of the file it was read from, if any.
    pub sha256: Option<&'static str>,
    /// The text of that file.
    pub text: Option<&'static str>,
}

/// All kernels, newest first; the first is the default.
pub static KERNELS: [Kernel; 4] = [
    Kernel {
        mglru: &V7_2,
        classic: classic::Settings::linux_7_2(),
        damon: DamonProfile::V7_2,
        counters: &counters_profile::LINUX_7_2,
        migration: MIGRATION,
        stock_slots: 7,
        ablation: Ablation::NONE,
        sha256: None,
        text: None,
    },
    Kernel {
        mglru: &V6_14,
        migration: MIGRATION,
        stock_slots: 1,
        ..OLD
    },
    Kernel {
        mglru: &V6_12,
        stock_slots: 1,
        ..OLD
    },
    Kernel {
        mglru: &V6,
        counters: &counters_profile::V6,
        migration: migration_profile::Profile {
            cgroups_demote: false,
            keeps_refs: false,
        },
        ..OLD
    },
];

const MIGRATION: migration_profile::Profile = migration_profile::Profile {
    cgroups_demote: true,
    keeps_refs: true,
};

/// Common to the kernels before 7.2.
const OLD: Kernel = Kernel {
    mglru: &V6_12,
    classic: classic::Settings::linux_6_12(),
    damon: DamonProfile::V6_12,
    counters: &counters_profile::LINUX_6_12,
    migration: migration_profile::Profile {
        cgroups_demote: true,
        keeps_refs: false,
    },
    stock_slots: 7,
    ablation: Ablation::NONE,
    sha256: None,
    text: None,
};

impl Kernel {
    /// The newest kernel, the default.
    pub const NEWEST: &'static Kernel = &KERNELS[0];

    /// The version.
    pub fn name(&self) -> &'static str {
        self.mglru.name
    }

    /// Finds the kernel of a version.
    pub fn by_name(version: &str) -> Option<&'static Kernel> {
        KERNELS.iter().find(|kernel| kernel.name() == version)
    }
}

#[cfg(test)]
mod tests {
    use agewise_kernel::mglru::profile::PROFILES;

    use super::*;

    #[test]
    fn every_profile_is_a_kernel() {
        let named: Vec<&str> = KERNELS.iter().map(Kernel::name).collect();
        let known: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
        assert_eq!(named, known);
        assert_eq!(Kernel::by_name("6.14").unwrap().name(), "6.14");
        assert!(Kernel::by_name("").is_none());
    }
}
