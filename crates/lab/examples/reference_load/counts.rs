// SPDX-License-Identifier: Apache-2.0
//! Counts taken by the kernel.

use std::fs;
use std::time::Instant;

use super::{PAGE, Result};

/// Counters of `memory.stat` that are part of a row.
pub const COUNTED: [&str; 6] = [
    "pgscan",
    "pgsteal",
    "pgscan_kswapd",
    "pgsteal_kswapd",
    "workingset_refault_anon",
    "workingset_refault_file",
];

/// The kernel's counts for this process and its cgroup.
pub struct Counts {
    pub major_faults: u64,
    pub read_pages: u64,
    pub counted: [u64; COUNTED.len()],
    pub allocstall: u64,
    pub at: Instant,
}

impl Counts {
    pub fn take(cgroup: &str) -> Result<Self> {
        // Writing this file brings the counters of all CPUs together.
        let _ = fs::write("/proc/sys/vm/stat_refresh", "1");
        let stat = fs::read_to_string("/proc/self/stat")?;
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let major_faults = after_name.split_whitespace().nth(9).ok_or("no majflt")?;
        let io = fs::read_to_string("/proc/self/io")?;
        let of_cgroup = fs::read_to_string(format!("{cgroup}/memory.stat"))?;
        let mut counted = [0; COUNTED.len()];
        for (count, name) in counted.iter_mut().zip(COUNTED) {
            *count = sum(&of_cgroup, |word| word == name)?;
        }
        Ok(Counts {
            major_faults: major_faults.parse()?,
            read_pages: sum(&io, |word| word == "read_bytes:")? / PAGE as u64,
            counted,
            allocstall: sum(&fs::read_to_string("/proc/vmstat")?, |word| {
                word.starts_with("allocstall_")
            })?,
            at: Instant::now(),
        })
    }
}

/// Sum of the values of all lines with a wanted name.
fn sum(text: &str, wanted: impl Fn(&str) -> bool) -> Result<u64> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let values = lines.filter(|(name, _)| wanted(name));
    Ok(values
        .map(|(_, value)| value.trim().parse::<u64>())
        .sum::<std::result::Result<_, _>>()?)
}

/// Free pages of each zone as `1/2/3/4`, for each node, separated by `;`. Pages in per-CPU lists
/// count as free.
pub fn free_pages() -> Result<String> {
    let mut nodes: Vec<[u64; 4]> = Vec::new();
    let mut zone = 0;
    for line in fs::read_to_string("/proc/zoneinfo")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Node", node, "zone", name] => {
                let node: usize = node.trim_end_matches(',').parse()?;
                nodes.resize(nodes.len().max(node + 1), [0; 4]);
                let names = ["DMA", "DMA32", "Normal", "Movable"];
                zone = node * 4 + names.iter().position(|known| *known == name).unwrap_or(3);
            }
            ["pages", "free", pages] | ["count:", pages] => {
                nodes[zone / 4][zone % 4] += pages.parse::<u64>()?;
            }
            _ => {}
        }
    }
    let node = |zones: &[u64; 4]| zones.map(|pages| pages.to_string()).join("/");
    Ok(nodes.iter().map(node).collect::<Vec<_>>().join(";"))
}
