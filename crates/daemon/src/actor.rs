// SPDX-License-Identifier: Apache-2.0
//! One target that a policy acts on: gathers its facts, asks its controller, and counts the
//! results.

use agewise_host::access::PAGE_BYTES;
use agewise_host::agent::SubjectAges;
use agewise_host::cgroup::Cgroup;
use agewise_policy::budget::{Gain, KernelFirst};
use agewise_policy::generations::ByType;
use agewise_policy::proactive::{
    Backend, Controller, Decision, Facts, Hands, Looked, Outcome, Psi, Refaults, Spec, SwapRoom,
};
use agewise_policy::whatif::keep::Wanted;

use super::hand::Done;
use super::news::News;
use super::state::{self, Machine, Reclaimed};
use super::world;

/// Counters at the previous decision.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    refaulted_bytes: ByType<u64>,
    some_us: u64,
}

/// The machine around an actor.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    pub machine: Machine,
    /// Where anonymous memory goes.
    pub backend: Backend,
    /// The measured cost of a refault from swap, and from the device of a file, ns.
    pub refault_ns: ByType<Option<u64>>,
}

/// What has been done about a target. It outlives the rule: a counter must not fall.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// What was moved out.
    pub reclaimed: Reclaimed,
    /// What would have been moved out.
    pub rehearsed_bytes: u64,
    /// Memory found by rehearsals that is still there; without a rehearsal it would be gone.
    standing_bytes: u64,
}

impl Counted {
    /// Counts what a rehearsal found, each byte once while it stays resident. `is_all` means that
    /// the rehearsal found everything, not just as much as it may take at a time. `most_bytes` is
    /// an upper bound of what can be found.
    pub fn rehearsed(&mut self, found_bytes: u64, is_all: bool, most_bytes: u64) {
        let standing_bytes = match is_all {
            true => found_bytes,
            false => self
                .standing_bytes
                .saturating_add(found_bytes)
                .min(most_bytes),
        };
        let more_bytes = standing_bytes.saturating_sub(self.standing_bytes);
        self.rehearsed_bytes = self.rehearsed_bytes.saturating_add(more_bytes);
        self.standing_bytes = standing_bytes;
    }

    /// Counts memory that left, and the part of it that was file memory.
    pub fn moved(&mut self, reason: state::Reason, left_bytes: u64, left_file_bytes: u64) {
        self.reclaimed.add(reason, left_bytes);
        self.reclaimed.add_files(left_file_bytes);
    }
}

/// A target under a policy.
#[derive(Debug)]
pub struct Actor {
    /// The rule it follows.
    pub rule: usize,
    /// The policy, as a reason for reclaim.
    pub reason: state::Reason,
    /// Whether nothing is moved.
    pub dry_run: bool,
    /// Whether file memory charged to the cgroup is included, even if no process maps it.
    pub files: bool,
    /// What was done about its target, by earlier rules too.
    pub counted: Counted,
    /// The measured worth of the budget, if known.
    pub budget_gain: Option<Gain>,
    /// How far the kernel has the limit first, until the budget is held.
    pub kernel_first: Option<KernelFirst>,
    controller: Controller,
    counters: Option<Counters>,
    outcome: Option<Outcome>,
    /// Why nothing was done, as far as it was written.
    pub holds: News,
    /// What was wrong with holding a budget, as far as it was written.
    pub troubles: News,
}

impl Actor {
    /// An actor without observations.
    pub fn new(rule: usize, spec: &Spec, dry_run: bool) -> Self {
        Actor {
            rule,
            reason: state::Reason::of(spec),
            dry_run,
            files: false,
            counted: Counted::default(),
            budget_gain: None,
            kernel_first: None,
            controller: Controller::new(spec),
            counters: None,
            outcome: None,
            holds: News::default(),
            troubles: News::default(),
        }
    }

    /// How often it needs a look at memory, ms.
    pub fn look_ms(&self) -> Option<u64> {
        let pace = self.controller.pace();
        pace.look_ms.filter(|_| pace.hold.is_none())
    }

    /// Whether it is held page by page, in steps of its own, in parallel with the ticks.
    pub fn is_held_ahead(&self) -> bool {
        self.controller.pace().hold.is_some()
    }

    /// How small it is held by a limit, if its policy uses one.
    pub fn shrinks(&self) -> Option<Wanted> {
        self.controller.shrinks()
    }

    /// Asks its controller, after a look, for a target to which `charged_bytes` are charged.
    pub fn decide(
        &mut self,
        now_ms: u64,
        cgroup: Option<&Cgroup>,
        charged_bytes: Option<u64>,
        ages: &SubjectAges,
        around: &Around,
    ) -> Decision {
        let psi = cgroup.and_then(world::psi_of).or(around.machine.psi);
        let mut refaulted_bytes = ages.refaulted_bytes;
        if let Some(stat) = cgroup.filter(|_| self.files).and_then(|of| of.stat().ok()) {
            // Include pages that the kernel had dropped and that came back.
            let pages = stat.refaults_file_pages;
            refaulted_bytes[1] =
                refaulted_bytes[1].saturating_add(pages.saturating_mul(PAGE_BYTES));
        }
        let now = Counters {
            refaulted_bytes,
            some_us: psi.map_or(0, |psi| psi.some.total_us),
        };
        // The counts before the first decision are not attributed to the actor.
        let before = self.counters.replace(now).unwrap_or(now);
        let limits = cgroup.and_then(|cgroup| cgroup.limits().ok());
        let facts = Facts {
            time_ms: now_ms,
            resident_bytes: ages.resident.total(),
            charged_bytes,
            unmovable_bytes: 0,
            out_bytes: ages.out_bytes,
            looked: Some(Looked {
                time_ms: ages.looked_ms,
                watched_ms: ages.watched_ms,
                bins: ages.resident.bins(),
                returned: ages.returned.bins(),
            }),
            refaults: Refaults {
                bytes: [0, 1]
                    .map(|of| now.refaulted_bytes[of].saturating_sub(before.refaulted_bytes[of])),
                latency_ns: around.refault_ns.map(|ns| ns.unwrap_or(0)),
            },
            psi: psi.map(|_| Psi {
                some_us: now.some_us.saturating_sub(before.some_us),
            }),
            swap: Some(world::swap_room(
                SwapRoom {
                    free_bytes: around.machine.swap_free_bytes,
                    total_bytes: around.machine.swap_total_bytes,
                },
                cgroup,
            )),
            backend: around.backend,
            limit_bytes: limits.and_then(|limits| limits.lowest_bytes()),
            floor_bytes: limits.map_or(0, |limits| limits.min_bytes.max(limits.low_bytes)),
            hands: Hands {
                page_out: true,
                // The kernel takes page cache, too.
                reclaim: self.files && cgroup.is_some_and(Cgroup::can_reclaim),
                sort: true,
                cache: self.files,
                ..Hands::default()
            },
            outcome: self.outcome.take(),
        };
        self.controller.decide(&facts)
    }

    /// Records the result of a decision.
    pub fn done(&mut self, done: &Done) {
        let (left_bytes, files) = (done.left_bytes(), done.left_file_bytes);
        self.counted.moved(self.reason, left_bytes, files);
        if self.dry_run {
            // Assume that it worked, or the rehearsal would stop where the real policy would not.
            self.outcome = None;
            return;
        }
        self.outcome = Some(Outcome {
            tried_bytes: done.tried_bytes,
            left_bytes: [done.left_anon_bytes, done.left_file_bytes],
            cpu_ns: done.cpu_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use agewise_host::cgroup::{Hierarchy, Version};
    use agewise_policy::generations::PageType;
    use agewise_policy::proactive::Action;
    use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

    use super::*;

    #[test]
    fn a_rehearsal_counts_what_stays_once() {
        let mut counted = Counted::default();
        for (found, is_all, most, expected) in [
            (100, true, 900, 100),
            // The same again; then less, since some was used; then more, when that is cold again.
            (100, true, 900, 100),
            (60, true, 900, 100),
            (110, true, 900, 150),
            // Only so much at a time, until everything was found.
            (500, false, 900, 650),
            (500, false, 900, 940),
            (500, false, 900, 940),
        ] {
            counted.rehearsed(found, is_all, most);
            assert_eq!(counted.rehearsed_bytes, expected);
        }
    }

    #[test]
    fn every_policy_has_a_reason() {
        for text in ["age:1s/2s", "pressure", "cost:stall=1%", "budget:512M"] {
            let spec: Spec = text.parse().unwrap();
            let reason = Actor::new(0, &spec, true).reason;
            assert_eq!(reason.name(), spec.name());
            assert_eq!(state::Reason::by_name(spec.name()), Some(reason));
        }
        assert_eq!(state::Reason::PROTECT.name(), "protect");
        assert_eq!(state::Reason::by_name("nonsense"), None);
    }
    /// 64 MiB of anonymous memory of this age.
    fn ages(age_ms: u64, watched_ms: u64) -> SubjectAges {
        let bounds = Intervals::default();
        let mut resident = Histogram::new(&bounds);
        resident.add_at_least(PageType::Anon, 64 << 20, age_ms, OldestPages::AtLeast);
        SubjectAges {
            looked_ms: 0,
            watched_ms,
            resident,
            returned: Histogram::new(&bounds),
            out_bytes: 0,
            refaulted_bytes: [0; 2],
        }
    }

    fn around() -> Around {
        Around {
            machine: Machine {
                swap_total_bytes: 1 << 30,
                swap_free_bytes: 1 << 30,
                ..Machine::default()
            },
            backend: Backend::Zram,
            refault_ns: [None; 2],
        }
    }

    /// The kernel takes page cache as well.
    #[test]
    fn the_kernel_chooses_only_with_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("job")).unwrap();
        std::fs::write(dir.path().join("job/memory.reclaim"), "").unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let cgroup = Cgroup::open(&hierarchy, "/job").unwrap();
        let (ages, around) = (ages(1000, 0), around());
        for files in [false, true] {
            let mut actor = Actor::new(0, &"pressure:period=1s".parse().unwrap(), false);
            actor.files = files;
            actor.decide(0, Some(&cgroup), None, &ages, &around);
            let decision = actor.decide(1000, Some(&cgroup), None, &ages, &around);
            assert!(decision.action.bytes() > 0);
            let asks = matches!(decision.action, Action::Reclaim { .. });
            assert_eq!(asks, files, "{decision:?}");
        }
    }

    #[test]
    fn a_cgroup_without_room_in_swap_keeps_its_anonymous_memory() {
        let dir = tempfile::tempdir().unwrap();
        let job = dir.path().join("job");
        std::fs::create_dir(&job).unwrap();
        let cgroup = Cgroup::open(&Hierarchy::at(Version::V2, dir.path()), "/job").unwrap();
        let machine = SwapRoom {
            free_bytes: 900,
            total_bytes: 1000,
        };
        let room = |max: &str| {
            std::fs::write(job.join("memory.swap.max"), max).unwrap();
            std::fs::write(job.join("memory.swap.current"), "100\n").unwrap();
            world::swap_room(machine, Some(&cgroup)).free_bytes
        };
        assert_eq!(room("max\n"), 900);
        assert_eq!(room("1000\n"), 900);
        assert_eq!(room("300\n"), 200);
        let (ages, around) = (ages(1000, 0), around());
        for (max, acts) in [("max\n", true), ("0\n", false)] {
            room(max);
            let mut actor = Actor::new(0, &"pressure:period=1s".parse().unwrap(), false);
            actor.decide(0, Some(&cgroup), None, &ages, &around);
            let decision = actor.decide(1000, Some(&cgroup), None, &ages, &around);
            assert_eq!(decision.action.bytes() > 0, acts, "{max}: {decision:?}");
        }
    }
}
