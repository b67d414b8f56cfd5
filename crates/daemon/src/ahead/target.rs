// SPDX-License-Identifier: Apache-2.0
//! One target under a budget: the execution of what a [`Pacer`] decides for its address spaces.

use std::collections::BTreeMap;

use agewise_host::access::AccessSource;
use agewise_host::budgeted::{HeldFiles, HeldMemory, OpenFiles};
use agewise_host::cgroup::Cgroup;
use agewise_host::clock;
use agewise_host::memory::MemInfo;
use agewise_host::pressure::{Psi, Resource};
use agewise_host::root::ProcRoot;
use agewise_policy::budget::{
    Limited, Moved, Order, PAGE_BYTES, Pacer, PageQueue, Scanned, Seen, Verdict, World,
};
use agewise_policy::generations::PageType;
use agewise_policy::proactive::{Backend, Controller, Decision, Facts, Hands, Reason, SwapRoom};

use super::report::{AnnounceAs, Begun, Held, Report};
use super::spaces::{Spaces, trouble};

/// Values that change slowly are read again after this time, us.
const SLOW_US: u64 = 1_000_000;

/// What a turn needs from outside.
pub(super) struct Tools<'a> {
    pub source: &'a mut dyn AccessSource,
    /// The clock, us.
    pub now_us: &'a dyn Fn() -> u64,
    /// Room in swap now.
    pub swap_room: &'a dyn Fn() -> Option<SwapRoom>,
    /// Opens the page cache, if the files of a target are held as well.
    pub open_files: &'a OpenFiles<'a>,
    /// Called before the first move, if it has to be announced.
    pub announce: Option<&'a AnnounceAs<'a>>,
    /// Receives what a scan that cleared accessed bits saw of a process: pid, start time, tables.
    pub tap: &'a dyn Fn(u32, u64, &[Seen]),
}

/// Room in the swap of this machine.
pub(super) fn swap_room() -> Option<SwapRoom> {
    let info = MemInfo::of_machine(&ProcRoot::default()).ok()?;
    Some(SwapRoom {
        free_bytes: info.swap_free_bytes,
        total_bytes: info.swap_total_bytes,
    })
}

/// Something with page numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    /// A process, by pid.
    Process(u32),
    /// A file, by its number.
    File(u64),
}

fn type_of(space: Space) -> PageType {
    match space {
        Space::Process(_) => PageType::Anon,
        Space::File(_) => PageType::File,
    }
}

/// One target.
pub(super) struct Target<M> {
    pub held: Held,
    pacer: Pacer,
    spaces: Spaces<M>,
    queue: PageQueue<Space>,
    /// The verdict at the last report.
    reported: Verdict,
}

impl<M: HeldMemory> Target<M> {
    /// `seed` decides in which epochs the limit is left to the kernel.
    pub fn new(held: Held, seed: u64) -> Self {
        let hold = Controller::new(&held.spec).pace().hold;
        let queue =
            PageQueue::new(hold.map_or(Order::default(), |hold| hold.order)).with_types(type_of);
        Target {
            pacer: Pacer::new(&held.spec, held.dry_run).measuring(seed),
            reported: Verdict::Open,
            held,
            spaces: Spaces::new(),
            queue,
        }
    }

    /// Changes how the target is held (other processes, or rehearsed) and keeps what was learned
    /// about it.
    pub fn hold(&mut self, held: Held) {
        self.pacer.set_rehearsal(held.dry_run);
        self.held = held;
    }

    /// Does what is due: a scan, a decision, a slice of what was decided.
    pub fn turn(&mut self, tools: Tools<'_>, report: &mut Report) {
        let (now_us, began_ns) = ((tools.now_us)(), clock::thread_cpu_ns());
        if now_us >= self.spaces.slow_due_us {
            self.spaces.slow_due_us = now_us.saturating_add(SLOW_US);
            self.spaces
                .slow
                .read(&self.held, (tools.swap_room)().unwrap_or_default());
            let has_new = self.spaces.follow(&self.held, report);
            if self
                .spaces
                .follow_files(&self.held, tools.open_files, now_us)
                || has_new
            {
                self.pacer.scan_soon();
            }
            let spaces = &self.spaces;
            self.queue.retain(|space| match space {
                Space::Process(pid) => spaces.by_pid.contains_key(&pid),
                Space::File(_) => spaces.files.is_some(),
            });
        }
        if tools.announce.is_some() {
            // The announcement of this decision is paired with a report: the policy decides on the
            // rest again, so that it is announced again.
            self.pacer.drop_backlog();
        }
        self.pacer.turn(&mut Turn {
            held: &self.held,
            spaces: &mut self.spaces,
            queue: &mut self.queue,
            tools,
            report,
        });
        self.measured(report);
        self.spaces.cpu_ns += clock::thread_cpu_ns().saturating_sub(began_ns);
    }

    /// Reports that the kernel has the limit first, and the measured worth of the budget, if the
    /// verdict is new or something was moved.
    fn measured(&mut self, report: &mut Report) {
        let Some(epochs) = self.pacer.epochs() else {
            return;
        };
        report.kernel_first = epochs.first().filter(|_| !self.pacer.is_rehearsal());
        let verdict = epochs.verdict();
        if verdict != std::mem::replace(&mut self.reported, verdict) || report.steps > 0 {
            report.measured = epochs.gain();
        }
    }

    /// When it wants its next turn, us.
    pub fn due_us(&self) -> u64 {
        self.pacer.due_us()
    }

    /// Sets a limit as if the kernel held it, until the cgroup is read: a fake has none.
    #[cfg(test)]
    pub fn set_limit_bytes(&mut self, bytes: u64) {
        self.spaces.slow.limit_bytes = Some(bytes);
    }

    /// Whether only the kernel holds its limit now: nothing is scanned or moved.
    pub fn is_left_to_kernel(&self) -> bool {
        self.pacer.is_left_to_kernel()
    }

    /// What its processes have consumed.
    #[cfg(test)]
    pub fn consumed(&mut self) -> agewise_policy::budget::Counted {
        self.spaces.consumed()
    }

    /// Memory that the queue takes.
    #[cfg(test)]
    pub fn queue_bytes(&self) -> usize {
        self.queue.memory_bytes()
    }

    /// Number of address spaces that it holds.
    #[cfg(test)]
    pub fn spaces(&self) -> usize {
        self.spaces.by_pid.len()
    }
}

/// A turn under way.
struct Turn<'t, 'a, M> {
    held: &'t Held,
    spaces: &'t mut Spaces<M>,
    queue: &'t mut PageQueue<Space>,
    tools: Tools<'a>,
    report: &'t mut Report,
}

/// Time in which a task waited for a resource: a task of the cgroup, or of the machine if the
/// kernel does not count it by cgroup (v1).
fn waited_us(resource: Resource, cgroup: Option<&Cgroup>) -> Option<u64> {
    let of_cgroup = cgroup.and_then(|cgroup| Psi::of_cgroup(cgroup, resource).ok().flatten());
    let of_machine = || {
        Psi::of_machine(&ProcRoot::default(), resource)
            .ok()
            .flatten()
    };
    Some(of_cgroup.or_else(of_machine)?.some.total_us)
}

/// Why the budget is not held, or only by a part of the memory, in words.
fn not_held(reason: &str, hint: &str) -> String {
    match reason {
        "at_floor" => "nothing may leave, because of the floor (of the rule, or memory.min and \
                       memory.low): the budget is not held"
            .into(),
        "cache_unseen" => {
            format!("much page cache that is not followed: the kernel holds the limit{hint}")
        }
        _ => format!(
            "much memory that cannot be moved out, such as page cache, what several processes map, \
             and locked memory: the budget is held without it, as the kernel has no limit near \
             it{hint}"
        ),
    }
}

impl<M: HeldMemory> World for Turn<'_, '_, M> {
    fn now_us(&mut self) -> u64 {
        (self.tools.now_us)()
    }

    fn facts(&mut self) -> Facts<'static> {
        let charged_bytes = self.spaces.charged_bytes(self.held);
        let resident = charged_bytes.unwrap_or(0);
        let slow = &self.spaces.slow;
        let file_bytes = slow.file_bytes.min(resident);
        let has_swap = self.held.backend != Backend::None;
        let cache = matches!(self.spaces.files, Some(Ok(_)));
        if let Some(Err(why)) = &self.spaces.files {
            self.report.trouble = Some(format!("files are not held: {why}"));
        }
        if !has_swap && !cache {
            self.report.trouble =
                Some("no swap to move anonymous memory to: the budget is not held".into());
        }
        Facts {
            resident_bytes: [resident - file_bytes, file_bytes],
            charged_bytes,
            out_bytes: slow.swap_bytes,
            swap: Some(slow.room),
            backend: self.held.backend,
            limit_bytes: slow.limit_bytes,
            floor_bytes: slow.floor_bytes,
            hands: Hands {
                coldest: has_swap || cache,
                page_out: has_swap || cache,
                sort: false,
                cache,
                ..Hands::default()
            },
            ..Facts::default()
        }
    }

    fn decided(&mut self, decision: &Decision) -> bool {
        let asked_bytes = decision.action.bytes();
        let is_behind = matches!(decision.reason, Reason::OverBudget { behind: true, .. });
        self.report.behind |= is_behind && !self.held.dry_run;
        self.report.asked_bytes = self.report.asked_bytes.max(asked_bytes);
        self.queue.decided(decision);
        if let Reason::Own(_) | Reason::AtFloor { .. } = decision.reason {
            let hint = match &self.spaces.files {
                Some(Err(why)) => format!(" ({why})"),
                Some(Ok(_)) => String::new(),
                None => " (files = true would let page cache go as well)".into(),
            };
            self.report.trouble = Some(not_held(decision.reason.name(), &hint));
        }
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
        let began_ns = clock::thread_cpu_ns();
        let mut seen = BTreeMap::new();
        for (pid, space) in &mut self.spaces.by_pid {
            let looked = space.look(&mut *self.tools.source, counts);
            if let Some(tables) = trouble(self.report, looked) {
                if counts {
                    (self.tools.tap)(*pid, space.start_ticks(), &tables);
                }
                seen.insert(Space::Process(*pid), tables);
            }
        }
        if let Some(files) = self.spaces.held_files() {
            match files.look(counts) {
                Ok(tables) => {
                    self.queue.retain(|space| match space {
                        Space::Process(_) => true,
                        Space::File(file) => tables.contains_key(&file),
                    });
                    let tables = tables.into_iter();
                    seen.extend(tables.map(|(file, tables)| (Space::File(file), tables)));
                    if let Some(trouble) = files.trouble() {
                        self.report.trouble = Some(trouble);
                    }
                }
                Err(error) => self.report.trouble = Some(error.to_string()),
            }
        }
        let mut scanned = self.queue.scan(&seen, counts, queue_pages);
        let files = self.spaces.held_files();
        let walked_ns = files.map_or(0, HeldFiles::take_walked_ns);
        scanned.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns + walked_ns);
        self.report.scans += u64::from(counts);
        self.report.scan_cpu_ns += scanned.cpu_ns;
        scanned
    }

    fn limited(&mut self) -> Option<Limited> {
        let limit_bytes = self.spaces.slow.limit_bytes?;
        let mut counted = self.spaces.consumed();
        counted.holder_us = self.spaces.cpu_ns / 1_000;
        // Dropped pages are read again as if for the first time, which is not memory pressure.
        let files = self.spaces.held_files();
        let waits_for = files.map_or(Resource::Memory, |_| Resource::Io);
        counted.waited_us = waited_us(waits_for, self.held.cgroup.as_ref()).unwrap_or(0);
        // If this is not known, assume that all CPUs are always wanted.
        counted.cpu_waited_us = waited_us(Resource::Cpu, None).unwrap_or_else(self.tools.now_us);
        Some(Limited {
            limit_bytes,
            counted,
        })
    }

    fn left_to_kernel(&mut self) {
        self.queue.left_to_kernel();
    }

    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved {
        let began_ns = clock::thread_cpu_ns();
        let (source, spaces) = (&mut *self.tools.source, &mut *self.spaces);
        let report = &mut *self.report;
        let mut dropped_pages = 0;
        let mut sum = self
            .queue
            .move_out(pages, |space, runs, choose| match space {
                Space::Process(pid) => {
                    let space = spaces.by_pid.get_mut(&pid);
                    let gone = space.map(|space| space.move_out(source, runs, choose, rehearse));
                    gone.and_then(|gone| trouble(report, gone))
                        .unwrap_or_default()
                }
                Space::File(file) => {
                    let files = spaces.held_files();
                    let gone = files.map(|files| files.move_out(file, runs, choose, rehearse));
                    let gone = gone.transpose().unwrap_or_else(|error| {
                        report.trouble = Some(error.to_string());
                        None
                    });
                    let gone = gone.unwrap_or_default();
                    dropped_pages += gone.left_pages;
                    gone
                }
            });
        report.dropped_bytes += dropped_pages * PAGE_BYTES;
        sum.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
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
