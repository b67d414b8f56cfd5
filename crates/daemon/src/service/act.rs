// SPDX-License-Identifier: Apache-2.0
//! Asks the policies, and does what they say.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use agewise_cli::units::unix_ms;
use agewise_host::access::kernel_page_bytes;
use agewise_host::agent::FilesOf;
use agewise_host::guest::{self, Guests};
use agewise_host::mover::{self, Ages};
use agewise_host::root::ProcRoot;
use agewise_policy::generations::ByType;
use agewise_policy::proactive::{Action, Backend};
use agewise_policy::workingset::Histogram;

use super::Daemon;
use crate::actor::{Actor, Around};
use crate::ahead::{Ahead, Announce, Begun, Held, Report};
use crate::hand::{Done, PageOut};
use crate::journal::Journal;
use crate::observer::{self, Key, Seen};
use crate::record::{Acted, AheadLine, NotHeld};
use crate::state::Reason;

/// The most that is moved at once: it delays a tick by 0.3 s.
pub(super) const MOVE_MAX_BYTES: u64 = 64 << 20;

/// Time between two signs of life to the service manager.
const NOTIFY_MS: u64 = 1000;

/// Gives a sign of life to the service manager if the last one is a while ago.
pub(super) fn notify_if_due(now_ms: u64, notified_ms: &mut u64) {
    if now_ms >= notified_ms.saturating_add(NOTIFY_MS) {
        super::notify(&[sd_notify::NotifyState::Watchdog]);
        *notified_ms = now_ms;
    }
}

impl Daemon {
    /// Asks every actor, and does what it says.
    pub(super) fn act(&mut self, seen: &[Seen], cancel: &AtomicBool) {
        self.follow_small(seen);
        let machine = self.hub.snapshot().machine;
        if self.tracked.actors.is_empty() {
            return self.hold(Vec::new());
        }
        let now_ms = self.now_ms();
        let (backend, with_files) = (
            self.world.backend(),
            self.tracked.actors.values().any(|actor| actor.files),
        );
        let around = Around {
            machine,
            backend,
            refault_ns: self.world.refault_ns(now_ms, backend, with_files),
        };
        let mut held = Vec::new();
        let mut order: Vec<&Seen> = seen
            .iter()
            .filter(|seen| self.tracked.actors.contains_key(&seen.key))
            .collect();
        observer::sort_lowest_first(&mut order);
        let mut taken: HashSet<u32> = self.own.line.iter().copied().collect();
        let mut taken_cgroups: Vec<PathBuf> = Vec::new();
        let mut notified_ms = self.now_ms();
        for seen in order {
            let pids: Vec<u32> = seen
                .pids
                .iter()
                .copied()
                .filter(|pid| taken.insert(*pid))
                .collect();
            if cancel.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
            self.keep_watch(&mut notified_ms);
            let actor = &self.tracked.actors[&seen.key];
            let whose = Whose {
                seen,
                pids: &pids,
                without: &taken_cgroups,
                guests: Guests::included_if(self.config.act[actor.rule].guests),
            };
            if actor.shrinks().is_some() {
                // It is held by a limit, between ticks.
            } else if actor.is_held_ahead() {
                held.push(self.held(actor, whose, around.backend));
            } else {
                self.act_on(whose, &around, cancel);
            }
            let path = seen.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
            taken_cgroups.extend(path);
        }
        self.hold(held);
    }

    /// Does what is due between two targets: all of them together may take longer than a culprit
    /// may stay frozen, or the watchdog waits.
    fn keep_watch(&mut self, notified_ms: &mut u64) {
        let now_ms = self.now_ms();
        if self.watch_due_ms().is_some_and(|ms| ms <= now_ms) {
            self.watch_over();
        }
        notify_if_due(now_ms, notified_ms);
    }

    /// What the thread that holds budgets needs to know about a target.
    fn held(&self, actor: &Actor, whose: Whose<'_>, backend: Backend) -> Held {
        let start_ticks = |pid: u32| Some(self.agent.space(pid)?.process().start_ticks());
        let pids = whose.pids.iter();
        Held {
            key: whose.seen.key.clone(),
            cgroup: whose.seen.cgroup.clone(),
            processes: pids
                .filter_map(|pid| Some((*pid, start_ticks(*pid)?)))
                .collect(),
            spec: self.config.act[actor.rule].policy.0.clone(),
            dry_run: actor.dry_run,
            backend,
            files: actor.files,
            guests: whose.guests,
            without: whose.without.to_vec(),
        }
    }

    /// Passes targets under a budget to the thread that holds them, and records what it did.
    fn hold(&mut self, held: Vec<Held>) {
        if held.is_empty() {
            return self.end_ahead();
        }
        if self.ahead.is_none() {
            match Ahead::start(announce(&self.journal)) {
                Ok(ahead) => {
                    self.agent.set_also_young(Some(ahead.seen()));
                    self.ahead = Some(ahead);
                }
                Err(error) => return self.say_not_held(&error.to_string()),
            }
        }
        let Some(ahead) = &mut self.ahead else { return };
        let is_fresh = ahead.hold(held);
        let reports = ahead.take_reports();
        self.record(reports);
        if let Err(error) = is_fresh {
            self.say_not_held(&format!("statistics are not kept fresh: {error}"));
        }
    }

    /// Every tick tries again to start the threads.
    pub(super) fn say_not_held(&mut self, why: &str) {
        if self.not_held.is_news(self.now_ms(), why) {
            self.say("trouble", format!("budget: {why}"));
        }
    }

    /// Ends the thread that holds budgets, if there is one, and its source closes.
    pub(super) fn end_ahead(&mut self) {
        if let Some(mut ahead) = self.ahead.take() {
            // The agent takes what it saw since the last look with the next one.
            let reports = ahead.end();
            self.record(reports);
        }
    }

    /// Counts and records what was done to hold budgets, also of targets that are gone or no longer
    /// under one.
    pub(super) fn record(&mut self, reports: Vec<(Key, Report)>) {
        let now_ms = self.now_ms();
        // Reported every time while it is so.
        let actors = self.tracked.actors.values_mut();
        actors.for_each(|actor| actor.kernel_first = None);
        for (key, report) in reports {
            self.meter.own.move_cpu_total_ms += report.move_cpu_ns as f64 / 1e6;
            let counted = self.tracked.counted(&key);
            if let Some(reason) = Reason::by_name(report.policy) {
                counted.moved(reason, report.left_bytes, report.dropped_bytes);
            }
            counted.rehearsed(report.rehearsed_bytes, true, u64::MAX);
            let (mut is_news, mut not_held) = (false, None);
            if let Some(actor) = self.tracked.actors.get_mut(&key) {
                // If memory was moved without a comparison, the known gain is that of an earlier
                // trial.
                if report.steps > 0 || report.measured.is_some() {
                    actor.budget_gain = report.measured;
                }
                actor.kernel_first = report.kernel_first;
                // Trouble is found again at every step.
                let trouble = report.trouble.as_ref().filter(|_| report.steps == 0);
                is_news = trouble.is_some_and(|trouble| actor.troubles.is_news(now_ms, trouble));
                not_held = report
                    .kernel_first
                    .as_ref()
                    .filter(|_| report.steps == 0 && actor.holds.is_news(now_ms, "kernel_first"));
            }
            let record = if report.steps > 0 {
                "action"
            } else if is_news {
                "trouble"
            } else if report.measured.is_some() {
                "measured"
            } else if let Some(why) = not_held {
                let line = NotHeld {
                    target: &key.0,
                    policy: report.policy,
                    dry_run: report.dry_run,
                    why,
                };
                self.journal.write("hold", &line);
                continue;
            } else {
                continue;
            };
            let line = AheadLine {
                phase: "after",
                target: &key.0,
                policy: report.policy,
                dry_run: report.dry_run,
                fields: &report,
            };
            self.journal.write(record, &line);
        }
    }

    fn act_on(&mut self, whose: Whose<'_>, around: &Around, cancel: &AtomicBool) {
        let (now_ms, seen) = (self.now_ms(), whose.seen);
        let Some(actor) = self.tracked.actors.get_mut(&seen.key) else {
            return;
        };
        let files = whose.files().filter(|_| actor.files);
        let cgroup = seen.cgroup.as_ref();
        let charged_bytes = cgroup.and_then(|cgroup| cgroup.usage_bytes().ok().flatten());
        let Some(mut ages) = self.agent.ages(seen.at, files, charged_bytes) else {
            return;
        };
        // Also what came back to processes that have ended.
        let refaulted = self.tracked.refaulted.get(&seen.key);
        ages.refaulted_bytes[0] = refaulted.map_or(0, |refaulted| refaulted.found_bytes);
        let mut decision = actor.decide(now_ms, cgroup, charged_bytes, &ages, around);
        decision.action = whose.spare(decision.action, &self.around.roots.proc);
        let resident = ages.resident.total();
        let mut line = Acted {
            phase: (decision.action != Action::Nothing).then_some("before"),
            target: &seen.key.0,
            container: seen.container.as_ref(),
            policy: actor.reason.name(),
            dry_run: actor.dry_run,
            resident_bytes: resident[0].saturating_add(resident[1]),
            swapped_bytes: ages.out_bytes,
            action: &decision.action,
            why: &decision.reason,
            limit: decision.limit,
            next_unix_ms: unix_ms().saturating_add(decision.next_ms.saturating_sub(now_ms)),
            done: None,
        };
        if decision.action == Action::Nothing {
            if actor.holds.is_news(now_ms, decision.reason.name()) {
                self.journal.write("hold", &line);
            }
            return;
        }
        if !self.journal.permits("action", &line) {
            return;
        }
        let mut hand = PageOut {
            agent: &mut self.agent,
            guests: whose.guests,
            cancel,
            rehearse: actor.dry_run,
        };
        let sort_first = self.config.act[actor.rule].sort_first;
        let done = match decision.action {
            Action::Reclaim { bytes, anon } => reclaim(seen, bytes, anon, actor.dry_run),
            action => carry_out(&mut hand, whose, files, &action, &ages.resident, sort_first),
        };
        if actor.dry_run {
            let is_all = done.found_all(decision.action.bytes().min(MOVE_MAX_BYTES));
            let [anon, file] = older_bytes(&ages.resident, &decision.action);
            let most_bytes = anon.saturating_add(file);
            let counted = &mut actor.counted;
            counted.rehearsed(done.rehearsed_bytes, is_all, most_bytes);
        }
        actor.done(&done);
        line.phase = Some("after");
        line.done = Some(&done);
        self.journal.write("action", &line);
    }
}

/// The subject and the memory to act upon.
#[derive(Clone, Copy)]
struct Whose<'a> {
    seen: &'a Seen,
    /// Its processes, without those of the cgroups in `without`.
    pids: &'a [u32],
    /// The cgroups below it that have their own rules.
    without: &'a [PathBuf],
    /// Whether its processes that run KVM guests are acted upon.
    guests: Guests,
}

impl<'a> Whose<'a> {
    /// File memory charged to it.
    fn files(&self) -> Option<FilesOf<'a>> {
        let cgroup = self.seen.cgroup.as_ref()?;
        Some(FilesOf {
            cgroup,
            without: self.without,
        })
    }

    /// The kernel selects from all memory of a cgroup and of those below it. Where some of that
    /// must stay, the oldest pages of the others go instead.
    fn spare(&self, action: Action, proc: &ProcRoot) -> Action {
        match action {
            Action::Reclaim { bytes, anon } if !self.may_all_go(proc) => Action::PageOut {
                older_than_ms: [anon.then_some(0), Some(0)],
                bytes_max: bytes,
            },
            action => action,
        }
    }

    /// Whether no other rule applies to a part of the cgroup, all its processes are known, and none
    /// is to be left alone.
    fn may_all_go(&self, proc: &ProcRoot) -> bool {
        let Some(cgroup) = &self.seen.cgroup else {
            return false;
        };
        let is_below = |path: &PathBuf| path.starts_with(cgroup.path());
        if self.without.iter().any(is_below) || self.pids.len() < self.seen.pids.len() {
            return false;
        }
        let line = mover::own_lineage();
        let is_spared = |pid: u32| self.guests == Guests::Spared && guest::runs_guests(proc, pid);
        let stays = |pid: u32| pid == 1 || line.contains(&pid) || is_spared(pid);
        let pids = cgroup.all_procs().ok().flatten();
        pids.is_some_and(|pids| !pids.into_iter().any(stays))
    }
}

/// Moves or marks what a policy selected, page by page.
fn carry_out(
    hand: &mut PageOut<'_>,
    whose: Whose<'_>,
    files: Option<FilesOf<'_>>,
    action: &Action,
    resident: &Histogram,
    sort_first: bool,
) -> Done {
    let pids = whose.pids;
    let (older_than_ms, bytes_max): (Ages, u64) = match *action {
        // The coldest are known only where a target is held page by page.
        Action::Nothing | Action::Reclaim { .. } | Action::Coldest { .. } => {
            return Done::default();
        }
        Action::Sort {
            older_than_ms,
            bytes_max,
        } => return hand.sort(pids, older_than_ms, bytes_max),
        Action::PageOut {
            older_than_ms,
            bytes_max,
        } => (older_than_ms, bytes_max),
    };
    if sort_first {
        let half = |age: Option<u64>| age.map(|age| age / 2 + 1);
        hand.sort(pids, older_than_ms.map(half), bytes_max);
    }
    let bytes_max = bytes_max.min(MOVE_MAX_BYTES);
    match files {
        None => hand.run(pids, older_than_ms, bytes_max),
        Some(files) => {
            let cold = older_bytes(resident, action);
            hand.run_with_files(pids, files, older_than_ms, share_out(bytes_max, cold))
        }
    }
}

/// Divides what may go in proportion to the cold memory of each type, in whole pages.
fn share_out(bytes_max: u64, cold: ByType<u64>) -> ByType<u64> {
    let total = u128::from(cold[0]) + u128::from(cold[1]);
    let file = u128::from(bytes_max) * u128::from(cold[1]);
    let file_bytes = file.checked_div(total).unwrap_or(0) as u64;
    let file_bytes = file_bytes
        .next_multiple_of(kernel_page_bytes())
        .min(bytes_max);
    [bytes_max - file_bytes, file_bytes]
}

/// An upper bound of what an action can find: memory of the types it takes, in bins that extend
/// beyond its age.
fn older_bytes(resident: &Histogram, action: &Action) -> ByType<u64> {
    let older_than_ms = match action {
        Action::PageOut { older_than_ms, .. } => *older_than_ms,
        _ => [Some(0); 2],
    };
    let takes = |upper_ms: u64, age_ms: Option<u64>| age_ms.is_some_and(|age| upper_ms > age);
    resident
        .bins()
        .iter()
        .flat_map(|bin| (0..2).map(move |at| (at, bin)))
        .filter(|(at, bin)| takes(bin.upper_ms, older_than_ms[*at]))
        .fold([0; 2], |mut sum: ByType<u64>, (at, bin)| {
            sum[at] = sum[at].saturating_add(bin.amounts[at]);
            sum
        })
}

/// Records what the thread that holds budgets is about to do.
fn announce(journal: &Journal) -> Announce {
    let journal = journal.clone();
    Box::new(move |held: &Held, begun: &Begun| {
        let line = AheadLine {
            phase: "before",
            target: &held.key.0,
            policy: held.spec.name(),
            dry_run: held.dry_run,
            fields: begun,
        };
        journal.permits("action", &line)
    })
}

/// Makes the kernel reclaim from a cgroup, at most [`MOVE_MAX_BYTES`].
fn reclaim(seen: &Seen, bytes: u64, anon: bool, rehearse: bool) -> Done {
    let bytes = bytes.min(MOVE_MAX_BYTES);
    let began_ns = agewise_host::clock::thread_cpu_ns();
    let mut done = Done {
        tried_bytes: bytes,
        ..Done::default()
    };
    let Some(cgroup) = &seen.cgroup else {
        return done;
    };
    if rehearse {
        done.rehearsed_bytes = bytes;
        return done;
    }
    let before = cgroup.stat();
    match cgroup.reclaim(bytes, anon) {
        Ok(_) => {
            if let (Ok(before), Ok(after)) = (before, cgroup.stat()) {
                done.left_anon_bytes = before.anon_bytes.saturating_sub(after.anon_bytes);
                done.left_file_bytes = before.file_bytes.saturating_sub(after.file_bytes);
            }
        }
        Err(error) => done.troubles.push(error.to_string()),
    }
    done.cpu_ns = agewise_host::clock::thread_cpu_ns().saturating_sub(began_ns);
    done
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agewise_host::cgroup::{Cgroup, Hierarchy, Version};
    use agewise_host::root::Roots;

    use super::*;

    #[test]
    fn the_kernel_selects_only_where_all_processes_are_known() {
        let top = tempfile::tempdir().unwrap();
        let job = top.path().join("cgroup/job");
        std::fs::create_dir_all(&job).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, top.path().join("cgroup"));
        let seen = Seen {
            at: 0,
            key: (Arc::from("/job"), 1),
            cgroup: Some(Cgroup::open(&hierarchy, "/job").unwrap()),
            container: None,
            pids: Vec::new(),
        };
        let whose = Whose {
            seen: &seen,
            pids: &[],
            without: &[],
            guests: Guests::Spared,
        };
        let proc = Roots::below(top.path()).proc;
        let may_all_go = |procs: &str| {
            std::fs::write(job.join("cgroup.procs"), procs).unwrap();
            whose.may_all_go(&proc)
        };
        assert!(may_all_go("4000000\n"));
        assert!(!may_all_go("4000000\n0\n"), "of another pid namespace");
        assert!(!may_all_go("1\n"), "init");

        let job = job.join("memory.reclaim");
        std::fs::write(&job, "").unwrap();
        reclaim(&seen, u64::MAX, true, false);
        let asked = std::fs::read_to_string(&job).unwrap();
        assert_eq!(asked.trim(), MOVE_MAX_BYTES.to_string());
    }
}
