// SPDX-License-Identifier: Apache-2.0
//! The reuse model: which page is worth keeping, from how often and how recently it was touched.
//!
//! A page has two bytes, also while it is in swap ([`PageHistory`]): its hotness (touches, each
//! discounted by `decay` at every look since) and the look that last saw it touched. A cgroup has
//! one [`ReuseModel`], which learns the *hazard* from a sample of bounded size: the probability
//! that a page of this hotness, untouched for this many looks, is touched by the next look. The
//! value of a page follows from the hazards, as the Gittins index: the best ratio, over all
//! horizons, of the probability that it is touched within the horizon to the looks for which it
//! must be kept until then. The least valuable page goes first.
//!
//! A page that returns at a fixed interval, as in a loop larger than memory, is worth *more* the
//! longer it has been idle, which neither recency nor frequency can express. A page touched once in
//! a scan is worth what such pages were worth before, so scans pass through. Without evidence, the
//! hazard falls with age, and the order is that of LRU.
//!
//! Related work: hazard rates as the value of cached objects come from EVA (Beckmann and Sanchez,
//! HPCA 2017) and LHD (Beckmann, Chen and Cidon, NSDI 2018); the index is Gittins' (1979).
//!
//! ```
//! use agewise_policy::reuse::{PageHistory, ReuseModel, ReuseParams};
//!
//! let mut model = ReuseModel::new(ReuseParams::default());
//! let mut pages = [PageHistory::default(); 4];
//! for look in 0..20 {
//!     let mut seen = model.look();
//!     seen.shift(&mut pages);
//!     // Page 0 is touched before every look, the others take turns.
//!     seen.word(0, &mut pages, 1 | 1 << (look % 4));
//!     seen.finish();
//! }
//! assert!(model.value_untouched(pages[0]) > model.value_untouched(pages[1]));
//! ```

mod ages;
mod hazard;
mod index;
mod scale;

use ages::{AGE_BUCKETS, age_bucket};
use hazard::Exposures;
use index::{Index, Place};

use crate::mix;
use scale::Scale;

/// Classes of hotness: powers of two, some below one touch and some above.
const CLASSES: usize = 10;
/// The class of a page touched once. Lower classes hold no page: their hazards are those of all.
const CLASS_OF_ONE: usize = 4;
/// The ages in looks that a history distinguishes; a page untouched for longer counts as this old.
const LOOKS_KEPT: u8 = 250;
/// How far the histories are set back when the clock nears its maximum.
const LOOKS_SHIFT: u8 = 125;

/// The parameters of the model. The defaults did best in measurements (`docs/inside/reuse.md`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReuseParams {
    /// The share of a page's hotness that remains after one look, from 0.5 to 0.999.
    pub decay: f64,
    /// The share of the model's evidence that remains after one look, from 0.5 to 0.9999.
    pub forget: f64,
    /// At most this many pages, selected by hash, teach the model at a look.
    pub sample_pages: u64,
}

impl Default for ReuseParams {
    fn default() -> Self {
        ReuseParams {
            decay: 0.99,
            forget: 0.97,
            sample_pages: 16 << 10,
        }
    }
}

/// What is remembered about a page, in two bytes. The default is a page that was never seen
/// touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageHistory {
    /// The level of its hotness on the model's scale; 0 if it was never touched.
    level: u8,
    /// The look that last saw it touched, on the model's clock of looks.
    touched: u8,
}

/// The value of a page, in eighths of an octave of the chance of use per look. Greater values stay.
pub type Value = i16;

/// Less than any page that was ever touched.
pub const VALUE_UNKNOWN: Value = Value::MIN;

/// What is known about the reuse of a cgroup's pages. It takes about 10 KiB.
#[derive(Clone, Debug)]
pub struct ReuseModel {
    params: ReuseParams,
    scale: Scale,
    /// The number of the current look on the clock of the histories.
    now: u8,
    /// Whether the look under way began by setting the clock back.
    is_set_back: bool,
    lowered: u8,
    exposures: Exposures,
    index: Index,
    /// Values of pages touched since the last look, by level.
    touched: Box<[Value; 256]>,
    /// For pages not touched, by the number of looks since their last touch: where their values
    /// are.
    untouched: Box<[Place; 256]>,
    /// One page in 2 to the power of this is in the sample.
    thinned: u32,
    /// Pages of the sample that the look under way has seen.
    sampled_pages: u64,
}

impl ReuseModel {
    /// A model without evidence, which orders pages as LRU does.
    ///
    /// # Panics
    /// If a parameter is outside the range stated at its field.
    pub fn new(params: ReuseParams) -> Self {
        assert!((0.5..=0.999).contains(&params.decay), "{params:?}");
        assert!((0.5..=0.9999).contains(&params.forget), "{params:?}");
        let exposures = Exposures::default();
        let mut model = ReuseModel {
            params,
            scale: Scale::new(params.decay),
            now: 1,
            is_set_back: false,
            lowered: 0,
            index: Index::of(&exposures),
            exposures,
            touched: Box::new([0; 256]),
            untouched: Box::new([Place::default(); 256]),
            thinned: 0,
            sampled_pages: 0,
        };
        model.value_levels();
        model
    }

    /// Starts a look, after accessed bits were read and the faults since the last look are known.
    pub fn look(&mut self) -> Look<'_> {
        self.lowered = self.scale.advance();
        self.is_set_back = self.now >= LOOKS_KEPT;
        if self.is_set_back {
            self.now -= LOOKS_SHIFT;
        }
        self.now += 1;
        self.exposures.fade(self.params.forget);
        Look { model: self }
    }

    /// The value of a page that was not touched since the last look.
    #[inline]
    pub fn value_untouched(&self, page: PageHistory) -> Value {
        if page.level == 0 {
            return VALUE_UNKNOWN;
        }
        let place = self.untouched[usize::from(self.age(page))];
        self.index.value_at(page.level, place)
    }

    /// The value of a page that has been touched since the last look, or has just been faulted in.
    /// It may well be less than that of older pages.
    #[inline]
    pub fn value_touched(&self, page: PageHistory) -> Value {
        self.touched[usize::from(page.level)]
    }

    /// How hot a page is now, in steps of a quarter of an octave: only touches count, with decay. 0
    /// is the cold end of the scale.
    #[inline]
    pub fn heat_step(&self, page: PageHistory) -> u8 {
        Scale::step(page.level)
    }

    /// Whether the last look saw the page touched.
    #[inline]
    pub fn is_fresh(&self, page: PageHistory) -> bool {
        page.level > 0 && page.touched == self.now
    }

    /// Looks since the page was touched, at most [`LOOKS_KEPT`].
    #[inline]
    fn age(&self, page: PageHistory) -> u8 {
        self.now - page.touched.min(self.now)
    }

    /// log2 of the hotness of a page when it was last touched.
    #[inline]
    fn hotness(&self, page: PageHistory) -> f32 {
        let since = f32::from(self.age(page)) * self.scale.octaves_a_look();
        self.scale.log2_heat(page.level) + since
    }

    fn value_levels(&mut self) {
        for (age, place) in (0..=255u8).zip(self.untouched.iter_mut()) {
            // The hotness, when last touched, of a page whose level would now be 0.
            let since = f32::from(age) * self.scale.octaves_a_look();
            // The next look will find the page idle for one more look than the last one did.
            let bucket = age_bucket(u32::from(age) + 1);
            *place = Index::place(self.scale.log2_heat(0) + since, bucket);
        }
        for (level, value) in (0..=255u8).zip(self.touched.iter_mut()) {
            let heat = self.scale.heat(level) * self.params.decay + 1.0;
            *value = self.index.value(heat.log2() as f32, age_bucket(1));
        }
    }

    /// Which of the 64 pages of a word belong to the sample.
    fn sampled(&self, word: u64) -> u64 {
        const WORDS_FROM: u32 = 3;
        let skipped = self.thinned.saturating_sub(WORDS_FROM);
        if mix::hash(word).trailing_zeros() < skipped {
            return 0;
        }
        // Each factor keeps half of the pages.
        (0..self.thinned.min(WORDS_FROM))
            .map(|half| mix::hash(word ^ u64::from(half + 1) << 60))
            .fold(u64::MAX, |mask, half| mask & half)
    }
}

/// A look under way: every page with a history, resident or in swap, must be shown once.
#[derive(Debug)]
pub struct Look<'a> {
    model: &'a mut ReuseModel,
}

impl Look<'_> {
    /// Whether the histories must be set back before this look: once in a hundred looks or less
    /// with the default decays, once in five with the fastest.
    pub fn is_shift_due(&self) -> bool {
        self.model.is_set_back || self.model.lowered > 0
    }

    /// Sets histories back if this is due. All of them must be passed before any page is shown.
    pub fn shift(&self, pages: &mut [PageHistory]) {
        if !self.is_shift_due() {
            return;
        }
        let looks = if self.model.is_set_back {
            LOOKS_SHIFT
        } else {
            0
        };
        for page in pages.iter_mut().filter(|page| page.level > 0) {
            // Even the coldest remains a page that has been touched: level 0 means never.
            page.level = page.level.saturating_sub(self.model.lowered).max(1);
            page.touched = page.touched.saturating_sub(looks);
        }
    }

    /// Shows up to 64 pages, and which of them were touched since the last look. The number of the
    /// word identifies them permanently and decides which of them belong to the sample.
    pub fn word(&mut self, number: u64, pages: &mut [PageHistory], touched: u64) {
        let model = &mut *self.model;
        for at in each_bit(model.sampled(number), pages.len()) {
            let page = pages[at];
            if page.level > 0 {
                // Counts at the age the page reached by this look, with the hotness it had when
                // last touched.
                let class = class_of(model.hotness(page));
                let bucket = age_bucket(u32::from(model.age(page)));
                model.exposures.add(class, bucket, touched >> at & 1 == 1);
                model.sampled_pages += 1;
            }
        }
        for at in each_bit(touched, pages.len()) {
            let page = &mut pages[at];
            page.level = model.scale.after_access(page.level);
            page.touched = model.now;
        }
    }

    /// Ends the look: updates the values from the observations.
    pub fn finish(self) {
        let model = self.model;
        let sampled_pages = std::mem::take(&mut model.sampled_pages);
        if sampled_pages > model.params.sample_pages {
            model.thinned += 1;
        } else if sampled_pages < model.params.sample_pages / 4 {
            model.thinned = model.thinned.saturating_sub(1);
        }
        model.index = Index::of(&model.exposures);
        model.value_levels();
    }
}

/// The set bits among the first `length` bits.
fn each_bit(mut bits: u64, length: usize) -> impl Iterator<Item = usize> {
    if length < 64 {
        bits &= (1 << length) - 1;
    }
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        bit
    })
}

/// The class of a hotness, given as log2.
fn class_of(hotness: f32) -> usize {
    let class = hotness.floor() + CLASS_OF_ONE as f32;
    class.clamp(0.0, (CLASSES - 1) as f32) as usize
}

/// A number for each class and age.
type Table = [[f64; AGE_BUCKETS]; CLASSES];

#[cfg(test)]
mod tests;
