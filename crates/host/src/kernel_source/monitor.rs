// SPDX-License-Identifier: Apache-2.0
//! A DAMON monitor of our own, and what it costs: common to both sources that read its regions.

use agewise_damon::attrs::Attrs;
use agewise_policy::workingset::{Intervals, OldestPages};

use super::KernelSourceError;
use super::regions::Scale;
use crate::clock::{boottime_ns, thread_cpu_ns};
use crate::damon::{Damon, DamonError, Session, Setup, TriedRegion, Watched};
use crate::process::Process;
use crate::root::Roots;

/// Fewest regions: the kernel's default of 10 is too coarse for a machine, or for a process with
/// hundreds of mappings.
pub(super) const REGIONS_MIN: u64 = 100;

/// A running monitor. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Monitor {
    session: Session,
    pub roots: Roots,
    pub attrs: Attrs,
    pub intervals: Intervals,
    oldest: OldestPages,
    began_ns: u64,
    own_cpu_ns: u64,
    /// CPU time of the kdamond thread, as of the last look.
    kdamond_cpu_ns: u64,
    /// Number of regions in the last look.
    pub regions: usize,
}

impl Monitor {
    /// Starts a monitor whose regions count in these bins.
    pub fn start(
        roots: Roots,
        watched: Watched,
        attrs: Attrs,
        intervals: Intervals,
        oldest: OldestPages,
    ) -> Result<Self, KernelSourceError> {
        let session = Damon::new(roots.sys.clone()).start(&Setup { watched, attrs })?;
        Ok(Monitor {
            session,
            roots,
            attrs,
            intervals,
            oldest,
            began_ns: boottime_ns(),
            own_cpu_ns: 0,
            kdamond_cpu_ns: 0,
            regions: 0,
        })
    }

    /// The current regions of each target.
    pub fn look(&mut self) -> Result<Vec<Vec<TriedRegion>>, DamonError> {
        let regions = self.session.regions()?;
        if let Ok(pid) = self.session.pid()
            && let Ok(kdamond) = Process::open_in(&self.roots.proc, pid)
            && let Ok(stat) = kdamond.stat()
        {
            self.kdamond_cpu_ns = stat.cpu_ns();
        }
        self.regions = regions.iter().map(Vec::len).sum();
        Ok(regions)
    }

    /// How to convert ages of regions now.
    pub fn scale(&self) -> Scale {
        Scale {
            aggr_us: self.attrs.aggr_us,
            observed_ms: boottime_ns().saturating_sub(self.began_ns) / 1_000_000,
            oldest: self.oldest,
        }
    }

    /// Counts what this thread has used since `began_ns` of its CPU time.
    pub fn spent_since(&mut self, began_ns: u64) {
        self.own_cpu_ns += thread_cpu_ns().saturating_sub(began_ns);
    }

    /// CPU time of all looks, and of the kdamond.
    pub fn cpu_ns(&self) -> u64 {
        self.own_cpu_ns.saturating_add(self.kdamond_cpu_ns)
    }
}
