// SPDX-License-Identifier: Apache-2.0
//! The actions of schemes.

/// What a scheme does with a matching region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Only counts.
    Stat,
    /// Reclaims now.
    Pageout,
    /// Moves pages up in the LRU lists.
    LruPrio,
    /// Moves pages down in the LRU lists.
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

    /// Whether the action prefers hot regions, cold ones, or neither.
    #[must_use]
    pub fn wants(self) -> Wanted {
        match self {
            Action::LruPrio => Wanted::Hot,
            Action::Pageout | Action::LruDeprio => Wanted::Cold,
            Action::Stat | Action::Cold | Action::Willneed => Wanted::Any,
        }
    }
}

/// Which regions come first if a quota does not suffice for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Hot ones.
    Hot,
    /// Cold ones.
    Cold,
    /// No preference.
    Any,
}
