// SPDX-License-Identifier: Apache-2.0
//! Proactive LRU sorting by DAMON, as proposed in June 2022: ten program phases under square waves
//! of memory pressure, with and without the document's "radically tuned" schemes.
//!
//! Memory is a tenth of PARSEC's and SPLASH's; times and timers are not scaled. A phase runs for
//! four periods of 11 s. An access stands for 5 us of work on a page.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock};

use agewise_kernel::ids::MemcgId;

use super::emulate::pairs;
use super::{Benchmark, Case, Document, Expectation, Figure, Measured, Variant};
use crate::experiment::machine_run::{Plan, Run, RunError};
use crate::machine::{Policy, Resize, UNLIMITED};
use crate::workload::spec::Workload;

/// The time an access stands for.
const ACCESS_NS: u64 = 5_000;

/// Accesses in a phase: four periods of pressure.
const ACCESSES: u64 = 44_000_000_000 / ACCESS_NS;

/// zram's 6 us per page, times a hundred: memory is scaled, time is not. A choice.
const SWAP_PAGE_US: u64 = 600;

/// The square wave: `memory.max` in percent of the peak RSS, and its duration in ns.
const WAVE: [(u64, u64); 2] = [(75, 1_000_000_000), (200, 10_000_000_000)];

/// The document's schemes: hot from 20 % of the samples, cold from 5 s, 2 % of a CPU each; hot
/// regions ranked by rate and age, cold ones by age.
const PLRUS: &str = "lru_sort:wmarks_high=1000:wmarks_mid=1001:wmarks_low=0:\
                     hot_thres_access_freq=200:cold_min_age=5000000:quota_ms=40:\
                     hot_weights=1,1:cold_weights=0,1";

pub(super) static DOCUMENT: Document = Document {
    name: "damon-lru-sort",
    summary: "DAMON raises hot regions in the LRU lists and lowers cold ones before pressure comes",
    remark: "Averages over the programs, as in the document: those with most faults decide. It \
             gives no variance. Of the slowdown by pressure (102.8 s) its schemes win back 10.7 %.",
    variants: &[
        Variant {
            name: "plrus",
            summary: "the document's schemes on the classic LRU of 6.12, which marks and \
                      deactivates as it does",
        },
        Variant {
            name: "hot-only",
            summary: "without the cold scheme",
        },
        Variant {
            name: "cold-only",
            summary: "without the hot scheme",
        },
        Variant {
            name: "kernel-weights",
            summary: "regions ordered as 6.12 does: by rate alone, cold ones not at all",
        },
        Variant {
            name: "no-quota",
            summary: "without the limit on CPU time",
        },
        Variant {
            name: "small-quota",
            summary: "a tenth of the CPU time: 0.2 % of a CPU for each scheme",
        },
        Variant {
            name: "defaults",
            summary: "the module's own thresholds and quota: 50 % of the looks, 120 s, 0.5 % of a \
                      CPU each",
        },
        Variant {
            name: "activate",
            summary: "as 7.2 does it, before and after: one pass over a hot page activates it",
        },
        Variant {
            name: "mglru",
            summary: "beside the multi-gen LRU of 7.2, before and after",
        },
    ],
    benchmarks,
    causes: &[],
};

/// The monitor with other values of some parameters.
fn plrus_with(changes: &[(&str, &str)]) -> String {
    let is_kept = |part: &&str| {
        let key = part.split('=').next();
        changes.iter().all(|(changed, _)| key != Some(changed))
    };
    let kept = PLRUS.split(':').filter(is_kept).map(str::to_owned);
    let changed = changes.iter().map(|(key, value)| format!("{key}={value}"));
    kept.chain(changed).collect::<Vec<_>>().join(":")
}

/// Policy and monitor of a variant.
fn setup(variant: &str) -> (&'static str, String) {
    let with = |key: &str, value: &str| plrus_with(&[(key, value)]);
    let classic = "classic:6.12";
    match variant {
        // No aggregation has more accesses than samples.
        "cold-only" => (classic, with("hot_thres_access_freq", "2000")),
        "hot-only" => (classic, with("cold_min_age", "18446744073709551615")),
        "kernel-weights" => (
            classic,
            plrus_with(&[("hot_weights", "1,0"), ("cold_weights", "1,0")]),
        ),
        "no-quota" => (classic, with("quota_ms", "0")),
        "small-quota" => (classic, with("quota_ms", "4")),
        "defaults" => (
            classic,
            "lru_sort:wmarks_high=1000:wmarks_mid=1001:wmarks_low=0".to_owned(),
        ),
        "activate" => ("classic", PLRUS.to_owned()),
        "mglru" => ("mglru:7.2", PLRUS.to_owned()),
        _ => (classic, PLRUS.to_owned()),
    }
}

/// A stream of a phase: area, order, weight, first and last part of the area, share of writes.
/// Parts are relative to the current stretch of the phase.
type Flow = (&'static str, &'static str, u32, f64, f64, f64);

/// A phase of a program. The memory it works on is contiguous, like arrays, arenas and matrices:
/// DAMON depends on that.
struct Phase {
    /// The program it stands for.
    name: &'static str,
    /// Areas with their MiB. An area without a stream is filled and then left, like parsed input.
    areas: &'static [(&'static str, f64)],
    /// Streams that run all the time.
    steady: &'static [Flow],
    /// Streams that go through their areas stretch by stretch.
    moving: &'static [Flow],
    /// Number of stretches; each overlaps the next by half if `overlaps` is set.
    stretches: u32,
    /// Whether stretches overlap.
    overlaps: bool,
}

/// The ten phases.
const PHASES: [Phase; 10] = [
    Phase {
        name: "stencil",
        areas: &[("a", 12.0), ("b", 12.0), ("coefficients", 2.0)],
        steady: &[("coefficients", "uniform", 10, 0.0, 1.0, 0.0)],
        moving: &[
            ("a", "scan", 5, 0.0, 1.0, 0.0),
            ("b", "scan", 5, 0.0, 1.0, 1.0),
        ],
        stretches: 4,
        overlaps: false,
    },
    Phase {
        name: "matrix",
        areas: &[("a", 8.0), ("b", 8.0), ("c", 8.0)],
        steady: &[("b", "scan", 2, 0.0, 1.0, 0.0)],
        moving: &[
            ("a", "uniform", 4, 0.0, 1.0, 0.0),
            ("c", "uniform", 6, 0.0, 1.0, 1.0),
        ],
        stretches: 8,
        overlaps: false,
    },
    Phase {
        name: "tree",
        areas: &[("inner", 1.0), ("middle", 5.0), ("leaves", 25.0)],
        steady: &[
            ("inner", "uniform", 6, 0.0, 1.0, 0.0),
            ("middle", "uniform", 3, 0.0, 1.0, 0.0),
            ("leaves", "uniform", 1, 0.0, 1.0, 0.2),
        ],
        moving: &[],
        stretches: 1,
        overlaps: false,
    },
    Phase {
        name: "sort",
        areas: &[("keys", 12.0), ("runs", 12.0)],
        steady: &[],
        moving: &[
            ("keys", "uniform", 3, 0.0, 1.0, 0.5),
            ("runs", "scan", 1, 0.0, 1.0, 1.0),
        ],
        stretches: 4,
        overlaps: false,
    },
    Phase {
        name: "chase",
        areas: &[("ring", 16.0)],
        steady: &[("ring", "uniform", 1, 0.0, 1.0, 0.0)],
        moving: &[("ring", "uniform", 30, 0.0, 1.0, 0.0)],
        stretches: 3,
        overlaps: true,
    },
    Phase {
        name: "join",
        areas: &[("build", 10.0), ("table", 12.0), ("probe", 10.0)],
        steady: &[
            ("table", "uniform", 6, 0.0, 0.25, 0.0),
            ("table", "uniform", 2, 0.25, 1.0, 0.0),
        ],
        moving: &[("probe", "scan", 2, 0.0, 1.0, 0.0)],
        stretches: 4,
        overlaps: false,
    },
    Phase {
        name: "bodies",
        areas: &[("history", 4.0), ("bodies", 12.0), ("cells", 2.0)],
        steady: &[
            ("bodies", "scan", 3, 0.0, 1.0, 1.0),
            ("cells", "uniform", 7, 0.0, 1.0, 0.0),
        ],
        moving: &[],
        stretches: 1,
        overlaps: false,
    },
    Phase {
        name: "transform",
        areas: &[("from", 5.0), ("into", 5.0), ("roots", 0.5)],
        steady: &[
            ("from", "scan", 4, 0.0, 1.0, 0.0),
            ("into", "scan", 4, 0.0, 1.0, 1.0),
            ("roots", "uniform", 2, 0.0, 1.0, 0.0),
        ],
        moving: &[],
        stretches: 1,
        overlaps: false,
    },
    Phase {
        name: "rays",
        areas: &[("scene", 32.0), ("picture", 4.0)],
        steady: &[
            ("scene", "uniform", 1, 0.0, 1.0, 0.0),
            ("picture", "scan", 2, 0.0, 1.0, 1.0),
        ],
        moving: &[("scene", "uniform", 7, 0.0, 1.0, 0.0)],
        stretches: 5,
        overlaps: true,
    },
    Phase {
        name: "dedup",
        areas: &[("output", 6.0), ("input", 24.0), ("index", 8.0)],
        steady: &[("index", "uniform", 8, 0.0, 1.0, 0.2)],
        moving: &[("input", "scan", 2, 0.0, 1.0, 0.0)],
        stretches: 8,
        overlaps: false,
    },
];

/// A phase as a workload without limits, on a machine with four times its memory and two CPUs, one
/// of them for kdamond.
fn workload(phase: &Phase) -> Result<Workload, Box<dyn Error + Send + Sync>> {
    let name = phase.name;
    let mut text = format!(
        "description = \"phase\"\nmemory = \"{0}K\"\nmachine_memory = \"{0}K\"\ncpus = 2\n\
         settings = [\"hit_ns={ACCESS_NS}\", \"stat_flush_us=0\", \"swap_read_us={SWAP_PAGE_US}\", \
         \"swap_write_us={SWAP_PAGE_US}\"]\n[[process]]\nname = \"{name}\"\n",
        peak_pages(phase) * 16
    );
    for (area, mib) in phase.areas {
        let kib = mib * 1024.0;
        text += &format!("[[process.area]]\nname = \"{area}\"\nsize = \"{kib}K\"\n");
    }
    let all: Vec<String> = phase
        .areas
        .iter()
        .map(|(area, _)| format!("\"{area}\""))
        .collect();
    let all = all.join(", ");
    text += &format!("[[process.phase]]\npopulate = [{all}]\n");
    for stretch in 0..phase.stretches {
        let steady = phase.steady.iter().map(|flow| stream(flow, 0.0, 1.0));
        let (from, to) = bounds(phase, stretch);
        let moving = phase.moving.iter().map(|flow| stream(flow, from, to));
        let streams: Vec<String> = steady.chain(moving).collect();
        text += &format!(
            "[[process.phase]]\ntouches = {}\nstream = [{}]\n",
            ACCESSES / u64::from(phase.stretches),
            streams.join(", ")
        );
    }
    Ok(Workload::parse(name, &text)?)
}

/// First and last part of the areas that a stretch covers.
fn bounds(phase: &Phase, stretch: u32) -> (f64, f64) {
    let (at, of) = (f64::from(stretch), f64::from(phase.stretches));
    if phase.overlaps {
        (at / (of + 1.0), (at + 2.0) / (of + 1.0))
    } else {
        (at / of, (at + 1.0) / of)
    }
}

fn stream((area, order, weight, from, to, write): &Flow, start: f64, end: f64) -> String {
    let at = |part: f64| start + part * (end - start);
    format!(
        "{{ area = \"{area}\", order = \"{order}\", weight = {weight}, from = {:.6}, to = {:.6}, \
         write = {write:.1} }}",
        at(*from),
        at(*to)
    )
}

fn peak_pages(phase: &Phase) -> u64 {
    let mib: f64 = phase.areas.iter().map(|(_, mib)| mib).sum();
    (mib * 256.0) as u64
}

/// Results of one run: runtime in s, major faults, PSI some in us, CPU of kdamond in percent.
type Outcome = [f64; 4];

/// Writes the limit from the other CPU while the phase runs; returns when the write is done.
fn resize(run: &mut Run, max_pages: u64, mut at_ns: u64) -> Result<u64, RunError> {
    let mut is_first = true;
    loop {
        run.machine.set_now_ns(at_ns);
        run.machine.set_cpu(1);
        let step = (run.machine).resize_step(run.memcg, max_pages, std::mem::take(&mut is_first));
        at_ns = run.machine.now_ns();
        if step != Resize::Again {
            return Ok(at_ns);
        }
        run.run_until(at_ns)?;
    }
}

/// Runs a phase to its end.
fn run_phase(
    phase: &Phase,
    case: &Case,
    policy: &str,
    damon: Option<&str>,
    pressure: bool,
) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
    let plan = Plan {
        // Statistics that lag by seconds kill small classic-LRU cgroups; PARSEC's are not small.
        settings: case.settings.to_vec(),
        damon: damon.map(str::to_owned),
        ..Plan::of(workload(phase)?, Policy::parse(policy)?, case.seed)
    };
    let mut run = Run::new(&plan)?;
    let peak = peak_pages(phase);
    let mut at_ns = 0;
    for (percent, lasts_ns) in WAVE.into_iter().cycle() {
        if run.is_done() {
            break;
        }
        let max_pages = match pressure {
            true => peak * percent / 100,
            false => UNLIMITED,
        };
        at_ns = resize(&mut run, max_pages, at_ns)? + lasts_ns;
        run.run_until(at_ns)?;
    }
    let machine = &run.machine;
    if machine.counters().oom_kill > 0 {
        return Err(format!("phase {} was killed for lack of memory", phase.name).into());
    }
    let kdamond_ns = machine.damon().map_or(0, |kdamond| kdamond.cpu_ns());
    Ok([
        run.end_ns() as f64 / 1e9,
        machine.counters().pgmajfault as f64,
        machine.pressure(MemcgId::ROOT).some_ns as f64 / 1e3,
        kdamond_ns as f64 * 100.0 / run.end_ns().max(1) as f64,
    ])
}

/// Key of a run: phase, seed, policy, monitor, pressure.
type Key = (usize, u64, &'static str, Option<String>, bool);

/// Place for the result of a run, which is computed once.
type Slot = Arc<OnceLock<Result<Outcome, String>>>;

/// Results of runs that several benchmarks share.
#[derive(Default)]
struct Runs {
    made: Mutex<HashMap<Key, Slot>>,
}

impl Runs {
    /// The result of a run with the settings of `case`, which are the same for all runs here.
    fn get(&self, key: &Key, case: &Case) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
        let slot = {
            let mut made = self.made.lock().unwrap_or_else(|error| error.into_inner());
            Arc::clone(made.entry(key.clone()).or_default())
        };
        let (phase, _, policy, damon, pressure) = key;
        let outcome = slot.get_or_init(|| {
            run_phase(&PHASES[*phase], case, policy, damon.as_deref(), *pressure)
                .map_err(|error| error.to_string())
        });
        outcome.clone().map_err(Into::into)
    }

    /// Means over several phases.
    fn mean(
        &self,
        phases: std::ops::Range<usize>,
        case: &Case,
        policy: &'static str,
        damon: Option<&str>,
        pressure: bool,
    ) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
        let mut sum = [0.0; 4];
        let count = phases.len() as f64;
        for phase in phases {
            let key = (phase, case.seed, policy, damon.map(str::to_owned), pressure);
            for (sum, value) in sum.iter_mut().zip(self.get(&key, case)?) {
                *sum += value / count;
            }
        }
        Ok(sum)
    }

    /// Compares runs with and without the schemes, under pressure.
    fn sorted(&self, phases: std::ops::Range<usize>, case: &Case) -> Measured {
        let (policy, damon) = setup(case.variant);
        let before = self.mean(phases.clone(), case, policy, None, true)?;
        let after = self.mean(phases, case, policy, Some(&damon), true)?;
        Ok(pairs(before, after))
    }

    /// Compares runs with and without pressure.
    fn pressed(&self, case: &Case) -> Measured {
        let (policy, _) = setup(case.variant);
        let before = self.mean(0..PHASES.len(), case, policy, None, false)?;
        let after = self.mean(0..PHASES.len(), case, policy, None, true)?;
        Ok(pairs(before, after)[..3].to_vec())
    }
}

fn benchmarks() -> Vec<Benchmark> {
    let runs = Arc::new(Runs::default());
    let of = |expectation| {
        [
            Figure::lower("runtime", "s", expectation),
            Figure::lower("pgmajfault", "faults", expectation),
            Figure::lower("psi_some", "us", expectation),
        ]
    };
    let document = |figures: [Figure; 3], values: [(f64, f64); 3]| -> Vec<Figure> {
        let both = figures.into_iter().zip(values);
        both.map(|(figure, (before, after))| figure.document(before, after))
            .collect()
    };
    let cpu = |expectation| Figure::lower("kdamond_cpu", "% of a CPU", expectation).by_difference();
    let mut all = document(
        of(Expectation::Figures),
        [
            (292.83, 281.87),
            (8_769_420.0, 7_525_040.0),
            (6_943_420.0, 6_220_920.0),
        ],
    );
    all.push(cpu(Expectation::Figures).document(0.0, 2.61));
    let (sorted, pressed) = (Arc::clone(&runs), Arc::clone(&runs));
    let mut benchmarks = vec![
        Benchmark {
            name: "plrus".into(),
            summary: "mprs against plrus, means over the ten phases".into(),
            figures: all,
            measure: Box::new(move |case| sorted.sorted(0..PHASES.len(), case)),
        },
        Benchmark {
            name: "pressure".into(),
            summary: "orig against mprs, means over the ten phases: what the pressure costs".into(),
            figures: document(
                of(Expectation::Figures),
                [
                    (190.06, 292.83),
                    (852.55, 8_769_420.0),
                    (106_911.0, 6_943_420.0),
                ],
            ),
            measure: Box::new(move |case| pressed.pressed(case)),
        },
    ];
    for (index, phase) in PHASES.iter().enumerate() {
        let runs = Arc::clone(&runs);
        let mut figures = of(Expectation::Own).to_vec();
        figures.push(cpu(Expectation::Own));
        benchmarks.push(Benchmark {
            name: format!("phase/{}", phase.name),
            summary: "mprs against plrus, this phase alone".into(),
            figures,
            measure: Box::new(move |case| runs.sorted(index..index + 1, case)),
        });
    }
    benchmarks
}

#[cfg(test)]
#[path = "damon_lru_sort_tests.rs"]
mod tests;
