// SPDX-License-Identifier: Apache-2.0
//! Settings of the machine by name, as in `--set key=value`.

use agewise_kernel::mglru::ablation::{Ablation, Part};
use agewise_policy::table::PAGE_BYTES;
use agewise_policy::units::size_bytes;
use agewise_trace::suggest::{nearest, question};
use thiserror::Error;

use crate::machine::config::MachineConfig;
use crate::machine::device::DeviceKind;
use crate::machine::zone::ZONE_NAMES;

/// An invalid setting.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingError {
    /// It is not of the form `key=value`.
    #[error("`{0}` is not of the form key=value")]
    Form(String),
    #[error("unknown setting `{key}`{}", question(*.nearest))]
    Unknown {
        key: String,
        nearest: Option<&'static str>,
    },
    #[error("setting {key}: `{value}` is not {expected}")]
    Value {
        key: &'static str,
        value: String,
        expected: &'static str,
    },
}

/// A setting: its name, description and accepted values.
pub struct Setting {
    /// Name.
    pub key: &'static str,
    /// What it changes, with its default.
    pub description: &'static str,
    expected: &'static str,
    apply: fn(&mut MachineConfig, &str) -> Option<()>,
}

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn number<T: std::str::FromStr + PartialOrd>(text: &str, low: T, high: T) -> Option<T> {
    let value = text.parse().ok();
    value.filter(|value| *value >= low && *value <= high)
}

/// Zones by name and size: `dma=64K,dma32=16M,normal=48M`.
fn zone_sizes(text: &str) -> Option<[u32; 4]> {
    let mut zones = [None; 4];
    for part in text.split(',') {
        let (name, size) = part.split_once('=')?;
        let is_it = |known: &&str| known.eq_ignore_ascii_case(name.trim());
        let zone = ZONE_NAMES.iter().position(is_it)?;
        let pages = size_bytes(size).ok()? / PAGE_BYTES;
        if zones[zone].replace(u32::try_from(pages).ok()?).is_some() {
            return None;
        }
    }
    Some(zones.map(Option::unwrap_or_default))
}

/// Parts of the multi-gen LRU to switch off.
fn ablation(text: &str) -> Option<Ablation> {
    let named = text.split(',').filter(|name| *name != "none");
    named.map(Part::by_name).collect()
}

/// A size from one page to `most`, in pages.
fn pages(text: &str, most: u32) -> Option<u32> {
    let pages = u32::try_from(size_bytes(text).ok()? / PAGE_BYTES).ok();
    pages.filter(|pages| (1..=most).contains(pages))
}

fn flag(text: &str) -> Option<bool> {
    number(text, 0u32, 1).map(|value| value == 1)
}

/// A setting that is on or off.
macro_rules! flag {
    ($key:ident: $description:literal) => {
        Setting {
            key: stringify!($key),
            description: $description,
            expected: "0 or 1",
            apply: |config, text| put(&mut config.$key, flag(text)),
        }
    };
}

/// A setting that is a number.
macro_rules! number {
    ($key:ident: $low:literal..=$high:literal, $description:literal) => {
        Setting {
            key: stringify!($key),
            description: $description,
            expected: concat!("a number from ", $low, " to ", $high),
            apply: |config, text| put(&mut config.$key, number(text, $low, $high)),
        }
    };
}

/// A setting for a cost of the cost model.
macro_rules! price {
    ($key:ident: $description:literal) => {
        Setting {
            key: stringify!($key),
            description: $description,
            expected: "a number of nanoseconds up to 1000000000",
            apply: |config, text| put(&mut config.cost.$key, number(text, 0, 1_000_000_000)),
        }
    };
}

/// A period in microseconds, at most 1000 s, as nanoseconds.
fn period(text: &str) -> Option<u64> {
    number(text, 0, 1_000_000_000).map(|us: u64| us * 1000)
}

/// The time of a request to a device in microseconds, at most 1 s like every price, as nanoseconds:
/// sums of more over a run would not fit in 64 bits.
fn request(text: &str) -> Option<u64> {
    number(text, 0, 1_000_000).map(|us: u64| us * 1000)
}

pub const SETTINGS: &[Setting] = &[
    number!(cpus: 1..=1024, "CPUs of the machine; processes are spread over them (the workload's)"),
    number!(nodes: 1..=64, "NUMA nodes; memory is shared out evenly (1)"),
    flag!(interleave: "1: memory is interleaved over the nodes instead of local (0)"),
    Setting {
        key: "zones",
        description: "sizes of zones of one node, as dma=64K,dma32=16M,normal=48M,movable=0 (by \
                      size of memory)",
        expected: "zones dma, dma32, normal or movable, each once, with sizes",
        apply: |config, text| put(&mut config.zones, zone_sizes(text).map(|of| Some(vec![of]))),
    },
    Setting {
        key: "slow_memory",
        description: "memory of a further node, without CPUs and slow, as CXL memory (none)",
        expected: "a size from 4K to 256G",
        apply: |config, text| put(&mut config.slow_pages, pages(text, 1 << 26)),
    },
    flag!(demotion: "numa/demotion_enabled: 1: reclaim moves cold pages to slow_memory first (0)"),
    number!(size_scale: 1..=1_000_000,
        "what sizes are multiplied by before classic judges them, for scaled machines (1)"),
    flag!(dirty_stays_inactive:
        "1: classic leaves dirty pages on the inactive list, as Linux up to 4.10 (0)"),
    flag!(progress_waits:
        "0: direct reclaim never sleeps for want of progress, as Linux up to 5.15 (1)"),
    number!(swappiness: 0..=200, "vm.swappiness (60)"),
    Setting {
        key: "min_ttl_ms",
        description: "lru_gen/min_ttl_ms: kill rather than evict what was used since (0: off)",
        expected: "a number of milliseconds up to 4294967295",
        apply: |config, text| put(&mut config.min_ttl_ms, number(text, 0, u32::MAX)),
    },
    Setting {
        key: "lru_gen_enabled",
        description: "lru_gen/enabled: 1 alone, +2 with walks, +4 with bits of tables (7)",
        expected: "1, 3, 5 or 7 (for 0, take the classic policy)",
        apply: |config, text| {
            let bits = number(text, 1, 7).filter(|bits| bits % 2 == 1);
            put(&mut config.lru_gen_bits, bits)
        },
    },
    flag!(hw_accessed_bit: "0: no accessed bits; a fault sets them, and mglru does not walk (1)"),
    Setting {
        key: "without",
        description: "parts the multi-gen LRU does without: bloom, protection, look-around, \
                      restore, fault-mark, refault-window, early-aging (none)",
        expected: "none, or some of bloom, protection, look-around, restore, fault-mark, \
                   refault-window, early-aging, with commas",
        apply: |config, text| put(&mut config.ablation, ablation(text)),
    },
    Setting {
        key: "stat_flush_us",
        description: "period of the flush of memcg statistics, read by classic; 0: exact (2000000)",
        expected: "a number of microseconds up to 1000000000",
        apply: |config, text| put(&mut config.stat_flush_ns, period(text)),
    },
    Setting {
        key: "stat_flush_phase_us",
        description: "time of the first flush (drawn from the seed)",
        expected: "a number of microseconds up to 1000000000",
        apply: |config, text| put(&mut config.stat_flush_phase_ns, period(text)),
    },
    Setting {
        key: "reschedule_chance",
        description: "mglru: chance that a walk visits a process idle since the last walk (0)",
        expected: "a probability from 0 (never) to 1 (always); only mglru uses it",
        apply: |config, text| put(&mut config.reschedule_chance, number(text, 0.0, 1.0)),
    },
    Setting {
        key: "min_free_kbytes",
        description: "vm.min_free_kbytes; 0: by the size of memory (0)",
        expected: "a number of KiB up to 1099511627776",
        apply: |config, text| put(&mut config.min_free_kbytes, number(text, 0, 1 << 40)),
    },
    number!(watermark_scale_factor: 1..=3000, "vm.watermark_scale_factor (10)"),
    number!(dirty_ratio: 1..=100, "vm.dirty_ratio, percent (20)"),
    number!(dirty_background_ratio: 1..=100, "vm.dirty_background_ratio, percent (10)"),
    number!(readahead_pages: 0..=4096, "largest read-ahead window; 0: off (32)"),
    Setting {
        key: "file_device",
        description: "where files lie: zram, pmem, nvme, ssd or hdd (nvme)",
        expected: "a device",
        apply: |config, text| {
            let kind: DeviceKind = text.parse().ok()?;
            config.file_device = kind.model();
            Some(())
        },
    },
    Setting {
        key: "swap_size",
        description: "size of swap (all anonymous memory and 4 MiB)",
        expected: "a size from 4K to 4T",
        apply: |config, text| {
            let pages = pages(text, 1 << 30)?;
            if let Some(swap) = &mut config.swap {
                swap.pages = pages;
            }
            Some(())
        },
    },
    Setting {
        key: "swap_on_file_disk",
        description: "1: swap lies on the disk of files, and both wait for each other (0)",
        expected: "0 or 1",
        apply: |config, text| {
            let is_on = flag(text)?;
            if let Some(swap) = &mut config.swap {
                swap.on_file_disk = is_on;
            }
            Some(())
        },
    },
    Setting {
        key: "swap_channels",
        description: "requests a swap device serves at the same time (the device's)",
        expected: "a number from 1 to 1024",
        apply: |config, text| {
            let channels = number(text, 1, 1024)?;
            if let Some(swap) = &mut config.swap {
                swap.device.channels = channels;
            }
            Some(())
        },
    },
    Setting {
        key: "file_channels",
        description: "the same of the device that files lie on",
        expected: "a number from 1 to 1024",
        apply: |config, text| put(&mut config.file_device.channels, number(text, 1, 1024)),
    },
    Setting {
        key: "file_bandwidth",
        description: "bytes a second that the device of files moves in all (no limit)",
        expected: "a size from 1M to 1T",
        apply: |config, text| {
            let bytes = size_bytes(text).ok()?;
            let limits = (1 << 20)..=(1 << 40);
            let bytes = Some(bytes).filter(|bytes| limits.contains(bytes))?;
            put(
                &mut config.file_device.transfer_ns,
                (4096u64 * 1_000_000_000).checked_div(bytes),
            )
        },
    },
    Setting {
        key: "swap_read_us",
        description: "time to read a page of swap anywhere (the device's)",
        expected: "a number of microseconds up to 1000000",
        apply: |config, text| {
            let ns = request(text)?;
            if let Some(swap) = &mut config.swap {
                swap.device.read_ns = ns;
            }
            Some(())
        },
    },
    Setting {
        key: "swap_write_us",
        description: "time to write a page of swap, or read the one after the last (the device's)",
        expected: "a number of microseconds up to 1000000",
        apply: |config, text| {
            let ns = request(text)?;
            if let Some(swap) = &mut config.swap {
                (swap.device.write_ns, swap.device.sequential_ns) = (ns, ns);
            }
            Some(())
        },
    },
    Setting {
        key: "file_page_us",
        description: "time to read or write a page of a file (the device's)",
        expected: "a number of microseconds up to 1000000",
        apply: |config, text| {
            let ns = request(text)?;
            let device = &mut config.file_device;
            (device.read_ns, device.write_ns, device.sequential_ns) = (ns, ns, ns);
            Some(())
        },
    },
    Setting {
        key: "compression",
        description: "how much pages shrink in zram (3)",
        expected: "a number from 1 to 1000",
        apply: |config, text| {
            let ratio = number(text, 1.0, 1000.0)?;
            if let Some(swap) = &mut config.swap {
                swap.compression = swap.compression.map(|_| ratio);
            }
            Some(())
        },
    },
    price!(hit_ns: "price of an access that hits (100: a DRAM access, most of them in a cache)"),
    price!(fault_ns: "price of a fault without device and reclaim (1000: emulation rules)"),
    price!(file_io_ns: "price of a read() of a page that hits (500: a system call and a copy)"),
    price!(pte_check_ns: "price of a leaf entry examined (5: emulation rules)"),
    price!(pmd_check_ns: "price of a non-leaf entry examined (5: as a leaf)"),
    price!(rmap_visit_ns:
        "price of a mapping visited through the reverse map (60: emulation rules)"),
    price!(list_move_ns: "price of a list move, under the LRU lock (20: emulation rules)"),
    price!(lru_lock_ns:
        "price of taking the LRU lock (20: an atomic exchange on another CPU's line)"),
    price!(unmap_ns: "price of an unmapping (300: emulation rules)"),
    price!(tlb_flush_ns: "price of a TLB flush on the local CPU (500: emulation rules)"),
    price!(tlb_remote_ns: "price of a TLB flush on each other CPU (500: as on the local one)"),
    price!(refault_flush_ns:
        "price of a flush of statistics at a refault under classic, as Linux 5.15 (0: none)"),
    price!(refault_flush_pause_ns:
        "how long after such a flush no other begins (0: the next refault begins one)"),
    price!(process_ns: "price of creating or ending a process (50000: no source)"),
    price!(slow_ns:
        "price of an access to slow_memory beyond any other (150: Optane and CXL, 70 to 250)"),
    price!(page_move_ns: "price of copying and mapping a page on another node (1500: an estimate)"),
    price!(split_ns: "price of splitting a 2 MiB page (175000: measured on Linux 6.18)"),
    Setting {
        key: "agent_missed",
        description: "share of accesses an agent under a budget does not see (0.002)",
        expected: "a number from 0 to 1",
        apply: |config, text| put(&mut config.agent_missed, number(text, 0.0, 1.0)),
    },
];

/// Applies a setting given as `key=value`.
///
/// # Errors
/// [`SettingError`] says what is wrong.
pub fn apply(config: &mut MachineConfig, text: &str) -> Result<(), SettingError> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| SettingError::Form(text.to_owned()))?;
    let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
        return Err(SettingError::Unknown {
            key: key.to_owned(),
            nearest: nearest(key, SETTINGS.iter().map(|setting| setting.key)),
        });
    };
    (setting.apply)(config, value).ok_or_else(|| SettingError::Value {
        key: setting.key,
        value: value.to_owned(),
        expected: setting.expected,
    })
}

/// Checks settings before there is a machine.
///
/// # Errors
/// [`SettingError`] of the first invalid one.
pub fn check(settings: &[String]) -> Result<(), SettingError> {
    let mut config = MachineConfig::new(1);
    settings
        .iter()
        .try_for_each(|text| apply(&mut config, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_made_and_mistakes_told() {
        let mut config = MachineConfig::new(1000);
        apply(&mut config, "swappiness=100").unwrap();
        apply(&mut config, "stat_flush_us=5").unwrap();
        apply(&mut config, "file_device=hdd").unwrap();
        assert_eq!((config.swappiness, config.stat_flush_ns), (100, 5000));
        assert_eq!(config.file_device, DeviceKind::Hdd.model());
        apply(&mut config, "zones=dma=64K,normal=1M").unwrap();
        apply(&mut config, "without=bloom,look-around").unwrap();
        let both = [Part::Bloom, Part::LookAround].into_iter().collect();
        assert_eq!(config.ablation, both);
        apply(&mut config, "without=none").unwrap();
        assert_eq!(config.ablation, Ablation::NONE);
        assert_eq!(config.zones, Some(vec![[16, 0, 256, 0]]));
        for (bad, expected) in [
            ("swappiness", "key=value"),
            ("swapiness=1", "did you mean `swappiness`"),
            ("swappiness=201", "0 to 200"),
            ("reschedule_chance=NaN", "a probability from 0 (never) to 1"),
            ("reschedule_chance=7", "only mglru uses it"),
            ("cpus=0", "1 to 1024"),
            ("file_device=tape", "device"),
            ("zones=high=1M", "dma32, normal or movable"),
            ("zones=dma=1M,DMA=1M", "each once"),
            ("zones=normal=99999999G", "with sizes"),
            ("zones=normal", "with sizes"),
            ("lru_gen_enabled=0", "classic policy"),
            ("lru_gen_enabled=4", "1, 3, 5 or 7"),
            ("without=blom", "some of bloom"),
            ("rmap_visit_ns=9999999999", "up to 1000000000"),
            ("swap_read_us=1000001", "up to 1000000"),
            ("swap_write_us=9999999999999", "up to 1000000"),
            ("file_page_us=18446744073709551", "up to 1000000"),
            ("stat_flush_us=1000000001", "up to 1000000000"),
            ("swap_size=1", "from 4K"),
            ("swap_size=lots", "from 4K"),
        ] {
            let error = apply(&mut config, bad).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
