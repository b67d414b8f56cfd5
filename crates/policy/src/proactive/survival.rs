// SPDX-License-Identifier: Apache-2.0
//! How long memory that has been idle for some time stays idle, learned from what came back.
//!
//! For each age, the time spent at that age (page-seconds, resident or out) and the pages accessed
//! at that age give a hazard; the hazards of all later ages give the mean time until a page of this
//! age is accessed again. This is the estimator of survival analysis for censored data (Kaplan and
//! Meier, 1958; Nelson, 1972), with exponential forgetting. Pages that left continue to age:
//! whether they return or not teaches the same curve.

/// The prior of a bin is the hazard of the next younger one. It weighs as much as this many pages
/// observed over the width of the bin.
const PRIOR_PAGES: f64 = 16.0;
/// Evidence is forgotten by half in this time, in s.
const HALF_LIFE_S: f64 = 300.0;
/// Evidence about old memory is kept for longer, by half for this many times the age: what comes
/// back once an hour takes hours to learn.
const HALF_LIFE_AGES: f64 = 6.0;
/// Stays longer than this are not distinguished, in s.
const STAY_MAX_S: f64 = 86_400.0;

/// Learns one curve. Bins of age have upper bounds, youngest first; the last has none.
#[derive(Clone, Debug)]
pub struct Survival {
    bins: Vec<Cell>,
    /// Pages that were out and came back per second, decayed.
    refaults_per_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    lower_s: f64,
    upper_s: f64,
    exposure_page_s: f64,
    returned: f64,
    /// Pages that are out, by how long they have been idle.
    out: f64,
    /// Mean time until an access, from the lower bound of the bin on.
    stay_s: f64,
    hazard: f64,
}

impl Cell {
    fn width_s(&self) -> f64 {
        self.upper_s - self.lower_s
    }
}

impl Survival {
    /// A curve over these bounds.
    pub fn new(bounds_ms: &[u64]) -> Self {
        let seconds = |ms: &u64| *ms as f64 / 1e3;
        let lowers = [0.0].into_iter().chain(bounds_ms.iter().map(seconds));
        let uppers = bounds_ms.iter().map(seconds).chain([f64::INFINITY]);
        let bins = lowers.zip(uppers).map(|(lower_s, upper_s)| Cell {
            lower_s,
            upper_s,
            exposure_page_s: 0.0,
            returned: 0.0,
            out: 0.0,
            stay_s: 0.0,
            hazard: f64::INFINITY,
        });
        Survival {
            bins: bins.collect(),
            refaults_per_s: 0.0,
        }
    }

    /// How many bins there are.
    pub fn len(&self) -> usize {
        self.bins.len()
    }

    /// Always `false`.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bin of an age.
    pub fn bin(&self, age_s: f64) -> usize {
        self.bins.partition_point(|cell| cell.upper_s < age_s)
    }

    /// Records that pages of this age left.
    pub fn left(&mut self, bin: usize, pages: f64) {
        self.bins[bin].out += pages;
    }

    /// Pages that are out.
    pub fn out_pages(&self) -> f64 {
        self.bins.iter().map(|cell| cell.out).sum()
    }

    /// Corrects the number of pages that are out, where it is known: pages may be freed there.
    pub fn set_out_pages(&mut self, pages: f64) {
        let believed = self.out_pages();
        if believed > 0.0 {
            for cell in &mut self.bins {
                cell.out *= pages / believed;
            }
        }
    }

    /// Time passed in which `resident` pages were in each bin. `returned` of each were accessed
    /// again; it is `None` if only the number of pages `refaulted` is known, which were out.
    pub fn observe(
        &mut self,
        passed_s: f64,
        resident: &[f64],
        returned: Option<&[f64]>,
        refaulted: f64,
    ) {
        if passed_s <= 0.0 {
            return;
        }
        self.forget(passed_s);
        let keep = 0.5f64.powf(passed_s / 30.0);
        self.refaults_per_s = self.refaults_per_s * keep + refaulted / passed_s * (1.0 - keep);
        for (at, cell) in self.bins.iter_mut().enumerate() {
            let resident = resident.get(at).copied().unwrap_or(0.0);
            cell.exposure_page_s += (resident + cell.out) * passed_s;
        }
        match returned {
            Some(returned) => self.came_back(returned, refaulted),
            None => self.came_back_from_anywhere(refaulted),
        }
        self.age_out(passed_s);
        self.estimate();
    }

    fn forget(&mut self, passed_s: f64) {
        for cell in &mut self.bins {
            let half_life_s = HALF_LIFE_S.max(cell.lower_s * HALF_LIFE_AGES);
            let keep = 0.5f64.powf(passed_s / half_life_s);
            cell.exposure_page_s *= keep;
            cell.returned *= keep;
        }
    }

    /// The oldest pages in `returned` are those that had been out.
    fn came_back(&mut self, returned: &[f64], refaulted: f64) {
        let mut from_out = refaulted;
        for (cell, pages) in self.bins.iter_mut().zip(returned).rev() {
            cell.returned += pages;
            let from_here = pages.min(cell.out).min(from_out);
            cell.out -= from_here;
            from_out -= from_here;
        }
        let out = self.out_pages();
        self.set_out_pages((out - from_out).max(0.0));
    }

    /// Their ages are unknown: they are divided in proportion to what was expected to come back.
    fn came_back_from_anywhere(&mut self, refaulted: f64) {
        let weight = |cell: &Cell| cell.out * cell.hazard.clamp(1.0 / STAY_MAX_S, 1.0);
        let all: f64 = self.bins.iter().map(weight).sum();
        if all <= 0.0 {
            return;
        }
        for cell in &mut self.bins {
            let pages = refaulted * weight(cell) / all;
            cell.returned += pages;
            cell.out = (cell.out - pages).max(0.0);
        }
    }

    /// Pages that are out grow older: a share of each bin moves to the next.
    fn age_out(&mut self, passed_s: f64) {
        for at in (1..self.bins.len()).rev() {
            let share = (passed_s / self.bins[at - 1].width_s()).min(1.0);
            let pages = self.bins[at - 1].out * share;
            self.bins[at - 1].out -= pages;
            self.bins[at].out += pages;
        }
    }

    fn estimate(&mut self) {
        let mut younger = f64::INFINITY;
        for cell in &mut self.bins {
            let width_s = if cell.upper_s.is_finite() {
                cell.width_s()
            } else {
                cell.lower_s.max(1.0)
            };
            let prior_page_s = PRIOR_PAGES * width_s;
            cell.hazard = if younger.is_finite() {
                (cell.returned + prior_page_s * younger) / (cell.exposure_page_s + prior_page_s)
            } else {
                (cell.returned + PRIOR_PAGES) / (cell.exposure_page_s + prior_page_s)
            };
            younger = cell.hazard;
        }
        let mut later_s = 0.0;
        for cell in self.bins.iter_mut().rev() {
            let hazard = cell.hazard.max(1.0 / STAY_MAX_S);
            let through = if cell.upper_s.is_finite() {
                (-hazard * cell.width_s()).exp()
            } else {
                0.0
            };
            cell.stay_s = (1.0 - through) / hazard + through * later_s;
            later_s = cell.stay_s;
        }
    }

    /// Mean time until a page that has just reached this bin is accessed, in s.
    pub fn stay_s(&self, bin: usize) -> f64 {
        self.bins[bin].stay_s
    }

    /// Probability per second that a page of this age is accessed.
    pub fn hazard_per_s(&self, bin: usize) -> f64 {
        self.bins[bin].hazard
    }

    /// The age at which a bin begins, in s.
    pub fn lower_s(&self, bin: usize) -> f64 {
        self.bins[bin].lower_s
    }

    /// Pages that were out and came back per second recently.
    pub fn refaults_per_s(&self) -> f64 {
        self.refaults_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS_MS: [u64; 6] = [1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

    /// 1000 pages, each accessed with probability 1 - exp(-hazard) per second.
    fn constant(hazard: f64, seconds: u64) -> Survival {
        let mut curve = Survival::new(&BOUNDS_MS);
        let mut ages = vec![0u64; 1000];
        let mut state = 1u64;
        for _ in 0..seconds {
            let (mut resident, mut returned) = (vec![0.0; 7], vec![0.0; 7]);
            for age in &mut ages {
                *age += 1;
                resident[curve.bin(*age as f64)] += 1.0;
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                if (state >> 33) as f64 / (1u64 << 31) as f64 > (-hazard).exp() {
                    returned[curve.bin(*age as f64)] += 1.0;
                    *age = 0;
                }
            }
            curve.observe(1.0, &resident, Some(&returned), 0.0);
        }
        curve
    }

    #[test]
    fn a_constant_hazard_gives_the_same_stay_at_every_age() {
        let curve = constant(0.1, 300);
        for bin in 1..5 {
            let stay_s = curve.stay_s(bin);
            assert!((8.0..13.0).contains(&stay_s), "bin {bin}: {stay_s}");
        }
    }

    #[test]
    fn what_never_comes_back_is_trusted_more_the_longer_it_is_watched() {
        let mut curve = Survival::new(&BOUNDS_MS);
        let mut before_s = 0.0;
        for second in 1..=40u64 {
            let mut resident = vec![0.0; 7];
            resident[curve.bin(second as f64)] = 10_000.0;
            curve.observe(1.0, &resident, Some(&[0.0; 7]), 0.0);
            let stay_s = curve.stay_s(curve.bin(second as f64));
            assert!(
                stay_s >= before_s * 0.9,
                "{second} s: {stay_s} after {before_s}"
            );
            before_s = stay_s;
        }
        assert!(before_s > 3_600.0, "{before_s}");
    }

    /// Everything is read once in 30 s: at an age of 10 s a page is 20 s away from its next access.
    #[test]
    fn what_comes_back_together_is_foreseen_after_the_first_time() {
        let mut curve = Survival::new(&BOUNDS_MS);
        for second in 0..95u64 {
            let age = second % 30 + 1;
            let (mut resident, mut returned) = (vec![0.0; 7], vec![0.0; 7]);
            resident[curve.bin(age as f64)] = 1000.0;
            if age == 30 {
                returned[curve.bin(30.0)] = 1000.0;
            }
            curve.observe(1.0, &resident, Some(&returned), 0.0);
        }
        let stay_s = curve.stay_s(curve.bin(10.0));
        assert!((10.0..40.0).contains(&stay_s), "{stay_s}");
    }

    #[test]
    fn refaults_of_unknown_age_teach_as_well_and_leave_fewer_out() {
        let mut curve = Survival::new(&BOUNDS_MS);
        curve.observe(10.0, &[0.0, 0.0, 0.0, 1000.0, 0.0, 0.0, 0.0], None, 0.0);
        let before_s = curve.stay_s(3);
        curve.left(3, 1000.0);
        for _ in 0..20 {
            let due = curve.out_pages() * 0.1;
            curve.observe(1.0, &[0.0; 7], None, due);
        }
        assert!(curve.out_pages() < 200.0);
        assert!(
            curve.stay_s(3) < before_s / 2.0,
            "{} {before_s}",
            curve.stay_s(3)
        );
        assert!(curve.refaults_per_s() > 1.0);
        curve.set_out_pages(0.0);
        assert_eq!(curve.out_pages(), 0.0);
    }
}
