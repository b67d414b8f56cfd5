// SPDX-License-Identifier: Apache-2.0
//! What is kept for each cgroup stays small: every byte allocated and not freed is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use agewise_policy::PageType;
use agewise_policy::reuse::{PageHistory, ReuseModel, ReuseParams};
use agewise_policy::whatif::{Fact, Kernel, Params, WhatIf, page_hash};

thread_local! {
    /// Bytes that this thread, which runs one test, has allocated.
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count(bytes: i64) {
        LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
    }
}

// SAFETY: forwards to the system allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count(layout.size() as i64);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Counting::count(-(layout.size() as i64));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_daemons_curve_of_a_cgroup_takes_80_kib() {
    for kernel in [Kernel::Classic, Kernel::MultiGen] {
        let before = LIVE_BYTES.get();
        let mut what_if = WhatIf::new(Params::small(kernel));
        for second in 0..60 {
            let mut look = what_if.look(second * 1000);
            for page in 0..4000 {
                let is_used = page % (1 + page / 40) == second % (1 + page / 40);
                let fact = if is_used { Fact::Used } else { Fact::Idle };
                look.page(page_hash(0, page), 0, PageType::Anon, fact);
            }
            look.finish(4000, true);
        }
        assert_eq!(what_if.sampled_pages(), 512);
        let bytes = LIVE_BYTES.get() - before + size_of::<WhatIf>() as i64;
        assert!((10 << 10..=80 << 10).contains(&bytes), "{bytes}");
    }
}

#[test]
fn a_reuse_model_takes_a_few_kib_whatever_it_is_shown() {
    let before = LIVE_BYTES.get();
    let mut model = ReuseModel::new(ReuseParams {
        sample_pages: u64::MAX,
        ..ReuseParams::default()
    });
    let fresh = LIVE_BYTES.get() - before;
    let mut pages = vec![PageHistory::default(); 10_000];
    let with_pages = LIVE_BYTES.get();
    for now in 0..50 {
        let mut look = model.look();
        look.shift(&mut pages);
        for (number, word) in pages.chunks_mut(64).enumerate() {
            let touched = (0..word.len()).filter(|at| (64 * number + at) % 7 == now % 7);
            let bits = touched.fold(0, |bits, at| bits | 1 << at);
            look.word(number as u64, word, bits);
        }
        look.finish();
    }
    assert_eq!(LIVE_BYTES.get(), with_pages);
    let bytes = fresh + size_of::<ReuseModel>() as i64;
    assert!((1 << 10..16 << 10).contains(&bytes), "{bytes}");
    assert_eq!(size_of::<PageHistory>(), 2);
}
