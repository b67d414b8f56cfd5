// SPDX-License-Identifier: Apache-2.0
//! The agent on processes that share memory: the code of the C library, the only pages here.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use agewise_policy::sample::Bounds;
use agewise_policy::table::TableBits;
use agewise_policy::whatif::{Params, WhatIf};

use super::tests::{Sleeper, agent};
use super::*;
use crate::access::{
    Abilities, AccessError, AddressRange, Entries, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES,
    TableSight, covered,
};
use crate::cgroup::{Cgroup, Hierarchy, Version};
use crate::root::ProcRoot;
use crate::whatif::{Around, Files, Sights};

/// The frame of its first page.
const FRAME: u64 = 10_000;

type Failures = HashMap<u32, fn(u32) -> AccessError>;

/// Shows the code of the C library in each process, and fails for some.
#[derive(Clone, Default)]
struct Library {
    failures: Rc<RefCell<Failures>>,
    /// Whether it shows something before it fails.
    is_late: Rc<Cell<bool>>,
}

impl Library {
    fn fail_only(&self, pids: &[u32], error: fn(u32) -> AccessError) {
        *self.failures.borrow_mut() = pids.iter().map(|pid| (*pid, error)).collect();
    }
}

/// Where a process has it.
fn code(pid: u32) -> AddressRange {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let is_code = |line: &&str| line.contains(" r-xp ") && line.contains("/libc");
        if let Some(line) = maps.lines().find(is_code) {
            let mut ends = line.split([' ', '-']).take(2);
            let mut end = || u64::from_str_radix(ends.next().unwrap(), 16).unwrap();
            return AddressRange {
                start: end(),
                end: end(),
            };
        }
        assert!(Instant::now() < deadline, "it never starts");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl AccessSource for Library {
    fn name(&self) -> &'static str {
        "library"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            resolution: Resolution::Page,
            pfn: true,
        }
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError> {
        let error = self.failures.borrow().get(&target.pid).copied();
        if let Some(error) = error.filter(|_| !self.is_late.get()) {
            return Err(error(target.pid));
        }
        let code = code(target.pid);
        for (number, range) in ranges.iter().enumerate() {
            let shown = AddressRange {
                start: range.start.max(code.start),
                end: range.end.min(code.end),
            };
            if shown.is_empty() {
                continue;
            }
            let first = shown.start / TABLE_BYTES * TABLE_BYTES;
            for va in (first..shown.end).step_by(TABLE_BYTES as usize) {
                let present = covered(va, shown);
                let bits = TableBits {
                    present,
                    young: present,
                    ..TableBits::default()
                };
                sink.table(&TableSight {
                    va,
                    range: number,
                    leaf: Leaf::Page,
                    covered: covered(va, *range),
                    bits: &bits,
                    seen_ns: 0,
                    entries: Entries::Leaf(FRAME + va / PAGE_BYTES - code.start / PAGE_BYTES),
                });
            }
        }
        match error {
            Some(error) => Err(error(target.pid)),
            None => Ok(0),
        }
    }
}

/// Processes, and the pages each has.
fn sleepers<const N: usize>() -> ([Sleeper; N], u64) {
    let sleepers = [(); N].map(|()| Sleeper::new());
    let pages = sleepers.each_ref().map(|sleeper| code(sleeper.pid()).len());
    (sleepers, pages[0] / PAGE_BYTES)
}

/// Creates a cgroup of these processes.
fn group(top: &Path, path: &str, of: &[&Sleeper]) -> Subject {
    fs::create_dir_all(top.join(path)).unwrap();
    let lines: String = of.iter().map(|of| format!("{}\n", of.pid())).collect();
    fs::write(top.join(path).join("cgroup.procs"), lines).unwrap();
    let hierarchy = Hierarchy::at(Version::V2, top);
    Subject::Cgroup(Cgroup::open(&hierarchy, path).unwrap())
}

/// Resident pages of each subject after another tick.
fn pages(agent: &mut Agent) -> Vec<u64> {
    agent.tick().unwrap();
    pages_now(agent)
}

fn pages_now(agent: &Agent) -> Vec<u64> {
    let reports = agent.report();
    let bytes = reports
        .iter()
        .map(|report| report.resident_bytes.iter().sum::<u64>());
    bytes.map(|bytes| bytes / PAGE_BYTES).collect()
}

fn watch(source: &Library, subjects: Vec<Subject>) -> Agent {
    let mut agent = agent(source.clone(), &[]);
    agent.set_targets(Targets::Listed(subjects));
    agent
}

fn refused(_: u32) -> AccessError {
    AccessError::NoPrivilege {
        what: "reading its memory".to_owned(),
        hint: "ask somebody else",
    }
}

/// Ends a process as soon as its memory is seen.
struct Ending(Option<Sleeper>);

impl Tap for Ending {
    fn table(&mut self, target: &Target, _: &TableSight<'_>, _: Judged<'_>) {
        self.0.take_if(|sleeper| sleeper.pid() == target.pid);
    }
}

#[test]
fn what_a_failed_look_found_is_left_to_the_next() {
    let errors: [fn(u32) -> AccessError; 2] = [refused, |pid| AccessError::Changed { pid }];
    for error in errors {
        let ([a, b], all) = sleepers();
        let dir = tempfile::tempdir().unwrap();
        let source = Library::default();
        source.is_late.set(true);
        let mut agent = watch(&source, vec![group(dir.path(), "app", &[&a, &b])]);
        source.fail_only(&[a.pid().min(b.pid())], error);
        assert_eq!(pages(&mut agent), [all]);
    }
}

#[test]
fn what_was_seen_of_a_process_that_ends_before_it_is_cleared_is_left_to_the_next() {
    let ([a, b], all) = sleepers();
    let dir = tempfile::tempdir().unwrap();
    let source = Library::default();
    let mut agent = watch(&source, vec![group(dir.path(), "app", &[&a, &b])]);
    let (first, _last) = if a.pid() < b.pid() { (a, b) } else { (b, a) };
    let report = agent.tick_tapped(Some(&mut Ending(Some(first)))).unwrap();
    assert_eq!((report.processes, report.vanished), (1, 1));
    assert_eq!(pages_now(&agent), [all]);
}

#[test]
fn shared_memory_counts_once_while_a_process_cannot_be_looked_at() {
    let ([a, b], all) = sleepers();
    let dir = tempfile::tempdir().unwrap();
    let source = Library::default();
    let mut agent = watch(&source, vec![group(dir.path(), "app", &[&a, &b])]);
    for failing in [vec![], vec![a.pid()], vec![], vec![b.pid()], vec![]] {
        source.fail_only(&failing, refused);
        assert_eq!(pages(&mut agent), [all], "without {failing:?}");
    }
    // What the last look saw is all that is known.
    source.fail_only(&[a.pid(), b.pid()], refused);
    assert_eq!(pages(&mut agent), [all]);
}

#[test]
fn what_only_those_share_that_cannot_be_looked_at_counts() {
    let ([a, b], all) = sleepers();
    let dir = tempfile::tempdir().unwrap();
    // Another file to the kernel.
    let maps = fs::read_to_string(format!("/proc/{}/maps", a.pid())).unwrap();
    let library = maps.split_whitespace().find(|word| word.contains("/libc"));
    let library = Path::new(library.unwrap());
    fs::copy(library, dir.path().join(library.file_name().unwrap())).unwrap();
    let supervisor = Sleeper::by(Command::new("sleep").env("LD_LIBRARY_PATH", dir.path()));
    code(supervisor.pid());
    let source = Library::default();
    let subject = group(dir.path(), "app", &[&supervisor, &a, &b]);
    let mut agent = watch(&source, vec![subject]);
    assert_eq!(pages(&mut agent), [2 * all]);
    source.fail_only(&[a.pid(), b.pid()], refused);
    assert_eq!(pages(&mut agent), [2 * all]);
}

#[test]
fn pages_counted_elsewhere_stay_with_their_subject_if_a_process_vanishes_in_a_tick() {
    let ([c, a, b], all) = sleepers();
    let dir = tempfile::tempdir().unwrap();
    let source = Library::default();
    group(dir.path(), "app", &[&c]);
    let inner = group(dir.path(), "app/x", &[&a, &b]);
    let outer = group(dir.path(), "app", &[&c]);
    let mut agent = watch(&source, vec![inner, outer]);
    assert_eq!(pages(&mut agent), [all, all]);
    source.fail_only(&[a.pid()], |pid| AccessError::Changed { pid });
    assert_eq!(pages(&mut agent), [all, all]);
}

/// Levels of a process, and of one that comes when less is resident: it could have a finer sample.
/// Files of up to `whole_pages` count as small.
fn levels_of_two(whole_pages: u64) -> [u8; 2] {
    let ([a, b], _) = sleepers();
    let subject = |of: &Sleeper| Subject::process(&ProcRoot::default(), of.pid()).unwrap();
    let mut agent = watch(&Library::default(), vec![subject(&a)]);
    agent.whole_limit = 0;
    let sample = |blocks| {
        Some(Bounds {
            blocks,
            block_pages: 1,
            whole_pages,
        })
    };
    agent.config.sample = sample(1);
    agent.tick().unwrap();
    agent.config.sample = sample(1 << 20);
    agent.set_targets(Targets::Listed(vec![subject(&a), subject(&b)]));
    agent.tick().unwrap();
    [a, b].map(|of| agent.space(of.pid()).unwrap().followed.level())
}

#[test]
fn those_that_share_much_memory_have_the_same_sample() {
    let [first, second] = levels_of_two(0);
    assert!(first > 0 && first == second, "{first} {second}");
}

#[test]
fn a_library_in_common_makes_no_sample_coarse() {
    let [first, second] = levels_of_two(1 << 14);
    assert!(first > 0 && second == 0, "{first} {second}");
}

/// A sample says little about how much forked processes share.
#[test]
fn a_curve_of_a_sample_is_as_large_as_what_is_charged() {
    let ([a, b], _) = sleepers();
    let dir = tempfile::tempdir().unwrap();
    let subject = group(dir.path(), "app", &[&a, &b]);
    let Subject::Cgroup(cgroup) = &subject else {
        unreachable!("a group is one")
    };
    let cgroup = cgroup.clone();
    let stat = "anon 67108864\nfile 40960\nshmem 8192\nfile_mapped 20480\n";
    fs::write(dir.path().join("app/memory.stat"), stat).unwrap();
    let mut agent = watch(&Library::default(), vec![subject]);
    agent.whole_limit = 0;
    let mut full_bytes = |blocks, files| {
        agent.config.sample = Some(Bounds {
            blocks,
            block_pages: 1,
            whole_pages: 0,
        });
        let mut sights = Sights::default();
        agent.tick_tapped(Some(&mut sights)).unwrap();
        let mut what_if = WhatIf::new(Params::default());
        let around = Around {
            files,
            cgroup: Some(&cgroup),
            cached: None,
            blind_ms: 0.0,
        };
        let pids = [a.pid(), b.pid()];
        sights.show(&agent, &pids, &mut what_if, around);
        what_if.curves().full_bytes
    };
    assert!(
        full_bytes(1 << 20, Files::Mapped) < 1 << 25,
        "it was counted"
    );
    assert_eq!(full_bytes(8, Files::None), 67_117_056);
    assert_eq!(full_bytes(8, Files::Mapped), 67_129_344);
    assert_eq!(
        full_bytes(8, Files::All),
        0,
        "the page cache was not looked at yet"
    );
}

/// Notes the pids of tables, and 0 before each process.
#[derive(Default)]
struct Order(Vec<u32>);

impl Tap for Order {
    fn next_process(&mut self) {
        self.0.push(0);
    }

    fn table(&mut self, target: &Target, _: &TableSight<'_>, _: Judged<'_>) {
        self.0.push(target.pid);
    }
}

#[test]
fn who_listens_gets_a_turn_before_each_process() {
    let sleepers = [Sleeper::new(), Sleeper::new()];
    let pids = sleepers.each_ref().map(Sleeper::pid);
    for pid in pids {
        // It has started.
        code(pid);
    }
    let mut agent = agent(Library::default(), &pids);
    let mut order = Order::default();
    agent.tick_tapped(Some(&mut order)).unwrap();
    order.0.dedup();
    let [first, second] = [pids[0].min(pids[1]), pids[0].max(pids[1])];
    assert_eq!(order.0, [0, first, 0, second]);
}

/// Notes how many pages are shown, and how many of them are counted elsewhere.
#[derive(Default)]
struct Again([u64; 2]);

impl Tap for Again {
    fn table(&mut self, _: &Target, sight: &TableSight<'_>, judged: Judged<'_>) {
        assert!(judged.elsewhere.without(&sight.bits.present).is_empty());
        self.0[0] += sight.bits.present.len();
        self.0[1] += judged.elsewhere.len();
    }
}

#[test]
fn who_listens_sees_which_pages_another_process_has_already_shown() {
    let ([a, b, c], all) = sleepers();
    let dir = tempfile::tempdir().unwrap();
    let groups = vec![
        group(dir.path(), "two", &[&a, &b]),
        group(dir.path(), "one", &[&c]),
    ];
    let mut agent = watch(&Library::default(), groups);
    let mut again = Again::default();
    agent.tick_tapped(Some(&mut again)).unwrap();
    // The other cgroup has not counted them.
    assert_eq!(again.0, [3 * all, all]);
}
