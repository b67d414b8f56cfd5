// SPDX-License-Identifier: Apache-2.0
//! A policy and its guard, for one target.

use crate::whatif::keep::Wanted;

use super::{Action, Decision, Facts, Guard, Pace, Policy, Spec, Wish};

/// Decides for one target. Its answers depend only on the facts it receives, in their order.
#[derive(Debug)]
pub struct Controller {
    policy: Box<dyn Policy>,
    guard: Guard,
    time_ms: u64,
}

impl Controller {
    /// A controller that has seen nothing yet.
    pub fn new(spec: &Spec) -> Self {
        let (policy, params) = spec.build();
        Controller {
            policy,
            guard: Guard::new(params),
            time_ms: 0,
        }
    }

    /// What to do now. Carry it out, and report the result in the next facts ([`Facts::outcome`]);
    /// asking more often than [`Decision::next_ms`] is harmless.
    pub fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        // A clock that goes back would make periods endless.
        self.time_ms = self.time_ms.max(facts.time_ms);
        let facts = Facts {
            time_ms: self.time_ms,
            ..facts.clone()
        };
        self.guard.observe(&facts);
        let wish: Wish = self.policy.wish(&facts);
        let mut decision = self.guard.check(&facts, wish);
        decision.next_ms = decision.next_ms.max(facts.time_ms + 1);
        if decision.action.bytes() == 0 && !matches!(decision.action, Action::Sort { .. }) {
            decision.action = Action::Nothing;
        }
        decision
    }

    /// What the policy currently needs from its world: it may require fewer looks once it knows
    /// more.
    pub fn pace(&self) -> Pace {
        self.policy.pace()
    }

    /// How small a cgroup should be held ([`Policy::shrinks`]).
    pub fn shrinks(&self) -> Option<Wanted> {
        self.policy.shrinks()
    }
}
