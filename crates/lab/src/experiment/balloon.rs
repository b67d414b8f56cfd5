// SPDX-License-Identifier: Apache-2.0
//! Guests with balloons on one host: separate machines whose memory the host changes while they
//! run, either by the working-set reports they send or not at all.
//!
//! The host is a receiver of each guest's reports, like the device of the proposed virtio-balloon
//! extension; the messages themselves are not modelled. Inflating a balloon is modelled as a lower
//! limit on the guest's memory: the guest's own kernel decides what to reclaim.

use agewise_policy::table::PAGE_BYTES;
use std::sync::Arc;

use agewise_kernel::ids::MemcgId;
use agewise_policy::workingset::divide::{Claim, Division};
use agewise_policy::workingset::report::{Lruvecs, ReceiverId, ReportError};
use agewise_policy::workingset::{Histogram, IntervalError, Intervals};

use super::machine_run::{MIN_MEMORY_PAGES, Plan, Run, RunError};
use crate::machine::{Limits, Policy};
use crate::workload::spec::{Workload, WorkloadError};

/// Pages that the host always leaves to a guest.
const FLOOR_PAGES: u64 = 512;
/// The host's id as a receiver of a guest's reports.
const HOST: ReceiverId = 1;

/// How the host divides its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// In equal parts, once.
    Equal,
    /// By the guests' reports, in every round.
    Reports,
}

/// A host and its guests.
#[derive(Clone, Debug)]
pub struct Host {
    /// What each guest runs.
    pub guests: Vec<Arc<Workload>>,
    /// Memory of all guests together, in pages.
    pub memory_pages: u64,
    /// Time between two rounds of reports, in ms.
    pub interval_ms: u64,
    /// Age from which a guest's memory counts as cold, in ms.
    pub keep_ms: u64,
    /// Simulated time, in ms.
    pub duration_ms: u64,
    /// Age intervals of the reports.
    pub intervals: Intervals,
    /// The LRU of the guests.
    pub policy: Policy,
    /// Seed of the first guest; the others follow.
    pub seed: u64,
    /// How memory is divided.
    pub sharing: Sharing,
}

/// Results of one guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    /// Name of its workload.
    pub name: String,
    /// Refaulted pages.
    pub refaults: u64,
    /// Its memory at the end.
    pub allowance_pages: u64,
    /// Time its processes waited for memory, in ns.
    pub stalled_ns: u64,
}

/// Results of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The guests, in order.
    pub guests: Vec<Guest>,
}

impl Outcome {
    /// Refaults of all guests.
    pub fn total_refaults(&self) -> u64 {
        self.guests.iter().map(|guest| guest.refaults).sum()
    }
}

/// A host that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("guest {guest}: {source}")]
    Run {
        guest: String,
        source: Box<RunError>,
    },
    #[error(transparent)]
    Intervals(#[from] IntervalError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error("{pages} pages are too few for {guests} guests: {FLOOR_PAGES} for each at least")]
    TooSmall {
        /// Pages of all guests together.
        pages: u64,
        guests: usize,
    },
    #[error("no guest given")]
    NoGuests,
}

/// Guests of the example: one with a working set larger than an equal share, one that used a lot of
/// memory once and little since, and one in between.
const EXAMPLE: [(&str, &str); 3] = [
    ("hungry", include_str!("../../workloads/guest-hungry.toml")),
    ("modest", include_str!("../../workloads/guest-modest.toml")),
    ("mixed", include_str!("../../workloads/guest-mixed.toml")),
];

impl Host {
    /// Three guests on 48 MiB for 12 s.
    ///
    /// # Errors
    /// Fails only if the workloads of the example are invalid.
    pub fn example() -> Result<Host, HostError> {
        let guests = EXAMPLE
            .iter()
            .map(|(name, text)| Ok(Arc::new(Workload::parse(name, text)?)))
            .collect::<Result<_, WorkloadError>>()?;
        Ok(Host {
            guests,
            memory_pages: 48 << 8,
            interval_ms: 500,
            keep_ms: 500,
            duration_ms: 12_000,
            intervals: "500ms,1s,2s,5s".parse()?,
            policy: Policy::parse("mglru").expect("the default policy"),
            seed: 1,
            sharing: Sharing::Reports,
        })
    }
}

/// A guest while it runs.
struct Running {
    name: String,
    run: Run,
    allowance_pages: u64,
}

impl Running {
    /// Sets the intervals and the refresh period of the guest's reports.
    fn configure(&mut self, intervals: &Intervals, refresh_ms: u64) -> Result<(), ReportError> {
        self.run.machine.with_reports(|reports, machine| {
            let now_ms = machine.now_ms();
            reports.set_receiver(HOST, 0, intervals.clone(), refresh_ms, 0, now_ms)
        })
    }

    /// The guest's report, in bytes by age.
    fn request(&mut self) -> Option<Histogram> {
        let report = self
            .run
            .machine
            .with_reports(|reports, machine| reports.request(HOST, machine));
        report.map(|(_, histogram)| histogram)
    }

    fn set_allowance(&mut self, pages: u64) {
        if pages == self.allowance_pages {
            return;
        }
        self.allowance_pages = pages;
        let limits = Limits {
            max_pages: pages,
            ..Limits::default()
        };
        self.run.machine.set_limits(self.run.memcg, limits);
    }
}

/// Runs the guests side by side, each on its own clock, and divides the memory after each round.
///
/// # Errors
/// Returns a [`HostError`] if the host cannot be run.
pub fn run_host(host: &Host) -> Result<Outcome, HostError> {
    let count = host.guests.len() as u64;
    if count == 0 {
        return Err(HostError::NoGuests);
    }
    let floor_pages = FLOOR_PAGES.max(MIN_MEMORY_PAGES);
    if host.memory_pages < floor_pages * count {
        return Err(HostError::TooSmall {
            pages: host.memory_pages,
            guests: host.guests.len(),
        });
    }
    let mut guests = start(host, count)?;
    let division = Division {
        floor_bytes: floor_pages * PAGE_BYTES,
        keep_ms: host.keep_ms,
        ..Division::default()
    };
    let mut at_ms = 0;
    while at_ms < host.duration_ms {
        at_ms = at_ms
            .saturating_add(host.interval_ms.max(1))
            .min(host.duration_ms);
        for guest in &mut guests {
            let run = guest.run.run_until(at_ms.saturating_mul(1_000_000));
            run.map_err(|source| HostError::Run {
                guest: guest.name.clone(),
                source: Box::new(source),
            })?;
        }
        if host.sharing == Sharing::Reports {
            divide(host, &division, &mut guests);
        }
    }
    let guests = guests
        .into_iter()
        .map(|guest| Guest {
            refaults: guest
                .run
                .machine
                .memcg_events(MemcgId::ROOT)
                .workingset_refault
                .iter()
                .sum(),
            stalled_ns: guest.run.machine.pressure(guest.run.memcg).some_ns,
            name: guest.name,
            allowance_pages: guest.allowance_pages,
        })
        .collect();
    Ok(Outcome { guests })
}

fn start(host: &Host, count: u64) -> Result<Vec<Running>, HostError> {
    let share_pages = host.memory_pages / count;
    let mut guests = Vec::new();
    for (index, workload) in host.guests.iter().enumerate() {
        let seed = host.seed.wrapping_mul(1000).wrapping_add(index as u64);
        let run = Run::new(&Plan {
            memory_pages: Some(share_pages),
            ..Plan::of(workload.clone(), host.policy, seed)
        });
        let mut guest = Running {
            name: workload.name.clone(),
            run: run.map_err(|source| HostError::Run {
                guest: workload.name.clone(),
                source: Box::new(source),
            })?,
            allowance_pages: share_pages,
        };
        if host.sharing == Sharing::Reports {
            guest.configure(&host.intervals, host.interval_ms / 2)?;
        }
        guests.push(guest);
    }
    Ok(guests)
}

/// Runs one round: asks all guests, divides the memory, and inflates balloons before it deflates
/// others.
fn divide(host: &Host, division: &Division, guests: &mut [Running]) {
    let claims: Vec<Claim> = guests
        .iter_mut()
        .map(|guest| Claim {
            report: guest.request(),
            allowance_bytes: guest.allowance_pages * PAGE_BYTES,
        })
        .collect();
    let allowances = division.divide(host.memory_pages * PAGE_BYTES, &claims);
    let mut order: Vec<(usize, u64)> = allowances
        .iter()
        .map(|bytes| bytes / PAGE_BYTES)
        .enumerate()
        .collect();
    // Memory must be free before it can be given away: guests that lose memory come first.
    order.sort_by_key(|(index, pages)| *pages > guests[*index].allowance_pages);
    for (index, pages) in order {
        guests[index].set_allowance(pages);
    }
}
