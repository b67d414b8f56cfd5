// SPDX-License-Identifier: Apache-2.0
//! The kernel's two LRUs as pools: the engine's policies in a memory cgroup of the simulated
//! machine, with the capacity as `memory.max`.
//!
//! As *page cache*, every access reads one page through a file descriptor: the policies see each
//! access. As *mapped* memory, the pages are mapped and accesses only set accessed bits, which the
//! policies find when they scan. A miss is an access that reads from the device. There is no
//! read-ahead, and the machine around the cgroup has memory to spare.
//!
//! The limit applies to the whole cgroup, as on a real machine: nodes of the page cache are charged
//! too, reclaim works in batches of 32 pages and charging in batches of 64. Pools below some 500
//! pages measure mostly these effects. Pages are laid out in the order of their first accesses.

use agewise_kernel::ids::MemcgId;

use crate::machine::address_space::{Advice, Backing, MapOptions};
use crate::machine::profile_file::Source;
use crate::machine::{self, Access, FileId, Limits, Machine, MachineConfig, ProcessId};
use agewise_trace::DenseTrace;
use agewise_trace::yardstick::{
    Counts, Policy, PolicySpec, Simulation, Yardstick, count_misses_among,
};

macro_rules! kernel_policy {
    ($name:ident, $text:literal, $alias:expr, $policy:literal, $mapped:literal,
     $summary:literal) => {
        pub(crate) static $name: PolicySpec = PolicySpec {
            name: $text,
            aliases: $alias,
            summary: $summary,
            simulation: Simulation::OnlineFrom(CAPACITY_MIN, |capacity| {
                let policy = machine::Policy::parse($policy);
                let policy = policy.unwrap_or_default();
                Box::new(KernelPool::new(capacity, policy, $mapped))
            }),
        };
    };
}

kernel_policy!(
    CLASSIC,
    "classic",
    &[],
    "classic",
    false,
    "the kernel's active and inactive lists, as page cache"
);
kernel_policy!(
    CLASSIC_MAPPED,
    "classic-mapped",
    &[],
    "classic",
    true,
    "the kernel's active and inactive lists, as mapped memory"
);
kernel_policy!(
    MGLRU_6_12,
    "mglru-6.12",
    &[],
    "mglru:6.12",
    false,
    "the multi-gen LRU of Linux 6.12, as page cache"
);
kernel_policy!(
    MGLRU_6_12_MAPPED,
    "mglru-6.12-mapped",
    &[],
    "mglru:6.12",
    true,
    "the multi-gen LRU of Linux 6.12, as mapped memory"
);
kernel_policy!(
    MGLRU_7_2,
    "mglru-7.2",
    &["mglru"],
    "mglru:7.2",
    false,
    "the multi-gen LRU of Linux 7.2, as page cache"
);
kernel_policy!(
    MGLRU_7_2_MAPPED,
    "mglru-7.2-mapped",
    &["mglru-mapped"],
    "mglru:7.2",
    true,
    "the multi-gen LRU of Linux 7.2, as mapped memory"
);

/// A policy of the machine by name, optionally with a custom profile, as page cache or as mapped
/// memory.
#[derive(Clone, Debug)]
pub(crate) struct KernelPolicy {
    name: String,
    policy: machine::Policy,
    mapped: bool,
}

impl KernelPolicy {
    /// Parses `mglru:FILE.toml` or `mglru-mapped:FILE.toml`; `profile` is the file if it is
    /// not where the name says.
    ///
    /// # Errors
    /// Describes what is wrong with the file.
    pub fn parse(name: &str, profile: Option<Source<'_>>) -> Result<KernelPolicy, String> {
        let (plain, mapped) = match name.strip_prefix("mglru-mapped:") {
            Some(file) => (format!("mglru:{file}"), true),
            None => (name.to_owned(), false),
        };
        let policy = machine::Policy::parse_at(&plain, profile);
        Ok(KernelPolicy {
            policy: policy.map_err(|error| error.to_string())?,
            name: name.to_owned(),
            mapped,
        })
    }
}

impl Yardstick for KernelPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
        count_misses_among(trace, capacity, counts, |pages| {
            Box::new(KernelPool::new(pages, self.policy, self.mapped))
        })
    }

    fn capacity_min(&self) -> usize {
        CAPACITY_MIN
    }

    fn source_sha256(&self) -> Option<&str> {
        self.policy.kernel.sha256
    }

    fn source_text(&self) -> Option<&str> {
        self.policy.kernel.text
    }
}

/// A cgroup needs at least this much: a batch of charges, and the pages on their way to the lists.
const CAPACITY_MIN: usize = 64;

struct KernelPool {
    machine: Machine,
    memcg: MemcgId,
    process: ProcessId,
    mapped: bool,
    /// The files of the pages, one for each reservation.
    segments: Vec<Segment>,
}

/// Pages reserved together.
struct Segment {
    first_page: u32,
    pages: u32,
    file: FileId,
    first_vpn: u64,
}

impl KernelPool {
    fn new(capacity: usize, policy: machine::Policy, mapped: bool) -> Self {
        let capacity = u32::try_from(capacity.max(CAPACITY_MIN)).unwrap_or(u32::MAX / 2);
        // Enough free memory that the machine's watermarks never matter.
        let frames = capacity
            .saturating_add(capacity / 4)
            .saturating_add(32 << 10);
        let mut config = MachineConfig::new(frames);
        config.policy = policy;
        config.readahead_pages = 0;
        let mut machine = Machine::new(config);
        let limits = Limits {
            max_pages: capacity.into(),
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "pool", limits);
        let process = machine.add_process(memcg);
        Self {
            machine,
            memcg,
            process,
            mapped,
            segments: Vec::new(),
        }
    }

    fn reserved(&self) -> usize {
        self.segments
            .last()
            .map_or(0, |last| last.first_page as usize + last.pages as usize)
    }
}

impl Policy for KernelPool {
    fn reserve(&mut self, page_count: usize) {
        let first_page = self.reserved();
        let Some(more) = page_count.checked_sub(first_page).filter(|&more| more > 0) else {
            return;
        };
        // Page numbers have 32 bits, so lengths do too.
        let pages = more as u32;
        let file = self.machine.add_file(pages, self.memcg, Advice::Normal);
        let first_vpn = if self.mapped {
            let backing = Backing::File {
                file: file.number(),
                first_page: 0,
            };
            let options = MapOptions {
                backing,
                ..MapOptions::anon(pages.into())
            };
            // An address space has room for 2^35 pages, and page numbers have 32 bits.
            self.machine.map(self.process, &options).unwrap_or(0)
        } else {
            0
        };
        self.segments.push(Segment {
            first_page: first_page as u32,
            pages,
            file,
            first_vpn,
        });
    }

    fn access(&mut self, page: u32) -> bool {
        let behind = self
            .segments
            .partition_point(|segment| segment.first_page <= page);
        let segment = &self.segments[behind - 1];
        let index = page - segment.first_page;
        let outcome = if self.mapped {
            self.machine
                .access(self.process, segment.first_vpn + u64::from(index), false)
        } else {
            self.machine.read(self.process, segment.file, index, 1)
        };
        debug_assert!(
            !matches!(outcome, Access::Invalid | Access::Killed),
            "{outcome:?}"
        );
        matches!(outcome, Access::Hit | Access::Minor)
    }

    fn resident_pages(&self) -> usize {
        self.machine.usage_pages(self.memcg) as usize
    }
}

#[cfg(test)]
mod tests {
    use crate::yardstick::by_name;
    use agewise_trace::DenseTrace;

    const NAMES: [&str; 6] = [
        "classic",
        "classic-mapped",
        "mglru-6.12",
        "mglru-6.12-mapped",
        "mglru-7.2",
        "mglru-7.2-mapped",
    ];

    /// A loop over half the pool misses once per page under any policy.
    #[test]
    fn what_fits_is_kept() {
        let pages: Vec<u64> = (0..2000).cycle().take(20_000).collect();
        let trace = DenseTrace::from_pages(&pages);
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().misses(&trace, 4000), 2000, "{name}");
        }
    }

    /// A hot set of 1000 pages is accessed between pieces of a long scan: under any policy most of
    /// its accesses hit in a pool of 4000, and none beats OPT.
    #[test]
    fn a_hot_set_survives_a_scan() {
        let mut pages = Vec::new();
        for round in 0..40u64 {
            pages.extend(0..1000u64);
            pages.extend((0..1000).map(|at| 10_000 + round * 1000 + at));
        }
        let trace = DenseTrace::from_pages(&pages);
        let best = by_name("opt").unwrap().misses(&trace, 4000);
        assert_eq!(best, 41_000);
        for name in NAMES {
            let misses = by_name(name).unwrap().misses(&trace, 4000);
            assert!((best..60_000).contains(&misses), "{name}: {misses}");
        }
    }
}
