// SPDX-License-Identifier: Apache-2.0
//! The agent on real processes, seen through a source that reports what the test sets.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;

use agewise_policy::sample::Bounds;
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::workingset::{Intervals, OldestPages};

use super::report::Elsewhere;
pub(crate) use super::sleeper::Sleeper;
use super::*;
use crate::access::fake::{FakeSource, FakeTable};
use crate::access::{
    Abilities, AccessError, AddressRange, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES,
};
use crate::clear::Means;
use crate::mover;
use crate::process::{Bound, Process};
use crate::root::ProcRoot;

pub(crate) fn present() -> FakeTable {
    let bits = TableBits {
        present: PageSet::ALL,
        ..TableBits::default()
    };
    FakeTable {
        bits,
        leaf: Leaf::Page,
    }
}

/// A source whose contents the test can change while the agent uses it.
#[derive(Clone)]
pub(crate) struct Changing(pub Rc<RefCell<FakeSource>>);

impl AccessSource for Changing {
    fn name(&self) -> &'static str {
        "changing"
    }

    fn abilities(&self) -> Abilities {
        self.0.borrow().abilities()
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError> {
        self.0.borrow_mut().scan(target, ranges, sink)
    }
}

pub(crate) fn agent(source: impl AccessSource + 'static, pids: &[u32]) -> Agent {
    let subject = |pid: &u32| Subject::process(&ProcRoot::default(), *pid).unwrap();
    let targets = Targets::Listed(pids.iter().map(subject).collect());
    let intervals: Intervals = "1s,5s".parse().unwrap();
    let mut config = AgentConfig::new(intervals);
    // A user may write the clear_refs file of their own child process.
    config.clear.means = Means::Refs;
    Agent::new(Box::new(source), Roots::default(), targets, config).unwrap()
}

#[test]
fn a_process_is_aged_and_its_exit_is_told() {
    let sleeper = Sleeper::new();
    let mut source = FakeSource::new();
    source.set(sleeper.pid(), sleeper.table(), present());
    let mut agent = agent(source, &[sleeper.pid()]);
    let tick = agent.tick().unwrap();
    assert_eq!(
        (tick.subjects, tick.processes, tick.failed, tick.vanished),
        (1, 1, 0, 0)
    );
    assert!(tick.present_pages > 0 && tick.young_pages == 0);
    let report = agent.report().remove(0);
    assert_eq!(report.resident_bytes[0], tick.present_pages * PAGE_BYTES);
    assert_eq!(report.unseen_bytes, report.resident_bytes);
    assert_eq!(report.histogram().total(), report.resident_bytes);
    assert!(report.name.as_bytes().ends_with(b"(sleep)") && !report.is_cgroup);
    assert!(!agent.is_finished());
    drop(sleeper);
    agent.tick().unwrap();
    let report = agent.report().remove(0);
    assert!(report.gone.is_some() && agent.is_finished());
    assert_eq!(agent.spaces().count(), 0);
}

/// Another program clears the bits of a huge page before the next look, but an intermediate scan
/// has seen them. Base pages are not scanned.
#[test]
fn what_another_clears_between_two_looks_is_seen() {
    for (leaf, seen) in [(Leaf::Huge, true), (Leaf::Page, false)] {
        let sleeper = Sleeper::new();
        let (pid, table) = (sleeper.pid(), sleeper.table());
        let mut fake = FakeSource::new();
        fake.set(pid, table, FakeTable { leaf, ..present() });
        let source = Changing(Rc::new(RefCell::new(fake)));
        let mut agent = agent(source.clone(), &[pid]);
        agent.tick().unwrap();
        let tick = agent.tick().unwrap();
        assert!(tick.present_pages > 0 && tick.young_pages == 0);
        let set_young = |young: PageSet| {
            let mut fake = source.0.borrow_mut();
            fake.update(pid, table, |table| table.bits.young = young);
        };
        set_young(PageSet::ALL);
        agent.interim_scan();
        set_young(PageSet::NONE);
        let wanted = if seen { tick.present_pages } else { 0 };
        assert_eq!(agent.tick().unwrap().young_pages, wanted, "{leaf:?}");
        // Taken in only once.
        assert_eq!(agent.tick().unwrap().young_pages, 0, "{leaf:?}");
    }
}

#[test]
fn a_process_has_the_name_of_the_program_it_executed_last() {
    let (ours, its) = UnixStream::pair().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line; exec sleep 60"]);
    let sleeper = Sleeper::by(shell.stdin(OwnedFd::from(its)));
    let process = Process::open(sleeper.pid()).unwrap();
    let mut agent = agent(FakeSource::new(), &[sleeper.pid()]);
    let mut name = || {
        agent.tick().unwrap();
        agent.report()[0].name.terminal().to_string()
    };
    assert!(name().ends_with("(sh)"));
    drop(ours);
    while process.comm().unwrap() != "sleep" {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(name().ends_with("(sleep)"));
}

/// With a sample only blocks are read, and they represent everything the kernel counts.
#[test]
fn a_sample_stands_for_what_is_resident() {
    let sleeper = Sleeper::new();
    // Until it sleeps, the process keeps mapping and touching memory.
    let process = Process::open(sleeper.pid()).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while process.stat().unwrap().state != 'S' || process.comm().unwrap() != "sleep" {
        assert!(std::time::Instant::now() < deadline, "it never sleeps");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut source = FakeSource::new();
    // The stack may reach into the table above.
    for table in [sleeper.table(), sleeper.table() + TABLE_BYTES] {
        source.set(sleeper.pid(), table, present());
    }
    let mut agent = agent(source, &[sleeper.pid()]);
    agent.config.sample = Some(Bounds {
        blocks: 32,
        block_pages: 1,
        whole_pages: 0,
    });
    agent.tick().unwrap();
    let tick = agent.tick().unwrap();
    let report = agent.report().remove(0);
    let status = process.status().unwrap();
    let anon = status.rss_anon_bytes + status.rss_shmem_bytes;
    assert_eq!(report.resident_bytes, [anon, status.rss_file_bytes]);
    assert_eq!(report.histogram().total(), report.resident_bytes);
    assert_eq!(
        tick.present_pages * PAGE_BYTES,
        anon + status.rss_file_bytes
    );
    // Only the stack has pages here, about 33 of them: some blocks of one page are followed.
    assert!(
        (1..33).contains(&(report.followed_bytes / PAGE_BYTES)),
        "{report:?}"
    );
    assert!(report.half_width_ratio() > 0.0);
    let bin = report.histogram().bins()[0];
    let [interval, _] = report.interval(0, bin.amounts);
    assert!(interval.low <= bin.amounts[0] && bin.amounts[0] <= interval.high);
}

#[test]
fn who_looks_more_often_clears_more_often() {
    let sleeper = Sleeper::new();
    let mut source = FakeSource::new();
    let mut table = present();
    table.bits.young = table.bits.present;
    source.set(sleeper.pid(), sleeper.table(), table);
    let mut agent = agent(source, &[sleeper.pid()]);
    let clears = |agent: &mut Agent, interval_ms: u64| {
        std::thread::sleep(std::time::Duration::from_millis(110));
        agent.set_scan_interval_ms(interval_ms);
        agent.tick().unwrap().clear_ns > 0
    };
    let clears = [100_000, 100_000, 200, 100_000].map(|ms| clears(&mut agent, ms));
    assert_eq!(clears, [true, false, true, false]);
}

#[test]
fn a_process_that_execs_under_the_eye_is_found_again() {
    let sleeper = Sleeper::new();
    let mut source = FakeSource::new();
    source.set(sleeper.pid(), sleeper.table(), present());
    source.fail(sleeper.pid(), |pid| AccessError::Changed { pid });
    let mut agent = agent(source, &[sleeper.pid()]);
    for _ in 0..2 {
        let tick = agent.tick().unwrap();
        assert_eq!((tick.processes, tick.vanished, tick.failed), (0, 1, 0));
    }
}

#[test]
fn what_one_process_refuses_does_not_stop_the_others() {
    let (refused, seen) = (Sleeper::new(), Sleeper::new());
    let mut source = FakeSource::new();
    source.set(seen.pid(), seen.table(), present());
    source.fail(refused.pid(), |_| AccessError::NoPrivilege {
        what: "reading its memory".to_owned(),
        hint: "ask somebody else",
    });
    let mut agent = agent(source, &[refused.pid(), seen.pid()]);
    let tick = agent.tick().unwrap();
    assert_eq!((tick.processes, tick.failed), (1, 1));
    let reports = agent.report();
    assert!(
        reports[0].troubles[0].contains("ask somebody else"),
        "{:?}",
        reports[0].troubles
    );
    assert!(reports[0].gone.is_none() && reports[1].troubles.is_empty());
    assert!(reports[1].resident_bytes[0] > 0);
    let known = [&reports[0], &reports[1]].map(SubjectReport::is_known);
    assert_eq!(known, [[false; 2], [true; 2]]);
    let mut cold = |of: &Sleeper| mover::find_cold(&mut agent, of.pid(), [Some(0); 2], u64::MAX);
    assert!(cold(&refused).unwrap().is_none() && cold(&seen).unwrap().is_some());
}

#[test]
fn another_process_with_the_same_pid_is_not_the_one_asked_for() {
    let sleeper = Sleeper::new();
    let process = Process::open(sleeper.pid()).unwrap();
    let stranger = Subject::Process {
        pid: sleeper.pid(),
        start_ticks: process.start_ticks() + 1,
        comm: "former".into(),
    };
    let targets = Targets::Listed(vec![stranger]);
    let config = AgentConfig::new(Intervals::default());
    let source = Box::new(FakeSource::new());
    let mut agent = Agent::new(source, Roots::default(), targets, config).unwrap();
    agent.tick().unwrap();
    assert!(agent.report()[0].gone.is_some());
}

#[test]
fn observation_keeps_to_the_pace_of_the_bins() {
    let pace = |list: &str| AgentConfig::new(list.parse().unwrap()).scan_interval_ms();
    assert_eq!(pace("10s,12s"), 2000);
    assert_eq!(pace("1ms"), SCAN_INTERVAL_MIN_MS);
    assert_eq!(
        AgentConfig::new(Intervals::default()).scan_interval_ms(),
        10_000
    );
}

#[test]
fn nodes_and_shared_pages_add_up() {
    let sleeper = Sleeper::new();
    let process = Process::open(sleeper.pid()).unwrap();
    let counts = std::sync::Arc::new(crate::clear::hand::MapCounts::open());
    let mut space = Space::new(
        process,
        crate::clear::ClearPolicy::exact(),
        counts,
        5000,
        None,
    );
    // 512 pages: 128 on the second node, 64 counted elsewhere, a quarter of those on the second
    // node.
    let bits = present().bits;
    let second = PageSet::range(0..128);
    let nodes = Nodes {
        ids: vec![0, 1],
        map: None,
    };
    let first_part = nodes.first_part(0);
    let counted = [
        (first_part, PageSet::range(128..176)),
        (first_part + 1, PageSet::range(0..16)),
    ];
    let parts = [&[(1, second)][..], &counted[..]].concat();
    let mut look = space.map.look();
    let facts = agewise_policy::agemap::Facts {
        index: 7,
        bits: &bits,
        files: PageSet::NONE,
        parts: &parts,
    };
    look.table(facts).unwrap();
    look.finish();
    space.map.advance(clock_ms());
    let intervals = Intervals::default();
    let report = |elsewhere: Elsewhere<'_>| {
        let mut report = SubjectReport::new(
            "x".into(),
            true,
            &nodes.ids,
            &[intervals.clone(), intervals.clone()],
        );
        report.add(
            &space,
            elsewhere,
            false,
            clock_ms(),
            OldestPages::AtLeast,
            None,
        );
        report.finish();
        report
            .nodes
            .iter()
            .map(|(_, h)| h.total()[0] / PAGE_BYTES)
            .collect::<Vec<_>>()
    };
    assert_eq!(report(Elsewhere::Nothing), [384, 128]);
    let part = Elsewhere::Part(usize::from(first_part));
    assert_eq!(report(part), [384 - 48, 128 - 16]);
}

/// Two processes map the same memory and one uses it. It is young for both.
#[test]
fn a_page_is_young_if_any_mapping_of_it_is() {
    let source = match crate::pagewalk::PageWalk::open() {
        Ok(source) => source,
        Err(error) => {
            println!("SKIPPED a_page_is_young_if_any_mapping_of_it_is: {error}");
            return;
        }
    };
    const BYTES: usize = 4 << 20;
    // SAFETY: a new anonymous mapping that lives as long as the test process.
    let memory = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            BYTES,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
        )
        .unwrap()
    } as *mut u8;
    let child = |is_busy: bool| {
        // SAFETY: the forked child only touches its own memory and sleeps. It takes no lock and
        // allocates nothing, since another thread of the parent might have held a lock.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            return u32::try_from(pid).expect("fork");
        }
        // SAFETY: only requests a signal when the test thread dies, should it panic.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let mut rounds = 0u32;
        loop {
            if is_busy || rounds == 0 {
                for page in 0..BYTES / 4096 {
                    // SAFETY: within the mapping; all processes share this byte and none depends on
                    // it.
                    unsafe { memory.add(page * 4096).write_volatile(1) };
                }
            }
            rounds += 1;
            // SAFETY: sleeping touches nothing.
            unsafe { libc::usleep(20_000) };
        }
    };
    let pids = [child(true), child(false)];
    std::thread::sleep(std::time::Duration::from_millis(300));
    let subject = |pid: &u32| Subject::process(&ProcRoot::default(), *pid).unwrap();
    let targets = Targets::Listed(pids.iter().map(subject).collect());
    let mut config = AgentConfig::new("1s,5s".parse().unwrap());
    config.scan_interval_ms = Some(300);
    let mut agent = Agent::new(Box::new(source), Roots::default(), targets, config).unwrap();
    for _ in 0..3 {
        agent.tick().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(350));
    }
    agent.tick().unwrap();
    let pages =
        (memory as u64 / PAGE_BYTES)..(memory as u64 / PAGE_BYTES + BYTES as u64 / PAGE_BYTES);
    let young: Vec<u64> = pids
        .iter()
        .map(|pid| {
            let map = agent.space(*pid).expect("it lives").map();
            let closed = map.generations().youngest() - 1;
            map.sizes_within(pages.clone()).sizes[usize::from(closed)]
                .iter()
                .sum()
        })
        .collect();
    for pid in pids {
        // SAFETY: our own children, killed and reaped.
        unsafe {
            libc::kill(pid as i32, libc::SIGKILL);
            libc::waitpid(pid as i32, std::ptr::null_mut(), 0);
        }
    }
    let all = BYTES as u64 / PAGE_BYTES;
    assert!(
        young.iter().all(|pages| *pages > all * 95 / 100),
        "{young:?} of {all}"
    );
}

#[test]
fn a_filter_finds_cgroups_as_they_come_and_counts_nested_ones_in_both() {
    use crate::cgroup::{Hierarchy, TreeLimits, Version};
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Sleeper::new(), Sleeper::new());
    let group = |path: &str, pids: &[u32]| {
        let at = dir.path().join(path);
        std::fs::create_dir_all(&at).unwrap();
        let lines: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        std::fs::write(at.join("cgroup.procs"), lines).unwrap();
    };
    group("", &[]);
    group("app", &[first.pid()]);
    group("other", &[std::process::id()]);
    let targets = Targets::Matched {
        hierarchy: Some(Hierarchy::at(Version::V2, dir.path())),
        limits: TreeLimits::default(),
        filter: PathFilter::new(|path| {
            path.starts_with("/app") && path != std::path::Path::new("/app/x")
        }),
        pids: [second.pid(), u32::MAX]
            .map(|pid| Arc::new(Bound::new(&ProcRoot::default(), pid)))
            .into(),
    };
    let mut source = FakeSource::new();
    for sleeper in [&first, &second] {
        source.set(sleeper.pid(), sleeper.table(), present());
    }
    let mut config = AgentConfig::new("1s,5s".parse().unwrap());
    config.clear.means = Means::Refs;
    let mut agent = Agent::new(Box::new(source), Roots::default(), targets, config).unwrap();
    let names = |agent: &mut Agent| -> Vec<(String, Vec<u32>)> {
        agent.tick().unwrap();
        agent
            .subjects()
            .filter(|(subject, _)| subject.gone.is_none())
            .map(|(subject, pids)| (subject.name.terminal().to_string(), pids))
            .collect()
    };
    let by_pid = (format!("{} (sleep)", second.pid()), vec![second.pid()]);
    assert_eq!(
        names(&mut agent),
        [("/app".to_owned(), vec![first.pid()]), by_pid.clone()]
    );
    // The process moved into a cgroup that does not match, and one that matches appeared below it.
    group("app", &[]);
    group("app/x", &[]);
    group("app/x/y", &[first.pid()]);
    assert_eq!(
        names(&mut agent),
        [
            ("/app".to_owned(), vec![first.pid()]),
            ("/app/x/y".to_owned(), vec![first.pid()]),
            by_pid
        ]
    );
    std::fs::write(dir.path().join("app/memory.stat"), "swapcached 4096\n").unwrap();
    std::fs::write(dir.path().join("app/memory.swap.current"), "12288\n").unwrap();
    let report = agent.report();
    assert_eq!(report[0].resident_bytes, report[1].resident_bytes);
    assert!(report[0].resident_bytes[0] > 0);
    assert_eq!(report[0].swapped_bytes - report[1].swapped_bytes, 8192);
    // A cgroup that does not list its processes is reported.
    std::fs::create_dir(dir.path().join("app/odd")).unwrap();
    assert_eq!(agent.tick().unwrap().unseen_cgroups, 1);
    assert_eq!(agent.cost().unseen_cgroups, 1);
    // Bounds given per node.
    let finer = agent.report_by(|_| "500ms".parse().unwrap());
    assert_eq!(finer[0].nodes[0].1.bins().len(), 2);
    assert_eq!(finer[0].resident_bytes, report[0].resident_bytes);
}
