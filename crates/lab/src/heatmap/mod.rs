// SPDX-License-Identifier: Apache-2.0
//! Compares the heat that DAMON reports with the real heat: the simulator knows every access.
//!
//! The heat of a page is the share of an aggregation's samples that were preceded by an access
//! since the sample before. DAMON estimates it as `nr_accesses` of the page's region, divided by
//! the number of samples. Both heats are distributions over the monitored addresses; they are
//! compared by the normalised earth mover's distance of [`distance`].

mod plot;

use agewise_policy::table::PAGE_BYTES;
use std::collections::HashMap;

use serde::Serialize;

use crate::machine::damon::{Kdamond, Snapshot, Watched};
use crate::machine::{FileId, Machine, ProcessId};

pub use plot::{html, svg, text};

/// Number of address rows a window keeps for pictures.
const ROWS: usize = 64;

/// One aggregation: the real heat, and the monitor's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// End of the aggregation, in ms of simulated time.
    pub at_ms: f64,
    /// Number of regions.
    pub regions: usize,
    /// Bytes monitored.
    pub bytes: u64,
    /// Mean heat of all pages, 0 to 1.
    pub true_heat: f64,
    /// Mean heat according to the monitor.
    pub seen_heat: f64,
    /// Earth-mover distance between the two heats, 0 to 1.
    pub distance: f64,
    /// Mean heat by row of addresses, for pictures.
    #[serde(skip)]
    pub true_rows: Vec<f32>,
    /// Mean heat by row of addresses according to the monitor.
    #[serde(skip)]
    pub seen_rows: Vec<f32>,
}

/// Earth-mover distance of two distributions over consecutive places: the average distance by which
/// weight must move to turn one into the other, relative to the whole row. Weights need not add up
/// to 1. 0 if both are empty, 1 if only one is.
pub fn distance(places: usize, mut weights: impl FnMut(usize) -> (f64, f64)) -> f64 {
    let (mut sum_a, mut sum_b) = (0.0, 0.0);
    for place in 0..places {
        let (a, b) = weights(place);
        sum_a += a;
        sum_b += b;
    }
    if sum_a == 0.0 || sum_b == 0.0 {
        return if sum_a == sum_b { 0.0 } else { 1.0 };
    }
    let (mut ahead, mut moved) = (0.0f64, 0.0);
    for place in 0..places {
        let (a, b) = weights(place);
        ahead += a / sum_a - b / sum_b;
        moved += ahead.abs();
    }
    moved / places as f64
}

/// Position of a page for a monitor: number of the target, and page within it.
type Place = (u32, u64);

/// Samples preceded by an access to a page, and the last of them.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    looks: u32,
    last_sample: u64,
}

/// Records accesses while a monitor runs.
#[derive(Debug, Default)]
pub struct Recorder {
    pages: HashMap<Place, Seen>,
    windows: Vec<Window>,
}

impl Recorder {
    /// The aggregations recorded so far.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// Records an access to mapped memory that has just happened.
    pub(crate) fn touch(&mut self, machine: &mut Machine, process: ProcessId, vpn: u64) {
        self.close(machine.take_damon_snapshots());
        let Some(kdamond) = machine.damon() else {
            return;
        };
        let place = match kdamond.watched() {
            Watched::Physical(_) => machine.frame_of(process, vpn).map(|pfn| (0, pfn.into())),
            Watched::Virtual(processes) => processes
                .iter()
                .position(|&watched| watched == process)
                .map(|target| (target as u32, vpn)),
        };
        self.note(kdamond, place);
    }

    /// Records an access through a file descriptor.
    pub(crate) fn io(&mut self, machine: &mut Machine, file: FileId, index: u32) {
        self.close(machine.take_damon_snapshots());
        let Some(kdamond) = machine.damon() else {
            return;
        };
        let place = match kdamond.watched() {
            Watched::Physical(_) => machine
                .frame_of_file(file, index)
                .map(|pfn| (0, pfn.into())),
            Watched::Virtual(_) => None,
        };
        self.note(kdamond, place);
    }

    fn note(&mut self, kdamond: &Kdamond, place: Option<Place>) {
        let Some(place) = place else {
            return;
        };
        // A sample counts when it is checked, so the current one has the next number.
        let sample = kdamond.samples() + 1;
        let seen = self.pages.entry(place).or_default();
        if seen.last_sample != sample {
            seen.last_sample = sample;
            seen.looks += 1;
        }
    }

    /// Ends the aggregations before an access. If there are several, nothing was accessed in any
    /// but the first.
    fn close(&mut self, ended: Vec<Snapshot>) {
        for snapshot in ended {
            self.windows.push(window(&snapshot, &self.pages));
            self.pages.clear();
        }
    }
}

fn window(snapshot: &Snapshot, pages: &HashMap<Place, Seen>) -> Window {
    let looks = f64::from(snapshot.looks);
    let mut heats: Vec<(f64, f64)> = Vec::new();
    for (target, region) in &snapshot.regions {
        let seen = (f64::from(region.last_nr_accesses) / looks).min(1.0);
        for page in region.start / PAGE_BYTES..region.end / PAGE_BYTES {
            let looks_hit = pages.get(&(*target, page)).map_or(0, |seen| seen.looks);
            heats.push(((f64::from(looks_hit) / looks).min(1.0), seen));
        }
    }
    let places = heats.len().max(1) as f64;
    let rows = ROWS.min(heats.len());
    let mut true_rows = vec![0.0f32; rows];
    let mut seen_rows = vec![0.0f32; rows];
    for row in 0..rows {
        let part = &heats[row * heats.len() / rows..(row + 1) * heats.len() / rows];
        let mean = |of: fn(&(f64, f64)) -> f64| {
            (part.iter().map(of).sum::<f64>() / part.len() as f64) as f32
        };
        true_rows[row] = mean(|heat| heat.0);
        seen_rows[row] = mean(|heat| heat.1);
    }
    Window {
        at_ms: snapshot.at_ns as f64 / 1e6,
        regions: snapshot.regions.len(),
        bytes: heats.len() as u64 * PAGE_BYTES,
        true_heat: heats.iter().map(|heat| heat.0).sum::<f64>() / places,
        seen_heat: heats.iter().map(|heat| heat.1).sum::<f64>() / places,
        distance: distance(heats.len(), |at| heats[at]),
        true_rows,
        seen_rows,
    }
}

/// Summary of several aggregations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of aggregations.
    pub windows: usize,
    /// Mean number of regions.
    pub regions: f64,
    /// Mean heat of all pages.
    pub true_heat: f64,
    /// Mean heat according to the monitor.
    pub seen_heat: f64,
    /// Mean earth mover's distance.
    pub distance: f64,
    /// Mean earth mover's distance of a monitor that reports the same heat everywhere.
    pub distance_blind: f64,
}

/// Summarizes aggregations; None if there are none.
pub fn summarize(windows: &[Window]) -> Option<Summary> {
    let mean =
        |of: fn(&Window) -> f64| windows.iter().map(of).sum::<f64>() / windows.len().max(1) as f64;
    (!windows.is_empty()).then(|| Summary {
        windows: windows.len(),
        regions: mean(|window| window.regions as f64),
        true_heat: mean(|window| window.true_heat),
        seen_heat: mean(|window| window.seen_heat),
        distance: mean(|window| window.distance),
        distance_blind: mean(|window| {
            distance(window.true_rows.len(), |row| {
                (window.true_rows[row].into(), 1.0)
            })
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(a: &[f64], b: &[f64]) -> f64 {
        distance(a.len(), |at| (a[at], b[at]))
    }

    #[test]
    fn the_distance_of_hand_worked_rows() {
        assert_eq!(
            between(&[1.0, 0.0], &[2.0, 0.0]),
            0.0,
            "scale does not count"
        );
        assert_eq!(between(&[0.0; 3], &[0.0; 3]), 0.0);
        assert_eq!(between(&[0.0; 3], &[0.0, 1.0, 0.0]), 1.0);
        // All weight moves over 3 of 4 places.
        assert_eq!(between(&[1.0, 0.0, 0.0, 0.0], &[0.0, 0.0, 0.0, 1.0]), 0.75);
        // Half the weight moves over one of 4 places.
        assert_eq!(between(&[1.0, 1.0, 0.0, 0.0], &[1.0, 0.0, 1.0, 0.0]), 0.125);
    }
}
