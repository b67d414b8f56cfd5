// SPDX-License-Identifier: Apache-2.0
//! The machine of unit tests: one CPU and no memory in use.

use super::{Profile, Settings};
use crate::cgroups::LruConfig;
use crate::lru::{Lru, Mode};

/// A machine with this many frames and nodes, with the rules of a profile.
pub fn machine(profile: &str, frames: u32, nodes: u32, mode: Mode) -> Lru {
    Lru::new(LruConfig {
        frames,
        nodes,
        cpus: 1,
        mode,
        now_ns: 0,
        seed: 7,
        mglru: Settings {
            profile: *Profile::by_name(profile).expect("known profile"),
            ..Settings::default()
        },
        classic: crate::classic::Settings::default(),
    })
}
