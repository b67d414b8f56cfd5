// SPDX-License-Identifier: Apache-2.0
//! Selects pages by hash, so that a sample has all accesses to its pages.

use super::access::Request;
use super::page_index::hash;

/// Selects a share of all pages. The same seed selects the same pages in every trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PageSample {
    rate: f64,
    seed: u64,
}

impl PageSample {
    /// Selects the share `rate`, above 0 and at most 1.
    ///
    /// # Errors
    /// The rate is out of range.
    pub fn new(rate: f64, seed: u64) -> Result<Self, String> {
        if rate > 0.0 && rate <= 1.0 {
            Ok(Self { rate, seed })
        } else {
            Err(format!(
                "a rate of {rate}; it has to be above 0 and at most 1"
            ))
        }
    }

    /// Whether a page is selected.
    #[must_use]
    pub fn chooses(&self, page: u64) -> bool {
        // An f64 represents 53 bits exactly.
        let place = (hash(page ^ hash(self.seed)) >> 11) as f64 / (1u64 << 53) as f64;
        place < self.rate
    }

    /// The selected pages of a request, as requests for runs of pages.
    pub fn chosen_of(&self, request: Request) -> impl Iterator<Item = Request> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let chosen = |at: u64| self.chooses(request.first_page.wrapping_add(at));
            while at < request.page_count && !chosen(at) {
                at += 1;
            }
            let start = at;
            while at < request.page_count && chosen(at) {
                at += 1;
            }
            (at > start).then(|| Request {
                first_page: request.first_page.wrapping_add(start),
                page_count: at - start,
                ..request
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_about_right_and_runs_are_whole() {
        let sample = PageSample::new(0.1, 7).unwrap();
        let request = Request {
            first_page: 1000,
            page_count: 100_000,
            ..Request::default()
        };
        let runs: Vec<Request> = sample.chosen_of(request).collect();
        let pages: u64 = runs.iter().map(|run| run.page_count).sum();
        assert!((9_500..10_500).contains(&pages), "{pages}");
        assert!(
            runs.windows(2)
                .all(|two| two[0].first_page + two[0].page_count < two[1].first_page)
        );
        assert!(runs.iter().all(|run| sample.chooses(run.first_page)));
        let other = PageSample::new(0.1, 8).unwrap();
        assert!(
            runs.iter().any(|run| !other.chooses(run.first_page)),
            "the seed matters"
        );
    }

    #[test]
    fn all_and_none() {
        let all = PageSample::new(1.0, 0).unwrap();
        let request = Request {
            first_page: 5,
            page_count: 9,
            ..Request::default()
        };
        assert_eq!(all.chosen_of(request).collect::<Vec<_>>(), [request]);
        assert!(
            [0.0, -1.0, 1.1, f64::NAN]
                .iter()
                .all(|&rate| PageSample::new(rate, 0).is_err())
        );
    }
}
