// SPDX-License-Identifier: Apache-2.0
//! Metrics of the age of memory.

use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Bin, Histogram};

use super::family::{Family, Labels, Unit, buckets, gauge};
use super::rows::Row;
use crate::state::Snapshot;

/// Resident memory by bins of age, and as a histogram for queries of quantiles.
pub(super) fn families(snapshot: &Snapshot, rows: &[Row]) -> Vec<Family> {
    let mut ages = gauge(
        "age",
        Unit::Bytes,
        "Resident memory by the time since it was last seen used. Each series is one bin: ages \
         below upper_ms (milliseconds) and not below the next smaller upper_ms; bins are not \
         cumulative, and their sum is resident memory. A cgroup is counted with all below it",
    );
    let mut within = buckets(
        "used_within",
        Unit::Bytes,
        "Resident memory that was used within the last le seconds, cumulative and over all nodes: \
         histogram_quantile(0.9, agewise_used_within_bytes) is the age that nine tenths of it are \
         below",
    );
    let mut resident = gauge(
        "resident",
        Unit::Bytes,
        "Memory that processes have mapped and that is in memory; with observe.files all file \
         memory of a cgroup, mapped or not",
    );
    for row in rows {
        let mut whole = Histogram::new(&snapshot.intervals);
        for node in &snapshot.nodes {
            let mut histogram = Histogram::new(&snapshot.intervals);
            let mut sum = [0u64; 2];
            for view in row
                .subjects
                .iter()
                .filter_map(|subject| subject.node(*node))
            {
                histogram.add(&view.ages);
                for (sum, bytes) in sum.iter_mut().zip(view.resident_bytes) {
                    *sum = sum.saturating_add(bytes);
                }
            }
            for (at, (page_type, sum)) in PageType::ALL.into_iter().zip(sum).enumerate() {
                let node = ("node", node.to_string());
                let labels = [&row.labels[..], &[node, type_label(page_type)]].concat();
                for bin in histogram.bins() {
                    let upper = ("upper_ms", bin.bound_text());
                    ages.add(with(&labels, upper), bin.amounts[at]);
                }
                resident.add(labels, sum);
            }
            whole.add(&histogram);
        }
        for (at, page_type) in PageType::ALL.into_iter().enumerate() {
            let labels = with(&row.labels, type_label(page_type));
            let mut below = 0u64;
            for bin in whole.bins() {
                below = below.saturating_add(bin.amounts[at]);
                within.add(with(&labels, ("le", upper_seconds(bin))), below);
            }
        }
    }
    vec![ages, within, resident]
}

fn with(labels: &Labels, label: (&'static str, String)) -> Labels {
    let mut labels = labels.clone();
    labels.push(label);
    labels
}

fn type_label(page_type: PageType) -> (&'static str, String) {
    let name = match page_type {
        PageType::Anon => "anon",
        PageType::File => "file",
    };
    ("type", name.to_owned())
}

/// The bound as OpenMetrics writes it: always with a decimal point.
fn upper_seconds(bin: &Bin) -> String {
    bin.bound_ms()
        .map_or_else(|| bin.bound_text(), |ms| format!("{:?}", ms as f64 / 1e3))
}
