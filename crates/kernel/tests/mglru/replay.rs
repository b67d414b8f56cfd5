// SPDX-License-Identifier: Apache-2.0
//! Fault counts of the kernel: replays traces in a cgroup of 32 MiB and compares with the counts of
//! Linux 6.12 and 7.2 for the same traces.

use agewise_kernel::mglru::ablation::Part;
use agewise_kernel::mglru::{Profile, Settings};

use crate::machine::Machine;
use crate::trace::{Pattern, Trace, Workload};

const LIMIT_PAGES: usize = 8192;

/// A measured cell: lowest and highest misses and scans of the main phase over the runs.
struct Cell {
    profile: &'static str,
    pattern: Pattern,
    pages: u32,
    touches: u64,
    theta: f64,
    hot: u32,
    no_recency: bool,
    misses: (u64, u64),
    scanned: (u64, u64),
    hash: u64,
}

const fn cell(
    profile: &'static str,
    pattern: Pattern,
    (pages, touches): (u32, u64),
    theta: f64,
    misses: (u64, u64),
    scanned: (u64, u64),
    hash: u64,
) -> Cell {
    Cell {
        profile,
        pattern,
        pages,
        touches,
        theta,
        hot: 0,
        no_recency: false,
        misses,
        scanned,
        hash,
    }
}

const ZIPF_08: u64 = 0x3ce9_8eb2_de72_e497;
const ZIPF_099: u64 = 0x9d3b_38d1_d8a7_87d9;
const FILE_ZIPF: u64 = 0x255b_a275_b9a4_968d;
const UNIFORM: u64 = 0xa950_450c_dcc6_1a72;
const SCAN: u64 = 0x1f2b_4232_4470_8783;
const MIXED: u64 = 0x5224_9f05_b090_a70a;
const FILE_UNIFORM: u64 = 0x4269_39f1_0a3e_1875;
const ZSCAN: u64 = 0xe7e8_2335_412a_3a73;

#[rustfmt::skip]
const CELLS: &[Cell] = &[
    cell("6.12", Pattern::AnonZipf, (16384, 400_000), 0.8, (85407, 86632), (102_631, 106_224), ZIPF_08),
    cell("7.2", Pattern::AnonZipf, (16384, 400_000), 0.8, (86701, 86780), (93991, 94209), ZIPF_08),
    cell("6.12", Pattern::AnonZipf, (16384, 400_000), 0.99, (41253, 41268), (48917, 49003), ZIPF_099),
    cell("7.2", Pattern::AnonZipf, (16384, 400_000), 0.99, (43081, 43344), (46664, 46939), ZIPF_099),
    cell("6.12", Pattern::AnonUniform, (16384, 100_000), 0.0, (50398, 50413), (57761, 57824), UNIFORM),
    cell("7.2", Pattern::AnonUniform, (16384, 100_000), 0.0, (50153, 50323), (54998, 55188), UNIFORM),
    cell("6.12", Pattern::AnonScan, (10240, 100_000), 0.0, (100_013, 100_013), (172_601, 197_325), SCAN),
    cell("7.2", Pattern::AnonScan, (10240, 100_000), 0.0, (62193, 75352), (74664, 85526), SCAN),
    Cell { hot: 7168, ..cell("6.12", Pattern::AnonZscan, (16384, 200_000), 0.8, (85223, 87510), (106_957, 116_509), ZSCAN) },
    Cell { hot: 7168, ..cell("7.2", Pattern::AnonZscan, (16384, 200_000), 0.8, (73877, 74677), (79298, 79714), ZSCAN) },
    cell("6.12", Pattern::FileZipf, (16384, 200_000), 0.99, (20776, 20776), (20800, 20800), FILE_ZIPF),
    cell("7.2", Pattern::FileZipf, (16384, 200_000), 0.99, (21556, 21557), (21560, 21560), FILE_ZIPF),
    cell("6.12", Pattern::FileUniform, (16384, 60_000), 0.0, (30335, 30335), (30336, 30336), FILE_UNIFORM),
    cell("7.2", Pattern::FileUniform, (16384, 60_000), 0.0, (30276, 30285), (30316, 30343), FILE_UNIFORM),
    Cell { hot: 6144, ..cell("6.12", Pattern::Mixed, (16384, 100_000), 0.8, (50000, 50000), (49984, 49984), MIXED) },
    Cell { hot: 6144, ..cell("7.2", Pattern::Mixed, (16384, 100_000), 0.8, (50038, 50050), (50079, 50145), MIXED) },
    cell("6.12", Pattern::MmapZipf, (16384, 200_000), 0.99, (21288, 21548), (26200, 27514), FILE_ZIPF),
    cell("7.2", Pattern::MmapZipf, (16384, 200_000), 0.99, (21002, 21114), (23633, 23971), FILE_ZIPF),
];

/// Replays a cell; returns misses and scans of the main phase.
fn replay(cell: &Cell, limit_pages: usize) -> (u64, u64) {
    let workload = Workload {
        pattern: cell.pattern,
        pages: cell.pages,
        touches: cell.touches,
        theta: cell.theta,
        hot: cell.hot,
        seed: 12345,
    };
    let settings = Settings {
        profile: *Profile::by_name(cell.profile).expect("known profile"),
        ..Settings::default()
    };
    let mut machine = Machine::new(&workload, settings, limit_pages, cell.no_recency);
    let mut trace = Trace::new(workload);
    machine.populate(&trace);
    machine.run(&mut trace, workload.touches / 4);
    let (misses, [scanned, ..]) = (machine.misses, machine.counts());
    machine.run(&mut trace, workload.touches);
    assert_eq!(trace.hash, cell.hash, "the trace is not the measured one");
    let [scanned_after, ..] = machine.counts();
    (machine.misses - misses, scanned_after - scanned)
}

/// The median over limits that differ by a few pages: the kernel's own use of the limit varies by
/// as much, and some loads are chaotic.
fn median(cell: &Cell) -> (u64, u64) {
    let runs: Vec<_> = [0, 1, 2, 4, 6]
        .into_iter()
        .map(|pages| replay(cell, LIMIT_PAGES - 3 + pages))
        .collect();
    let middle = |mut counts: Vec<u64>| {
        counts.sort_unstable();
        counts[counts.len() / 2]
    };
    (
        middle(runs.iter().map(|run| run.0).collect()),
        middle(runs.iter().map(|run| run.1).collect()),
    )
}

/// Whether `counted` is in the range, widened by `per_cent` on both sides.
fn is_near(counted: u64, (low, high): (u64, u64), per_cent: u64) -> bool {
    counted * 100 >= low * (100 - per_cent) && counted * 100 <= high * (100 + per_cent)
}

#[test]
fn misses_are_those_of_the_kernel() {
    let mut wrong = Vec::new();
    for cell in CELLS {
        let (misses, scanned) = median(cell);
        let name = format!("{} {:?} {}", cell.profile, cell.pattern, cell.theta);
        if !is_near(misses, cell.misses, 5) || !is_near(scanned, cell.scanned, 25) {
            wrong.push(format!(
                "{name}: {misses} misses of {:?}, {scanned} scanned of {:?}",
                cell.misses, cell.scanned
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Leaving out any single feature changes the counts: each has an effect.
#[test]
fn each_feature_moves_the_count_of_a_loop() {
    let scan = CELLS
        .iter()
        .find(|cell| cell.profile == "7.2" && cell.pattern == Pattern::AnonScan)
        .expect("a loop under 7.2");
    let misses = |ablate: fn(&mut Settings)| {
        let workload = Workload {
            pattern: scan.pattern,
            pages: scan.pages,
            touches: scan.touches,
            theta: 0.0,
            hot: 0,
            seed: 12345,
        };
        let mut settings = Settings::default();
        ablate(&mut settings);
        let mut machine = Machine::new(&workload, settings, LIMIT_PAGES, false);
        let mut trace = Trace::new(workload);
        machine.populate(&trace);
        machine.run(&mut trace, scan.touches);
        machine.misses
    };
    let all = misses(|_| {});
    assert!(misses(|s| s.ablation = Part::FaultMark.into()) > all * 5 / 4);
    assert!(misses(|s| s.ablation = Part::LookAround.into()) > all * 5 / 4);
    assert!(misses(|s| s.ablation = Part::Protection.into()) > all * 11 / 10);
}
