// SPDX-License-Identifier: Apache-2.0
//! Converts entries of page-cache trees to frame numbers, which identify the same pages in page
//! tables.
//!
//! The kernel keeps a `struct page` for each frame in one array (`CONFIG_SPARSEMEM_VMEMMAP`). The
//! start of that array is derived from one of agewise's own pages, whose frame is known.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use super::layout::{Leaf, Slots};
use crate::access::{AccessError, PAGE_BYTES};
use crate::bpf::Mapping;
use crate::pagewalk::PageWalk;

/// Start of the array of `struct page`, and the size of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    base: u64,
    page_struct_bytes: u64,
}

impl Frames {
    /// Derives them from one page whose frame and folio are known; `None` if the result is
    /// implausible.
    pub(super) fn new(folio: u64, frame: u64, page_struct_bytes: u64) -> Option<Self> {
        let before = frame.checked_mul(page_struct_bytes).filter(|_| frame > 0)?;
        let base = folio.checked_sub(before)?;
        // The array is at least page aligned.
        (page_struct_bytes > 0 && base % PAGE_BYTES == 0).then_some(Frames {
            base,
            page_struct_bytes,
        })
    }

    /// The frame number of a folio's first page.
    fn frame(&self, folio: u64) -> u64 {
        folio.wrapping_sub(self.base) / self.page_struct_bytes
    }
}

/// The raw slots of leaves, and how to convert them to frames.
#[derive(Clone, Copy, Default)]
pub struct Folios<'a> {
    slots: &'a [Slots],
    frames: Option<Frames>,
}

impl<'a> Folios<'a> {
    /// The slots of leaves that are shown together.
    pub(super) fn new(slots: &'a [Slots], frames: Option<Frames>) -> Self {
        Folios { slots, frames }
    }

    /// Calls `visit` with the index and frame of each present page among the 64 of part `part` of
    /// leaf number `at`. Does nothing if frames are not known.
    pub fn each(&self, at: usize, leaf: &Leaf, part: u64, mut visit: impl FnMut(u32, u64)) {
        let (Some(frames), Some(slots)) = (self.frames, self.slots.get(at)) else {
            return;
        };
        if leaf.present == u64::MAX && slots[1] & 1 == 1 {
            // Part of a higher node: all its pages are in one folio.
            let first = frames.frame(slots[0]) + (slots[1] >> 1) + 64 * part;
            (0..64).for_each(|page| visit(page, first + u64::from(page)));
            return;
        }
        let mut left = leaf.present;
        while left != 0 {
            let page = left.trailing_zeros();
            left &= left - 1;
            let entry = slots[page as usize];
            let (folio, before) = match leaf.tail >> page & 1 {
                0 => (entry, 0),
                _ => {
                    let head = entry >> 2 & 63;
                    (slots[head as usize], u64::from(page).saturating_sub(head))
                }
            };
            visit(page, frames.frame(folio) + before);
        }
    }
}

/// A file of agewise's own, with one page in the page cache.
///
/// # Errors
/// Out of memory.
pub(super) fn own_file() -> io::Result<File> {
    let file = File::from(memfd_create("agewise page", MemfdFlags::CLOEXEC)?);
    file.write_all_at(&[1; PAGE_BYTES as usize], 0)?;
    Ok(file)
}

/// One of agewise's own pages in the page cache, with its frame number.
///
/// # Errors
/// Out of memory, or the walk of page tables cannot run.
pub(super) fn own_page(tables: &mut PageWalk) -> Result<(File, u64), AccessError> {
    let io = |error| AccessError::io("a page of our own in the page cache", error);
    let file = own_file().map_err(io)?;
    let map = Mapping::<[u8; PAGE_BYTES as usize]>::map(file.as_fd(), 1).map_err(io)?;
    let page = map.get(0);
    std::hint::black_box(page[0]);
    match tables.own_frame(page.as_ptr() as u64)? {
        Some(frame) => Ok((file, frame)),
        None => Err(io(io::ErrorKind::NotFound.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ea00_0000_0000;

    fn folio(frame: u64) -> u64 {
        BASE + 64 * frame
    }

    #[test]
    fn pages_of_small_and_large_folios_have_their_frames() {
        let frames = Frames::new(folio(1000), 1000, 64).unwrap();
        // A page, a hole, and a folio of four pages whose last page has left.
        let mut slots = [0; 64];
        slots[0] = folio(7);
        slots[4] = folio(400);
        slots[5..8].fill(4 << 2 | 2);
        let mut leaf = Leaf::default();
        (leaf.present, leaf.tail) = (0b111_0001, 0b110_0000);
        let upper = [slots, {
            let mut slots = [0; 64];
            (slots[0], slots[1]) = (folio(1 << 20), 128 << 1 | 1);
            slots
        }];
        let folios = Folios::new(&upper, Some(frames));
        let found = |at, leaf: &Leaf, part| {
            let mut found = Vec::new();
            folios.each(at, leaf, part, |page, frame| found.push((page, frame)));
            found
        };
        assert_eq!(found(0, &leaf, 0), [(0, 7), (4, 400), (5, 401), (6, 402)]);
        leaf.present = u64::MAX;
        let third = found(1, &leaf, 2);
        assert_eq!(
            (third.len(), third[63]),
            (64, (63, (1 << 20) + 128 + 128 + 63))
        );
        assert!(found(2, &leaf, 0).is_empty());
    }

    #[test]
    fn nonsense_is_no_array() {
        assert!(Frames::new(folio(1000) + 64, 1000, 64).is_none());
        assert!(Frames::new(64, 1000, 64).is_none());
        assert!(Frames::new(folio(1000), 1000, 0).is_none());
        assert!(Frames::new(folio(1000), 0, 64).is_none());
    }
}
