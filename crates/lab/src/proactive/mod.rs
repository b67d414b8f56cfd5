// SPDX-License-Identifier: Apache-2.0
//! The engine's proactive policies on the simulated machine: an agent with access sources (page
//! tables and the page cache, or the kernel's generations), a mover (page out, drop,
//! `memory.reclaim`, sort) and costs for both, beside the processes and their LRU.
//!
//! It is the same code as on a real host: controller, age maps, and the pacer and queue of budgets.
//! Only the memory that is scanned and moved is simulated.

mod access;
mod by_age;
mod facts;
mod held;
mod mover;
mod spaces;
mod truth;

use agewise_kernel::ids::MemcgId;
use agewise_policy::generations::ByType;
use agewise_policy::proactive::{Action, Controller, Decision, Reason, Spec};
use agewise_policy::table::PAGE_BYTES;

use crate::machine::Machine;
use by_age::ByAge;
use held::Held;
pub use spaces::Space;
pub use truth::Truth;

/// Access source of an agent, and how it moves what it chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// Page tables, and the page cache by tracepoints: all memory, page by page. The agent pages
    /// out its selection, and drops clean file pages that no process maps.
    #[default]
    PageCache,
    /// Page tables, page by page: mapped memory. The agent pages out its selection.
    PageTables,
    /// The kernel's own generations, opened on demand: all memory on the lists including page
    /// cache, but no single pages. The selection is a number of bytes for `memory.reclaim`, as in
    /// the policy of the working-set report. Needs the multi-gen LRU.
    Generations,
}

/// An agent that runs beside a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProactivePlan {
    /// Policy.
    pub spec: Spec,
    /// Its access source.
    pub sight: Sight,
    /// Whether to compare its histograms with the truth at every scan (costs time on the host, but
    /// none on the simulated machine).
    pub truth: bool,
}

/// Statistics of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AgentStats {
    /// CPU time of scanning, moving and deciding, in ns.
    pub cpu_ns: u64,
    /// Scans of all memory.
    pub looks: u64,
    /// Decisions that moved something.
    pub moves: u64,
    /// Pages it moved out, anon and file.
    pub left_pages: ByType<u64>,
    /// Pages it tried to move out.
    pub tried_pages: u64,
    /// Slices in which it moved pages for a budget.
    pub slices: u64,
    /// Pages in a budget's queue that were accessed before their turn.
    pub young_again_pages: u64,
    /// Decisions not to move because it was backing off.
    pub backed_off: u64,
    /// Times it was behind its budget.
    pub behind: u64,
    /// Earth-mover distance between its histograms and the truth, summed over scans: by how many
    /// bins a page is misplaced.
    pub misplaced_bins: f64,
    /// Scans that were compared.
    pub compared: u64,
}

/// CPU time of one decision, in ns: a few hundred floating-point operations.
const DECIDE_NS: u64 = 1_000;

/// Limit on decisions remembered.
const LOG_MAX: usize = 10_000;

/// An agent that manages a cgroup.
pub struct Agent {
    kind: Kind,
    due_ns: u64,
    ledger: Ledger,
}

enum Kind {
    ByAge(Box<ByAge>),
    Held(Box<Held>),
}

/// Statistics and decisions of an agent.
#[derive(Debug, Default)]
struct Ledger {
    stats: AgentStats,
    /// Decisions that moved something, the first `LOG_MAX` of them.
    log: Vec<(u64, Decision)>,
}

impl Ledger {
    /// Counts a scan; `misplaced` is by how many bins its histogram misplaces a page, if known.
    fn looked(&mut self, misplaced: Option<f64>) {
        self.stats.looks += 1;
        if let Some(misplaced) = misplaced {
            self.stats.misplaced_bins += misplaced;
            self.stats.compared += 1;
        }
    }

    fn decided(&mut self, now_ns: u64, decision: &Decision) {
        match decision.reason {
            Reason::CoolingDown { .. } => self.stats.backed_off += 1,
            Reason::OverBudget { behind: true, .. } => self.stats.behind += 1,
            _ => {}
        }
        if decision.action != Action::Nothing && self.log.len() < LOG_MAX {
            self.log.push((now_ns, *decision));
        }
    }
}

impl Agent {
    /// An agent for a cgroup, starting with the machine. For a policy that wants the coldest pages
    /// it keeps a budget as on a real host; with generations, which show no single pages, it
    /// decides by ages.
    pub fn new(plan: &ProactivePlan, memcg: MemcgId) -> Agent {
        let holds = Controller::new(&plan.spec).pace().hold.is_some();
        let (kind, due_ns) = if holds && plan.sight != Sight::Generations {
            (Kind::Held(Box::new(Held::new(plan, memcg))), 0)
        } else {
            let agent = ByAge::new(plan, memcg);
            let first_ns = agent.first_ns();
            (Kind::ByAge(Box::new(agent)), first_ns)
        };
        Agent {
            kind,
            due_ns,
            ledger: Ledger::default(),
        }
    }

    /// When its next turn is due.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Statistics.
    pub fn stats(&self) -> &AgentStats {
        &self.ledger.stats
    }

    /// Its decisions to move memory, with their times in ns.
    pub fn log(&self) -> &[(u64, Decision)] {
        &self.ledger.log
    }

    /// Takes a turn; returns the CPU time it used.
    pub fn run(&mut self, machine: &mut Machine, truth: Option<&Truth>) -> u64 {
        let (at_ns, ledger) = (self.due_ns, &mut self.ledger);
        let (next_ns, busy_ns) = machine.beside(at_ns, |machine| match &mut self.kind {
            Kind::ByAge(agent) => agent.turn(machine, truth, ledger),
            Kind::Held(agent) => agent.turn(machine, truth, ledger),
        });
        self.ledger.stats.cpu_ns += busy_ns;
        self.due_ns = next_ns.max(at_ns + busy_ns.max(1));
        busy_ns
    }
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}
