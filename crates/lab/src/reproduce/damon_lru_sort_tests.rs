// SPDX-License-Identifier: Apache-2.0
//! Tests of the phases and variants of the document.

use super::*;

#[test]
fn every_phase_and_variant_can_be_set_up() {
    for phase in &PHASES {
        let workload = workload(phase).unwrap();
        let pages = peak_pages(phase);
        assert!(
            (1_200..=20_000).contains(&pages),
            "{}: {pages}",
            workload.name
        );
    }
    for variant in DOCUMENT.variants {
        let (policy, damon) = setup(variant.name);
        let workload = workload(&PHASES[7]).unwrap();
        let plan = Plan {
            damon: Some(damon),
            ..Plan::of(workload, Policy::parse(policy).unwrap(), 1)
        };
        assert!(plan.damon().unwrap().is_some(), "{}", variant.name);
    }
}

#[test]
fn pressure_costs_and_the_quota_holds() {
    let transform = &PHASES[7];
    let case = Case {
        seed: 1,
        variant: "plrus",
        settings: &[],
    };
    let run =
        |damon, pressure| run_phase(transform, &case, "classic:6.12", damon, pressure).unwrap();
    let (orig, mprs, plrus) = (run(None, false), run(None, true), run(Some(PLRUS), true));
    assert!(orig[1] == 0.0 && mprs[1] > 1000.0, "{orig:?} {mprs:?}");
    assert!(mprs[0] > orig[0] && mprs[2] > 0.0);
    assert!(plrus[3] > 0.0 && plrus[3] < 4.0, "kdamond {} %", plrus[3]);
}
