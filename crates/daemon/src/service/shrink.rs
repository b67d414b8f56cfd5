// SPDX-License-Identifier: Apache-2.0
//! Rules with the policy `shrink`: the cgroups they apply to, and checks of those between ticks.

use std::collections::HashSet;
use std::path::Path;

use agewise_host::cgroup::{Cgroup, TreeLimits};
use agewise_host::memory::MemInfo;
use agewise_host::root::ProcRoot;
use agewise_host::throttle::Throttle;
use agewise_policy::proactive::Controller;

use super::Daemon;
use super::undo::Found;
use crate::config::{Act, Config, Matcher};
use crate::observer::Seen;
use crate::record::NotShrunk;
use crate::shrinkers::{Known, Small};

/// Why nothing is done about a cgroup that holds the daemon or an ancestor of it.
const OURSELVES: &str = "ourselves";
/// Why nothing is done about a cgroup that holds another target, or a protected or spared one.
const NESTED: &str = "nested";

/// Opens what sets limits, if a rule of the configuration needs it.
///
/// # Errors
/// If nothing can be recorded, or another daemon acts: then no limit may be set.
pub(super) fn open_throttle(
    proc: &ProcRoot,
    config: &Config,
    dry_run: bool,
    found: &Found,
) -> anyhow::Result<Option<Throttle>> {
    let sets = |act: &Act| !act.dry_run && Controller::new(&act.policy.0).shrinks().is_some();
    if dry_run || !config.act.iter().any(sets) {
        return Ok(None);
    }
    found.throttle(proc).map(Some)
}

impl Daemon {
    /// After a tick: takes in which cgroups are to be held small.
    pub(super) fn follow_small(&mut self, seen: &[Seen]) {
        let ours = self.ours(seen);
        let (now_ms, journal) = (self.now_ms(), &self.journal);
        let with_rule = seen
            .iter()
            .filter(|of| self.tracked.actors.contains_key(&of.key));
        let named = with_rule.filter(|of| of.cgroup.is_none());
        let pids: HashSet<u32> = named.flat_map(|of| &of.pids).copied().collect();
        let matcher = &self.matcher;
        let actors = &mut self.tracked.actors;
        let small = |of: &Seen| {
            let actor = actors.get_mut(&of.key)?;
            let mut small = Small {
                key: of.key.clone(),
                cgroup: of.cgroup.clone()?,
                wanted: actor.shrinks()?,
                dry_run: actor.dry_run,
                paused: None,
            };
            let is_nested = || {
                let is_named = of.pids.iter().any(|pid| pids.contains(pid));
                is_named || holds_others(matcher, &small.cgroup)
            };
            let reason = match () {
                // Who raises the limit again must not wait for memory because of it.
                () if ours.is_in(of) => OURSELVES,
                // The kernel would take the memory of those as well.
                () if is_nested() => NESTED,
                () => return Some(small),
            };
            if actor.holds.is_news(now_ms, reason) {
                let line = NotShrunk {
                    target: &of.key.0,
                    policy: actor.reason.name(),
                    dry_run: actor.dry_run,
                    reason,
                    usage_bytes: small.cgroup.usage_bytes().ok().flatten(),
                };
                journal.write("hold", &line);
            }
            small.paused = Some(reason);
            Some(small)
        };
        let all = seen.iter().filter_map(small).collect();
        self.shrinkers.follow(all, now_ms, &self.journal);
    }

    /// Checks the cgroups that are held small.
    pub(super) fn keep_small(&mut self) {
        let curves = &self.curves;
        let swap_free_bytes = || {
            let info = MemInfo::of_machine(&self.around.roots.proc);
            info.map_or(0, |info| info.swap_free_bytes)
        };
        let known = Known {
            now_ms: &self.around.now_ms,
            looked_ms: self.looked_ms,
            next_look_ms: self.pace.next_ms(),
            swap_free_bytes: &swap_free_bytes,
            prices: curves.prices(),
            curves: &|key| curves.counted(key),
            files: &|key| curves.files(key),
        };
        self.shrinkers.poll(&known, &self.journal);
    }
}

/// Whether a cgroup holds another target, or a protected or spared one, also one that is not
/// observed. What cannot be listed may be one.
fn holds_others(matcher: &Matcher, cgroup: &Cgroup) -> bool {
    let is_other = |path: &Path| matcher.is_spared(path) || matcher.rule(path).is_some();
    let below = cgroup.descendants(TreeLimits::WIDE);
    below.map_or(true, |below| {
        below.truncated || below.cgroups.iter().any(|of| is_other(of.path()))
    })
}
