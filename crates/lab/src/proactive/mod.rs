// SPDX-License-Identifier: Apache-2.0
//! The engine's proactive policies on the simulated machine: an agent with eyes (page tables, or the
//! kernel's generations), a hand (page out, `memory.reclaim`, sort) and a price for both, beside the
//! processes and their LRU.
//!
//! What runs on a real host runs here: the same [`Controller`], age maps and heat. Only eyes and hand
//! are simulated.

mod eye;
mod hand;
mod truth;

use agewise_kernel::ids::MemcgId;
use agewise_policy::generations::ByType;
use agewise_policy::proactive::{
    Action, Backend, Controller, Decision, Facts, Faults, Hands, Looked, Outcome, Psi, Reason,
    Refaults, Spec, SwapRoom,
};

use crate::machine::Machine;
use eye::Eye;
pub use truth::Truth;

pub(crate) const PAGE_BYTES: u64 = 4096;
/// What a scan leaves of a page's heat. Between 0.95 and 0.98 all values were good.
const HEAT_DECAY: f64 = 0.97;

/// How an agent sees ages, and moves what it chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// Page tables, page by page: mapped memory. It pages out what it chose.
    #[default]
    PageTables,
    /// The kernel's own generations, opened on demand: all memory on the lists, page cache included,
    /// but no single page. What was chosen is a number of bytes for `memory.reclaim`. This is how the
    /// working-set report's policy worked. Needs the multi-gen LRU.
    Generations,
}

/// An agent to be run beside a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProactivePlan {
    /// Its policy.
    pub spec: Spec,
    /// Its eyes.
    pub sight: Sight,
    /// Compare its histograms with the truth at every look (costs host time, nothing simulated).
    pub truth: bool,
}

/// What an agent did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AgentStats {
    /// CPU time of eyes, hand and deciding, in ns.
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

/// An agent at work on a cgroup.
pub struct Agent {
    controller: Controller,
    eye: Eye,
    sight: Sight,
    truth: bool,
    memcg: MemcgId,
    due_ns: u64,
    looked_ns: u64,
    counted: Counted,
    outcome: Option<Outcome>,
    stats: AgentStats,
    /// Decisions that moved something, newest last, for tests and reports; bounded.
    log: Vec<(u64, Decision)>,
}

/// Most decisions remembered.
const LOG_MAX: usize = 10_000;

/// Counters at the decision before.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    swap_in: u64,
    file_refaults: u64,
    major: u64,
    minor: u64,
    some_ns: u64,
    full_ns: u64,
}

impl Counted {
    fn read(machine: &Machine, memcg: MemcgId) -> Counted {
        let counters = machine.counters();
        let pressure = machine.pressure(memcg);
        Counted {
            swap_in: counters.pswpin,
            file_refaults: machine.memcg_events(memcg).workingset_refault[1],
            major: counters.pgmajfault,
            minor: counters.pgfault - counters.pgmajfault,
            some_ns: pressure.some_ns,
            full_ns: pressure.full_ns,
        }
    }
}

impl Agent {
    /// An agent for a cgroup, from the machine's start on.
    pub fn new(plan: &ProactivePlan, memcg: MemcgId) -> Agent {
        let controller = Controller::new(&plan.spec);
        let pace = controller.pace();
        let look_ms = look_ms(&controller, plan.sight);
        Agent {
            eye: Eye::new(&pace, HEAT_DECAY),
            controller,
            sight: plan.sight,
            truth: plan.truth,
            memcg,
            due_ns: look_ms.unwrap_or(pace.decide_ms) * 1_000_000,
            looked_ns: 0,
            counted: Counted::default(),
            outcome: None,
            stats: AgentStats::default(),
            log: Vec::new(),
        }
    }

    /// When it wants to run next.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Whether the truth should be kept for it.
    pub fn wants_truth(&self) -> bool {
        self.truth
    }

    /// What it did.
    pub fn stats(&self) -> &AgentStats {
        &self.stats
    }

    /// What it decided to move, and when (ns).
    pub fn log(&self) -> &[(u64, Decision)] {
        &self.log
    }

    /// Its turn; returns the CPU time it took.
    pub fn run(&mut self, machine: &mut Machine, truth: Option<&Truth>) -> u64 {
        let at_ns = self.due_ns;
        let (decision, busy_ns) = machine.beside(at_ns, |machine| self.turn(machine, truth));
        self.stats.cpu_ns += busy_ns;
        let end_ns = at_ns + busy_ns.max(1);
        let decide_ns = decision.next_ms.saturating_mul(1_000_000);
        let look_ns = match look_ms(&self.controller, self.sight) {
            Some(ms) => self.looked_ns + ms * 1_000_000,
            None => u64::MAX,
        };
        self.due_ns = decide_ns.min(look_ns).max(end_ns);
        busy_ns
    }

    fn turn(&mut self, machine: &mut Machine, truth: Option<&Truth>) -> Decision {
        let now_ns = machine.now_ns();
        let looks = look_ms(&self.controller, self.sight)
            .is_some_and(|ms| now_ns >= self.looked_ns + ms * 1_000_000);
        if looks {
            self.looked_ns = now_ns;
            self.stats.looks += 1;
            match self.sight {
                Sight::PageTables => {
                    let misplaced = self.eye.look_at_tables(machine, self.memcg, truth);
                    if let Some(misplaced) = misplaced {
                        self.stats.misplaced_bins += misplaced;
                        self.stats.compared += 1;
                    }
                }
                Sight::Generations => self.eye.look_at_generations(machine, self.memcg),
            }
        }
        let decision = self.decide(machine, now_ns / 1_000_000, looks);
        match decision.reason {
            Reason::CoolingDown { .. } => self.stats.backed_off += 1,
            Reason::OverBudget { behind: true, .. } => self.stats.behind += 1,
            _ => {}
        }
        if decision.action != Action::Nothing {
            if self.log.len() < LOG_MAX {
                self.log.push((now_ns, decision));
            }
            self.carry_out(machine, &decision.action);
        }
        decision
    }

    fn decide(&mut self, machine: &mut Machine, time_ms: u64, looks: bool) -> Decision {
        let counted = Counted::read(machine, self.memcg);
        let before = std::mem::replace(&mut self.counted, counted);
        let refaulted = [
            counted.swap_in - before.swap_in,
            counted.file_refaults - before.file_refaults,
        ];
        let config = machine.config();
        let fault_ns = config.cost.fault_ns;
        let swap_ns = config.swap.as_ref().map_or(0, |swap| swap.device.read_ns);
        let file_ns = config.file_device.read_ns;
        let latency = |pages: u64, ns: u64| if pages > 0 { ns + fault_ns } else { 0 };
        let backend = match &config.swap {
            None => Backend::None,
            Some(swap) if swap.device.synchronous => Backend::Zram,
            Some(swap) if swap.device.read_ns < 1_000_000 => Backend::Ssd,
            Some(_) => Backend::Hdd,
        };
        let limit = machine.limits(self.memcg).max_pages;
        let [free, total] = machine.swap_room_pages();
        let swapped: u64 = machine
            .live_processes(self.memcg)
            .into_iter()
            .map(|process| machine.swapped_pages(process))
            .sum();
        let by_page_tables = self.sight == Sight::PageTables;
        let facts = Facts {
            time_ms,
            resident_bytes: machine.resident_pages(self.memcg).map(bytes),
            charged_bytes: Some(bytes(machine.usage_pages(self.memcg))),
            out_bytes: [bytes(swapped), 0],
            looked: looks.then(|| Looked {
                time_ms,
                watched_ms: time_ms,
                bins: self.eye.bins(),
                returned: self.eye.returned(),
            }),
            faults: Faults {
                minor: counted.minor - before.minor,
                major: counted.major - before.major,
            },
            refaults: Refaults {
                bytes: refaulted.map(bytes),
                latency_ns: [
                    latency(refaulted[0], swap_ns),
                    latency(refaulted[1], file_ns),
                ],
            },
            psi: Some(Psi {
                some_us: (counted.some_ns - before.some_ns) / 1_000,
                full_us: (counted.full_ns - before.full_ns) / 1_000,
                io_some_us: 0,
            }),
            swap: Some(SwapRoom {
                free_bytes: bytes(free),
                total_bytes: bytes(total),
            }),
            backend,
            limit_bytes: (limit != crate::machine::UNLIMITED).then(|| bytes(limit)),
            floor_bytes: 0,
            hands: Hands {
                page_out: true,
                reclaim: true,
                sort: by_page_tables,
                coldest: by_page_tables,
            },
            outcome: self.outcome.take(),
        };
        machine.wait_busy(DECIDE_NS);
        self.controller.decide(&facts)
    }

    fn carry_out(&mut self, machine: &mut Machine, action: &Action) {
        let before_ns = machine.now_ns();
        let waited_ns = machine.waited_ns();
        let done = match self.sight {
            Sight::PageTables => hand::by_pages(machine, &self.eye, self.memcg, action),
            Sight::Generations => hand::by_bytes(machine, self.memcg, action),
        };
        let waited_ns = machine.waited_ns() - waited_ns;
        self.stats.sorted_pages += done.sorted;
        let asked_bytes = action.bytes();
        if asked_bytes == 0 {
            return;
        }
        self.stats.moves += 1;
        self.stats.tried_pages += done.tried;
        for (sum, pages) in self.stats.left_pages.iter_mut().zip(done.left) {
            *sum += pages;
        }
        self.outcome = Some(Outcome {
            asked_bytes,
            tried_bytes: bytes(done.tried),
            left_bytes: done.left.map(bytes),
            cpu_ns: (machine.now_ns() - before_ns).saturating_sub(waited_ns),
        });
    }
}

/// How often to look. A kernel has four generations: opened too often they do not reach back to the
/// first bound.
fn look_ms(controller: &Controller, sight: Sight) -> Option<u64> {
    let pace = controller.pace();
    let reach_ms = pace.bounds.bounds_ms().first().map_or(0, |first| first / 2);
    let look_ms = pace.look_ms?;
    match sight {
        Sight::PageTables => Some(look_ms),
        Sight::Generations => Some(look_ms.max(reach_ms)),
    }
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}
