// SPDX-License-Identifier: Apache-2.0
//! Which journal lines about a target say something new: why nothing is done about it, or what is
//! wrong. Both may be found again, and alternate, at every look.

/// Minimum time between two of these lines for one target.
const EVERY_MS: u64 = 60_000;

/// What was last written about a target.
#[derive(Debug, Default)]
pub struct News {
    said: Option<(String, u64)>,
}

impl News {
    /// Whether this is worth a line: it differs from the last one, which was not just now.
    pub fn is_news(&mut self, now_ms: u64, what: &str) -> bool {
        let is_news = self
            .said
            .as_ref()
            .is_none_or(|(said, at_ms)| said != what && now_ms.saturating_sub(*at_ms) >= EVERY_MS);
        if is_news {
            self.said = Some((what.to_owned(), now_ms));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_alternates_is_said_once_a_minute_and_what_stays_once() {
        let mut news = News::default();
        let alternating = |second: u64| ["a", "b"][second as usize % 2];
        let said = |second: &u64| news.is_news(second * 1000, alternating(*second));
        assert_eq!((0..600).filter(said).count(), 10);
        let mut news = News::default();
        assert!(news.is_news(0, "a"));
        assert!((1..600).all(|second| !news.is_news(second * 1000, "a")));
    }
}
