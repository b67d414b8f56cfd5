// SPDX-License-Identifier: Apache-2.0
//! Paging out real processes to our own zram device.

mod child;
#[path = "support/need.rs"]
mod need;

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agewise_host::access::{AddressRange, Target as EyeTarget};
use agewise_host::mover::*;
use agewise_host::pagewalk::PageWalk;
use agewise_host::process::{Process, ProcessError};
use agewise_host::swap::ZramDevice;

use child::{Layout, PAGE, Target};

/// Not a test: the child process that the other tests start.
#[test]
#[ignore = "the process that the tests act upon"]
fn child_process() {
    child::run();
}

/// A swap device, for one test at a time: swapping it off brings back what another test moved out.
struct Swap(
    Option<ZramDevice>,
    #[allow(dead_code)] MutexGuard<'static, ()>,
);

fn swap(test: &str) -> Option<Swap> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match need::zram(512 << 20) {
        Ok(device) => Some(Swap(Some(device), guard)),
        Err(why) => {
            println!("SKIPPED {test}: {why}");
            None
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Some(device) = self.0.take() {
            device.remove().unwrap();
        }
    }
}

/// A process with this many pages of anonymous memory.
fn start(anon_pages: u64) -> (Target, Process) {
    let target = Target::start(Layout {
        anon_pages,
        ..Layout::default()
    });
    let process = Process::open(target.pid()).unwrap();
    (target, process)
}

fn pages(base: u64, first: u64, count: u64) -> AddressRange {
    AddressRange::new(base + first * PAGE, count * PAGE)
}

fn evict(
    mover: &mut ProcessMover<'_>,
    plan: &Plan,
    limits: PageoutLimits,
    source: &mut dyn Recheck,
) -> (Result<(), PageoutError>, PageoutReport, Evicted) {
    let cancel = AtomicBool::new(false);
    let mut eviction = Eviction::new(plan, limits, mover, source, &SystemClock, &cancel);
    let result = eviction.run(|_| ());
    let (report, evicted) = (eviction.report().clone(), eviction.evicted());
    assert_eq!(report.accounted_bytes(), report.asked_bytes, "{report:?}");
    (result, report, evicted)
}

#[test]
fn cold_memory_leaves_comes_back_unharmed_and_is_counted() {
    let Some(_swap) = swap("cold_memory_leaves_comes_back_unharmed_and_is_counted") else {
        return;
    };
    let layout = Layout {
        anon_pages: 8192,
        file_pages: 1024,
        ..Layout::default()
    };
    let mut target = Target::start(layout);
    let process = Process::open(target.pid()).unwrap();
    let mut mover = ProcessMover::open(&process).unwrap();
    let rss_before = process.rss_bytes().unwrap();
    let plan = Plan::of_base([pages(target.anon, 0, 8192), pages(target.file, 0, 1024)]);
    let (result, report, evicted) =
        evict(&mut mover, &plan, PageoutLimits::default(), &mut NoRecheck);
    result.unwrap();
    println!("{report:?}, {:?} ns a page", report.cpu_ns_per_page(PAGE));
    assert!(
        report.left_anon_bytes >= 8192 * PAGE * 99 / 100,
        "{report:?}"
    );
    assert!(
        report.left_file_bytes >= 1024 * PAGE * 99 / 100,
        "{report:?}"
    );
    assert_eq!(report.calls, 5, "8 MiB a call");
    let rss_fell = rss_before.saturating_sub(process.rss_bytes().unwrap());
    assert!(
        rss_fell >= 9000 * PAGE,
        "resident memory fell by {rss_fell}"
    );

    let mut watch = RefaultWatch::new(evicted);
    assert_eq!(watch.look(&mut mover).unwrap().refaulted_bytes(), 0);
    target.tell("touch 100 50");
    let count = watch.look(&mut mover).unwrap();
    assert_eq!(
        (count.refaulted_anon_bytes, count.refaulted_file_bytes),
        (50 * PAGE, 0)
    );
    target.tell("check");
    let count = watch.look(&mut mover).unwrap();
    assert_eq!(count.refaulted_bytes(), report.left_bytes);
    assert_eq!(count.out_bytes, 0);
}

#[test]
fn mlocked_memory_and_holes_are_skipped_and_a_stopped_process_is_no_obstacle() {
    let name = "mlocked_memory_and_holes_are_skipped_and_a_stopped_process_is_no_obstacle";
    let Some(_swap) = swap(name) else { return };
    let (mut target, process) = start(4096);
    target.tell("lock 1000 100");
    target.tell("lock 2000 1");
    target.tell("unmap 3000 500");
    target.signal(rustix::process::Signal::STOP);
    let mut mover = ProcessMover::open(&process).unwrap();
    let plan = Plan::of_base([pages(target.anon, 0, 4096)]);
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default(), &mut NoRecheck);
    result.unwrap();
    let skipped = |reason| report.skipped_bytes.bytes(reason) / PAGE;
    assert_eq!(skipped(SkipReason::Unevictable), 101);
    assert_eq!(skipped(SkipReason::Absent) + skipped(SkipReason::Hole), 500);
    assert!(report.left_bytes >= 3495 * PAGE * 99 / 100, "{report:?}");
    let locked = RunSet::from_runs([pages(target.anon, 1000, 100), pages(target.anon, 2000, 1)]);
    assert_eq!(mover.present(&locked).unwrap().all(), locked);
    target.signal(rustix::process::Signal::CONT);
    target.tell("touch 0 3000");
}

#[test]
fn a_hole_that_opens_between_looking_and_calling_is_skipped() {
    let name = "a_hole_that_opens_between_looking_and_calling_is_skipped";
    let Some(_swap) = swap(name) else { return };
    let (mut target, process) = start(1024);
    let mut mover = ProcessMover::open(&process).unwrap();
    let plan = Plan::of_base([pages(target.anon, 0, 300), pages(target.anon, 400, 600)]);
    let mut source = |runs: &RunSet| {
        target.tell("unmap 500 100");
        Ok(runs.clone())
    };
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default(), &mut source);
    result.unwrap();
    assert_eq!(report.skipped_bytes.bytes(SkipReason::Hole), 100 * PAGE);
    assert!(report.left_bytes >= 795 * PAGE, "{report:?}");
}

#[test]
fn huge_pages_leave_whole_and_are_never_split_for_a_part() {
    let name = "huge_pages_leave_whole_and_are_never_split_for_a_part";
    let Some(_swap) = swap(name) else { return };
    let mut target = Target::start(Layout {
        anon_pages: 4096,
        thp: true,
        ..Layout::default()
    });
    let process = Process::open(target.pid()).unwrap();
    let huge_bytes = || anon_huge_bytes(&process);
    let huge_before = huge_bytes();
    if huge_before < 16 << 20 {
        return println!("SKIPPED {name}: no transparent huge pages here");
    }
    let mut mover = ProcessMover::open(&process).unwrap();
    // From page 100: the whole huge pages are 512..2560.
    let plan = Plan::new([], [pages(target.anon, 100, 2500)]);
    assert_eq!(plan.huge().bytes(), 4 * HUGE_BYTES);
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default(), &mut NoRecheck);
    result.unwrap();
    assert_eq!(
        report.skipped_bytes.bytes(SkipReason::PartialHuge),
        (412 + 40) * PAGE
    );
    assert!(report.left_bytes >= 4 * HUGE_BYTES * 99 / 100, "{report:?}");
    // The others are unchanged.
    assert_eq!(huge_before - huge_bytes(), 4 * HUGE_BYTES);
    target.tell("check");
}

/// Anonymous memory in huge pages, from smaps_rollup.
fn anon_huge_bytes(process: &Process) -> u64 {
    let text = std::fs::read_to_string(process.path("smaps_rollup")).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("AnonHugePages:"))
        .unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[test]
fn what_is_touched_again_stays() {
    let Some(_swap) = swap("what_is_touched_again_stays") else {
        return;
    };
    let walk = need::opened("pagewalk", "what_is_touched_again_stays", PageWalk::open());
    let Some(mut walk) = walk else { return };
    let (mut target, process) = start(4096);
    let mut mover = ProcessMover::open(&process).unwrap();
    // Everything is idle, then a part is touched after planning.
    std::fs::write(process.path("clear_refs"), "1").unwrap();
    let plan = Plan::of_base([pages(target.anon, 0, 4096)]);
    target.tell("touch 1000 500");
    let mut source = SourceRecheck::new(&mut walk, EyeTarget::from(&process));
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default(), &mut source);
    result.unwrap();
    // A few accesses may be missed: another program that clears accessed bits (a kdamond) may
    // interfere.
    let hot = RunSet::from_runs([pages(target.anon, 1000, 500)]);
    assert!(report.young_again_bytes >= 495 * PAGE, "{report:?}");
    assert!(mover.present(&hot).unwrap().all().bytes() >= 495 * PAGE);
    assert!(report.left_bytes >= 3550 * PAGE, "{report:?}");
    target.tell("check");
}

#[test]
fn exec_and_exit_half_way_end_it_quietly() {
    let Some(_swap) = swap("exec_and_exit_half_way_end_it_quietly") else {
        return;
    };
    for command in ["exec", "exit"] {
        let (mut target, process) = start(2048);
        let mut mover = ProcessMover::open(&process).unwrap();
        let plan = Plan::of_base([pages(target.anon, 0, 2048)]);
        let limits = PageoutLimits {
            call_bytes_max: 512 * PAGE,
            ..Default::default()
        };
        let mut looks = 0;
        let mut source = |runs: &RunSet| {
            looks += 1;
            if looks == 3 && command == "exec" {
                target.tell(command);
            } else if looks == 3 {
                target.send(command);
                target.wait();
            }
            Ok(runs.clone())
        };
        let (result, report, evicted) = evict(&mut mover, &plan, limits, &mut source);
        result.unwrap();
        assert!(report.left_bytes >= 1000 * PAGE, "{command}: {report:?}");
        let gone = report.skipped_bytes.bytes(SkipReason::ProcessGone)
            + report.skipped_bytes.bytes(SkipReason::Hole);
        assert!(gone >= 512 * PAGE, "{command}: {report:?}");
        // Nothing of the new program counts as refaulted or was touched.
        let count = RefaultWatch::new(evicted).look(&mut mover).unwrap();
        assert_eq!(count.refaulted_bytes(), 0);
        if command == "exec" {
            assert!(process.is_alive(), "the new program goes on");
        }
    }
}

#[test]
fn a_process_that_changes_all_the_time_is_not_harmed() {
    let name = "a_process_that_changes_all_the_time_is_not_harmed";
    let Some(_swap) = swap(name) else { return };
    let (mut target, process) = start(4096);
    let mut mover = ProcessMover::open(&process).unwrap();
    let plan = Plan::of_base([pages(target.anon, 0, 4096)]);
    let limits = PageoutLimits {
        call_bytes_max: 1 << 20,
        ..Default::default()
    };
    target.tell("churn 1500");
    let begin = std::time::Instant::now();
    let mut total = PageoutReport::default();
    while begin.elapsed().as_millis() < 1500 {
        let (result, report, _) = evict(&mut mover, &plan, limits, &mut NoRecheck);
        result.unwrap();
        total.add(&report);
    }
    target.tell("join");
    target.tell("check");
    println!("{total:?}");
    assert!(total.left_bytes >= 4096 * PAGE, "{total:?}");
    assert_eq!(total.accounted_bytes(), total.asked_bytes);
}

#[test]
fn limits_bind_on_a_real_process() {
    let Some(_swap) = swap("limits_bind_on_a_real_process") else {
        return;
    };
    let (target, process) = start(4096);
    let mut mover = ProcessMover::open(&process).unwrap();
    let plan = Plan::of_base([pages(target.anon, 0, 4096)]);
    let limits = PageoutLimits {
        rehearse: true,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut mover, &plan, limits, &mut NoRecheck);
    assert_eq!(
        (report.rehearsed_bytes, report.left_bytes),
        (4096 * PAGE, 0)
    );
    assert_eq!(
        mover.present(plan.base()).unwrap().all().bytes(),
        4096 * PAGE
    );

    let limits = PageoutLimits {
        bytes_max: 1000 * PAGE,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut mover, &plan, limits, &mut NoRecheck);
    assert!(
        (990 * PAGE..=1000 * PAGE).contains(&report.left_bytes),
        "{report:?}"
    );

    let floor_bytes = process.rss_bytes().unwrap() - 500 * PAGE;
    let limits = PageoutLimits {
        floor_bytes,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut mover, &plan, limits, &mut NoRecheck);
    // The kernel's count of resident pages lags by a few dozen per CPU.
    assert!((1..=600 * PAGE).contains(&report.left_bytes), "{report:?}");

    let limits = PageoutLimits {
        bytes_max: 1000 * PAGE,
        rate_bytes_per_s: Some(8 << 20),
        call_bytes_max: 256 << 10,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut mover, &plan, limits, &mut NoRecheck);
    let at_least_ns = (report.left_bytes - (1 << 20)) as u128 * 1_000_000_000 / (8 << 20);
    assert!(u128::from(report.elapsed_ns) >= at_least_ns, "{report:?}");
}

#[test]
fn presence_of_scattered_runs_is_that_of_their_pages() {
    let (target, process) = start(20_000);
    let mut mover = match ProcessMover::open(&process) {
        Ok(mover) => mover,
        Err(error) => return println!("SKIPPED presence_of_scattered_runs: {error}"),
    };
    // Up to and past the end of the mapping, with gaps of all sizes, longer than one read.
    let mut runs = vec![pages(target.anon, 0, 9000)];
    let mut first = 9001;
    for step in 1..150 {
        runs.push(pages(target.anon, first, 1 + step % 3));
        first += step;
    }
    runs.push(pages(target.anon, 19_990, 20));
    let asked = RunSet::from_runs(runs);
    let mapped = RunSet::from_runs([pages(target.anon, 0, 20_000)]);
    let present = mover.present(&asked).unwrap();
    let inside = asked.intersect(&mapped);
    assert_eq!(present.anon.intersect(&mapped), inside);
    assert_eq!(present.file.intersect(&mapped), RunSet::default());
    assert!(mover.swapped(&inside).unwrap().is_empty());
    assert_eq!(
        mover.mapped(pages(target.anon, 0, 20_000)).unwrap(),
        mapped.runs()
    );
}

#[test]
fn the_device_of_a_process_that_was_killed_is_removed_by_the_next() {
    let name = "the_device_of_a_process_that_was_killed_is_removed_by_the_next";
    // Skip if no device can be set up.
    let Some(_swap) = swap(name) else { return };
    let (mut target, _) = start(1);
    let id = target.tell("zram 16777216");
    let dir = std::path::PathBuf::from(format!("/sys/block/zram{id}"));
    ZramDevice::remove_stale().unwrap();
    assert!(dir.exists(), "its maker lives");
    target.signal(rustix::process::Signal::KILL);
    target.wait();
    ZramDevice::remove_stale().unwrap();
    assert!(!dir.exists());
}

#[test]
fn some_processes_are_never_touched() {
    let ourselves = Process::open(std::process::id()).unwrap();
    let refused = ProcessMover::open(&ourselves).unwrap_err();
    assert!(matches!(refused, PageoutError::Ourselves { .. }));
    let init = Process::open(1).unwrap();
    assert!(matches!(
        ProcessMover::open(&init),
        Err(PageoutError::Init { pid: 1 })
    ));
    let (mut target, process) = start(1);
    target.send("exit");
    target.wait();
    let refused = ProcessMover::open(&process).unwrap_err();
    assert!(refused.is_gone(), "{refused}");
    match Process::open(2) {
        Ok(kthreadd) if kthreadd.comm().unwrap() == "kthreadd" => {
            let refused = ProcessMover::open(&kthreadd).unwrap_err();
            assert!(matches!(
                refused,
                PageoutError::Process(ProcessError::KernelThread { .. })
            ));
        }
        _ => println!("SKIPPED kernel threads: none visible here"),
    }
}
