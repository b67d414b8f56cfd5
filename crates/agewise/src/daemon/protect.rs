// SPDX-License-Identifier: Apache-2.0
//! Thrashing prevention: protected cgroups whose working set cannot be kept, and who is to blame.
//!
//! The engine decides ([`Guard`]); here cgroups become samples, and decisions acts. What this daemon
//! does itself goes no further than moving memory of the guilty out page by page, as any policy
//! does: no limit is set and nothing is frozen, so that nothing is left behind when it is killed.

use std::collections::HashMap;
use std::sync::Arc;

use agewise_engine::thrashing::{Act, Config as Rules, Decision, GroupSample, Guard, Sample, Step};
use agewise_host::eye::PAGE_BYTES;
use serde::Serialize;

use super::config::{self, Matcher};
use super::observer::{Key, Seen};
use super::state::SubjectView;

/// Watches protected cgroups.
#[derive(Debug)]
pub struct Protector {
    guard: Guard<Arc<str>>,
    /// The guilty, and below what their memory is to be held.
    squeezed: HashMap<Arc<str>, u64>,
}

/// A decision as the journal has it.
#[derive(Debug, Serialize)]
pub struct Line {
    protected: String,
    act: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    guilty: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guilty_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refaults_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_share: Option<f64>,
}

impl Protector {
    /// By a configuration that was checked; `None` if nothing is protected.
    pub fn new(config: &config::Protect) -> Option<Self> {
        if config.cgroups.is_empty() {
            return None;
        }
        let rules = Rules {
            min_ttl_ms: u64::try_from(config.min_ttl.0.as_millis()).unwrap_or(u64::MAX),
            up_to: match config.up_to {
                config::UpTo::Report => Step::Report,
                config::UpTo::Squeeze => Step::Squeeze,
            },
            ..Rules::default()
        };
        Some(Protector {
            guard: Guard::new(rules),
            squeezed: HashMap::new(),
        })
    }

    /// Looks at what a tick found; returns what to write down.
    pub fn look(
        &mut self,
        now_ms: u64,
        seen: &[Seen],
        views: &[SubjectView],
        matcher: &Matcher,
        own_line: &[u32],
    ) -> Vec<Line> {
        let groups = groups(seen, views, matcher)
            .into_iter()
            .map(|(seen, view)| {
                let resident = view.resident_bytes();
                GroupSample {
                    group: Arc::clone(&view.name),
                    is_protected: matcher.is_protected(&view.name),
                    is_untouchable: seen
                        .pids
                        .iter()
                        .any(|pid| *pid == 1 || own_line.contains(pid)),
                    resident_bytes: resident[0].saturating_add(resident[1]),
                    swapped_bytes: view.swapped_bytes,
                    refaulted_pages: view.refaulted_bytes / PAGE_BYTES,
                    young_refaulted_pages: None,
                    full_stall_us: view.psi.map(|psi| psi.full.total_us),
                }
            })
            .collect();
        let decisions = self.guard.look(Sample { now_ms, groups });
        decisions
            .iter()
            .map(|decision| self.take(decision))
            .collect()
    }

    fn take(&mut self, decision: &Decision<Arc<str>>) -> Line {
        let guilty = decision
            .blame
            .as_ref()
            .map(|blame| Arc::clone(&blame.group));
        let mut limit = None;
        let act = match &decision.act {
            Act::Report => "report",
            Act::Squeeze { limit_bytes } => {
                limit = Some(*limit_bytes);
                if let Some(guilty) = &guilty {
                    self.squeezed.insert(Arc::clone(guilty), *limit_bytes);
                }
                "squeeze"
            }
            Act::Release => {
                if let Some(guilty) = &guilty {
                    self.squeezed.remove(guilty);
                }
                "release"
            }
            // The configuration does not let it come that far.
            Act::Freeze { .. } => "freeze",
            Act::Thaw => "thaw",
            Act::Kill => "kill",
        };
        Line {
            protected: decision.protected.to_string(),
            act,
            guilty: guilty.map(|guilty| guilty.to_string()),
            guilty_share: decision.blame.as_ref().map(|blame| blame.share),
            limit_bytes: limit,
            refaults_per_s: decision.suffering.map(|s| s.young_refaults_per_s),
            full_share: decision.suffering.and_then(|s| s.full_share),
        }
    }

    /// How much has to go from a cgroup that is held back.
    pub fn excess_bytes(&self, key: &Key, resident_bytes: u64) -> u64 {
        let limit = self.squeezed.get(&key.0);
        limit.map_or(0, |limit| resident_bytes.saturating_sub(*limit))
    }
}

/// Cgroups of which none is below another: the protected ones, and of the others the uppermost that
/// are neither above nor below those.
fn groups<'a>(
    seen: &'a [Seen],
    views: &'a [SubjectView],
    matcher: &Matcher,
) -> Vec<(&'a Seen, &'a SubjectView)> {
    let is_within = |below: &str, above: &str| {
        below == above
            || below
                .strip_prefix(above)
                .is_some_and(|rest| rest.starts_with('/'))
    };
    let mut taken: Vec<(&Seen, &SubjectView)> = Vec::new();
    for wants_protected in [true, false] {
        for pair in seen.iter().zip(views) {
            let name = &*pair.1.name;
            let is_wanted = pair.1.is_cgroup
                && name != "/"
                && matcher.is_protected(name) == wants_protected
                && taken.iter().all(|(_, other)| {
                    !is_within(name, &other.name) && !is_within(&other.name, name)
                });
            if is_wanted {
                taken.push(pair);
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;
    use crate::daemon::config::Config;

    #[test]
    fn the_guilty_is_named_and_held_back_until_all_is_calm() {
        let config = Config::parse(
            "[protect]\ncgroups = ['/web']\nup_to = 'squeeze'\n[observe]\ncgroups = ['/*']\n",
        )
        .unwrap();
        let matcher = Matcher::new(&config).unwrap();
        let mut protector = Protector::new(&config.protect).unwrap();
        let mut snapshot = demo::snapshot(1, 1000);
        snapshot.subjects.retain(|view| view.is_cgroup);
        let seen: Vec<Seen> = (0..)
            .zip(&snapshot.subjects)
            .map(|(at, view)| Seen {
                at,
                key: (Arc::clone(&view.name), view.id),
                cgroup: None,
                pids: vec![1000 + at as u32],
            })
            .collect();
        let chosen: Vec<&str> = groups(&seen, &snapshot.subjects, &matcher)
            .iter()
            .map(|(_, view)| &*view.name)
            .collect();
        assert_eq!(chosen, ["/web", "/batch"]);
        let mut lines = Vec::new();
        for tick in 0..60u64 {
            for view in &mut snapshot.subjects {
                match &*view.name {
                    // Thousands of pages come back each second, and the other one grows.
                    "/web" if tick < 20 => view.refaulted_bytes += 4000 * PAGE_BYTES,
                    "/batch" if tick < 20 => view.swapped_bytes += 64 << 20,
                    _ => {}
                }
                if let Some(psi) = &mut view.psi {
                    psi.full.total_us += if tick < 20 { 500_000 } else { 0 };
                }
            }
            let now_ms = 1000 + tick * 1000;
            lines.extend(protector.look(now_ms, &seen, &snapshot.subjects, &matcher, &[7]));
            if tick == 19 {
                let batch = seen.iter().find(|seen| &*seen.key.0 == "/batch").unwrap();
                assert!(
                    protector.excess_bytes(&batch.key, u64::MAX) > 0,
                    "{lines:?}"
                );
            }
        }
        let acts: Vec<&str> = lines.iter().map(|line| line.act).collect();
        // With a harder step allowed, naming the guilty is part of it.
        assert_eq!(acts.first(), Some(&"squeeze"), "{lines:?}");
        assert_eq!(acts.last(), Some(&"release"));
        assert!(lines.iter().all(|line| line.protected == "/web"));
        assert!(protector.squeezed.is_empty());
        let nobody = Config::parse("").unwrap();
        assert!(Protector::new(&nobody.protect).is_none());
    }
}
