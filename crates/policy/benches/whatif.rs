// SPDX-License-Identifier: Apache-2.0
//! The cost of simulation for a daemon: a look at 8 GiB (half of it used), a curve, and finding the
//! pages of the sample by trying each.

use agewise_policy::PageType;
use agewise_policy::whatif::{Fact, Kernel, Look, Params, WhatIf, page_hash};

/// Pages in 8 GiB.
const PAGES: u64 = 8 << 18;

fn main() {
    divan::main();
}

fn fact(page: u64, second: u64) -> Fact {
    if page % 2 == second % 2 {
        Fact::Used
    } else {
        Fact::Idle
    }
}

/// A look at blocks of 16 pages, one in 2^`level` of all.
fn show(look: &mut Look<'_>, level: u8, second: u64) {
    let filter = look.filter();
    let mut from = 0;
    while from < PAGES {
        filter.each(0, from..from + 16, level, |page, hash| {
            look.page(hash, level, PageType::Anon, fact(page, second));
        });
        from += 16 << level;
    }
}

fn look(what_if: &mut WhatIf, level: u8, second: u64) {
    let mut look = what_if.look(second * 5000);
    match level {
        0 => look.filter().each(0, 0..PAGES, 0, |page, hash| {
            look.page(hash, 0, PageType::Anon, fact(page, second));
        }),
        _ => show(&mut look, level, second),
    }
    look.finish(PAGES, true);
}

/// A simulation with enough looks to have settled on its sample.
fn settled(level: u8) -> WhatIf {
    let mut what_if = WhatIf::new(Params::small(Kernel::Classic));
    (0..20).for_each(|second| look(&mut what_if, level, second));
    what_if
}

/// Level 0: every page is followed; 5: as the agent samples this much memory.
#[divan::bench(args = [0, 5])]
fn a_look(bencher: divan::Bencher<'_, '_>, level: u8) {
    let (mut what_if, mut second) = (settled(level), 20);
    bencher.bench_local(|| {
        look(&mut what_if, level, second);
        second += 1;
    });
}

#[divan::bench]
fn trying_every_page(bencher: divan::Bencher<'_, '_>) {
    let filter = settled(0).look(0).filter();
    bencher.bench_local(|| {
        let taken = |page: &u64| filter.takes(page_hash(0, *page), 0);
        (0..PAGES).filter(taken).count()
    });
}

#[divan::bench]
fn curves(bencher: divan::Bencher<'_, '_>) {
    let what_if = settled(5);
    bencher.bench_local(|| what_if.curves());
}
