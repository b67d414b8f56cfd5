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
    /// Moves pages to this node (`target_nid`), hot regions first.
    MigrateHot(u32),
    /// Moves pages to this node, cold regions first.
    MigrateCold(u32),
}

impl Action {
    /// No node: nothing moves.
    pub const NO_NODE: u32 = u32::MAX;

    /// All actions, those that move pages without a node.
    pub const ALL: [Action; 8] = [
        Action::Stat,
        Action::Pageout,
        Action::LruPrio,
        Action::LruDeprio,
        Action::Cold,
        Action::Willneed,
        Action::MigrateHot(Action::NO_NODE),
        Action::MigrateCold(Action::NO_NODE),
    ];

    /// The action, with this node as its target if it moves pages.
    #[must_use]
    pub fn to_node(self, node: u32) -> Action {
        match self {
            Action::MigrateHot(_) => Action::MigrateHot(node),
            Action::MigrateCold(_) => Action::MigrateCold(node),
            other => other,
        }
    }

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
            Action::MigrateHot(_) => "migrate_hot",
            Action::MigrateCold(_) => "migrate_cold",
        }
    }

    /// Whether the action prefers hot regions, cold ones, or neither.
    #[must_use]
    pub fn wants(self) -> Wanted {
        match self {
            Action::LruPrio | Action::MigrateHot(_) => Wanted::Hot,
            Action::Pageout | Action::LruDeprio | Action::MigrateCold(_) => Wanted::Cold,
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
