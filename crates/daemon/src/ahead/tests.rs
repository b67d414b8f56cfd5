// SPDX-License-Identifier: Apache-2.0
//! A target under a budget, with a fake mover.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use agewise_host::access::fake::FakeSource;
use agewise_host::access::{AccessError, AccessSource};
use agewise_host::budgeted::{Choose, FilesError, HeldFiles, HeldMemory};
use agewise_host::cgroup::{Cgroup, Hierarchy, Version};
use agewise_host::guest::Guests;
use agewise_host::mover::PageoutError;
use agewise_host::process::ProcessError;
use agewise_policy::budget::{Counted, Gone, PAGE_BYTES, SLICES_A_STEP, Seen};
use agewise_policy::proactive::{Backend, SwapRoom};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};

use super::report::{Begun, Held, Report};
use super::target::{Target, Tools};

mod files;
mod measured;

/// The state of a fake process, shared with the test that runs it.
#[derive(Default)]
struct State {
    present: BTreeSet<u64>,
    young: BTreeSet<u64>,
    out: BTreeSet<u64>,
    /// Nothing leaves.
    is_stuck: bool,
    /// It must not be touched.
    runs_guests: bool,
    /// A file that is replaced by another before each look.
    is_replaced: bool,
    replaced: u64,
    counted: Counted,
}

impl State {
    fn touch(&mut self, page: u64) {
        self.out.remove(&page);
        self.present.insert(page);
        self.young.insert(page);
    }

    fn look(&mut self, clears: bool) -> Vec<Seen> {
        let seen = self.seen();
        if clears {
            self.young.clear();
        }
        seen
    }

    fn move_out(&mut self, runs: &[Range<u64>], choose: &mut Choose<'_>, rehearse: bool) -> Gone {
        let asked: Vec<u64> = runs.iter().cloned().flatten().collect();
        let chosen = choose(&self.seen_of(asked.iter().copied()));
        let mut gone = Gone::default();
        for page in chosen.into_iter().flatten() {
            assert!(asked.contains(&page) && self.present.contains(&page));
            if !rehearse && !self.is_stuck {
                self.present.remove(&page);
                self.young.remove(&page);
                self.out.insert(page);
                gone.left_pages += 1;
            }
        }
        gone
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen_of(self.present.iter().chain(&self.out).copied())
    }

    fn seen_of(&self, pages: impl Iterator<Item = u64>) -> Vec<Seen> {
        let mut tables = BTreeMap::<u64, TableBits>::new();
        for page in pages {
            let bits = tables.entry(page / PAGES_PER_TABLE as u64).or_default();
            let slot = page as usize % PAGES_PER_TABLE;
            if !self.present.contains(&page) {
                bits.swapped.insert(slot);
                continue;
            }
            bits.present.insert(slot);
            if self.young.contains(&page) {
                bits.young.insert(slot);
            }
        }
        let seen = |(index, bits)| Seen {
            index,
            bits,
            movable: PageSet::ALL,
        };
        tables.into_iter().map(seen).collect()
    }
}

thread_local! {
    /// Fake processes by pid.
    static PROCESSES: RefCell<BTreeMap<u32, Rc<RefCell<State>>>> = RefCell::default();
}

struct Fake {
    state: Rc<RefCell<State>>,
    pid: u32,
}

impl HeldMemory for Fake {
    fn open(pid: u32, _: u64, guests: Guests) -> Result<Self, PageoutError> {
        let state = PROCESSES.with_borrow(|all| all.get(&pid).cloned());
        let state = state.ok_or(ProcessError::Gone { pid })?;
        if state.borrow().runs_guests && guests == Guests::Spared {
            return Err(PageoutError::Guests { pid });
        }
        Ok(Fake { state, pid })
    }

    fn start_ticks(&self) -> u64 {
        START_TICKS
    }

    fn is_alive(&self) -> bool {
        PROCESSES.with_borrow(|all| all.contains_key(&self.pid))
    }

    fn resident_bytes(&self) -> Option<u64> {
        Some(self.state.borrow().present.len() as u64 * PAGE_BYTES)
    }

    fn counted(&self, _: bool) -> Option<Counted> {
        Some(self.state.borrow().counted)
    }

    fn look(&mut self, _: &mut dyn AccessSource, clears: bool) -> Result<Vec<Seen>, PageoutError> {
        Ok(self.state.borrow_mut().look(clears))
    }

    fn move_out(
        &mut self,
        _: &mut dyn AccessSource,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, PageoutError> {
        Ok(self.state.borrow_mut().move_out(runs, choose, rehearse))
    }
}

/// A page cache with one file.
struct FakeFiles(Rc<RefCell<State>>);

const FILE: u64 = 77;

impl HeldFiles for FakeFiles {
    fn spare(&mut self, _: &[PathBuf]) {}

    fn take_walked_ns(&mut self) -> u64 {
        0
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    fn look(&mut self, counts: bool) -> Result<BTreeMap<u64, Vec<Seen>>, FilesError> {
        let mut state = self.0.borrow_mut();
        state.replaced += u64::from(state.is_replaced);
        Ok([(FILE + state.replaced, state.look(counts))].into())
    }

    fn move_out(
        &mut self,
        file: u64,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, FilesError> {
        let mut state = self.0.borrow_mut();
        assert_eq!(file, FILE + state.replaced);
        Ok(state.move_out(runs, choose, rehearse))
    }
}

const PID: u32 = 1;
const START_TICKS: u64 = 7;
const MIB: u64 = 1 << 20;

/// A target of 64 MiB to be held under a budget, with its own clock.
struct Scene {
    target: Target<Fake>,
    state: Rc<RefCell<State>>,
    files: Rc<RefCell<State>>,
    /// Why the page cache cannot be opened.
    closed: Option<&'static str>,
    /// The cgroup that both are charged to, if there is one.
    dir: Option<tempfile::TempDir>,
    now_us: Cell<u64>,
    report: Report,
    /// What was asked for and what was in swap at each announcement.
    announced: RefCell<Vec<[u64; 2]>>,
    /// Whether what is in the report was announced.
    is_announced: Cell<bool>,
    /// Whether announcements can be written to the journal.
    is_journal_written: bool,
    /// The most that one turn moved.
    turn_max_bytes: u64,
}

impl Scene {
    fn new(spec: &str, dry_run: bool, backend: Backend) -> Self {
        let mut state = State::default();
        (0..64 * MIB / PAGE_BYTES).for_each(|page| state.touch(page));
        let state = Rc::new(RefCell::new(state));
        PROCESSES.with_borrow_mut(|all| all.insert(PID, Rc::clone(&state)));
        let held = Held {
            key: (Arc::from("/test"), 1),
            cgroup: None,
            processes: vec![(PID, START_TICKS)],
            spec: spec.parse().unwrap(),
            dry_run,
            backend,
            files: false,
            guests: Guests::Spared,
            without: Vec::new(),
        };
        Scene {
            target: Target::new(held, 1),
            state,
            files: Rc::default(),
            closed: None,
            dir: None,
            now_us: Cell::new(0),
            report: Report::default(),
            announced: RefCell::default(),
            is_announced: Cell::default(),
            is_journal_written: true,
            turn_max_bytes: 0,
        }
    }

    /// The same in a cgroup that is also charged for 64 MiB of a file.
    fn with_files(spec: &str, backend: Backend) -> Self {
        let mut scene = Scene::new(spec, false, backend);
        for page in 0..64 * MIB / PAGE_BYTES {
            scene.files.borrow_mut().touch(page);
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("held")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let held = Held {
            cgroup: Some(Cgroup::open(&hierarchy, "/held").unwrap()),
            files: true,
            ..scene.target.held.clone()
        };
        scene.target.hold(held);
        scene.dir = Some(dir);
        scene
    }

    /// Writes the charges to the files of the cgroup.
    fn charge(&self) {
        let Some(dir) = &self.dir else { return };
        let bytes = |state: &RefCell<State>| state.borrow().present.len() as u64 * PAGE_BYTES;
        let (anon, file) = (bytes(&self.state), bytes(&self.files));
        let write = |name: &str, text: String| {
            std::fs::write(dir.path().join("held").join(name), text).unwrap();
        };
        write("memory.current", format!("{}\n", anon + file));
        write("memory.stat", format!("anon {anon}\nfile {file}\n"));
        let swapped = self.state.borrow().out.len() as u64 * PAGE_BYTES;
        write("memory.swap.current", format!("{swapped}\n"));
    }

    fn resident_bytes(&self) -> u64 {
        self.state.borrow().present.len() as u64 * PAGE_BYTES
    }

    fn take_report(&mut self) -> Report {
        self.is_announced.set(false);
        std::mem::take(&mut self.report)
    }

    /// Lets time pass; calls `touch` every ms.
    fn run(&mut self, ms: u64, room: SwapRoom, mut touch: impl FnMut(&mut State, u64)) {
        let end_us = self.now_us.get() + ms * 1000;
        let mut next_ms = self.now_us.get() / 1000;
        while self.now_us.get() < end_us {
            while next_ms <= self.now_us.get() / 1000 {
                touch(&mut self.state.borrow_mut(), next_ms);
                next_ms += 1;
            }
            let announce = |_: &Held, begun: &Begun| {
                let of = [begun.asked_bytes, begun.swapped_bytes];
                self.announced.borrow_mut().push(of);
                self.is_announced.set(self.is_journal_written);
                self.is_journal_written
            };
            let (files, closed) = (Rc::clone(&self.files), self.closed);
            let tools = Tools {
                source: &mut FakeSource::new(),
                now_us: &|| self.now_us.get(),
                swap_room: &|| Some(room),
                open_files: &move |_| match closed {
                    Some(hint) => {
                        let what = "the page cache".to_owned();
                        Err(AccessError::NoPrivilege { what, hint }.into())
                    }
                    None => Ok(Box::new(FakeFiles(Rc::clone(&files)))),
                },
                announce: (!self.is_announced.get()).then_some(&announce),
                tap: &|_, _, _| {},
            };
            self.charge();
            let mut report = Report::of(&self.target.held);
            self.target.turn(tools, &mut report);
            self.turn_max_bytes = self.turn_max_bytes.max(report.tried_bytes);
            self.report.add(report);
            let due_us = self.target.due_us().max(self.now_us.get() + 1);
            self.now_us.set(due_us.min(next_ms * 1000));
        }
    }
}

const ROOM: SwapRoom = SwapRoom {
    free_bytes: 1 << 30,
    total_bytes: 1 << 30,
};

/// Touches the first quarter all the time.
fn touch_hot(state: &mut State, ms: u64) {
    (0..64).for_each(|n| state.touch((ms * 64 + n) % (16 * MIB / PAGE_BYTES)));
}

#[test]
fn a_target_comes_under_its_budget_by_its_coldest_memory() {
    let mut scene = Scene::new("budget:48M", false, Backend::Zram);
    // After one more scan, everything except the hot quarter is idle.
    scene.run(2_000, ROOM, touch_hot);
    let resident = scene.resident_bytes();
    assert!(resident <= 48 * MIB && resident > 46 * MIB, "{resident}");
    let state = scene.state.borrow();
    let hot = |page: &u64| *page < 16 * MIB / PAGE_BYTES;
    assert_eq!(state.out.iter().filter(|page| hot(page)).count(), 0);
    let report = &scene.report;
    assert_eq!(report.left_bytes, state.out.len() as u64 * PAGE_BYTES);
    let asked_bytes = report.asked_bytes;
    assert!(
        (16 * MIB..32 * MIB).contains(&asked_bytes),
        "{asked_bytes} of 16 MiB too many"
    );
    assert_eq!(report.trouble, None);
    assert_eq!(scene.announced.borrow().len(), 1, "announced once");
}

#[test]
fn the_line_before_has_what_is_in_swap_already() {
    let mut scene = Scene::with_files("budget:96M", Backend::Zram);
    for page in 0..4 * MIB / PAGE_BYTES {
        let mut state = scene.state.borrow_mut();
        state.present.remove(&page);
        state.out.insert(page);
    }
    scene.run(3_000, ROOM, |_, _| {});
    let announced = scene.announced.borrow();
    assert_eq!(announced[0][1], 4 * MIB);
}

#[test]
fn it_goes_in_slices() {
    let mut scene = Scene::new("budget:62M", false, Backend::Zram);
    scene.run(1_000, ROOM, touch_hot);
    assert!(scene.resident_bytes() <= 62 * MIB);
    // 2 MiB and the headroom are divided into the slices of a step, which never go at once.
    let slice = 3 * MIB / SLICES_A_STEP;
    assert!(scene.turn_max_bytes <= slice, "{}", scene.turn_max_bytes);
    assert!(
        scene.report.steps >= SLICES_A_STEP,
        "{}",
        scene.report.steps
    );
}

#[test]
fn nothing_moves_where_there_is_no_room() {
    for (room, backend) in [
        (SwapRoom::default(), Backend::None),
        (
            SwapRoom {
                free_bytes: MIB,
                ..ROOM
            },
            Backend::Zram,
        ),
    ] {
        let mut scene = Scene::new("budget:48M", false, backend);
        scene.run(2_000, room, touch_hot);
        assert_eq!(scene.resident_bytes(), 64 * MIB);
        assert_eq!(scene.report.tried_bytes, 0);
        assert_eq!(scene.report.trouble.is_some(), backend == Backend::None);
    }
}

#[test]
fn a_rehearsal_moves_nothing_and_decides_once_a_second() {
    let mut scene = Scene::new("budget:48M", true, Backend::Zram);
    scene.run(5_000, ROOM, touch_hot);
    assert_eq!(scene.resident_bytes(), 64 * MIB);
    let report = &scene.report;
    assert!((1..=12).contains(&report.steps), "{}", report.steps);
    assert_eq!(report.left_bytes, 0);
    // Each time the same 16 MiB and some headroom, all of it.
    let (rehearsed, tried) = (report.rehearsed_bytes, report.tried_bytes);
    assert!((16 * MIB..=18 * MIB).contains(&rehearsed), "{rehearsed}");
    assert!(rehearsed * report.steps >= tried, "{rehearsed} {tried}");
    assert!(!report.behind, "nothing leaves, so it would always be");
}

/// Memory that the kernel keeps (because it is locked, say) is not asked for all the time.
#[test]
fn what_does_not_leave_makes_it_pause() {
    let mut scene = Scene::new("budget:48M", false, Backend::Zram);
    scene.state.borrow_mut().is_stuck = true;
    scene.run(10_000, ROOM, touch_hot);
    assert_eq!(scene.report.left_bytes, 0);
    // About three moves of 32 slices, then one pause after another.
    assert!(scene.report.steps < 2_000, "{}", scene.report.steps);
}

#[test]
fn a_process_that_ends_is_no_trouble_and_a_new_one_is_scanned_at_once() {
    let mut scene = Scene::new("budget:48M", false, Backend::Zram);
    scene.run(1_500, ROOM, touch_hot);
    let scans = scene.report.scans;
    PROCESSES.with_borrow_mut(BTreeMap::clear);
    scene.run(1_500, ROOM, |_, _| {});
    assert_eq!(scene.report.trouble, None);
    assert_eq!(scene.target.spaces(), 0);
    PROCESSES.with_borrow_mut(|all| all.insert(PID, Rc::clone(&scene.state)));
    scene.run(1_100, ROOM, |_, _| {});
    assert!(scene.report.scans > scans);
    assert_eq!(scene.target.spaces(), 1);
}

#[test]
fn memory_of_guests_is_moved_only_if_asked_for() {
    let run = |guests| {
        let mut scene = Scene::new("budget:48M", false, Backend::Zram);
        scene.state.borrow_mut().runs_guests = true;
        scene.target.held.guests = guests;
        scene.run(1_500, ROOM, touch_hot);
        scene.report
    };
    let spared = run(Guests::Spared);
    let trouble = spared.trouble.unwrap();
    assert!(trouble.contains("KVM guests"), "{trouble}");
    assert_eq!(spared.left_bytes, 0);
    let included = run(Guests::Included);
    assert!(included.trouble.is_none() && included.left_bytes > 0);
}

#[test]
fn nothing_moves_that_could_not_be_written_down() {
    let mut scene = Scene::new("budget:48M", false, Backend::Zram);
    scene.is_journal_written = false;
    scene.run(5_500, ROOM, touch_hot);
    assert_eq!((scene.report.steps, scene.report.left_bytes), (0, 0));
    let tries = scene.announced.borrow().len();
    assert!((3..=7).contains(&tries), "about once a second: {tries}");
    scene.is_journal_written = true;
    scene.run(5_000, ROOM, touch_hot);
    assert!(scene.report.left_bytes > 0);
}

/// A decision is moved over many turns. Its report may be taken in between; then the rest has to be
/// announced as well.
#[test]
fn the_rest_of_a_decision_is_announced_again() {
    let mut scene = Scene::new("budget:48M", false, Backend::Zram);
    while scene.report.left_bytes == 0 {
        scene.run(1, ROOM, touch_hot);
    }
    scene.take_report();
    scene.is_journal_written = false;
    scene.run(50, ROOM, touch_hot);
    assert_eq!((scene.report.steps, scene.report.left_bytes), (0, 0));
    assert!(scene.resident_bytes() > 48 * MIB, "there is more to move");
    scene.is_journal_written = true;
    scene.run(5_000, ROOM, touch_hot);
    assert!(scene.resident_bytes() <= 48 * MIB);
}
