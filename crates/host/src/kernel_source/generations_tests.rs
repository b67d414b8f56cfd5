// SPDX-License-Identifier: Apache-2.0
//! Tests on recorded output of kernels, and on fake trees.

use super::*;
use crate::cgroup::{TreeLimits, Version};

/// Output of a 6.12 guest, after agings 30 s and 5 s before the last one.
const AGED: &str = "\
memcg     1 /
 node     0
          4      30000          7          9 
          5      30000          0          0 
          6       5000          0          0 
          7          1          0          0 
memcg     5 /web
 node     0
         10      90000        100         50 
         11      30011        300          0 
         12       5003        200          8 
         13          2          0          0 
memcg     6 /web/worker
 node     0
          3      30012         10          0 
          4       5004          0          0 
          5          2          0          0 
memcg     7 /website
 node     0
          0       1000       1000          0 
          1       1000       1000          0 
";

fn fake(enabled: &str, table: Option<&str>) -> (tempfile::TempDir, Roots, Hierarchy) {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::below(dir.path());
    let put = |path: std::path::PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put(roots.sys.join("kernel/mm/lru_gen/enabled"), enabled);
    if let Some(table) = table {
        put(roots.sys.join("kernel/debug/lru_gen"), table);
    }
    let mount = dir.path().join("cgroup");
    for group in ["web/worker", "website", "other"] {
        std::fs::create_dir_all(mount.join(group)).unwrap();
    }
    let hierarchy = Hierarchy::at(Version::V2, mount);
    (dir, roots, hierarchy)
}

fn listed(hierarchy: &Hierarchy, path: &str) -> Targets {
    Targets::Listed(vec![Subject::Cgroup(
        Cgroup::open(hierarchy, path).unwrap(),
    )])
}

fn intervals(text: &str) -> Intervals {
    text.parse().unwrap()
}

#[test]
fn what_can_be_told_apart_within_a_window() {
    let default = intervals("1s,5s,30s,2m,10m");
    assert_eq!(lead_times(&default, 30_000), [30_000, 5_000]);
    assert_eq!(lead_times(&default, 5_000), [5_000, 1_000]);
    assert_eq!(lead_times(&default, 1_000), [1_000]);
    assert_eq!(lead_times(&default, 900), [0u64; 0]);
    assert_eq!(lead_times(&default, 600_000), [600_000, 30_000]);
}

#[test]
fn a_cgroup_is_the_sum_of_those_below_it_by_birth_of_generations() {
    let (_dir, roots, hierarchy) = fake("0x0007\n", Some(AGED));
    let targets = listed(&hierarchy, "/web");
    let all = intervals("1s,5s,30s,2m");
    let mut source =
        GenerationSource::open(&roots, &targets, &all, OldestPages::AtLeast, 30_000).unwrap();
    assert_eq!(source.lead_times_ms(), [30_000, 5_000]);
    // As if it had just aged: a command would overwrite this plain file.
    source.aged_ns = Some(monotonic_ns());
    let reports = source.look().unwrap();
    let histogram = reports[0].histogram().to_string();
    let page = kernel_page_bytes();
    // Generation 12: found by the last aging, so accessed less than 5 s ago. 11: less than 30 s
    // ago. 10: at least 30 s old; for the worker's oldest only at least 5 s is certain.
    assert_eq!(
        histogram,
        format!(
            "5000 anon={} file={}\n30000 anon={} file=0\n{} anon={} file={}\n",
            200 * page,
            8 * page,
            310 * page,
            u64::MAX,
            100 * page,
            50 * page
        )
    );
    assert_eq!(reports[0].resident_bytes, [610 * page, 58 * page]);
    assert!(source.caveats()[0].contains("at most 4 a node"));
}

#[test]
fn without_room_for_aging_the_generations_are_taken_as_they_are() {
    let (_dir, roots, hierarchy) = fake("0x0007\n", Some(AGED));
    let all = Targets::AllCgroups {
        hierarchy,
        limits: TreeLimits {
            depth_max: 1,
            ..TreeLimits::default()
        },
    };
    let bounds = intervals("10s,60s");
    let mut source =
        GenerationSource::open(&roots, &all, &bounds, OldestPages::Unbounded, 100).unwrap();
    let reports = source.look().unwrap();
    let names: Vec<_> = reports.iter().map(|report| &report.name).collect();
    assert_eq!(names, ["/", "/web", "/website"]);
    // /web: 12 is below 10 s; of 11, the part from 5.003 to 10 s in 5.003 to 30.011. The oldest
    // are at least 30 s and 5 s old, and so go into the last bin when that is requested.
    let bins = reports[1].nodes[0].1.bins();
    let young = 200 + 300 * (10_000 - 5_003) / (30_011 - 5_003);
    assert_eq!(bins[0].amounts[0], young * kernel_page_bytes());
    assert_eq!(bins[2].amounts[0], 110 * kernel_page_bytes());
    assert_eq!(
        std::fs::read_to_string(roots.sys.join("kernel/debug/lru_gen")).unwrap(),
        AGED,
        "nothing was written"
    );
    assert!(source.caveats()[0].contains("nothing was aged"));
}

#[test]
fn aging_names_every_lruvec_of_the_targets() {
    let (_dir, roots, hierarchy) = fake("0x0007\n", Some(AGED));
    let targets = listed(&hierarchy, "/web/worker");
    let bounds = intervals("1s");
    let mut source =
        GenerationSource::open(&roots, &targets, &bounds, OldestPages::AtLeast, 1_000).unwrap();
    source.prepare().unwrap();
    let file = std::fs::read_to_string(roots.sys.join("kernel/debug/lru_gen")).unwrap();
    assert!(file.starts_with("+ 6 0 5 200 1"), "{file}");
    // Another aging so soon would only use up a generation.
    source.prepare().unwrap();
    assert_eq!(source.agings, 1);
}

#[test]
fn what_is_missing_is_said() {
    let open = |enabled, table, path: &str| {
        let (_dir, roots, hierarchy) = fake(enabled, table);
        let targets = listed(&hierarchy, path);
        let bounds = intervals("1s");
        GenerationSource::open(&roots, &targets, &bounds, OldestPages::AtLeast, 1_000)
            .unwrap_err()
            .to_string()
    };
    assert!(open("0x0000\n", Some(AGED), "/web").contains("switched off"));
    assert!(open("0x0007\n", None, "/web").contains("mount -t debugfs"));
    assert!(open("0x0007\n", Some(AGED), "/other").contains("no generations of cgroup /other"));
    let roots = Roots {
        sys: Roots::below(std::path::Path::new("/nowhere")).sys,
        ..Roots::default()
    };
    let own = Targets::Listed(vec![Subject::Process {
        pid: std::process::id(),
        start_ticks: 0,
        comm: "own".into(),
    }]);
    let bounds = intervals("1s");
    let open = |targets: &Targets| {
        GenerationSource::open(&roots, targets, &bounds, OldestPages::AtLeast, 1_000)
            .unwrap_err()
            .to_string()
    };
    assert!(open(&own).contains("name the cgroup of process"));
    let none = Targets::Listed(Vec::new());
    assert!(open(&none).contains("no multi-gen LRU"));
}
