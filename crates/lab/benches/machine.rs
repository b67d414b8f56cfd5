// SPDX-License-Identifier: Apache-2.0
//! Speed of the simulated machine: accesses with page tables, reclaim and swap, with half of the
//! memory resident.

use agewise_lab::experiment::speed::{SpeedCase, SpeedTrace};
use agewise_lab::machine::Policy;
use divan::Bencher;
use divan::counter::ItemsCount;

const TOUCHES: usize = 1 << 18;

fn main() {
    divan::main();
}

fn bench(bencher: Bencher, policy: &str, order: SpeedTrace, pages: u32) {
    let policy = Policy::parse(policy).expect("a policy");
    let mut case = SpeedCase::new(policy, order, pages, TOUCHES).expect("room for the pages");
    bencher
        .counter(ItemsCount::new(TOUCHES))
        .bench_local(|| case.run());
}

#[divan::bench(args = ["classic", "mglru:6.12", "mglru:7.2"], sample_count = 20)]
fn zipf(bencher: Bencher, policy: &str) {
    bench(bencher, policy, SpeedTrace::Zipf, 1 << 14);
}

#[divan::bench(args = ["classic", "mglru:6.12", "mglru:7.2"], sample_count = 20)]
fn uniform(bencher: Bencher, policy: &str) {
    bench(bencher, policy, SpeedTrace::Uniform, 1 << 14);
}

#[divan::bench(args = [1 << 14, 1 << 17, 1 << 20], sample_count = 5)]
fn zipf_by_pages(bencher: Bencher, pages: u32) {
    bench(bencher, "mglru:7.2", SpeedTrace::Zipf, pages);
}
