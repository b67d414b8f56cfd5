// SPDX-License-Identifier: Apache-2.0
//! Configuration of a simulated machine: policy, zones, devices, kernel parameters.

use std::path::Path;

use super::kernel::{KERNELS, Kernel};
use agewise_kernel::lru::Mode;
use agewise_kernel::mglru::ablation::Ablation;
use agewise_kernel::reclaim::scope::ListScope;
use agewise_kernel::refault_distance::Rule;
use thiserror::Error;

use super::cost::CostModel;
use super::device::{DeviceKind, DeviceModel};
use super::profile_file::{self, ProfileError, Source};

/// The LRU in use, and the kernel version it behaves like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Multi-gen LRU if true, classic otherwise.
    pub multi_gen: bool,
    /// The kernel version.
    pub kernel: &'static Kernel,
    /// The variant of the refault-distance rework that judges refaults (`+rd`).
    pub refault_distance: Option<Rule>,
    /// Scope of the LRU lists, and how zones share allocations.
    pub arrangement: Arrangement,
}

/// Scope of the LRU lists, and which zone serves an allocation. For the classic LRU only:
/// generations are per node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// Lists per node; the highest zone first (Linux 4.8 and later).
    #[default]
    Node,
    /// Lists per zone; the highest zone first (before 3.12).
    Zone,
    /// Lists per zone; zones take turns by size, so that pages age alike (3.12 to 4.7).
    ZoneFair,
    /// Lists per node, but zones still take turns. No kernel had it; isolates the cost of taking
    /// turns.
    NodeFair,
}

impl Arrangement {
    /// All arrangements with the suffix that selects each.
    const SUFFIXES: [(&str, Arrangement); 4] = [
        ("node", Arrangement::Node),
        ("zone", Arrangement::Zone),
        ("zone+fair", Arrangement::ZoneFair),
        ("node+fair", Arrangement::NodeFair),
    ];

    /// The scope of the LRU lists.
    pub fn list_scope(self) -> ListScope {
        match self {
            Arrangement::Node | Arrangement::NodeFair => ListScope::Node,
            Arrangement::Zone | Arrangement::ZoneFair => ListScope::Zone,
        }
    }

    /// Whether zones take turns to serve allocations.
    pub fn is_fair(self) -> bool {
        matches!(self, Arrangement::ZoneFair | Arrangement::NodeFair)
    }
}

/// The refault-distance rule, whole and without one of its parts, by suffix.
const RULES: [(&str, Rule); 4] = [
    ("rd", Rule::DOCUMENT),
    (
        "rd-holes",
        Rule {
            holes_widen_distance: false,
            ..Rule::DOCUMENT
        },
    ),
    (
        "rd-active",
        Rule {
            long_active_throttles: false,
            ..Rule::DOCUMENT
        },
    ),
    (
        "rd-eviction",
        Rule {
            activations_age: true,
            ..Rule::DOCUMENT
        },
    ),
];

/// A policy that cannot be used.
#[derive(Debug, Error)]
pub enum PolicyError {
    #[error(
        "unknown policy `{0}`: classic or mglru, with refault distance classic+rd or mglru+rd \
         (without one of its parts +rd-holes, +rd-active, +rd-eviction), with lists per zone \
         classic+zone or classic+zone+fair, and :VERSION of the kernel, or mglru:FILE.toml"
    )]
    Unknown(String),
    #[error("`{0}`: profiles are of the multi-gen LRU, mglru:FILE.toml")]
    NotMultiGen(String),
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl Default for Policy {
    /// The multi-gen LRU of the newest kernel.
    fn default() -> Self {
        Policy {
            refault_distance: None,
            arrangement: Arrangement::Node,
            multi_gen: true,
            kernel: Kernel::NEWEST,
        }
    }
}

impl Policy {
    /// All policies by name, the classic LRU first.
    pub fn names() -> Vec<String> {
        let mut names: Vec<String> = ["classic", "classic+rd", "classic+zone", "classic+zone+fair"]
            .map(str::to_owned)
            .into();
        names.extend(
            KERNELS
                .iter()
                .map(|kernel| format!("mglru:{}", kernel.name())),
        );
        names.push(format!("mglru+rd:{}", Kernel::NEWEST.name()));
        names
    }

    /// Parses the name of a policy: `classic`, `classic:6.12`, `mglru`, `mglru:7.2`, `classic+rd`,
    /// `mglru+rd:6.12` and so on, or `mglru:FILE.toml` ([`profile_file`]).
    ///
    /// # Errors
    /// Fails if there is no such policy or the file is invalid.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        Policy::parse_at(text, None)
    }

    /// Like [`Policy::parse`], with the profile if it is not where the name says. The name stays
    /// the same.
    ///
    /// # Errors
    /// The same as those of [`Policy::parse`].
    pub fn parse_at(text: &str, profile: Option<Source<'_>>) -> Result<Policy, PolicyError> {
        let unknown = || PolicyError::Unknown(text.to_owned());
        let (family, version) = text
            .split_once(':')
            .unwrap_or((text, Kernel::NEWEST.name()));
        let (family, suffix) = match family.split_once('+') {
            Some((family, suffix)) => (family, Some(suffix)),
            None => (family, None),
        };
        let named = |suffix: &str| {
            Arrangement::SUFFIXES
                .iter()
                .find(|(name, _)| *name == suffix)
        };
        let (arrangement, rule) = match (suffix, suffix.and_then(named)) {
            (None, _) => (Arrangement::Node, None),
            (Some(_), Some((_, arrangement))) => (*arrangement, None),
            (Some(suffix), None) => {
                let rule = RULES.iter().find(|(name, _)| *name == suffix);
                (Arrangement::Node, Some(rule.ok_or_else(unknown)?.1))
            }
        };
        let multi_gen = match family {
            "classic" => false,
            "mglru" => true,
            _ => return Err(unknown()),
        };
        let kernel = match version.ends_with(".toml") {
            true if multi_gen => {
                let named = Source::File(Path::new(version));
                profile_file::read(version, profile.unwrap_or(named))?
            }
            true => return Err(PolicyError::NotMultiGen(text.to_owned())),
            false => Kernel::by_name(version).ok_or_else(unknown)?,
        };
        if multi_gen && suffix.and_then(named).is_some() {
            return Err(unknown());
        }
        Ok(Policy {
            multi_gen,
            kernel,
            refault_distance: rule,
            arrangement,
        })
    }

    /// Name of the policy, as [`Policy::parse`] reads it.
    pub fn name(&self) -> String {
        let rule = RULES
            .iter()
            .find(|(_, rule)| Some(*rule) == self.refault_distance);
        let arrangement = Arrangement::SUFFIXES
            .iter()
            .find(|(_, known)| *known == self.arrangement && *known != Arrangement::Node);
        let suffix = rule
            .map(|(suffix, _)| suffix)
            .or(arrangement.map(|(suffix, _)| suffix))
            .map_or(String::new(), |suffix| format!("+{suffix}"));
        let version = self.kernel.name();
        match (self.multi_gen, version == Kernel::NEWEST.name()) {
            (true, _) => format!("mglru{suffix}:{version}"),
            (false, true) => format!("classic{suffix}"),
            (false, false) => format!("classic{suffix}:{version}"),
        }
    }

    /// The engine's LRU mode.
    pub fn mode(&self) -> Mode {
        if self.multi_gen {
            Mode::MultiGen
        } else {
            Mode::Classic
        }
    }
}

/// A swap area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapConfig {
    pub device: DeviceModel,
    /// Size in pages.
    pub pages: u32,
    /// Compression ratio, if the device is compressed memory.
    pub compression: Option<f64>,
    /// Whether swap lies on the disk of the files and shares its time; `device` is then unused.
    pub on_file_disk: bool,
}

impl SwapConfig {
    /// A swap area of `pages` pages on a device of this kind; zram compresses data to a third.
    pub fn new(kind: DeviceKind, pages: u32) -> SwapConfig {
        SwapConfig {
            device: kind.model(),
            pages,
            compression: (kind == DeviceKind::Zram).then_some(3.0),
            on_file_disk: false,
        }
    }
}

/// Configuration of a simulated machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Page frames of the whole machine, without those of `slow_pages`.
    pub pages: u32,
    /// NUMA nodes with CPUs; the frames are shared out evenly, unless `zones` says otherwise.
    pub nodes: u32,
    /// Page frames of one more node, without CPUs, whose memory is slow; 0 for none.
    pub slow_pages: u32,
    /// `numa/demotion_enabled`: reclaim moves cold pages to the slow node instead of freeing them.
    pub demotion: bool,
    /// Whether processes take their memory from all nodes in turn (`MPOL_INTERLEAVE`), instead of
    /// from their own first.
    pub interleave: bool,
    /// Managed pages of DMA, DMA32, NORMAL and MOVABLE of each node with CPUs; at most `pages` in
    /// all. If None, [`MachineConfig::zone_pages`] chooses them.
    pub zones: Option<Vec<[u32; 4]>>,
    /// Whether dirty pages found by classic reclaim stay on the inactive list (Linux up to 4.10).
    pub dirty_stays_inactive: bool,
    /// Whether direct reclaim sleeps when it makes no progress (Linux 5.16 and later).
    pub progress_waits: bool,
    /// Factor applied to sizes in bytes before they are judged (inactive ratio), for machines at a
    /// fraction of their real size; 1 for full size.
    pub size_scale: u64,
    pub cpus: usize,
    pub swap: Option<SwapConfig>,
    /// Device of the files.
    pub file_device: DeviceModel,
    /// The LRU in use.
    pub policy: Policy,
    /// Seed of the policies' random choices.
    pub seed: u64,
    /// Costs of CPU work.
    pub cost: CostModel,
    /// Period of the memcg statistics flush (2 s in the kernel); 0 keeps them always exact.
    pub stat_flush_ns: u64,
    /// Time of the first flush.
    pub stat_flush_phase_ns: u64,
    /// `vm.swappiness`, 0..=200.
    pub swappiness: u32,
    /// `vm.min_free_kbytes`; 0 for the kernel's own rule.
    pub min_free_kbytes: u64,
    /// `vm.watermark_scale_factor`.
    pub watermark_scale_factor: u64,
    /// `vm.dirty_ratio`: percentage of memory above which writers are throttled.
    pub dirty_ratio: u64,
    /// `vm.dirty_background_ratio`: percentage of memory above which the flusher starts.
    pub dirty_background_ratio: u64,
    /// Largest read-ahead window in pages; 0 switches it off.
    pub readahead_pages: u32,
    /// Multi-gen LRU only: probability, 0 to 1, that a walk visits a process that has not run since
    /// the previous walk ([`agewise_kernel::mglru::Settings::reschedule_chance`]).
    pub reschedule_chance: f64,
    /// `lru_gen/enabled`: 2 walks, 4 accessed bits of non-leaf entries. `policy` decides about 1.
    pub lru_gen_bits: u32,
    /// Whether the processor sets accessed bits; if not, a fault does (`arch_has_hw_pte_young`).
    pub hw_accessed_bit: bool,
    /// Parts removed from the multi-gen LRU.
    pub ablation: Ablation,
    /// `min_ttl_ms` of the multi-gen LRU.
    pub min_ttl_ms: u32,
    /// Share of accesses since the last scan that an agent with a budget misses: it clears bits
    /// without a TLB flush, and a translation that stays cached does not set them again (measured:
    /// 0 to 0.2 %).
    pub agent_missed: f64,
}

impl MachineConfig {
    /// A machine of `pages` frames, one node, one CPU, the default policy and no swap.
    pub fn new(pages: u32) -> MachineConfig {
        MachineConfig {
            pages,
            nodes: 1,
            slow_pages: 0,
            demotion: false,
            interleave: false,
            zones: None,
            size_scale: 1,
            dirty_stays_inactive: false,
            progress_waits: true,
            cpus: 1,
            swap: None,
            file_device: DeviceKind::Nvme.model(),
            policy: Policy::default(),
            seed: 1,
            cost: CostModel::default(),
            stat_flush_ns: 2_000_000_000,
            stat_flush_phase_ns: 2_000_000_000,
            swappiness: 60,
            min_free_kbytes: 0,
            watermark_scale_factor: 10,
            dirty_ratio: 20,
            dirty_background_ratio: 10,
            readahead_pages: 32,
            reschedule_chance: 0.0,
            lru_gen_bits: 7,
            hw_accessed_bit: true,
            ablation: Ablation::default(),
            min_ttl_ms: 0,
            agent_missed: 0.002,
        }
    }

    /// Frames by node and zone; the slow node has one zone.
    pub fn zone_pages(&self) -> Vec<[u32; 4]> {
        let mut zones = self.fast_zone_pages();
        zones.extend(self.slow_node().map(|_| [0, 0, self.slow_pages, 0]));
        zones
    }

    /// Frames of nodes with CPUs: 16 MiB of DMA and DMA32 up to 4 GiB on node 0, the rest normal. A
    /// machine below 256 MiB has one zone, so that small experiments do not measure corner cases of
    /// zones.
    fn fast_zone_pages(&self) -> Vec<[u32; 4]> {
        if let Some(zones) = &self.zones {
            return zones.clone();
        }
        const DMA: u32 = 4096;
        const DMA32_END: u32 = 1 << 20;
        let nodes = self.nodes.max(1);
        let share = self.pages / nodes;
        (0..nodes)
            .map(|node| {
                let rest = if node == 0 { self.pages % nodes } else { 0 };
                let pages = share + rest;
                if node > 0 || pages < 1 << 16 {
                    return [0, 0, pages, 0];
                }
                let low = pages.min(DMA32_END);
                [DMA, low - DMA, pages - low, 0]
            })
            .collect()
    }

    /// Checks that the given zones fit this machine.
    ///
    /// # Errors
    /// [`ZoneError`] says what is wrong with them.
    pub fn check_zones(&self) -> Result<(), ZoneError> {
        let Some(zones) = &self.zones else {
            return Ok(());
        };
        let managed: u64 = zones.iter().flatten().map(|&pages| u64::from(pages)).sum();
        let movable: u64 = zones.iter().map(|zones| u64::from(zones[3])).sum();
        if zones.len() != self.nodes as usize {
            Err(ZoneError::Nodes {
                zones: zones.len(),
                nodes: self.nodes,
            })
        } else if managed == 0 {
            Err(ZoneError::Empty)
        } else if managed == movable {
            Err(ZoneError::OnlyMovable)
        } else if managed > u64::from(self.pages) {
            Err(ZoneError::TooLarge {
                zones: managed,
                machine: self.pages,
            })
        } else {
            Ok(())
        }
    }
}

/// Zones that no machine can have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ZoneError {
    #[error("every zone is empty: give at least one of dma, dma32 and normal a size")]
    Empty,
    /// All memory is movable; the kernel has none for itself.
    #[error("all memory is movable: the kernel needs some of dma, dma32 or normal for itself")]
    OnlyMovable,
    #[error("zones of {zones} pages do not fit into a machine of {machine}: set machine_memory")]
    TooLarge { zones: u64, machine: u32 },
    #[error("the zones are those of {zones} node(s), and the machine has {nodes}")]
    Nodes { zones: usize, nodes: u32 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_back() {
        for name in Policy::names() {
            assert_eq!(Policy::parse(&name).unwrap().name(), name);
        }
        assert_eq!(Policy::parse("mglru").unwrap().name(), "mglru:7.2");
        assert_eq!(
            Policy::parse("classic:6.12").unwrap().name(),
            "classic:6.12"
        );
        assert_eq!(Policy::parse("classic+node").unwrap().name(), "classic");
        for name in [
            "classic+rd",
            "classic+rd-holes:6.12",
            "mglru+rd:7.2",
            "classic+zone:6.12",
            "classic+zone+fair:6.12",
            "classic+node+fair",
        ] {
            assert_eq!(Policy::parse(name).unwrap().name(), name);
        }
        for bad in [
            "",
            "lru",
            "mglru:5.0",
            "classic:",
            "classic+",
            "mglru+xy",
            "mglru+zone",
            "classic+fair",
            "classic+zone+rd",
        ] {
            assert!(Policy::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zones_that_cannot_be_are_told() {
        let check = |pages: u32, zones: [u32; 4], nodes: u32| {
            let mut config = MachineConfig::new(pages);
            (config.zones, config.nodes) = (Some(vec![zones]), nodes);
            config.check_zones()
        };
        assert_eq!(check(100, [0, 0, 100, 0], 1), Ok(()));
        // A machine below 4 GiB has no NORMAL zone.
        assert_eq!(check(100, [16, 84, 0, 0], 1), Ok(()));
        // Some memory may be kept by the firmware.
        assert_eq!(check(100, [0, 0, 90, 0], 1), Ok(()));
        assert_eq!(check(100, [0; 4], 1), Err(ZoneError::Empty));
        assert_eq!(check(100, [0, 0, 0, 100], 1), Err(ZoneError::OnlyMovable));
        let of_one = check(100, [0, 0, 100, 0], 2).unwrap_err();
        assert!(of_one.to_string().contains("1 node(s)"), "{of_one}");
        let too_large = check(100, [0, 50, 51, 0], 1).unwrap_err();
        assert!(too_large.to_string().contains("101 pages"), "{too_large}");
        let huge = check(u32::MAX, [u32::MAX, 1, 0, 0], 1);
        assert!(matches!(huge, Err(ZoneError::TooLarge { .. })));
    }

    #[test]
    fn no_frame_is_lost_between_zones() {
        for (pages, nodes) in [(1000, 1), (262_144, 1), (3_000_001, 2), (1 << 24, 4)] {
            let mut config = MachineConfig::new(pages);
            config.nodes = nodes;
            let sum: u32 = config.zone_pages().iter().flatten().sum();
            assert_eq!(sum, pages);
        }
    }
}
