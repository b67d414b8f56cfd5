// SPDX-License-Identifier: Apache-2.0
//! The swap header (include/linux/swap.h, `union swap_header`), and agewise's mark in it.

use std::os::unix::fs::MetadataExt;

use crate::process::Process;
use crate::root::ProcRoot;

/// Size of the header: the first page of the device, as large as the kernel's pages.
pub fn bytes() -> usize {
    rustix::param::page_size()
}

const VERSION: usize = 1024;
const LAST_PAGE: usize = 1028;
const UUID: usize = 1036;
const LABEL: usize = 1052;
/// At the very end of the page.
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const MARK: &[u8; 16] = b"agewise\0\0\0\0\0\0\0\0\0";

/// The process that created a device, stored in the 16 bytes of the header's UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    pub pid: u32,
    /// A pid is only meaningful within its pid namespace.
    pub namespace: u32,
    pub start_ticks: u64,
}

impl Maker {
    pub fn ourselves(root: &ProcRoot) -> Self {
        let pid = std::process::id();
        let start_ticks = Process::open_in(root, pid).map_or(0, |p| p.start_ticks());
        Self {
            pid,
            namespace: namespace(root),
            start_ticks,
        }
    }

    /// Whether it certainly no longer runs. Never true for a process of another namespace.
    pub fn is_dead(self, root: &ProcRoot) -> bool {
        self.namespace == namespace(root)
            && match Process::open_in(root, self.pid) {
                Ok(process) => process.start_ticks() != self.start_ticks || !process.is_alive(),
                Err(error) => error.is_gone(),
            }
    }
}

fn namespace(root: &ProcRoot) -> u32 {
    std::fs::metadata(root.join("self/ns/pid")).map_or(0, |meta| meta.ino() as u32)
}

/// Builds the first page of a swap device of `size_bytes`.
pub fn page(size_bytes: u64, maker: Maker) -> Vec<u8> {
    let bytes = bytes();
    let mut page = vec![0; bytes];
    let last = u32::try_from((size_bytes / bytes as u64).saturating_sub(1)).unwrap_or(u32::MAX);
    page[VERSION..VERSION + 4].copy_from_slice(&1u32.to_ne_bytes());
    page[LAST_PAGE..LAST_PAGE + 4].copy_from_slice(&last.to_ne_bytes());
    page[UUID..UUID + 4].copy_from_slice(&maker.pid.to_ne_bytes());
    page[UUID + 4..UUID + 8].copy_from_slice(&maker.namespace.to_ne_bytes());
    page[UUID + 8..UUID + 16].copy_from_slice(&maker.start_ticks.to_ne_bytes());
    page[LABEL..LABEL + 16].copy_from_slice(MARK);
    page[bytes - MAGIC.len()..].copy_from_slice(MAGIC);
    page
}

/// Reads the creator from a device's first page, if it has our mark.
pub fn maker_of(page: &[u8]) -> Option<Maker> {
    let word = |at: usize| Some(u32::from_ne_bytes(page.get(at..at + 4)?.try_into().ok()?));
    let ours = page.ends_with(MAGIC) && page.get(LABEL..LABEL + 16)? == MARK;
    if !ours {
        return None;
    }
    Some(Maker {
        pid: word(UUID)?,
        namespace: word(UUID + 4)?,
        start_ticks: u64::from_ne_bytes(page[UUID + 8..UUID + 16].try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_its_maker_and_foreign_headers_name_none() {
        let root = ProcRoot::default();
        let maker = Maker::ourselves(&root);
        let mut page = page(1 << 20, maker);
        assert_eq!(maker_of(&page), Some(maker));
        assert_eq!(
            u32::from_ne_bytes(page[1028..1032].try_into().unwrap()),
            (1 << 20) / bytes() as u32 - 1
        );
        assert!(!maker.is_dead(&root));
        assert!(
            Maker {
                start_ticks: maker.start_ticks + 1,
                ..maker
            }
            .is_dead(&root)
        );
        // In another namespace the same pid is an unknown process.
        let elsewhere = Maker {
            namespace: maker.namespace ^ 1,
            start_ticks: 0,
            ..maker
        };
        assert!(!elsewhere.is_dead(&root));
        page[1052] = b'x';
        assert_eq!(maker_of(&page), None);
        assert_eq!(maker_of(&[0; 100]), None);
    }
}
