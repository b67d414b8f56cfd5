// SPDX-License-Identifier: Apache-2.0
//! The worth of held budgets as metrics.

use agewise_policy::budget::Verdict;

use super::family::{Family, Unit, gauge};
use super::rows::labels_of;
use super::shown::Shown;
use crate::state::Snapshot;

/// For the shown subjects under a budget: how far the kernel has the limit first, and what holding
/// it is worth once something has been compared.
pub(super) fn families(snapshot: &Snapshot, shown: &Shown) -> Vec<Family> {
    let mut back = gauge(
        "budget_stepped_back",
        Unit::None,
        "1: the limit is left to the kernel, since holding the budget did not pay; 0: it is held",
    );
    let mut pairs = gauge(
        "budget_pairs",
        Unit::None,
        "Pairs of epochs compared, one held and one left to the kernel",
    );
    let mut changes = [
        gauge(
            "budget_faults_change",
            Unit::Ratio,
            "Change of major faults by holding the budget, against the kernel alone, for the same \
             work; -0.2 is a fifth less",
        ),
        gauge(
            "budget_faults_change_half",
            Unit::Ratio,
            "Half of its 95 % interval",
        ),
        gauge(
            "budget_cpu_change",
            Unit::Ratio,
            "Change in CPU time from holding the budget, including the cost of holding",
        ),
        gauge(
            "budget_cpu_change_half",
            Unit::Ratio,
            "Half of its 95 % interval",
        ),
    ];
    let mut first = gauge(
        "budget_kernel_first",
        Unit::Ratio,
        "How far the kernel has the limit first, before the budget is held: pages that have come \
         in, of those that have to",
    );
    for at in &shown.subjects {
        let subject = &snapshot.subjects[*at];
        let labels = labels_of(subject);
        if let Some(so_far) = &subject.kernel_first {
            first.add(labels.clone(), so_far.ratio());
        }
        let Some(gain) = &subject.budget_gain else {
            continue;
        };
        back.add(labels.clone(), gain.verdict == Verdict::Back);
        pairs.add(labels.clone(), gain.pairs as u64);
        let values = [gain.faults_change, gain.cpu_change]
            .into_iter()
            .flat_map(|change| {
                let parts = change.map(|change| [change.mean, change.half]);
                parts.map_or([None; 2], |parts| parts.map(Some))
            });
        for (family, value) in changes.iter_mut().zip(values) {
            if let Some(value) = value {
                family.add(labels.clone(), value);
            }
        }
    }
    let mut all = vec![first, back, pairs];
    all.extend(changes);
    all
}
