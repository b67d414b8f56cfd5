// SPDX-License-Identifier: Apache-2.0
//! The DAMON row in every state a kernel can be in.

use super::*;

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";

impl Fake {
    /// An unused DAMON: the files a modern kernel creates for one context, one scheme and one
    /// filter.
    pub(super) fn damon_offers(&self, operations: &str) {
        let context = format!("{KDAMONDS}/0/contexts/0");
        let scheme = format!("{context}/schemes/0");
        for (path, content) in [
            (format!("{KDAMONDS}/nr_kdamonds"), "0\n"),
            (format!("{KDAMONDS}/0/contexts/nr_contexts"), "0\n"),
            (format!("{context}/avail_operations"), operations),
            (format!("{context}/schemes/nr_schemes"), "0\n"),
            (format!("{scheme}/tried_regions/total_bytes"), "0\n"),
            (format!("{scheme}/core_filters/nr_filters"), "0\n"),
            (format!("{scheme}/core_filters/0/damon_target_idx"), "0\n"),
        ] {
            self.file(&path, content);
        }
    }

    /// A monitor of physical memory run by another program.
    fn damon_runs(&self) {
        self.file(&format!("{KDAMONDS}/nr_kdamonds"), "1\n");
        self.file(&format!("{KDAMONDS}/0/state"), "on\n");
        self.file(&format!("{KDAMONDS}/0/pid"), "77\n");
        let context = format!("{KDAMONDS}/0/contexts/0");
        self.file(&format!("{context}/operations"), "paddr\n");
        self.file(&format!("{context}/avail_operations"), "paddr\n");
    }
}

/// Returns the row, and the `nr_kdamonds` that the probe left behind.
fn row(change: impl FnOnce(&Fake)) -> (Capability, Option<String>) {
    let fake = Fake::modern();
    change(&fake);
    let count = fake.top.path().join(format!("{KDAMONDS}/nr_kdamonds"));
    let roots = Roots::below(fake.top.path());
    let table = Capabilities::probe(&System {
        roots,
        calls: Box::new(fake.calls),
    });
    let row = table.get(Group::Source, "damon").unwrap().clone();
    (row, fs::read_to_string(count).ok())
}

fn assert_row(row: &Capability, state: State, found: &[&str], advice: Option<&str>) {
    assert_eq!(row.state, state, "{row:?}");
    for part in found {
        assert!(row.found.contains(part), "{part}: {row:?}");
    }
    match (advice, &row.advice) {
        (None, None) => {}
        (Some(part), Some(given)) => assert!(given.contains(part), "{part}: {row:?}"),
        _ => panic!("{row:?}"),
    }
}

#[test]
fn a_kernel_without_damon_and_one_without_its_sysfs_differ() {
    let (absent, _) = row(|fake| fake.without("sys/kernel/mm/damon"));
    let advice = Some("CONFIG_DAMON_SYSFS");
    assert_row(&absent, State::Missing, &["no /sys/kernel/mm"], advice);
    let (no_sysfs, _) = row(|fake| {
        fake.without("sys/kernel/mm/damon");
        fake.file("sys/module/damon_reclaim/parameters/enabled", "N\n");
    });
    assert_row(&no_sysfs, State::Missing, &["built in, without"], advice);
}

#[test]
fn what_is_offered_is_tried_and_taken_down_again() {
    let offers = |operations: &str, change: fn(&Fake)| {
        let (row, left) = row(|fake| {
            fake.damon_offers(operations);
            change(fake);
        });
        assert_eq!(left.as_deref(), Some("0"), "{operations}");
        row
    };
    let as_is = |_: &Fake| {};
    let both = offers("vaddr\nfvaddr\npaddr\n", as_is);
    let found = ["offers vaddr, fvaddr, paddr", ": --pid, --cgroup and --all"];
    assert_row(&both, State::Available, &found, None);
    let vaddr = offers("vaddr\n", as_is);
    let found = ["offers vaddr:", "--pid and --cgroup, not --all"];
    assert_row(&vaddr, State::Limited, &found, Some("CONFIG_DAMON_PADDR"));
    let paddr = offers("paddr\n", as_is);
    let found = ["offers paddr:", "--cgroup and --all", "not --pid"];
    assert_row(&paddr, State::Limited, &found, Some("CONFIG_DAMON_VADDR"));
    let none = offers("\n", as_is);
    assert_row(&none, State::Missing, &["nothing"], Some("CONFIG_DAMON"));

    let no_owners = |fake: &Fake| fake.without("proc/kpagecgroup");
    let vaddr = offers("vaddr\nfvaddr\npaddr\n", no_owners);
    let advice = Some("CONFIG_PROC_PAGE_MONITOR");
    assert_row(&vaddr, State::Limited, &["not --all"], advice);
    let paddr = offers("paddr\n", no_owners);
    assert_row(&paddr, State::Missing, &["offers paddr"], advice);
}

#[test]
fn older_kernels_say_which_one_they_should_be() {
    let scheme = format!("{KDAMONDS}/0/contexts/0/schemes/0");
    let (no_regions, _) = row(|fake| fake.without(&format!("{scheme}/tried_regions")));
    assert_row(&no_regions, State::Missing, &["regions"], Some("6.2"));
    for missing in ["core_filters/0/damon_target_idx", "core_filters"] {
        let (one_process, left) = row(|fake| fake.without(&format!("{scheme}/{missing}")));
        let found = ["one process, and --all"];
        assert_row(&one_process, State::Limited, &found, Some("6.6"));
        assert_eq!(left.as_deref(), Some("0"));
    }
}

#[test]
fn whoever_owns_it_is_named_and_nothing_is_written() {
    let (sysfs, left) = row(Fake::damon_runs);
    let found = ["kernel threads [77]", "it offers paddr"];
    assert_row(&sysfs, State::Missing, &found, Some("leave it to them"));
    assert_eq!(left.as_deref(), Some("1\n"));
    for with_sysfs in [true, false] {
        let (module, left) = row(|fake| {
            fake.file("sys/module/damon_lru_sort/parameters/enabled", "Y\n");
            if !with_sysfs {
                fake.without("sys/kernel/mm/damon");
            }
        });
        assert_row(
            &module,
            State::Missing,
            &["the kernel module damon_lru_sort"],
            Some("leave it to them"),
        );
        assert_eq!(left.is_some(), with_sysfs);
    }
}

#[test]
fn files_that_may_not_be_read_or_written_say_so() {
    let unreadable = |path: String| {
        let (row, _) = row(|fake| {
            fake.without(&path);
            // Not even root can read or write a directory as a file.
            fs::create_dir_all(fake.top.path().join(&path)).unwrap();
        });
        assert_row(&row, State::Missing, &["cannot ", &path], Some("root"));
    };
    unreadable(format!("{KDAMONDS}/nr_kdamonds"));
    unreadable(format!("{KDAMONDS}/0/contexts/nr_contexts"));
}
