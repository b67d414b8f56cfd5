// SPDX-License-Identifier: Apache-2.0
//! Pages counted separately: those on another NUMA node, or already counted in another process.

use crate::generations::{ByType, LABELS, Label, Relabel, Sizes};

/// A group of pages that the caller wants counted separately in each look: pages of a NUMA node, or
/// pages that another process of the same target already counts.
pub type Part = u8;

/// Present pages of one part, by label and type. Most parts (the libraries of a small process) have
/// only a few labels, so only those that occur are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartSizes {
    /// In the order in which they were first seen.
    counted: Vec<(Label, ByType<u64>)>,
}

impl PartSizes {
    /// The labels that occur, each once, and how many pages have them.
    pub fn iter(&self) -> impl Iterator<Item = (Label, ByType<u64>)> + '_ {
        self.counted.iter().copied()
    }

    /// The same as one number per label.
    pub fn to_sizes(&self) -> Sizes {
        let mut sizes: Sizes = [[0; 2]; LABELS];
        for (label, pages) in self.iter() {
            sizes[usize::from(label)] = pages;
        }
        sizes
    }

    pub(super) fn clear(&mut self) {
        self.counted.clear();
    }

    #[inline]
    pub(super) fn add(&mut self, label: Label, page_type: usize, pages: u64) {
        if pages == 0 {
            return;
        }
        match self.counted.iter_mut().find(|(of, _)| *of == label) {
            Some((_, by_type)) => by_type[page_type] += pages,
            None => {
                let mut by_type = [0; 2];
                by_type[page_type] = pages;
                self.counted.push((label, by_type));
            }
        }
    }

    pub(super) fn relabel(&mut self, relabel: &Relabel) {
        for (label, by_type) in std::mem::take(&mut self.counted) {
            let target = relabel[usize::from(label)];
            self.add(target, 0, by_type[0]);
            self.add(target, 1, by_type[1]);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.counted.capacity() * size_of::<(Label, ByType<u64>)>() + size_of::<Self>()
    }
}
