// SPDX-License-Identifier: Apache-2.0
//! A user can make a process that no call about its address space comes back from, from any moment
//! on. It must stop nobody else from being looked at, or moved. Needs root, BPF and FUSE.

mod support;

use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agewise_damon::attrs::Attrs;
use agewise_host::access::pagemap::Pagemap;
use agewise_host::access::{Abilities, AccessError, AccessSource, AddressRange, SightSink, Target};
use agewise_host::activate::activate;
use agewise_host::agent::{Agent, AgentConfig, Subject, Targets};
use agewise_host::budgeted::{Budgeted, HeldMemory};
use agewise_host::damon::{Damon, DamonError, Setup, Watched};
use agewise_host::guest::Guests;
use agewise_host::mover::{
    self, Mover, PageoutError, PageoutLimits, Plan, ProcessMover, RunSet, SkipReason,
};
use agewise_host::pagewalk::PageWalk;
use agewise_host::process::Process;
use agewise_host::root::{ProcRoot, Roots};
use agewise_host::vma::VmaTable;
use support::hang::{Hangs, PAGES, hang, hang_as, new_user};
use support::{BASE, Child, PAGE, fill, map_fixed, need};

const MEMORY: AddressRange = AddressRange {
    start: BASE as u64,
    end: (BASE + PAGES * PAGE) as u64,
};

/// For one test at a time: processes of others would inherit descriptors.
fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hangs(test: &str) -> Option<Hangs> {
    let started = Hangs::start();
    let skipped = |why| println!("SKIPPED {test}: {}", need::lacks("fuse", why));
    started.map_err(skipped).ok()
}

/// A source whose target begins to hang between the reading of its mappings and the look.
struct HangsBefore<S> {
    inner: S,
    child: Option<Rc<Child>>,
}

impl<S: AccessSource> AccessSource for HangsBefore<S> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError> {
        if let Some(child) = self.child.take_if(|child| child.pid == target.pid) {
            hang(&child);
        }
        self.inner.scan(target, ranges, sink)
    }
}

fn well() -> Child {
    Child::spawn(|| {
        map_fixed(BASE, PAGES, libc::MADV_NOHUGEPAGE);
        fill(BASE, PAGES);
    })
}

/// An agent goes on with others when one of its processes hangs, and says so.
fn observe<S: AccessSource + 'static>(child: &Rc<Child>, inner: S, why: &str) {
    let well = well();
    let pids = [child.pid, well.pid];
    let subjects = pids.map(|pid| Subject::process(&ProcRoot::default(), pid).unwrap());
    let source = HangsBefore {
        inner,
        child: Some(Rc::clone(child)),
    };
    let targets = Targets::Listed(subjects.into());
    let config = AgentConfig::new("1s,5s".parse().unwrap());
    let mut agent = Agent::new(Box::new(source), Roots::default(), targets, config).unwrap();
    for expected in [why, "is left alone"] {
        let report = agent.tick().unwrap();
        assert_eq!((report.processes, report.failed), (1, 1), "{report:?}");
        let reports = agent.report();
        assert!(
            reports[0].troubles[0].contains(expected),
            "{:?}",
            reports[0]
        );
        assert!(reports[1].troubles.is_empty(), "{:?}", reports[1]);
    }
}

#[test]
fn an_agent_looks_at_the_others() {
    let test = "an_agent_looks_at_the_others";
    let _one = one();
    if let Some(hangs) = hangs(test) {
        observe(&hangs.child, Pagemap::new(), "does not answer");
    }
    let walk = need::opened("pagewalk", test, PageWalk::open());
    if let Some((hangs, walk)) = hangs(test).zip(walk) {
        observe(&hangs.child, walk, "cannot clear accessed bits");
    }
}

#[test]
fn a_budget_looks_at_the_others() {
    let test = "a_budget_looks_at_the_others";
    let Some(inner) = need::opened("pagewalk", test, PageWalk::open()) else {
        return;
    };
    let _one = one();
    let Some(hangs) = hangs(test) else { return };
    let well = well();
    let pids = [hangs.child.pid, well.pid];
    let [mut hung, mut well] =
        pids.map(|pid| Budgeted::new(Process::open(pid).unwrap(), Guests::Spared).unwrap());
    let mut source = HangsBefore {
        inner,
        child: Some(Rc::clone(&hangs.child)),
    };
    // The walk takes no lock, the write to clear_refs does.
    let error = hung.look(&mut source, true).unwrap_err();
    assert!(error.to_string().contains("cannot clear"), "{error}");
    let error = hung.look(&mut source, true).unwrap_err();
    assert!(error.to_string().contains("is left alone"), "{error}");
    assert!(!well.look(&mut source, true).unwrap().is_empty());
}

#[test]
fn a_move_that_does_not_come_back_is_reported() {
    let test = "a_move_that_does_not_come_back_is_reported";
    let _one = one();
    let swap = match need::zram(64 << 20) {
        Ok(swap) => swap,
        Err(why) => return println!("SKIPPED {test}: {why}"),
    };
    let Some(hangs) = hangs(test) else {
        return swap.remove().unwrap();
    };
    let process = Process::open(hangs.child.pid).unwrap();
    let mut mover = ProcessMover::open(&process).unwrap();
    let mut recheck = |runs: &RunSet| {
        hang(&hangs.child);
        Ok(runs.clone())
    };
    let moved = mover::move_out(
        &mut mover,
        &Plan::of_base([MEMORY]),
        PageoutLimits::default(),
        &mut recheck,
        &AtomicBool::new(false),
        |_| {},
    );
    let error = moved.error.expect("it hangs");
    assert!(matches!(error, PageoutError::Unanswered { .. }), "{error}");
    let report = moved.report;
    assert_eq!(report.left_bytes, 0);
    let unknown_bytes = report.skipped_bytes.bytes(SkipReason::Unanswered);
    assert_eq!(unknown_bytes, MEMORY.len());
    drop(hangs);
    swap.remove().unwrap();
}

#[test]
fn no_call_waits_for_ever() {
    let _one = one();
    let fails = |what: &str, call: &dyn Fn(&mut ProcessMover<'_>) -> Result<(), String>| {
        let Some(hangs) = hangs("no_call_waits_for_ever") else {
            return;
        };
        let process = Process::open(hangs.child.pid).unwrap();
        let mut mover = ProcessMover::open(&process).unwrap();
        call(&mut mover).unwrap();
        hang(&hangs.child);
        let error = call(&mut mover).expect_err(what);
        assert!(error.contains("does not answer"), "{what}: {error}");
    };
    let text = |error: PageoutError| error.to_string();
    fails("mapped", &|mover| {
        mover.mapped(MEMORY).map(drop).map_err(text)
    });
    let runs = RunSet::from_runs([MEMORY]);
    fails("present", &|mover| {
        mover.present(&runs).map(drop).map_err(text)
    });
    fails("activate", &|mover| {
        let activated = activate(mover.pid(), &[MEMORY.start]);
        activated.map(drop).map_err(|error| error.to_string())
    });
    fails("maps", &|mover| {
        let read = VmaTable::new().read(mover.pid());
        read.map_err(|error| error.to_string())
    });
}

/// A user may have tens of thousands of ids in user namespaces.
#[test]
fn the_ids_of_one_user_count_as_one() {
    let test = "the_ids_of_one_user_count_as_one";
    let _one = one();
    let owner = new_user();
    let start = |is_in_namespace| {
        let started = Hangs::start_as(owner, is_in_namespace);
        let skipped = |why| println!("SKIPPED {test}: {}", need::lacks("fuse", why));
        started.map_err(skipped).ok()
    };
    let read = |pid| VmaTable::new().read(pid).map_err(|error| error.to_string());
    let mut all = Vec::new();
    for id in 1..=8 {
        let Some(hangs) = start(true) else { return };
        hang_as(&hangs.child, owner + id * 1000);
        let error = read(hangs.child.pid).unwrap_err();
        assert!(error.contains("does not answer"), "{error}");
        all.push(hangs);
    }
    for is_in_namespace in [true, false] {
        let Some(hangs) = start(is_in_namespace) else {
            return;
        };
        let error = read(hangs.child.pid).unwrap_err();
        assert!(error.contains("8 processes of its user"), "{error}");
    }
    let Some(of_another) = hangs(test) else {
        return;
    };
    read(of_another.child.pid).unwrap();
}

/// The files of DAMON that a monitor of one process uses, as on a kernel where nobody does.
fn fake_damon() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let kdamonds = dir.path().join("sys/kernel/mm/damon/admin/kdamonds");
    let put = |name: &str, text: &str| {
        let path = kdamonds.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let of_kdamond = "nr_kdamonds 0/state 0/contexts/nr_contexts";
    let of_context = "operations monitoring_attrs/intervals/sample_us \
         monitoring_attrs/intervals/aggr_us monitoring_attrs/intervals/update_us \
         monitoring_attrs/nr_regions/min monitoring_attrs/nr_regions/max targets/nr_targets \
         targets/0/pid_target schemes/nr_schemes schemes/0/action schemes/0/access_pattern/sz/min \
         schemes/0/access_pattern/sz/max schemes/0/access_pattern/nr_accesses/min \
         schemes/0/access_pattern/nr_accesses/max schemes/0/access_pattern/age/min \
         schemes/0/access_pattern/age/max";
    of_kdamond
        .split_whitespace()
        .for_each(|name| put(name, "0"));
    let of_context = of_context.split_whitespace();
    of_context.for_each(|name| put(&format!("0/contexts/0/{name}"), "0"));
    std::fs::create_dir(kdamonds.join("0/contexts/0/schemes/0/tried_regions")).unwrap();
    put("0/pid", "77");
    dir
}

/// A kdamond waits for the lock, too, and whoever writes to its `state` waits for the kdamond.
#[test]
fn nobody_waits_for_a_monitor_that_hangs() {
    let _one = one();
    let Some(hangs) = hangs("nobody_waits_for_a_monitor_that_hangs") else {
        return;
    };
    let fake = fake_damon();
    let sys = Roots::below(fake.path()).sys;
    let state = sys.join("kernel/mm/damon/admin/kdamonds/0/state");
    let watched = Watched::Processes(vec![hangs.child.pid]);
    let attrs = Attrs::default();
    let session = Damon::new(sys).start(&Setup { watched, attrs }).unwrap();
    session.regions().unwrap();
    let written = || std::fs::read_to_string(&state).unwrap();
    assert_eq!(written(), "update_schemes_tried_regions");
    std::fs::write(&state, "on").unwrap();
    hang(&hangs.child);
    let error = session.regions().unwrap_err();
    assert!(matches!(error, DamonError::Unanswered { .. }), "{error}");
    assert!(
        error.to_string().contains("kernel thread 77 is left"),
        "{error}"
    );
    drop(session);
    assert_eq!(written(), "on");
}
