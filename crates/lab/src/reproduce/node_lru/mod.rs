// SPDX-License-Identifier: Apache-2.0
//! "Move LRU page reclaim from zones to nodes" (v7, June 2016, with figures of v5 if v7 has none).
//!
//! Before: lists per zone with the fair allocation policy (`classic+zone+fair`). After: lists per
//! node. Both use the other reclaim code of 6.12, the older of the lab's two kernels, in which
//! kswapd still writes dirty file pages. List sizes are exact, since the kernels of the document
//! did not read them through cgroup statistics. The results are in `docs/inside/node-lru.md`.

mod aging;
mod bonnie;
mod counter;
mod outcome;
mod pagealloc;
mod paralleldd;
mod pgbench;
mod stutter;
mod tiobench;

use super::{Benchmark, Document, Variant};

/// `--benchmark bonnie --set size_scale=1 --seeds 3` shows this: these rows then hardly change.
const ACTIVE_OUTLIVES: &str = "much of the active list outlives the reads, on a node more than \
     on its zones, as the inactive ratio is that of 16 GiB: with that of the simulated size \
     (size_scale=1) all are within 3 % of no change";

const CAUSES: &[(&str, &str)] = &[
    ("bonnie/SeqIn Char", ACTIVE_OUTLIVES),
    ("bonnie/SeqIn Block", ACTIVE_OUTLIVES),
    ("bonnie/vmstat/kswapd pages scanned", ACTIVE_OUTLIVES),
];

pub(super) static DOCUMENT: Document = Document {
    name: "node-lru",
    summary: "LRU lists per node instead of per zone, and no fair zone allocation policy",
    remark: "The document's machine has 16 CPUs and a disk; ours 512 MiB in DMA, DMA32 and NORMAL. \
             Its changes are gains in percent of single runs, without variance. pagealloc prices \
             what is counted; its level before is the document's.",
    variants: &[
        Variant {
            name: "node",
            summary: "lists per node, the highest zone first: what the document proposes",
        },
        Variant {
            name: "zone",
            summary: "lists still per zone, without the fair policy: what that policy prevents",
        },
        Variant {
            name: "node+fair",
            summary: "lists per node, zones still in turn: the cost of the policy itself",
        },
    ],
    benchmarks: || {
        let mut all: Vec<Benchmark> = pagealloc::benchmarks();
        all.extend(tiobench::benchmarks());
        all.extend(pgbench::benchmarks());
        all.extend(bonnie::benchmarks());
        all.extend(paralleldd::benchmarks());
        all.extend(stutter::benchmarks());
        all.push(aging::benchmark());
        all
    },
    causes: CAUSES,
};

#[cfg(test)]
mod tests {
    use super::super::{Choice, Verdict, reproduce};
    use super::*;

    /// Each benchmark returns the figures it declares, and the prominent claims are reproduced.
    #[test]
    fn every_benchmark_runs_and_the_headlines_hold() {
        let rows = reproduce(&DOCUMENT, &Choice::seeds(2), |_| ()).unwrap();
        assert!(rows.len() > 100, "{}", rows.len());
        let verdict = |name: &str| {
            let row = rows.iter().find(|row| row.benchmark == name);
            row.unwrap_or_else(|| panic!("no {name}")).verdict
        };
        for name in ["pagealloc/order0-16", "stutter/mean"] {
            assert_eq!(verdict(name), Verdict::Reproduced, "{name}");
        }
    }
}
