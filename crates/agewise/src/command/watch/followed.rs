// SPDX-License-Identifier: Apache-2.0
//! The target whose what-if curve is shown. It is simulated from the moment the curve is asked for,
//! using the looks that are made anyway.

use agewise_cli::prices::Costs;
use agewise_host::agent::Agent;
use agewise_host::cgroup::{Cgroup, CgroupError};
use agewise_host::root::Roots;
use agewise_host::untrusted::Untrusted;
use agewise_host::whatif::{Around, Files, Sights, is_charged_for_files, kernel_in_use};
use agewise_policy::whatif::{Curves, Params, WhatIf};
use std::time::Instant;

/// Initial looks that only find out which pages exist; nothing is counted yet.
pub const LEARN_LOOKS: u32 = 10;

/// A target for a curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// A subject (a cgroup, or a target given on the command line) by name.
    Subject(Untrusted),
    Process(u32),
}

/// What is known about the target's curve.
#[derive(Clone, Debug)]
pub struct Known {
    /// The curve; `None` until something was counted.
    pub curves: Option<Curves>,
    /// Looks since the curve was asked for.
    pub looks: u32,
    /// Whether the curve includes file pages charged to the target.
    pub has_files: bool,
    /// The target no longer exists; the curve covers the time until it ended.
    pub is_gone: bool,
    /// The cost of bringing a page back.
    pub costs: Costs,
}

/// What a target refers to at the moment.
struct There {
    /// Inode or start time: tells apart successive targets with the same name.
    id: u64,
    cgroup: Option<Cgroup>,
    pids: Vec<u32>,
}

impl There {
    fn find(agent: &Agent, of: &Of) -> Option<There> {
        match of {
            Of::Process(pid) => agent.space(*pid).map(|space| There {
                id: space.process().start_ticks(),
                cgroup: None,
                pids: vec![*pid],
            }),
            Of::Subject(name) => {
                let (subject, pids) = agent
                    .subjects()
                    .find(|(subject, _)| subject.name == *name && subject.gone.is_none())?;
                let id = match &subject.cgroup {
                    Some(cgroup) => cgroup.id(),
                    None => subject.start_ticks.unwrap_or(0),
                };
                Some(There {
                    id,
                    cgroup: subject.cgroup.clone(),
                    pids,
                })
            }
        }
    }
}

/// Simulates one target.
pub struct Followed {
    of: Of,
    what_if: WhatIf,
    sights: Sights,
    costs: Costs,
    is_counting: bool,
    /// Time of the last look at the page cache that was processed.
    cached_ms: Option<u64>,
    /// The target's identity and whether file pages count, once it has been seen.
    first: Option<(u64, bool)>,
    is_gone: bool,
}

impl Followed {
    /// Starts with no data.
    pub fn new(of: Of, costs: Costs) -> Self {
        let params = Params {
            kernel: kernel_in_use(&Roots::default()),
            ..Params::default()
        };
        Followed {
            of,
            what_if: WhatIf::new(params),
            sights: Sights::default(),
            costs,
            is_counting: false,
            cached_ms: None,
            first: None,
            is_gone: false,
        }
    }

    /// The target.
    pub fn of(&self) -> &Of {
        &self.of
    }

    /// Whether the target no longer exists.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Ticks the agent once and feeds the observed accesses to the simulation.
    ///
    /// # Errors
    /// As [`Agent::tick`].
    pub fn tick(&mut self, agent: &mut Agent) -> Result<(), CgroupError> {
        self.sights.clear();
        let began = Instant::now();
        agent.tick_tapped(Some(&mut self.sights))?;
        let blind_ms = began.elapsed().as_secs_f64() * 1e3;
        let there = There::find(agent, &self.of);
        let Some(there) = there.filter(|there| self.first.is_none_or(|(id, _)| id == there.id))
        else {
            self.is_gone = true;
            return Ok(());
        };
        if self.is_gone {
            return Ok(());
        }
        let cgroup = there.cgroup.as_ref();
        let is_cached = cgroup.is_some() && agent.cached_ms().is_some();
        let (_, has_files) = *self.first.get_or_insert_with(|| {
            let charged = is_charged_for_files(cgroup, agent, &there.pids);
            (there.id, charged)
        });
        let uses = agent.take_cache_uses();
        let cached = agent.cached(&uses, &mut self.cached_ms);
        let around = Around {
            files: Files::of(is_cached, has_files),
            cgroup,
            cached: cached.as_ref(),
            blind_ms,
        };
        self.sights
            .show(agent, &there.pids, &mut self.what_if, around);
        if !self.is_counting && self.what_if.looks() >= LEARN_LOOKS {
            self.what_if.count_anew();
            self.is_counting = true;
        }
        Ok(())
    }

    /// What is known so far.
    pub fn known(&self, agent: &Agent) -> Known {
        let is_counted = self.is_counting && self.what_if.observed_ms() > 0;
        let is_cached = agent.cached_ms().is_some();
        Known {
            curves: is_counted.then(|| self.what_if.curves()),
            looks: self.what_if.looks(),
            has_files: is_cached || self.first.is_none_or(|(_, has_files)| has_files),
            is_gone: self.is_gone,
            costs: self.costs,
        }
    }
}
