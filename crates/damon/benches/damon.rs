// SPDX-License-Identifier: Apache-2.0
//! The monitor's own cost per region and sample, with the accessed bits of 64 GiB in a bitmap. Each
//! iteration is one aggregation of 20 samples, so time divided by items is the cost of one check of
//! a region.

use agewise_damon::action::Action;
use agewise_damon::attrs::Attrs;
use agewise_damon::filter::PageFilters;
use agewise_damon::lru_sort;
use agewise_damon::module::Module;
use agewise_damon::monitor::Monitor;
use agewise_damon::profile::Profile;
use agewise_damon::space::{Applied, Space};
use agewise_damon::target::TargetId;
use divan::counter::ItemsCount;

const PAGES: u64 = 64 << 18;
const LOOKS: u64 = 20;

fn main() {
    divan::main();
}

/// Accessed bits; every third GiB is accessed all the time.
struct Bitmap {
    now_us: u64,
    young: Vec<u64>,
}

impl Bitmap {
    fn new() -> Bitmap {
        Bitmap {
            now_us: 0,
            young: vec![0; (PAGES / 64) as usize],
        }
    }

    fn place(addr: u64) -> (usize, u64) {
        let page = addr / 4096;
        ((page / 64) as usize, 1 << (page % 64))
    }
}

impl Space for Bitmap {
    fn now_us(&self) -> u64 {
        self.now_us
    }
    fn is_physical(&self) -> bool {
        true
    }
    fn ranges(&mut self, _target: TargetId, ranges: &mut Vec<(u64, u64)>) {
        ranges.push((0, PAGES * 4096));
    }
    fn make_old(&mut self, _target: TargetId, addr: u64) {
        let (word, bit) = Bitmap::place(addr);
        self.young[word] &= !bit;
    }
    fn accessed(&mut self, _target: TargetId, addr: u64) -> bool {
        let (word, bit) = Bitmap::place(addr);
        self.young[word] & bit != 0 || (addr >> 30).is_multiple_of(3)
    }
    fn apply(
        &mut self,
        _target: TargetId,
        start: u64,
        end: u64,
        _action: Action,
        _filters: &PageFilters,
    ) -> Applied {
        Applied {
            bytes: end - start,
            filter_passed_bytes: end - start,
            cost_ns: (end - start) / 4096 * 50,
        }
    }
    fn free_mem_permille(&self) -> u64 {
        100
    }
    fn active_mem_bp(&self) -> u64 {
        5_000
    }
    fn mem_psi_us(&self) -> u64 {
        0
    }
}

fn aggregation(monitor: &mut Monitor, space: &mut Bitmap) {
    for _ in 0..LOOKS {
        monitor.wait(space);
        monitor.prepare(space);
        space.now_us += 5_000;
        monitor.check(space);
    }
}

fn bench(bencher: divan::Bencher, mut monitor: Monitor) {
    let mut space = Bitmap::new();
    monitor.start(&mut space);
    for _ in 0..100 {
        aggregation(&mut monitor, &mut space);
    }
    let looks = monitor.nr_regions() as u64 * LOOKS;
    bencher
        .counter(ItemsCount::new(looks))
        .bench_local(|| aggregation(&mut monitor, &mut space));
}

/// Only sampling, merging and splitting.
#[divan::bench(args = [125, 250, 500, 1000, 2000], min_time = 0.3)]
fn monitor(bencher: divan::Bencher, regions: u64) {
    let attrs = Attrs {
        min_nr_regions: regions,
        max_nr_regions: regions,
        ..Attrs::default()
    };
    let monitor = Monitor::new(Profile::V7_2, attrs, &[TargetId(0)], Vec::new(), 1);
    bench(bencher, monitor.expect("valid attributes"));
}

/// With the two schemes of LRU sorting, by profile.
#[divan::bench(args = [Profile::V6_12, Profile::V7_2], min_time = 0.3)]
fn lru_sort(bencher: divan::Bencher, profile: Profile) {
    let mut params = lru_sort::Params::default();
    params.common.min_nr_regions = 1000;
    params.common.max_nr_regions = 1000;
    let monitor = params.monitor(profile, TargetId(0), 1);
    bench(bencher, monitor.expect("valid parameters"));
}
