// SPDX-License-Identifier: Apache-2.0
//! One process that is recorded: each interval its page tables are read, what is young is handed
//! on, and the accessed bits are cleared for the next interval.

use std::ops::ControlFlow;

use agewise_engine::table::PageBits;
use agewise_host::clear::hand::KernelHand;
use agewise_host::clear::{ClearError, ClearPolicy, ClearReport, Clearer};
use agewise_host::clock;
use agewise_host::error::FileError;
use agewise_host::eye::{
    AccessSource, AddressRange, Batch, EyeError, PAGE_BYTES, SightSink, TableSight, Target,
};
use agewise_host::process::Process;
use agewise_host::vma::{VmaKind, VmaTable};

use super::pages::{Numbering, PageNames};

/// A look at a process failed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Its mappings could not be read.
    #[error(transparent)]
    Maps(#[from] FileError),
    /// Its page tables could not be read.
    #[error(transparent)]
    Eye(#[from] EyeError),
    /// Its accessed bits could not be cleared: nothing more can be learnt of it.
    #[error(transparent)]
    Clear(#[from] ClearError),
}

impl WatchError {
    /// The process is gone, which is no fault.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            WatchError::Maps(error) => error.is_not_found(),
            WatchError::Eye(error) => error.is_target_gone(),
            WatchError::Clear(error) => matches!(error, ClearError::Gone { .. }),
        }
    }
}

/// A run of neighbouring pages accessed in one interval, numbered for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Number of the first page.
    pub first_page: u64,
    /// Pages.
    pub pages: u64,
    /// What backs them.
    pub numbering: Numbering,
}

/// A process and what is needed to look at it again.
#[derive(Debug)]
pub struct Watched {
    /// The process.
    pub process: Process,
    slot: u64,
    clearer: Clearer,
    vmas: VmaTable,
    /// Accesses before the first clear count: the process began while we recorded.
    born_here: bool,
}

impl Watched {
    /// Starts with a process. `born_here`: it was started during the recording, so what it touched
    /// before its first look belongs to the trace.
    #[must_use]
    pub fn new(process: Process, slot: u64, born_here: bool) -> Watched {
        // Nothing is put off: a trace must not contain accesses that did not happen.
        let clearer = Clearer::new(process.pid(), ClearPolicy::exact());
        Watched {
            process,
            slot,
            clearer,
            vmas: VmaTable::new(),
            born_here,
        }
    }

    /// Looks once. What was accessed since the last look goes to `found`, in rising order of address.
    ///
    /// # Errors
    /// [`WatchError`].
    pub fn look(
        &mut self,
        eye: &mut dyn AccessSource,
        names: &mut PageNames,
        found: &mut dyn FnMut(Touched),
    ) -> Result<ClearReport, WatchError> {
        let pid = self.process.pid();
        self.vmas.read(pid)?;
        let mapped: Vec<_> = self
            .vmas
            .vmas()
            .iter()
            .filter(|vma| !matches!(vma.kind, VmaKind::Special) && !vma.range.is_empty())
            .collect();
        let ranges: Vec<AddressRange> = mapped.iter().map(|vma| vma.range).collect();
        let own = PageNames::own(self.slot);
        let numberings: Vec<Numberings> = mapped
            .iter()
            .map(|vma| Numberings {
                own,
                file: names.of_file(vma, self.vmas.name(vma)),
                copies: vma.kind == VmaKind::FilePrivate,
            })
            .collect();
        self.clearer
            .begin(clock::monotonic_ns(), mapped.iter().copied());
        let mut sink = Sink {
            hand: KernelHand::new(&self.process),
            clearer: &mut self.clearer,
            numberings: &numberings,
            count_first: self.born_here,
            found,
            failed: None,
        };
        eye.scan(&Target::from(&self.process), &ranges, &mut sink)?;
        if let Some(error) = sink.failed {
            return Err(error.into());
        }
        Ok(self.clearer.finish(&mut KernelHand::new(&self.process))?)
    }
}

/// How the pages of a mapping are numbered.
#[derive(Clone, Copy, Debug)]
struct Numberings {
    own: Numbering,
    file: Option<Numbering>,
    /// A private mapping of a file: pages that were written are the process's own.
    copies: bool,
}

struct Sink<'a> {
    hand: KernelHand<'a>,
    clearer: &'a mut Clearer,
    numberings: &'a [Numberings],
    count_first: bool,
    found: &'a mut dyn FnMut(Touched),
    failed: Option<ClearError>,
}

impl SightSink for Sink<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        let judged = self.clearer.judge(sight);
        let known_since = judged.since_ns.is_some() || self.count_first;
        let Some(numberings) = self.numberings.get(sight.range).filter(|_| known_since) else {
            return;
        };
        let mut emit = |bits: &PageBits, numbering: Numbering| {
            for_runs(bits, |page, pages| {
                let first_page = numbering.page(sight.va + page * PAGE_BYTES);
                (self.found)(Touched {
                    first_page,
                    pages,
                    numbering,
                });
            });
        };
        match numberings.file {
            None => emit(&judged.young, numberings.own),
            Some(file) if !numberings.copies => emit(&judged.young, file),
            Some(file) => {
                let (mut copied, mut shared) = (judged.young, judged.young);
                for (word, dirty) in sight.bits.dirty.iter().enumerate() {
                    copied[word] &= dirty;
                    shared[word] &= !dirty;
                }
                emit(&shared, file);
                emit(&copied, numberings.own);
            }
        }
    }

    fn batch_end(&mut self, _batch: &Batch) -> ControlFlow<()> {
        match self.clearer.clear(&mut self.hand) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// Calls `run` with first page and length of every run of set bits.
fn for_runs(bits: &PageBits, mut run: impl FnMut(u64, u64)) {
    let mut begun: Option<u64> = None;
    for (index, &word) in bits.iter().enumerate() {
        let base = index as u64 * 64;
        let mut at = 0;
        while at < 64 {
            let rest = word >> at;
            let same = match begun {
                None => rest.trailing_zeros().min(64 - at),
                Some(_) => (!rest).trailing_zeros().min(64 - at),
            };
            at += same;
            if at < 64 {
                match begun.take() {
                    None => begun = Some(base + u64::from(at)),
                    Some(first) => run(first, base + u64::from(at) - first),
                }
            }
        }
    }
    if let Some(first) = begun {
        run(first, bits.len() as u64 * 64 - first);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_the_set_bits(words in prop::array::uniform8(prop_oneof![
            Just(0u64), Just(u64::MAX), any::<u64>(), any::<u64>().prop_map(|bits| bits & bits << 1),
        ])) {
            let mut seen = [0u64; 8];
            let mut last_end = None;
            for_runs(&words, |first, pages| {
                assert!(pages > 0 && last_end.is_none_or(|end| first > end));
                last_end = Some(first + pages);
                for page in first..first + pages {
                    seen[page as usize / 64] |= 1 << (page % 64);
                }
            });
            prop_assert_eq!(seen, words);
        }
    }
}
