// SPDX-License-Identifier: Apache-2.0
//! The kernel's multi-gen LRU: whole generations of memory cgroups.

use super::{Open, Source, line};
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};
use crate::kernel_source::GenerationSource;

pub(super) static SOURCE: Source = Source {
    name: "lru_gen",
    about: "The kernel's multi-gen LRU: whole generations, for --cgroup and --all. It \
            distinguishes two of the --intervals that fit into the observation, and ages the \
            cgroups for that",
    open: Open::Histograms(|roots, targets, ages| {
        let (intervals, window_ms) = (&ages.intervals, ages.window_ms);
        let source = GenerationSource::open(roots, targets, intervals, ages.oldest, window_ms)?;
        Ok(Box::new(source))
    }),
    large_pages: true,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    match &facts.lru_gen {
        Ok(None) => line(name, State::Missing, "the kernel has no multi-gen LRU")
            .advise("use a kernel built with CONFIG_LRU_GEN=y"),
        Ok(Some(false)) => line(
            name,
            State::Missing,
            "the multi-gen LRU is built in and switched off",
        )
        .advise("echo y > /sys/kernel/mm/lru_gen/enabled"),
        Ok(Some(_)) if facts.lru_gen_debugfs => line(
            name,
            State::Available,
            "the kernel's own generations, by cgroup and node: report --source lru_gen",
        ),
        Ok(Some(_)) if facts.debugfs_mounted => line(
            name,
            State::Missing,
            "/sys/kernel/debug/lru_gen cannot be seen",
        )
        .advise("run as root"),
        Ok(Some(_)) => line(name, State::Missing, "debugfs is not mounted")
            .advise("mount -t debugfs debugfs /sys/kernel/debug"),
        Err(error) => line(name, State::Missing, error.to_string()).advise("run as root"),
    }
    .since("6.1")
}
