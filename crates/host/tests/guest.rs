// SPDX-License-Identifier: Apache-2.0
//! Access sources and movers that only some kernels have: the multi-gen LRU behind debugfs, and
//! DAMON without another owner. `make test-vm` runs these tests in a virtual machine with a
//! distribution's kernel, one at a time, as root; elsewhere they are ignored.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use agewise_damon::attrs::Attrs;
use agewise_host::access::{AccessSource, AddressRange, TableSight, Target, check_page_size};
use agewise_host::agent::{Subject, Targets};
use agewise_host::cgroup::{Cgroup, Hierarchy, TreeLimits};
use agewise_host::damon::{Availability, Damon, DamonError, Owner, Setup, Watched};
use agewise_host::kernel_source::{DamonSource, GenerationSource, KernelSource, PhysicalSource};
use agewise_host::lru_gen::{CommandError, LruGen};
use agewise_host::pagewalk::PageWalk;
use agewise_host::root::{Roots, SysRoot};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

#[path = "support/tlb.rs"]
mod tlb;

const PAGES: usize = 4096;
const CHILD: &str = "AGEWISE_GUEST_CHILD";

/// A process in its own cgroup with 16 MiB of anonymous memory, touched once or again and again.
struct Toucher {
    child: Child,
    group: PathBuf,
    start: u64,
}

impl Toucher {
    fn start(name: &str, over_and_over: bool) -> Toucher {
        let group = cgroup_root().join(name);
        std::fs::create_dir(&group).expect("a cgroup of our own");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_touches_memory",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD, if over_and_over { "always" } else { "once" })
            .env("AGEWISE_GUEST_CGROUP", &group)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let start = lines
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_once("ready ")
                    .and_then(|(_, hex)| hex.parse().ok())
            })
            .expect("the child says where its memory is");
        Toucher {
            child,
            group,
            start,
        }
    }

    fn path_in_hierarchy(&self) -> String {
        format!("/{}", self.group.file_name().unwrap().to_str().unwrap())
    }
}

impl Drop for Toucher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// DAMON, if the kernel has it.
fn damon(test: &str) -> Option<Damon> {
    let damon = Damon::new(SysRoot::default());
    if matches!(damon.probe(), Availability::Absent { .. }) {
        println!("SKIPPED {test}: {}", DamonError::Missing);
        return None;
    }
    assert_eq!(
        damon.owner().unwrap(),
        Owner::Nobody,
        "nobody else has it in a guest"
    );
    Some(damon)
}

/// The cgroup v2 hierarchy of the guest.
fn cgroup_root() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    Path::new(
        line.expect("cgroup v2 is mounted")
            .split(' ')
            .nth(1)
            .unwrap(),
    )
    .to_owned()
}

#[test]
#[ignore = "the child of the other tests, not a test"]
fn child_touches_memory() {
    let Ok(how) = std::env::var(CHILD) else {
        return;
    };
    let group = PathBuf::from(std::env::var("AGEWISE_GUEST_CGROUP").unwrap());
    std::fs::write(group.join("cgroup.procs"), "0").unwrap();
    let mut memory = vec![0u8; PAGES * 4096];
    let mut round = 0u64;
    loop {
        round += 1;
        for page in 0..PAGES {
            // A volatile write, because the memory is observed from outside. SAFETY: the index is
            // within the vector.
            unsafe { std::ptr::write_volatile(memory.as_mut_ptr().add(page * 4096), round as u8) };
        }
        // An emulated processor keeps all of its translations, and does not set accessed bits
        // through them.
        tlb::flush();
        if round == 1 {
            println!("ready {}", memory.as_ptr() as u64);
        }
        std::thread::sleep(Duration::from_millis(if how == "once" {
            600_000
        } else {
            10
        }));
    }
}

#[test]
#[ignore = "needs a kernel with CONFIG_LRU_GEN: make test-vm"]
fn the_kernels_generations_are_read_and_aged() {
    let toucher = Toucher::start("aged", false);
    let lru_gen = LruGen::new(SysRoot::default());
    assert_eq!(lru_gen.is_on().unwrap(), Some(true));
    let look = || {
        let table = lru_gen.read().unwrap();
        let memcg = table
            .at(&toucher.path_in_hierarchy())
            .expect("the cgroup is listed")
            .clone();
        let lruvec = memcg.lruvecs[0].clone();
        let anon: u64 = lruvec
            .generations
            .iter()
            .map(|generation| generation.anon_pages)
            .sum();
        (memcg.id, lruvec.max_seq().unwrap(), anon)
    };
    let (id, first_seq, anon) = look();
    let pages = BYTES / rustix::param::page_size() as u64;
    assert!(anon >= pages * 9 / 10, "{anon} anon pages listed");
    for seq in first_seq..first_seq + 3 {
        lru_gen.age(id, 0, seq, 200, true).unwrap();
    }
    let (_, aged_seq, _) = look();
    assert_eq!(aged_seq, first_seq + 3);
    let refused = lru_gen.age(id, 0, aged_seq + 5, 200, true).unwrap_err();
    assert!(matches!(refused, CommandError::Invalid { .. }), "{refused}");
}

#[test]
#[ignore = "needs a kernel whose DAMON has no other owner: make test-vm"]
fn the_kernels_monitor_finds_what_a_process_touches() {
    let Some(damon) = damon("a process") else {
        return;
    };
    let toucher = Toucher::start("watched", true);
    let setup = Setup {
        watched: Watched::Processes(vec![toucher.child.id()]),
        attrs: Attrs::default(),
    };
    let session = damon.start(&setup).unwrap();
    assert!(session.pid().unwrap() > 0);
    assert!(matches!(damon.start(&setup), Err(DamonError::Owned { .. })));
    std::thread::sleep(Duration::from_secs(3));
    let (start, end) = (toucher.start, toucher.start + PAGES as u64 * 4096);
    let regions = session.regions().unwrap().concat();
    let touched: u64 = regions
        .iter()
        .filter(|region| region.nr_accesses > 0)
        .map(|region| region.end.min(end).saturating_sub(region.start.max(start)))
        .sum();
    assert!(
        touched > (end - start) / 2,
        "{touched} bytes of {} seen accessed",
        end - start
    );
    drop(session);
    assert_eq!(damon.owner().unwrap(), Owner::Nobody);
}

#[test]
#[ignore = "checks the page-table walker on other kernels: make test-vm"]
fn the_walker_reads_page_tables_on_this_kernel() {
    let toucher = Toucher::start("walked", false);
    let mut walker = PageWalk::open().unwrap();
    let range = AddressRange {
        start: toucher.start & !4095,
        end: (toucher.start & !4095) + PAGES as u64 * 4096,
    };
    let target = Target::by_pid(toucher.child.id());
    let (mut present, mut young) = (0, 0);
    let mut sink = |sight: &TableSight<'_>| {
        present += sight.bits.present.len();
        young += sight.bits.young.len();
    };
    walker.scan(&target, &[range], &mut sink).unwrap();
    assert_eq!(present as usize, PAGES);
    assert_eq!(young as usize, PAGES, "all were just written");
}

/// Anonymous bytes up to an age.
fn anon_up_to(histogram: &Histogram, upper_ms: u64) -> u64 {
    let young = histogram
        .bins()
        .iter()
        .filter(|bin| bin.upper_ms <= upper_ms);
    young.map(|bin| bin.amounts[0]).sum()
}

const BYTES: u64 = PAGES as u64 * 4096;

#[test]
#[ignore = "needs a kernel whose DAMON has no other owner: make test-vm"]
fn damon_as_an_eye_tells_a_busy_process_from_an_idle_one() {
    let Some(damon) = damon("an access source") else {
        return;
    };
    let busy = Toucher::start("busy", true);
    let idle = Toucher::start("resting", false);
    let roots = Roots::default();
    let pids = [busy.child.id(), idle.child.id()];
    let targets = Targets::Listed(
        pids.map(|pid| Subject::process(&roots.proc, pid).unwrap())
            .into(),
    );
    let intervals: Intervals = "1s,30s".parse().unwrap();
    let mut source = DamonSource::start(roots, &targets, intervals, OldestPages::AtLeast).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    let reports = source.look().unwrap();
    let [busy_young, idle_young] =
        [0, 1].map(|index| anon_up_to(&reports[index].histogram(), 1000));
    for report in &reports {
        assert!(report.resident_bytes[0] >= BYTES, "{report:?}");
    }
    assert!(
        busy_young >= BYTES / 2,
        "{busy_young} bytes young: {reports:?}"
    );
    assert!(
        idle_young <= BYTES / 2,
        "{idle_young} bytes young: {reports:?}"
    );
    assert!(source.cpu_ns() > 0);
    drop(source);
    assert_eq!(damon.owner().unwrap(), Owner::Nobody);
}

#[test]
#[ignore = "needs a kernel whose DAMON has no other owner: make test-vm"]
fn damon_on_physical_memory_knows_what_cgroups_hold_and_which_of_it_is_in_use() {
    if let Err(error) = check_page_size("DAMON on physical memory") {
        println!("SKIPPED physical memory: {error}");
        return;
    }
    let Some(damon) = damon("physical memory") else {
        return;
    };
    let Availability::Free(offer) = damon.probe() else {
        panic!("nobody uses DAMON in a guest");
    };
    assert!(offer.has("paddr") && offer.has_regions, "{offer:?}");
    assert_eq!(damon.owner().unwrap(), Owner::Nobody, "taken down again");
    let busy = Toucher::start("working", true);
    let idle = Toucher::start("sleeping", false);
    let roots = Roots::default();
    let hierarchy = Hierarchy::discover(&roots.proc).unwrap();
    let limits = TreeLimits::default();
    let targets = Targets::AllCgroups { hierarchy, limits };
    let intervals: Intervals = "1s,30s".parse().unwrap();
    let mut source =
        PhysicalSource::start(roots, &targets, intervals, OldestPages::AtLeast).unwrap();
    std::thread::sleep(Duration::from_secs(10));
    let reports = source.look().unwrap();
    let of = |path: &str| {
        let report = reports.iter().find(|report| report.name == path).unwrap();
        let young = anon_up_to(&report.histogram(), 1000);
        println!("{path}: {:?}, young {young}", report.resident_bytes);
        (report.resident_bytes[0], young)
    };
    let (machine, _) = of("/");
    let (busy_bytes, busy_young) = of(&busy.path_in_hierarchy());
    let (idle_bytes, idle_young) = of(&idle.path_in_hierarchy());
    assert!(busy_bytes >= BYTES && idle_bytes >= BYTES, "{reports:?}");
    assert!(machine >= busy_bytes + idle_bytes, "{reports:?}");
    assert!(busy_young > idle_young, "{busy_young} and {idle_young}");
    assert!(source.cpu_ns() > 0 && source.caveats()[0].contains("regions"));
    drop(source);
    assert_eq!(damon.owner().unwrap(), Owner::Nobody);
}

#[test]
#[ignore = "needs a kernel with CONFIG_LRU_GEN: make test-vm"]
fn generations_as_an_eye_tell_a_busy_cgroup_from_an_idle_one() {
    let busy = Toucher::start("rushing", true);
    let idle = Toucher::start("lying", false);
    let roots = Roots::default();
    let hierarchy = Hierarchy::discover(&roots.proc).unwrap();
    let groups = [&busy, &idle].map(|toucher| {
        Subject::Cgroup(Cgroup::open(&hierarchy, toucher.path_in_hierarchy()).unwrap())
    });
    let targets = Targets::Listed(groups.into());
    let intervals: Intervals = "1s,3s".parse().unwrap();
    let mut source =
        GenerationSource::open(&roots, &targets, &intervals, OldestPages::AtLeast, 3000).unwrap();
    assert_eq!(source.lead_times_ms(), [3000, 1000]);
    source.prepare().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    source.prepare().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let reports = source.look().unwrap();
    let young = |index: usize| anon_up_to(&reports[index].histogram(), 1000);
    let older_than_all = |index: usize| {
        let histogram = reports[index].histogram();
        histogram.bins().last().unwrap().amounts[0]
    };
    assert!(young(0) >= BYTES * 9 / 10, "{reports:?}");
    assert!(older_than_all(1) >= BYTES * 9 / 10, "{reports:?}");
}
