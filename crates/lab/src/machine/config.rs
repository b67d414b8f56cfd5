// SPDX-License-Identifier: Apache-2.0
//! What a simulated machine is made of.

use agewise_engine::lru::Mode;
use agewise_engine::mglru::profile::{PROFILES, Profile, V7_2};
use agewise_engine::refault_distance::Rule;
use thiserror::Error;

use super::cost::CostModel;
use super::device::{DeviceKind, DeviceModel};

/// Which LRU decides, as a kernel version does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Multi-gen; else classic.
    pub multi_gen: bool,
    /// The kernel version.
    pub profile: &'static Profile,
    /// Refaults are judged by the refault-distance rework (`+rd`).
    pub refault_distance: Option<Rule>,
}

/// The refault-distance rule and what it is without one of its parts, by suffix.
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

/// The name is no policy.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "unknown policy `{0}`: classic or mglru, with refault distance classic+rd or mglru+rd (without \
     one of its parts +rd-holes, +rd-active, +rd-eviction), and :VERSION of the kernel"
)]
pub struct UnknownPolicy(pub String);

impl Policy {
    /// All policies by name, the classic LRU first.
    pub fn names() -> Vec<String> {
        let mut names = vec!["classic".to_owned(), "classic+rd".to_owned()];
        names.extend(
            PROFILES
                .iter()
                .map(|profile| format!("mglru:{}", profile.name)),
        );
        names.push(format!("mglru+rd:{}", V7_2.name));
        names
    }

    /// The policy of a name: `classic`, `classic:6.12`, `mglru`, `mglru:7.2`, `classic+rd`,
    /// `mglru+rd:6.12` and so on.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn parse(text: &str) -> Result<Policy, UnknownPolicy> {
        let unknown = || UnknownPolicy(text.to_owned());
        let (family, version) = text.split_once(':').unwrap_or((text, V7_2.name));
        let (family, rule) = match family.split_once('+') {
            Some((family, suffix)) => {
                let rule = RULES.iter().find(|(name, _)| *name == suffix);
                (family, Some(rule.ok_or_else(unknown)?.1))
            }
            None => (family, None),
        };
        let multi_gen = match family {
            "classic" => false,
            "mglru" => true,
            _ => return Err(unknown()),
        };
        let profile = Profile::by_name(version).ok_or_else(unknown)?;
        Ok(Policy {
            multi_gen,
            profile,
            refault_distance: rule,
        })
    }

    /// Its name.
    pub fn name(&self) -> String {
        let rule = RULES
            .iter()
            .find(|(_, rule)| Some(*rule) == self.refault_distance);
        let suffix = rule.map_or(String::new(), |(suffix, _)| format!("+{suffix}"));
        match (self.multi_gen, self.profile.name == V7_2.name) {
            (true, _) => format!("mglru{suffix}:{}", self.profile.name),
            (false, true) => format!("classic{suffix}"),
            (false, false) => format!("classic{suffix}:{}", self.profile.name),
        }
    }

    /// The mode of the engine.
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
    /// The device.
    pub device: DeviceModel,
    /// Its size in pages.
    pub pages: u32,
    /// How much pages shrink, where the device is compressed memory.
    pub compression: Option<f64>,
}

impl SwapConfig {
    /// A device of a kind with room for `pages`; zram data shrinks to a third.
    pub fn new(kind: DeviceKind, pages: u32) -> SwapConfig {
        SwapConfig {
            device: kind.model(),
            pages,
            compression: (kind == DeviceKind::Zram).then_some(3.0),
        }
    }
}

/// A simulated machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Page frames of the whole machine.
    pub pages: u32,
    /// NUMA nodes; the frames are shared out evenly.
    pub nodes: u32,
    /// CPUs.
    pub cpus: usize,
    /// Swap, if there is any.
    pub swap: Option<SwapConfig>,
    /// Where files lie.
    pub file_device: DeviceModel,
    /// Which LRU decides.
    pub policy: Policy,
    /// Seed of the policies' random choices.
    pub seed: u64,
    /// Prices of CPU work.
    pub cost: CostModel,
    /// Period of the flush of memcg statistics (2 s in the kernel); 0: they are always exact.
    pub stat_flush_ns: u64,
    /// Time of the first flush.
    pub stat_flush_phase_ns: u64,
    /// `vm.swappiness`, 0..=200.
    pub swappiness: u32,
    /// `vm.min_free_kbytes`; 0: the kernel's own rule.
    pub min_free_kbytes: u64,
    /// `vm.watermark_scale_factor`.
    pub watermark_scale_factor: u64,
    /// `vm.dirty_ratio`, percent of memory: writers are throttled.
    pub dirty_ratio: u64,
    /// `vm.dirty_background_ratio`, percent of memory: the flusher starts.
    pub dirty_background_ratio: u64,
    /// Largest read-ahead window in pages; 0 switches it off.
    pub readahead_pages: u32,
    /// Chance that the running process is scheduled between two agings of one reclaim call.
    pub reschedule_chance: f64,
    /// `min_ttl_ms` of the multi-gen LRU.
    pub min_ttl_ms: u32,
}

impl MachineConfig {
    /// A machine of `pages` frames, one node, one CPU, the default policy and no swap.
    pub fn new(pages: u32) -> MachineConfig {
        MachineConfig {
            pages,
            nodes: 1,
            cpus: 1,
            swap: None,
            file_device: DeviceKind::Nvme.model(),
            policy: Policy {
                refault_distance: None,
                multi_gen: true,
                profile: &V7_2,
            },
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
            min_ttl_ms: 0,
        }
    }

    /// Frames by node and zone: 16 MiB of DMA and DMA32 up to 4 GiB on node 0, the rest normal. A
    /// machine below 256 MiB has one zone, so that small experiments do not measure its corners.
    pub fn zone_pages(&self) -> Vec<[u32; 4]> {
        const DMA: u32 = 4096;
        const DMA32_END: u32 = 1 << 20;
        let nodes = self.nodes.max(1);
        let share = self.pages / nodes;
        (0..nodes)
            .map(|node| {
                let pages = if node == 0 {
                    share + self.pages % nodes
                } else {
                    share
                };
                if node > 0 || pages < 1 << 16 {
                    return [0, 0, pages, 0];
                }
                let low = pages.min(DMA32_END);
                [DMA, low - DMA, pages - low, 0]
            })
            .collect()
    }
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
        for name in ["classic+rd", "classic+rd-holes:6.12", "mglru+rd:7.2"] {
            assert_eq!(Policy::parse(name).unwrap().name(), name);
        }
        for bad in ["", "lru", "mglru:5.0", "classic:", "classic+", "mglru+xy"] {
            assert!(Policy::parse(bad).is_err(), "{bad}");
        }
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
