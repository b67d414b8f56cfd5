// SPDX-License-Identifier: Apache-2.0
//! One target held under its budget: scans, decisions, and moving in slices.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agewise_host::clock;
use agewise_host::eye::{AccessSource, PAGE_BYTES};
use agewise_host::heated::{Heated, Moved};
use agewise_host::memory::MemInfo;
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::seat::Seat;
use agewise_policy::proactive::{
    Action, Backend, Controller, Facts, Hands, Outcome, Reason as Why, SwapRoom,
};

use super::told::{Announce, Begun, Held, Report};

/// What a scan leaves of a page's heat.
const DECAY: f64 = 0.97;
/// Scans take at most this share of a core, percent.
const SCAN_PERCENT: f64 = 1.0;
/// So many times what a period between two scans needed is queued for the next.
const QUEUE_FACTOR: u64 = 2;
/// At least so much is queued, pages.
const QUEUE_MIN_PAGES: u64 = 2048;
/// A scan tells most when about this share of the memory was accessed since the one before: with
/// much less nothing is learnt, with much more all look alike, and every bit cleared costs the
/// target 0.4 us when it sets it again.
const YOUNG_SHARE: f64 = 0.35;
/// Longest time between scans.
const SCAN_MAX_MS: u64 = 10_000;
/// So much is moved in one go, 0.1 ms of work, unless that would take too long in all: the program does
/// not run meanwhile, and requests that come in wait for it.
const SLICE_BYTES: u64 = 8 * PAGE_BYTES;
/// Slices in which a move is done at most.
const SLICES: u64 = 32;
/// Time between two slices.
const SLICE_US: u64 = 500;
/// One that comes late, because the program did not let it run, takes what it would have taken
/// meanwhile, up to so many.
const LATE_SLICES_MAX: u64 = 4;
/// What cannot be written down is not done; it is decided again after this time.
const RETRY_US: u64 = 1_000_000;
/// What changes slowly is read again after this time.
const SLOW: Duration = Duration::from_secs(1);
/// Of so many processes at most it is followed on which CPU they run: moves hop from one to the next.
const FOLLOWED_MAX: usize = 8;

/// What a turn works with.
pub(super) struct Tools<'a> {
    pub eye: &'a mut dyn AccessSource,
    pub seat: &'a mut Seat,
}

/// One target.
pub(super) struct Holder {
    pub held: Held,
    controller: Controller,
    heated: BTreeMap<u32, Heated>,
    outcome: Option<Outcome>,
    slow: Slow,
    slow_at: Option<Instant>,
    next_us: u64,
    next_scan_us: u64,
    scan_interval_ms: u64,
    /// Asked for by the last decision and not moved yet, and in which slices it goes.
    backlog_bytes: u64,
    slice_bytes: u64,
    done: Moved,
    /// Pages that went since the last scan, and in the period before.
    went_pages: u64,
    wanted_pages: u64,
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

impl Holder {
    pub(super) fn new(held: Held) -> Self {
        Holder {
            controller: Controller::new(&held.spec),
            held,
            heated: BTreeMap::new(),
            outcome: None,
            slow: Slow::default(),
            slow_at: None,
            next_us: 0,
            next_scan_us: 0,
            scan_interval_ms: 0,
            backlog_bytes: 0,
            slice_bytes: 0,
            done: Moved::default(),
            went_pages: 0,
            wanted_pages: 0,
        }
    }

    /// Does what is due: a scan, a decision, a slice of what was decided. `announce` is told of the first step.
    pub(super) fn turn(
        &mut self,
        tools: &mut Tools<'_>,
        now_us: u64,
        announce: Option<&Announce>,
        report: &mut Report,
    ) {
        if self.slow_at.is_none_or(|at| at.elapsed() >= SLOW) {
            self.read_slow();
        }
        if now_us >= self.next_scan_us {
            // It takes milliseconds, and clears without an interrupt to anybody.
            tools.seat.leave();
            self.scan(tools.eye, now_us, report);
        }
        if now_us < self.next_us {
            return;
        }
        let late_us = now_us - self.next_us;
        if self.backlog_bytes == 0 {
            self.decide(now_us, report);
        }
        if self.backlog_bytes > 0 {
            if let Some(announce) = announce {
                let begun = Begun {
                    charged_bytes: self.charged_bytes().unwrap_or(0),
                    swapped_bytes: self.slow.swap_bytes,
                    asked_bytes: self.backlog_bytes,
                    behind: report.behind,
                };
                if !announce(&self.held, &begun) {
                    self.backlog_bytes = 0;
                    self.next_us = now_us + RETRY_US;
                    return;
                }
            }
            let slices = (1 + late_us / SLICE_US).min(LATE_SLICES_MAX);
            self.move_slices(tools, slices, now_us, report);
        }
    }

    /// Asks the policy, with what became of the last decision.
    fn decide(&mut self, now_us: u64, report: &mut Report) {
        let charged_bytes = self.charged_bytes();
        let resident = charged_bytes.unwrap_or(0);
        let file_bytes = self.slow.file_bytes.min(resident);
        // Its hand takes anonymous memory only.
        let has_swap = self.held.backend != Backend::None;
        if !has_swap {
            report.trouble =
                Some("no swap to move anonymous memory to: the budget is not held".into());
        }
        let facts = Facts {
            time_ms: now_us / 1000,
            resident_bytes: [resident - file_bytes, file_bytes],
            charged_bytes,
            out_bytes: [self.slow.swap_bytes, 0],
            swap: Some(self.slow.room),
            backend: self.held.backend,
            limit_bytes: self.slow.limit_bytes,
            floor_bytes: self.slow.floor_bytes,
            hands: Hands {
                coldest: has_swap,
                page_out: has_swap,
                reclaim: false,
                sort: false,
            },
            outcome: self.outcome.take(),
            ..Facts::default()
        };
        let decision = self.controller.decide(&facts);
        self.next_us = decision.next_ms.saturating_mul(1000);
        let behind = matches!(decision.reason, Why::OverBudget { behind: true, .. });
        report.behind |= behind;
        if let Action::Coldest { bytes_max, .. } | Action::PageOut { bytes_max, .. } =
            decision.action
        {
            self.backlog_bytes = bytes_max;
            let pieces = if behind { SLICES / 4 } else { SLICES };
            self.slice_bytes = SLICE_BYTES.max(bytes_max / pieces);
            self.done = Moved::default();
            report.asked_bytes += bytes_max;
        }
    }

    /// Moves a part of the backlog; the last one settles the decision.
    fn move_slices(
        &mut self,
        tools: &mut Tools<'_>,
        slices: u64,
        now_us: u64,
        report: &mut Report,
    ) {
        let slice = self.backlog_bytes.min(slices * self.slice_bytes);
        let moved = self.move_out(tools, slice, report);
        report.steps += 1;
        report.tried_bytes += moved.tried_bytes;
        report.young_again_bytes += moved.young_again_bytes;
        report.left_bytes += moved.left_bytes;
        report.move_cpu_ns += moved.cpu_ns;
        self.done.add(&moved);
        self.backlog_bytes = match moved.is_short {
            true => 0,
            false => self.backlog_bytes - slice,
        };
        if self.held.dry_run {
            report.rehearsed_bytes += moved.tried_bytes;
            // A rehearsal moves nothing, so what is too much stays so: once a second will do.
            self.backlog_bytes = 0;
            self.next_us = now_us + 1_000_000;
            return;
        }
        if self.backlog_bytes == 0 {
            self.outcome = Some(Outcome {
                asked_bytes: self.done.tried_bytes,
                tried_bytes: self.done.tried_bytes,
                left_bytes: [self.done.left_bytes, 0],
                cpu_ns: self.done.cpu_ns,
            });
        }
        self.next_us = now_us + SLICE_US;
    }

    /// Memory charged to the cgroup, or resident memory of a process.
    fn charged_bytes(&self) -> Option<u64> {
        match &self.held.cgroup {
            Some(cgroup) => cgroup.usage_bytes().ok().flatten(),
            None => {
                let resident = self.heated.values().map(|h| h.process().rss_bytes());
                Some(resident.filter_map(Result::ok).sum())
            }
        }
    }

    fn read_slow(&mut self) {
        self.slow_at = Some(Instant::now());
        if let Some(cgroup) = &self.held.cgroup {
            if let Ok(limits) = cgroup.limits() {
                self.slow.limit_bytes = limits.max_bytes;
                self.slow.floor_bytes = limits.min_bytes.max(limits.low_bytes);
            }
            if let Ok(stat) = cgroup.stat() {
                self.slow.file_bytes = stat.file_bytes;
                self.slow.swap_bytes = stat.swap_bytes.unwrap_or(0);
            }
        }
        if let Ok(info) = MemInfo::of_machine(&ProcRoot::default()) {
            self.slow.room = SwapRoom {
                free_bytes: info.swap_free_bytes,
                total_bytes: info.swap_total_bytes,
            };
        }
        self.follow_processes();
    }

    /// Takes up processes that are new and lets go of those that are gone.
    fn follow_processes(&mut self) {
        let processes = &self.held.processes;
        self.heated.retain(|pid, heated| {
            let process = heated.process();
            processes.contains(&(*pid, process.start_ticks())) && process.is_alive()
        });
        for (pid, start_ticks) in processes {
            if self.heated.contains_key(pid) {
                continue;
            }
            let opened = Process::open_user(&ProcRoot::default(), *pid);
            let Ok(process) = opened else {
                continue;
            };
            if process.start_ticks() != *start_ticks {
                continue;
            }
            if let Ok(heated) = Heated::new(process, DECAY) {
                self.heated.insert(*pid, heated);
                self.next_scan_us = 0;
            }
        }
        if self.heated.len() <= FOLLOWED_MAX {
            for heated in self.heated.values_mut() {
                heated.follow_worker();
            }
        }
    }

    fn scan(&mut self, eye: &mut dyn AccessSource, now_us: u64, report: &mut Report) {
        let share = QUEUE_FACTOR * self.went_pages.max(self.wanted_pages / 2);
        self.wanted_pages = self.went_pages;
        self.went_pages = 0;
        let mut cpu_ns = 0;
        let pages = share.max(QUEUE_MIN_PAGES);
        let (mut present, mut young) = (0, 0);
        for heated in self.heated.values_mut() {
            match heated.scan(eye, pages, true) {
                Ok(scanned) => {
                    cpu_ns += scanned.cpu_ns;
                    present += scanned.present_pages;
                    young += scanned.young_pages;
                }
                Err(error) if error.is_gone() => {}
                Err(error) => report.trouble = Some(error.to_string()),
            }
        }
        report.scans += 1;
        report.scan_cpu_ns += cpu_ns;
        let affordable_ms = (cpu_ns as f64 / 1e6 * 100.0 / SCAN_PERCENT) as u64;
        let look_ms = self.controller.pace().look_ms.unwrap_or(250);
        // Half of the way at a time to where the share of accessed memory would be as wanted.
        let share = young as f64 / present.max(1) as f64;
        let factor = (YOUNG_SHARE / share.max(0.01)).sqrt().clamp(0.5, 2.0);
        let wanted_ms = (self.scan_interval_ms.max(look_ms) as f64 * factor) as u64;
        let least_ms = look_ms.max(affordable_ms).min(SCAN_MAX_MS);
        self.scan_interval_ms = wanted_ms.clamp(least_ms, SCAN_MAX_MS);
        self.next_scan_us = now_us + self.scan_interval_ms * 1000;
    }

    /// Moves `bytes` of the coldest; of several processes each by its share of what is queued.
    fn move_out(&mut self, tools: &mut Tools<'_>, bytes: u64, report: &mut Report) -> Moved {
        let began_ns = clock::thread_cpu_ns();
        let mut sum = Moved::default();
        let is_followed = !self.held.dry_run && self.heated.len() <= FOLLOWED_MAX;
        for attempt in 0..2 {
            let left = bytes.saturating_sub(sum.tried_bytes);
            let queued: u64 = self.heated.values().map(Heated::queued_pages).sum();
            if left == 0 || queued == 0 && attempt > 0 {
                break;
            }
            for heated in self.heated.values_mut() {
                let share = heated.queued_pages() as f64 / queued.max(1) as f64;
                let part = (left as f64 * share).ceil() as u64;
                // Asked each time: a program that finds us on its CPU often wakes up on another.
                match is_followed.then(|| heated.cpu()).flatten() {
                    Some(cpu) => tools.seat.take(cpu),
                    None => tools.seat.leave(),
                }
                match heated.step(tools.eye, part, self.held.dry_run) {
                    Ok(moved) => sum.add(&moved),
                    Err(error) if error.is_gone() => {}
                    Err(error) => report.trouble = Some(error.to_string()),
                }
            }
            if sum.tried_bytes >= bytes || attempt > 0 {
                break;
            }
            // The queue is empty before the next scan: more of what is coldest now.
            let pages = (bytes / PAGE_BYTES * 4).max(QUEUE_MIN_PAGES);
            tools.seat.leave();
            for heated in self.heated.values_mut() {
                if let Ok(scanned) = heated.scan(tools.eye, pages, false) {
                    report.scan_cpu_ns += scanned.cpu_ns;
                }
            }
        }
        self.went_pages += sum.tried_bytes / PAGE_BYTES;
        sum.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        sum
    }

    /// When it wants its next turn.
    pub(super) fn next_us(&self) -> u64 {
        self.next_us.min(self.next_scan_us)
    }

    /// Its processes.
    pub(super) fn heated(&mut self) -> impl Iterator<Item = (&u32, &mut Heated)> {
        self.heated.iter_mut()
    }
}
