// SPDX-License-Identifier: Apache-2.0
//! The window of generations: when each was born, and how many pages it holds.
//!
//! A generation is the set of pages last seen accessed in one interval of time. It is born when its
//! interval starts; the youngest is still open. The kernel keeps four (`MAX_NR_GENS`) and numbers
//! them with a sequence that only grows; here their number is a parameter, because one byte per
//! page can distinguish more than a hundred.
//!
//! A page does not carry the 64-bit sequence number but a [`Label`] of seven bits. Younger pages
//! have greater labels, so "older than" is one comparison of bytes. When labels run out, the window
//! is *coalesced*: neighbouring old generations become one with the union of their intervals, and
//! every page is relabelled once. Intervals remain exact bounds of age; only the resolution
//! coarsens with age, as much as necessary and no more.

use std::ops::Range;

/// What backs a page, in the sense of the kernel's `LRU_GEN_ANON` and `LRU_GEN_FILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageType {
    /// Swap-backed: private memory, and shared memory without a file.
    Anon = 0,
    /// Backed by a file.
    File = 1,
}

impl PageType {
    /// Both, in the order in which arrays indexed by type hold them.
    pub const ALL: [PageType; 2] = [PageType::Anon, PageType::File];
}

/// A number for anon and one for file; index with `PageType as usize`.
pub type ByType<T> = [T; 2];

/// The seven bits a page carries: 0 nothing known, 1 never seen accessed, then the generations
/// from the oldest to the youngest.
pub type Label = u8;

/// The page is neither present nor in swap.
pub const LABEL_NONE: Label = 0;
/// Present since the first look and never seen accessed: older than every generation.
pub const LABEL_UNSEEN: Label = 1;
/// The oldest generation of the window.
pub const LABEL_OLDEST: Label = 2;
/// How many labels fit in seven bits.
pub const LABELS: usize = 128;
/// The most generations a window can have.
pub const GENERATIONS_MAX: usize = LABELS - LABEL_OLDEST as usize;
/// The fewest: the kernel's `MIN_NR_GENS`.
pub const GENERATIONS_MIN: usize = 2;

/// How fine a coalesced window may be, finest first: an interval that ends at age `a` is at most
/// `a` divided by this wide.
const RESOLUTIONS: [u64; 11] = [64, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1];

/// Pages by label and type.
pub type Sizes = [ByType<u64>; LABELS];

/// The new label of each current label.
pub type Relabel = [Label; LABELS];

/// One generation of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its sequence number; if it was coalesced, that of the oldest generation in it.
    pub seq: u64,
    /// When its interval starts.
    pub birth_ms: u64,
}

/// The times since which a page must have been idle, to be idle for `age_ms` now.
pub fn idle_for(now_ms: u64, age_ms: u64) -> Range<u64> {
    let latest_ms = now_ms.checked_sub(age_ms);
    0..latest_ms.map_or(0, |latest_ms| latest_ms.saturating_add(1))
}

/// The window. The caller passes in the time, in milliseconds that never go back.
#[derive(Clone, Debug)]
pub struct Generations {
    capacity: usize,
    horizon_ms: u64,
    max_seq: u64,
    unseen_since_ms: Option<u64>,
    window: Vec<Generation>,
    sizes: Box<Sizes>,
}

impl Generations {
    /// A window that opens at `now_ms` with one empty generation.
    ///
    /// `capacity` is clamped to [`GENERATIONS_MIN`]..=[`GENERATIONS_MAX`]. Generations that are
    /// completely older than `horizon_ms` may be merged: pass the largest bound that will be
    /// requested, or `u64::MAX`.
    pub fn new(now_ms: u64, capacity: usize, horizon_ms: u64) -> Self {
        Generations {
            capacity: capacity.clamp(GENERATIONS_MIN, GENERATIONS_MAX),
            horizon_ms,
            max_seq: 0,
            unseen_since_ms: None,
            window: vec![Generation {
                seq: 0,
                birth_ms: now_ms,
            }],
            sizes: Box::new([[0; 2]; LABELS]),
        }
    }

    /// Bytes of memory taken from the allocator.
    pub fn memory_bytes(&self) -> usize {
        self.window.capacity() * size_of::<Generation>() + size_of::<Sizes>()
    }

    /// The sequence number of the youngest generation. It only grows.
    pub fn max_seq(&self) -> u64 {
        self.max_seq
    }

    /// The label of the youngest generation.
    pub fn youngest(&self) -> Label {
        LABEL_OLDEST + (self.window.len() - 1) as Label
    }

    /// Generations from the oldest to the youngest, with their labels.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Label, Generation)> + '_ {
        self.window
            .iter()
            .enumerate()
            .map(|(i, g)| (LABEL_OLDEST + i as Label, *g))
    }

    /// How many generations are in the window now.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Always `false`: a window has at least its youngest generation.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Since when the pages that were never seen accessed have been watched; `None` before the
    /// first [`advance`](Self::advance).
    pub fn unseen_since_ms(&self) -> Option<u64> {
        self.unseen_since_ms
    }

    /// Present pages by label and type.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The same, for the store to update.
    pub(crate) fn sizes_mut(&mut self) -> &mut Sizes {
        &mut self.sizes
    }

    /// Present pages of all labels.
    pub fn pages(&self) -> ByType<u64> {
        let mut total = [0; 2];
        for by_type in self.sizes.iter() {
            total[0] += by_type[0];
            total[1] += by_type[1];
        }
        total
    }

    /// Opens a new youngest generation at `now_ms` (the time accessed bits were cleared), and
    /// closes the previous one. A clock that went backwards is treated as stopped.
    ///
    /// Touches no page, except when labels ran out: then it returns the new labels, which the store
    /// must apply to every page before the next look.
    #[must_use = "pages keep stale labels unless the new ones are applied"]
    pub fn advance(&mut self, now_ms: u64) -> Option<Relabel> {
        let now_ms = now_ms.max(self.window[self.window.len() - 1].birth_ms);
        let relabel = (self.window.len() == self.capacity).then(|| self.coalesce(now_ms));
        self.max_seq += 1;
        self.window.push(Generation {
            seq: self.max_seq,
            birth_ms: now_ms,
        });
        self.unseen_since_ms.get_or_insert(now_ms);
        relabel
    }

    /// Since when pages with this label have certainly been idle: the end of the interval of their
    /// generation. `None` if they may be in use. It grows with the label.
    pub fn idle_since_ms(&self, label: Label) -> Option<u64> {
        match label {
            LABEL_UNSEEN => self.unseen_since_ms,
            _ => {
                let next = usize::from(label.checked_sub(LABEL_OLDEST)?) + 1;
                self.window.get(next).map(|next| next.birth_ms)
            }
        }
    }

    /// The first and the last label of the pages that have certainly been idle since a time in
    /// this range. `None` if no label qualifies.
    pub fn labels_idle_since(&self, since_ms: &Range<u64>) -> Option<(Label, Label)> {
        let is_within = |label: &Label| {
            let idle_ms = self.idle_since_ms(*label);
            idle_ms.is_some_and(|ms| since_ms.contains(&ms))
        };
        let mut labels = (LABEL_UNSEEN..self.youngest()).filter(is_within);
        let first = labels.next()?;
        Some((first, labels.next_back().unwrap_or(first)))
    }

    /// How many pages of a type have been idle since each time in the range, according to
    /// `sizes`: these are [`sizes`](Self::sizes) or those of a part of the pages.
    pub fn idle_pages(
        &self,
        sizes: &Sizes,
        page_type: PageType,
        since_ms: &Range<u64>,
    ) -> impl Iterator<Item = (u64, u64)> {
        let labels = self.labels_idle_since(since_ms);
        let labels = labels.into_iter().flat_map(|(first, last)| first..=last);
        labels.filter_map(move |label| {
            let pages = sizes[usize::from(label)][page_type as usize];
            Some((self.idle_since_ms(label)?, pages)).filter(|_| pages > 0)
        })
    }

    /// The ages (milliseconds, youngest first) between which a page with this label was last
    /// accessed. The upper one is `None` if no bound is known.
    pub fn age_bounds_ms(&self, label: Label, now_ms: u64) -> Option<(u64, Option<u64>)> {
        let age_ms = |since_ms: u64| now_ms.saturating_sub(since_ms);
        let youngest_ms = self.idle_since_ms(label).map(age_ms);
        if label == LABEL_UNSEEN {
            return Some((youngest_ms?, None));
        }
        let index = usize::from(label.checked_sub(LABEL_OLDEST)?);
        let oldest_ms = age_ms(self.window.get(index)?.birth_ms);
        Some((youngest_ms.unwrap_or(0), Some(oldest_ms)))
    }

    /// Makes room: drops the boundaries between generations that are close together compared with
    /// their age, at the finest resolution that frees a quarter of the window.
    fn coalesce(&mut self, now_ms: u64) -> Relabel {
        let room_for = (self.capacity - self.capacity.div_ceil(4)).max(1);
        let mut kept = Vec::new();
        for parts in RESOLUTIONS {
            kept = self.boundaries_kept(now_ms, parts);
            if kept.len() <= room_for {
                break;
            }
        }
        // With `parts` = 1 at most two boundaries are left, so this only affects the smallest
        // windows.
        let surplus = kept.len().saturating_sub(room_for);
        kept.drain(1..1 + surplus.min(kept.len() - 1));
        self.keep(&kept)
    }

    /// Indices, ascending, of the generations whose birth remains a boundary if an interval that
    /// ends at age `a` may be `a / parts` wide.
    fn boundaries_kept(&self, now_ms: u64, parts: u64) -> Vec<usize> {
        let age_ms = |index: usize| now_ms.saturating_sub(self.window[index].birth_ms);
        let mut kept = vec![self.window.len() - 1];
        let mut last_ms = age_ms(self.window.len() - 1);
        for index in (1..self.window.len() - 1).rev() {
            if last_ms > self.horizon_ms {
                break;
            }
            let wider_ms = age_ms(index - 1);
            if wider_ms - last_ms > wider_ms / parts {
                kept.push(index);
                last_ms = age_ms(index);
            }
        }
        if self.window.len() > 1 {
            kept.push(0);
        }
        kept.reverse();
        kept
    }

    /// Keeps these generations (ascending, 0 first); each of the others is merged into the one
    /// before it.
    fn keep(&mut self, kept: &[usize]) -> Relabel {
        let mut relabel = [LABEL_NONE; LABELS];
        relabel[LABEL_UNSEEN as usize] = LABEL_UNSEEN;
        let mut target = 0;
        for index in 0..self.window.len() {
            if kept.get(target + 1) == Some(&index) {
                target += 1;
            }
            relabel[LABEL_OLDEST as usize + index] = LABEL_OLDEST + target as Label;
        }
        let mut sizes = [[0; 2]; LABELS];
        for (label, by_type) in self.sizes.iter().enumerate() {
            let target = &mut sizes[relabel[label] as usize];
            target[0] += by_type[0];
            target[1] += by_type[1];
        }
        *self.sizes = sizes;
        self.window = kept.iter().map(|index| self.window[*index]).collect();
        relabel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequence_grows_and_births_follow_the_clock() {
        let mut window = Generations::new(100, 8, u64::MAX);
        assert_eq!(
            (
                window.max_seq(),
                window.youngest(),
                window.unseen_since_ms()
            ),
            (0, 2, None)
        );
        assert!(window.advance(1100).is_none());
        assert!(window.advance(900).is_none());
        let births: Vec<u64> = window.iter().map(|(_, g)| g.birth_ms).collect();
        assert_eq!(births, [100, 1100, 1100]);
        assert_eq!((window.max_seq(), window.youngest()), (2, 4));
        assert_eq!(window.unseen_since_ms(), Some(1100));
    }

    #[test]
    fn older_than_takes_only_whole_intervals() {
        let mut window = Generations::new(0, 8, u64::MAX);
        for now_ms in [1000, 2000, 3000] {
            assert!(window.advance(now_ms).is_none());
        }
        // Generations: [0,1000) [1000,2000) [2000,3000) [3000,now]; unseen since 1000.
        let labels = |age_ms| window.labels_idle_since(&idle_for(3500, age_ms));
        assert_eq!(labels(2500), Some((1, 2)));
        assert_eq!(labels(2501), None);
        assert_eq!(labels(1500), Some((1, 3)));
        assert_eq!(labels(0), Some((1, 4)));
        assert_eq!(labels(9999), None);
        assert_eq!(window.labels_idle_since(&(1001..3000)), Some((3, 3)));
        assert_eq!(window.labels_idle_since(&(3001..9999)), None);
        assert_eq!(window.age_bounds_ms(3, 3500), Some((1500, Some(2500))));
        assert_eq!(window.age_bounds_ms(5, 3500), Some((0, Some(500))));
        assert_eq!(window.age_bounds_ms(1, 3500), Some((2500, None)));
        assert_eq!(window.age_bounds_ms(0, 3500), None);
        assert_eq!(window.age_bounds_ms(6, 3500), None);
    }

    #[test]
    fn ten_minutes_at_one_second_keep_a_twelfth() {
        let mut window = Generations::new(0, GENERATIONS_MAX, 600_000);
        for tick in 1..=5000u64 {
            let now_ms = tick * 1000;
            let _ = window.advance(now_ms);
            let births: Vec<u64> = window.iter().map(|(_, g)| g.birth_ms).collect();
            for pair in births.windows(2) {
                let (older, younger) = (now_ms - pair[0], now_ms - pair[1]);
                let width = older - younger;
                assert!(
                    younger > 600_000 || width <= (older / 12).max(1000),
                    "at {now_ms}: {younger}..{older}"
                );
            }
        }
    }

    proptest! {
        /// Coalescing loses no page, keeps the age of every label within its new bounds, and keeps
        /// the order.
        #[test]
        fn coalescing_keeps_bounds(
            capacity in 2usize..=GENERATIONS_MAX,
            horizon in prop_oneof![Just(u64::MAX), 1u64..100_000],
            steps in prop::collection::vec(0u64..5000, 1..400),
        ) {
            let mut window = Generations::new(0, capacity, horizon);
            let mut now_ms = 0;
            let mut pages = 0;
            for (i, step) in steps.into_iter().enumerate() {
                now_ms += step;
                let young = window.youngest() as usize;
                window.sizes_mut()[young][i % 2] += 3;
                pages += 3;
                let before = window.clone();
                if let Some(relabel) = window.advance(now_ms) {
                    for label in LABEL_UNSEEN..=before.youngest() {
                        let new = relabel[label as usize];
                        prop_assert!(new >= LABEL_UNSEEN && new < window.youngest());
                        if label == LABEL_UNSEEN { prop_assert_eq!(new, label); continue; }
                        prop_assert!(new <= label && new >= relabel[label as usize - 1]);
                        let (lo, hi) = before.age_bounds_ms(label, now_ms).unwrap();
                        let (new_lo, new_hi) = window.age_bounds_ms(new, now_ms).unwrap();
                        prop_assert!(new_lo <= lo && new_hi >= hi);
                    }
                }
                prop_assert!(window.len() <= capacity);
                prop_assert_eq!(window.pages().iter().sum::<u64>(), pages);
                prop_assert_eq!(window.max_seq(), i as u64 + 1);
            }
        }
    }
}
