// SPDX-License-Identifier: Apache-2.0
//! What reporting page faults costs the program: `cargo bench -p agewise-host --bench faults`.
//! First touches of 64 MiB, alternately with and without; medians of pairs. Needs root.

use agewise_host::faults::{FaultSource, Faults};

#[path = "../tests/support/mod.rs"]
mod support;
use support::{BASE, Child, map_fixed};

const PAGES: usize = 16384;
const PAIRS: usize = 15;

fn first_touches(faults: Option<&mut Faults>) -> f64 {
    let child = Child::spawn(|| map_fixed(BASE, PAGES, libc::MADV_NOHUGEPAGE));
    let mut told = Vec::new();
    let took_ns = match faults {
        None => child.read(BASE, PAGES, 1, 0),
        Some(faults) => {
            faults.watch(child.pid).expect("room for one");
            let took_ns = child.read(BASE, PAGES, 1, 0);
            faults.drain(&mut told).expect("readable");
            faults.forget(child.pid);
            assert!(told.len() >= PAGES && faults.dropped() == 0);
            took_ns
        }
    };
    took_ns as f64 / PAGES as f64
}

fn main() {
    let mut pairs: Vec<(f64, f64)> = (0..PAIRS)
        .map(|_| {
            let without = first_touches(None);
            // Attached for this run only, so that the others pay nothing.
            let mut faults = Faults::open().expect("root, and BTF");
            (without, first_touches(Some(&mut faults)))
        })
        .collect();
    pairs.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    let (without, with) = pairs[PAIRS / 2];
    println!(
        "a first touch: {without:.0} ns, told {with:.0} ns: {:+.0} ns, {:.2} times",
        with - without,
        with / without
    );
}
