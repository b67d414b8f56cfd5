// SPDX-License-Identifier: Apache-2.0
//! Tests on a tree laid out like sysfs. A guest tests what only a real kernel can answer.

use std::path::PathBuf;

use agewise_damon::attrs::Attrs;

use super::*;
use crate::root::Roots;

/// Files of kdamond 0 on every kernel since 6.6, for two schemes and two targets.
const FILES: [&str; 16] = [
    "state",
    "pid",
    "contexts/nr_contexts",
    "contexts/0/avail_operations",
    "contexts/0/operations",
    "contexts/0/monitoring_attrs/intervals/sample_us",
    "contexts/0/monitoring_attrs/intervals/aggr_us",
    "contexts/0/monitoring_attrs/intervals/update_us",
    "contexts/0/monitoring_attrs/nr_regions/min",
    "contexts/0/monitoring_attrs/nr_regions/max",
    "contexts/0/targets/nr_targets",
    "contexts/0/targets/0/pid_target",
    "contexts/0/targets/1/pid_target",
    "contexts/0/targets/0/regions/nr_regions",
    "contexts/0/targets/0/regions/0/start",
    "contexts/0/targets/0/regions/0/end",
];

const SCHEME_FILES: [&str; 11] = [
    "action",
    "access_pattern/sz/min",
    "access_pattern/sz/max",
    "access_pattern/nr_accesses/min",
    "access_pattern/nr_accesses/max",
    "access_pattern/age/min",
    "access_pattern/age/max",
    "filters/nr_filters",
    "filters/0/damon_target_idx",
    "filters/0/type",
    "filters/0/matching",
];

/// An unused DAMON.
pub(crate) struct Fake {
    dir: tempfile::TempDir,
    damon: Damon,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake {
            damon: Damon::new(Roots::below(dir.path()).sys),
            dir,
        };
        fake.put("nr_kdamonds", "0\n");
        for file in FILES {
            fake.put(&format!("0/{file}"), "0\n");
        }
        fake.put("0/contexts/0/schemes/nr_schemes", "0\n");
        for file in SCHEME_FILES {
            for scheme in 0..2 {
                fake.put(&format!("0/contexts/0/schemes/{scheme}/{file}"), "0\n");
            }
        }
        fake.put("0/contexts/0/avail_operations", "vaddr\npaddr\n");
        fake
    }

    /// The roots of the fake machine.
    pub(crate) fn roots(&self) -> Roots {
        Roots::below(self.dir.path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.damon.kdamonds().join(name)
    }

    /// Writes a file below `kdamonds`.
    pub(crate) fn put(&self, name: &str, content: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Returns the first line: after a shorter write, these plain files still have old content at
    /// the end.
    pub(crate) fn get(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name))
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .to_owned()
    }
}

fn setup(watched: Watched) -> Setup {
    Setup {
        watched,
        attrs: Attrs::default(),
    }
}

#[test]
fn a_monitor_of_physical_memory_has_one_scheme_and_no_filter() {
    let fake = Fake::new();
    let setup = setup(Watched::Physical(vec![(4096, 8192)]));
    let session = fake.damon.start(&setup).unwrap();
    assert_eq!(fake.get("nr_kdamonds"), "1");
    assert_eq!(fake.get("0/state"), "on");
    let context = |name: &str| fake.get(&format!("0/contexts/0/{name}"));
    assert_eq!(context("operations"), "paddr");
    assert_eq!(context("monitoring_attrs/intervals/aggr_us"), "100000");
    assert_eq!(context("targets/0/regions/0/end"), "8192");
    assert_eq!(context("schemes/nr_schemes"), "1");
    assert_eq!(context("schemes/0/action"), "stat");
    let max = u32::MAX.to_string();
    assert_eq!(context("schemes/0/access_pattern/age/max"), max);
    assert_eq!(context("schemes/0/filters/nr_filters"), "0");
    drop(session);
    assert_eq!(fake.get("0/state"), "off");
    assert_eq!(fake.get("nr_kdamonds"), "0");
}

#[test]
fn each_of_several_processes_has_a_scheme_with_a_filter() {
    let fake = Fake::new();
    let setup = setup(Watched::Processes(vec![7, 8]));
    fake.damon.start(&setup).unwrap();
    let context = |name: &str| fake.get(&format!("0/contexts/0/{name}"));
    assert_eq!(context("targets/1/pid_target"), "8");
    assert_eq!(context("schemes/nr_schemes"), "2");
    assert_eq!(context("schemes/1/filters/nr_filters"), "1");
    assert_eq!(context("schemes/1/filters/0/type"), "target");
    assert_eq!(context("schemes/1/filters/0/damon_target_idx"), "1");
    assert_eq!(context("schemes/1/filters/0/matching"), "N");
}

#[test]
fn somebody_elses_monitor_is_never_touched() {
    let fake = Fake::new();
    fake.put("nr_kdamonds", "1\n");
    fake.put("0/state", "on\n");
    fake.put("0/pid", "77\n");
    let error = fake
        .damon
        .start(&setup(Watched::Physical(Vec::new())))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("another program (kernel threads [77])"),
        "{error}"
    );
    assert_eq!(fake.get("0/state"), "on");
    assert_eq!(fake.get("nr_kdamonds"), "1");
    let module = fake.damon.sys.join("module/damon_stat/parameters/enabled");
    std::fs::create_dir_all(module.parent().unwrap()).unwrap();
    std::fs::write(module, "Y\n").unwrap();
    assert_eq!(
        fake.damon.owner().unwrap(),
        Owner::Module {
            name: "damon_stat".to_owned()
        }
    );
}

#[test]
fn kernels_that_lack_a_part_say_which() {
    let fake = Fake::new();
    fake.put("0/contexts/0/avail_operations", "paddr\n");
    let setup = setup(Watched::Processes(vec![7, 8]));
    let error = fake.damon.start(&setup).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot watch 'vaddr' (it offers: paddr)"),
        "{error}"
    );
    assert_eq!(fake.get("nr_kdamonds"), "0", "taken down again");

    fake.put("0/contexts/0/avail_operations", "vaddr\n");
    let filters = fake.path("0/contexts/0/schemes/0/filters");
    std::fs::remove_file(filters.join("0/damon_target_idx")).unwrap();
    let error = fake.damon.start(&setup).unwrap_err();
    assert!(error.to_string().contains("needs Linux 6.6"), "{error}");
    std::fs::remove_file(filters.join("nr_filters")).unwrap();
    let error = fake.damon.start(&setup).unwrap_err();
    assert!(error.to_string().contains("needs Linux 6.3"), "{error}");

    let none = Damon::new(SysRoot::new("/nowhere"));
    assert!(matches!(none.start(&setup), Err(DamonError::Missing)));
    assert_eq!(none.owner().unwrap(), Owner::Nobody);
}

#[test]
fn regions_are_read_back() {
    let fake = Fake::new();
    let setup = setup(Watched::Processes(vec![7]));
    let session = fake.damon.start(&setup).unwrap();
    let put = |name: &str, value: &str| {
        fake.put(&format!("0/contexts/0/schemes/0/{name}"), value);
    };
    for (index, start) in [(0, 8192), (1, 4096)] {
        for (name, value) in [
            ("start", start),
            ("end", start + 4096),
            ("nr_accesses", 3),
            ("age", 2),
        ] {
            put(
                &format!("tried_regions/{index}/{name}"),
                &format!("{value}\n"),
            );
        }
    }
    let regions = session.regions().unwrap();
    let region = |start| TriedRegion {
        start,
        end: start + 4096,
        nr_accesses: 3,
        age: 2,
    };
    assert_eq!(regions, [[region(4096), region(8192)]]);
    fake.put("0/pid", "-1\n");
    assert!(matches!(session.regions(), Err(DamonError::Stopped)));
}

/// Our kernel thread ends with the processes it watches, and then the place is free for others.
#[test]
fn the_monitor_of_another_that_took_our_place_stays() {
    let start = || {
        let fake = Fake::new();
        let setup = setup(Watched::Processes(vec![7]));
        let session = fake.damon.start(&setup).unwrap();
        (fake, session)
    };
    let left = |fake: &Fake| (fake.get("0/state"), fake.get("nr_kdamonds"));
    let running = ("on".to_owned(), "1".to_owned());

    let (fake, session) = start();
    fake.put("0/pid", "78\n");
    assert!(matches!(session.regions(), Err(DamonError::Stopped)));
    drop(session);
    assert_eq!(left(&fake), running, "theirs runs");

    let (fake, session) = start();
    fake.put("0/pid", "-1\n");
    fake.put("0/contexts/0/targets/0/pid_target", "8\n");
    drop(session);
    assert_eq!(left(&fake), running, "they set up theirs");

    let (fake, session) = start();
    fake.put("0/pid", "-1\n");
    drop(session);
    assert_eq!(fake.get("nr_kdamonds"), "0", "ours had ended");
}
