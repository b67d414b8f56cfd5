// SPDX-License-Identifier: Apache-2.0
//! The cost of less memory as metrics: five sizes per subject.

use super::family::{Family, Labels, Unit, gauge};
use super::rows::labels_of;
use super::shown::Shown;
use crate::state::Snapshot;

/// The size that shares refer to, and the memory that no limit can take.
fn sizes() -> [Family; 2] {
    [
        gauge(
            "whatif_full",
            Unit::Bytes,
            "Peak resident size: a size_ratio of 1",
        ),
        gauge(
            "whatif_beyond",
            Unit::Bytes,
            "Charged in addition, and not reclaimable by a limit: kernel memory",
        ),
    ]
}

/// The likely cost of a size, and its upper bound.
fn costs() -> [Family; 4] {
    [
        gauge(
            "whatif_faults_per_second",
            Unit::None,
            "Pages that would be brought back a second if it had this share of the most that was \
             resident, under the LRU of this kernel",
        ),
        gauge(
            "whatif_faults_per_second_high",
            Unit::None,
            "Upper bound of the same, with 95 % probability",
        ),
        gauge(
            "whatif_wait",
            Unit::Ratio,
            "How long its tasks would wait for them, added up, per second of time; may exceed 1",
        ),
        gauge(
            "whatif_wait_high",
            Unit::Ratio,
            "Upper bound of the same, with 95 % probability",
        ),
    ]
}

/// Faults and waiting of the subjects shown. An unknown upper bound is infinite, so that the
/// maximum over a day is infinite as well; it would not be if the bound were left out.
pub(super) fn families(snapshot: &Snapshot, shown: &Shown) -> Vec<Family> {
    let (mut sizes, mut all) = (sizes(), costs());
    let mut limit = gauge(
        "shrink_limit",
        Unit::Bytes,
        "The limit to which the policy shrink holds it; absent without such a limit",
    );
    for at in &shown.subjects {
        let subject = &snapshot.subjects[*at];
        let own = labels_of(subject);
        if let Some(bytes) = subject.shrink_limit_bytes {
            limit.add(own.clone(), bytes);
        }
        for less in &subject.less {
            let size = f64::from(less.percent) / 100.0;
            let labels: Labels = [&own[..], &[("size_ratio", size.to_string())]].concat();
            let values = [
                less.faults_per_second,
                less.faults_high.unwrap_or(f64::INFINITY),
                less.wait_ratio,
                less.wait_high.unwrap_or(f64::INFINITY),
            ];
            for (family, value) in all.iter_mut().zip(values) {
                family.add(labels.clone(), value);
            }
            if less.percent == 100 {
                for (family, bytes) in sizes.iter_mut().zip([less.memory_bytes, less.beyond_bytes])
                {
                    family.add(own.clone(), bytes);
                }
            }
        }
    }
    sizes.into_iter().chain(all).chain([limit]).collect()
}
