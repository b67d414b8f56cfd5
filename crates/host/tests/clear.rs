// SPDX-License-Identifier: Apache-2.0
//! Clearing on real processes: what was cleared is seen again only once accessed, huge pages stay
//! whole, and shared and locked memory is cleared too. Needs root and BPF.

use agewise_host::access::{
    AccessSource, AddressRange, Batch, Leaf, SightSink, TABLE_BYTES, TableSight, Target,
};
use agewise_host::clear::hand::KernelHand;
use agewise_host::clear::{ClearPolicy, ClearReport, Clearer, Means};
use agewise_host::clock::monotonic_ns;
use agewise_host::pagewalk::PageWalk;
use agewise_host::process::Process;
use agewise_host::vma::{Vma, VmaTable};

mod support;
use support::{BASE, Child, PAGE, fill, map_fixed, need, whole};

const HUGE: usize = TABLE_BYTES as usize;

fn walker(test: &str) -> Option<PageWalk> {
    need::opened("pagewalk", test, PageWalk::open())
}

/// One process, observed as the agent does.
struct Watched<'a> {
    walk: &'a mut PageWalk,
    process: Process,
    vmas: VmaTable,
    clearer: Clearer,
}

/// Pages taken for accessed, by number from [`BASE`], and the kinds of entries that map them.
#[derive(Default)]
struct Found {
    young: Vec<usize>,
    leaves: Vec<Leaf>,
    report: ClearReport,
}

struct Sink<'a> {
    clearer: &'a mut Clearer,
    hand: KernelHand,
    found: Found,
}

impl SightSink for Sink<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.clearer.judge(sight);
        let first = match (sight.va as usize).checked_sub(BASE) {
            Some(bytes) if bytes < 1 << 40 => bytes / PAGE,
            _ => return,
        };
        self.found.leaves.push(sight.leaf);
        let is_young = |page: &usize| sight.bits.young[page / 64] >> (page % 64) & 1 == 1;
        self.found
            .young
            .extend((0..512).filter(is_young).map(|page| first + page));
    }

    fn batch_end(&mut self, batch: &Batch) {
        self.clearer.clear(&mut self.hand, batch).unwrap();
    }
}

impl<'a> Watched<'a> {
    fn new(walk: &'a mut PageWalk, child: &Child, policy: ClearPolicy) -> Self {
        let process = Process::open(child.pid).unwrap();
        let clearer = Clearer::new(child.pid, policy);
        Watched {
            walk,
            process,
            vmas: VmaTable::new(),
            clearer,
        }
    }

    fn scan(&mut self) -> Found {
        self.vmas.read(self.process.pid()).unwrap();
        let ranges: Vec<AddressRange> =
            self.vmas.vmas().iter().map(|vma: &Vma| vma.range).collect();
        self.clearer.begin(monotonic_ns(), self.vmas.vmas());
        let hand = KernelHand::new(&self.process);
        let mut sink = Sink {
            clearer: &mut self.clearer,
            hand,
            found: Found::default(),
        };
        self.walk
            .scan(&Target::from(&self.process), &ranges, &mut sink)
            .unwrap();
        let mut found = sink.found;
        found.report = self
            .clearer
            .finish(&mut KernelHand::new(&self.process))
            .unwrap();
        found
    }
}

/// Checks that `got` is `want`, except for 1 % each way: pages another program may have cleared (a
/// kdamond), and pages not yet on an LRU list when MADV_COLD was called (those in a per-CPU batch).
fn assert_about(got: &[usize], want: &[usize], pages: usize) {
    let extra = got
        .iter()
        .filter(|page| want.binary_search(page).is_err())
        .count();
    let missing = want
        .iter()
        .filter(|page| got.binary_search(page).is_err())
        .count();
    assert!(
        extra * 100 <= pages,
        "{extra} of {pages} pages called young wrongly"
    );
    assert!(
        missing * 100 <= want.len(),
        "{missing} of {} accesses missed",
        want.len()
    );
}

#[test]
fn what_is_cleared_is_young_again_only_when_accessed() {
    let test = "what_is_cleared_is_young_again_only_when_accessed";
    let Some(mut walk) = walker(test) else { return };
    for means in [Means::Cold, Means::Refs, Means::Auto] {
        let pages = 64 << 8;
        let child = Child::spawn(move || {
            map_fixed(BASE, pages, libc::MADV_NOHUGEPAGE);
            fill(BASE, pages);
        });
        let policy = ClearPolicy {
            means,
            ..ClearPolicy::exact()
        };
        let mut watched = Watched::new(&mut walk, &child, policy);
        watched.scan();
        for (run, gap) in [(1, 2), (64, 64), (1, 999), (512, 1024), (pages, 0)] {
            watched.scan();
            child.read(BASE, pages, run, gap);
            let want: Vec<usize> = (0..pages)
                .filter(|page| page % (run + gap) < run && page / (run + gap) < pages / (run + gap))
                .chain((pages / (run + gap) * (run + gap)..pages).filter(|page| {
                    page % (run + gap) < run && page - page % (run + gap) + run <= pages
                }))
                .collect();
            assert_about(&watched.scan().young, &whole(want, 1), pages);
        }
    }
}

#[test]
fn huge_pages_stay_huge() {
    let Some(mut walk) = walker("huge_pages_stay_huge") else {
        return;
    };
    let child = Child::spawn(|| {
        map_fixed(BASE, 512 * 8, libc::MADV_HUGEPAGE);
        fill(BASE, 512 * 8);
    });
    let policy = ClearPolicy {
        means: Means::Cold,
        ..ClearPolicy::exact()
    };
    let mut watched = Watched::new(&mut walk, &child, policy);
    if watched.scan().leaves.contains(&Leaf::Page) {
        println!("SKIPPED huge_pages_stay_huge: the kernel gave no transparent huge pages");
        return;
    }
    for round in 0..6 {
        child.read(BASE + (round % 8) * HUGE + 5 * PAGE, 1, 1, 0);
        let found = watched.scan();
        assert_eq!(found.leaves, [Leaf::Huge; 8]);
        let want: Vec<usize> = (round % 8 * 512..round % 8 * 512 + 512).collect();
        // The first scans clear what filling has set, unless MADV_COLD cannot reach the pages yet.
        if round >= 2 {
            assert_eq!(found.young, want, "round {round}");
        }
    }
}

/// MADV_COLD skips pages that others map too, and refuses locked ones: clear_refs clears them.
#[test]
fn shared_and_locked_memory_is_cleared_too() {
    let Some(mut walk) = walker("shared_and_locked_memory_is_cleared_too") else {
        return;
    };
    if !std::path::Path::new("/proc/kpagecount").exists() {
        println!("SKIPPED shared_and_locked_memory_is_cleared_too: no /proc/kpagecount");
        return;
    }
    let child = Child::spawn(|| {
        map_fixed(BASE, 512, libc::MADV_NOHUGEPAGE);
        fill(BASE, 512);
        // A second process that maps the same pages.
        // SAFETY: the new process only pauses, and dies with its parent.
        unsafe {
            if libc::fork() == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
        map_fixed(BASE + 2 * HUGE, 512, libc::MADV_NOHUGEPAGE);
        fill(BASE + 2 * HUGE, 512);
        // SAFETY: our own mapping.
        unsafe { libc::mlock((BASE + 2 * HUGE) as *const _, HUGE) };
    });
    let policy = ClearPolicy {
        max_stall_share: 1.0,
        ..ClearPolicy::exact()
    };
    let mut watched = Watched::new(&mut walk, &child, policy);
    // It takes a scan to learn what MADV_COLD skips.
    for _ in 0..3 {
        watched.scan();
    }
    let found = watched.scan();
    assert!(
        found.young.len() <= 10,
        "{} pages still young",
        found.young.len()
    );
    child.read(BASE, 512, 1, 1);
    child.read(BASE + 2 * HUGE, 512, 1, 3);
    let want: Vec<usize> = (0..512)
        .step_by(2)
        .filter(|page| page + 1 < 512)
        .chain((1024..1536).step_by(4).filter(|page| page + 3 < 1536))
        .collect();
    let found = watched.scan();
    assert!(found.report.refs_writes == 1, "{:?}", found.report);
    assert_about(&found.young, &whole(want, 1), 1024);
}
