// SPDX-License-Identifier: Apache-2.0
//! An address space that behaves like the kernel, page by page, and fails on request.

use std::cell::Cell;

use rustix::io::Errno;

use super::rate::Clock;
use super::runs::RunSet;
use super::space::{Mover, Present, VECTOR_MAX};
use super::target::PageoutError;
use crate::access::AddressRange;
use crate::process::ProcessError;

pub(super) const PAGE: u64 = 4096;

/// The location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    Memory,
    Swap,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// The mapping it belongs to; 0 for none.
    pub mapping: u32,
    /// Whether the mapping is mlocked.
    pub locked: bool,
    pub file: bool,
    pub place: Place,
    pub young: bool,
    /// Stays present although the kernel tries to evict it, because others map it too.
    pub sticky: bool,
    /// Its mapping goes away right before the first call.
    pub unmaps: bool,
    /// How often the kernel processed it.
    pub processed: u32,
}

/// What a call does instead of its job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Errno(Errno),
    /// Stops after this many ranges.
    Short(usize),
}

pub(super) struct FakeMover {
    pub base: u64,
    pub pages: Vec<Page>,
    pub swap_free_bytes: u64,
    /// `(number of the call, fault)`.
    pub faults: Vec<(u64, Fault)>,
    pub calls: u64,
    pub exited_before_call: Option<u64>,
    /// Its first thread has ended.
    pub lost_leader: bool,
    /// A page that is brought back right after the next look at pages.
    pub comes_back: Option<usize>,
    pub largest_call_bytes: u64,
}

impl FakeMover {
    pub fn new(base: u64, pages: Vec<Page>) -> Self {
        Self {
            base,
            pages,
            swap_free_bytes: u64::MAX,
            faults: Vec::new(),
            calls: 0,
            exited_before_call: None,
            lost_leader: false,
            comes_back: None,
            largest_call_bytes: 0,
        }
    }

    fn index(&self, address: u64) -> usize {
        usize::try_from((address - self.base) / PAGE).unwrap()
    }

    fn select(&self, runs: &RunSet, mut want: impl FnMut(&Page) -> bool) -> RunSet {
        let mut set = RunSet::default();
        for run in runs.runs() {
            for address in (run.start..run.end).step_by(PAGE as usize) {
                if want(&self.pages[self.index(address)]) {
                    set.push(AddressRange::new(address, PAGE));
                }
            }
        }
        set
    }

    fn bring_back(&mut self) {
        if let Some(index) = self.comes_back.take() {
            self.pages[index].place = Place::Memory;
        }
    }

    pub fn young(&self, runs: &RunSet) -> RunSet {
        self.select(runs, |page| page.young)
    }

    fn exited(&self) -> bool {
        self.exited_before_call
            .is_some_and(|call| self.calls >= call)
    }

    fn page_out_range(&mut self, run: AddressRange) -> Result<(), Errno> {
        let mut hole = false;
        for index in self.index(run.start)..self.index(run.end) {
            let page = &mut self.pages[index];
            if page.mapping == 0 {
                hole = true;
                continue;
            }
            if page.locked {
                return Err(Errno::INVAL);
            }
            page.processed += 1;
            if page.place == Place::Memory && !page.sticky {
                if page.file {
                    page.place = Place::Nowhere;
                } else if self.swap_free_bytes >= PAGE {
                    self.swap_free_bytes -= PAGE;
                    page.place = Place::Swap;
                }
            }
        }
        if hole { Err(Errno::NOMEM) } else { Ok(()) }
    }
}

impl Mover for FakeMover {
    fn pid(&self) -> u32 {
        7
    }

    fn page_out(&mut self, runs: &[AddressRange]) -> Result<u64, Errno> {
        assert!(!runs.is_empty() && runs.len() <= VECTOR_MAX);
        assert!(
            runs.windows(2).all(|pair| pair[0].end <= pair[1].start),
            "{runs:?}"
        );
        if self.exited() || self.lost_leader {
            return Err(Errno::SRCH);
        }
        if self.calls == 0 {
            for page in self.pages.iter_mut().filter(|page| page.unmaps) {
                (page.mapping, page.place) = (0, Place::Nowhere);
            }
        }
        self.calls += 1;
        let bytes = runs.iter().map(|run| run.len()).sum();
        self.largest_call_bytes = self.largest_call_bytes.max(bytes);
        let mut ranges_max = usize::MAX;
        match self
            .faults
            .iter()
            .find(|fault| fault.0 == self.calls)
            .map(|fault| fault.1)
        {
            Some(Fault::Errno(errno)) => return Err(errno),
            Some(Fault::Short(ranges)) => ranges_max = ranges,
            None => {}
        }
        let mut done = 0;
        for run in runs.iter().take(ranges_max) {
            match self.page_out_range(*run) {
                Ok(()) => done += run.len(),
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn mapped(&mut self, within: AddressRange) -> Result<Vec<AddressRange>, PageoutError> {
        let mut runs: Vec<(u32, AddressRange)> = Vec::new();
        for address in (within.start..within.end).step_by(PAGE as usize) {
            let mapping = self.pages[self.index(address)].mapping;
            match runs.last_mut() {
                Some((last, run)) if *last == mapping && run.end == address => run.end += PAGE,
                _ if mapping != 0 => runs.push((mapping, AddressRange::new(address, PAGE))),
                _ => {}
            }
        }
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }

    fn present(&mut self, runs: &RunSet) -> Result<Present, PageoutError> {
        self.check()?;
        let there = |page: &Page| page.mapping != 0 && page.place == Place::Memory;
        let present = Present {
            anon: self.select(runs, |page| there(page) && !page.file),
            file: self.select(runs, |page| there(page) && page.file),
            shared: self.select(runs, |page| there(page) && page.sticky),
        };
        self.bring_back();
        Ok(present)
    }

    fn swapped(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError> {
        self.check()?;
        let swapped = self.select(runs, |page| page.place == Place::Swap);
        self.bring_back();
        Ok(swapped)
    }

    fn swap_free_bytes(&mut self) -> Result<u64, PageoutError> {
        Ok(self.swap_free_bytes)
    }

    fn rss_bytes(&mut self) -> Result<u64, PageoutError> {
        Ok(self
            .pages
            .iter()
            .filter(|page| page.place == Place::Memory)
            .count() as u64
            * PAGE)
    }

    fn check(&mut self) -> Result<(), PageoutError> {
        if self.exited() {
            Err(ProcessError::Gone { pid: 7 }.into())
        } else {
            Ok(())
        }
    }

    fn why_unreachable(&mut self) -> PageoutError {
        match self.lost_leader {
            true => PageoutError::LostLeader { pid: 7 },
            false => ProcessError::Gone { pid: 7 }.into(),
        }
    }
}

/// A clock that advances only on sleep.
#[derive(Default)]
pub(super) struct FakeClock {
    pub now_ns: Cell<u64>,
}

impl Clock for FakeClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn cpu_ns(&self) -> u64 {
        0
    }

    fn sleep_ns(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }
}
