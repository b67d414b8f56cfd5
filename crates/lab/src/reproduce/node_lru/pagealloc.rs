// SPDX-License-Identifier: Apache-2.0
//! pagealloc: only allocates and frees batches of pages.
//!
//! The work of choosing a zone is counted and costed by the cost model. The rest of the allocator
//! is not modelled; its cost is taken from the document's column before: 208 ns to allocate and
//! free a page, 271 ns more per batch, and 110 ns for each page beyond the per-CPU list of 186; a
//! block of two pages, which has no such list, takes 350 ns, and 373 ns more per batch. Only
//! differences between before and after are meaningful.

use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::NodeId;

use crate::machine::alloc_work::AllocWork;
use crate::machine::cost::CostModel;
use crate::machine::frames::Frames;
use crate::machine::{MachineConfig, Policy};
use crate::reproduce::{Benchmark, Case, Expectation, Figure, Measured, Pair};
use crate::workload::random::XorShift64Star;

/// Size of a per-CPU list, in pages.
const PER_CPU_PAGES: f64 = 186.0;

/// Minimum number of blocks allocated and freed for one value.
const BLOCKS: u32 = 40_000;

/// ns per page (order 0) in batches of 1, 2, 4 ... 16384, before and after.
const ORDER_0: [(f64, f64); 15] = [
    (485.0, 462.0),
    (354.0, 341.0),
    (285.0, 277.0),
    (249.0, 240.0),
    (230.0, 224.0),
    (222.0, 215.0),
    (216.0, 210.0),
    (214.0, 208.0),
    (248.0, 233.0),
    (277.0, 270.0),
    (294.0, 284.0),
    (308.0, 298.0),
    (318.0, 307.0),
    (322.0, 308.0),
    (324.0, 309.0),
];

/// ns per block of two pages (order 1) in batches of 1, 2, 4 ... 8192, before and after.
const ORDER_1: [(f64, f64); 14] = [
    (729.0, 686.0),
    (533.0, 520.0),
    (434.0, 415.0),
    (390.0, 364.0),
    (359.0, 335.0),
    (356.0, 327.0),
    (356.0, 321.0),
    (356.0, 333.0),
    (354.0, 337.0),
    (366.0, 340.0),
    (373.0, 354.0),
    (375.0, 354.0),
    (374.0, 354.0),
    (370.0, 355.0),
];

pub(super) fn benchmarks() -> Vec<Benchmark> {
    let of_order = |order: u32, values: &'static [(f64, f64)]| {
        values
            .iter()
            .enumerate()
            .map(move |(power, &(before, after))| Benchmark {
                name: format!("pagealloc/order{order}-{}", 1 << power),
                summary: "blocks allocated in a batch and freed again; choice of zone counted"
                    .into(),
                figures: vec![
                    Figure::lower("time a block", "ns", Expectation::Figures)
                        .document(before, after),
                ],
                measure: Box::new(move |case| measure(case, order, 1 << power)),
            })
    };
    let mut all: Vec<Benchmark> = of_order(0, &ORDER_0).chain(of_order(1, &ORDER_1)).collect();
    all.push(Benchmark {
        name: "pagealloc/zones".into(),
        summary: "share of all pages allocated from DMA32".into(),
        figures: vec![
            Figure::lower("DMA32 allocs", "%", Expectation::Figures)
                .document(100.0 * 28_794_408_561.0 / 77_226_378_259.0, 0.0)
                .by_difference(),
        ],
        measure: Box::new(|case| both(case, |frames, case| dma32_percent(frames, case.seed))),
    });
    all
}

fn measure(case: &Case, order: u32, batch: u32) -> Measured {
    both(case, |frames, case| {
        let work = churn(frames, case.seed, order, batch);
        let blocks = work.allocations as f64;
        let choice_ns = CostModel::default().price_zone_choice(&work) as f64 / blocks;
        rest_ns(order, f64::from(batch)) + choice_ns
    })
}

/// Cost of a block without choosing a zone, in ns.
fn rest_ns(order: u32, batch: f64) -> f64 {
    if order > 0 {
        return 350.0 + 373.0 / batch;
    }
    let beyond = (batch - PER_CPU_PAGES).max(0.0) / batch;
    208.0 + 271.0 / batch + 110.0 * beyond
}

fn both(case: &Case, measure: impl Fn(&mut Frames, &Case) -> f64) -> Measured {
    let of = |arrangement: &str| -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
        let policy = Policy::parse(&format!("classic+{arrangement}"))?;
        let config = MachineConfig {
            zones: Some(vec![[128, 32_640, 98_304, 0]]),
            ..MachineConfig::new(1 << 17)
        };
        let mut frames = Frames::new(&config.zone_pages(), 0, config.watermark_scale_factor);
        frames.set_fair(policy.arrangement.is_fair());
        Ok(measure(&mut frames, case))
    };
    Ok(vec![Pair {
        before: of("zone+fair")?,
        after: of(case.variant)?,
    }])
}

const NODE: NodeId = NodeId(0);
const HIGHEST: usize = 3;

/// Brings a machine into a state after some uptime: rounds of the fair policy are in progress.
fn warm(frames: &mut Frames, seed: u64) {
    let mut random = XorShift64Star::new(seed | 1);
    let mut held = Vec::new();
    for _ in 0..110_000 + random.below(10_000) {
        frames.allocate_order(NODE, HIGHEST, 0, &mut held);
    }
    free_all(frames, &mut held);
    for _ in 0..random.below(50_000) {
        frames.allocate_order(NODE, HIGHEST, 0, &mut held);
    }
    free_all(frames, &mut held);
}

fn free_all(frames: &mut Frames, held: &mut Vec<Pfn>) {
    for pfn in held.drain(..) {
        frames.free(pfn);
    }
}

fn churn(frames: &mut Frames, seed: u64, order: u32, batch: u32) -> AllocWork {
    warm(frames, seed);
    let before = frames.work;
    let mut held = Vec::new();
    for _ in 0..BLOCKS.div_ceil(batch) {
        for _ in 0..batch {
            frames.allocate_order(NODE, HIGHEST, order, &mut held);
        }
        free_all(frames, &mut held);
    }
    frames.work.since(&before)
}

fn dma32_percent(frames: &mut Frames, seed: u64) -> f64 {
    let allocated = |frames: &Frames| {
        let zones = frames.node_zones(NODE);
        [zones[1].allocated_pages(), zones[2].allocated_pages()]
    };
    warm(frames, seed);
    let before = allocated(frames);
    let mut held = Vec::new();
    for _ in 0..BLOCKS / 64 {
        for _ in 0..64 {
            frames.allocate_order(NODE, HIGHEST, 0, &mut held);
        }
        free_all(frames, &mut held);
    }
    let after = allocated(frames);
    let [dma32, normal] = [after[0] - before[0], after[1] - before[1]];
    100.0 * dma32 as f64 / (dma32 + normal).max(1) as f64
}
