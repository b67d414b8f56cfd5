// SPDX-License-Identifier: Apache-2.0
//! One target under a budget: its address spaces, and what a [`Pacer`] decides for them carried out.

use std::collections::BTreeMap;

use agewise_host::access::AccessSource;
use agewise_host::clock;
use agewise_host::heated::Heated;
use agewise_host::memory::MemInfo;
use agewise_host::mover::PageoutError;
use agewise_host::process::{Process, ProcessError};
use agewise_host::root::ProcRoot;
use agewise_policy::budget::{Moved, Pacer, Scanned, World, share};
use agewise_policy::proactive::{Backend, Decision, Facts, Hands, Reason, SwapRoom};

use super::report::{Announce, Begun, Held, Report};

/// What changes slowly is read again after this time, us.
const SLOW_US: u64 = 1_000_000;

/// One address space: a process, or a fake of one.
pub(super) trait Memory: Sized {
    /// Takes up the process of a pid that started then: a pid given to another is not meant.
    fn open(pid: u32, start_ticks: u64) -> Result<Self, PageoutError>;

    /// When the process started, clock ticks since boot.
    fn start_ticks(&self) -> u64;

    /// Whether the process is still there.
    fn is_alive(&self) -> bool;

    /// Resident memory; `None` when the process is gone.
    fn resident_bytes(&self) -> Option<u64>;

    /// As [`Heated::scan`].
    fn scan(
        &mut self,
        source: &mut dyn AccessSource,
        pages: u64,
        counts: bool,
    ) -> Result<Scanned, PageoutError>;

    /// Pages queued.
    fn queued_pages(&self) -> u64;

    /// As [`Heated::move_out`].
    fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        pages: u64,
        rehearse: bool,
    ) -> Result<Moved, PageoutError>;
}

impl Memory for Heated {
    fn open(pid: u32, start_ticks: u64) -> Result<Self, PageoutError> {
        let process = Process::open_user(&ProcRoot::default(), pid)?;
        if process.start_ticks() != start_ticks {
            return Err(ProcessError::Gone { pid }.into());
        }
        Heated::new(process)
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

    fn scan(
        &mut self,
        source: &mut dyn AccessSource,
        pages: u64,
        counts: bool,
    ) -> Result<Scanned, PageoutError> {
        Heated::scan(self, source, pages, counts)
    }

    fn queued_pages(&self) -> u64 {
        Heated::queued_pages(self)
    }

    fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        pages: u64,
        rehearse: bool,
    ) -> Result<Moved, PageoutError> {
        Heated::move_out(self, source, pages, rehearse)
    }
}

/// What a turn works with.
pub(super) struct Tools<'a> {
    pub source: &'a mut dyn AccessSource,
    /// The clock, us.
    pub now_us: &'a dyn Fn() -> u64,
    /// Room in swap now.
    pub swap_room: &'a dyn Fn() -> Option<SwapRoom>,
    /// Called before the first move, if anybody wants to know.
    pub announce: Option<&'a Announce>,
}

/// Room in the swap of this machine.
pub(super) fn swap_room() -> Option<SwapRoom> {
    let info = MemInfo::of_machine(&ProcRoot::default()).ok()?;
    Some(SwapRoom {
        free_bytes: info.swap_free_bytes,
        total_bytes: info.swap_total_bytes,
    })
}

/// One target.
pub(super) struct Target<M> {
    pub held: Held,
    pacer: Pacer,
    spaces: Spaces<M>,
}

/// Address spaces of a target, and what was read of its cgroup.
struct Spaces<M> {
    by_pid: BTreeMap<u32, M>,
    slow: Slow,
    slow_due_us: u64,
}

/// What is read once a second.
#[derive(Clone, Copy, Debug, Default)]
struct Slow {
    limit_bytes: Option<u64>,
    floor_bytes: u64,
    file_bytes: u64,
    swap_bytes: u64,
    room: SwapRoom,
}

impl<M: Memory> Target<M> {
    pub fn new(held: Held) -> Self {
        Target {
            pacer: Pacer::new(&held.spec, held.dry_run),
            held,
            spaces: Spaces {
                by_pid: BTreeMap::new(),
                slow: Slow::default(),
                slow_due_us: 0,
            },
        }
    }

    /// The same target, with what was learnt of it, held differently: other processes, or rehearsed.
    pub fn hold(&mut self, held: Held) {
        self.pacer.set_rehearsal(held.dry_run);
        self.held = held;
    }

    /// Does what is due: a scan, a decision, a slice of what was decided.
    pub fn turn(&mut self, tools: Tools<'_>, report: &mut Report) {
        let now_us = (tools.now_us)();
        if now_us >= self.spaces.slow_due_us {
            self.spaces.slow_due_us = now_us.saturating_add(SLOW_US);
            self.spaces
                .slow
                .read(&self.held, (tools.swap_room)().unwrap_or_default());
            if self.spaces.follow(&self.held.processes) {
                self.pacer.scan_soon();
            }
        }
        self.pacer.turn(&mut Turn {
            held: &self.held,
            spaces: &mut self.spaces,
            tools,
            report,
        });
    }

    /// When it wants its next turn, us.
    pub fn due_us(&self) -> u64 {
        self.pacer.due_us()
    }

    /// Its address spaces, by pid.
    pub fn spaces(&mut self) -> impl Iterator<Item = (&u32, &mut M)> {
        self.spaces.by_pid.iter_mut()
    }
}

impl Slow {
    fn read(&mut self, held: &Held, room: SwapRoom) {
        self.room = room;
        let Some(cgroup) = &held.cgroup else { return };
        if let Ok(limits) = cgroup.limits() {
            self.limit_bytes = limits.max_bytes;
            self.floor_bytes = limits.min_bytes.max(limits.low_bytes);
        }
        if let Ok(stat) = cgroup.stat() {
            self.file_bytes = stat.file_bytes;
            self.swap_bytes = stat.swap_bytes.unwrap_or(0);
        }
    }
}

impl<M: Memory> Spaces<M> {
    /// Takes up processes that are new and drops those that are gone; whether any are new.
    fn follow(&mut self, processes: &[(u32, u64)]) -> bool {
        self.by_pid.retain(|pid, space| {
            processes.contains(&(*pid, space.start_ticks())) && space.is_alive()
        });
        let mut has_new = false;
        for (pid, start_ticks) in processes {
            if !self.by_pid.contains_key(pid)
                && let Ok(space) = M::open(*pid, *start_ticks)
            {
                self.by_pid.insert(*pid, space);
                has_new = true;
            }
        }
        has_new
    }

    /// Memory charged to the cgroup, or resident memory of the processes.
    fn charged_bytes(&self, held: &Held) -> Option<u64> {
        match &held.cgroup {
            Some(cgroup) => cgroup.usage_bytes().ok().flatten(),
            None => Some(self.by_pid.values().filter_map(M::resident_bytes).sum()),
        }
    }
}

/// A turn under way.
struct Turn<'t, 'a, M> {
    held: &'t Held,
    spaces: &'t mut Spaces<M>,
    tools: Tools<'a>,
    report: &'t mut Report,
}

impl<M> Turn<'_, '_, M> {
    /// Notes what stands in the way; that a process ended is none of it.
    fn trouble<T>(&mut self, result: Result<T, PageoutError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if !error.is_gone() {
                    self.report.trouble = Some(error.to_string());
                }
                None
            }
        }
    }

    fn pids(&self) -> Vec<u32> {
        self.spaces.by_pid.keys().copied().collect()
    }
}

impl<M: Memory> World for Turn<'_, '_, M> {
    fn now_us(&mut self) -> u64 {
        (self.tools.now_us)()
    }

    fn facts(&mut self) -> Facts<'static> {
        let charged_bytes = self.spaces.charged_bytes(self.held);
        let resident = charged_bytes.unwrap_or(0);
        let slow = &self.spaces.slow;
        let file_bytes = slow.file_bytes.min(resident);
        // The mover takes anonymous memory only.
        let has_swap = self.held.backend != Backend::None;
        if !has_swap {
            self.report.trouble =
                Some("no swap to move anonymous memory to: the budget is not held".into());
        }
        Facts {
            resident_bytes: [resident - file_bytes, file_bytes],
            charged_bytes,
            out_bytes: [slow.swap_bytes, 0],
            swap: Some(slow.room),
            backend: self.held.backend,
            limit_bytes: slow.limit_bytes,
            floor_bytes: slow.floor_bytes,
            hands: Hands {
                coldest: has_swap,
                page_out: has_swap,
                reclaim: false,
                sort: false,
            },
            ..Facts::default()
        }
    }

    fn decided(&mut self, decision: &Decision) -> bool {
        let asked_bytes = decision.action.bytes();
        self.report.behind |= matches!(decision.reason, Reason::OverBudget { behind: true, .. });
        self.report.asked_bytes += asked_bytes;
        if asked_bytes > 0
            && let Some(announce) = self.tools.announce.take()
        {
            let begun = Begun {
                charged_bytes: self.spaces.charged_bytes(self.held).unwrap_or(0),
                swapped_bytes: self.spaces.slow.swap_bytes,
                asked_bytes,
                behind: self.report.behind,
            };
            return announce(self.held, &begun);
        }
        true
    }

    fn scan(&mut self, queue_pages: u64, counts: bool) -> Scanned {
        let mut sum = Scanned::default();
        for pid in self.pids() {
            let Some(space) = self.spaces.by_pid.get_mut(&pid) else {
                continue;
            };
            let scanned = space.scan(&mut *self.tools.source, queue_pages, counts);
            if let Some(scanned) = self.trouble(scanned) {
                sum.add(&scanned);
            }
        }
        self.report.scans += u64::from(counts);
        self.report.scan_cpu_ns += sum.cpu_ns;
        sum
    }

    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved {
        let began_ns = clock::thread_cpu_ns();
        let mut sum = Moved::default();
        let queued: Vec<u64> = self.spaces.by_pid.values().map(M::queued_pages).collect();
        for (pid, part) in self.pids().into_iter().zip(share(pages, &queued)) {
            let Some(space) = self.spaces.by_pid.get_mut(&pid).filter(|_| part > 0) else {
                continue;
            };
            let moved = space.move_out(&mut *self.tools.source, part, rehearse);
            if let Some(moved) = self.trouble(moved) {
                sum.add(&moved);
            }
        }
        sum.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        let report = &mut *self.report;
        report.steps += 1;
        report.tried_bytes += sum.tried_bytes;
        report.young_again_bytes += sum.young_again_bytes;
        report.left_bytes += sum.left_bytes;
        report.move_cpu_ns += sum.cpu_ns;
        if rehearse {
            report.rehearsed_bytes += sum.tried_bytes;
        }
        sum
    }
}
