// SPDX-License-Identifier: Apache-2.0
//! What schemes do.

/// What a scheme does with a region that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Counts only.
    Stat,
    /// Reclaims now.
    Pageout,
    /// Raises its place in the LRU lists.
    LruPrio,
    /// Lowers its place in the LRU lists.
    LruDeprio,
    /// `MADV_COLD`.
    Cold,
    /// `MADV_WILLNEED`.
    Willneed,
}

impl Action {
    /// All actions.
    pub const ALL: [Action; 6] = [
        Action::Stat,
        Action::Pageout,
        Action::LruPrio,
        Action::LruDeprio,
        Action::Cold,
        Action::Willneed,
    ];

    /// Its name in sysfs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Stat => "stat",
            Action::Pageout => "pageout",
            Action::LruPrio => "lru_prio",
            Action::LruDeprio => "lru_deprio",
            Action::Cold => "cold",
            Action::Willneed => "willneed",
        }
    }

    /// Whether the action wants the hottest regions first, the coldest, or has no preference.
    #[must_use]
    pub fn wants(self) -> Wanted {
        match self {
            Action::LruPrio => Wanted::Hot,
            Action::Pageout | Action::LruDeprio => Wanted::Cold,
            Action::Stat | Action::Cold | Action::Willneed => Wanted::Any,
        }
    }
}

/// Which regions come first when a quota does not suffice for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Hot ones.
    Hot,
    /// Cold ones.
    Cold,
    /// All the same.
    Any,
}
