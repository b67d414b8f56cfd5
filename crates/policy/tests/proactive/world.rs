// SPDX-License-Identifier: Apache-2.0
//! A world of a few thousand pages with exact ages, for the properties of policies.

use agewise_policy::proactive::{
    Action, Backend, Controller, Decision, Facts, Hands, Looked, Outcome, Psi, Refaults, Spec,
    SwapRoom,
};
use agewise_policy::workingset::{Bin, NO_UPPER_BOUND_MS};

pub const PAGE: u64 = 4096;
const REFAULT_NS: u64 = 10_000;

/// How a group of pages is accessed.
#[derive(Clone, Copy, Debug)]
pub enum Habit {
    /// Each with this probability per second.
    Random(f64),
    /// All of them once in this many ms.
    Periodic(u64),
    /// Never again.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    habit: Habit,
    idle_ms: u64,
    out: bool,
}

/// One target, and what was done to it.
pub struct World {
    pub controller: Controller,
    pages: Vec<Page>,
    pub now_ms: u64,
    state: u64,
    due_ms: u64,
    looked_ms: u64,
    returned: Vec<u64>,
    refaulted: u64,
    outcome: Option<Outcome>,
    pub psi: Option<Psi>,
    pub swap_pages: u64,
    pub limit_bytes: Option<u64>,
    pub floor_bytes: u64,
    pub stuck: bool,
    pub refaults: u64,
    pub moves: Vec<(u64, u64)>,
    pub decisions: Vec<Decision>,
}

impl World {
    pub fn new(spec: &str, groups: &[(usize, Habit)], seed: u64) -> World {
        let spec: Spec = spec.parse().unwrap();
        let page = |habit| Page {
            habit,
            idle_ms: 0,
            out: false,
        };
        let pages: Vec<Page> = groups
            .iter()
            .flat_map(|&(count, habit)| std::iter::repeat_n(page(habit), count))
            .collect();
        World {
            controller: Controller::new(&spec),
            swap_pages: pages.len() as u64 * 2,
            pages,
            now_ms: 0,
            state: seed.wrapping_mul(2) | 1,
            due_ms: 0,
            looked_ms: 0,
            returned: Vec::new(),
            refaulted: 0,
            outcome: None,
            psi: None,
            limit_bytes: None,
            floor_bytes: 0,
            stuck: false,
            refaults: 0,
            moves: Vec::new(),
            decisions: Vec::new(),
        }
    }

    fn unit(&mut self) -> f64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as f64 / (1u64 << 31) as f64
    }

    pub fn out_pages(&self) -> u64 {
        self.pages.iter().filter(|page| page.out).count() as u64
    }

    pub fn resident_bytes(&self) -> u64 {
        (self.pages.len() as u64 - self.out_pages()) * PAGE
    }

    pub fn moved_bytes(&self) -> u64 {
        self.moves.iter().map(|(_, bytes)| bytes).sum()
    }

    fn bounds(&self) -> Vec<u64> {
        let pace = self.controller.pace();
        let bounds = pace.bounds.bounds_ms().iter().copied();
        bounds.chain([NO_UPPER_BOUND_MS]).collect()
    }

    /// Lets programs run for `step_ms`, then asks the policy if it is time.
    pub fn step(&mut self, step_ms: u64) {
        let bounds = self.bounds();
        self.returned.resize(bounds.len(), 0);
        for at in 0..self.pages.len() {
            let accessed = match self.pages[at].habit {
                Habit::Random(hazard) => self.unit() > (-hazard * step_ms as f64 / 1e3).exp(),
                Habit::Periodic(period_ms) => {
                    self.now_ms / period_ms != (self.now_ms + step_ms) / period_ms
                }
                Habit::Never => false,
            };
            let page = &mut self.pages[at];
            page.idle_ms += step_ms;
            if accessed {
                let bin = bounds.partition_point(|&upper| upper < page.idle_ms);
                self.returned[bin] += PAGE;
                self.refaulted += u64::from(page.out);
                self.refaults += u64::from(page.out);
                (page.idle_ms, page.out) = (0, false);
            }
        }
        self.now_ms += step_ms;
        if self.now_ms >= self.due_ms {
            self.decide(&bounds);
        }
    }

    fn decide(&mut self, bounds: &[u64]) {
        let look_ms = self.controller.pace().look_ms;
        let looks = look_ms.is_some_and(|ms| self.now_ms >= self.looked_ms + ms);
        let mut ages = vec![0; bounds.len()];
        for page in self.pages.iter().filter(|page| !page.out) {
            ages[bounds.partition_point(|&upper| upper < page.idle_ms)] += PAGE;
        }
        let bins = |amounts: &[u64]| -> Vec<Bin> {
            let pairs = bounds.iter().zip(amounts);
            let bin = |(&upper_ms, &bytes): (&u64, &u64)| Bin {
                upper_ms,
                amounts: [bytes, 0],
            };
            pairs.map(bin).collect()
        };
        let (bins, returned) = (bins(&ages), bins(&self.returned));
        let looked = looks.then_some(Looked {
            time_ms: self.now_ms,
            watched_ms: self.now_ms,
            bins: &bins,
            returned: &returned,
        });
        let out = self.out_pages();
        let facts = Facts {
            time_ms: self.now_ms,
            resident_bytes: [self.resident_bytes(), 0],
            out_bytes: out * PAGE,
            looked,
            refaults: Refaults {
                bytes: [self.refaulted * PAGE, 0],
                latency_ns: [REFAULT_NS, 0],
            },
            psi: self.psi,
            swap: Some(SwapRoom {
                free_bytes: self.swap_pages.saturating_sub(out) * PAGE,
                total_bytes: self.swap_pages * PAGE,
            }),
            backend: Backend::Zram,
            limit_bytes: self.limit_bytes,
            floor_bytes: self.floor_bytes,
            hands: Hands::default(),
            outcome: self.outcome.take(),
            ..Facts::default()
        };
        let decision = self.controller.decide(&facts);
        if looks {
            self.looked_ms = self.now_ms;
            self.returned.fill(0);
        }
        self.refaulted = 0;
        self.due_ms = decision.next_ms;
        self.decisions.push(decision);
        self.carry_out(decision.action);
    }

    fn carry_out(&mut self, action: Action) {
        let Action::PageOut {
            older_than_ms: [Some(older_than_ms), _],
            bytes_max,
        } = action
        else {
            return;
        };
        let mut cold: Vec<usize> = (0..self.pages.len())
            .filter(|&at| !self.pages[at].out && self.pages[at].idle_ms >= older_than_ms)
            .collect();
        cold.sort_by_key(|&at| std::cmp::Reverse(self.pages[at].idle_ms));
        cold.truncate((bytes_max / PAGE) as usize);
        let tried_bytes = cold.len() as u64 * PAGE;
        if !self.stuck {
            for &at in &cold {
                self.pages[at].out = true;
            }
        }
        let left = if self.stuck { 0 } else { tried_bytes };
        self.moves.push((self.now_ms, left));
        self.outcome = Some(Outcome {
            tried_bytes,
            left_bytes: [left, 0],
            cpu_ns: cold.len() as u64 * 7_000,
        });
    }

    pub fn run(&mut self, until_ms: u64, step_ms: u64) -> &mut World {
        while self.now_ms < until_ms {
            self.step(step_ms);
        }
        self
    }
}
