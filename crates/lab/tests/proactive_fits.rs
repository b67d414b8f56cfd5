// SPDX-License-Identifier: Apache-2.0
//! A budget for a program whose memory only just fits.

use std::path::Path;
use std::sync::Arc;

use agewise_lab::experiment::machine_run::{MEASURES, Plan, Subject, run};
use agewise_lab::experiment::replay::{Arrangement, Replay};
use agewise_lab::machine::Policy;
use agewise_lab::proactive::{ProactivePlan, Sight};
use agewise_trace::{AccessStream, Input, ReadOptions, registry};

/// Half of the pages of `graph.pages` only just hold what it uses at a time.
const HALF_PAGES: u64 = 7_141;

fn graph() -> Subject {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/graph.pages");
    let path = Path::new(path);
    let file = std::fs::File::open(path).unwrap();
    let input = Input::from_reader(path, file).unwrap();
    let format = registry::by_name("page").unwrap();
    let reader = (format.open)(input, &ReadOptions::default()).unwrap();
    let mut stream = AccessStream::new(path, format, reader);
    let replay = Replay::read("graph", path, &mut stream, None).unwrap();
    Subject::Trace(Arc::new(replay), Arrangement::Forward)
}

/// What a run of it below a limit measures, by name.
fn measure(limit_pages: u64, agent: Option<&str>) -> impl Fn(&str) -> f64 {
    let measured = run(&Plan {
        subject: graph(),
        policy: Policy::parse("mglru:7.2").unwrap(),
        seed: 1,
        memory_pages: Some(limit_pages),
        swap: None,
        settings: vec!["cpus=2".to_owned()],
        damon: None,
        proactive: agent.map(|spec| ProactivePlan {
            spec: spec.parse().unwrap(),
            sight: Sight::default(),
            truth: false,
        }),
    })
    .unwrap();
    move |name| {
        let at = MEASURES.iter().position(|(known, _)| *known == name);
        measured[at.unwrap()]
    }
}

/// Pages that leave to make headroom come back at once, which looks like growth and makes more
/// headroom: twice the faults, before the limit was left to the kernel then.
#[test]
fn headroom_that_only_feeds_itself_is_given_up() {
    let budget = format!("budget:{}K,measure=on", HALF_PAGES * 4);
    let alone = measure(HALF_PAGES, None);
    let with = measure(HALF_PAGES, Some(&budget));
    let ratio = with("major_faults") / alone("major_faults");
    assert!(ratio < 1.2, "{ratio} of the faults");
}

/// But not if the kernel has no limit there to hold.
#[test]
fn without_a_limit_of_the_kernel_the_budget_is_held_all_the_same() {
    let budget = format!("budget:{}K", HALF_PAGES * 4);
    let with = measure(HALF_PAGES * 5 / 4, Some(&budget));
    let moved = with("agent_out");
    assert!(moved > 50_000.0, "{moved} pages moved");
    assert!(with("resident_mean_kib") < HALF_PAGES as f64 * 4.0);
}
