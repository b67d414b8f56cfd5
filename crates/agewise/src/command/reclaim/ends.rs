// SPDX-License-Identifier: Apache-2.0
//! How `agewise reclaim` ended for each process, and the exit status that follows.

use agewise_cli::observe::EXIT_TARGETS_GONE;
use agewise_host::mover::PageoutError;

/// For how many processes it ended how.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    /// Its memory was dealt with.
    pub done: usize,
    /// It was gone before that.
    pub gone: usize,
    /// It was left alone, or the system refused.
    pub failed: usize,
}

impl Ends {
    /// Counts a process that could not be dealt with.
    pub fn count(&mut self, error: &PageoutError) {
        match error.is_gone() {
            true => self.gone += 1,
            false => self.failed += 1,
        }
    }

    /// The exit status.
    pub fn status(self) -> u8 {
        match self {
            Ends { done: 1.., .. } => 0,
            Ends { failed: 1.., .. } => 1,
            Ends { gone: 1.., .. } => EXIT_TARGETS_GONE,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_gone_only_if_nothing_was_left_alone() {
        let status = |done, gone, failed| Ends { done, gone, failed }.status();
        assert_eq!(status(0, 2, 0), EXIT_TARGETS_GONE);
        assert_eq!(status(0, 0, 2), 1);
        assert_eq!(status(0, 1, 1), 1);
        assert_eq!(status(1, 1, 1), 0);
        assert_eq!(status(0, 0, 0), 0, "there was no process");
    }
}
