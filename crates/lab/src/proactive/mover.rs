// SPDX-License-Identifier: Apache-2.0
//! Carries out the decisions of policies.

use agewise_policy::table::PAGE_BYTES;
use std::ops::{ControlFlow, Range};

use agewise_kernel::ids::MemcgId;
use agewise_policy::agemap::AgeMap;
use agewise_policy::generations::{ByType, LABEL_OLDEST, LABEL_UNSEEN, LABELS, Label};
use agewise_policy::proactive::Action;

use super::access::Source;
use super::spaces::{Space, Spaces};
use crate::machine::Machine;

/// Outcome of an action, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub tried: u64,
    pub left: ByType<u64>,
}

/// Carries out an action page by page.
pub(super) fn by_pages(
    machine: &mut Machine,
    source: &Source,
    spaces: &mut Spaces,
    action: &Action,
) -> Done {
    let memcg = spaces.memcg;
    let mut done = Done::default();
    match *action {
        Action::Nothing => {}
        Action::Reclaim { .. } => return by_bytes(machine, memcg, action),
        Action::PageOut {
            older_than_ms,
            bytes_max,
        } => {
            let now_ms = machine.now_ns() / 1_000_000;
            for (space, runs) in oldest(source, now_ms, older_than_ms, bytes_max / PAGE_BYTES) {
                let (tried, left) = spaces.move_out(machine, space, &runs, false);
                done.tried += tried[0] + tried[1];
                done.left = [done.left[0] + left[0], done.left[1] + left[1]];
            }
            // Frees pages whose write has finished since.
            machine.reap(memcg);
        }
        Action::Sort {
            older_than_ms,
            bytes_max,
        } => {
            let now_ms = machine.now_ns() / 1_000_000;
            for (space, runs) in oldest(source, now_ms, older_than_ms, bytes_max / PAGE_BYTES) {
                // Files have no such call.
                if let Space::Process(process) = space {
                    machine.sort_cold(process, &runs);
                }
            }
        }
        // Only budgets keep heat: see `held`.
        Action::Coldest { types, bytes_max } => {
            let action = Action::PageOut {
                older_than_ms: types.map(|takes| takes.then_some(0)),
                bytes_max,
            };
            return by_pages(machine, source, spaces, &action);
        }
    }
    done
}

/// Carries out an action as a number of bytes for `memory.reclaim`.
pub(super) fn by_bytes(machine: &mut Machine, memcg: MemcgId, action: &Action) -> Done {
    let takes_anon = match action {
        Action::PageOut { older_than_ms, .. } => older_than_ms[0].is_some(),
        Action::Reclaim { anon, .. } => *anon,
        Action::Coldest { types, .. } => types[0],
        Action::Nothing | Action::Sort { .. } => return Done::default(),
    };
    let tried = action.bytes() / PAGE_BYTES;
    let before = machine.resident_pages(memcg);
    // Reclaiming less than asked for is not an error.
    let _ = machine.reclaim_memcg(memcg, tried, (!takes_anon).then_some(0));
    machine.reap(memcg);
    let after = machine.resident_pages(memcg);
    Done {
        tried,
        left: [0, 1].map(|t| before[t].saturating_sub(after[t])),
    }
}

/// The oldest pages of all spaces: the runs to take from each, at most `pages_max` in total.
fn oldest(
    source: &Source,
    now_ms: u64,
    older_than_ms: ByType<Option<u64>>,
    pages_max: u64,
) -> Vec<(Space, Vec<Range<u64>>)> {
    // All generations of all spaces that are old enough for one of the types, by age.
    let mut old: Vec<(u64, Space, Label)> = Vec::new();
    for (space, ages) in source.spaces() {
        let generations = ages.generations();
        for label in
            (LABEL_UNSEEN..LABELS as Label).filter(|&l| l == LABEL_UNSEEN || l >= LABEL_OLDEST)
        {
            let sizes = generations.sizes()[usize::from(label)];
            if let Some((youngest_ms, _)) = generations.age_bounds_ms(label, now_ms)
                && (0..2)
                    .any(|t| sizes[t] > 0 && older_than_ms[t].is_some_and(|ms| youngest_ms >= ms))
            {
                old.push((youngest_ms, *space, label));
            }
        }
    }
    old.sort_by_key(|&(age_ms, space, label)| (std::cmp::Reverse(age_ms), space, label));
    let mut left = pages_max;
    let mut chosen: Vec<(Space, Vec<Range<u64>>)> = Vec::new();
    for (age_ms, space, label) in old {
        if left == 0 {
            break;
        }
        let types = older_than_ms.map(|ms| ms.is_some_and(|ms| age_ms >= ms));
        let runs = take(&source.spaces()[&space], label, types, &mut left);
        match chosen.iter_mut().find(|(other, _)| *other == space) {
            Some((_, all)) => all.extend(runs),
            None => chosen.push((space, runs)),
        }
    }
    chosen
}

fn take(ages: &AgeMap, label: Label, types: ByType<bool>, left: &mut u64) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    ages.runs_labelled(0..u64::MAX, label, label, |run| {
        if types[run.page_type as usize] {
            let pages = (run.pages.end - run.pages.start).min(*left);
            *left -= pages;
            runs.push(run.pages.start..run.pages.start + pages);
        }
        match *left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    runs
}
