// SPDX-License-Identifier: Apache-2.0
//! The reuse model: which page is worth keeping, from how often and how recently it was touched.
//!
//! A page keeps two bytes, also while it is in swap ([`PageHistory`]): its hotness (touches, each
//! worth less by `decay` for every look since) and the look that last saw it touched. A cgroup keeps
//! one [`ReuseModel`], which learns from a sample of pages the *hazard*: the chance that a page of
//! this hotness, untouched for this many looks, is touched by the next look. From hazards follows
//! what a page is worth, the Gittins index: the best ratio, over all horizons, of the chance that
//! it is touched by then to the looks for which it has to be kept until then. What is worth least
//! goes first.
//!
//! A page that returns at a fixed interval, as in a loop larger than memory, is worth *more* the
//! longer it has been idle, which neither recency nor frequency can say. A page touched once in a
//! scan is worth what such pages have been worth before, so that scans pass through. While nothing
//! is known the hazard falls with age, and the order is that of LRU.
//!
//! The field: hazard rates as the value of cached objects are those of EVA (Beckmann and Sanchez,
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
//!     for (number, page) in pages.iter_mut().enumerate() {
//!         // Page 0 is touched before every look, the others take turns.
//!         seen.page(number as u64, page, number == 0 || look % 4 == number);
//!     }
//!     seen.finish();
//! }
//! assert!(model.value_untouched(pages[0]) > model.value_untouched(pages[1]));
//! ```

mod ages;
mod hazard;
mod index;

use ages::{AGE_BUCKETS, age_bucket};
use hazard::Exposures;
use index::Index;

use crate::heat::scale::Scale;
use crate::mix;

/// Classes of hotness: powers of two, so many below one touch and so many above.
const CLASSES: usize = 10;
/// The class of a page touched once: those below hold no page, and are what is known of all pages.
const CLASS_OF_ONE: usize = 4;
/// Looks that a history tells apart; a page untouched for longer counts as untouched for so long.
const LOOKS_KEPT: u8 = 250;
/// What the histories are set back by when they near the top.
const LOOKS_SHIFT: u8 = 125;

/// What the model is made with. Defaults are those that were measured (`docs/inside/reuse.md`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReuseParams {
    /// What one look leaves of a page's hotness, from 0.5 to 0.999.
    pub decay: f64,
    /// What one look leaves of the model's evidence, from 0.5 to 0.9999.
    pub forget: f64,
    /// One page in so many, chosen by hash, teaches the model.
    pub sample: u64,
}

impl Default for ReuseParams {
    fn default() -> Self {
        ReuseParams {
            decay: 0.99,
            forget: 0.97,
            sample: 8,
        }
    }
}

/// What is remembered of a page: two bytes. The default is a page that was never seen touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageHistory {
    /// The level of its hotness on the model's scale; 0: never touched.
    level: u8,
    /// The look that last saw it touched, on the model's clock of looks.
    touched: u8,
}

/// What a page is worth: eighths of an octave of the chance of use a look. Greater is kept.
pub type Value = i16;

/// Less than any page that was ever touched.
pub const VALUE_UNKNOWN: Value = Value::MIN;

/// What is known of the reuse of a cgroup's pages. Some 10 KiB.
#[derive(Clone, Debug)]
pub struct ReuseModel {
    params: ReuseParams,
    scale: Scale,
    /// The number of the current look on the clock of the histories.
    now: u8,
    /// The look under way began by setting the clock back.
    is_set_back: bool,
    lowered: u8,
    exposures: Exposures,
    index: Index,
}

impl ReuseModel {
    /// A model that knows nothing: LRU.
    ///
    /// # Panics
    /// If a parameter is outside the range stated at its field.
    pub fn new(params: ReuseParams) -> Self {
        assert!((0.5..=0.999).contains(&params.decay), "{params:?}");
        assert!((0.5..=0.9999).contains(&params.forget), "{params:?}");
        assert!(params.sample > 0, "{params:?}");
        let exposures = Exposures::default();
        ReuseModel {
            params,
            scale: Scale::new(params.decay),
            now: 1,
            is_set_back: false,
            lowered: 0,
            index: Index::of(&exposures),
            exposures,
        }
    }

    /// A look begins: accessed bits are read, faults since the last look are known.
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

    /// What a page is worth that was not touched since the last look.
    pub fn value_untouched(&self, page: PageHistory) -> Value {
        if page.level == 0 {
            return VALUE_UNKNOWN;
        }
        // The next look will find it idle for one look more than the last one did.
        let bucket = age_bucket(u32::from(self.age(page)) + 1);
        self.index.value(self.hotness(page), bucket)
    }

    /// What a page is worth that has been touched since the last look; also one that has just been
    /// faulted in, which may well be worth less than what was there before.
    pub fn value_touched(&self, page: PageHistory) -> Value {
        let heat = self.scale.heat(page.level) * self.params.decay + 1.0;
        self.index.value(heat.log2(), age_bucket(1))
    }

    /// Bytes of memory the model takes. Histories are the caller's.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + 256 + self.exposures.memory_bytes() + self.index.memory_bytes()
    }

    /// Looks since the page was touched, at most [`LOOKS_KEPT`].
    fn age(&self, page: PageHistory) -> u8 {
        self.now - page.touched.min(self.now)
    }

    /// log2 of its hotness when it was touched last.
    fn hotness(&self, page: PageHistory) -> f64 {
        let since = f64::from(self.age(page)) * -self.params.decay.log2();
        self.scale.heat(page.level).log2() + since
    }

    fn is_in_sample(&self, number: u64) -> bool {
        mix::hash(number).is_multiple_of(self.params.sample)
    }
}

/// A look under way: every page with a history, resident or in swap, is shown once.
#[derive(Debug)]
pub struct Look<'a> {
    model: &'a mut ReuseModel,
}

impl Look<'_> {
    /// Whether the histories have to be set back before this look: once in more than a hundred.
    pub fn is_shift_due(&self) -> bool {
        self.model.is_set_back || self.model.lowered > 0
    }

    /// Sets histories back where it is due. All of them have to come, before any is shown.
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
            // The coldest stays a page that is known.
            page.level = page.level.saturating_sub(self.model.lowered).max(1);
            page.touched = page.touched.saturating_sub(looks);
        }
    }

    /// Shows a page: whether it was touched since the last look. `number` names it for good, and
    /// decides whether it belongs to the sample.
    pub fn page(&mut self, number: u64, page: &mut PageHistory, is_touched: bool) {
        let model = &mut *self.model;
        if page.level > 0 && model.is_in_sample(number) {
            // The age it had reached by this look, of the hotness it had when last touched.
            let class = class_of(model.hotness(*page));
            let bucket = age_bucket(u32::from(model.age(*page)));
            model.exposures.add(class, bucket, is_touched);
        }
        if is_touched {
            page.level = model.scale.after_access(page.level);
            page.touched = model.now;
        }
    }

    /// Ends the look: the index follows what was seen.
    pub fn finish(self) {
        self.model.index = Index::of(&self.model.exposures);
    }
}

/// The class of a hotness, given as log2.
fn class_of(hotness: f64) -> usize {
    let class = hotness.floor() + CLASS_OF_ONE as f64;
    class.clamp(0.0, (CLASSES - 1) as f64) as usize
}

/// A number for each class and age.
type Table = [[f64; AGE_BUCKETS]; CLASSES];

#[cfg(test)]
mod tests;
