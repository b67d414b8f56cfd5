// SPDX-License-Identifier: Apache-2.0
//! Which rule applies to a subject, also when the configuration has changed.

use std::collections::HashMap;

use super::Daemon;
use crate::actor::Actor;
use crate::config::{Act, Matcher};
use crate::observer::{self, Key, Seen};
use crate::record::Change;

/// The number of the rule that applies to a subject.
pub(super) fn rule_of(matcher: &Matcher, seen: &Seen) -> Option<usize> {
    match &seen.cgroup {
        Some(cgroup) => matcher.rule(cgroup.path()),
        None => seen.pids.first().and_then(|pid| matcher.rule_of_pid(*pid)),
    }
}

impl Daemon {
    /// Drops the actors to which another rule applies from now on. The others have learned how much
    /// they may take, and when: they would have to do harm to learn it again.
    pub(super) fn renew_rules(&mut self, acts: &[Act], matcher: &Matcher) {
        let seen = observer::subjects(&self.agent, &mut self.containers);
        let rules: HashMap<&Key, usize> = seen
            .iter()
            .filter_map(|seen| Some((&seen.key, rule_of(matcher, seen)?)))
            .collect();
        let before = &self.config.act;
        let has_other = |key: &Key, actor: &mut Actor| {
            let same = rules
                .get(key)
                .filter(|rule| acts[**rule] == before[actor.rule]);
            actor.rule = same.copied().unwrap_or(actor.rule);
            same.is_none()
        };
        let over = self.tracked.actors.extract_if(has_other);
        for (key, actor) in over {
            let change = Change {
                target: &key.0,
                container: None,
                policy: Some(actor.reason.name()),
            };
            self.journal.write("unfollow", &change);
            self.tracked.retired.insert(key, actor.counted);
        }
    }
}
