// SPDX-License-Identifier: Apache-2.0
//! A protected cgroup that thrashes because of another cgroup.

use std::fs::{File, OpenOptions};
use std::path::Path;

use agewise_bench::exercise::spawned::Spawned;
use agewise_host::cgroup::{Hierarchy, Version};
use agewise_host::root::ProcRoot;
use agewise_host::swap::ZramDevice;

use super::need::{runs, zram};
use super::program::words;
use super::{AGEWISE, Group, MIB, blind};

/// The memory that both share, less than they use.
const LIMIT_BYTES: u64 = 96 * MIB;

/// A desk whose memory a hog takes, below one limit, with a swap device of their own.
pub struct Scene {
    // Dropped in this order: the cgroups are empty once their processes have ended.
    pub desk: Spawned,
    pub hog: Spawned,
    pub hog_group: Group,
    _desk_group: Group,
    pub top: Group,
    _swap: ZramDevice,
    version: Version,
}

impl Scene {
    pub fn start(name: &str) -> Result<Self, String> {
        if let Some(why) = blind() {
            return Err(why);
        }
        let swap = zram(512 * MIB)?;
        let hierarchy = Hierarchy::discover(&ProcRoot::default()).map_err(|e| e.to_string())?;
        let top = Group::create(name)?;
        let limit = match hierarchy.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => {
                std::fs::write(top.dir.join("cgroup.subtree_control"), "+memory")
                    .map_err(|e| e.to_string())?;
                "memory.max"
            }
        };
        let (desk_group, hog_group) = (top.below("desk"), top.below("hog"));
        std::fs::write(top.dir.join(limit), LIMIT_BYTES.to_string()).unwrap();
        Ok(Scene {
            desk: exerciser(&desk_group, "72M"),
            hog: exerciser(&hog_group, "160M"),
            hog_group,
            _desk_group: desk_group,
            top,
            _swap: swap,
            version: hierarchy.version,
        })
    }

    pub fn config(&self, up_to: &str, more: &str) -> String {
        format!(
            "[observe]\ncgroups = ['{0}/**']\ntick = '1s'\ncpu_percent = 50\n\
             [protect]\ncgroups = ['{0}/desk']\nup_to = '{up_to}'\n{more}",
            self.top.path,
        )
    }

    /// The current limit of the hog's memory.
    pub fn limit(&self) -> String {
        let file = match self.version {
            Version::V1 => "memory.soft_limit_in_bytes",
            Version::V2 => "memory.high",
        };
        std::fs::read_to_string(self.hog_group.dir.join(file)).unwrap()
    }

    pub fn hog_runs(&self) -> bool {
        runs(self.hog.pid())
    }
}

/// An exerciser in a cgroup that touches all of its memory equally. Its rate is limited: if every
/// page were touched again within milliseconds, the kernel would find nothing to reclaim and kill
/// it.
pub fn exerciser(group: &Group, size: &str) -> Spawned {
    let entrance: File = OpenOptions::new()
        .write(true)
        .open(group.dir.join("cgroup.procs"))
        .unwrap();
    let line = format!("--size {size} --pattern uniform --rate 20000 --no-final-check");
    let arguments = words(&line);
    Spawned::start_in(Path::new(AGEWISE), arguments, Some(&entrance), None).unwrap()
}
