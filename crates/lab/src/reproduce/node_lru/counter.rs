// SPDX-License-Identifier: Apache-2.0
//! Tables of counters: each row is a figure of the document and how it is measured.

use super::outcome::{VmStats, compare};
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library::LibraryError;
use crate::workload::spec::Workload;

/// The value of a row after a run.
type Value = fn(&VmStats) -> f64;

/// A counter: its name, its unit and its value.
pub type Counter = (&'static str, &'static str, Value);

/// A row of a table.
pub type Row = (Figure, Value);

pub const DMA32_ALLOCS: Counter = ("DMA32 allocs", "%", VmStats::dma32_percent);
pub const STALLS: Counter = ("allocation stalls", "", |vm| vm.stalls);
pub const DIRECT_SCANNED: Counter = ("direct pages scanned", "pages", |vm| vm.direct_scanned);
pub const DIRECT_VELOCITY: Counter = ("direct velocity", "pages/s", VmStats::direct_velocity);
pub const KSWAPD_SCANNED: Counter = ("kswapd pages scanned", "pages", |vm| vm.kswapd_scanned);
pub const KSWAPD_VELOCITY: Counter = ("kswapd velocity", "pages/s", VmStats::kswapd_velocity);
pub const KSWAPD_EFFICIENCY: Counter = ("kswapd efficiency", "%", VmStats::kswapd_efficiency);
pub const PERCENTAGE_DIRECT: Counter = ("percentage direct", "%", VmStats::percentage_direct);
pub const RECLAIM_WRITES: Counter = ("page writes by reclaim", "pages", |vm| vm.reclaim_writes);
pub const IMMEDIATE: Counter = ("page reclaim immediate", "pages", |vm| vm.immediate);
pub const SWAP_INS: Counter = ("swap ins", "pages", |vm| vm.swap_ins);
pub const SWAP_OUTS: Counter = ("swap outs", "pages", |vm| vm.swap_outs);
pub const SLAB_CALLS: Counter = ("calls of the shrinkers", "", |vm| vm.slab_calls);

fn row((metric, unit, value): Counter, of: Expectation) -> Row {
    (Figure::lower(metric, unit, of), value)
}

/// The document claims this difference.
pub fn changes(counter: Counter, before: f64, after: f64) -> Row {
    let (figure, value) = row(counter, Expectation::Figures);
    (figure.document(before, after).by_difference(), value)
}

/// The document claims no change.
pub fn stays(counter: Counter, before: f64, after: f64) -> Row {
    let (figure, value) = row(counter, Expectation::NO_CHANGE);
    (figure.document(before, after), value)
}

/// The document claims no difference beyond `margin`.
pub fn stays_within(margin: f64, counter: Counter, before: f64, after: f64) -> Row {
    let (figure, value) = row(counter, Expectation::Unchanged(margin));
    (figure.document(before, after).by_difference(), value)
}

/// The document does not have it.
pub fn own(counter: Counter) -> Row {
    row(counter, Expectation::Own)
}

/// Marks a row whose change may be noise.
pub fn within_noise((figure, value): Row) -> Row {
    (figure.within_noise(), value)
}

/// The benchmark that measures these rows.
pub fn table(
    name: &str,
    summary: &str,
    workload: fn() -> Result<Workload, LibraryError>,
    rows: Vec<Row>,
) -> Benchmark {
    let (figures, values): (Vec<Figure>, Vec<Value>) = rows.into_iter().unzip();
    Benchmark {
        name: name.to_owned(),
        summary: summary.to_owned(),
        figures,
        measure: Box::new(move |case| {
            compare(case, workload()?, |outcome| {
                let vm = outcome.vm();
                values.iter().map(|value| value(&vm)).collect()
            })
        }),
    }
}
