// SPDX-License-Identifier: Apache-2.0
//! Tests on a tree laid out like sysfs. A guest tests what only a real kernel can answer.

use std::path::PathBuf;

use agewise_damon::action::Action;
use agewise_damon::attrs::Attrs;
use agewise_damon::filter::{Filter, FilterKind};
use agewise_damon::lru_sort;
use agewise_damon::module::Module;
use agewise_damon::profile::Profile;
use agewise_damon::quota::Quota;
use agewise_damon::scheme::{AccessPattern, Scheme};
use agewise_damon::target::TargetId;

use super::*;
use crate::root::Roots;

/// Files of kdamond 0 on every kernel since 6.3, for two schemes and two targets.
const FILES: [&str; 27] = [
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
    "contexts/0/schemes/nr_schemes",
    "S/action",
    "S/watermarks/metric",
    "S/watermarks/interval_us",
    "S/watermarks/high",
    "S/watermarks/mid",
    "S/watermarks/low",
    "S/quotas/ms",
    "S/quotas/bytes",
    "S/quotas/reset_interval_ms",
    "S/filters/nr_filters",
];

const SCHEME_FILES: [&str; 14] = [
    "access_pattern/sz/min",
    "access_pattern/sz/max",
    "access_pattern/nr_accesses/min",
    "access_pattern/nr_accesses/max",
    "access_pattern/age/min",
    "access_pattern/age/max",
    "quotas/weights/sz_permil",
    "quotas/weights/nr_accesses_permil",
    "quotas/weights/age_permil",
    "stats/nr_tried",
    "stats/sz_tried",
    "stats/nr_applied",
    "stats/sz_applied",
    "stats/qt_exceeds",
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
            for scheme in 0..2 {
                let file = file.replace("S/", &format!("contexts/0/schemes/{scheme}/"));
                fake.put(&format!("0/{file}"), "0\n");
            }
        }
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

fn sort_setup() -> Setup {
    let monitor = lru_sort::Params::default()
        .monitor(Profile::V7_2, TargetId(0), 1)
        .unwrap();
    Setup {
        watched: Watched::Physical(vec![(4096, 8192)]),
        attrs: *monitor.attrs(),
        schemes: monitor.schemes().to_vec(),
    }
}

fn stat_scheme() -> Scheme {
    let pattern = AccessPattern {
        size_bytes: 0..=u64::MAX,
        nr_accesses: 0..=u32::MAX,
        age: 0..=u32::MAX,
    };
    Scheme::new(pattern, Action::Stat, Quota::unlimited())
}

#[test]
fn a_setup_of_the_engine_is_written_as_sysfs_wants_it() {
    let fake = Fake::new();
    let session = fake.damon.start(&sort_setup()).unwrap();
    assert_eq!(fake.get("nr_kdamonds"), "1");
    assert_eq!(fake.get("0/state"), "on");
    let context = |name: &str| fake.get(&format!("0/contexts/0/{name}"));
    assert_eq!(context("operations"), "paddr");
    assert_eq!(context("monitoring_attrs/intervals/aggr_us"), "100000");
    assert_eq!(context("targets/0/regions/0/end"), "8192");
    assert_eq!(context("schemes/0/action"), "lru_prio");
    assert_eq!(context("schemes/0/access_pattern/nr_accesses/min"), "10");
    assert_eq!(context("schemes/1/action"), "lru_deprio");
    assert_eq!(context("schemes/1/access_pattern/age/min"), "1200");
    assert_eq!(context("schemes/1/quotas/ms"), "5");
    assert_eq!(context("schemes/1/watermarks/metric"), "free_mem_rate");
    assert_eq!(context("schemes/1/watermarks/mid"), "150");
    drop(session);
    assert_eq!(fake.get("0/state"), "off");
    assert_eq!(fake.get("nr_kdamonds"), "0");
}

#[test]
fn somebody_elses_monitor_is_never_touched() {
    let fake = Fake::new();
    fake.put("nr_kdamonds", "1\n");
    fake.put("0/state", "on\n");
    fake.put("0/pid", "77\n");
    let error = fake.damon.start(&sort_setup()).unwrap_err();
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
    let mut setup = sort_setup();
    setup.watched = Watched::Processes(vec![1]);
    let error = fake.damon.start(&setup).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot watch 'vaddr' (it offers: paddr)"),
        "{error}"
    );
    assert_eq!(fake.get("nr_kdamonds"), "0", "taken down again");

    let mut scheme = stat_scheme();
    scheme.filters = vec![Filter {
        kind: FilterKind::Anon,
        matching: true,
        allow: true,
    }];
    for name in ["type", "matching"] {
        fake.put(&format!("0/contexts/0/schemes/0/filters/0/{name}"), "");
    }
    let setup = Setup {
        watched: Watched::Physical(Vec::new()),
        attrs: Attrs::default(),
        schemes: vec![scheme],
    };
    let error = fake.damon.start(&setup).unwrap_err();
    assert!(error.to_string().contains("needs Linux 6.14"), "{error}");

    let none = Damon::new(SysRoot::new("/nowhere"));
    assert!(matches!(none.start(&setup), Err(DamonError::Missing)));
    assert_eq!(none.owner().unwrap(), Owner::Nobody);
}

#[test]
fn regions_and_stats_are_read_back() {
    let fake = Fake::new();
    let setup = Setup {
        watched: Watched::Processes(vec![7, 8]),
        attrs: Attrs::default(),
        schemes: vec![stat_scheme()],
    };
    let session = fake.damon.start(&setup).unwrap();
    assert_eq!(fake.get("0/contexts/0/targets/1/pid_target"), "8");
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
    let regions = session.tried_regions(0).unwrap();
    let region = |start| TriedRegion {
        start,
        end: start + 4096,
        nr_accesses: 3,
        age: 2,
    };
    assert_eq!(regions, [region(4096), region(8192)]);
    put("stats/sz_tried", "12345\n");
    fake.put("0/state", "on\n");
    assert_eq!(session.stats().unwrap()[0].sz_tried, 12345);
    fake.put("0/state", "off\n");
    assert!(matches!(session.stats(), Err(DamonError::Stopped)));
}
