// SPDX-License-Identifier: Apache-2.0
//! Golden output, and that our output can be parsed again.

use agewise_policy::generations::PageType;
use agewise_policy::sample::Margin;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::*;

const MIB: u64 = 1 << 20;

fn histogram(anon_mib: u64, file_mib: u64) -> Histogram {
    let intervals: Intervals = "1s,5s".parse().unwrap();
    let mut histogram = Histogram::new(&intervals);
    for (page_type, mib) in [(PageType::Anon, anon_mib), (PageType::File, file_mib)] {
        for (age_ms, part) in [(500, 2), (3000, 1), (9000, 1)] {
            histogram.add_at_least(page_type, mib * part, age_ms, OldestPages::AtLeast);
        }
    }
    histogram.scaled(MIB)
}

fn reports() -> Vec<SubjectReport> {
    let cgroup = SubjectReport {
        name: "/system.slice/database,\"main\".service".into(),
        is_cgroup: true,
        processes: 3,
        seen_processes: 2,
        refused_processes: 1,
        nodes: vec![(0, histogram(100, 25)), (1, histogram(0, 1))],
        resident_bytes: [400 * MIB, 104 * MIB],
        unseen_bytes: [90 * MIB, 0],
        swapped_bytes: 17 * MIB,
        unmapped_cache_bytes: Some(3 * MIB),
        shmem_bytes: None,
        refaulted_bytes: 8192,
        counted_refaulted_bytes: None,
        followed_bytes: 63 * MIB,
        margins_bytes: [[5e6, 1e6], [2e6, 1e6], [3e6, 0.0]]
            .map(|bin| {
                bin.map(|bytes| Margin {
                    below: bytes,
                    above: bytes,
                })
            })
            .to_vec(),
        observed_ms: 9000,
        guest_hosts: vec![42, 43],
        troubles: vec!["17 (a\nb): not permitted".to_owned()],
        gone: None,
        mapped_bytes: [0; 2],
        largest_bytes: [0; 2],
    };
    let bounds: Intervals = "1s,5s".parse().unwrap();
    let process = SubjectReport {
        gone: Some("the process has exited".to_owned()),
        mapped_bytes: [0; 2],
        largest_bytes: [0; 2],
        ..SubjectReport::new(
            "42 (sleep)".into(),
            false,
            &[0, 1],
            &[bounds.clone(), bounds],
        )
    };
    vec![cgroup, process]
}

fn cost() -> CostReport {
    CostReport {
        scans: 10,
        first_scan_cpu_ms: 12.5,
        cpu_ms_per_scan: 1.5,
        walk_ms_per_scan: 0.25,
        classify_ms_per_scan: 0.125,
        clear_ms_per_scan: 1.0,
        cpu_ms_per_gib: 3.0,
        walk_ms_per_gib: 0.5,
        classify_ms_per_gib: 0.25,
        clear_ms_per_gib: 2.0,
        core_percent: 0.15,
        scan_interval_ms: 1000,
        agemap_bytes: 139_264,
        agemap_bytes_per_page: 1.0625,
        ..CostReport::default()
    }
}

fn of_agent(cost: &CostReport) -> Look<'_> {
    Look::Agent(AgentLook {
        cost,
        truncated: false,
    })
}

fn printed(format: Format, cut: usize, truncated: bool) -> String {
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, format);
    printer.now_ms = || 1_700_000_000_000;
    let look = Look::Agent(AgentLook {
        cost: &cost(),
        truncated,
    });
    printer.print(&reports(), &look, cut).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text() {
    insta::assert_snapshot!(printed(Format::Text, 0, false));
}

#[test]
fn the_last_bound_can_be_a_number() {
    let last = |format, number| {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, format);
        printer.last_bound_ms = number;
        printer.print(&reports(), &of_agent(&cost()), 0).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.contains("18446744073709551615")
    };
    for format in [Format::Json, Format::Csv] {
        assert!(!last(format, None));
        assert!(last(format, Some(u64::MAX)));
    }
}

#[test]
fn text_has_no_histogram_of_nothing() {
    let bounds: Intervals = "1s,5s".parse().unwrap();
    let mount = SubjectReport {
        unmapped_cache_bytes: Some(4096),
        ..SubjectReport::new("/tmp.mount".into(), true, &[0], &[bounds])
    };
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, Format::Text);
    printer.print(&[mount], &of_agent(&cost()), 0).unwrap();
    let text = String::from_utf8(out).unwrap();
    let start = "# cgroup /tmp.mount\n# resident 0 B (anon 0 B, file 0 B), in swap 0 B, ";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains("no process maps: 4.0 KiB"), "{text}");
}

#[test]
fn text_says_what_was_cut() {
    let text = printed(Format::Text, 7, true);
    assert!(text.contains("# 7 more targets not shown"), "{text}");
    assert!(text.contains("# there are more cgroups"), "{text}");
}

#[test]
fn text_says_what_was_not_seen() {
    let print = |cost: &CostReport| {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, Format::Text);
        printer.print(&reports(), &of_agent(cost), 0).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(!print(&cost()).contains("not seen"));
    let text = print(&CostReport {
        unseen_processes: 3,
        unseen_cgroups: 2,
        ..cost()
    });
    assert!(text.contains("# not seen: 3 processes"), "{text}");
    assert!(text.contains(", 2 cgroups"), "{text}");
}

#[test]
fn text_says_what_of_the_page_cache_it_counts() {
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, Format::Text);
    let mut reports = reports();
    reports[0].shmem_bytes = Some(5 * MIB);
    reports[0].unmapped_cache_bytes = None;
    let cost = CostReport {
        cache_looks: 4,
        cache_ms_per_look: 2.5,
        cache_dropped: 7,
        cache_missed: 3,
        ..cost()
    };
    printer.print(&reports, &of_agent(&cost), 0).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("mapped or not; 5.0 MiB of anon are shared memory and tmpfs"),
        "{text}"
    );
    assert!(!text.contains("no process maps"), "{text}");
    let looks = "# page cache: 4 looks, 2.50 ms CPU each; 7 accesses lost; \
                 3 accesses missed at most\n";
    assert!(text.contains(looks), "{text}");
}

#[test]
fn json() {
    insta::assert_snapshot!(printed(Format::Json, 2, true));
}

#[test]
fn csv() {
    insta::assert_snapshot!(printed(Format::Csv, 0, false));
}

#[test]
fn a_second_csv_report_has_no_second_header() {
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, Format::Csv);
    for _ in 0..2 {
        printer.print(&reports(), &of_agent(&cost()), 0).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.matches("unix_ms").count(), 1);
}

#[test]
fn without_comments_the_text_is_that_of_the_source_document() {
    let text = printed(Format::Text, 1, true);
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .peekable();
    let mut nodes = Vec::new();
    while let Some(header) = lines.next() {
        let node: u32 = match header.strip_prefix('N') {
            Some(node) => node.parse().unwrap(),
            None => panic!("{header:?} is no node"),
        };
        let mut body = String::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('N')) {
            body += line;
            body += "\n";
        }
        nodes.push((node, body.trim_end().parse::<Histogram>().unwrap()));
    }
    assert_eq!(nodes, reports()[0].nodes);
}

#[test]
fn every_line_of_json_is_an_object() {
    for line in printed(Format::Json, 0, false).lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            value["record"].is_string() && value["unix_ms"].is_u64(),
            "{line}"
        );
    }
}

fn printed_of_the_kernel(format: Format, knows: Knows) -> String {
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, format);
    printer.now_ms = || 1_700_000_000_000;
    let caveats = ["ages by region".to_owned()];
    let look = Look::Kernel(KernelLook {
        source: "damon",
        knows,
        caveats: &caveats,
        cpu_ms: 12.5,
        core_percent: 0.125,
    });
    printer.print(&reports()[..1], &look, 3).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_source_of_the_kernels_says_how_coarse_it_is_and_nothing_it_does_not_know() {
    let text = printed_of_the_kernel(Format::Text, Knows::Processes);
    assert!(text.contains(", in swap 17.0 MiB; 3 processes\n"), "{text}");
    assert!(text.contains("# ages by region\n"), "{text}");
    assert!(text.contains("# 3 more targets not shown"), "{text}");
    assert!(!text.contains("page cache"), "{text}");
    let text = printed_of_the_kernel(Format::Text, Knows::Cgroups);
    assert!(text.contains("file 104.0 MiB)\n"), "{text}");

    let json = printed_of_the_kernel(Format::Json, Knows::Cgroups);
    let lines: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for unknown in ["processes", "swapped_bytes", "refaulted_bytes"] {
        assert!(lines[0][unknown].is_null(), "{unknown}: {}", lines[0]);
    }
    assert_eq!(lines[1]["source"], "damon");
    assert_eq!(lines[1]["caveats"][0], "ages by region");
    assert_eq!(lines[1]["targets_cut"], 3);
    let csv = printed_of_the_kernel(Format::Csv, Knows::Cgroups);
    let row = csv.lines().nth(1).unwrap();
    assert!(
        row.ends_with(",528482304,,3145728,,,,,,,,,,,94371840,0,,,,,42 43"),
        "{row}"
    );
}

#[test]
fn what_could_not_be_looked_at_is_not_known_rather_than_empty() {
    let print = |format, reports: &[SubjectReport]| {
        let mut out = Vec::new();
        let cost = CostReport {
            unseen_processes: 3,
            unseen_cgroups: 2,
            ..cost()
        };
        let mut printer = Printer::new(&mut out, format);
        printer.now_ms = || 1_700_000_000_000;
        printer.print(reports, &of_agent(&cost), 0).unwrap();
        String::from_utf8(out).unwrap()
    };
    let [mut report, _] = <[SubjectReport; 2]>::try_from(reports()).unwrap();
    report.name = "/web".into();
    (report.processes, report.seen_processes) = (0, 0);
    report.nodes = vec![(0, histogram(0, 0))];
    (report.resident_bytes, report.unseen_bytes) = ([0; 2], [0; 2]);
    report.margins_bytes = Vec::new();
    let text = print(Format::Text, std::slice::from_ref(&report));
    let expected = "# cgroup /web\n# resident memory and ages are not known: no process could be \
                    looked at, in swap 17.0 MiB; 0 processes\n";
    assert!(text.starts_with(expected), "{text}");
    let csv = print(Format::Csv, std::slice::from_ref(&report));
    let expected = "1700000000000,/web,cgroup,0,1000,,,,17825792,3145728,,,,,,,,,,,,,,0,3,2,42 43";
    assert_eq!(csv.lines().nth(1), Some(expected));
    let json = print(Format::Json, std::slice::from_ref(&report));
    let json: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    let null = |name: &str| json[name].is_null() && json.get(name).is_some();
    for unknown in [
        "resident_bytes",
        "anon_bytes",
        "file_bytes",
        "followed_bytes",
        "unseen_anon_bytes",
        "unseen_file_bytes",
        "refaulted_bytes",
    ] {
        assert!(null(unknown), "{unknown}: {json}");
    }
    let bin = json["nodes"][0]["bins"][0].as_object().unwrap();
    assert_eq!((bin.len(), &bin["upper_ms"]), (7, &1000.into()));
    assert_eq!(bin.values().filter(|value| value.is_null()).count(), 6);
    assert_eq!(json["swapped_bytes"], 17 * MIB);
    // The page cache shows what is charged to a cgroup, but not the memory of its processes.
    report.shmem_bytes = Some(MIB);
    report.resident_bytes = [MIB, 4 * MIB];
    let text = print(Format::Text, std::slice::from_ref(&report));
    let expected = "# resident not known (anon not known and not in the histogram, file 4.0 MiB), \
                    in swap";
    assert!(text.contains(expected), "{text}");
}
