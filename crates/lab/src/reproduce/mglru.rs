// SPDX-License-Identifier: Apache-2.0
//! "Multigenerational LRU Framework" (v6, January 2022): eight applications of an independent lab,
//! fio on persistent memory, and observations from fleets of telephones and notebooks.
//!
//! Rows are data: `mglru/rows.toml`. Before is the classic LRU of 6.12, the older of the lab's two
//! kernels; after is the patch set. Memory is a few tens of MiB and all that the machine has, so
//! that kswapd reclaims, as on the document's machines. Seeds are paired, time is simulated.

mod rows;

use std::error::Error;
use std::sync::Arc;

use super::emulate::{Values, pairs};
use super::{Benchmark, Case, Document, Measured, Variant};
use crate::experiment::machine_run::Plan;
use crate::experiment::settings;
use crate::machine::Policy;
use crate::machine::config::MachineConfig;
use rows::Row;

pub(super) static DOCUMENT: Document = Document {
    name: "mglru",
    summary: "pages are kept by generations, found by walks of page tables: mglru:v6",
    remark: "The document gives 95 % intervals, and sizes of machines for fio. Threads, sizes of \
             pools, swappiness and what is swapped follow the reports of the laboratory that it \
             links, or what these counted; what they do not say is chosen here, one choice for \
             all rows of an application. Prices of the simulated CPU are settings, listed with \
             their sources by `agewise lab list`.",
    variants: &[
        Variant {
            name: "mglru:v6",
            summary: "the patch set",
        },
        Variant {
            name: "no-walk",
            summary: "page tables are not walked: accessed bits only through the reverse map",
        },
        Variant {
            name: "no-look-around",
            summary: "eviction looks at one entry, not at its neighbours",
        },
        Variant {
            name: "no-bloom",
            summary: "walks go through all page tables",
        },
        Variant {
            name: "no-protection",
            summary: "no tier of pages read through descriptors is protected",
        },
        Variant {
            name: "mglru:6.12",
            summary: "the multi-gen LRU of 6.12",
        },
        Variant {
            name: "mglru:6.14",
            summary: "the multi-gen LRU of 6.14",
        },
        Variant {
            name: "mglru:7.2",
            summary: "the multi-gen LRU of 7.2",
        },
    ],
    benchmarks: || match rows::all() {
        Ok(rows) => rows.into_iter().map(benchmark).collect(),
        Err(error) => unreachable!("rows.toml is part of the build and tested: {error}"),
    },
    causes: CAUSES,
};

/// Causes that were investigated, each with a run of `agewise lab reproduce mglru --set`.
const CAUSES: &[(&str, &str)] = &[
    (
        "redis/always/sequential",
        "a flush holds up the server that swaps, and the others find more of their values: without \
         flushes (refault_flush_ns=0) the classic LRU serves 8 % less, and the change is +5.9 %",
    ),
    (
        "redis/never/gaussian",
        "all of the change comes from flushes at refaults: without them (refault_flush_ns=0) there \
         is none. The laboratory counted 0.6 % of requests that swap in, here it is 0.2 %",
    ),
    (
        "redis/always/gaussian",
        "as without huge pages: without flushes at refaults (refault_flush_ns=0) no change is \
         left, and nothing builds huge pages again",
    ),
    (
        "fio/1/gaussian/p99",
        "the multi-gen LRU ages early: kswapd sorts what was promoted, holds the lock, and jobs \
         reclaim and wait. without=early-aging gives -4 %",
    ),
    (
        "fio/2/gaussian/p99",
        "at the price of the lock that the first row gives, kswapd keeps up under both LRUs, but \
         for an early aging of the multi-gen LRU (without=early-aging: -2 %). At 400 ns \
         (lru_lock_ns=400, list_move_ns=400) jobs wait under the classic LRU: -60 %",
    ),
    ("fio/1/zipf/rate", KEEPS_UP),
    ("fio/1/gaussian/rate", KEEPS_UP),
    ("fio/2/zipf", KEEPS_UP),
    ("fio/2/gaussian", KEEPS_UP),
    (
        "memcached/always/sequential",
        "after the ramp no huge page is left, as nothing builds them again: the multi-gen LRU \
         has the rate of never; no-walk, no-look-around and no-protection change nothing",
    ),
    (
        "cassandra",
        "all of the change comes from flushes at refaults: without them (refault_flush_ns=0) no \
         row changes by more than 0.1 %. swappiness=60 changes nothing: +2 % remain",
    ),
    (
        "optane-memcached",
        "reclaim is cheap here: with the lock at fio's price (lru_lock_ns=270, list_move_ns=270) \
         the change is +4 %, and with rmap_visit_ns=400 too +7 %",
    ),
    (
        "mongodb/under/zipf",
        "few requests miss, and the price of a page hides it: at 2 us (hit_ns=2000) the change is \
         +5.5 %",
    ),
    (
        "postgresql/swap-off/medium",
        "a flush of statistics is always under way at refaults, of which the emulation has many \
         more than the laboratory counted: without it (refault_flush_ns=0) the change is 0.7 %",
    ),
    (
        "postgresql/swap-on",
        "at swappiness 1, as in the report, only what no file can give is swapped: there page \
         tables of 400 to 600 connections made the kernel swap, here threads share one. At 60 \
         (swappiness=60) the changes are +17 and +19 %",
    ),
    (
        "fleet/device/kills",
        "with half the swap (swap_size=12M) two programs are killed before and after: kills follow \
         the size of swap",
    ),
    (
        "fleet/device/median",
        "reclaim is cheap here: with 400 ns per visit through the reverse map (rmap_visit_ns=400) \
         the change is -11 %",
    ),
    (
        "fleet/device/kswapd CPU",
        "compressing takes most of it: the policies' own CPU time falls by 27 %",
    ),
];

/// The cause of small changes of fio.
const KEEPS_UP: &str = "at the price of the lock that the first row gives, kswapd keeps up under \
     both LRUs, and nobody waits. At 400 ns (lru_lock_ns=400, list_move_ns=400) rates change by \
     +29 and +53 % with one job per CPU, +20 and +31 % with two, p99 with two by -55 and -60 %";

/// Statistics are exact: a lag of 2 s is nothing for machines that turn their memory over in
/// minutes, and everything for ours. The document's kernels are 5.14 to 5.16-rc.
const KERNELS: [&str; 2] = ["stat_flush_us=0", "progress_waits=0"];

/// The policy of a variant, and its settings.
fn variant(name: &str) -> (&str, Option<&'static str>) {
    match name {
        "no-walk" => ("mglru:v6", Some("lru_gen_enabled=1")),
        "no-look-around" => ("mglru:v6", Some("without=look-around")),
        "no-bloom" => ("mglru:v6", Some("without=bloom")),
        "no-protection" => ("mglru:v6", Some("without=protection")),
        kernel => (kernel, None),
    }
}

fn benchmark(row: Row) -> Benchmark {
    Benchmark {
        name: row.name(),
        summary: row.summary().to_owned(),
        figures: row.claims().iter().map(rows::Claim::figure).collect(),
        measure: Box::new(move |case| measure(&row, case)),
    }
}

fn measure(row: &Row, case: &Case) -> Measured {
    let mut workload = row.workload()?;
    let of_kernels = KERNELS.map(str::to_owned);
    workload.settings.splice(0..0, of_kernels);
    if row.window().is_some() {
        require_time_passes(case.settings)?;
    }
    let workload = Arc::new(workload);
    let run = |policy: &str, setting: Option<&str>| -> Result<_, Box<dyn Error + Send + Sync>> {
        let mut settings: Vec<String> = setting.map(str::to_owned).into_iter().collect();
        settings.extend_from_slice(case.settings);
        let plan = Plan {
            settings,
            ..Plan::of(workload.clone(), Policy::parse(policy)?, case.seed)
        };
        let values = Values::of(&plan, row.window())?;
        Ok(row
            .claims()
            .iter()
            .map(|claim| claim.value(&values))
            .collect::<Vec<f64>>())
    };
    let (after, setting) = variant(case.variant);
    Ok(pairs(run("classic:6.12", None)?, run(after, setting)?))
}

/// Refuses prices at which accesses take no time: a row that is measured for some time would never
/// get to the end of it.
fn require_time_passes(set: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut config = MachineConfig::new(1);
    for text in set {
        settings::apply(&mut config, text)?;
    }
    let prices = [
        ("hit_ns", config.cost.hit_ns),
        ("file_io_ns", config.cost.file_io_ns),
    ];
    match prices.iter().find(|(_, ns)| *ns == 0) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "{key}=0: accesses take no time, and this row is measured for some time, which never \
             passes; take at least 1"
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{Choice, Verdict, reproduce};

    #[test]
    fn a_row_that_would_never_end_is_refused() {
        let error = |setting: &str| {
            let choice = Choice {
                benchmark: Some("redis/always/random"),
                settings: &[setting.to_owned()],
                ..Choice::seeds(1)
            };
            let error = reproduce(&DOCUMENT, &choice, |_| ()).unwrap_err();
            error.source().unwrap().to_string()
        };
        assert!(error("hit_ns=0").contains("take at least 1"));
        assert!(error("file_io_ns=0").starts_with("file_io_ns=0: "));
    }

    #[test]
    fn every_row_is_a_machine_and_every_variant_a_policy() {
        for row in rows::all().unwrap() {
            let workload = row.workload().unwrap();
            assert!(!workload.process.is_empty(), "{}", row.name());
        }
        for variant in DOCUMENT.variants {
            let (policy, _) = super::variant(variant.name);
            assert!(Policy::parse(policy).is_ok(), "{policy}");
        }
    }

    #[test]
    fn more_tasks_sort_in_the_same_heap() {
        let rows = rows::all().unwrap();
        let heap_kib = |name: &str| {
            let row = rows.iter().find(|row| row.name() == name).unwrap();
            let task = row.workload().unwrap().process.remove(0);
            let sizes = task.area.iter().filter_map(|area| area.size.as_deref());
            let bytes = sizes.map(|size| agewise_policy::units::size_bytes(size).unwrap());
            bytes.sum::<u64>() / 1024 * u64::from(task.count)
        };
        for name in ["spark", "hadoop"] {
            let [medium, high] = ["medium", "high"].map(|at| heap_kib(&format!("{name}/{at}")));
            assert!(
                medium.abs_diff(high) < medium / 100,
                "{name}: {medium} {high}"
            );
        }
        assert_eq!(heap_kib("spark/medium"), 16 * (2304 + 1024));
    }

    #[test]
    fn a_row_sets_the_order_and_what_is_missing_but_leaves_scans() {
        let rows = rows::all().unwrap();
        let row = rows.iter().find(|row| row.name() == "mongodb/over/zipf");
        let server = row.unwrap().workload().unwrap().process.remove(0);
        assert_eq!(server.area[0].size.as_deref(), Some("44MiB"));
        let streams: Vec<_> = server.phase[1]
            .stream
            .iter()
            .map(|stream| (&*stream.area, stream.order, stream.weight))
            .collect();
        use crate::workload::spec::StreamOrder::{Scan, Uniform, Zipf};
        let expected = [
            ("pool", Zipf, 0.97),
            ("pool", Scan, 0.03),
            ("records", Uniform, 0.03),
        ];
        assert_eq!(streams, expected);
    }

    /// At swappiness 0 the classic LRU still swaps, the multi-gen LRU never does.
    #[test]
    fn swappiness_0_is_respected() {
        let choice = Choice {
            benchmark: Some("probe/swappiness-0"),
            ..Choice::seeds(2)
        };
        let rows = reproduce(&DOCUMENT, &choice, |_| ()).unwrap();
        assert_eq!(rows[0].metric, "swap-outs");
        assert!(
            rows[0].ours_before > 0.0 && rows[0].ours_after == 0.0,
            "{rows:?}"
        );
        assert_eq!(rows[0].verdict, Verdict::Own);
    }
}
