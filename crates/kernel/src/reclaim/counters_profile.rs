// SPDX-License-Identifier: Apache-2.0
//! Which counters of reclaim a kernel shows in `memory.stat` (of cgroup v2; that of v1 has none)
//! and in `/proc/vmstat`, in its order, and which reclaim each of them counts.

use crate::work::Events;

/// Name of a counter, and its value.
pub type Counter = (&'static str, fn(&Events) -> u64);

/// The counters of a kernel version.
#[derive(Debug)]
pub struct CountersProfile {
    /// In `memory.stat`, summed over a cgroup and its descendants.
    pub memory_stat: &'static [Counter],
    /// In `/proc/vmstat`, summed over the machine.
    pub vmstat: &'static [Counter],
    /// Of pages moved to slower nodes, in `/proc/vmstat`.
    pub demotion: &'static [Counter],
    /// Whether `memory.stat` has these too.
    pub cgroups_count_demotion: bool,
    /// Whether `memory.stat` too counts huge pages swapped whole or split (since 6.7).
    pub cgroups_count_huge_swap: bool,
}

/// There is one of each version, so they are equal if they are the same.
impl PartialEq for CountersProfile {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for CountersProfile {}

const SCAN: Counter = ("pgscan", Events::scanned);
const STEAL: Counter = ("pgsteal", Events::stolen);
const SCAN_KSWAPD: Counter = ("pgscan_kswapd", |of| of.pgscan_kswapd);
const STEAL_KSWAPD: Counter = ("pgsteal_kswapd", |of| of.pgsteal_kswapd);
/// Reclaim of the machine alone.
const SCAN_DIRECT_GLOBAL: Counter = ("pgscan_direct", |of| of.pgscan_direct);
const STEAL_DIRECT_GLOBAL: Counter = ("pgsteal_direct", |of| of.pgsteal_direct);
/// With reclaim at limits of cgroups.
const SCAN_DIRECT: Counter = ("pgscan_direct", |of| of.pgscan_direct + of.pgscan_limit);
const STEAL_DIRECT: Counter = ("pgsteal_direct", |of| of.pgsteal_direct + of.pgsteal_limit);
/// With proactive reclaim too (before 6.15).
const SCAN_DIRECT_ALL: Counter = ("pgscan_direct", |of| {
    of.pgscan_direct + of.pgscan_limit + of.pgscan_proactive
});
const STEAL_DIRECT_ALL: Counter = ("pgsteal_direct", |of| {
    of.pgsteal_direct + of.pgsteal_limit + of.pgsteal_proactive
});
const SCAN_PROACTIVE: Counter = ("pgscan_proactive", |of| of.pgscan_proactive);
const STEAL_PROACTIVE: Counter = ("pgsteal_proactive", |of| of.pgsteal_proactive);
/// khugepaged is not modelled.
const SCAN_KHUGEPAGED: Counter = ("pgscan_khugepaged", |_| 0);
const STEAL_KHUGEPAGED: Counter = ("pgsteal_khugepaged", |_| 0);
const SCAN_ANON: Counter = ("pgscan_anon", |of| of.pgscan[0]);
const SCAN_FILE: Counter = ("pgscan_file", |of| of.pgscan[1]);
const STEAL_ANON: Counter = ("pgsteal_anon", |of| of.pgsteal[0]);
const STEAL_FILE: Counter = ("pgsteal_file", |of| of.pgsteal[1]);
const DEMOTE_KSWAPD: Counter = ("pgdemote_kswapd", |of| of.pgdemote_kswapd);
const DEMOTE_DIRECT: Counter = ("pgdemote_direct", |of| of.pgdemote_direct);
/// With proactive reclaim too (before 6.15).
const DEMOTE_DIRECT_ALL: Counter = ("pgdemote_direct", |of| {
    of.pgdemote_direct + of.pgdemote_proactive
});
const DEMOTE_KHUGEPAGED: Counter = ("pgdemote_khugepaged", |_| 0);
const DEMOTE_PROACTIVE: Counter = ("pgdemote_proactive", |of| of.pgdemote_proactive);
const REFILL: Counter = ("pgrefill", |of| of.pgrefill);
/// Reclaim of the machine alone.
const REFILL_GLOBAL: Counter = ("pgrefill", |of| of.pgrefill - of.pgrefill_cgroup);
const ACTIVATE: Counter = ("pgactivate", |of| of.pgactivate);
const DEACTIVATE: Counter = ("pgdeactivate", |of| of.pgdeactivate);

/// Linux 7.2: `pgscan`, `pgsteal` and `pgrefill` are statistics of nodes (2026), so vmstat counts
/// the reclaim of cgroups too; proactive reclaim has its own (6.15).
pub static LINUX_7_2: CountersProfile = CountersProfile {
    memory_stat: &[
        STEAL_KSWAPD,
        STEAL_DIRECT,
        STEAL_KHUGEPAGED,
        STEAL_PROACTIVE,
        SCAN_KSWAPD,
        SCAN_DIRECT,
        SCAN_KHUGEPAGED,
        SCAN_PROACTIVE,
        REFILL,
        SCAN,
        STEAL,
        ACTIVATE,
        DEACTIVATE,
    ],
    vmstat: &[
        STEAL_KSWAPD,
        STEAL_DIRECT,
        STEAL_KHUGEPAGED,
        STEAL_PROACTIVE,
        STEAL_ANON,
        STEAL_FILE,
        SCAN_KSWAPD,
        SCAN_DIRECT,
        SCAN_KHUGEPAGED,
        SCAN_PROACTIVE,
        SCAN_ANON,
        SCAN_FILE,
        REFILL,
        ACTIVATE,
        DEACTIVATE,
    ],
    demotion: &[
        DEMOTE_KSWAPD,
        DEMOTE_DIRECT,
        DEMOTE_KHUGEPAGED,
        DEMOTE_PROACTIVE,
    ],
    cgroups_count_demotion: true,
    cgroups_count_huge_swap: true,
};

/// Linux 6.12 and 6.14: in vmstat, counters of a reclaimer leave out the reclaim of cgroups, and
/// those of a type of page do not.
pub static LINUX_6_12: CountersProfile = CountersProfile {
    memory_stat: &[
        SCAN,
        STEAL,
        SCAN_KSWAPD,
        SCAN_DIRECT_ALL,
        SCAN_KHUGEPAGED,
        STEAL_KSWAPD,
        STEAL_DIRECT_ALL,
        STEAL_KHUGEPAGED,
        REFILL,
        ACTIVATE,
        DEACTIVATE,
    ],
    vmstat: &[
        ACTIVATE,
        DEACTIVATE,
        REFILL_GLOBAL,
        STEAL_KSWAPD,
        STEAL_DIRECT_GLOBAL,
        STEAL_KHUGEPAGED,
        SCAN_KSWAPD,
        SCAN_DIRECT_GLOBAL,
        SCAN_KHUGEPAGED,
        SCAN_ANON,
        SCAN_FILE,
        STEAL_ANON,
        STEAL_FILE,
    ],
    demotion: &[DEMOTE_KSWAPD, DEMOTE_DIRECT_ALL, DEMOTE_KHUGEPAGED],
    cgroups_count_demotion: true,
    cgroups_count_huge_swap: true,
};

/// The kernel of the patches of January 2022: `memory.stat` tells no reclaimers apart (before 6.0),
/// and khugepaged counts as direct (before 6.2).
pub static V6: CountersProfile = CountersProfile {
    memory_stat: &[REFILL, SCAN, STEAL, ACTIVATE, DEACTIVATE],
    vmstat: &[
        ACTIVATE,
        DEACTIVATE,
        REFILL_GLOBAL,
        STEAL_KSWAPD,
        STEAL_DIRECT_GLOBAL,
        SCAN_KSWAPD,
        SCAN_DIRECT_GLOBAL,
        SCAN_ANON,
        SCAN_FILE,
        STEAL_ANON,
        STEAL_FILE,
    ],
    demotion: &[DEMOTE_KSWAPD, DEMOTE_DIRECT_ALL],
    cgroups_count_demotion: false,
    cgroups_count_huge_swap: false,
};
