// SPDX-License-Identifier: Apache-2.0
//! Memory that compressed swap takes from the machine it serves.

use super::frames::Frames;
use super::zone::Reserve;
use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::NodeId;
use agewise_kernel::reclaim::TOP_ZONE;
use agewise_policy::table::PAGE_BYTES;

/// Frames that hold compressed pages.
#[derive(Clone, Debug)]
pub struct CompressedStore {
    /// Bytes a page needs, 1..=4096.
    page_bytes: u64,
    stored_pages: u64,
    frames: Vec<Pfn>,
}

impl CompressedStore {
    /// A store for data that compresses to `1 / ratio`.
    pub fn new(ratio: f64) -> CompressedStore {
        let page_bytes = (PAGE_BYTES as f64 / ratio)
            .round()
            .clamp(1.0, PAGE_BYTES as f64);
        CompressedStore {
            page_bytes: page_bytes as u64,
            stored_pages: 0,
            frames: Vec::new(),
        }
    }

    /// Frames in use.
    pub fn used_frames(&self) -> usize {
        self.frames.len()
    }

    fn needed_frames(&self, pages: u64) -> usize {
        (pages * self.page_bytes).div_ceil(PAGE_BYTES) as usize
    }

    /// Allocates room for more pages. Returns false, with nothing allocated, if no frame is left.
    pub fn store_pages(&mut self, frames: &mut Frames, pages: u64) -> bool {
        let needed = self.needed_frames(self.stored_pages + pages);
        let held = self.frames.len();
        while self.frames.len() < needed {
            let node = (0..frames.nodes() as u32).map(NodeId);
            let found = { node }.find_map(|node| frames.allocate(node, TOP_ZONE, Reserve::None));
            let Some((pfn, _)) = found else {
                for pfn in self.frames.drain(held..) {
                    frames.free(pfn);
                }
                return false;
            };
            self.frames.push(pfn);
        }
        self.stored_pages += pages;
        true
    }

    /// Frees the room of one page. A slot that was never written frees nothing.
    pub fn release_page(&mut self, frames: &mut Frames) {
        self.stored_pages = self.stored_pages.saturating_sub(1);
        let needed = self.needed_frames(self.stored_pages);
        while self.frames.len() > needed {
            if let Some(pfn) = self.frames.pop() {
                frames.free(pfn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_pages_fit_in_one_at_a_ratio_of_four() {
        let mut frames = Frames::new(&[[0, 0, 3, 0]], 4, 10);
        let mut store = CompressedStore::new(4.0);
        assert!(store.store_pages(&mut frames, 5));
        assert_eq!((store.used_frames(), frames.total_free()), (2, 1));
        assert!(!store.store_pages(&mut frames, 8));
        assert_eq!(frames.total_free(), 1);
        store.release_page(&mut frames);
        assert_eq!((store.used_frames(), frames.total_free()), (1, 2));
    }
}
