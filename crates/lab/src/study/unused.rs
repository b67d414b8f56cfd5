// SPDX-License-Identifier: Apache-2.0
//! Settings and options that change nothing beside others.

use agewise_policy::proactive::Controller;

use super::run::RunRequest;
use crate::experiment::contender::Contender;
use crate::experiment::machine_run::{Plan, Subject};
use crate::machine::device::DeviceKind;
use crate::proactive::Sight;

/// Settings, whether they change nothing, and why.
type Rule = (&'static [&'static str], bool, &'static str);

impl RunRequest {
    /// Remarks on what the user has set and what changes nothing in any column.
    pub(super) fn unused(&self, plan: &Plan) -> Vec<String> {
        let name = plan.subject.name();
        if !self.has_policy(true) && !self.has_policy(false) {
            let given = [
                ("--set", !self.setup.settings.is_empty()),
                ("--swap", self.setup.swap.is_some()),
                ("--sight", self.sight != Sight::default()),
            ];
            let given = given.iter().filter(|(_, is_given)| *is_given);
            let note = |(option, _): &(&str, bool)| {
                format!("{name}: {option} changes nothing without a policy of the machine")
            };
            return given.map(note).collect();
        }
        let rules = [self.of_machine(plan), self.of_policies()].concat();
        let settings = self.setup.settings.iter();
        let keys = settings.filter_map(|text| text.split_once('=').map(|(key, _)| key));
        let set = keys.filter_map(|key| {
            let holds = |(keys, holds, _): &&Rule| *holds && keys.contains(&key);
            let (_, _, why) = rules.iter().find(holds)?;
            Some(format!("--set {key} changes nothing {why}"))
        });
        let mut notes: Vec<String> = set.collect();
        let has_agent = self.columns.iter().any(|(_, agent)| agent.is_some());
        if self.sight != Sight::default() && !has_agent {
            notes.push("--sight changes nothing without an agent (--proactive)".to_owned());
        }
        if self.sight == Sight::Generations && has_agent && self.has_policy(false) {
            notes.push("--sight generations shows nothing of classic, which has none".to_owned());
        }
        notes.dedup();
        notes.iter().map(|note| format!("{name}: {note}")).collect()
    }

    fn of_machine(&self, plan: &Plan) -> Vec<Rule> {
        let of_workload: &[String] = match &plan.subject {
            Subject::Workload(workload) => &workload.settings,
            Subject::Trace(..) => &[],
        };
        // The value in force, if it is set.
        let value = |key: &str| {
            let mut settings = of_workload.iter().chain(&plan.settings).rev();
            settings.find_map(|text| text.strip_prefix(key)?.strip_prefix('='))
        };
        let swap = plan.swap.unwrap_or_else(|| plan.subject.swap());
        let has_slow = value("slow_memory").is_some();
        let has_nodes = value("nodes").is_some_and(|nodes| nodes != "1");
        let is_exact = value("stat_flush_us").is_some_and(|us| us == "0");
        vec![
            (
                &[
                    "swap_size",
                    "swap_on_file_disk",
                    "swap_channels",
                    "swap_read_us",
                    "swap_write_us",
                    "compression",
                ],
                swap.is_none(),
                "without swap",
            ),
            (
                &["compression"],
                swap.is_some_and(|kind| kind != DeviceKind::Zram),
                "without zram",
            ),
            (&["demotion", "slow_ns"], !has_slow, "without slow_memory"),
            (
                &["page_move_ns"],
                !has_slow && !has_nodes,
                "without slow_memory or nodes",
            ),
            (&["interleave"], !has_nodes, "with one node"),
            (&["stat_flush_phase_us"], is_exact, "with stat_flush_us=0"),
        ]
    }

    fn of_policies(&self) -> Vec<Rule> {
        let mut agents = self.columns.iter().filter_map(|(_, agent)| agent.as_ref());
        let has_budget = agents.any(|agent| Controller::new(agent).pace().hold.is_some());
        let sees_pages = has_budget && self.sight != Sight::Generations;
        vec![
            (
                &["agent_missed"],
                !sees_pages,
                "without an agent under a budget that looks at pages",
            ),
            (
                &[
                    "min_ttl_ms",
                    "lru_gen_enabled",
                    "reschedule_chance",
                    "without",
                ],
                !self.has_policy(true),
                "without mglru",
            ),
            (
                &[
                    "size_scale",
                    "dirty_stays_inactive",
                    "refault_flush_ns",
                    "refault_flush_pause_ns",
                    "stat_flush_us",
                    "stat_flush_phase_us",
                ],
                !self.has_policy(false),
                "without classic",
            ),
        ]
    }

    /// Whether a column is of the multi-gen LRU, or of the classic LRU.
    fn has_policy(&self, multi_gen: bool) -> bool {
        let mut policies = self.columns.iter().map(|(policy, _)| policy);
        policies.any(|of| matches!(of, Contender::Kernel(of) if of.multi_gen == multi_gen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::columns::columns;
    use crate::study::setup::Setup;

    /// The remarks of a run of kv; `machine` is a policy, a swap device and settings.
    fn notes(machine: &str, agent: Option<&str>, sight: Sight) -> String {
        let agents: Vec<_> = agent.iter().map(|agent| agent.parse().unwrap()).collect();
        let mut words = machine.split(' ').map(str::to_owned);
        let policy = words.next().unwrap();
        let request = RunRequest {
            setup: Setup {
                swap: words.next(),
                settings: words.collect(),
                ..Setup::default()
            },
            subject: "kv".to_owned(),
            columns: columns(&[&policy], &agents).unwrap(),
            sight,
            seeds: Some(1),
            build: String::new(),
        };
        let kv = request.setup.subject("kv").unwrap().subject;
        let policy = request.columns[0].0.machine_policy();
        let (plan, _) = request.setup.plan(&kv, policy, 1).unwrap();
        request.unused(&plan).join("|")
    }

    #[test]
    fn settings_that_change_nothing_are_said() {
        let first = "kv: --set swap_size changes nothing without swap";
        for (machine, expected) in [
            ("classic none swap_size=1G", first),
            ("classic ssd compression=2", "without zram"),
            (
                "classic zram compression=2 swap_size=1G stat_flush_us=5",
                "",
            ),
            ("classic zram demotion=1", "without slow_memory"),
            ("classic zram demotion=1 slow_memory=8M slow_ns=9", ""),
            ("classic zram interleave=1", "with one node"),
            ("classic zram interleave=1 nodes=2 page_move_ns=9", ""),
            ("classic zram min_ttl_ms=9", "without mglru"),
            ("mglru zram min_ttl_ms=9", ""),
            ("mglru zram size_scale=9", "without classic"),
            (
                "classic zram stat_flush_us=0 stat_flush_phase_us=9",
                "_us=0",
            ),
            ("mglru zram agent_missed=0", "without an agent"),
            (
                "arc zram",
                "--swap changes nothing without a policy of the machine",
            ),
            (
                "arc zram hit_ns=9",
                "--set changes nothing without a policy of the machine|kv: ",
            ),
        ] {
            let notes = notes(machine, None, Sight::default());
            let fits = notes.contains(expected) && notes.is_empty() == expected.is_empty();
            assert!(fits, "{machine}: {notes}");
        }
    }

    #[test]
    fn so_are_those_of_agents() {
        let (all, generations) = (Sight::default(), Sight::Generations);
        let alone = notes("mglru zram", None, generations);
        assert!(alone.contains("without an agent"), "{alone}");
        let classic = notes("classic zram", Some("age:1s/1s"), generations);
        assert!(classic.contains("nothing of classic"), "{classic}");
        let missed = |sight| notes("mglru zram agent_missed=0", Some("budget:18M"), sight);
        assert_eq!(missed(all), "");
        assert_ne!(missed(generations), "");
    }
}
