// SPDX-License-Identifier: Apache-2.0
//! Reclaim from one lruvec, by the LRU in use.

use super::ScanControl;
use crate::classic;
use crate::ids::LruvecId;
use crate::lru::{Lru, Mode};
use crate::mglru;
use crate::world::World;

impl Lru {
    /// Reclaims from one lruvec at the priority of `sc` (`shrink_lruvec`). Global reclaim under
    /// multi-gen goes through [`mglru::shrink_node`] instead.
    pub fn shrink_lruvec<W: World>(
        &mut self,
        world: &mut W,
        lruvec: LruvecId,
        sc: &mut ScanControl,
    ) {
        if self.mode != Mode::Classic {
            mglru::shrink_lruvec(self, world, lruvec, sc);
            if self.mode != Mode::Switching {
                return;
            }
        }
        classic::shrink_lruvec(self, world, lruvec, sc);
    }
}
