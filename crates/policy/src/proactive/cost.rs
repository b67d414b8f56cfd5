// SPDX-License-Identifier: Apache-2.0
//! `cost`: moves out the coldest memory if its way out and back costs less than it saves.
//!
//! It answers the objection that frequency alone does not determine what to evict (review of the
//! working-set report, v4): what matters is how long a page will stay away, and what its return
//! costs on this backend. For each type it learns
//! - from every look, how long memory that has been idle for some time stays idle ([`Survival`]);
//! - what a refault costs (moving average of measurements) and what eviction costs.
//!
//! Memory of an age may go if
//! - its mean stay is worth it: the cost of the way out and back, divided by the stay, is at most
//!   `price`, a share of one CPU per GiB away; so the age follows from the backend: seconds for
//!   zram, minutes for an SSD, an hour for a disk;
//! - so few of its pages come back at this age that waiting until the rest is older would cost more
//!   than it saves (the hazard times the length of a worthwhile stay is at most 1);
//! - no stay is assumed to be longer than `trust` times the age at which it was observed;
//! - the expected stall, including that of what is already out, stays below `stall`, a share of
//!   time.
//!
//! Looking has a price as well, and the program pays most of it, because it sets the cleared bits
//! again. So looks become less frequent once little memory becomes cold between them ([`Looks`]).

use super::age::older_than;
use super::arguments::Arguments;
use super::{
    Action, Backend, Built, Entry, Facts, Figure, Grounds, GuardParams, Looked, Pace, Policy,
    Reason, Survival, Wish,
};
use crate::generations::ByType;
use crate::workingset::Intervals;

/// Bounds of ages, s.
const BOUNDS_S: [u64; 27] = [
    1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 420, 600, 900, 1200, 1800, 2700,
    3600, 5400, 7200, 10_800, 21_600, 43_200,
];
const PAGE_BYTES: f64 = crate::table::PAGE_BYTES as f64;
const PAGES_PER_GIB: f64 = (1 << 30) as f64 / PAGE_BYTES;
/// Assumed cost of moving a page out until it has been measured, in ns (7 us to zram with lz4).
const EVICT_NS: f64 = 7_000.0;
/// Weight of new measurements of cost.
const LEARN: f64 = 0.2;
/// The cost of a look per page found accessed, in ns: clearing the bit (measured: 56 ns), and the
/// program's page walk that sets it again (measured: 400 ns).
const ACCESSED_NS: f64 = 450.0;
/// The cost of a look per present page, in ns.
const PRESENT_NS: f64 = 3.0;
/// For this time, looks are as frequent as ages require: how fast memory becomes cold is not known
/// yet. In ms.
const LEARN_MS: u64 = 60_000;
/// The rate at which memory becomes cold is forgotten by half in this time, in s.
const COOLING_HALF_LIFE_S: f64 = 30.0;
/// Longest time between looks, in ms.
const LOOK_MAX_MS: u64 = 10_000;
/// Sorting again sooner makes no difference, in ms.
const SORT_EVERY_MS: u64 = 60_000;

pub(super) const ENTRY: Entry = Entry {
    name: "cost",
    usage: "cost[:stall=0.2%,price=1%,trust=60,min_age=3s,period=2s,sort=off]",
    build,
};

#[derive(Clone, Debug)]
struct Cost {
    stall: f64,
    price: f64,
    trust: f64,
    min_age_s: f64,
    period_ms: u64,
    sort: bool,
    bounds_ms: Vec<u64>,
    curves: ByType<Survival>,
    /// Where anonymous memory goes: the price of its return is that of this backend.
    backend: Backend,
    refault_ns: ByType<Option<f64>>,
    evict_ns: f64,
    looked_ms: Option<u64>,
    /// Resident bytes by age at the newest look.
    ages: Vec<ByType<f64>>,
    /// Refaulted pages since that look.
    refaulted: ByType<f64>,
    /// The youngest bin that may go, by type.
    from: ByType<Option<usize>>,
    due_ms: u64,
    sorted_ms: Option<u64>,
    looks: Looks,
}

/// How often to look. A look costs L of CPU time; with a time T between looks, memory that becomes
/// cold at a rate r stays T/2 longer than necessary. At `price` p per GiB and second, the sum of
/// both costs, L/T + p r T/2, is minimal at T = sqrt(2 L / (p r)).
#[derive(Clone, Debug, Default)]
struct Looks {
    cost_s: f64,
    /// Bytes that became cold per second recently.
    cooling: f64,
    /// Bytes that were cold at the last look and have not left since.
    cold_bytes: f64,
    watched_ms: u64,
    /// The interval before the latest look, until a decision is based on that look.
    undecided_s: Option<f64>,
}

impl Looks {
    /// Takes in what a look found, and the time since the previous look.
    fn look(&mut self, looked: &Looked<'_>, passed_s: f64) {
        let pages = |bins: &[crate::workingset::Bin]| -> f64 {
            let bytes = bins.iter().map(|bin| bin.amounts[0] + bin.amounts[1]);
            bytes.map(|bytes| bytes as f64).sum::<f64>() / PAGE_BYTES
        };
        let cost_s = (pages(looked.returned) * ACCESSED_NS + pages(looked.bins) * PRESENT_NS) / 1e9;
        self.cost_s += 0.5 * (cost_s - self.cost_s);
        self.watched_ms = looked.watched_ms;
        self.undecided_s = Some(passed_s).filter(|passed_s| *passed_s > 0.0);
    }

    /// Takes in how much of what the last look found may go.
    fn found(&mut self, cold_bytes: f64) {
        let Some(passed_s) = self.undecided_s.take() else {
            return;
        };
        let fresh = (cold_bytes - self.cold_bytes).max(0.0);
        let keep = 0.5f64.powf(passed_s / COOLING_HALF_LIFE_S);
        self.cooling = self.cooling * keep + fresh / passed_s * (1.0 - keep);
        self.cold_bytes = cold_bytes;
    }

    /// Time between looks, in ms.
    fn interval_ms(&self, price: f64) -> u64 {
        if self.watched_ms < LEARN_MS {
            return 0;
        }
        let rate_gib = self.cooling / PAGE_BYTES / PAGES_PER_GIB;
        // If nothing becomes cold this is infinite, and the longest interval applies.
        let best_s = (2.0 * self.cost_s / (price * rate_gib)).sqrt();
        (best_s * 1e3).min(LOOK_MAX_MS as f64) as u64
    }
}

fn build(arguments: &mut Arguments<'_>) -> Built {
    let bounds_ms: Vec<u64> = BOUNDS_S.iter().map(|s| s * 1000).collect();
    let policy = Cost {
        stall: arguments.share("stall", 0.002, 0.000_001..=1.0)?,
        price: arguments.share("price", 0.01, 0.000_01..=1_000.0)?,
        trust: arguments.number("trust", 60.0, 1.0..=100_000.0)?,
        min_age_s: arguments.duration("min_age", 3_000, 100..=86_400_000)? as f64 / 1e3,
        period_ms: arguments.duration("period", 2_000, 100..=3_600_000)?,
        sort: arguments.switch("sort", false)?,
        curves: [Survival::new(&bounds_ms), Survival::new(&bounds_ms)],
        bounds_ms,
        backend: Backend::default(),
        refault_ns: [None; 2],
        evict_ns: EVICT_NS,
        looked_ms: None,
        ages: Vec::new(),
        refaulted: [0.0; 2],
        from: [None; 2],
        due_ms: 0,
        sorted_ms: None,
        looks: Looks::default(),
    };
    Ok((Box::new(policy), GuardParams::default()))
}

impl Cost {
    fn learn(&mut self, facts: &Facts<'_>) {
        if std::mem::replace(&mut self.backend, facts.backend) != facts.backend {
            self.refault_ns[0] = None;
        }
        for t in 0..2 {
            self.refaulted[t] += facts.refaults.bytes[t] as f64 / PAGE_BYTES;
            if facts.refaults.latency_ns[t] > 0 {
                let ns = facts.refaults.latency_ns[t] as f64;
                let before = self.refault_ns[t].unwrap_or(ns);
                self.refault_ns[t] = Some(before + LEARN * (ns - before));
            }
        }
        if let Some(outcome) = facts.outcome {
            let pages = outcome.left_bytes.map(|bytes| bytes as f64 / PAGE_BYTES);
            let left = pages[0] + pages[1];
            if left >= 16.0 && outcome.cpu_ns > 0 {
                self.evict_ns += LEARN * (outcome.cpu_ns as f64 / left - self.evict_ns);
            }
            self.looks.cold_bytes = (self.looks.cold_bytes - left * PAGE_BYTES).max(0.0);
            for (t, pages) in pages.into_iter().enumerate() {
                self.note_left(t, pages);
            }
        }
        if let Some(looked) = facts.looked {
            self.look(facts, looked);
        }
    }

    /// The oldest pages left first.
    fn note_left(&mut self, t: usize, mut pages: f64) {
        for bin in (0..self.ages.len()).rev() {
            let here = (self.ages[bin][t] / PAGE_BYTES).min(pages);
            self.ages[bin][t] -= here * PAGE_BYTES;
            self.curves[t].left(bin, here);
            pages -= here;
        }
    }

    fn look(&mut self, facts: &Facts<'_>, looked: Looked<'_>) {
        let into = |bins: &[crate::workingset::Bin], curve: &Survival| {
            let mut amounts = vec![[0.0; 2]; curve.len()];
            let mut lower_ms = 0;
            for bin in bins {
                // A bin with other bounds is put where its youngest pages belong, to be on the safe
                // side.
                let at = curve.bin((lower_ms + 1) as f64 / 1e3);
                for (sum, bytes) in amounts[at].iter_mut().zip(bin.amounts) {
                    *sum += bytes as f64;
                }
                lower_ms = bin.upper_ms;
            }
            amounts
        };
        let before_ms = self.looked_ms.replace(looked.time_ms);
        let ages = into(looked.bins, &self.curves[0]);
        let returned =
            (!looked.returned.is_empty()).then(|| into(looked.returned, &self.curves[0]));
        let passed_ms = looked
            .time_ms
            .saturating_sub(before_ms.unwrap_or(looked.time_ms));
        let passed_s = passed_ms as f64 / 1e3;
        self.looks.look(&looked, passed_s);
        for t in 0..2 {
            let pages = |bins: &Vec<ByType<f64>>| -> Vec<f64> {
                bins.iter().map(|bin| bin[t] / PAGE_BYTES).collect()
            };
            let refaulted = std::mem::take(&mut self.refaulted[t]);
            self.curves[t].observe(
                passed_s,
                &pages(&ages),
                returned.as_ref().map(pages).as_deref(),
                refaulted,
            );
        }
        if facts.out_bytes > 0 || self.curves[0].out_pages() > 0.0 {
            let known = facts.out_bytes as f64 / PAGE_BYTES;
            if known < self.curves[0].out_pages() {
                self.curves[0].set_out_pages(known);
            }
        }
        self.ages = ages;
    }

    fn refault_ns(&self, t: usize, backend: Backend) -> f64 {
        let expected = if t == 0 { backend } else { Backend::Ssd };
        self.refault_ns[t].unwrap_or(expected.refault_ns() as f64)
    }

    /// The share of time that tasks currently spend waiting for what comes back.
    fn stall_now(&self, backend: Backend) -> f64 {
        let of = |t: usize| self.curves[t].refaults_per_s() * self.refault_ns(t, backend) / 1e9;
        of(0) + of(1)
    }

    /// For each type the youngest bin that may go, and the expected stall if it does.
    fn choose(&self, facts: &Facts<'_>) -> (ByType<Option<usize>>, f64) {
        let now = self.stall_now(facts.backend);
        let mut room = self.stall - now;
        let mut from = [None; 2];
        let mut expected = now;
        for (t, from) in from.iter_mut().enumerate() {
            if t == 0 && facts.backend == Backend::None {
                continue;
            }
            let refault_ns = self.refault_ns(t, facts.backend);
            let worth_s = PAGES_PER_GIB * (self.evict_ns + refault_ns) / 1e9 / self.price;
            for bin in (0..self.ages.len()).rev() {
                let (age_s, stay_s) = (self.curves[t].lower_s(bin), self.curves[t].stay_s(bin));
                let worth_it = stay_s.min(self.trust * age_s) >= worth_s;
                // Even if most of the memory stays away, it should wait as long as more of it comes
                // back meanwhile than its absence would save.
                let settled = self.curves[t].hazard_per_s(bin) * worth_s <= 1.0;
                if age_s < self.min_age_s || !worth_it || !settled {
                    break;
                }
                let stall = self.ages[bin][t] / PAGE_BYTES / stay_s * refault_ns / 1e9;
                if stall > room {
                    break;
                }
                room -= stall;
                expected += stall;
                *from = Some(bin);
            }
        }
        (from, expected)
    }

    fn sort_instead(&mut self, facts: &Facts<'_>) -> Option<Action> {
        let due = self
            .sorted_ms
            .is_none_or(|at_ms| facts.time_ms >= at_ms + SORT_EVERY_MS);
        if !self.sort || !facts.hands.sort || !due {
            return None;
        }
        self.sorted_ms = Some(facts.time_ms);
        Some(Action::Sort {
            older_than_ms: [Some((self.min_age_s * 1e3) as u64); 2],
            bytes_max: facts.resident(),
        })
    }
}

impl Policy for Cost {
    fn wish(&mut self, facts: &Facts<'_>) -> Wish {
        self.learn(facts);
        let now_ms = facts.time_ms;
        if now_ms < self.due_ms {
            return Wish::nothing(Reason::NotDue, self.due_ms);
        }
        self.due_ms = now_ms + self.period_ms;
        let next_ms = self.due_ms;
        if self.looked_ms.is_none() {
            return Wish::nothing(Reason::NoAges, next_ms);
        }
        if !facts.hands.page_out {
            return Wish::nothing(Reason::NoMover, next_ms);
        }
        let stall_now = self.stall_now(facts.backend);
        let (from, stall) = self.choose(facts);
        self.from = from;
        let older_than_ms = [0, 1].map(|t| {
            let bin = self.from[t]?;
            Some((self.curves[t].lower_s(bin) * 1e3) as u64)
        });
        let cold_bytes: f64 = [0, 1]
            .iter()
            .filter_map(|&t| {
                Some(
                    self.ages[self.from[t]?..]
                        .iter()
                        .map(|bin| bin[t])
                        .sum::<f64>(),
                )
            })
            .sum();
        self.looks.found(cold_bytes);
        if cold_bytes < PAGE_BYTES {
            let old = facts.looked.map_or([0; 2], |looked| {
                older_than(looked.bins, (self.min_age_s * 1e3) as u64)
            });
            let reason = match old {
                [0, 0] => Reason::NothingCold,
                _ => Reason::Own(Grounds::new(
                    "too_dear",
                    &[("stall", Figure::Share(stall_now))],
                )),
            };
            let mut wish = Wish::nothing(reason, next_ms);
            if let Some(action) = self.sort_instead(facts) {
                wish.action = action;
            }
            return wish;
        }
        Wish {
            action: Action::PageOut {
                older_than_ms,
                bytes_max: cold_bytes as u64,
            },
            // This much is expected to stay away for long enough. `stall` is the share of time that
            // its return is expected to cost, including that of what is already out.
            reason: Reason::Own(Grounds::new(
                "projected",
                &[
                    ("idle_ms", Figure::Ages(older_than_ms)),
                    ("cold_bytes", Figure::Count(cold_bytes as u64)),
                    ("stall", Figure::Share(stall)),
                ],
            )),
            next_ms,
            forced: false,
        }
    }

    fn pace(&self) -> Pace {
        // Look no more often than the youngest age that may go requires, and than pays.
        let youngest_s = (0..2)
            .filter_map(|t| Some(self.curves[t].lower_s(self.from[t]?)))
            .fold(f64::INFINITY, f64::min);
        let look_ms = match youngest_s.is_finite() {
            true => (youngest_s * 1e3 / 3.0) as u64,
            false => self.period_ms,
        };
        Pace {
            decide_ms: self.period_ms,
            look_ms: Some(
                look_ms
                    .max(self.looks.interval_ms(self.price))
                    .clamp(self.period_ms.min(1_000), LOOK_MAX_MS),
            ),
            bounds: Intervals::new(self.bounds_ms.clone()).expect("bounds increase"),
            hold: None,
        }
    }
}
