// SPDX-License-Identifier: Apache-2.0
//! Reports on a world of a few cgroups, and compared with a naive model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::generations::PageType;
use crate::workingset::Histogram;
use crate::workingset::{NO_UPPER_BOUND_MS, Slice};

/// Births and pages (anon, file) of the generations of one cgroup on one node, youngest first.
type Slices = Vec<(u64, [u64; 2])>;
/// One of them: path, node, generations.
type Entry<'a> = (&'a str, u32, &'a [(u64, [u64; 2])]);

/// Cgroups by path: `/` is above all others, `/a` above `/a/b`.
#[derive(Clone, Default)]
struct Tree {
    now_ms: u64,
    lruvecs: BTreeMap<(String, u32), Slices>,
    agings: Vec<(String, u32)>,
    refuses_aging: bool,
}

impl Tree {
    fn new(now_ms: u64, lruvecs: &[Entry<'_>]) -> Tree {
        let entry = |(path, node, slices): &Entry<'_>| ((path.to_string(), *node), slices.to_vec());
        Tree {
            now_ms,
            lruvecs: lruvecs.iter().map(entry).collect(),
            ..Tree::default()
        }
    }
}

impl Lruvecs for Tree {
    type Group = String;

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn subtree(&self, root: Option<&String>) -> Vec<String> {
        let below = |path: &String| match root.map(String::as_str) {
            None | Some("/") => true,
            Some(root) => path == root || path.starts_with(&format!("{root}/")),
        };
        let mut paths: Vec<String> = self.lruvecs.keys().map(|(path, _)| path.clone()).collect();
        paths.retain(below);
        paths.dedup();
        paths
    }

    fn youngest_birth_ms(&self, group: &String, node: u32) -> Option<u64> {
        let slices = self.lruvecs.get(&(group.clone(), node))?;
        slices.first().map(|(birth_ms, _)| *birth_ms)
    }

    fn age(&mut self, group: &String, node: u32) {
        if self.refuses_aging {
            return;
        }
        self.agings.push((group.clone(), node));
        if let Some(slices) = self.lruvecs.get_mut(&(group.clone(), node)) {
            slices.insert(0, (self.now_ms, [0; 2]));
        }
    }

    fn add_ages(&self, group: &String, node: u32, oldest: OldestPages, into: &mut Histogram) {
        let slices = &self.lruvecs[&(group.clone(), node)];
        for page_type in PageType::ALL {
            let slices = slices.iter().map(|(birth_ms, pages)| Slice {
                birth_ms: *birth_ms,
                pages: pages[page_type as usize],
                drained_pages: 0,
            });
            into.add_generations(page_type, slices, self.now_ms, oldest);
        }
    }

    fn unit_bytes(&self) -> u64 {
        4096
    }
}

fn reports(nodes: &[u32]) -> Reports<String> {
    let root = Some("/".to_owned());
    Reports::new(
        nodes.iter().copied(),
        root,
        Tick::default(),
        OldestPages::AtLeast,
    )
}

fn node(file: NodeFile) -> File<String> {
    File::Node(0, file)
}

fn group(path: &str, file: GroupFile) -> File<String> {
    File::Group(path.to_owned(), file)
}

impl Reports<String> {
    fn put(&mut self, file: &File<String>, text: &str, world: &Tree) {
        self.write(file, text.as_bytes(), world).unwrap();
    }
}

/// Generations with ages of 0.1, 5, 20 and 60 s, bins of 1, 2 and 10 s: the shares of the
/// histogram's own test, read through the files.
#[test]
fn golden_text_of_a_node() {
    let slices: &[(u64, [u64; 2])] = &[
        (99_900, [100, 0]),
        (95_000, [4900, 0]),
        (80_000, [3000, 3]),
        (40_000, [777, 0]),
    ];
    let mut world = Tree::new(100_000, &[("/", 0, slices)]);
    let mut reports = reports(&[0]);
    let page_age = node(NodeFile::PageAge);
    assert_eq!(reports.read(&page_age, &mut world).unwrap(), "");
    reports.put(&node(NodeFile::PageAgeIntervals), "1000,2000,10000", &world);
    reports.put(&node(NodeFile::RefreshInterval), "200", &world);
    let text = reports.read(&page_age, &mut world).unwrap();
    assert_eq!(
        text,
        "1000 anon=4096000 file=0\n2000 anon=4096000 file=0\n10000 anon=16384000 file=4096\n\
         18446744073709551615 anon=11374592 file=8192\n"
    );
    assert!(
        world.agings.is_empty(),
        "a birth of 100 ms ago is young enough"
    );
    assert_eq!(
        reports
            .read(&node(NodeFile::PageAgeIntervals), &mut world)
            .unwrap(),
        "1000,2000,10000\n"
    );
    assert_eq!(
        reports
            .read(&node(NodeFile::RefreshInterval), &mut world)
            .unwrap(),
        "200\n"
    );
    // Switched off again: the report is freed.
    reports.put(&node(NodeFile::RefreshInterval), "0", &world);
    assert_eq!(reports.read(&page_age, &mut world).unwrap(), "");
}

#[test]
fn unset_intervals_leave_the_last_line_alone() {
    let mut world = Tree::new(9000, &[("/", 0, &[(8999, [1, 2])])]);
    let mut reports = reports(&[0]);
    assert_eq!(
        reports
            .read(&node(NodeFile::PageAgeIntervals), &mut world)
            .unwrap(),
        "\n"
    );
    reports.put(&node(NodeFile::RefreshInterval), "1000", &world);
    assert_eq!(
        reports.read(&node(NodeFile::PageAge), &mut world).unwrap(),
        "18446744073709551615 anon=4096 file=8192\n"
    );
}

#[test]
fn a_cgroup_counts_what_is_below_it_and_only_on_its_nodes() {
    let mut world = Tree::new(
        50_000,
        &[
            ("/", 0, &[(49_900, [1, 0])]),
            ("/a", 0, &[(49_900, [10, 0])]),
            ("/a/b", 0, &[(49_900, [0, 100])]),
            ("/a/b", 1, &[(49_900, [1000, 0])]),
            ("/ab", 0, &[(49_900, [10_000, 0])]),
        ],
    );
    let mut reports = reports(&[0, 1]);
    let interval = group("/a", GroupFile::RefreshInterval);
    reports.put(&interval, "N0=5000", &world);
    assert_eq!(
        reports.read(&interval, &mut world).unwrap(),
        "N0=5000 N1=0 \n"
    );
    let page_age = group("/a", GroupFile::PageAge);
    let text = reports.read(&page_age, &mut world).unwrap();
    assert_eq!(text, "N0\n18446744073709551615 anon=40960 file=409600\n");
    reports.put(&interval, "N1=5000", &world);
    let text = reports.read(&page_age, &mut world).unwrap();
    assert_eq!(
        text,
        "N0\n18446744073709551615 anon=40960 file=409600\n\
         N1\n18446744073709551615 anon=4096000 file=0\n"
    );
    assert_eq!(
        reports
            .read(&group("/ab", GroupFile::PageAge), &mut world)
            .unwrap(),
        ""
    );
}

#[test]
fn the_time_stamp_is_the_oldest_birth() {
    // `/cold` was aged 4 s ago, and is not aged again before 5 s: the report expires at that time.
    let mut world = Tree::new(
        20_000,
        &[
            ("/", 0, &[(20_000, [0; 2])]),
            ("/cold", 0, &[(16_000, [5, 0])]),
        ],
    );
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "5000", &world);
    let page_age = node(NodeFile::PageAge);
    reports.read(&page_age, &mut world).unwrap();
    world.now_ms = 20_999;
    world.lruvecs.get_mut(&("/cold".to_owned(), 0)).unwrap()[0].1 = [6, 0];
    let text = reports.read(&page_age, &mut world).unwrap();
    assert!(text.contains("anon=20480 "), "still valid: {text}");
    world.now_ms = 21_000;
    let text = reports.read(&page_age, &mut world).unwrap();
    assert!(text.contains("anon=24576 "), "{text}");
    assert_eq!(world.agings, [("/cold".to_owned(), 0)]);
}

#[test]
fn readers_of_parents_and_children_share_one_aging() {
    let mut world = Tree::new(
        30_000,
        &[
            ("/", 0, &[(0, [0; 2])]),
            ("/a", 0, &[(0, [7, 0])]),
            ("/a/b", 0, &[(0, [9, 0])]),
        ],
    );
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "1000", &world);
    for path in ["/a", "/a/b"] {
        reports.put(&group(path, GroupFile::RefreshInterval), "N0=1000", &world);
    }
    for _ in 0..5 {
        reports
            .read(&group("/a/b", GroupFile::PageAge), &mut world)
            .unwrap();
        reports.read(&node(NodeFile::PageAge), &mut world).unwrap();
        reports
            .read(&group("/a", GroupFile::PageAge), &mut world)
            .unwrap();
    }
    world.agings.sort();
    let once: Vec<_> = ["/", "/a", "/a/b"].map(|path| (path.to_owned(), 0)).into();
    assert_eq!(world.agings, once);
}

#[test]
fn new_bins_count_at_once_and_age_nothing() {
    let mut world = Tree::new(9000, &[("/", 0, &[(8500, [4, 0]), (6500, [2, 0])])]);
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "60000", &world);
    reports.put(&group("/", GroupFile::RefreshInterval), "N0=60000", &world);
    reports.read(&node(NodeFile::PageAge), &mut world).unwrap();
    reports.put(&node(NodeFile::PageAgeIntervals), "500", &world);
    let text = reports.read(&node(NodeFile::PageAge), &mut world).unwrap();
    assert!(text.starts_with("500 anon=16384 file=0\n"), "{text}");
    assert!(world.agings.is_empty());
    // A refused list leaves the previous one unchanged.
    let error = reports
        .write(&node(NodeFile::PageAgeIntervals), b"5,5", &world)
        .unwrap_err();
    assert_eq!(error.errno(), 22);
    assert_eq!(
        reports
            .read(&node(NodeFile::PageAgeIntervals), &mut world)
            .unwrap(),
        "500\n"
    );
}

#[test]
fn errors_of_files() {
    let mut world = Tree::new(0, &[("/a", 0, &[(0, [0; 2])])]);
    let mut reports = reports(&[0]);
    let mut errno = |file: &File<String>, text: &str| {
        reports
            .write(file, text.as_bytes(), &world)
            .map_err(|error| error.errno())
    };
    let interval = group("/a", GroupFile::RefreshInterval);
    for (text, result) in [
        ("N0", Err(22)),
        ("N1=5", Err(22)),
        ("0=5", Err(22)),
        ("N0=x", Err(22)),
        ("N0=4294967296", Err(34)),
        ("N0=5", Ok(())),
    ] {
        assert_eq!(errno(&interval, text), result, "{text:?}");
    }
    assert_eq!(errno(&group("/a", GroupFile::PageAge), "N0=1"), Err(13));
    assert_eq!(errno(&node(NodeFile::PageAge), "1"), Err(13));
    assert_eq!(
        errno(&group("/gone", GroupFile::RefreshInterval), "N0=1"),
        Err(19)
    );
    assert_eq!(
        errno(&File::Node(1, NodeFile::RefreshInterval), "1"),
        Err(22)
    );
    assert_eq!(errno(&node(NodeFile::ReportThreshold), "-1"), Err(22));
    assert_eq!(
        errno(&node(NodeFile::RefreshInterval), "99999999999"),
        Err(34)
    );
    let gone = group("/gone", GroupFile::PageAge);
    assert_eq!(reports.read(&gone, &mut world), Err(ReportError::GroupGone));
}

#[test]
fn a_cgroup_may_go_while_it_is_read() {
    let mut world = Tree::new(9000, &[("/", 0, &[(0, [1, 0])]), ("/a", 0, &[(0, [2, 0])])]);
    // The cgroup exists, but no longer has a lruvec on the node.
    world.lruvecs.insert(("/a/b".to_owned(), 0), Vec::new());
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "1000", &world);
    let text = reports.read(&node(NodeFile::PageAge), &mut world).unwrap();
    assert!(text.contains("anon=12288 "), "{text}");
    let page_age = group("/a", GroupFile::PageAge);
    reports.put(&group("/a", GroupFile::RefreshInterval), "N0=1000", &world);
    world.lruvecs.remove(&("/a".to_owned(), 0));
    world.lruvecs.remove(&("/a/b".to_owned(), 0));
    assert_eq!(
        reports.read(&page_age, &mut world),
        Err(ReportError::GroupGone)
    );
    reports.retain_groups(|path| path != "/a");
    assert!(reports.groups.is_empty());
}

#[test]
fn a_node_that_goes_offline_takes_its_settings_with_it() {
    let mut world = Tree::new(0, &[("/a", 0, &[(0, [1, 0])]), ("/a", 1, &[(0, [1, 0])])]);
    let mut reports = reports(&[0, 1]);
    let interval = group("/a", GroupFile::RefreshInterval);
    reports.put(&interval, "N1=500", &world);
    reports.set_online(1, false);
    let error = reports.write(&interval, b"N1=500", &world).unwrap_err();
    assert_eq!(error, ReportError::NodeOffline { node: 1 });
    assert_eq!(reports.read(&interval, &mut world).unwrap(), "N0=0 \n");
    reports.set_online(1, true);
    assert_eq!(reports.read(&interval, &mut world).unwrap(), "N0=0 N1=0 \n");
}

// ---- aging thread

#[test]
fn the_aging_thread_sleeps_until_something_expires() {
    let mut world = Tree::new(1000, &[("/", 0, &[(0, [1, 0])]), ("/a", 0, &[(0, [1, 0])])]);
    let mut reports = reports(&[0]);
    reports.age(&mut world);
    assert_eq!(reports.next_aging_ms(), None, "nothing is on");
    reports.put(&node(NodeFile::RefreshInterval), "8000", &world);
    assert_eq!(reports.next_aging_ms(), Some(1000), "woken");
    reports.age(&mut world);
    // The births are at 0, less than 8 s ago: the report expires at 8 s.
    assert_eq!(reports.next_aging_ms(), Some(8000));
    world.now_ms = 8000;
    reports.age(&mut world);
    assert_eq!(world.agings.len(), 2);
    assert_eq!(reports.next_aging_ms(), Some(16_000));
}

#[test]
fn a_shorter_interval_wakes_a_sleeping_thread() {
    let mut world = Tree::new(1000, &[("/", 0, &[(1000, [1, 0])])]);
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "600000", &world);
    reports.age(&mut world);
    assert_eq!(reports.next_aging_ms(), Some(601_000));
    world.now_ms = 5000;
    reports.put(&node(NodeFile::RefreshInterval), "700000", &world);
    assert_eq!(reports.next_aging_ms(), Some(601_000), "longer: no hurry");
    reports.put(&node(NodeFile::RefreshInterval), "2000", &world);
    assert_eq!(reports.next_aging_ms(), Some(5000));
    reports.age(&mut world);
    assert_eq!(reports.next_aging_ms(), Some(7000));
}

#[test]
fn a_refresh_that_fails_does_not_spin() {
    let mut world = Tree::new(50_000, &[("/", 0, &[(0, [1, 0])])]);
    world.refuses_aging = true;
    let mut reports = reports(&[0]);
    for (interval, sleep_ms) in [("8000", 1000), ("40", 10)] {
        reports.put(&node(NodeFile::RefreshInterval), interval, &world);
        for _ in 0..3 {
            reports.age(&mut world);
            assert_eq!(
                reports.next_aging_ms(),
                Some(world.now_ms + sleep_ms),
                "{interval}"
            );
            world.now_ms += sleep_ms;
        }
    }
}

#[test]
fn the_thread_refreshes_receivers_in_their_own_bins() {
    let mut world = Tree::new(20_000, &[("/", 0, &[(19_900, [3, 0]), (15_000, [4, 0])])]);
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::PageAgeIntervals), "1000,2000", &world);
    let bins: Intervals = "10s".parse().unwrap();
    assert!(
        reports
            .set_receiver(7, 3, bins.clone(), 1000, 0, 20_000)
            .is_err()
    );
    reports.set_receiver(7, 0, bins, 1000, 500, 20_000).unwrap();
    assert_eq!(reports.next_aging_ms(), Some(20_000));
    reports.age(&mut world);
    assert_eq!(reports.next_aging_ms(), Some(20_900));
    assert_eq!(
        reports
            .read(&node(NodeFile::PageAgeIntervals), &mut world)
            .unwrap(),
        "1000,2000\n",
        "the node keeps its own"
    );
    let (of_node, histogram) = reports.request(7, &mut world).unwrap();
    assert_eq!(of_node, 0);
    assert_eq!(
        histogram.to_string(),
        "10000 anon=28672 file=0\n18446744073709551615 anon=0 file=0\n"
    );
    assert!(reports.request(8, &mut world).is_none());
    world.now_ms = 21_000;
    assert_eq!(
        reports.pressure(None, 0, 5, &mut world),
        [Notice::Receiver(7)]
    );
}

#[test]
fn a_receiver_without_an_interval_gets_a_report_on_request() {
    let mut world = Tree::new(20_000, &[("/", 0, &[(100, [3, 0])])]);
    let mut reports = reports(&[0]);
    reports
        .set_receiver(1, 0, "1s".parse().unwrap(), 0, 0, 20_000)
        .unwrap();
    assert_eq!(reports.next_aging_ms(), None);
    let (_, histogram) = reports.request(1, &mut world).unwrap();
    assert_eq!(histogram.total(), [3 * 4096, 0]);
    assert!(world.agings.is_empty());
}

// ---- notification

/// Nobody refreshes, so the report only grows older: the posted code would notify at every pass.
#[test]
fn pressure_is_told_once_a_threshold() {
    let mut world = Tree::new(0, &[("/", 0, &[(0, [1, 0])])]);
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "1000", &world);
    assert!(
        reports.pressure(None, 0, 3, &mut world).is_empty(),
        "no threshold"
    );
    reports.put(&node(NodeFile::ReportThreshold), "2000", &world);
    reports.read(&node(NodeFile::PageAge), &mut world).unwrap();
    let mut told = Vec::new();
    for at_ms in (0..10_000).step_by(100) {
        world.now_ms = at_ms;
        assert!(
            reports
                .pressure(None, 0, DEF_PRIORITY, &mut world)
                .is_empty()
        );
        if !reports
            .pressure(None, 0, DEF_PRIORITY - 1, &mut world)
            .is_empty()
        {
            told.push(at_ms);
        }
    }
    assert_eq!(told, [2000, 4000, 6000, 8000]);
}

#[test]
fn a_fresh_report_is_not_worth_telling() {
    let mut world = Tree::new(0, &[("/", 0, &[(0, [1, 0])])]);
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "1000", &world);
    reports.put(&node(NodeFile::ReportThreshold), "2000", &world);
    for at_ms in (0..20_000).step_by(500) {
        world.now_ms = at_ms;
        reports.age(&mut world);
        assert!(
            reports.pressure(None, 0, 0, &mut world).is_empty(),
            "at {at_ms}"
        );
    }
}

#[test]
fn a_global_reclaim_tells_the_node_and_a_limit_its_cgroup() {
    let mut world = Tree::new(
        50_000,
        &[
            ("/", 0, &[(0, [1, 0])]),
            ("/a", 0, &[(0, [1, 0])]),
            ("/b", 0, &[(0, [1, 0])]),
        ],
    );
    let mut reports = reports(&[0]);
    reports.put(&node(NodeFile::RefreshInterval), "1000", &world);
    reports.put(&node(NodeFile::ReportThreshold), "1000", &world);
    reports.put(&group("/a", GroupFile::RefreshInterval), "N0=1000", &world);
    reports.put(&group("/a", GroupFile::ReportThreshold), "N0=1000", &world);
    // No cgroup at all, and the root by name: both mean the machine.
    assert_eq!(reports.pressure(None, 0, 1, &mut world), [Notice::Node(0)]);
    world.now_ms += 1000;
    let root = "/".to_owned();
    assert_eq!(
        reports.pressure(Some(&root), 0, 1, &mut world),
        [Notice::Node(0)]
    );
    let (a, b) = ("/a".to_owned(), "/b".to_owned());
    assert_eq!(
        reports.pressure(Some(&a), 0, 1, &mut world),
        [Notice::Group(a.clone())]
    );
    assert!(reports.pressure(Some(&a), 0, 1, &mut world).is_empty());
    assert!(reports.pressure(Some(&b), 0, 1, &mut world).is_empty());
    assert!(reports.pressure(Some(&a), 1, 1, &mut world).is_empty());
}

// ---- against a naive model

/// Page by page, with the age in the middle of each page's share of the generation's interval.
fn naive_bins(slices: &Slices, page_type: usize, now_ms: u64, bounds: &[u64]) -> Vec<f64> {
    let mut bins = vec![0.0; bounds.len() + 1];
    let mut start_ms = now_ms;
    for (birth_ms, pages) in slices {
        let end_ms = (*birth_ms).min(start_ms);
        let count = pages[page_type];
        for page in 0..count {
            let part = (page as f64 + 0.5) / count as f64;
            let age_ms = (now_ms - start_ms) as f64 + part * (start_ms - end_ms) as f64;
            let bin = bounds.iter().position(|bound| age_ms <= *bound as f64);
            bins[bin.unwrap_or(bounds.len())] += 1.0;
        }
        start_ms = end_ms;
    }
    bins
}

prop_compose! {
    fn any_slices()(
        gaps in prop::collection::vec(0u64..20_000, 1..5),
        pages in prop::collection::vec((0u64..300, 0u64..300), 4),
    ) -> Slices {
        let mut birth_ms = 100_000;
        gaps.into_iter().zip(pages).map(|(gap, (anon, file))| {
            birth_ms -= gap.min(birth_ms);
            (birth_ms, [anon, file])
        }).collect()
    }
}

proptest! {
    /// The report of a subtree is the sum of its lruvecs: it agrees page by page up to one page per
    /// generation and bound for rounding, and no page is lost.
    #[test]
    fn reports_agree_with_counting_pages(
        lruvecs in prop::collection::vec(any_slices(), 1..5),
        bounds in prop::collection::btree_set(1u64..80, 0..8),
        later_ms in 0u64..5000,
    ) {
        let now_ms = 100_000 + later_ms;
        let bounds: Vec<u64> = bounds.into_iter().map(|b| b * 1000).collect();
        let mut world = Tree { now_ms, ..Tree::default() };
        for (index, slices) in lruvecs.iter().enumerate() {
            world.lruvecs.insert((format!("/{index}"), 0), slices.clone());
        }
        let mut reports = reports(&[0]);
        let list: Vec<String> = bounds.iter().map(u64::to_string).collect();
        reports.put(&node(NodeFile::PageAgeIntervals), &list.join(","), &world);
        // Longer than any age: no aging, so the generations stay as they are.
        reports.put(&node(NodeFile::RefreshInterval), "1000000", &world);
        let text = reports.read(&node(NodeFile::PageAge), &mut world).unwrap();
        let histogram: Histogram = text.parse().unwrap();
        prop_assert_eq!(histogram.bins().last().unwrap().upper_ms, NO_UPPER_BOUND_MS);
        for page_type in 0..2 {
            let total: u64 = lruvecs.iter().flatten().map(|(_, pages)| pages[page_type]).sum();
            prop_assert_eq!(histogram.total()[page_type], total * 4096);
            let mut naive = vec![0.0; bounds.len() + 1];
            for slices in &lruvecs {
                let bins = naive_bins(slices, page_type, now_ms, &bounds);
                naive.iter_mut().zip(bins).for_each(|(sum, bin)| *sum += bin);
            }
            let (mut is, mut wanted) = (0.0, 0.0);
            for (index, bin) in histogram.bins().iter().enumerate() {
                is += (bin.amounts[page_type] / 4096) as f64;
                wanted += naive[index];
                // One page per generation and bound passed: rounding moves pages to the older side.
                let slack = (lruvecs.len() * 4 * (index + 1)) as f64;
                prop_assert!((is - wanted).abs() <= slack, "bin {index}: {is} {wanted}");
            }
        }
    }

    /// Whatever is written and whenever it is read, there is no panic, and at most one generation
    /// per lruvec and interval.
    #[test]
    fn one_generation_an_interval(
        steps in prop::collection::vec((0u64..3000, 0usize..6), 1..60),
    ) {
        let mut world = Tree::new(0, &[("/", 0, &[(0, [1, 1])]), ("/a", 0, &[(0, [1, 1])])]);
        let mut reports = reports(&[0]);
        reports.put(&node(NodeFile::RefreshInterval), "2000", &world);
        reports.put(&group("/a", GroupFile::RefreshInterval), "N0=2000", &world);
        for (step_ms, action) in steps {
            world.now_ms += step_ms;
            match action {
                0 => reports.age(&mut world),
                1 => { reports.read(&group("/a", GroupFile::PageAge), &mut world).unwrap(); }
                2 => { reports.pressure(None, 0, 3, &mut world); }
                _ => { reports.read(&node(NodeFile::PageAge), &mut world).unwrap(); }
            }
        }
        for slices in world.lruvecs.values() {
            for pair in slices.windows(2) {
                prop_assert!(pair[0].0 - pair[1].0 >= 2000);
            }
        }
    }
}
