// SPDX-License-Identifier: Apache-2.0
//! How far the ages of files may be off: by the time between two looks, and by samples.

use agewise_policy::generations::{ByType, Generations, LABELS, Sizes};
use agewise_policy::sample::{Margin, Spread};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::Cache;
use crate::agent::SubjectReport;
use crate::agent::followed::bins_of_labels;
use crate::cgroup::Cgroup;
use crate::pagecache::{CachedFile, Owner};

/// What a sample does not show of the pages that a cgroup has of a file.
struct Unseen {
    /// Pages in blocks that are not followed.
    pages: u64,
    /// The margin of each bin, in pages.
    margins: Vec<ByType<Margin>>,
}

impl Cache {
    /// Adds what looks and samples of files leave open about a cgroup and those below it: pages
    /// that are not followed, and with `bounds` the margin of each bin.
    ///
    /// Margins of samples follow from how much the blocks that are followed differ ([`Spread`]). If
    /// several cgroups have pages of a file, each part is taken to be like the whole, as it is for
    /// ages.
    pub fn add_margins_to(
        &self,
        report: &mut SubjectReport,
        of: &Cgroup,
        bounds: Option<&Intervals>,
    ) {
        let window = self.ages.generations();
        let now_ms = self.ages.last_look_ms();
        let bin_of = bounds.map(|bounds| bins_of_labels(window, now_ms, bounds));
        let bins = bounds.map_or(0, |bounds| bounds.bounds_ms().len() + 1);
        if let Some(bounds) = bounds {
            let mut of_all = [[0; 2]; LABELS];
            let own = |owner: &Owner| self.is_of(of, owner.cgroup);
            for (_, sizes) in self.sizes.iter().filter(|(owner, _)| own(owner)) {
                let sums = of_all.as_flattened_mut().iter_mut();
                sums.zip(sizes.as_flattened())
                    .for_each(|(sum, pages)| *sum += pages);
            }
            report.add_unseen(0, &between_looks(window, &of_all, now_ms, bounds));
        }
        for file in self.ages.sampled_files() {
            let own = self.ages.pages_of(file, &|id| self.is_of(of, id));
            if own != [0; 2] {
                let unseen = self.unseen(file, own, (bins, bin_of.as_ref()));
                report.add_unseen(unseen.pages, &unseen.margins);
            }
        }
    }

    fn unseen(
        &self,
        file: &CachedFile,
        own: ByType<u64>,
        (bins, bin_of): (usize, Option<&[usize; LABELS]>),
    ) -> Unseen {
        let mut spreads = [Spread::new(bins), Spread::new(bins)];
        let mut followed = [0; 2];
        for sizes in self.ages.sampled_blocks(file) {
            let mut block = [vec![0; bins], vec![0; bins]];
            for (label, by_type) in sizes.iter().enumerate() {
                for (page_type, pages) in by_type.iter().enumerate() {
                    followed[page_type] += pages;
                    if let Some(bin_of) = bin_of {
                        block[page_type][bin_of[label]] += pages;
                    }
                }
            }
            for (spread, block) in spreads.iter_mut().zip(&block) {
                spread.add(block);
            }
        }
        let all = self.ages.pages_of(file, &|_| true);
        let [anon, of_file] = std::array::from_fn(|page_type| {
            let share = own[page_type] as f64 / all[page_type].max(1) as f64;
            let margins = spreads[page_type].margins(all[page_type]).into_iter();
            margins.map(move |margin| margin.scaled(share))
        });
        let pages = (0..2).map(|page_type| {
            let unfollowed = all[page_type].saturating_sub(followed[page_type]);
            let part = u128::from(unfollowed) * u128::from(own[page_type]);
            // No more than `unfollowed`.
            part.checked_div(all[page_type].into()).unwrap_or(0) as u64
        });
        Unseen {
            pages: pages.sum(),
            margins: anon.zip(of_file).map(|(anon, file)| [anon, file]).collect(),
        }
    }
}

/// The margin of each bin, in pages, where a generation spans several: its pages are divided among
/// them, and may all be in one.
fn between_looks(
    window: &Generations,
    sizes: &Sizes,
    now_ms: u64,
    bounds: &Intervals,
) -> Vec<ByType<Margin>> {
    let bin = |age_ms: u64| bounds.bounds_ms().partition_point(|bound| *bound < age_ms);
    let mut margins = vec![ByType::<Margin>::default(); bounds.bounds_ms().len() + 1];
    let mut end_ms = now_ms;
    for (label, generation) in window.iter().rev() {
        let birth_ms = generation.birth_ms.min(end_ms);
        let oldest_ms = now_ms.saturating_sub(birth_ms);
        // All pages of a generation are older than its end.
        let youngest_ms = now_ms
            .saturating_sub(end_ms)
            .saturating_add(1)
            .min(oldest_ms);
        end_ms = birth_ms;
        let spans = bin(youngest_ms)..=bin(oldest_ms);
        let pages = sizes[usize::from(label)];
        if pages == [0; 2] || spans.start() == spans.end() {
            continue;
        }
        let mut alone = [[0; 2]; LABELS];
        alone[usize::from(label)] = pages;
        let mut divided = Histogram::new(bounds);
        divided.add_window(window, &alone, now_ms, OldestPages::AtLeast);
        for at in spans {
            let here = divided.bins()[at].amounts;
            for (page_type, margin) in margins[at].iter_mut().enumerate() {
                margin.below += here[page_type] as f64;
                margin.above += pages[page_type].saturating_sub(here[page_type]) as f64;
            }
        }
    }
    margins
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cgroups, nodes, subject};
    use super::*;
    use crate::pagecache::CacheKind;
    use crate::pagecache::fake::{FakeFile, Shared, file};
    use agewise_policy::workingset::OldestPages;

    const PAGE: u64 = 4096;
    const BLOCKS: u32 = 64;
    const PAGES: u32 = 64;

    fn report(cache: &Cache, of: &Cgroup) -> SubjectReport {
        let bounds: Intervals = "1h".parse().unwrap();
        let mut report = SubjectReport::new("x".into(), true, &[0], std::slice::from_ref(&bounds));
        cache.add_to(&mut report, of, OldestPages::AtLeast);
        cache.add_margins_to(&mut report, of, Some(&bounds));
        report.finish();
        report
    }

    /// What was read between two looks is as young as the second, or as old as the first.
    #[test]
    fn bins_shorter_than_the_time_between_looks_have_margins() {
        let (_dir, [top, ..]) = cgroups();
        let shared = Shared::default();
        let read = FakeFile {
            read: 0b1111,
            ..file(2, CacheKind::File, top.id(), 10)
        };
        let mut cache = Cache::new(shared.ages(3_600_000));
        for _ in 0..2 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            shared.0.lock().unwrap().files = vec![read];
            cache.look(&[subject(&top)], &nodes());
        }
        let bounds: Intervals = "30ms,1h".parse().unwrap();
        let mut report = SubjectReport::new("x".into(), true, &[0], std::slice::from_ref(&bounds));
        cache.add_to(&mut report, &top, OldestPages::AtLeast);
        cache.add_margins_to(&mut report, &top, Some(&bounds));
        report.finish();
        let histogram = report.histogram();
        let bounds = [0, 1].map(|bin| report.interval(bin, histogram.bins()[bin].amounts)[1]);
        let young = histogram.bins()[0].amounts[1] / PAGE;
        assert!(young < 4, "{young} of 4 pages in the youngest third");
        assert_eq!([bounds[0].low, bounds[0].high], [0, 4 * PAGE]);
        assert_eq!([bounds[1].low, bounds[1].high], [6 * PAGE, 10 * PAGE]);
    }

    /// One block in eight is followed of a file that is read very often: then it is said what that
    /// leaves open.
    #[test]
    fn a_sampled_file_has_margins_and_only_its_sample_is_followed() {
        let (_dir, [top, a, b, c]) = cgroups();
        let shared = Shared::default();
        let mut large = file(77, CacheKind::File, b.id(), PAGES);
        large.blocks = BLOCKS;
        let whole = file(2, CacheKind::File, c.id(), 10);
        let mut cache = Cache::new(shared.ages(3_600_000));
        cache.ages.allow_sample();
        let look = |cache: &mut Cache, events| {
            // Half of the pages of each block are read.
            let read = |of: FakeFile| FakeFile {
                read: u64::from(u32::MAX),
                ..of
            };
            {
                let mut fake = shared.0.lock().unwrap();
                fake.files = vec![read(large), read(whole)];
                fake.events = events;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            cache.look(&[subject(&top)], &nodes());
        };
        look(&mut cache, 0);
        look(&mut cache, 0);
        let all = u64::from(BLOCKS * PAGES) * PAGE;
        let before = report(&cache, &a);
        assert_eq!(
            (before.resident_bytes, before.followed_bytes),
            ([0, all], all)
        );
        let amounts = before.histogram().bins()[0].amounts;
        assert_eq!(before.interval(0, amounts)[1].low, all);

        for _ in 0..3 {
            look(&mut cache, u64::MAX);
        }
        for of in [&a, &b] {
            let sampled = report(&cache, of);
            assert_eq!(sampled.resident_bytes, [0, all]);
            assert_eq!(sampled.followed_bytes, all / 8);
            let amounts = sampled.histogram().bins()[0].amounts;
            let [anon, file] = sampled.interval(0, amounts);
            assert_eq!((anon.low, anon.high), (0, 0));
            // All eight blocks that are followed are in this bin: others may be in the next one.
            assert!(file.low < all && file.low > all / 2, "{file:?}");
            assert_eq!(file.high, all);
            assert!(sampled.half_width_ratio() > 0.1);
        }
        let other = report(&cache, &c);
        assert_eq!(other.followed_bytes, 10 * PAGE);
        let amounts = other.histogram().bins()[0].amounts;
        assert_eq!(other.interval(0, amounts)[1].low, 10 * PAGE, "{other:?}");
        let of_all = report(&cache, &top);
        assert_eq!(of_all.followed_bytes, all / 8 + 10 * PAGE);
    }
}
