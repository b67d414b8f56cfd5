// SPDX-License-Identifier: Apache-2.0
//! Switching between the two LRUs at run time, keeping every page (`lru_gen_change_state`).

use crate::folio::FolioType;
use crate::ids::LruvecId;
use crate::lru::{Lru, Mode};

use super::insert::{add_folio, del_folio};
use super::{GENERATIONS_MAX, MAX_LRU_BATCH, NR_ZONES};

/// A switch in progress: lruvecs are converted one after the other, 4096 folios at a time, and
/// reclaim may run in between.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    multi_gen: bool,
    next: LruvecId,
}

impl Switch {
    /// Begins a switch; `None` if the machine is already in that mode. Until the switch is
    /// complete, reclaim uses both structures in 7.2, and only the new one in 6.12.
    pub fn begin(lru: &mut Lru, multi_gen: bool) -> Option<Switch> {
        let mode = if multi_gen {
            Mode::MultiGen
        } else {
            Mode::Classic
        };
        if lru.mode == mode {
            return None;
        }
        lru.mode = if lru.mglru.profile.has_switching_state {
            Mode::Switching
        } else {
            mode
        };
        Some(Switch {
            multi_gen,
            next: LruvecId(0),
        })
    }

    /// Converts up to 4096 folios. Returns whether the switch is complete.
    pub fn step(&mut self, lru: &mut Lru) -> bool {
        let Some(lruvec) = lru.lruvecs.get_mut(self.next.index()) else {
            lru.mode = if self.multi_gen {
                Mode::MultiGen
            } else {
                Mode::Classic
            };
            return true;
        };
        lruvec.mglru.enabled = self.multi_gen;
        lru.work.lru_locks += 1;
        let drained = if self.multi_gen {
            fill(lru, self.next)
        } else {
            drain(lru, self.next)
        };
        if drained {
            self.next.0 += 1;
        }
        false
    }
}

/// Switches at once.
pub fn set_enabled(lru: &mut Lru, multi_gen: bool) {
    if let Some(mut switch) = Switch::begin(lru, multi_gen) {
        while !switch.step(lru) {}
    }
}

/// Moves folios from the classic lists to generations; returns true if none is left
/// (`fill_evictable`).
fn fill(lru: &mut Lru, lruvec: LruvecId) -> bool {
    let mut remaining = MAX_LRU_BATCH;
    for folio_type in FolioType::ALL {
        for active in [false, true] {
            loop {
                let state = &mut lru.lruvecs[lruvec.index()];
                let pfn = state.classic.oldest(folio_type, active);
                if !pfn.is_some() {
                    break;
                }
                crate::classic::del_folio(&mut lru.folios, state, pfn);
                add_folio(&mut lru.folios, state, &lru.mglru.profile, pfn, false);
                lru.work.list_moves += 1;
                remaining -= 1;
                if remaining == 0 {
                    return false;
                }
            }
        }
    }
    true
}

/// Moves folios from generations to the classic lists; returns true if none is left
/// (`drain_evictable`).
fn drain(lru: &mut Lru, lruvec: LruvecId) -> bool {
    let mut remaining = MAX_LRU_BATCH;
    for slot in 0..GENERATIONS_MAX {
        for folio_type in 0..2 {
            for zone in 0..NR_ZONES {
                loop {
                    let state = &mut lru.lruvecs[lruvec.index()];
                    let pfn = state.mglru.lists[slot][folio_type][zone].tail();
                    if !pfn.is_some() {
                        break;
                    }
                    del_folio(&mut lru.folios, state, pfn, false);
                    crate::classic::add_folio(&mut lru.folios, state, pfn, false);
                    lru.work.list_moves += 1;
                    remaining -= 1;
                    if remaining == 0 {
                        return false;
                    }
                }
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::machine_for_tests;
    use super::*;

    fn machine(profile: &str, mode: Mode) -> Lru {
        machine_for_tests::machine(profile, 1, 1, mode)
    }

    #[test]
    fn reclaim_looks_at_both_structures_while_7_2_switches_and_at_the_new_one_before() {
        for (from, multi_gen, to) in [
            (Mode::Classic, true, Mode::MultiGen),
            (Mode::MultiGen, false, Mode::Classic),
        ] {
            for (profile, meanwhile) in [("7.2", Mode::Switching), ("6.12", to), ("v6", to)] {
                let mut lru = machine(profile, from);
                let mut switch = Switch::begin(&mut lru, multi_gen).expect("another mode");
                assert_eq!(lru.mode, meanwhile, "{profile}");
                while !switch.step(&mut lru) {
                    assert_eq!(lru.mode, meanwhile, "{profile}");
                }
                assert_eq!(lru.mode, to, "{profile}");
            }
        }
    }
}
