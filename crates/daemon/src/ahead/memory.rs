// SPDX-License-Identifier: Apache-2.0
//! The memory of a target: processes and the page cache, or fakes of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use agewise_host::access::AccessSource;
use agewise_host::budgeted::{Budgeted, BudgetedFiles, Choose, FilesError};
use agewise_host::cgroup::Cgroup;
use agewise_host::mover::PageoutError;
use agewise_host::process::{Process, ProcessError};
use agewise_host::root::ProcRoot;
use agewise_policy::budget::{Counted, Gone, PAGE_BYTES, Seen};

/// One address space: a process, or a fake of one.
pub(super) trait Memory: Sized {
    /// Opens the process with this pid that started then, not another with the same pid.
    fn open(pid: u32, start_ticks: u64) -> Result<Self, PageoutError>;

    /// When the process started, clock ticks since boot.
    fn start_ticks(&self) -> u64;

    /// Whether the process is still there.
    fn is_alive(&self) -> bool;

    /// Resident memory; `None` if the process is gone.
    fn resident_bytes(&self) -> Option<u64>;

    /// CPU time so far, and major faults or, `with_reads`, pages read from a device. `None` if the
    /// process is gone.
    fn counted(&self, with_reads: bool) -> Option<Counted>;

    /// Like [`Budgeted::look`].
    fn look(
        &mut self,
        source: &mut dyn AccessSource,
        clears: bool,
    ) -> Result<Vec<Seen>, PageoutError>;

    /// Like [`Budgeted::move_out`].
    fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, PageoutError>;
}

impl Memory for Budgeted {
    fn open(pid: u32, start_ticks: u64) -> Result<Self, PageoutError> {
        let process = Process::open_user(&ProcRoot::default(), pid)?;
        if process.start_ticks() != start_ticks {
            return Err(ProcessError::Gone { pid }.into());
        }
        Budgeted::new(process)
    }

    fn start_ticks(&self) -> u64 {
        self.process().start_ticks()
    }

    fn is_alive(&self) -> bool {
        self.process().is_alive()
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.process().rss_bytes().ok()
    }

    fn counted(&self, with_reads: bool) -> Option<Counted> {
        let stat = self.process().stat().ok()?;
        let faults = match with_reads {
            true => self.process().read_from_device_bytes().ok()? / PAGE_BYTES,
            false => stat.major_faults,
        };
        let us =
            |ticks: u64| ticks.saturating_mul(1_000_000) / rustix::param::clock_ticks_per_second();
        Some(Counted {
            work_us: us(stat.user_ticks),
            kernel_us: us(stat.system_ticks),
            faults,
            ..Counted::default()
        })
    }

    fn look(
        &mut self,
        source: &mut dyn AccessSource,
        clears: bool,
    ) -> Result<Vec<Seen>, PageoutError> {
        Budgeted::look(self, source, clears)
    }

    fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, PageoutError> {
        Budgeted::move_out(self, source, runs, choose, rehearse)
    }
}

/// The page cache of a cgroup, or a fake of one. Files have permanent numbers.
pub(super) trait Files {
    /// Leaves out cgroups below it that others hold.
    fn spare(&mut self, without: &[PathBuf]);

    /// Like [`BudgetedFiles::take_walked_ns`].
    fn take_walked_ns(&mut self) -> u64;

    /// Like [`BudgetedFiles::trouble`].
    fn trouble(&self) -> Option<String>;

    /// Like [`BudgetedFiles::look`].
    fn look(&mut self, counts: bool) -> Result<BTreeMap<u64, Vec<Seen>>, FilesError>;

    /// Like [`BudgetedFiles::move_out`].
    fn move_out(
        &mut self,
        file: u64,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, FilesError>;
}

impl Files for BudgetedFiles {
    fn spare(&mut self, without: &[PathBuf]) {
        BudgetedFiles::spare(self, without);
    }

    fn take_walked_ns(&mut self) -> u64 {
        BudgetedFiles::take_walked_ns(self)
    }

    fn trouble(&self) -> Option<String> {
        BudgetedFiles::trouble(self)
    }

    fn look(&mut self, counts: bool) -> Result<BTreeMap<u64, Vec<Seen>>, FilesError> {
        BudgetedFiles::look(self, counts)
    }

    fn move_out(
        &mut self,
        file: u64,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, FilesError> {
        BudgetedFiles::move_out(self, file, runs, choose, rehearse)
    }
}

/// Opens the page cache of a cgroup.
pub(super) type OpenFiles<'a> = dyn Fn(&Cgroup) -> Result<Box<dyn Files>, FilesError> + 'a;
