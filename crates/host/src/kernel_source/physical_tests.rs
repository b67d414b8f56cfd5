// SPDX-License-Identifier: Apache-2.0
//! Tests of attribution to cgroups, on fake trees and on this machine's own memory. A guest tests
//! the monitor of physical memory itself.

use std::os::unix::fs::MetadataExt;

use super::super::frames::FILES;
use super::super::{DamonSource, start_damon};
use super::*;
use crate::agent::PathFilter;
use crate::cgroup::Version;

const LRU: u64 = 1 << 5;
const ANON: u64 = 1 << 12;

const SCALE: Scale = Scale {
    aggr_us: 100_000,
    observed_ms: 30_000,
    oldest: OldestPages::AtLeast,
};

/// A machine with cgroups `/a`, `/a/b` and `/c`, and frames charged to them.
struct Fake {
    dir: tempfile::TempDir,
}

impl Fake {
    fn new() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        for cgroup in ["a/b", "c"] {
            std::fs::create_dir_all(dir.path().join("cg").join(cgroup)).unwrap();
        }
        Fake { dir }
    }

    fn hierarchy(&self) -> Hierarchy {
        Hierarchy::at(Version::V2, self.dir.path().join("cg"))
    }

    fn cgroup(&self, path: &str) -> Cgroup {
        Cgroup::open(&self.hierarchy(), path).unwrap()
    }

    fn inode(&self, path: &str) -> u64 {
        let path = self.dir.path().join("cg").join(path);
        std::fs::metadata(path).unwrap().ino()
    }

    fn frames(&self, pages: &[(u64, u64)]) -> Frames {
        let proc = Roots::below(self.dir.path()).proc;
        std::fs::create_dir_all(proc.path()).unwrap();
        let bytes =
            |words: Vec<u64>| -> Vec<u8> { words.into_iter().flat_map(u64::to_ne_bytes).collect() };
        let flags = bytes(pages.iter().map(|(flags, _)| *flags).collect());
        let cgroups = bytes(pages.iter().map(|(_, cgroup)| *cgroup).collect());
        for (name, bytes) in FILES.into_iter().zip([flags, cgroups]) {
            std::fs::write(proc.join(name), bytes).unwrap();
        }
        Frames::open(&proc).unwrap()
    }
}

fn region(frames: std::ops::Range<u64>, nr_accesses: u32, age: u32) -> TriedRegion {
    TriedRegion {
        start: frames.start * PAGE_BYTES,
        end: frames.end * PAGE_BYTES,
        nr_accesses,
        age,
    }
}

/// Name, and anon and file pages of every bin.
fn lines(reports: &[SubjectReport]) -> Vec<(&str, Vec<[u64; 2]>)> {
    let pages = |amounts: ByType<u64>| amounts.map(|bytes| bytes / PAGE_BYTES);
    reports
        .iter()
        .map(|report| {
            let bins = report.nodes[0].1.bins();
            let bins = bins.iter().map(|bin| pages(bin.amounts)).collect();
            (report.name.as_os_str().to_str().unwrap(), bins)
        })
        .collect()
}

#[test]
fn pages_count_for_their_cgroup_and_those_above_at_the_age_of_their_region() {
    let fake = Fake::new();
    let [a, b, c] = ["a", "a/b", "c"].map(|path| fake.inode(path));
    let frames = fake.frames(&[
        (LRU | ANON, a),
        (LRU, a),
        (LRU | ANON, b),
        (0, b),
        (LRU | ANON, c),
        // Charged to no cgroup, and to an unlisted one.
        (LRU, 0),
        (LRU | ANON, u64::MAX),
        // In no region.
        (LRU | ANON, b),
    ]);
    let regions = [region(0..2, 5, 0), region(2..7, 0, 40)];
    let intervals: Intervals = "1s,5s".parse().unwrap();
    let reports = |wanted: Wanted| {
        let owners = Owners::find(&wanted).unwrap();
        let mut count = Count::new(&owners, &intervals, SCALE);
        count.range(&frames, 0..8, &regions).unwrap();
        (count.uncovered_pages, count.reports())
    };
    let limits = TreeLimits {
        depth_max: 1,
        ..TreeLimits::default()
    };
    let hierarchy = fake.hierarchy();
    let (uncovered, all) = reports(Wanted::All { hierarchy, limits });
    // A page outside all regions gets the lowest age, and counts as never seen accessed.
    let expected = [
        ("/", vec![[2, 1], [3, 1], [0, 0]]),
        ("/a", vec![[2, 1], [1, 0], [0, 0]]),
        ("/c", vec![[0, 0], [1, 0], [0, 0]]),
    ];
    assert_eq!((uncovered, lines(&all)), (1, expected.to_vec()));
    assert_eq!(all[1].resident_bytes, [3 * PAGE_BYTES, PAGE_BYTES]);
    assert_eq!(all[1].unseen_bytes, [PAGE_BYTES, 0]);

    let listed = ["/a/b", "/a", "/c"].map(|path| fake.cgroup(path));
    let (_, some) = reports(Wanted::Listed(listed.to_vec()));
    let expected = [
        ("/a/b", vec![[1, 0], [1, 0], [0, 0]]),
        ("/a", vec![[2, 1], [1, 0], [0, 0]]),
        ("/c", vec![[0, 0], [1, 0], [0, 0]]),
    ];
    assert_eq!(lines(&some), expected);

    let gone = fake.cgroup("/c");
    std::fs::remove_dir(fake.dir.path().join("cg/c")).unwrap();
    let (_, reports) = reports(Wanted::Listed(vec![gone]));
    assert!(reports[0].gone.is_some());
}

#[test]
fn cgroups_are_watched_by_physical_memory_where_there_is_nothing_else() {
    let cgroups = Fake::new();
    let damon = crate::damon::tests::Fake::new();
    let mut roots = damon.roots();
    let parent = Subject::process(&ProcRoot::default(), std::os::unix::process::parent_id());
    let listed = |subject| Targets::Listed(vec![subject]);
    cgroups.frames(&[]);
    roots.proc = Roots::below(cgroups.dir.path()).proc;
    std::fs::write(roots.proc.join("iomem"), "1000-4fff : System RAM\n").unwrap();
    let start = |targets: &Targets| {
        let intervals: Intervals = "1s".parse().unwrap();
        start_damon(roots.clone(), targets, intervals, OldestPages::AtLeast)
    };
    let operations = || damon.get("0/contexts/0/operations");

    damon.put("0/contexts/0/avail_operations", "paddr\n");
    let source = start(&listed(Subject::Cgroup(cgroups.cgroup("/a")))).unwrap();
    assert_eq!(
        (source.unit(), operations().as_str()),
        (Unit::Cgroups, "paddr")
    );
    assert_eq!(damon.get("0/contexts/0/targets/0/regions/0/end"), "20480");
    drop(source);
    assert_eq!(damon.get("nr_kdamonds"), "0");
    let error = DamonSource::start(
        Roots {
            sys: roots.sys.clone(),
            ..Roots::default()
        },
        &listed(parent.unwrap()),
        "1s".parse().unwrap(),
        OldestPages::AtLeast,
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("'vaddr' (it offers: paddr)"), "{error}");
    assert!(error.contains("--cgroup"), "says what to do: {error}");

    let all = Targets::AllCgroups {
        hierarchy: cgroups.hierarchy(),
        limits: TreeLimits::default(),
    };
    damon.put("0/contexts/0/avail_operations", "vaddr\npaddr\n");
    assert_eq!(start(&all).unwrap().unit(), Unit::Cgroups);
    // A cgroup without processes: virtual memory was requested, and there is none.
    let cgroup = cgroups.cgroup("/a");
    std::fs::write(cgroup.dir().join("cgroup.procs"), "").unwrap();
    std::fs::write(cgroup.dir().join("b/cgroup.procs"), "").unwrap();
    let error = start(&listed(Subject::Cgroup(cgroup))).err().unwrap();
    assert!(error.to_string().contains("no process"), "{error}");
    damon.put("0/contexts/0/avail_operations", "vaddr\n");
    let error = start(&all).err().unwrap().to_string();
    assert!(error.contains("'paddr' (it offers: vaddr)"), "{error}");
}

#[test]
fn only_cgroups_can_be_told_apart() {
    let proc = ProcRoot::default();
    let parent = std::os::unix::process::parent_id();
    let process = Subject::process(&proc, parent).unwrap();
    let error = Wanted::of(&Targets::Listed(vec![process])).unwrap_err();
    assert!(error.to_string().contains("--cgroup"), "{error}");
    let matched = Targets::Matched {
        hierarchy: None,
        limits: TreeLimits::default(),
        filter: PathFilter::new(|_| true),
        pids: Vec::new(),
    };
    let error = Wanted::of(&matched).unwrap_err();
    assert!(error.to_string().contains("--all"), "{error}");
}

#[test]
fn memory_is_what_the_kernel_lists_as_such_in_whole_pages() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::below(dir.path());
    std::fs::create_dir_all(roots.proc.path()).unwrap();
    let put = |text: &str| std::fs::write(roots.proc.join("iomem"), text).unwrap();
    put("00000000-00000fff : Reserved\n\
         00001000-0009fbff : System RAM\n\
         00100000-bfffffff : System RAM\n\
         \x20 01000000-01ffffff : System RAM\n\
         000c0100-000c01ff : System RAM\n\
         100000000-63fffffff : System RAM\n");
    let expected = [
        (0x1000, 0x9f000),
        (0x10_0000, 0xc000_0000),
        (0x1_0000_0000, 0x6_4000_0000),
    ];
    assert_eq!(system_ram(&roots.proc).unwrap(), expected);
    // Users other than root see zeros.
    put("00000000-00000000 : System RAM\n");
    let error = system_ram(&roots.proc).unwrap_err().to_string();
    assert!(error.contains("only root"), "{error}");
    let many: String = (0..1000u64)
        .map(|i| {
            let start = i * 0x10_0000;
            let end = start + (i + 1) * PAGE_BYTES - 1;
            format!("{start:x}-{end:x} : System RAM\n")
        })
        .collect();
    put(&many);
    let ranges = system_ram(&roots.proc).unwrap();
    assert_eq!(ranges.len(), RANGES_MAX);
    assert!(ranges.is_sorted() && ranges[0].0 == 800 * 0x10_0000);
}

#[test]
fn live_all_memory_of_this_machine_is_attributed() {
    let proc = ProcRoot::default();
    let (Ok(frames), Ok(ranges)) = (Frames::open(&proc), system_ram(&proc)) else {
        return println!("SKIPPED live attribution: needs root and /proc/kpagecgroup");
    };
    let Ok(hierarchy) = Hierarchy::discover(&proc) else {
        return println!("SKIPPED live attribution: no cgroup accounts memory");
    };
    let limits = TreeLimits::default();
    let owners = Owners::find(&Wanted::All { hierarchy, limits }).unwrap();
    let intervals: Intervals = "1s".parse().unwrap();
    let mut count = Count::new(&owners, &intervals, SCALE);
    let began = thread_cpu_ns();
    for (start, end) in &ranges {
        let range = start / PAGE_BYTES..end / PAGE_BYTES;
        count.range(&frames, range, &[]).unwrap();
    }
    let cpu_ms = (thread_cpu_ns() - began) / 1_000_000;
    let reports = count.reports();
    let meminfo = crate::memory::MemInfo::of_machine(&proc).unwrap();
    let found: u64 = reports[0].resident_bytes.iter().sum();
    println!("{found} bytes found in {cpu_ms} ms; {meminfo:?}");
    // Other programs keep running, and may allocate or free a lot in the meantime.
    let known = meminfo.anon_bytes + meminfo.file_bytes;
    assert!(
        found > known / 2 && found < known.saturating_mul(2),
        "{found} found, {known} known"
    );
}
