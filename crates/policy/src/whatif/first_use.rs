// SPDX-License-Identifier: Apache-2.0
//! Pages that were used for the first time while watching. When each will be used again is not
//! known, but how many of the earlier ones were is.

use super::tally::NEVER_SEEN;

/// What has been seen of the uses of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstUse {
    /// It was there before the observation began.
    Before,
    /// No use of it has been seen.
    Unseen,
    /// It was used first since counting began.
    Recent { again: bool },
    /// It was used first before counting began.
    Earlier { again: bool },
}

impl FirstUse {
    /// Records a use.
    pub fn used(&mut self) {
        *self = match self {
            FirstUse::Before => FirstUse::Before,
            FirstUse::Unseen => FirstUse::Recent { again: false },
            FirstUse::Recent { .. } => FirstUse::Recent { again: true },
            FirstUse::Earlier { .. } => FirstUse::Earlier { again: true },
        };
    }

    /// Records that counting begins anew.
    pub fn count_anew(&mut self) {
        if let FirstUse::Recent { again } = *self {
            *self = FirstUse::Earlier { again };
        }
    }
}

/// How many of the recent pages may be used again in a time as long as that of counting: as large a
/// part of them as of the earlier ones, or all if there are none. Pages that are gone do not count.
pub(super) fn may_return(pages: impl Iterator<Item = FirstUse>) -> f64 {
    let (mut recent, mut earlier, mut again) = (0.0, 0.0, 0.0);
    for page in pages {
        match page {
            FirstUse::Before | FirstUse::Unseen => {}
            FirstUse::Recent { .. } => recent += 1.0,
            FirstUse::Earlier { again: is_again } => {
                earlier += 1.0;
                again += f64::from(u8::from(is_again));
            }
        }
    }
    let share: f64 = (again + NEVER_SEEN) / earlier;
    recent * share.min(1.0)
}
