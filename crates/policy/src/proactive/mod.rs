// SPDX-License-Identifier: Apache-2.0
//! Proactive reclaim: deciding what to move out before memory gets tight.
//!
//! A [`Controller`] watches one target: a process, a memory cgroup, or a process of a simulated
//! machine. Its world passes it [`Facts`] (how much is resident, how old it is, what came back, at
//! what cost) and carries out the resulting [`Decision`]: do nothing, or page out, sort or reclaim
//! a number of bytes; and when to ask again. Every decision states its reason.
//!
//! A policy is one file and one line of [`POLICIES`]. Its name there is the one in configurations,
//! metrics and journals, and its reasons are its own ([`Grounds`]). A guard with [`GuardParams`]
//! enforces what must hold for every policy (floor, rate, room in swap, no progress, backing off
//! when memory comes back).
//!
//! ```
//! use agewise_policy::proactive::{Controller, Facts, Spec};
//!
//! let spec: Spec = "age:10s/40s,rate=64M".parse().unwrap();
//! let mut controller = Controller::new(&spec);
//! let decision = controller.decide(&Facts { time_ms: 1000, ..Facts::default() });
//! assert!(decision.next_ms > 1000);
//! ```

mod age;
mod arguments;
mod budget;
mod controller;
mod cost;
mod decision;
mod facts;
mod guard;
mod harm;
mod pressure;
mod shrink;
mod spec;
mod survival;

pub use arguments::SpecError;
pub(crate) use budget::KERNEL_SLACK_PART;
pub use controller::Controller;
pub use decision::{Action, Cause, Decision, Figure, Grounds, Limit, Reason};
pub use facts::{Backend, Facts, Hands, Looked, Outcome, Psi, Refaults, SwapRoom};
pub use guard::GuardParams;
pub use spec::Spec;
pub use survival::Survival;

use crate::budget::{Measure, Order};
use crate::whatif::keep::Wanted;
use crate::workingset::Intervals;
use arguments::Arguments;
use guard::Guard;

/// What a policy would do, before the guard is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// What to do.
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// When to ask again at the latest, on the clock of the facts.
    pub next_ms: u64,
    /// Memory must go in any case (because of a limit that the kernel would enforce itself): the
    /// guard neither backs off nor starts slowly, since not moving would only leave the work to
    /// direct reclaim.
    pub forced: bool,
}

impl Wish {
    /// Do nothing until `next_ms`.
    pub fn nothing(reason: Reason, next_ms: u64) -> Self {
        Wish {
            action: Action::Nothing,
            reason,
            next_ms,
            forced: false,
        }
    }
}

/// What a policy needs from its world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How often it wants to decide, in ms. Not 0.
    pub decide_ms: u64,
    /// How often memory should be looked at, in ms; `None` if it decides without ages.
    pub look_ms: Option<u64>,
    /// The age bounds its facts should have. Finer ones are welcome; coarser ones make it more
    /// careful.
    pub bounds: Intervals,
    /// Set if it asks for [`Action::Coldest`]: also keep records of single pages, if possible.
    pub hold: Option<Hold>,
}

/// How a policy holds a target page by page ([`crate::budget`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The budget under which it holds the target.
    pub budget_bytes: u64,
    /// Which pages go first.
    pub order: Order,
    /// Whether it measures its own value.
    pub measure: Measure,
}

/// A rule that says what to move out of one target, and when.
pub trait Policy: std::fmt::Debug + Send {
    /// What it would do, given the facts. Time never goes back between calls.
    fn wish(&mut self, facts: &Facts<'_>) -> Wish;

    /// What it needs from its world.
    fn pace(&self) -> Pace;

    /// How small it wants to hold a cgroup; `None` if it does not hold it by a limit.
    fn shrinks(&self) -> Option<Wanted> {
        None
    }
}

/// A policy with its guard's parameters, or what is wrong with its arguments.
type Built = Result<(Box<dyn Policy>, GuardParams), SpecError>;

/// A policy that users can request.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What may follow the name, for help and errors.
    pub usage: &'static str,
    /// Creates it from the arguments after its name.
    build: fn(&mut Arguments<'_>) -> Built,
}

/// All policies.
pub const POLICIES: &[Entry] = &[
    age::ENTRY,
    pressure::ENTRY,
    cost::ENTRY,
    budget::ENTRY,
    shrink::ENTRY,
];
