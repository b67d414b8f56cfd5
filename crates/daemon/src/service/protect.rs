// SPDX-License-Identifier: Apache-2.0
//! Keeping the working sets of protected cgroups: between the ticks by what cgroups count, at the
//! ticks by moving memory of who takes theirs.

use std::sync::atomic::AtomicBool;

use agewise_host::agent::Agent;
use agewise_host::cgroup::{Cgroup, Hierarchy, Version};
use agewise_host::root::ProcRoot;

use super::Daemon;
use super::act::MOVE_MAX_BYTES;
use crate::config::{Protect, UpTo};
use crate::hand::PageOut;
use crate::observer::Seen;
use crate::privileges;
use crate::protect::{Counters, Hands, LedgerError, Protector, acts, left_behind};
use crate::record::Squeezed;
use crate::state::Reason;

/// The hands of a configuration that acts; one that does not puts right what a killed daemon left
/// all the same. Returns what there is to say.
pub(super) fn open_hands(
    config: &Protect,
    dry_run: bool,
) -> anyhow::Result<(Option<Hands>, Option<String>)> {
    if !acts(config, dry_run) {
        let (was_there, failures) = Hands::take_back(&config.ledger)?;
        return Ok((None, was_there.then(|| left_behind(&failures))));
    }
    check_kill(config)?;
    let was_there = config.ledger.exists();
    let (hands, failures) = Hands::open(&config.ledger)?;
    let told = was_there.then(|| left_behind(&failures));
    Ok((Some(hands), told))
}

/// Whether a configuration may make the daemon kill.
pub(super) fn acts_by_kill(config: &Protect) -> bool {
    acts(config, false) && config.up_to == UpTo::Kill
}

/// Killing one by one, as it has to be done in cgroup v1, takes a capability that is dropped unless
/// the configuration asks for it.
fn check_kill(config: &Protect) -> anyhow::Result<()> {
    let is_v1 = Hierarchy::discover(&ProcRoot::default())
        .is_ok_and(|hierarchy| hierarchy.version == Version::V1);
    anyhow::ensure!(
        config.up_to != UpTo::Kill || !is_v1 || privileges::can_kill(),
        "protect.up_to = \"kill\" takes CAP_KILL with cgroup v1, which this daemon has not (any more): \
         start it with the capability and this configuration"
    );
    Ok(())
}

/// Takes back what a killed daemon left, by the ledger of a configuration. Returns what there is to
/// say, and whether all went well.
///
/// # Errors
/// The ledger cannot be used.
pub(super) fn let_go(config: &Protect) -> Result<(String, bool), LedgerError> {
    let (was_there, failures) = Hands::take_back(&config.ledger)?;
    Ok(match was_there {
        true => (left_behind(&failures), failures.is_empty()),
        false => ("nothing is held back".to_owned(), true),
    })
}

impl Daemon {
    /// Follows another `[protect]`: what was held back is let go first.
    ///
    /// # Errors
    /// The ledger cannot be used; nothing has changed then.
    pub(super) fn renew_protection(&mut self, config: &Protect) -> anyhow::Result<()> {
        if *config == self.config.protect {
            return Ok(());
        }
        let before = &self.config.protect;
        let (acted, acts_now) = (acts(before, self.dry_run), acts(config, self.dry_run));
        if acts_now {
            check_kill(config)?;
        }
        let has_ledger = acted && config.ledger == before.ledger;
        let fresh = match has_ledger {
            true => None,
            false => Some(open_hands(config, self.dry_run)?),
        };
        if let Some(protector) = &mut self.protector {
            protector.let_go(&self.matcher, &self.journal);
        }
        let kept = self.protector.take().and_then(Protector::into_hands);
        let hands = match fresh {
            Some((hands, told)) => {
                if let Some(told) = told {
                    self.say("let_go", told);
                }
                hands
            }
            None => kept.filter(|_| acts_now),
        };
        self.protector = Protector::new(config, hands);
        Ok(())
    }

    /// When protection wants to look again.
    pub(super) fn protect_due_ms(&self) -> Option<u64> {
        let protector = self.protector.as_ref()?;
        Some(protector.next_ms(Agent::now_ms()))
    }

    /// Looks at what cgroups count, and holds back who is to blame, or lets go.
    pub(super) fn watch_over(&mut self) {
        if let Some(protector) = &mut self.protector {
            protector.poll(
                Agent::now_ms(),
                |watched| watched.cgroup.as_ref().and_then(Counters::read),
                &self.matcher,
                &self.journal,
            );
        }
    }

    /// After a tick: takes in which cgroups there are, and moves out what the guilty have too much.
    pub(super) fn protect(&mut self, seen: &[Seen], cancel: &AtomicBool) {
        let Some(protector) = &mut self.protector else {
            return;
        };
        let snapshot = self.hub.snapshot();
        protector.follow(seen, &snapshot.subjects, &self.matcher, &self.own_line);
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
            subject: &seen.key.0,
            policy: "protect",
            act: "page_out",
            dry_run: false,
            excess_bytes,
            limit_bytes,
            done: None,
        };
        self.journal.write("action", &line);
        let pids: Vec<u32> = seen
            .pids
            .iter()
            .copied()
            .filter(|pid| !self.own_line.contains(pid))
            .collect();
        let mut hand = PageOut {
            agent: &mut self.agent,
            cancel,
            rehearse: false,
        };
        let done = hand.run(&pids, [Some(0); 2], excess_bytes.min(MOVE_MAX_BYTES));
        line.phase = "after";
        line.done = Some(&done);
        self.journal.write("action", &line);
        let count = self.squeezed.entry(seen.key.clone()).or_default();
        count.add(Reason::THRASH, done.left_bytes());
    }
}
