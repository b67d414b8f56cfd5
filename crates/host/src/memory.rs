// SPDX-License-Identifier: Apache-2.0
//! The machine's memory: `/proc/meminfo`, NUMA nodes, and the zones with their watermarks and the
//! page frames they span.

use std::path::Path;

use crate::access::pages_per_kernel_page;
use crate::error::{self, FileError};
use crate::process::kib;
use crate::root::{ProcRoot, SysRoot};

/// `/proc/meminfo`, or the meminfo of one node (without swap and `available`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// Usable memory.
    pub total_bytes: u64,
    /// Free pages.
    pub free_bytes: u64,
    /// The kernel's estimate of memory available without swapping; 0 for a node.
    pub available_bytes: u64,
    /// Page cache, tmpfs included.
    pub file_bytes: u64,
    /// Mapped anonymous memory.
    pub anon_bytes: u64,
    /// Mapped page cache.
    pub mapped_bytes: u64,
    /// tmpfs and shared memory.
    pub shmem_bytes: u64,
    /// Swap space.
    pub swap_total_bytes: u64,
    /// Free swap space.
    pub swap_free_bytes: u64,
    /// Memory that is resident and also still has its place in swap.
    pub swap_cached_bytes: u64,
}

impl MemInfo {
    /// Reads the values of the whole machine.
    pub fn of_machine(root: &ProcRoot) -> Result<Self, FileError> {
        let path = root.join("meminfo");
        Self::parse(&path, &error::read(&path)?)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let mut info = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let field = match key {
                "MemTotal" => &mut info.total_bytes,
                "MemFree" => &mut info.free_bytes,
                "MemAvailable" => &mut info.available_bytes,
                "Cached" => &mut info.file_bytes,
                "AnonPages" => &mut info.anon_bytes,
                "Mapped" => &mut info.mapped_bytes,
                "Shmem" => &mut info.shmem_bytes,
                "SwapTotal" => &mut info.swap_total_bytes,
                "SwapFree" => &mut info.swap_free_bytes,
                "SwapCached" => &mut info.swap_cached_bytes,
                _ => continue,
            };
            *field = kib(path, line, value)?;
        }
        if info.total_bytes == 0 {
            return Err(FileError::format(path, "MemTotal", text));
        }
        Ok(info)
    }
}

/// The online NUMA nodes, ascending; `[0]` on a kernel without NUMA.
pub fn online_nodes(root: &SysRoot) -> Result<Vec<u32>, FileError> {
    let path = root.join("devices/system/node/online");
    match error::read_optional(&path)? {
        None => Ok(vec![0]),
        Some(text) => {
            parse_list(text.trim()).ok_or_else(|| FileError::format(&path, "0-1,3", &text))
        }
    }
}

/// Parses a list of ranges as sysfs prints them. Node numbers are below 1024 (`MAX_NUMNODES`).
fn parse_list(text: &str) -> Option<Vec<u32>> {
    const NODES_MAX: u32 = 1024;
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last || last >= NODES_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// One zone of `/proc/zoneinfo`. All counts are in pages of 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The NUMA node.
    pub node: u32,
    /// DMA, DMA32, Normal, Movable, Device.
    pub name: String,
    pub free_pages: u64,
    /// Below it, only emergency allocations of the kernel succeed.
    pub watermark_min_pages: u64,
    /// Below it, kswapd wakes up.
    pub watermark_low_pages: u64,
    /// kswapd reclaims until it is reached.
    pub watermark_high_pages: u64,
    /// Pages managed by the page allocator; 0 for an empty zone.
    pub managed_pages: u64,
    /// First page frame.
    pub start_pfn: u64,
    /// Length in page frames, holes included.
    pub spanned_pages: u64,
}

impl Zone {
    /// Reads all zones, in the kernel's order.
    pub fn all(root: &ProcRoot) -> Result<Vec<Self>, FileError> {
        let path = root.join("zoneinfo");
        let mut zones = Self::parse(&path, &error::read(&path)?)?;
        let pages = pages_per_kernel_page();
        for count in zones.iter_mut().flat_map(Self::counts) {
            *count = count.saturating_mul(pages);
        }
        Ok(zones)
    }

    fn counts(&mut self) -> [&mut u64; 7] {
        [
            &mut self.free_pages,
            &mut self.watermark_min_pages,
            &mut self.watermark_low_pages,
            &mut self.watermark_high_pages,
            &mut self.managed_pages,
            &mut self.start_pfn,
            &mut self.spanned_pages,
        ]
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<Self>, FileError> {
        let mut zones: Vec<Self> = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("Node ") {
                let (node, name) = rest
                    .split_once(", zone")
                    .and_then(|(node, name)| Some((node.parse().ok()?, name.trim().to_owned())))
                    .ok_or_else(|| FileError::format(path, "Node N, zone NAME", line))?;
                zones.push(Self {
                    node,
                    name,
                    ..Self::default()
                });
                continue;
            }
            let Some(zone) = zones.last_mut() else {
                continue;
            };
            let mut words = line.split_ascii_whitespace();
            let field = match (words.next(), words.clone().count()) {
                // "pages free 12"; the other lines of the block have one word before the number.
                (Some("pages"), 2) => {
                    words.next();
                    &mut zone.free_pages
                }
                (Some("min"), 1) => &mut zone.watermark_min_pages,
                (Some("low"), 1) => &mut zone.watermark_low_pages,
                (Some("high"), 1) => &mut zone.watermark_high_pages,
                (Some("managed"), 1) => &mut zone.managed_pages,
                (Some("spanned"), 1) => &mut zone.spanned_pages,
                (Some("start_pfn:"), 1) => &mut zone.start_pfn,
                _ => continue,
            };
            *field = words
                .next()
                .and_then(|n| n.parse().ok())
                .ok_or_else(|| FileError::format(path, "a number of pages", line))?;
        }
        Ok(zones)
    }
}

/// Maps a page frame to its NUMA node, by the spans of the zones.
///
/// Spans of different nodes interleave on a few machines. A frame in several spans belongs to the
/// one that starts last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    /// `(first frame, frame after the last, node)`, ascending.
    spans: Vec<(u64, u64, u32)>,
}

impl NodeMap {
    /// Builds the map from the zones of the machine.
    pub fn new(zones: &[Zone]) -> Self {
        let mut spans: Vec<(u64, u64, u32)> = zones
            .iter()
            .filter(|zone| zone.managed_pages > 0 && zone.spanned_pages > 0)
            .map(|z| {
                (
                    z.start_pfn,
                    z.start_pfn.saturating_add(z.spanned_pages),
                    z.node,
                )
            })
            .collect();
        spans.sort_unstable();
        Self { spans }
    }

    /// Returns the node of a frame; `None` outside all zones.
    pub fn node_of(&self, pfn: u64) -> Option<u32> {
        let after = self.spans.partition_point(|&(start, _, _)| start <= pfn);
        self.spans[..after]
            .iter()
            .rev()
            .find(|&&(_, end, _)| pfn < end)
            .map(|&(_, _, node)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_machine_parse() {
        let path = Path::new("meminfo");
        let machine = "MemTotal:       100 kB\nMemFree:  50 kB\nMemAvailable: 60 kB\nCached: 7 kB\n\
                       AnonPages: 8 kB\nSwapTotal: 9 kB\nSwapFree: 3 kB\n\
                       SwapCached: 1 kB\nHugePages_Total:       0\n";
        let info = MemInfo::parse(path, machine).unwrap();
        assert_eq!((info.total_bytes, info.available_bytes), (102_400, 61_440));
        assert_eq!((info.swap_total_bytes, info.swap_free_bytes), (9216, 3072));
        assert_eq!(info.swap_cached_bytes, 1024);
        assert!(MemInfo::parse(path, "").is_err());
        assert!(MemInfo::parse(path, "MemTotal: lots\n").is_err());
    }

    #[test]
    fn node_lists_parse_within_bounds() {
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        for bad in ["", "2-1", "0-4294967295", "x", "1-"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    const ZONES: &str = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 3022\n  \
        pages free     3840\n        boost    0\n        min      15\n        low      18\n        \
        high     21\n        spanned  4095\n        present  3998\n        managed  3840\n        \
        protection: (0, 2951)\n      nr_free_pages 3840\n  pagesets\n    cpu: 0\n              \
        high:  0\n  start_pfn:           1\n\
        Node 1, zone   Normal\n  pages free 7\n        spanned  100\n        managed  90\n  \
        start_pfn:           4096\nNode 1, zone  Movable\n  pages free     0\n        spanned  0\n";

    #[test]
    fn zones_and_the_nodes_of_frames() {
        let zones = Zone::parse(Path::new("zoneinfo"), ZONES).unwrap();
        assert_eq!(zones.len(), 3);
        let dma = &zones[0];
        assert_eq!(
            (dma.node, dma.name.as_str(), dma.free_pages),
            (0, "DMA", 3840)
        );
        let watermarks = (
            dma.watermark_min_pages,
            dma.watermark_low_pages,
            dma.watermark_high_pages,
        );
        assert_eq!(watermarks, (15, 18, 21));
        let map = NodeMap::new(&zones);
        let nodes = [0, 1, 4095, 4096, 4195, 4196].map(|pfn| map.node_of(pfn));
        assert_eq!(nodes, [None, Some(0), Some(0), Some(1), Some(1), None]);
    }

    #[test]
    fn this_machine_reads() {
        let (proc, sys) = (ProcRoot::default(), SysRoot::default());
        let info = MemInfo::of_machine(&proc).unwrap();
        assert!(info.free_bytes <= info.total_bytes);
        let nodes = online_nodes(&sys).unwrap();
        let zones = Zone::all(&proc).unwrap();
        assert!(zones.iter().all(|zone| nodes.contains(&zone.node)));
        assert!(zones.iter().any(|zone| zone.managed_pages > 0));
    }
}
