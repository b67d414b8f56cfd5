// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::machine::Policy;
use crate::workload::random::XorShift64Star;

fn drawn(seed: u64, steps: usize) -> Case {
    let mut random = XorShift64Star::new(seed + 1);
    let mut policies = Policy::names();
    policies.push("classic:6.12".to_owned());
    draw(&policies, steps, &mut |n| random.below(n))
}

#[test]
fn drawn_cases_are_read_as_they_are_written() {
    for seed in 0..50 {
        let case = drawn(seed, 30);
        assert_eq!(Case::parse(&case.to_string()).unwrap(), case);
    }
}

#[test]
fn mistakes_are_told() {
    let shape = r#"{"policy":"mglru","pages":999,"swap":null,"seed":1}"#;
    for (text, expected) in [
        ("\n\n", "first line"),
        ("{}", "line 1: missing field"),
        (&shape.replace("999", "9"), "9 pages"),
        (&shape.replace("mglru", "mglrv"), "line 1: "),
        (
            &shape.replace("null", r#"{"device":"tape","pages":1}"#),
            "unknown device",
        ),
        (&format!("{shape}\n\n{{\"fork\":{{}}}}"), "line 3: missing"),
        (&format!("{shape}\n{{\"spoon\":{{}}}}"), "line 2: unknown"),
    ] {
        let error = Case::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(Case::parse(shape).is_ok());
}

/// The two steps that the failure needs remain, in order.
#[test]
fn a_case_that_fails_becomes_small() {
    let mut case = drawn(3, 60);
    let (first, second) = (Step::Wait { us: 7 }, Step::Exit { process: 77 });
    case.steps.insert(20, first.clone());
    case.steps.insert(50, second.clone());
    let play = |case: &Case| {
        let begun = case.steps.iter().position(|step| *step == first);
        let ended = case.steps.iter().rposition(|step| *step == second);
        match (begun, ended) {
            (Some(begun), Some(ended)) if begun < ended => Err(Failure {
                step: ended + 1,
                what: "both".to_owned(),
            }),
            _ => Ok(()),
        }
    };
    let failure = play(&case).unwrap_err();
    assert_eq!(failure.step, 51);
    let (small, failure) = shrink(case, failure, 1000, &play);
    assert_eq!(small.steps, [first, second]);
    assert_eq!(failure.step, 2);
    assert!(small.shape.set.is_empty());
}

/// Frames, mappings, slots, caches, charges and lists agree after each step of any case.
#[test]
fn nothing_is_lost() {
    for seed in 0..80 {
        let case = drawn(seed, 60);
        if let Err(failure) = play(&case) {
            let (small, failure) = shrink(case, failure, 300, &play);
            panic!("{failure}\n{small}");
        }
    }
}

/// Cases that failed once; the commit that added each one explains it.
#[test]
fn what_was_found_does_not_come_back() {
    let mut played = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/cases")).unwrap() {
        let path = entry.unwrap().path();
        let case = Case::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(play(&case), Ok(()), "{}", path.display());
        played += 1;
    }
    assert!(played >= 4);
}
