// SPDX-License-Identifier: Apache-2.0
//! Numbers the pages of several processes in one trace.
//!
//! Anonymous memory belongs to a process: bit 63 clear, the process's slot from bit 45 up, the
//! virtual page number below. A file page is the same page in every process that maps it: bit 63
//! set, the file's slot from bit 40 up, the page's index in the file below.

use std::collections::HashMap;

use crate::access::PAGE_BYTES;
use crate::vma::Vma;
use agewise_trace::PageClass;

/// Bits of a virtual page number (57-bit addresses).
const VPN_BITS: u32 = 45;
/// Bits of a page's index in its file (4 PiB).
const FILE_PAGE_BITS: u32 = 40;
/// Most processes; others are not recorded.
pub const PROCESSES_MAX: u32 = 1 << (63 - VPN_BITS);
/// Most files; pages of others count as the process's own.
const FILES_MAX: u32 = 1 << (63 - FILE_PAGE_BITS);

/// Numbers pages, and remembers the files for the trace's metadata.
#[derive(Debug, Default)]
pub struct PageNames {
    processes: HashMap<u32, u64>,
    files: HashMap<(u64, u64), u64>,
    /// Paths of the files, by slot.
    file_paths: Vec<String>,
}

/// The numbering of the pages of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// Number of the page at address 0, as if the mapping reached there; may wrap.
    base: u64,
    /// What backs the pages.
    pub class: PageClass,
}

impl Numbering {
    /// The number of the page at `va`.
    #[must_use]
    pub fn page(&self, va: u64) -> u64 {
        self.base.wrapping_add(va / PAGE_BYTES)
    }
}

impl PageNames {
    /// The slot of a process; `None` if there are none left.
    pub fn process_slot(&mut self, pid: u32) -> Option<u64> {
        let next = self.processes.len() as u64;
        if next >= u64::from(PROCESSES_MAX) && !self.processes.contains_key(&pid) {
            return None;
        }
        Some(*self.processes.entry(pid).or_insert(next))
    }

    /// Forgets a process: if its pid comes again, it is another process.
    pub fn forget_process(&mut self, pid: u32) {
        if let Some(slot) = self.processes.remove(&pid) {
            // Keep the number of used slots. Pids never get this large, so the key is free.
            self.processes.insert(u32::MAX - slot as u32, slot);
        }
    }

    /// The numbering of pages that belong to the process itself.
    #[must_use]
    pub fn own(process_slot: u64) -> Numbering {
        Numbering {
            base: process_slot << VPN_BITS,
            class: PageClass::Anon,
        }
    }

    /// The numbering of pages without a known mapping.
    #[must_use]
    pub fn unmapped(process_slot: u64) -> Numbering {
        Numbering {
            class: PageClass::Unknown,
            ..Self::own(process_slot)
        }
    }

    /// The numbering of the pages of `vma` that belong to its file; `None` without a file.
    pub fn of_file(&mut self, vma: &Vma, path: &str) -> Option<Numbering> {
        if vma.inode == 0 {
            return None;
        }
        let first = self.file(vma.device, vma.inode, path)?;
        let start = first | (vma.offset / PAGE_BYTES);
        let class = if vma.kind.is_swap_backed() {
            PageClass::Anon
        } else {
            PageClass::File
        };
        Some(Numbering {
            base: start.wrapping_sub(vma.range.start / PAGE_BYTES),
            class,
        })
    }

    /// The number of the first page of a file known only by device and inode; `None` if there are
    /// too many files.
    pub fn file_pages(&mut self, device: u64, inode: u64) -> Option<u64> {
        self.file(device, inode, "")
    }

    fn file(&mut self, device: u64, inode: u64, path: &str) -> Option<u64> {
        let next = self.file_paths.len() as u64;
        let slot = match self.files.get(&(device, inode)) {
            Some(&slot) => slot,
            None if next >= u64::from(FILES_MAX) => return None,
            None => {
                self.files.insert((device, inode), next);
                self.file_paths.push(path.to_owned());
                next
            }
        };
        Some(1 << 63 | slot << FILE_PAGE_BITS)
    }

    /// The paths of all files numbered so far.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.file_paths
    }
}

#[cfg(test)]
mod tests {
    use crate::access::AddressRange;
    use crate::vma::VmaTable;

    use super::*;

    /// A mapping of our own executable: a file with an inode and an offset.
    fn file_vma() -> Vma {
        let mut table = VmaTable::new();
        table.read(std::process::id()).unwrap();
        table
            .vmas()
            .iter()
            .find(|vma| vma.inode != 0)
            .unwrap()
            .clone()
    }

    #[test]
    fn a_page_of_a_file_is_the_same_wherever_it_is_mapped() {
        let mut names = PageNames::default();
        let mut here = file_vma();
        (here.offset, here.range) = (
            8192,
            AddressRange {
                start: 1 << 30,
                end: 1 << 31,
            },
        );
        let mut there = here.clone();
        (there.offset, there.range) = (
            0,
            AddressRange {
                start: 1 << 21,
                end: 1 << 22,
            },
        );
        let first = names
            .of_file(&here, "/lib/a")
            .unwrap()
            .page((1 << 30) + 4096);
        let second = names
            .of_file(&there, "/lib/a")
            .unwrap()
            .page((1 << 21) + 3 * 4096);
        assert_eq!(first, second);
        assert_eq!(first & ((1 << FILE_PAGE_BITS) - 1), 3);
        let mut other = here;
        other.inode += 1;
        assert_ne!(
            names
                .of_file(&other, "/lib/b")
                .unwrap()
                .page((1 << 30) + 4096),
            first
        );
        assert_eq!(names.files(), ["/lib/a", "/lib/b"]);
    }

    #[test]
    fn processes_have_memory_of_their_own_and_pids_come_again() {
        let mut names = PageNames::default();
        let first = names.process_slot(7).unwrap();
        let second = names.process_slot(8).unwrap();
        assert_ne!(
            PageNames::own(first).page(4096),
            PageNames::own(second).page(4096)
        );
        assert_eq!(names.process_slot(7), Some(first));
        names.forget_process(7);
        let again = names.process_slot(7).unwrap();
        assert!(again != first && again != second);
        assert_eq!(PageNames::own(0).page(0x7fff_ffff_f000) >> 63, 0);
    }
}
