// SPDX-License-Identifier: Apache-2.0
//! Protects the working sets of cgroups: between ticks based on the cgroups' counters, and at ticks
//! by moving memory of the culprit.

use std::sync::atomic::AtomicBool;

use agewise_host::access::{LeafRun, TableSight, Target};
use agewise_host::agent::{Judged, Tap, TickReport};
use agewise_host::cgroup::{Cgroup, CgroupError, Hierarchy};
use agewise_host::guest::Guests;
use agewise_host::root::ProcRoot;
use agewise_host::throttle::Throttle;
use agewise_host::whatif::Sights;

use super::Daemon;
use super::act::{MOVE_MAX_BYTES, notify_if_due};
use super::undo::Found;
use crate::config::{Matcher, Protect, UpTo};
use crate::hand::{Done, PageOut};
use crate::health::Part;
use crate::journal::Journal;
use crate::observer::{Key, Seen};
use crate::privileges;
use crate::protect::{Counters, Ours, Protector, Watched, acts, record_undone};
use crate::record::Squeezed;
use crate::state::Reason;

/// What acts for a configuration that acts; `None` for one that does not.
pub(super) fn open_throttle(
    root: &ProcRoot,
    config: &Protect,
    dry_run: bool,
    found: &Found,
) -> anyhow::Result<Option<Throttle>> {
    if !acts(config, dry_run) {
        return Ok(None);
    }
    check_kill(root, config)?;
    found.throttle(root).map(Some)
}

/// Whether the configuration may make the daemon kill.
pub(super) fn acts_by_kill(config: &Protect) -> bool {
    acts(config, false) && config.up_to == UpTo::Kill
}

/// Where the kernel does not kill a whole cgroup, tasks must be killed one by one. This needs a
/// capability that is dropped unless the configuration requires it.
fn check_kill(root: &ProcRoot, config: &Protect) -> anyhow::Result<()> {
    if config.up_to != UpTo::Kill || privileges::can_kill() {
        return Ok(());
    }
    anyhow::ensure!(
        Hierarchy::discover(root).is_ok_and(|hierarchy| hierarchy.has_kill()),
        "protect.up_to = \"kill\" takes CAP_KILL where cgroups have no cgroup.kill (v1, and Linux \
         before 5.14), which this daemon has not (any more): start it with the capability and this \
         configuration"
    );
    Ok(())
}

/// Passes on what a look sees, and does what cannot wait until it has ended: reads the counters of
/// cgroups, thaws, and tells the service manager that the daemon is alive.
struct Looking<'a> {
    sights: &'a mut Sights,
    protector: Option<&'a mut Protector>,
    matcher: &'a Matcher,
    journal: &'a Journal,
    now_ms: fn() -> u64,
    notified_ms: u64,
}

impl Tap for Looking<'_> {
    fn next_process(&mut self) {
        let now_ms = (self.now_ms)();
        if let Some(protector) = &mut self.protector
            && protector.next_ms(now_ms) <= now_ms
        {
            poll(protector, now_ms, self.matcher, self.journal);
        }
        notify_if_due(now_ms, &mut self.notified_ms);
    }

    fn table(&mut self, target: &Target, sight: &TableSight<'_>, judged: Judged<'_>) {
        self.sights.table(target, sight, judged);
    }

    fn leaves(&mut self, target: &Target, run: &LeafRun<'_>) {
        self.sights.leaves(target, run);
    }
}

/// Reads the counters of the cgroups, and holds back the culprit or releases it.
fn poll(protector: &mut Protector, now_ms: u64, matcher: &Matcher, journal: &Journal) {
    let read = |watched: &Watched| watched.cgroup.as_ref().and_then(Counters::read);
    protector.poll(now_ms, read, matcher, journal);
}

impl Daemon {
    /// Looks at all memory. Many processes with many mappings take half a minute, and a cgroup that
    /// is pushed out meanwhile does not wait for it.
    ///
    /// # Errors
    /// As for [`Agent::tick`](agewise_host::agent::Agent::tick).
    pub(super) fn look(&mut self) -> Result<TickReport, CgroupError> {
        let (protector, matcher) = (&mut self.protector, &self.matcher);
        let (journal, now_ms) = (&self.journal, self.around.now_ms);
        self.curves.tick(&mut self.agent, |agent, sights| {
            agent.tick_tapped(Some(&mut Looking {
                sights,
                protector: protector.as_mut(),
                matcher,
                journal,
                now_ms,
                notified_ms: now_ms(),
            }))
        })
    }

    /// Adopts another `[protect]`: first undoes what was throttled under the old one.
    ///
    /// # Errors
    /// If the ledger cannot be used; nothing has changed then.
    pub(super) fn renew_protection(&mut self, config: &Protect) -> anyhow::Result<()> {
        if *config == self.config.protect {
            return Ok(());
        }
        let throttle = open_throttle(&self.around.roots.proc, config, self.dry_run, &self.found)?;
        if let Some(mut before) = self.protector.take() {
            before.undo_all(&self.matcher, &self.journal);
        }
        self.protector = Protector::new(config, self.around.roots.proc.clone(), throttle);
        Ok(())
    }

    /// When the next check between ticks is due.
    pub(super) fn watch_due_ms(&self) -> Option<u64> {
        let protector = self.protector.as_ref().map(|of| of.next_ms(self.now_ms()));
        protector.into_iter().chain(self.shrinkers.next_ms()).min()
    }

    /// Tries again to undo what this daemon or the one before could not. One that does not act
    /// leaves the ledger to others.
    pub(super) fn settle(&mut self) {
        let Ok(ledger) = self.found.ledger() else {
            return;
        };
        let undone = ledger.undo_throttles();
        let protects = self.protector.as_ref().is_some_and(Protector::acts);
        if !protects && !self.shrinkers.acts() {
            ledger.leave();
        }
        record_undone(&undone, &self.journal);
        let errors: Vec<String> = undone.failures.iter().map(ToString::to_string).collect();
        match errors.is_empty() {
            true => self.hub.health().recovers(Part::Ledger),
            false => self.hub.health().fails(Part::Ledger, errors.join("; ")),
        }
    }

    /// Tries again what could not be undone, reads the cgroups' counters, and holds back the
    /// culprit or releases it.
    pub(super) fn watch_over(&mut self) {
        self.settle();
        let now_ms = self.now_ms();
        if let Some(protector) = &mut self.protector {
            poll(protector, now_ms, &self.matcher, &self.journal);
        }
        self.keep_small();
    }

    /// Where this daemon is among what was observed.
    pub(super) fn ours(&self, seen: &[Seen]) -> Ours<'static> {
        self.own.among(&self.around.roots.proc, seen)
    }

    /// After a tick: takes in the existing cgroups, and moves out the excess of culprits.
    pub(super) fn protect(&mut self, seen: &[Seen], cancel: &AtomicBool) {
        let ours = self.ours(seen);
        let Some(protector) = &mut self.protector else {
            return self.watch_over();
        };
        let snapshot = self.hub.snapshot();
        protector.follow(seen, &snapshot.subjects, &self.matcher, &ours);
        self.watch_over();
        let excess = self.protector.iter().flat_map(Protector::excess);
        for (name, excess_bytes, limit_bytes) in excess.collect::<Vec<_>>() {
            if let Some(seen) = seen.iter().find(|seen| seen.key.0 == name) {
                self.squeeze(seen, excess_bytes, limit_bytes, cancel);
            }
        }
    }

    fn squeeze(&mut self, seen: &Seen, excess_bytes: u64, limit_bytes: u64, cancel: &AtomicBool) {
        let cgroup = seen.cgroup.as_ref().map(Cgroup::check);
        if !matches!(cgroup, Some(Ok(()))) {
            return;
        }
        let mut line = Squeezed {
            phase: "before",
            target: &seen.key.0,
            policy: "protect",
            act: "page_out",
            dry_run: false,
            excess_bytes,
            limit_bytes,
            done: None,
        };
        if !self.journal.permits("action", &line) {
            return;
        }
        let pids: Vec<u32> = seen
            .pids
            .iter()
            .copied()
            .filter(|pid| !self.own.line.contains(pid))
            .collect();
        let mut hand = PageOut {
            agent: &mut self.agent,
            guests: Guests::Spared,
            cancel,
            rehearse: false,
        };
        let done = hand.run(&pids, [Some(0); 2], excess_bytes.min(MOVE_MAX_BYTES));
        line.phase = "after";
        line.done = Some(&done);
        self.journal.write("action", &line);
        self.count_squeezed(&seen.key, &done);
    }

    pub(super) fn count_squeezed(&mut self, key: &Key, done: &Done) {
        let (left_bytes, file_bytes) = (done.left_bytes(), done.left_file_bytes);
        self.tracked
            .counted(key)
            .moved(Reason::PROTECT, left_bytes, file_bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn killing_takes_a_capability_unless_the_kernel_does_it() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        fs::create_dir_all(path("proc/self")).unwrap();
        fs::create_dir_all(path("cgroup/job")).unwrap();
        let mount = format!(
            "31 22 0:27 / {} rw - cgroup2 cgroup2 rw\n",
            path("cgroup").display()
        );
        fs::write(path("proc/self/mountinfo"), mount).unwrap();
        fs::write(path("cgroup/cgroup.controllers"), "memory\n").unwrap();
        let check = |up_to| {
            let config = Protect {
                up_to,
                ..Protect::default()
            };
            check_kill(&ProcRoot::new(path("proc")), &config).is_ok()
        };
        std::thread::scope(|scope| {
            // Capabilities belong to threads: this one only exists for the test.
            scope.spawn(|| {
                privileges::drop_others(&[]).unwrap();
                assert!(check(UpTo::Freeze) && !check(UpTo::Kill));
                fs::write(path("cgroup/job/cgroup.kill"), "").unwrap();
                assert!(check(UpTo::Kill));
            });
        });
    }
}
