// SPDX-License-Identifier: Apache-2.0
//! Compares the events of a run, parsed as by a script, with the counters of the same run.

use std::collections::BTreeMap;
use std::sync::Arc;

use agewise_kernel::ids::MemcgId;
use agewise_lab::experiment::machine_run::Run;
use agewise_lab::study::columns::columns;
use agewise_lab::study::run::RunRequest;
use agewise_lab::study::setup::Setup;

/// Sums of the fields of all events, as `EVENT.FIELD`; `EVENT` is the number of events.
fn sums(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let (mut last_us, mut open) = (0, BTreeMap::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (head, rest) = line.split_once(": ").expect("a time");
        let (event, fields) = rest.split_once(": ").expect("an event");
        let words: Vec<&str> = head.split_whitespace().collect();
        let [task, cpu, flags, time] = words[..] else {
            panic!("{line}");
        };
        assert!(cpu.starts_with('[') && flags.len() == 5, "{line}");
        let at_us: u64 = time.replace('.', "").parse().expect("a time");
        assert!(at_us >= last_us, "in order of time: {line}");
        last_us = at_us;
        let event = event.strip_prefix("mm_vmscan_").expect("a tracepoint");
        *sums.entry(event.to_owned()).or_default() += 1;
        let depth: &mut i32 = open.entry(task.to_owned()).or_default();
        *depth += i32::from(event.ends_with("_begin")) - i32::from(event.ends_with("_end"));
        assert!((0..=1).contains(depth), "a begin, then its end: {line}");
        let is_kswapd = task.starts_with("kswapd0-");
        assert_eq!(is_kswapd, is_kswapd && *depth == 0, "{line}");
        for field in fields.split(' ') {
            let (name, value) = field.split_once('=').expect("a field");
            if let Ok(value) = value.parse::<u64>() {
                *sums.entry(format!("{event}.{name}")).or_default() += value;
            }
        }
    }
    assert!(open.values().all(|&depth| depth == 0), "{open:?}");
    sums
}

#[test]
fn events_add_up_to_the_counters() {
    for (workload, policy) in [
        ("mixed-6144", "classic"),
        ("mixed-6144", "mglru:7.2"),
        ("mixed-6144", "mglru:6.12"),
        ("aging", "classic"),
        ("aging", "mglru:7.2"),
    ] {
        let request = RunRequest {
            setup: Setup::default(),
            subject: workload.to_owned(),
            columns: columns(&[policy], &[]).unwrap(),
            sight: Default::default(),
            seeds: Some(1),
            build: String::new(),
        };
        let subject = request.setup.subject(workload).unwrap().subject;
        let trace = request.event_trace(&subject, &Arc::default()).unwrap();
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        let sums = sums(&String::from_utf8(text).unwrap());
        let sum = |name: &str| sums.get(name).copied().unwrap_or(0);

        let machine_policy = request.columns[0].0.machine_policy();
        let (plan, _) = request.setup.plan(&subject, machine_policy, 1).unwrap();
        let mut run = Run::new(&plan).unwrap();
        run.run_to_end(&Arc::default()).unwrap();
        let events = run.machine.memcg_events(MemcgId::ROOT);
        let counters = run.machine.counters();

        let case = format!("{workload} {policy}: {sums:#?}");
        assert!(events.stolen() > 0, "{case}");
        assert_eq!(
            sum("lru_shrink_inactive.nr_reclaimed"),
            events.stolen(),
            "{case}"
        );
        assert_eq!(sum("direct_reclaim_begin"), counters.allocstall, "{case}");
        if policy == "classic" {
            assert_eq!(
                sum("lru_shrink_inactive.nr_scanned"),
                events.scanned(),
                "{case}"
            );
            assert_eq!(
                sum("lru_shrink_active.nr_deactivated"),
                events.pgdeactivate,
                "{case}"
            );
        } else {
            // For the multi-gen LRU, pgscan counts isolated pages.
            assert_eq!(sum("lru_isolate.nr_taken"), events.scanned(), "{case}");
        }
        if workload == "aging" {
            assert!(sum("kswapd_wake") > 0 && sum("wakeup_kswapd") > 0, "{case}");
        } else {
            let ended = sum("memcg_reclaim_end.nr_reclaimed");
            assert_eq!(ended, events.stolen(), "{case}");
        }
    }
}
