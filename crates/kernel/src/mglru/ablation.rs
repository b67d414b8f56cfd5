// SPDX-License-Identifier: Apache-2.0
//! Parts of the multi-gen LRU that experiments can leave out. They are separate from profiles,
//! since no kernel version lacks exactly these.

use std::ops::BitOr;

/// A part that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Walks use neither the Bloom filter nor the accessed bits of page tables.
    Bloom,
    /// No tier is protected.
    Protection,
    /// Rmap only looks at the entry itself.
    LookAround,
    /// Refaults do not restore usage counts.
    Restore,
    /// A fault does not mark the folio.
    FaultMark,
    /// A refault is recent only if the shadow's generation is still the oldest.
    RefaultWindow,
    /// Aging only happens when there is no spare generation.
    EarlyAging,
}

/// All parts by name.
const PARTS: [(&str, Part); 7] = [
    ("bloom", Part::Bloom),
    ("protection", Part::Protection),
    ("look-around", Part::LookAround),
    ("restore", Part::Restore),
    ("fault-mark", Part::FaultMark),
    ("refault-window", Part::RefaultWindow),
    ("early-aging", Part::EarlyAging),
];

impl Part {
    /// Looks up a part by name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let found = PARTS.iter().find(|(known, _)| *known == name)?;
        Some(found.1)
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PARTS.iter().map(|(name, _)| *name)
    }
}

/// The parts that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation(u8);

impl Ablation {
    /// Nothing is left out.
    pub const NONE: Ablation = Ablation(0);

    /// Whether a part is left out.
    #[must_use]
    pub fn lacks(self, part: Part) -> bool {
        self.0 & 1 << part as u8 != 0
    }
}

impl From<Part> for Ablation {
    fn from(part: Part) -> Self {
        Ablation(1 << part as u8)
    }
}

/// The union of the parts left out.
impl BitOr for Ablation {
    type Output = Ablation;

    fn bitor(self, other: Ablation) -> Ablation {
        Ablation(self.0 | other.0)
    }
}

impl FromIterator<Part> for Ablation {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        let each = parts.into_iter().map(Ablation::from);
        each.fold(Ablation::NONE, Ablation::bitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_left_out_alone() {
        for (name, part) in PARTS {
            assert_eq!(Part::by_name(name), Some(part));
            let others = |other: &Part| *other != part;
            let without: Ablation = PARTS.iter().map(|(_, part)| *part).filter(others).collect();
            assert!(!without.lacks(part), "{name}");
            assert!((without | part.into()).lacks(part), "{name}");
            assert!(!Ablation::NONE.lacks(part), "{name}");
        }
        assert_eq!(Part::by_name("none"), None);
    }
}
