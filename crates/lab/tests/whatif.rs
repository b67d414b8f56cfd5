// SPDX-License-Identifier: Apache-2.0
//! `policy::whatif` against the truth: the traces of the repository, looked at as a machine is
//! looked at, beside exact LRU and beside the engine of the kernel's classic LRU.

use std::collections::BTreeSet;
use std::path::Path;

use agewise_lab::yardstick;
use agewise_policy::PageType;
use agewise_policy::whatif::{Decider, Fact, Kernel, PERCENTS, Params, WhatIf, page_hash};
use agewise_trace::curve::StackDistances;
use agewise_trace::{DenseTrace, TraceSource};

/// Sizes that are compared: 10 to 100 percent.
const COMPARED: usize = 31;

/// A trace as looks: the pages of each interval, each once, in the order of the trace.
struct Looks {
    name: &'static str,
    looks: Vec<Vec<u32>>,
    pages: usize,
}

fn looks(name: &'static str) -> Looks {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../traces")
        .join(name);
    let source = TraceSource::new(&path);
    let dense = DenseTrace::read(&source).expect("a trace of the repository");
    let mut stream = source.open().expect("the same");
    let (mut batch, mut numbers) = (Vec::new(), dense.accesses().iter());
    let mut looks: Vec<Vec<u32>> = vec![Vec::new()];
    let (mut last_ns, mut seen) = (None, BTreeSet::new());
    while stream.next_batch(&mut batch).expect("whole") {
        for access in &batch {
            if last_ns.is_some_and(|last| last != access.time_ns) {
                looks.push(Vec::new());
                seen.clear();
            }
            last_ns = Some(access.time_ns);
            let page = *numbers.next().expect("as many accesses");
            if seen.insert(page) {
                looks.last_mut().expect("one").push(page);
            }
        }
    }
    Looks {
        name,
        looks,
        pages: dense.page_count(),
    }
}

/// What is told of a trace with so many pages simulated: misses of pages seen before, by size, and
/// their bounds.
fn told(of: &Looks, pages: usize, kernel: Kernel, decider: Decider) -> Vec<[f64; 3]> {
    let params = Params {
        pages,
        kernel,
        every: 1,
    };
    let mut what_if = WhatIf::new(params);
    let mut known: Vec<u32> = Vec::new();
    let mut is_known = vec![false; of.pages];
    // The first look is of nothing, so that every first use is one.
    what_if.look(0).finish(0, true);
    for (at, used) in (1..).zip(&of.looks) {
        let mut look = what_if.look(at * 1000);
        let is_used: BTreeSet<u32> = used.iter().copied().collect();
        for page in used {
            if !std::mem::replace(&mut is_known[*page as usize], true) {
                known.push(*page);
            }
        }
        for page in &known {
            let hash = page_hash(1, u64::from(*page));
            if look.filter().takes(hash, 0) {
                let fact = if is_used.contains(page) {
                    Fact::Used
                } else {
                    Fact::Idle
                };
                look.page(hash, 0, PageType::Anon, fact);
            }
        }
        look.finish(known.len() as u64, true);
    }
    let curves = what_if.curves();
    let seconds = of.looks.len() as f64;
    let points = curves.of(decider).points[..COMPARED].iter();
    points
        .map(|point| {
            let faults = point.faults_per_second();
            [faults.low, faults.likely, faults.high].map(|rate| rate * seconds)
        })
        .collect()
}

/// Mean absolute error of the miss ratio, and the share of the sizes at which the truth lies
/// within.
fn compare(of: &Looks, truth: &[f64], told: &[[f64; 3]]) -> (f64, f64) {
    let uses: usize = of.looks.iter().map(Vec::len).sum();
    let errors = truth
        .iter()
        .zip(told)
        .map(|(truth, told)| (truth - told[1]).abs());
    let within = truth.iter().zip(told);
    let within =
        within.filter(|(truth, told)| told[0] <= **truth + 1.0 && **truth <= told[2] + 1.0);
    (
        errors.sum::<f64>() / uses as f64 / truth.len() as f64,
        within.count() as f64 / truth.len() as f64,
    )
}

fn capacities(pages: usize) -> Vec<usize> {
    let sizes = PERCENTS[..COMPARED].iter();
    sizes
        .map(|percent| (pages * usize::from(*percent) / 100).max(1))
        .collect()
}

fn in_order(of: &Looks) -> DenseTrace {
    let pages: Vec<u64> = of.looks.concat().into_iter().map(u64::from).collect();
    DenseTrace::from_pages(&pages)
}

const TRACES: [&str; 4] = ["redis.pages", "sqlite.pages", "python.pages", "gcc.pages"];

#[test]
fn lru_of_all_pages_and_of_a_sample_is_that_of_the_trace() {
    let mut covered = 0.0;
    for name in TRACES {
        let of = looks(name);
        let exact = StackDistances::of(&in_order(&of));
        let misses = exact.misses(&capacities(of.pages));
        let truth: Vec<f64> = misses.iter().map(|m| (m - exact.cold()) as f64).collect();
        for pages in [16_384, 1024, of.pages / 100] {
            let told = told(&of, pages, Kernel::Classic, Decider::Lru);
            let (error, within) = compare(&of, &truth, &told);
            println!(
                "{} {pages} of {}: error {error:.4} within {within:.2}",
                of.name, of.pages
            );
            covered += within;
            assert!(error < 0.08, "{name} with {pages} pages");
        }
    }
    assert!(covered >= 0.9 * 12.0, "{covered} of 12");
}

#[test]
fn the_kernels_order_in_miniature_is_nearer_to_the_engine_than_lru() {
    let (mut miniature, mut plain) = (0.0, 0.0);
    for name in &TRACES[..3] {
        let of = looks(name);
        let trace = in_order(&of);
        let cold = of.pages as f64;
        for (kernel, engine) in [
            (Kernel::Classic, "classic-mapped"),
            (Kernel::MultiGen, "mglru-7.2-mapped"),
        ] {
            let spec = yardstick::by_name(engine).expect("a policy of the lab");
            let told = told(&of, 16_384, kernel, Decider::Kernel);
            let lru = self::told(&of, 16_384, kernel, Decider::Lru);
            let some: Vec<usize> = (0..COMPARED).step_by(5).collect();
            let sizes = capacities(of.pages);
            let truth: Vec<f64> = some
                .iter()
                .map(|size| spec.misses(&trace, sizes[*size]) as f64 - cold)
                .collect();
            let pick = |all: &[[f64; 3]]| some.iter().map(|size| all[*size]).collect::<Vec<_>>();
            let (error, within) = compare(&of, &truth, &pick(&told));
            let (lru_error, _) = compare(&of, &truth, &pick(&lru));
            println!("{name} {engine}: error {error:.4} within {within:.2}, of lru {lru_error:.4}");
            assert!(within >= 0.9, "{name} {engine}");
            miniature += error;
            plain += lru_error;
        }
    }
    assert!(miniature < plain, "{miniature} {plain}");
}
