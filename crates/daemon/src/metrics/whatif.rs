// SPDX-License-Identifier: Apache-2.0
//! What less memory would cost, as metrics: four sizes a subject.

use agewise_host::untrusted::Untrusted;
use agewise_policy::whatif::Decider;

use super::families::{Family, Labels, Unit, Value};
use super::shown::Shown;
use crate::state::Snapshot;

/// Sizes shown, percent of the most that was resident.
const PERCENTS: [u16; 4] = [50, 60, 75, 90];

/// Faults and waiting of the subjects shown. An upper bound that is not known is left out.
pub(super) fn families(snapshot: &Snapshot, shown: &Shown) -> Vec<Family> {
    let family = |name, unit, help| Family {
        name,
        help,
        unit,
        is_counter: false,
        samples: Vec::new(),
    };
    let mut all = [
        family(
            "whatif_faults_per_second",
            Unit::None,
            "Pages that would be brought back a second if it had this share of the most that was \
             resident, under the LRU of this kernel",
        ),
        family(
            "whatif_faults_per_second_high",
            Unit::None,
            "The same at most, with 95 % probability",
        ),
        family(
            "whatif_wait",
            Unit::Ratio,
            "Share of the time that a task would wait for them",
        ),
        family(
            "whatif_wait_high",
            Unit::Ratio,
            "The same at most, with 95 % probability",
        ),
    ];
    for at in &shown.subjects {
        let subject = &snapshot.subjects[*at];
        let Some(priced) = &subject.curves else {
            continue;
        };
        let kind = if subject.is_cgroup {
            "cgroup"
        } else {
            "process"
        };
        let name = Untrusted::from(&*subject.name).terminal().to_string();
        for percent in PERCENTS {
            let point = priced.curves.of(Decider::Kernel).at(f64::from(percent));
            let (faults, wait) = (point.faults_per_second(), point.wait_ratio(priced.prices));
            let size = f64::from(percent) / 100.0;
            let labels: Labels = vec![(kind, name.clone()), ("size_ratio", size.to_string())];
            let values = [faults.likely, faults.high, wait.likely, wait.high];
            for (family, value) in all.iter_mut().zip(values) {
                if value.is_finite() {
                    family.samples.push((labels.clone(), Value::Real(value)));
                }
            }
        }
    }
    all.into()
}
