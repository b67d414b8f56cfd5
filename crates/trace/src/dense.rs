// SPDX-License-Identifier: Apache-2.0
//! A trace in memory as dense page numbers, 4 bytes per access, for many runs over the same trace.

use std::path::Path;

use super::access::Access;
use super::error::TraceError;
use super::page_index::PageIndex;
use super::stream::{AccessStream, TraceSource};

/// The longest trace that fits: positions are 32-bit numbers, and one value is reserved.
pub const ACCESSES_MAX: usize = (u32::MAX - 1) as usize;

/// Marks the absence of a next access in [`DenseTrace::next_accesses`].
pub const NEVER: u32 = u32::MAX;

/// The accesses of a trace as numbers `0..page_count`, in the order in which pages first appear.
///
/// Takes 4 bytes per access and 8 bytes per page.
#[derive(Debug, Clone, Default)]
pub struct DenseTrace {
    accesses: Vec<u32>,
    pages: Vec<u64>,
}

impl DenseTrace {
    /// Reads a whole trace.
    ///
    /// # Errors
    /// Those of reading; [`TraceError::Limit`] for more than [`ACCESSES_MAX`] accesses;
    /// [`TraceError::Memory`].
    pub fn read(source: &TraceSource) -> Result<Self, TraceError> {
        let mut stream = source.open()?;
        Self::from_stream(&source.path, &mut stream)
    }

    /// Reads the rest of a stream. `path` is for messages.
    ///
    /// # Errors
    /// As [`DenseTrace::read`].
    pub fn from_stream(path: &Path, stream: &mut AccessStream) -> Result<Self, TraceError> {
        Self::from_stream_with(path, stream, |_| ())
    }

    /// Reads the rest of a stream and passes each access to `see`.
    ///
    /// # Errors
    /// As [`DenseTrace::read`].
    pub fn from_stream_with(
        path: &Path,
        stream: &mut AccessStream,
        mut see: impl FnMut(&Access),
    ) -> Result<Self, TraceError> {
        let mut index = PageIndex::new();
        let mut accesses = Vec::new();
        let mut batch = Vec::new();
        let mut seen = |access: &Access| {
            see(access);
            access.page
        };
        while stream.next_batch_as(&mut batch, &mut seen)? {
            for &page in &batch {
                let number = index.number(page).ok_or_else(|| TraceError::Limit {
                    path: path.to_path_buf(),
                    what: "more than 2^32 - 2 different pages; sample it first (agewise trace \
                           sample)"
                        .into(),
                })?;
                accesses.push(number);
            }
            stream.check_memory(index.memory_bytes() + size_of_val(&*accesses))?;
            if accesses.len() > ACCESSES_MAX {
                return Err(TraceError::Limit {
                    path: path.to_path_buf(),
                    what: format!(
                        "more than {ACCESSES_MAX} accesses; sample it first (agewise trace sample)"
                    ),
                });
            }
        }
        Ok(Self {
            accesses,
            pages: index.into_pages(),
        })
    }

    /// A trace whose pages are already numbered: `accesses` are indices into `pages`.
    pub(crate) fn from_parts(accesses: Vec<u32>, pages: Vec<u64>) -> Self {
        debug_assert!(
            accesses
                .iter()
                .all(|&number| (number as usize) < pages.len())
        );
        Self { accesses, pages }
    }

    /// Numbers the pages in a list.
    #[must_use]
    pub fn from_pages(pages: &[u64]) -> Self {
        let mut index = PageIndex::new();
        let accesses = pages
            .iter()
            .map(|&page| index.number(page).unwrap_or(0))
            .collect();
        Self {
            accesses,
            pages: index.into_pages(),
        }
    }

    /// The accesses, as page numbers.
    #[must_use]
    pub fn accesses(&self) -> &[u32] {
        &self.accesses
    }

    /// The pages of the trace, by their numbers.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Number of different pages: the footprint.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// The pages of the parts of the trace that begin at these positions, each page once in a part.
    #[must_use]
    pub fn parts(&self, starts: &[usize]) -> Vec<Vec<u32>> {
        // The last part with each page, counted from 1.
        let mut last = vec![0; self.page_count()];
        let ends = starts.iter().skip(1).copied().chain([self.accesses.len()]);
        let parts = starts.iter().zip(ends).zip(1usize..);
        parts
            .map(|((&start, end), part)| {
                let pages = self.accesses[start..end].iter().copied();
                pages
                    .filter(|&page| std::mem::replace(&mut last[page as usize], part) != part)
                    .collect()
            })
            .collect()
    }

    /// For each access, the position of the next access of the same page; [`NEVER`] if there is
    /// none.
    #[must_use]
    pub fn next_accesses(&self) -> Vec<u32> {
        let mut upcoming = vec![NEVER; self.page_count()];
        let mut next = vec![NEVER; self.accesses.len()];
        for (at, &page) in self.accesses.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut upcoming[page as usize], at as u32);
        }
        next
    }
}
