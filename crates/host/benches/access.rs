// SPDX-License-Identifier: Apache-2.0
//! The cost of looking and clearing on real memory. `cargo bench -p agewise-host --bench access`;
//! `AGEWISE_BENCH_MIB` sets the size of the target (1024). Needs root. Reports CPU time of the
//! calling thread, as medians; recorded figures are in docs/inside/measurements.md.

use std::hint::black_box;

use agewise_host::access::{
    AccessSource, AddressRange, Batch, PAGE_BYTES, SightSink, TableSight, Target,
};
use agewise_host::clear::hand::{ClearHand, KernelHand, RefsScope};
use agewise_host::clear::{ClearPolicy, Clearer};
use agewise_host::clock::{monotonic_ns, thread_cpu_ns};
use agewise_host::pagewalk::entry::{EntryFormat, x86_64};
use agewise_host::pagewalk::extract::Extractor;
use agewise_host::pagewalk::shape::Shape;
use agewise_host::pagewalk::{Capacity, Flavour, PageWalk};
use agewise_host::process::Process;
use agewise_host::vma::{Vma, VmaTable};
use agewise_policy::table::TableBits;

#[path = "../tests/support/mod.rs"]
mod support;
use support::{BASE, Child, PAGE, fill, map_fixed};

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mib: usize = std::env::var("AGEWISE_BENCH_MIB")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1024);
    let pages = mib << 8;
    extraction();
    match PageWalk::open() {
        Err(error) => println!("SKIPPED walk: {error}"),
        Ok(walk) => {
            println!("{:?}", walk.flavour());
            drop(walk);
            for thp in [false, true] {
                walking(pages, thp);
            }
            clearing(pages);
            steady(pages);
        }
    }
}

fn extraction() {
    let format = EntryFormat {
        bits: &x86_64::BITS,
        address_mask: 0x3fff_ffff_f000,
        address_end: 1 << 40,
        shape: Shape::PAGES_4K,
    };
    let tables: Vec<[u64; 512]> = (0..256u64)
        .map(|t| std::array::from_fn(|i| ((t * 512 + i as u64) << 12) | 0x067))
        .collect();
    for (name, extractor) in [
        ("vector", Extractor::new(format, 0)),
        ("portable", Extractor::portable(format, 0)),
    ] {
        let mut out = TableBits::default();
        let times = (0..21).map(|_| {
            let began = thread_cpu_ns();
            for table in &tables {
                black_box(extractor.extract(black_box(table), &mut out));
            }
            (thread_cpu_ns() - began) as f64 / (256.0 * 512.0)
        });
        let times: Vec<f64> = times.collect();
        let (least, ns) = (best(&times), median(times));
        println!(
            "extract {name}: {ns:.3} ns/PTE, {:.3} ms/GiB (best {:.3})",
            ns * 0.262144,
            least * 0.262144
        );
    }
}

fn target(pages: usize, thp: bool) -> Child {
    let advice = if thp {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    Child::spawn(move || {
        map_fixed(BASE, pages, advice);
        fill(BASE, pages);
    })
}

fn range(pages: usize) -> AddressRange {
    AddressRange {
        start: BASE as u64,
        end: (BASE + pages * PAGE) as u64,
    }
}

fn walking(pages: usize, thp: bool) {
    let child = target(pages, thp);
    let gib = pages as f64 / 262144.0;
    // Larger than any cache except the last-level cache of a large server.
    let mut pool = vec![0u8; 256 << 20];
    for flavour in [Flavour::Syscall, Flavour::Iterator] {
        for (tables, is_cold) in [(32, true), (32, false), (64, false), (256, false)] {
            let capacity = Capacity {
                tables,
                entries: tables.max(2048),
            };
            let Ok(mut walk) = PageWalk::open_with(Some(flavour), capacity) else {
                continue;
            };
            let times: Vec<(f64, f64)> = (0..15)
                .map(|turn| {
                    if is_cold {
                        // As after a second of the target's own work: no table is in a CPU cache.
                        pool.fill(turn);
                        black_box(&pool);
                    }
                    let began = thread_cpu_ns();
                    let mut sink = |sight: &TableSight<'_>| {
                        black_box(sight.bits.young);
                    };
                    let target = Target::by_pid(child.pid);
                    let read_ns = walk.scan(&target, &[range(pages)], &mut sink).unwrap();
                    ((thread_cpu_ns() - began) as f64, read_ns as f64)
                })
                .collect();
            let whole = median(times.iter().map(|t| t.0).collect());
            let reads: Vec<f64> = times.iter().map(|t| t.1).collect();
            let (least, read) = (best(&reads), median(reads));
            println!(
                "walk {} {flavour:?} {tables} tables{}: {:.4} ms/GiB in all, {:.4} reading and \
                 extracting (best {:.4})",
                if thp { "THP" } else { "4K" },
                if is_cold { ", cold" } else { "" },
                whole / 1e6 / gib,
                read / 1e6 / gib,
                least / 1e6 / gib,
            );
        }
    }
    if !thp {
        procfs(child.pid, pages);
    }
}

/// The same questions put to /proc.
fn procfs(pid: u32, pages: usize) {
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    let gib = pages as f64 / 262144.0;
    let mut text = Vec::new();
    let smaps = (0..5).map(|_| {
        let began = thread_cpu_ns();
        text.clear();
        std::fs::File::open(format!("/proc/{pid}/smaps"))
            .unwrap()
            .read_to_end(&mut text)
            .unwrap();
        (thread_cpu_ns() - began) as f64
    });
    println!("smaps: {:.3} ms/GiB", median(smaps.collect()) / 1e6 / gib);
    let file = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut buffer = vec![0u8; 1 << 20];
    let pagemap = (0..5).map(|_| {
        let began = thread_cpu_ns();
        for chunk in 0..pages * 8 / buffer.len() {
            let at = BASE / PAGE * 8 + chunk * buffer.len();
            file.read_exact_at(&mut buffer, at as u64).unwrap();
        }
        (thread_cpu_ns() - began) as f64
    });
    println!(
        "pagemap: {:.3} ms/GiB",
        median(pagemap.collect()) / 1e6 / gib
    );
}

fn clearing(pages: usize) {
    let child = target(pages, false);
    let process = Process::open(child.pid).unwrap();
    let mut hand = KernelHand::new(&process);
    for spin in [false, true] {
        child.spin(spin);
        let state = if spin { "running" } else { "sleeping" };
        for (run, gap) in [(512, 0), (4096, 0), (1, 15), (1, 63), (16, 48)] {
            let ranges: Vec<AddressRange> = (0..pages)
                .step_by(run + gap)
                .filter(|page| page + run <= pages)
                .map(|page| {
                    let start = (BASE + page * PAGE) as u64;
                    AddressRange {
                        start,
                        end: start + run as u64 * PAGE_BYTES,
                    }
                })
                .take(8192)
                .collect();
            let touched = ranges.len() * (run + gap);
            let mut warm = 0.0;
            let mut after = 0.0;
            let times = (0..3).map(|_| {
                child.read(BASE, touched, run, gap);
                warm = child.read(BASE, touched, run, gap) as f64;
                let began = thread_cpu_ns();
                for batch in ranges.chunks(1024) {
                    hand.cold(batch).unwrap();
                }
                let took = (thread_cpu_ns() - began) as f64;
                after = child.read(BASE, touched, run, gap) as f64;
                took
            });
            let took = median(times.collect());
            let young = (ranges.len() * run) as f64;
            println!(
                "MADV_COLD, target {state}, runs of {run} every {}: {:.0} ns/range {:.1} ns/page; \
                 the target reads them in {:.0} ns/page before, {:.0} after",
                run + gap,
                took / ranges.len() as f64,
                took / young,
                warm / young,
                after / young,
            );
        }
        let mut after = 0.0;
        let times = (0..3).map(|_| {
            child.read(BASE, pages, 1, 0);
            let began = thread_cpu_ns();
            hand.refs(RefsScope::All).unwrap();
            let took = (thread_cpu_ns() - began) as f64;
            after = child.read(BASE, pages, 1, 0) as f64;
            took
        });
        let took = median(times.collect()) / pages as f64;
        println!(
            "clear_refs, target {state}: {took:.1} ns/page, {:.2} ms/GiB; {:.0} ns/page after",
            took * 0.262144,
            after / pages as f64,
        );
    }
}

struct Watch<'a> {
    clearer: &'a mut Clearer,
    hand: KernelHand,
    young: u64,
}

impl SightSink for Watch<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.clearer.judge(sight);
        self.young += sight.bits.young.len();
    }

    fn batch_end(&mut self, batch: &Batch) {
        self.clearer.clear(&mut self.hand, batch).unwrap();
    }
}

/// Half of the memory is accessed in every interval, and observed scan after scan.
fn steady(pages: usize) {
    let child = target(pages, false);
    let process = Process::open(child.pid).unwrap();
    let mut walk = PageWalk::open().unwrap();
    let mut vmas = VmaTable::new();
    let mut clearer = Clearer::new(child.pid, ClearPolicy::exact());
    let scans = 30;
    let mut total = 0;
    for scan in 0..scans {
        child.read(BASE, pages / 2, 1, 0);
        let began = thread_cpu_ns();
        vmas.read(child.pid).unwrap();
        let ranges: Vec<AddressRange> = vmas.vmas().iter().map(|vma: &Vma| vma.range).collect();
        clearer.begin(monotonic_ns(), vmas.vmas());
        let mut watch = Watch {
            clearer: &mut clearer,
            hand: KernelHand::new(&process),
            young: 0,
        };
        let read_ns = walk
            .scan(&Target::from(&process), &ranges, &mut watch)
            .unwrap();
        let young = watch.young;
        let cleared = clearer.finish(&mut KernelHand::new(&process)).unwrap();
        let took = thread_cpu_ns() - began;
        if scan >= 10 {
            total += took;
        }
        if [0, 1, 2, 4, 8, 16, 29].contains(&scan) {
            println!(
                "steady, scan {scan}: {:.2} ms (walk {:.2}, clear {:.2}): {young} young pages, {} \
                 tables cleared, {} ranges",
                took as f64 / 1e6,
                read_ns as f64 / 1e6,
                cleared.cpu_ns as f64 / 1e6,
                cleared.tables_cleared,
                cleared.ranges,
            );
        }
    }
    let gib = pages as f64 / 262144.0;
    let mean = total as f64 / 1e6 / f64::from(scans - 10);
    println!("steady: {mean:.2} ms a scan, {:.2} ms/GiB", mean / gib);
}
