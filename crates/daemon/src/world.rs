// SPDX-License-Identifier: Apache-2.0
//! What the machine reports in addition to ages: pressure, swap, reclaim by the kernel, the cost of
//! a refault.

use std::path::Path;

use agewise_cli::prices::DISK;
use agewise_host::cgroup::Cgroup;
use agewise_host::memory::MemInfo;
use agewise_host::page::pages_per_kernel_page;
use agewise_host::pagecache::PriceOfFile;
use agewise_host::pressure::{Psi, Resource};
use agewise_host::root::{ProcRoot, Roots};
use agewise_host::swap::{self, SwapArea, SwapDevice};
use agewise_policy::generations::ByType;
use agewise_policy::proactive::{self, SwapRoom};

use super::state::Machine;

/// How often the cost of a refault is measured again.
const PROBE_EVERY_MS: u64 = 60_000;

/// Stores values that must be compared with later ones.
#[derive(Debug, Default)]
pub struct World {
    roots: Roots,
    scanned_pages: Option<u64>,
    /// When and for which backend the cost of a refault was measured.
    probed: Option<(u64, proactive::Backend)>,
    refault_ns: ByType<Option<u64>>,
    /// A file of agewise's own for measurements, once one was needed.
    file: Option<PriceOfFile>,
}

/// Memory pressure on a cgroup, if the kernel reports it.
pub fn psi_of(cgroup: &Cgroup) -> Option<Psi> {
    Psi::of_cgroup(cgroup, Resource::Memory).ok().flatten()
}

/// The part of the machine's swap that a cgroup may use: where `memory.swap.max` of it or of one
/// above leaves less than is free, what it leaves is all there is.
pub fn swap_room(machine: SwapRoom, cgroup: Option<&Cgroup>) -> SwapRoom {
    let left = cgroup.and_then(|cgroup| cgroup.swap_room_bytes().ok()?);
    match left.filter(|left| *left < machine.free_bytes) {
        Some(left) => SwapRoom {
            free_bytes: left,
            total_bytes: left,
        },
        None => machine,
    }
}

impl World {
    /// A machine about which nothing is known yet.
    pub fn new(roots: Roots) -> Self {
        World {
            roots,
            ..World::default()
        }
    }

    /// What the machine reports now. What it does not report stays zero.
    pub fn machine(&mut self) -> Machine {
        let proc = &self.roots.proc;
        let info = MemInfo::of_machine(proc).unwrap_or_default();
        let scanned = scanned_pages(proc);
        let before = std::mem::replace(&mut self.scanned_pages, scanned);
        let is_under_reclaim = match (before, scanned) {
            (Some(before), Some(now)) => now > before,
            _ => false,
        };
        Machine {
            total_bytes: info.total_bytes,
            available_bytes: info.available_bytes,
            swap_total_bytes: info.swap_total_bytes,
            swap_free_bytes: info.swap_free_bytes,
            psi: Psi::of_machine(proc, Resource::Memory).ok().flatten(),
            is_under_reclaim,
        }
    }

    /// Where anonymous memory goes: the swap area with the highest priority that has room.
    pub fn backend(&self) -> proactive::Backend {
        let areas = SwapArea::all(&self.roots.proc).unwrap_or_default();
        let first = areas
            .iter()
            .filter(|area| area.free_bytes() > 0)
            .max_by_key(|area| area.priority);
        match first.map(|area| area.device(&self.roots.sys)) {
            None => proactive::Backend::None,
            Some(SwapDevice::Zram) => proactive::Backend::Zram,
            Some(SwapDevice::Hdd) => proactive::Backend::Hdd,
            Some(SwapDevice::Ssd | SwapDevice::Nvme) => proactive::Backend::Ssd,
        }
    }

    /// The cost of a page that comes back from swap and, `with_files`, from the device of a file,
    /// ns. Measured now and then, if there is swap in memory, and a disk below `/var/tmp`.
    pub fn refault_ns(
        &mut self,
        now_ms: u64,
        backend: proactive::Backend,
        with_files: bool,
    ) -> ByType<Option<u64>> {
        let is_due = self
            .probed
            .is_none_or(|(at_ms, before)| now_ms >= at_ms + PROBE_EVERY_MS || before != backend);
        if !is_due {
            return self.refault_ns;
        }
        self.probed = Some((now_ms, backend));
        // An earlier price may be that of another device, which is full by now.
        let price = swap::price().ok().flatten();
        self.refault_ns[0] = price.map(|price| price.refault_ns);
        if with_files && self.file.is_none() {
            self.file = PriceOfFile::new(Path::new(DISK)).ok();
        }
        if let Some(file) = &mut self.file
            && file.measure().is_ok()
        {
            self.refault_ns[1] = file.refault_ns().or(self.refault_ns[1]);
        }
        self.refault_ns
    }
}

/// Pages that the kernel scanned on its own, in kswapd and direct reclaim, not because of
/// `memory.reclaim` or MADV_PAGEOUT.
fn scanned_pages(root: &ProcRoot) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("vmstat")).ok()?;
    sum_of(&text, ["pgscan_kswapd", "pgscan_direct"])
}

/// Those of them that it took so far, in pages of 4 KiB.
pub(crate) fn stolen_pages(root: &ProcRoot) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("vmstat")).ok()?;
    let pages = sum_of(&text, ["pgsteal_kswapd", "pgsteal_direct"])?;
    Some(pages.saturating_mul(pages_per_kernel_page()))
}

fn sum_of(text: &str, names: [&str; 2]) -> Option<u64> {
    let mut sum = None;
    for line in text.lines() {
        if let Some((name, count)) = line.split_once(' ')
            && names.contains(&name)
        {
            let count: u64 = count.trim().parse().ok()?;
            sum = Some(count.saturating_add(sum.unwrap_or(0)));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_kernels_own_reclaim_counts() {
        let parse_scanned = |text: &str| sum_of(text, ["pgscan_kswapd", "pgscan_direct"]);
        let text = "pgfault 7\npgscan_kswapd 10\npgscan_direct 5\npgscan_proactive 99\n";
        assert_eq!(parse_scanned(text), Some(15));
        assert_eq!(parse_scanned("pgfault 7\n"), None);
        assert_eq!(parse_scanned("pgscan_kswapd many\n"), None);
    }

    proptest! {
        #[test]
        fn any_vmstat_is_read_or_not(text in "[ -~\n]{0,200}", number in any::<u64>()) {
            let names = ["pgscan_kswapd", "pgscan_direct"];
            let _ = sum_of(&text, names);
            let text = format!("pgscan_kswapd {number}\npgscan_direct {number}\n{text}");
            let _ = sum_of(&text, names);
        }
    }
}
