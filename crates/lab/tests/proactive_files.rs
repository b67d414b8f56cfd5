// SPDX-License-Identifier: Apache-2.0
//! The proactive policies on the simulated machine's page cache.

use agewise_lab::experiment::machine_run::{MEASURES, Plan, run};
use agewise_lab::machine::Policy;
use agewise_lab::proactive::{ProactivePlan, Sight};
use agewise_lab::workload::library;
use agewise_lab::workload::spec::Workload;

fn measure(subject: &Workload, agent: Option<&str>, sight: Sight) -> impl Fn(&str) -> f64 + use<> {
    let plan = Plan {
        settings: vec!["cpus=2".to_owned(), "hit_ns=10000".to_owned()],
        proactive: agent.map(|spec| ProactivePlan {
            spec: spec.parse().unwrap(),
            sight,
            truth: true,
        }),
        ..Plan::of(subject.clone(), Policy::parse("mglru:7.2").unwrap(), 1)
    };
    let measured = run(&plan).unwrap();
    move |name| {
        let at = MEASURES.iter().position(|(known, _)| *known == name);
        measured[at.unwrap()]
    }
}

/// A file of 32 MiB, read through a descriptor or a mapping; only 40 % is ever read again.
fn reader(mapped: bool) -> String {
    format!(
        r#"
        description = "a reader"
        memory = "64MiB"
        cpus = 2
        [[file]]
        name = "data"
        size = "32MiB"
        readahead = false
        [[process]]
        name = "reader"
        area = [{{ name = "data", file = "data", mmap = {mapped} }}]
        phase = [{{ populate = ["data"], touches = 200000, think_ns = 200000, stream = [
            {{ area = "data", order = "uniform", to = 0.4, write = 0.0 }},
        ] }}]
        "#
    )
}

/// Unread pages are moved out one by one, mapped or not; pages in use stay, and the agent knows the
/// ages of both.
#[test]
fn cold_pages_of_files_leave() {
    for mapped in [false, true] {
        let subject = Workload::parse("reader", &reader(mapped)).unwrap();
        let before = measure(&subject, None, Sight::PageCache);
        let agent = Some("age:4s/4s,backoff=off");
        let after = measure(&subject, agent, Sight::PageCache);
        let saved = 1.0 - after("resident_mean_kib") / before("resident_mean_kib");
        assert!(saved > 0.35, "mapped {mapped}: {saved}");
        let more = after("file_in") - before("file_in");
        assert!(
            more / before("file_in") < 0.02,
            "mapped {mapped}: {more} pages read again"
        );
        assert!(
            after("agent_misplaced") < 0.05,
            "mapped {mapped}: {}",
            after("agent_misplaced")
        );
    }
    // Page tables alone do not show pages read through a descriptor.
    let subject = Workload::parse("reader", &reader(false)).unwrap();
    let blind = measure(&subject, Some("age:4s/4s"), Sight::PageTables);
    assert_eq!(blind("agent_out"), 0.0);
}

/// The reference traces in which files fill memory: no worse than the kernel alone.
#[test]
fn a_budget_holds_file_memory_no_worse_than_the_kernel() {
    for name in ["mixed-6144", "mixed-12288", "file-zipf-080", "mmap-zipf"] {
        let subject = library::find(name).unwrap();
        let alone = measure(&subject, None, Sight::PageCache);
        let with = measure(&subject, Some("budget:32M,measure=on"), Sight::PageCache);
        let faults = with("major_faults") / alone("major_faults") - 1.0;
        println!("{name}: {:+.2} % faults", faults * 100.0);
        assert!(faults <= 0.01, "{name}: {faults}");
        assert!(with("agent_out") > 0.0, "{name} is not left to the kernel");
    }
}
