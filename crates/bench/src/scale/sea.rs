// SPDX-License-Identifier: Apache-2.0
//! A program with far more page-table entries than the machine has memory.
//!
//! A window of a few MiB of shared memory is mapped many times, so that a terabyte of addresses has
//! present page-table entries, 2 GiB of them. `MADV_COLD` does not clear accessed bits of pages
//! that are mapped more than once, which is rare in real programs. Where the sample looks, the
//! program therefore maps separate pages, once each. It finds these places with the rule that the
//! observer uses ([`agewise_policy::sample::choose`]); which memory is touched does not depend on
//! it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use agewise_policy::sample::{Area, Bounds, Identity, choose, level_for};
use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

use super::super::PAGE_BYTES;
use crate::servant::{self, Servant};

/// Unit in which memory is touched.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Smallest mapping: there may be 65530 mappings (`vm.max_map_count`), some of which are blocks.
const WINDOW_BYTES_MIN: u64 = 16 << 20;
const WINDOWS_MAX: u64 = 1 << 15;

/// Whether a chunk is touched before look number `look`: half of the busy share stays the same for
/// four looks, half is drawn anew each time.
pub fn is_touched(chunk: u64, look: u64, busy: f64) -> bool {
    let drawn = |salt: u64| {
        let mut mixed = (chunk ^ salt << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ mixed >> 32) as f64 / u64::MAX as f64
    };
    drawn(1 + look / 4) < busy / 2.0 || drawn(1 << 16 | look) < busy / 2.0
}

/// The running program; it ends with us.
#[derive(Debug)]
pub struct Sea(Servant);

impl Sea {
    /// Starts the program and waits until all memory is mapped and present.
    ///
    /// # Errors
    /// The program cannot be started, or lacks memory.
    pub fn start(program: &Path, size_bytes: u64, bounds: &Bounds) -> anyhow::Result<Self> {
        let mut sea = Sea(Servant::start(program, "sea", &[])?);
        let (blocks, pages) = (bounds.blocks, bounds.block_pages);
        sea.0.ask(&format!("map {size_bytes} {blocks} {pages}"))?;
        Ok(sea)
    }

    /// The pid of the program.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Touches what is due before a look, and waits until that is done.
    ///
    /// # Errors
    /// The program has exited.
    pub fn touch(&mut self, look: u64, busy: f64) -> anyhow::Result<()> {
        self.0.ask(&format!("touch {look} {busy}")).map(drop)
    }
}

/// Executes commands from standard input until it ends.
///
/// # Errors
/// Standard input or output failed.
pub fn serve() -> anyhow::Result<ExitCode> {
    let mut memory: Option<Memory> = None;
    servant::serve(|line| obey(&mut memory, line))
}

fn obey(memory: &mut Option<Memory>, line: &str) -> anyhow::Result<u64> {
    let words: Vec<&str> = line.split(' ').collect();
    match (words.as_slice(), memory) {
        (["map", size, blocks, pages], memory) => {
            let bounds = Bounds {
                blocks: blocks.parse()?,
                block_pages: pages.parse()?,
                ..Bounds::default()
            };
            *memory = Some(Memory::map(size.parse()?, &bounds)?);
            Ok(0)
        }
        (["touch", look, busy], Some(memory)) => {
            memory.touch(look.parse()?, busy.parse()?);
            Ok(0)
        }
        _ => bail!("no order: {line}"),
    }
}

struct Memory {
    start: u64,
    size: u64,
}

impl Memory {
    /// Maps the memory; it stays until the process exits.
    fn map(size: u64, bounds: &Bounds) -> anyhow::Result<Self> {
        let window = (size / WINDOWS_MAX).max(WINDOW_BYTES_MIN).min(size);
        let align = 1u64 << 30;
        let length = usize::try_from(size + align)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else uses it.
        let reserved =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), flags) }
                .with_context(|| format!("{size} bytes of addresses"))?;
        let start = (reserved as u64).next_multiple_of(align);
        let water = shared_memory(window)?;
        for at in (0..size).step_by(usize::try_from(window)?) {
            map_at(start + at, window.min(size - at), &water, 0)?;
        }
        let pages = start / PAGE_BYTES..(start + size) / PAGE_BYTES;
        let level = level_for(size / PAGE_BYTES, 0, bounds);
        let area = Area {
            pages,
            identity: Identity::Address,
            kind: 0,
        };
        if level > 0 {
            let pieces = choose(&[area], level, bounds.block_pages, 0);
            let length = |piece: &std::ops::Range<u64>| (piece.end - piece.start) * PAGE_BYTES;
            let own = shared_memory(pieces.iter().map(|piece| length(&piece.pages)).sum())?;
            let mut offset = 0;
            for piece in pieces {
                let length = length(&piece.pages);
                map_at(piece.pages.start * PAGE_BYTES, length, &own, offset)?;
                offset += length;
            }
        }
        for at in (0..size).step_by(usize::try_from(window)?) {
            let length = usize::try_from(window.min(size - at))?;
            // SAFETY: the range is ours, and populating it changes no content.
            unsafe { madvise((start + at) as *mut _, length, Advice::LinuxPopulateRead) }
                .context("page tables for it")?;
        }
        Ok(Memory { start, size })
    }

    fn touch(&self, look: u64, busy: f64) {
        for chunk in (0..self.size / CHUNK_BYTES).filter(|at| is_touched(*at, look, busy)) {
            let first = self.start + chunk * CHUNK_BYTES;
            for va in (first..first + CHUNK_BYTES).step_by(PAGE_BYTES as usize) {
                // SAFETY: mapped readable by `map`, and never unmapped.
                unsafe { std::ptr::read_volatile(va as *const u8) };
            }
        }
    }
}

fn shared_memory(bytes: u64) -> anyhow::Result<OwnedFd> {
    let file = memfd_create("agewise-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Maps a part of shared memory over reserved addresses.
fn map_at(va: u64, length: u64, file: &OwnedFd, offset: u64) -> anyhow::Result<()> {
    let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED);
    let length = usize::try_from(length)?;
    // SAFETY: replaces a part of the mapping that `Memory::map` reserved, which is not yet used.
    unsafe { mmap(va as *mut _, length, protection, flags, file, offset) }
        .context("a mapping (see vm.max_map_count)")?;
    Ok(())
}
