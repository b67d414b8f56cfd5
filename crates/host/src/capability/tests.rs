// SPDX-License-Identifier: Apache-2.0
//! The table on machines other than this one: old, locked down, unprivileged, with every cgroup
//! layout.

use std::fs;
use std::path::Path;

use super::*;
use crate::access::AccessError;
use crate::pagecache::hooks::{Hook, chosen};
use crate::root::Roots;

mod damon;
mod guests;

/// A kernel that has only some system calls.
struct FakeCalls {
    arch: &'static str,
    page_bytes: u64,
    calls: Vec<Syscall>,
    walker: fn() -> Result<WalkerFacts, AccessError>,
    /// Hooks on page-cache accesses that this kernel lacks.
    lacks: &'static [&'static str],
}

impl Calls for FakeCalls {
    fn arch(&self) -> &'static str {
        self.arch
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn has(&self, call: Syscall) -> bool {
        self.calls.contains(&call)
    }

    fn load_walker(&self) -> Result<WalkerFacts, AccessError> {
        (self.walker)()
    }

    // A kernel that rejects the walker rejects these too.
    fn load_faults(&self) -> Result<(), AccessError> {
        (self.walker)().map(drop)
    }

    fn load_page_cache(&self) -> Result<Vec<&'static Hook>, AccessError> {
        (self.walker)().map(|_| chosen(|hook| !self.lacks.contains(&hook.name)))
    }
}

struct Fake {
    top: tempfile::TempDir,
    calls: FakeCalls,
}

impl Fake {
    /// A modern machine: root, zram swap, and hybrid cgroups, since they show the most.
    fn modern() -> Self {
        use Syscall::*;
        let walker = || {
            let flavour = "syscall".to_owned();
            Ok(WalkerFacts { flavour, levels: 4 })
        };
        let calls = vec![PidfdOpen, ProcessMadvise, PagemapScan, Bpf, Cachestat];
        let fake = Self {
            top: tempfile::tempdir().unwrap(),
            calls: FakeCalls {
                arch: "x86_64",
                page_bytes: 4096,
                calls,
                walker,
                lacks: &[],
            },
        };
        fake.file("proc/sys/kernel/osrelease", "6.18.44-test\n");
        fake.file("proc/sys/kernel/unprivileged_bpf_disabled", "2\n");
        fake.privileged(0, u64::MAX);
        fake.file("proc/self/clear_refs", "");
        fake.file("proc/self/pagemap", "");
        fake.file("proc/kpageflags", "");
        fake.file("proc/kpagecgroup", "");
        fake.file(
            "proc/meminfo",
            "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
        );
        fake.file("proc/pressure/memory", "");
        fake.file(
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram3 partition 1048576 0 100\n",
        );
        fake.file("sys/block/zram3/comp_algorithm", "lzo [lz4]\n");
        fake.file("sys/block/zram3/disksize", "1073741824\n");
        fake.file("sys/block/zram3/mm_stat", "8192 100 4096 0 4096 0 0 0 0\n");
        fake.file("sys/kernel/btf/vmlinux", "");
        fake.file(
            "sys/kernel/security/lockdown",
            "[none] integrity confidentiality\n",
        );
        fake.file(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        fake.damon_offers("vaddr\nfvaddr\npaddr\n");
        fake.file("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
        fake.file("sys/kernel/debug/lru_gen", "");
        fake.cgroup_v2();
        fake
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.top.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn without(&self, path: &str) {
        let path = self.top.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    fn privileged(&self, uid: u32, capabilities: u64) {
        let text = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n");
        self.file("proc/self/status", &text);
    }

    fn mounts(&self, mounts: &[(&str, &str, &str)]) {
        let lines = mounts.iter().map(|(point, kind, options)| {
            let point = self.top.path().join(point);
            format!(
                "30 22 0:26 / {} rw - {kind} {kind} {options}\n",
                point.display()
            )
        });
        self.file("proc/self/mountinfo", &lines.collect::<String>());
    }

    fn cgroup_v2(&self) {
        self.mounts(&[
            ("cg", "cgroup2", "rw"),
            ("sys/kernel/debug", "debugfs", "rw"),
        ]);
        self.file("cg/cgroup.controllers", "cpu memory\n");
        self.file("cg/a/memory.reclaim", "");
    }

    fn table(self) -> Capabilities {
        let roots = Roots::below(self.top.path());
        Capabilities::probe(&System {
            roots,
            calls: Box::new(self.calls),
        })
    }
}

fn state(table: &Capabilities, group: Group, name: &str) -> State {
    table
        .get(group, name)
        .unwrap_or_else(|| panic!("no line {name}"))
        .state
}

#[test]
fn a_machine_of_today_can_do_everything() {
    let table = Fake::modern().table();
    for line in table.lines() {
        let expected = match (line.group, line.name) {
            (Group::Source, "pagemap") => State::Limited,
            _ => State::Available,
        };
        assert_eq!(line.state, expected, "{line:?}");
        assert!(!line.found.is_empty());
    }
    assert_eq!(table.source().unwrap().name, "pagewalk");
    assert_eq!(table.mover().unwrap().name, "pageout");
    assert_eq!(table.lines().iter().filter(|line| line.chosen).count(), 2);
    let swap = &table.get(Group::Machine, "swap").unwrap().found;
    assert_eq!(
        swap,
        "/dev/zram3 1.0 GiB of 1.0 GiB free, zram lz4, 8.0 KiB kept in 4.0 KiB"
    );
}

#[test]
fn what_is_missing_comes_with_what_to_do() {
    let fake = Fake::modern();
    for path in [
        "proc/pressure",
        "proc/swaps",
        "proc/self/pagemap",
        "sys/kernel/mm",
        "sys/kernel/btf",
        "cg/cgroup.controllers",
    ] {
        fake.without(path);
    }
    let table = fake.table();
    let lines = table.lines().iter();
    let missing = lines.filter(|line| line.state == State::Missing);
    assert!(missing.clone().count() >= 8);
    for line in missing.filter(|line| line.name != "thp") {
        assert!(line.advice.is_some(), "{line:?}");
    }
    assert_eq!(state(&table, Group::Machine, "cgroup"), State::Missing);
    assert_eq!(state(&table, Group::Machine, "swap"), State::Missing);
    let pageout = table.get(Group::Mover, "pageout").unwrap();
    assert_eq!((pageout.state, pageout.chosen), (State::Limited, true));
    assert!(pageout.found.contains("files only"));
}

#[test]
fn an_old_kernel_falls_back_to_pagemap_and_moves_nothing() {
    let mut fake = Fake::modern();
    fake.calls.calls = vec![Syscall::Bpf];
    fake.calls.walker = || {
        Err(AccessError::Unsupported {
            what: "the walker",
            why: "no BTF".to_owned(),
        })
    };
    fake.without("sys/kernel/btf");
    fake.file("proc/sys/kernel/osrelease", "4.19.0-27-amd64\n");
    let table = fake.table();
    assert_eq!(state(&table, Group::Kernel, "version"), State::Limited);
    assert_eq!(state(&table, Group::Kernel, "btf"), State::Missing);
    assert_eq!(state(&table, Group::Kernel, "pidfd"), State::Missing);
    let pagewalk = table.get(Group::Source, "pagewalk").unwrap();
    assert_eq!(pagewalk.state, State::Missing);
    assert!(pagewalk.found.contains("no BTF"));
    assert!(
        pagewalk
            .advice
            .as_ref()
            .unwrap()
            .contains("CONFIG_DEBUG_INFO_BTF")
    );
    assert_eq!(table.source().unwrap().name, "pagemap");
    let faults = table.get(Group::Source, "page_faults").unwrap();
    assert_eq!(faults.state, State::Missing);
    assert_eq!(faults.advice, pagewalk.advice);
    assert_eq!(state(&table, Group::Mover, "pageout"), State::Missing);
    assert!(table.mover().is_none());
}

#[test]
fn without_privileges_our_own_processes_are_left() {
    let mut fake = Fake::modern();
    fake.privileged(1000, 0);
    fake.calls.walker = || {
        let what = "loading a BPF program".to_owned();
        Err(AccessError::NoPrivilege {
            what,
            hint: "run as root",
        })
    };
    let table = fake.table();
    let privileges = table.get(Group::Kernel, "privileges").unwrap();
    assert_eq!(privileges.state, State::Missing);
    assert!(
        privileges
            .found
            .starts_with("uid 1000, without CAP_BPF CAP_PERFMON")
    );
    assert_eq!(state(&table, Group::Kernel, "bpf"), State::Missing);
    let pagemap = table.source().unwrap();
    assert_eq!(pagemap.name, "pagemap");
    assert!(pagemap.found.contains("your own processes"));
    assert!(table.mover().is_none());
}

#[test]
fn some_capabilities_are_enough_and_the_missing_ones_are_named() {
    let bit = |number: u32| 1u64 << number;
    let fake = Fake::modern();
    fake.privileged(990, bit(38) | bit(39) | bit(23));
    let table = fake.table();
    assert_eq!(state(&table, Group::Kernel, "bpf"), State::Available);
    let privileges = table.get(Group::Kernel, "privileges").unwrap();
    assert_eq!(privileges.found, "uid 990, without CAP_SYS_PTRACE");
    assert_eq!(state(&table, Group::Mover, "pageout"), State::Limited);

    // Before 5.8 a single capability covered all of it.
    let fake = Fake::modern();
    fake.privileged(990, bit(21));
    assert_eq!(state(&fake.table(), Group::Kernel, "bpf"), State::Available);
}

#[test]
fn lockdown_forbids_reading_by_confidentiality_only() {
    for (mode, expected) in [
        ("none [integrity] confidentiality", State::Available),
        ("none integrity [confidentiality]", State::Missing),
    ] {
        let mut fake = Fake::modern();
        fake.file("sys/kernel/security/lockdown", mode);
        fake.calls.walker = || {
            Err(AccessError::Unsupported {
                what: "reading",
                why: "EPERM".to_owned(),
            })
        };
        let table = fake.table();
        assert_eq!(state(&table, Group::Kernel, "lockdown"), expected);
        let advice = table
            .get(Group::Source, "pagewalk")
            .unwrap()
            .advice
            .clone()
            .unwrap();
        assert_eq!(advice.contains("lockdown"), expected == State::Missing);
    }
}

#[test]
fn every_layout_of_cgroups_is_named() {
    let found = |mounts: &[(&str, &str, &str)]| {
        let fake = Fake::modern();
        fake.mounts(mounts);
        let table = fake.table();
        let cgroup = table.get(Group::Machine, "cgroup").unwrap();
        let reclaim = state(&table, Group::Mover, "memory_reclaim");
        let layout = cgroup.found.split(" at ").next().unwrap().to_owned();
        (layout, cgroup.state, reclaim)
    };
    let (yes, no) = (State::Available, State::Missing);
    let v1 = ("cg1", "cgroup", "rw,memory");
    let v2 = ("cg", "cgroup2", "rw");
    let cpu = ("cpu", "cgroup", "rw,cpu");
    assert_eq!(found(&[v2]), ("v2: memory is v2".into(), yes, yes));
    assert_eq!(found(&[v1]), ("v1: memory is v1".into(), yes, no));
    assert_eq!(
        found(&[cpu, v1, v2]),
        ("hybrid: memory is v1".into(), yes, no)
    );
    assert_eq!(found(&[cpu, v2]), ("hybrid: memory is v2".into(), yes, yes));
    assert_eq!(
        found(&[cpu]),
        ("v1: memory is not accounted".into(), no, no)
    );
    assert_eq!(found(&[]), ("none: memory is not accounted".into(), no, no));
}

#[test]
fn who_else_clears_accessed_bits_is_named() {
    let fake = Fake::modern();
    let kdamonds = "sys/kernel/mm/damon/admin/kdamonds";
    fake.file(&format!("{kdamonds}/nr_kdamonds"), "1\n");
    fake.file(&format!("{kdamonds}/0/pid"), "77\n");
    fake.file(&format!("{kdamonds}/0/contexts/0/operations"), "paddr\n");
    let table = fake.table();
    let bits = table.get(Group::Machine, "accessed_bits").unwrap();
    assert_eq!(bits.state, State::Limited);
    assert!(
        bits.found.contains("kdamond pid 77 on paddr"),
        "{}",
        bits.found
    );
    assert_eq!(state(&table, Group::Source, "damon"), State::Missing);

    let fake = Fake::modern();
    fake.file("sys/module/damon_reclaim/parameters/enabled", "Y\n");
    let bits = fake
        .table()
        .get(Group::Machine, "accessed_bits")
        .unwrap()
        .clone();
    assert!(bits.found.contains("damon_reclaim"));
    assert!(
        bits.advice
            .unwrap()
            .contains("/sys/module/damon_reclaim/parameters/enabled")
    );
}

#[test]
fn where_the_page_cache_is_seen_and_dropped_follows_the_kernel() {
    let line = |lacks: &'static [&'static str]| {
        let mut fake = Fake::modern();
        fake.calls.lacks = lacks;
        let table = fake.table();
        let line = table.get(Group::Source, "page_cache").unwrap();
        (line.state, line.found.clone())
    };
    let (state, found) = line(&["mm_filemap_get_pages", "mm_filemap_fault"]);
    assert_eq!(state, State::Available, "Linux 6.5 to 6.10");
    assert_eq!(
        found,
        "every page of files, by BPF on tracepoints writeback_dirty_folio; functions \
         filemap_read, filemap_splice_read, filemap_fault"
    );
    let (state, found) = line(&["mm_filemap_fault", "filemap_fault", "writeback_dirty_folio"]);
    assert_eq!(state, State::Limited);
    assert!(found.ends_with("; not seen: faults, writes"), "{found}");
    // Linux 6.1 to 6.4 do not show what is clean.
    let mut fake = Fake::modern();
    fake.calls.calls.retain(|call| *call != Syscall::Cachestat);
    let table = fake.table();
    let seen = self::state(&table, Group::Source, "page_cache");
    assert_eq!(seen, State::Available);
    let mover = table.get(Group::Mover, "page_cache").unwrap();
    assert_eq!((mover.state, mover.since), (State::Missing, Some("6.5")));
    assert!(mover.advice.as_deref().unwrap().contains("seccomp"));
}

#[test]
fn the_multi_gen_lru_can_be_absent_off_or_hidden() {
    let advice = |change: fn(&Fake)| {
        let fake = Fake::modern();
        change(&fake);
        let table = fake.table();
        let line = table.get(Group::Source, "lru_gen").unwrap();
        assert_eq!(line.state, State::Missing);
        line.advice.clone().unwrap()
    };
    assert!(advice(|fake| fake.without("sys/kernel/mm/lru_gen")).contains("CONFIG_LRU_GEN"));
    let off = advice(|fake| fake.file("sys/kernel/mm/lru_gen/enabled", "0x0000\n"));
    assert!(off.contains("echo y"));
    assert!(advice(|fake| fake.without("sys/kernel/debug/lru_gen")).contains("root"));
    let unmounted = advice(|fake| {
        fake.without("sys/kernel/debug/lru_gen");
        fake.mounts(&[("cg", "cgroup2", "rw")]);
    });
    assert!(unmounted.contains("mount -t debugfs"));
}

#[test]
fn an_architecture_says_what_works_there() {
    let arch = |arch, page_bytes| {
        let mut fake = Fake::modern();
        fake.calls.arch = arch;
        fake.calls.page_bytes = page_bytes;
        fake.table().get(Group::Kernel, "arch").unwrap().clone()
    };
    assert_eq!(arch("x86_64", 4096).state, State::Available);
    assert_eq!(arch("aarch64", 4096).state, State::Available);
    let large = arch("aarch64", 65536);
    assert_eq!(large.state, State::Limited);
    assert!(large.found.contains("64 KiB"), "{large:?}");
    let mut fake = Fake::modern();
    fake.calls.page_bytes = 65536;
    let table = fake.table();
    assert_eq!(table.source().unwrap().name, "pagewalk");
    let pagemap = table.get(Group::Source, "pagemap").unwrap();
    assert_eq!(pagemap.state, State::Missing);
    assert_eq!(arch("riscv64", 4096).state, State::Limited);
}

#[test]
fn an_empty_machine_gives_a_table_and_no_panic() {
    let fake = Fake {
        top: tempfile::tempdir().unwrap(),
        calls: FakeCalls {
            arch: "riscv64",
            page_bytes: 4096,
            calls: Vec::new(),
            walker: || {
                Err(AccessError::Unsupported {
                    what: "it",
                    why: "not here".to_owned(),
                })
            },
            lacks: &[],
        },
    };
    let table = fake.table();
    assert!(table.source().is_none() && table.mover().is_none());
    let modern = Fake::modern().table();
    let names = |table: &Capabilities| -> Vec<(Group, &'static str)> {
        table
            .lines()
            .iter()
            .map(|line| (line.group, line.name))
            .collect()
    };
    assert_eq!(
        names(&table),
        names(&modern),
        "the same lines on every machine"
    );
}

#[test]
fn live_this_machine_has_the_same_lines_and_knows_its_release() {
    let table = Capabilities::of_this_machine();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = &table.get(Group::Kernel, "version").unwrap().found;
    assert_eq!(version, &format!("Linux {}", release.trim()));
    assert_eq!(table.lines().len(), Fake::modern().table().lines().len());
    let exists = Path::new("/sys/kernel/btf/vmlinux").exists();
    assert_eq!(
        state(&table, Group::Kernel, "btf") == State::Available,
        exists
    );
}
