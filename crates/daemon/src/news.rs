// SPDX-License-Identifier: Apache-2.0
//! Which journal lines about a target say something new: why nothing is done about it, or what is
//! wrong. Both may be found again, and alternate, at every look.

/// Minimum time between two of these lines for one target.
const EVERY_MS: u64 = 60_000;
/// What was not found for so long was gone.
const GONE_MS: u64 = 10 * EVERY_MS;

/// What was last written about a target.
#[derive(Debug, Default)]
pub struct News {
    said: Option<Said>,
}

#[derive(Debug)]
struct Said {
    what: String,
    at_ms: u64,
    /// When it was last found again.
    found_ms: u64,
}

impl News {
    /// Whether this is worth a line: it differs from the last one, which was not just now, or has
    /// come back after it was gone for a while.
    pub fn is_news(&mut self, now_ms: u64, what: &str) -> bool {
        let since = |at_ms: u64| now_ms.saturating_sub(at_ms);
        match &mut self.said {
            Some(said) if said.what == what && since(said.found_ms) < GONE_MS => {
                said.found_ms = now_ms;
                return false;
            }
            Some(said) if since(said.at_ms) < EVERY_MS => return false,
            _ => {}
        }
        self.said = Some(Said {
            what: what.to_owned(),
            at_ms: now_ms,
            found_ms: now_ms,
        });
        true
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
        assert!(news.is_news(3_600_000, "a"), "it had gone");
    }
}
