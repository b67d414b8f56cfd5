// SPDX-License-Identifier: Apache-2.0
//! The rows of the document: settings of its benchmarks, and the claims about each.

use std::sync::Arc;

use serde::Deserialize;

use super::super::emulate::{Values, Window};
use crate::reproduce::{Better, Expectation, Figure};
use crate::workload::library::{self, LibraryError};
use crate::workload::spec::{StreamOrder, StreamSpec, Workload};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    group: Vec<Group>,
}

/// Benchmarks that share a workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    summary: String,
    /// Name of a workload in the library.
    workload: String,
    #[serde(default)]
    settings: Vec<String>,
    /// Simulated time before measuring starts.
    #[serde(default)]
    ramp_ms: u64,
    /// Simulated time to measure; 0 to measure until all processes end.
    #[serde(default)]
    run_ms: u64,
    row: Vec<RowSpec>,
}

/// A benchmark. What is left out stays as in the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowSpec {
    name: String,
    /// The order of touches in the areas called `data`, and in the pool that caches one, except
    /// scans.
    order: Option<StreamOrder>,
    theta: Option<f64>,
    deviation: Option<f64>,
    /// Whether anonymous memory uses huge pages.
    #[serde(default)]
    huge: bool,
    /// Number of processes of the first kind.
    count: Option<u32>,
    /// Number of threads of the first kind.
    threads: Option<u32>,
    /// Size of the keys that each task sorts.
    keys: Option<String>,
    /// Size of the pool.
    pool: Option<String>,
    /// Share of the touches that do not follow `order`: misses of the pool.
    misses: Option<f64>,
    /// Size of the first file.
    file: Option<String>,
    /// Memory of the machine.
    memory: Option<String>,
    swap: Option<String>,
    #[serde(default)]
    settings: Vec<String>,
    claims: Vec<Claim>,
}

/// A measure, and the document's statement about it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    metric: Metric,
    /// The document's values.
    before: Option<f64>,
    after: Option<f64>,
    /// The document's interval of the change, in percent.
    percent: Option<[f64; 2]>,
    /// The document's change without an interval, in percent.
    about_percent: Option<f64>,
    /// Whether the document finds no significant change.
    #[serde(default)]
    unchanged: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Metric {
    Rate,
    Time,
    LapP50,
    LapP99,
    KswapdCpu,
    PolicyCpu,
    Kills,
    SwapOuts,
}

impl Metric {
    /// Name, unit, which way is better, and the value.
    fn parts(self) -> (&'static str, &'static str, Better, fn(&Values) -> f64) {
        use Better::{Higher, Lower};
        match self {
            Metric::Rate => ("rate", "accesses/s", Higher, |v| v.rate("accesses")),
            Metric::Time => ("time", "ms", Lower, Values::time_ms),
            Metric::LapP50 => ("median", "ms", Lower, |v| v.lap_ms(0.5)),
            Metric::LapP99 => ("p99", "ms", Lower, |v| v.lap_ms(0.99)),
            Metric::KswapdCpu => ("kswapd CPU", "ms/s", Lower, |v| v.rate("background_cpu_ms")),
            Metric::PolicyCpu => ("policy CPU", "ms/s", Lower, |v| v.rate("policy_cpu_ms")),
            Metric::Kills => ("kills", "", Lower, |v| v.measure("oom_kills")),
            Metric::SwapOuts => ("swap-outs", "pages", Lower, |v| v.measure("swap_out")),
        }
    }
}

impl Claim {
    /// The figure for the claim.
    pub fn figure(&self) -> Figure {
        let (metric, unit, better, _) = self.metric.parts();
        let expectation = match (self.percent, self.about_percent) {
            (Some([low, high]), _) => Expectation::Within(low / 100.0, high / 100.0),
            (None, Some(change)) => Expectation::Change(change / 100.0),
            (None, None) if self.unchanged => Expectation::NO_CHANGE,
            (None, None) if self.before.is_some() => Expectation::Figures,
            (None, None) => Expectation::Own,
        };
        let figure = match better {
            Better::Higher => Figure::higher(metric, unit, expectation),
            Better::Lower => Figure::lower(metric, unit, expectation),
        };
        match (self.before, self.after) {
            (Some(before), Some(after)) => figure.document(before, after),
            _ => figure,
        }
    }

    /// Value of the claim's measure in a run.
    pub fn value(&self, values: &Values) -> f64 {
        self.metric.parts().3(values)
    }
}

impl RowSpec {
    fn change(&self, stream: &mut StreamSpec) {
        let in_order =
            matches!(&*stream.area, "data" | "pool") && stream.order != StreamOrder::Scan;
        if in_order {
            stream.order = self.order.unwrap_or(stream.order);
            stream.theta = self.theta.unwrap_or(stream.theta);
            stream.deviation = self.deviation.unwrap_or(stream.deviation);
        }
        if let Some(misses) = self.misses {
            stream.weight = if in_order { 1.0 - misses } else { misses };
        }
    }
}

/// A row of the table, with its group.
pub(super) struct Row {
    group: Arc<Group>,
    spec: RowSpec,
}

/// All rows, in the order of the document.
///
/// # Errors
/// Fails if the table is invalid.
pub(super) fn all() -> Result<Vec<Row>, toml::de::Error> {
    let mut table: Table = toml::from_str(include_str!("rows.toml"))?;
    let mut rows = Vec::new();
    for mut group in table.group.drain(..) {
        let specs = std::mem::take(&mut group.row);
        let group = Arc::new(group);
        rows.extend(specs.into_iter().map(|spec| Row {
            group: Arc::clone(&group),
            spec,
        }));
    }
    Ok(rows)
}

impl Row {
    /// Name of the group and of the row.
    pub fn name(&self) -> String {
        format!("{}/{}", self.group.name, self.spec.name)
    }

    /// How it is emulated.
    pub fn summary(&self) -> &str {
        &self.group.summary
    }

    /// The claims to measure.
    pub fn claims(&self) -> &[Claim] {
        &self.spec.claims
    }

    /// The period to measure; None for the whole run.
    pub fn window(&self) -> Option<Window> {
        let Group {
            ramp_ms, run_ms, ..
        } = *self.group;
        (run_ms > 0).then_some(Window {
            ramp_ns: ramp_ms * 1_000_000,
            run_ns: run_ms * 1_000_000,
        })
    }

    /// The workload of the group with the changes of the row.
    ///
    /// # Errors
    /// Fails if there is no workload of that name.
    pub fn workload(&self) -> Result<Workload, LibraryError> {
        let spec = &self.spec;
        let mut workload = library::find(&self.group.workload)?;
        workload.settings.extend_from_slice(&self.group.settings);
        workload.settings.extend_from_slice(&spec.settings);
        if let Some(memory) = &spec.memory {
            workload.machine_memory = Some(memory.clone());
        }
        if let Some(swap) = &spec.swap {
            workload.swap.clone_from(swap);
        }
        if let (Some(size), Some(file)) = (&spec.file, workload.file.first_mut()) {
            file.size.clone_from(size);
        }
        if let (Some(count), Some(process)) = (spec.count, workload.process.first_mut()) {
            process.count = count;
        }
        if let (Some(threads), Some(process)) = (spec.threads, workload.process.first_mut()) {
            process.threads = threads;
        }
        for process in &mut workload.process {
            // Processes must not end before the measured time does.
            if let (true, Some(last)) = (self.group.run_ms > 0, process.phase.last_mut()) {
                last.repeat = u32::MAX;
            }
            for area in process.area.iter_mut().filter(|area| area.file.is_none()) {
                area.huge |= spec.huge;
                let size = match area.name.as_str() {
                    "keys" => &spec.keys,
                    "pool" => &spec.pool,
                    _ => continue,
                };
                if size.is_some() {
                    area.size.clone_from(size);
                }
            }
            for phase in &mut process.phase {
                phase
                    .stream
                    .iter_mut()
                    .for_each(|stream| spec.change(stream));
            }
        }
        Ok(workload)
    }
}
