// SPDX-License-Identifier: Apache-2.0
//! What a budget holds: processes and the page cache, or fakes of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use agewise_policy::budget::{Counted, Gone, Seen};

use super::{Choose, FilesError};
use crate::access::AccessSource;
use crate::cgroup::Cgroup;
use crate::guest::Guests;
use crate::mover::PageoutError;

/// The anonymous memory of one address space.
pub trait HeldMemory: Sized {
    /// Opens the process with this pid that started then, not another with the same pid.
    ///
    /// # Errors
    /// The process must not be touched (agewise itself, init, a kernel thread, a host of guests
    /// that are spared) or is gone.
    fn open(pid: u32, start_ticks: u64, guests: Guests) -> Result<Self, PageoutError>;

    /// When the process started, clock ticks since boot.
    fn start_ticks(&self) -> u64;

    /// Whether the process is still there.
    fn is_alive(&self) -> bool;

    /// Resident memory; `None` if the process is gone.
    fn resident_bytes(&self) -> Option<u64>;

    /// CPU time so far, and major faults or, `with_reads`, pages read from a device. `None` if the
    /// process is gone.
    fn counted(&self, with_reads: bool) -> Option<Counted>;

    /// Looks at the whole process. With `clears`, clears the accessed bits afterwards.
    ///
    /// # Errors
    /// The process is gone, runs KVM guests by now, or may not be observed.
    fn look(
        &mut self,
        source: &mut dyn AccessSource,
        clears: bool,
    ) -> Result<Vec<Seen>, PageoutError>;

    /// Moves out the pages that `choose` picks from `runs` (page numbers, ascending). `rehearse`
    /// does everything except the move.
    ///
    /// # Errors
    /// The process may not be touched. A process that is gone is not an error.
    fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, PageoutError>;
}

/// Opens the page cache of a cgroup.
pub type OpenFiles<'a> = dyn Fn(&Cgroup) -> Result<Box<dyn HeldFiles>, FilesError> + 'a;

/// The page cache of a cgroup. Files have permanent numbers.
pub trait HeldFiles {
    /// Excludes these cgroups, and those below them, from the next look that counts on.
    fn spare(&mut self, without: &[PathBuf]);

    /// CPU time that walks of the whole page cache have taken since the last call, ns. They happen
    /// on their own schedule, independent of looks.
    fn take_walked_ns(&mut self) -> u64;

    /// Why part of the page cache is not held, if there is too much of it.
    fn trouble(&self) -> Option<String>;

    /// Looks at all files, keyed by their numbers. Accesses after a look that `counts` belong to
    /// the next one; other looks only add what has arrived since.
    ///
    /// # Errors
    /// The cgroup is gone, or the page cache cannot be read any more.
    fn look(&mut self, counts: bool) -> Result<BTreeMap<u64, Vec<Seen>>, FilesError>;

    /// Drops what `choose` picks from `runs` (page indexes, ascending) of a file, as far as it is
    /// clean. `rehearse` does everything except that.
    ///
    /// # Errors
    /// The page cache cannot be read any more. Failures of single files are not errors.
    fn move_out(
        &mut self,
        file: u64,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, FilesError>;
}
