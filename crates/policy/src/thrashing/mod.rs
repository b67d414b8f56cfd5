// SPDX-License-Identifier: Apache-2.0
//! Thrashing prevention outside the kernel: if the working set of the last `min_ttl_ms` of a
//! protected cgroup cannot be kept, finds which cgroup pushes it out, and decides what to do.
//!
//! The kernel's `min_ttl_ms` (multi-gen LRU v6 and later, `age_node` in `agewise-kernel`) kills a
//! task rather than evict recently used memory; the OOM killer selects the victim by size. Here the
//! symptom is the same (pages younger than `min_ttl_ms` come back while all tasks wait), but the
//! cgroup that takes the memory is identified, and is held back before anything is killed: a ladder
//! of steps that ends where the configuration says. Pure: samples go in, decisions come out.

mod blame;
mod config;
mod stolen;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use stolen::Stolen;

pub use blame::{Blame, Demand};
pub use config::{Config, Step};

/// The pages that the kernel takes back for one hit of a limit, at most: single ones by
/// `MEMCG_CHARGE_BATCH` (64 from Linux 6.1), large folios by 300 to 400 (300 MiB of a file read in
/// order within 64 MiB, Linux 6.18).
const PAGES_PER_HIT_MAX: u64 = 512;

/// One cgroup at one moment. Counters only grow.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSample<G> {
    /// The cgroup.
    pub group: G,
    /// Whether its working set is protected.
    pub is_protected: bool,
    /// Whether it must not be acted on: it contains init, the session, or this program.
    pub is_untouchable: bool,
    /// Memory it holds.
    pub resident_bytes: u64,
    /// Memory it has in swap.
    pub swapped_bytes: u64,
    /// Pages that came back after eviction.
    pub refaulted_pages: u64,
    /// Those of them that had been used within `min_ttl_ms`. `None` if unknown: then all refaults
    /// count.
    pub young_refaulted_pages: Option<u64>,
    /// Pages that the kernel has taken from it because memory was short, not because a program
    /// asked for that (`MADV_PAGEOUT`, `memory.reclaim`); those of the whole machine where they are
    /// not counted by cgroup. `None` if unknown: then every refault counts.
    pub stolen_pages: Option<u64>,
    /// Time in which all its tasks waited for memory (PSI `full`), us; `None` without PSI.
    pub full_stall_us: Option<u64>,
    /// The cgroups whose limits apply to it, itself first, then those above it, and how often each
    /// limit was hit so far. Without the kernel's counts it is empty.
    pub limits: Vec<(G, u64)>,
}

/// All cgroups at one moment. No cgroup may be inside another, or memory would count twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<G> {
    /// The clock, ms.
    pub now_ms: u64,
    /// The cgroups, in any order.
    pub groups: Vec<GroupSample<G>>,
}

/// What a protected cgroup suffered in one window between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suffering {
    /// Refaults of pages younger than `min_ttl_ms`, per second.
    pub young_refaults_per_s: f64,
    /// Share of time in which all its tasks waited; `None` without PSI.
    pub full_share: Option<f64>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Report it.
    Report,
    /// Limit the cgroup's memory to this.
    Squeeze {
        /// Bytes.
        limit_bytes: u64,
    },
    /// Stop its tasks for a while.
    Freeze {
        /// How long, ms.
        for_ms: u64,
    },
    /// Let its tasks continue.
    Thaw,
    /// Remove the limit.
    Release,
    /// Kill it.
    Kill,
}

/// A decision with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<G> {
    /// The cgroup that suffers or suffered.
    pub protected: G,
    /// How much it suffered in the window that led to this; `None` if a restraint is removed.
    pub suffering: Option<Suffering>,
    /// The cgroup to act on; `None` if none is to blame.
    pub blame: Option<Blame<G>>,
    /// What to do.
    pub act: Act,
}

/// The state of a protected cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Course {
    /// Windows in a row in which it suffered. Windows that are neither bad nor calm do not change
    /// it.
    bad_windows: u32,
    /// Windows in a row in which it was calm.
    calm_windows: u32,
    is_thrashing: bool,
    /// When the next step may be taken.
    next_step_ms: u64,
    stolen: Stolen,
}

/// The restraints on a cgroup.
#[derive(Clone, Debug, PartialEq)]
struct Restraint<G> {
    protected: G,
    /// The culprit that it is, or is in.
    group: G,
    /// The next step of the ladder, and when it may be taken: what was done to another culprit, or
    /// for another protected cgroup, does not make it come sooner.
    rung: usize,
    next_step_ms: u64,
    squeezed_bytes: Option<u64>,
    thaw_ms: Option<u64>,
    /// `rung` and `squeezed_bytes` before the last step.
    before: (usize, Option<u64>),
}

/// Watches protected cgroups and decides.
#[derive(Clone, Debug)]
pub struct Guard<G> {
    config: Config,
    last: Option<Sample<G>>,
    courses: BTreeMap<G, Course>,
    /// By the cgroup that is acted on.
    throttle: BTreeMap<G, Restraint<G>>,
    /// Whether a culprit was frozen for a part of the window that is not evaluated yet.
    has_thawed: bool,
}

impl<G: Clone + Ord> Guard<G> {
    /// A guard without observations.
    pub fn new(config: Config) -> Self {
        Guard {
            config,
            last: None,
            courses: BTreeMap::new(),
            throttle: BTreeMap::new(),
            has_thawed: false,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The cgroups that are currently held back.
    pub fn throttled(&self) -> impl Iterator<Item = &G> {
        self.throttle.keys()
    }

    /// Removes all restraints, for an orderly end.
    pub fn let_go(&mut self) -> Vec<Decision<G>> {
        self.take_back_if(|_, _| true)
    }

    /// Removes the restraints on a cgroup that does not exist any more.
    pub fn forget(&mut self, part: &G) -> Vec<Decision<G>> {
        self.take_back_if(|of, _| of == part)
    }

    /// Evaluates the window since the previous sample and decides. Samples too close together to
    /// measure anything are left out; a clock that goes back counts as stopped. `part` is the
    /// cgroup to act on to stop the demand of a culprit: itself, or one in it.
    pub fn look(&mut self, sample: Sample<G>, part: impl Fn(&G) -> G) -> Vec<Decision<G>> {
        let mut decisions = self.thaw_due(sample.now_ms);
        let Some(last) = &self.last else {
            self.last = Some(sample);
            return decisions;
        };
        let window_ms = sample.now_ms.saturating_sub(last.now_ms);
        if window_ms < self.config.min_window_ms {
            return decisions;
        }
        let before: BTreeMap<&G, &GroupSample<G>> = last
            .groups
            .iter()
            .map(|group| (&group.group, group))
            .collect();
        let demands: Vec<Demand<G>> = sample
            .groups
            .iter()
            .filter_map(|now| Some(Demand::between(before.get(&now.group)?, now, window_ms)))
            .collect();
        let protected = || sample.groups.iter().filter(|now| now.is_protected);
        let limits: BTreeMap<G, G> = protected()
            .map(|now| &now.group)
            .filter_map(|group| Some((group.clone(), hit_limit(&before, &sample, group)?)))
            .collect();
        let courses = &mut self.courses;
        let suffering: BTreeMap<G, Suffering> = protected()
            .filter_map(|now| {
                let (before, group) = (before.get(&now.group)?, now.group.clone());
                let stolen = &mut courses.entry(group.clone()).or_default().stolen;
                // What a limit took is not among what was taken from the machine as a whole.
                let stolen = (!limits.contains_key(&group)).then_some(stolen);
                Some((group, suffering(before, now, window_ms, stolen)))
            })
            .collect();
        self.courses
            .retain(|group, _| suffering.contains_key(group));
        decisions.extend(self.take_back_orphans(&sample));
        for (group, suffering) in suffering {
            let demands: Vec<Demand<G>> = match limits.get(&group) {
                // What is outside has taken nothing from it.
                Some(limit) => within(&demands, &sample, limit),
                None => demands.clone(),
            };
            decisions.extend(self.follow(&group, suffering, &demands, sample.now_ms, &part));
        }
        self.last = Some(sample);
        self.has_thawed = false;
        decisions
    }

    /// Decides for one protected cgroup, given one window.
    fn follow(
        &mut self,
        group: &G,
        suffering: Suffering,
        demands: &[Demand<G>],
        now_ms: u64,
        part: &impl Fn(&G) -> G,
    ) -> Vec<Decision<G>> {
        // A frozen culprit demands nothing, and what it pushed out is still coming back: whoever
        // demands most now is not to blame, and that it is calm does not mean that it stays so.
        let is_frozen = self.has_thawed || self.throttle.values().any(|of| of.thaw_ms.is_some());
        let course = self.courses.entry(group.clone()).or_default();
        if self.config.is_bad(&suffering) {
            course.bad_windows = course.bad_windows.saturating_add(1);
            course.calm_windows = 0;
        } else if self.config.is_calm(&suffering) && !is_frozen {
            course.bad_windows = 0;
            course.calm_windows = course.calm_windows.saturating_add(1);
        }
        if course.is_thrashing && course.calm_windows >= self.config.calm_windows {
            *course = Course {
                stolen: course.stolen,
                ..Course::default()
            };
            return self.take_back_if(|_, restraint| restraint.protected == *group);
        }
        if course.bad_windows >= self.config.bad_windows {
            course.is_thrashing = true;
        }
        let is_bad_now = course.calm_windows == 0 && self.config.is_bad(&suffering);
        let must_wait = now_ms < course.next_step_ms || is_frozen;
        if !course.is_thrashing || !is_bad_now || must_wait {
            return Vec::new();
        }
        let blame = Blame::find(group, demands, &self.config).map(|blame| Blame {
            part: part(&blame.group),
            ..blame
        });
        let restraint = blame.as_ref().and_then(|of| self.throttle.get(&of.part));
        if restraint.is_some_and(|restraint| now_ms < restraint.next_step_ms) {
            return Vec::new();
        }
        course.next_step_ms = now_ms.saturating_add(self.config.step_ms);
        let act = match &blame {
            Some(blame) if !blame.is_untouchable => self.act(group, blame, now_ms),
            // If there is no cgroup to act on, all it can do is report.
            _ => Act::Report,
        };
        vec![Decision {
            protected: group.clone(),
            suffering: Some(suffering),
            blame,
            act,
        }]
    }

    /// Takes the next step of the ladder, and records the restraint so that it can be removed.
    fn act(&mut self, protected: &G, blame: &Blame<G>, now_ms: u64) -> Act {
        let config = &self.config;
        if config.up_to == Step::Report {
            return Act::Report;
        }
        let restraint = self
            .throttle
            .entry(blame.part.clone())
            .or_insert_with(|| Restraint {
                protected: protected.clone(),
                group: blame.group.clone(),
                rung: 0,
                next_step_ms: 0,
                squeezed_bytes: None,
                thaw_ms: None,
                before: (0, None),
            });
        restraint.before = (restraint.rung, restraint.squeezed_bytes);
        let ladder = config.ladder();
        let step = ladder[restraint.rung];
        restraint.rung = (restraint.rung + 1).min(ladder.len() - 1);
        restraint.next_step_ms = now_ms.saturating_add(config.step_ms);
        match step {
            Step::Report => Act::Report,
            Step::Squeeze => {
                // Of what it has, not of the last limit: that may not be reached yet.
                let last_bytes = restraint.squeezed_bytes.unwrap_or(u64::MAX);
                let limit_bytes = config.squeezed(blame.resident_bytes).min(last_bytes);
                restraint.squeezed_bytes = Some(limit_bytes);
                Act::Squeeze { limit_bytes }
            }
            Step::Freeze => {
                restraint.thaw_ms = Some(now_ms.saturating_add(config.freeze_ms));
                Act::Freeze {
                    for_ms: config.freeze_ms,
                }
            }
            Step::Kill => Act::Kill,
        }
    }

    /// The last step against a cgroup was not carried out, so nothing waits for its thaw. If it
    /// `comes_again`, it does so before a harder one; otherwise it counts as taken.
    pub fn not_done(&mut self, part: &G, comes_again: bool) {
        if let Some(restraint) = self.throttle.get_mut(part) {
            restraint.thaw_ms = None;
            if comes_again {
                (restraint.rung, restraint.squeezed_bytes) = restraint.before;
            }
        }
    }

    /// When the next frozen cgroup must be thawed; a caller that rarely looks should call
    /// [`thaw_due`](Self::thaw_due) then.
    pub fn next_thaw_ms(&self) -> Option<u64> {
        self.throttle.values().filter_map(|r| r.thaw_ms).min()
    }

    /// Thaws cgroups whose time is over.
    pub fn thaw_due(&mut self, now_ms: u64) -> Vec<Decision<G>> {
        let mut decisions = Vec::new();
        for (part, restraint) in &mut self.throttle {
            if restraint.thaw_ms.is_some_and(|at_ms| at_ms <= now_ms) {
                restraint.thaw_ms = None;
                self.has_thawed = true;
                decisions.push(restraint.back(part, Act::Thaw));
            }
        }
        self.throttle.retain(|_, throttle| throttle.is_any());
        decisions
    }

    /// Removes restraints.
    fn take_back_if(&mut self, which: impl Fn(&G, &Restraint<G>) -> bool) -> Vec<Decision<G>> {
        let mut decisions = Vec::new();
        self.throttle.retain(|part, restraint| {
            if !which(part, restraint) {
                return true;
            }
            let thaw = restraint.thaw_ms.map(|_| Act::Thaw);
            self.has_thawed |= thaw.is_some();
            let release = restraint.squeezed_bytes.map(|_| Act::Release);
            let acts = thaw.into_iter().chain(release);
            decisions.extend(acts.map(|act| restraint.back(part, act)));
            false
        });
        decisions
    }

    /// Removes restraints that were imposed for cgroups no longer protected, and those on culprits
    /// not in the sample. These may be gone, or their counters cannot be read; then nobody would
    /// know when to release them.
    fn take_back_orphans(&mut self, sample: &Sample<G>) -> Vec<Decision<G>> {
        let courses: BTreeSet<G> = self.courses.keys().cloned().collect();
        let is_seen = |group: &G| sample.groups.iter().any(|now| now.group == *group);
        self.take_back_if(|_, restraint| {
            !is_seen(&restraint.group) || !courses.contains(&restraint.protected)
        })
    }
}

impl<G: Clone + PartialEq> Restraint<G> {
    fn is_any(&self) -> bool {
        self.squeezed_bytes.is_some() || self.thaw_ms.is_some()
    }

    /// The decision to remove it.
    fn back(&self, part: &G, act: Act) -> Decision<G> {
        Decision {
            protected: self.protected.clone(),
            suffering: None,
            blame: Some(Blame::only(&self.group, part)),
            act,
        }
    }
}

/// The lowest of the limits that apply to a cgroup that was hit often enough to explain what it
/// read back in the window: a small cgroup in it may hit its own limit all the time.
fn hit_limit<G: Clone + Ord>(
    before: &BTreeMap<&G, &GroupSample<G>>,
    sample: &Sample<G>,
    group: &G,
) -> Option<G> {
    let before = before.get(group)?;
    let now = sample.groups.iter().find(|now| now.group == *group)?;
    let refaulted_pages = now.refaulted_pages.saturating_sub(before.refaulted_pages);
    let least_hits = refaulted_pages.div_ceil(PAGES_PER_HIT_MAX).max(1);
    let explains = |(of, hits): &&(G, u64)| {
        let mut before = before.limits.iter();
        before.any(|(same, count)| same == of && hits.saturating_sub(*count) >= least_hits)
    };
    now.limits.iter().find(explains).map(|(of, _)| of.clone())
}

/// The demands of the cgroups to which a limit applies.
fn within<G: Clone + Ord>(demands: &[Demand<G>], sample: &Sample<G>, limit: &G) -> Vec<Demand<G>> {
    let applies = |to: &GroupSample<G>| to.limits.iter().any(|(of, _)| of == limit);
    let below: BTreeSet<&G> = sample
        .groups
        .iter()
        .filter(|group| applies(group))
        .map(|group| &group.group)
        .collect();
    let is_below = |demand: &&Demand<G>| below.contains(&demand.group);
    demands.iter().filter(is_below).cloned().collect()
}

fn suffering<G>(
    before: &GroupSample<G>,
    now: &GroupSample<G>,
    window_ms: u64,
    stolen: Option<&mut Stolen>,
) -> Suffering {
    let per_s = |count: u64| count as f64 * 1000.0 / window_ms as f64;
    let young = before.young_refaulted_pages.zip(now.young_refaulted_pages);
    let refaults = match young {
        Some((before, now)) => now.saturating_sub(before),
        None => now.refaulted_pages.saturating_sub(before.refaulted_pages),
    };
    let refaults = match (stolen, before.stolen_pages, now.stolen_pages) {
        (Some(stolen), Some(before), Some(now)) => {
            stolen.cover(now.saturating_sub(before), refaults, window_ms)
        }
        _ => refaults,
    };
    let stall_us = before.full_stall_us.zip(now.full_stall_us);
    Suffering {
        young_refaults_per_s: per_s(refaults),
        full_share: stall_us.map(|(before_us, now_us)| {
            (now_us.saturating_sub(before_us) as f64 / (window_ms as f64 * 1000.0)).min(1.0)
        }),
    }
}
