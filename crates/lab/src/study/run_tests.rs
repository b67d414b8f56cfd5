// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::study::columns::columns;

fn run(agent: &str) -> Result<RunOutcome, StudyError> {
    let request = RunRequest {
        setup: Setup::default(),
        subject: "kv".to_owned(),
        columns: columns(&["classic"], &[agent.parse().unwrap()]).unwrap(),
        sight: Sight::default(),
        seeds: Some(1),
        build: "unknown".to_owned(),
    };
    request.run(&Arc::default(), |_| ())
}

#[test]
fn an_agent_that_can_do_nothing_is_refused_and_one_that_did_nothing_is_named() {
    let error = run("shrink:max_wait=1%").unwrap_err().to_string();
    assert!(
        error.contains("shrink:max_wait=1% can do nothing"),
        "{error}"
    );
    let outcome = run("age:1d/1h").unwrap();
    let agent = outcome.results.last().unwrap();
    let mut measures = agent.measures.iter();
    let misplaced = measures.position(|(name, _)| *name == "agent_misplaced");
    let misplaced = agent.runs[0].1[misplaced.unwrap()];
    assert!(misplaced.is_nan(), "it never looked: {misplaced}");
    let idle = "classic+age:1d/1h: the agent moved nothing out";
    assert!(
        outcome.notes().contains(&idle.to_owned()),
        "{:?}",
        outcome.notes()
    );
}

fn request(settings: &[&str], memory: &str) -> RunRequest {
    RunRequest {
        setup: Setup {
            memory: Some(memory.to_owned()),
            swap: Some("none".to_owned()),
            settings: settings.iter().map(|text| (*text).to_owned()).collect(),
            ..Setup::default()
        },
        subject: "kv".to_owned(),
        columns: columns(&["classic"], &[]).unwrap(),
        sight: Sight::default(),
        seeds: Some(1),
        build: "unknown".to_owned(),
    }
}

#[test]
fn orders_that_may_have_been_are_no_sample() {
    let trace = tempfile::NamedTempFile::with_suffix(".csv").unwrap();
    let of = |header: &str| {
        let pages = (0..4000u64).map(|n| format!("{},{}\n", n / 100, n * n % 509));
        let text = format!("{header}time_ns,page\n{}", pages.collect::<String>());
        std::fs::write(&trace, text).unwrap();
        let request = RunRequest {
            subject: trace.path().to_string_lossy().into_owned(),
            columns: columns(&["classic", "arc"], &[]).unwrap(),
            seeds: Some(3),
            ..request(&[], "200p")
        };
        let outcome = request.run(&Arc::default(), |_| ()).unwrap();
        let mut summaries = outcome.summaries().into_iter();
        let faults = summaries.rfind(|of| of.measure == "major_faults").unwrap();
        (
            faults.min < faults.max,
            faults.ci95.is_some(),
            faults.p.is_some(),
        )
    };
    assert_eq!(of(""), (false, true, true));
    let by_interval = of("# page trace: order=interval interval_ns=1\n");
    assert_eq!(by_interval, (true, false, false));
}

#[test]
fn seeds_have_a_limit() {
    for seeds in [0, SEEDS_MAX + 1, u64::MAX] {
        let request = RunRequest {
            seeds: Some(seeds),
            ..request(&[], "1G")
        };
        let error = request.run(&Arc::default(), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "seeds: from 1 to 100000");
    }
}

#[test]
fn runs_in_which_programs_were_killed_are_counted() {
    let run = |memory| request(&[], memory).run(&Arc::default(), |_| ()).unwrap();
    let outcome = run("128p");
    let killed = outcome.killed().unwrap();
    assert_eq!(
        killed,
        "kv: programs were killed for lack of memory in 1 of 1 runs"
    );
    assert!(outcome.notes().contains(&killed));
    assert_eq!(run("1G").killed(), None);
}
