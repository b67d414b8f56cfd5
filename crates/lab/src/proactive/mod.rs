// SPDX-License-Identifier: Apache-2.0
//! The engine's proactive policies on the simulated machine: an agent with sources (page tables and
//! the page cache, or the kernel's generations), a mover (page out, drop, `memory.reclaim`, sort)
//! and a price for both, beside the processes and their LRU.
//!
//! What runs on a real host runs here: the same controller, age maps, and for a budget the same
//! pacer and queue. Only what is looked at and moved is simulated.

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

use crate::machine::Machine;
use by_age::ByAge;
use held::Held;
pub use spaces::Space;
pub use truth::Truth;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// How an agent sees ages, and moves what it chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// Page tables and, by tracepoints, the page cache: all memory, page by page. It pages out its
    /// selection, and drops clean pages of files that no process maps.
    #[default]
    PageCache,
    /// Page tables, page by page: mapped memory. It pages out what it chose.
    PageTables,
    /// The kernel's own generations, opened on demand: all memory on the lists, page cache
    /// included, but no single page. What was chosen is a number of bytes for `memory.reclaim`.
    /// This is how the working-set report's policy worked. Needs the multi-gen LRU.
    Generations,
}

/// An agent to be run beside a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProactivePlan {
    /// Its policy.
    pub spec: Spec,
    /// Its sources.
    pub sight: Sight,
    /// Compare its histograms with the truth at every look (costs host time, nothing simulated).
    pub truth: bool,
}

/// What an agent did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AgentStats {
    /// CPU time of sources, hand and deciding, in ns.
    pub cpu_ns: u64,
    /// Looks at all memory.
    pub looks: u64,
    /// Decisions that moved something.
    pub moves: u64,
    /// Pages it moved out, anon and file.
    pub left_pages: ByType<u64>,
    /// Pages it tried to.
    pub tried_pages: u64,
    /// Pages it sorted.
    pub sorted_pages: u64,
    /// Slices in which a budget's moves went.
    pub slices: u64,
    /// Pages of a budget's queue that were accessed before their turn came.
    pub young_again_pages: u64,
    /// Looks that only filled a budget's queue again.
    pub refills: u64,
    /// Decisions not to move because it was backing off.
    pub backed_off: u64,
    /// Times it was behind its budget.
    pub behind: u64,
    /// Earth-mover distance between its histograms and the truth: by how many bins a page is
    /// misplaced, summed over looks.
    pub misplaced_bins: f64,
    /// Looks that were compared.
    pub compared: u64,
}

/// CPU time of one decision, in ns: a few hundred floating-point operations.
const DECIDE_NS: u64 = 1_000;

/// Most decisions remembered.
const LOG_MAX: usize = 10_000;

/// An agent at work on a cgroup.
pub struct Agent {
    kind: Kind,
    wants_truth: bool,
    due_ns: u64,
    ledger: Ledger,
}

enum Kind {
    ByAge(Box<ByAge>),
    Held(Box<Held>),
}

/// What an agent did.
#[derive(Debug, Default)]
struct Ledger {
    stats: AgentStats,
    /// Decisions that moved something, newest last; bounded.
    log: Vec<(u64, Decision)>,
}

impl Ledger {
    /// A look; `misplaced`: by how many bins its histogram misplaces a page, if that is known.
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
    /// An agent for a cgroup, from the machine's start on. A policy that asks for the coldest gets
    /// what holds budgets on a real host; generations show no single page, so there it decides by
    /// ages.
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
            wants_truth: plan.truth,
            due_ns,
            ledger: Ledger::default(),
        }
    }

    /// When it wants to run next.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Whether the truth should be kept for it.
    pub fn wants_truth(&self) -> bool {
        self.wants_truth
    }

    /// What it did.
    pub fn stats(&self) -> &AgentStats {
        &self.ledger.stats
    }

    /// What it decided to move, and when (ns).
    pub fn log(&self) -> &[(u64, Decision)] {
        &self.ledger.log
    }

    /// Its turn; returns the CPU time it took.
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
