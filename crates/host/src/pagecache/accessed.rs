// SPDX-License-Identifier: Apache-2.0
//! Records which file pages were accessed since the last look: BPF programs on the tracepoints of
//! the page cache, or on its functions, set bits in tables of 512 bits.
//!
//! It sees reads (`read`, `pread`, `sendfile`, `splice`, io_uring), faults on pages that were not
//! mapped, and the first write to a clean folio. It does not see accesses through page tables (the
//! page-table walker does), tmpfs, or further writes to a dirty folio.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};

use agewise_policy::table::PageSet;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, libbpf_sys};

use super::accesses::{Accesses, Block};
use super::canary::Canary;
use super::hooks::{self, Hook, Sees};
use crate::access::{AccessError, PAGE_BYTES, check_page_size};
use crate::bpf::{self, Mapping};

/// `make bpf` builds it; `make bpf-check` verifies that it matches its source.
static OBJECT: &[u8] = include_bytes!("../../bpf/accessed.bpf.o");

/// Pages of memory for which there is one table of 512 between two looks: a small file takes one,
/// too. About 150 bytes each, allocated on use, and 32 bytes that are always there.
const PAGES_PER_ROOM: u64 = 64;
/// Limits of that, on small machines and on large ones.
const TABLES_MIN: u64 = 1 << 15;
const TABLES_MAX: u64 = 1 << 18;
/// Most files followed by sample, by the low bits of their inode numbers: `SAMPLED` of
/// `accessed.bpf.c`.
pub(super) const SAMPLED_FILES_MAX: usize = 1024;
/// Reads of our own of which one must be noted. A map that is full, or a program that is running on
/// that CPU already, explains one that is not.
const TRIES: u32 = 3;
/// Tables fetched from the map per call.
const BATCH: u32 = 4096;
/// `struct af_key` and `struct af_table`.
const KEY_BYTES: u32 = 16;
const TABLE_BYTES: u32 = 64;

/// What happened since loading, on all CPUs. The fields are those of [`Accesses`].
#[derive(Clone, Copy, Default)]
struct Counts {
    events: u64,
    dropped: u64,
    missed: u64,
}

/// `struct af_ctl`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ctl {
    epoch: u32,
    exclusive: u32,
}

/// BPF programs that record accesses. Dropping it detaches them.
pub struct Accessed {
    programs: Programs,
    canary: Canary,
    /// Whether the programs did not run before the last look, or what they noted was lost.
    was_blind: bool,
}

/// The programs and their maps.
struct Programs {
    // Field order: the links are dropped first, so that nothing writes to the fields after them.
    links: Vec<Link>,
    attached: Vec<&'static Hook>,
    ctl: Mapping<Ctl>,
    /// Inodes of which a sample of the blocks is recorded, by slot; 0 for none.
    sampled: Mapping<u64>,
    /// An array of one map: that of the tables which are written.
    written: MapHandle,
    tables: MapHandle,
    /// An empty one, to be written while those are read.
    spare: MapHandle,
    counts: MapHandle,
    /// Counts as of the last look.
    counted: Counts,
    object: Object,
}

impl Accessed {
    /// Loads and attaches the programs. Accesses are recorded from now on.
    ///
    /// # Errors
    /// [`AccessError::NoPrivilege`], or [`AccessError::Unsupported`] without BTF or any hook on
    /// reads.
    pub fn open() -> Result<Self, AccessError> {
        let memory = rustix::system::sysinfo();
        let bytes = memory.totalram.saturating_mul(memory.mem_unit.into());
        Self::with_tables(tables_of(bytes))
    }

    /// Like [`open`](Self::open), with space for this many tables between two looks.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_tables(tables: u32) -> Result<Self, AccessError> {
        check_page_size(TRACER)?;
        let hooks = hooks::of_kernel();
        if !hooks.iter().any(|hook| hook.sees == Sees::Reads) {
            return Err(AccessError::Unsupported {
                what: TRACER,
                why: "the kernel offers no place to trace reads of files (it needs BTF)".into(),
            });
        }
        let programs = bpf::load(TRACER, "the BPF programs on the page cache", || {
            Programs::attach(tables, hooks)
        })?;
        let mut accessed = Accessed {
            programs,
            canary: Canary::new().map_err(of_canary)?,
            was_blind: false,
        };
        accessed.find_reading()?;
        Ok(accessed)
    }

    /// Detaches the programs, as no other program can.
    #[cfg(test)]
    pub(super) fn detach(&mut self) {
        self.programs.links.clear();
    }

    /// The hooks in use on this kernel.
    pub fn attached(&self) -> &[&'static Hook] {
        &self.programs.attached
    }

    /// Whether `last_index` of `mm_filemap_get_pages` is one past the last page, as in some
    /// kernels. Always false if functions are hooked instead.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.programs.ctl.read(0).exclusive != 0
    }

    /// Finds out how a read is reported, and tells the programs.
    fn find_reading(&mut self) -> Result<(), AccessError> {
        self.programs.take()?;
        let mut seen = self.read_and_take()?;
        let Some(pages) = self.canary.take_noted(&mut seen) else {
            return Err(AccessError::Unsupported {
                what: TRACER,
                why: "reading a page of a file of our own was not seen; that file has to lie in \
                      the page cache: set TMPDIR to a directory on a disk"
                    .into(),
            });
        };
        let ctl = &mut self.programs.ctl;
        let exclusive = is_exclusive(&pages).into();
        ctl.write(
            0,
            Ctl {
                exclusive,
                ..ctl.read(0)
            },
        );
        self.programs.take()?;
        Ok(())
    }

    /// Takes what was accessed up to now, a read of our own included.
    fn read_and_take(&mut self) -> Result<Accesses, AccessError> {
        self.canary.read().map_err(of_canary)?;
        let taken = self.programs.take();
        self.was_blind |= taken.is_err();
        taken
    }

    /// Attaches the programs again, and returns what to say: accesses were lost.
    fn revive(&mut self) -> AccessError {
        self.was_blind = true;
        let why = match self.programs.attach_again() {
            Ok(()) => "they were attached again; until then accesses were not seen".into(),
            Err(error) => format!("they cannot be attached again: {error}"),
        };
        AccessError::Unsupported {
            what: TRACER,
            why: format!(
                "a read of our own was not noted, so the BPF programs no longer run; {why}"
            ),
        }
    }
}

impl Programs {
    fn attach(tables: u32, attached: Vec<&'static Hook>) -> libbpf_rs::Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        hooks::select(&mut open, &attached);
        let object = open.load()?;
        let map = |name: &str| bpf::map_named(&object, name);
        let (written, first) = (map("written")?, new_tables(tables)?);
        write_to(&written, &first)?;
        Ok(Programs {
            links: hooks::attach(&object)?,
            attached,
            ctl: Mapping::of(&object, ".data.ctl", 1)?,
            sampled: Mapping::of(&object, ".data.sampled", SAMPLED_FILES_MAX)?,
            tables: first,
            spare: new_tables(tables)?,
            written,
            counts: map("counts")?,
            counted: Counts::default(),
            object,
        })
    }

    fn attach_again(&mut self) -> libbpf_rs::Result<()> {
        self.links.clear();
        self.links = hooks::attach(&self.object)?;
        Ok(())
    }

    fn counts(&self) -> libbpf_rs::Result<Counts> {
        let of_cpus = self.counts.lookup_percpu(&[0; 4], MapFlags::ANY)?;
        let of_cpus = of_cpus.unwrap_or_default();
        Ok(Counts {
            events: sum(&of_cpus, 0),
            dropped: sum(&of_cpus, 8),
            missed: bpf::recursion_misses(&self.object),
        })
    }

    /// Lets the programs write to the empty map. When it returns, none writes to the other one.
    fn swap(&mut self) -> libbpf_rs::Result<()> {
        write_to(&self.written, &self.spare)?;
        std::mem::swap(&mut self.tables, &mut self.spare);
        // Only now: a CPU that learns of the new epoch earlier would remember as recorded in it
        // what it still wrote to the old map. What it leaves out until then counts for this look.
        let ctl = self.ctl.read(0);
        let epoch = ctl.epoch.wrapping_add(1);
        self.ctl.write(0, Ctl { epoch, ..ctl });
        Ok(())
    }

    /// Takes the accesses noted since the last call.
    fn take(&mut self) -> Result<Accesses, AccessError> {
        let mut blocks = HashMap::new();
        self.swap().map_err(unreadable)?;
        let batch = self
            .spare
            .lookup_and_delete_batch(BATCH, MapFlags::ANY, MapFlags::ANY)
            .map_err(unreadable)?;
        for (key, value) in batch {
            if let (Some(key), Some(set)) = (Block::read(&key), pages(&value)) {
                blocks.insert(key, set);
            }
        }
        let counted = self.counts().map_err(unreadable)?;
        let before = std::mem::replace(&mut self.counted, counted);
        // An event that interrupts the counting of another is overwritten: a sum may step back.
        Ok(Accesses {
            blocks,
            events: counted.events.saturating_sub(before.events),
            dropped: counted.dropped.saturating_sub(before.dropped),
            missed: counted.missed.saturating_sub(before.missed),
        })
    }
}

/// Records what is accessed.
pub trait AccessNotes: Send {
    /// Returns the accesses since the last look. Later accesses count for the next one.
    ///
    /// # Errors
    /// Nothing can be read, or it turned out that accesses are no longer noted. The next look that
    /// succeeds then says that some were lost.
    fn look(&mut self) -> Result<Accesses, AccessError>;

    /// Returns the accesses to one block since the last look. They stay recorded for the next look.
    ///
    /// # Errors
    /// Nothing can be read.
    fn peek(&mut self, block: &Block) -> Result<PageSet, AccessError>;

    /// From now on records one block in eight of the inode at an address, which is in this slot of
    /// [`Sampled`](super::sampled::Sampled); 0 for none.
    fn sample(&mut self, slot: usize, inode: u64);
}

impl AccessNotes for Accessed {
    fn look(&mut self) -> Result<Accesses, AccessError> {
        let mut found = self.read_and_take()?;
        let mut tries = 1;
        while self.canary.take_noted(&mut found).is_none() {
            if tries == TRIES {
                return Err(self.revive());
            }
            tries += 1;
            found.add(self.read_and_take()?);
        }
        if std::mem::take(&mut self.was_blind) {
            found.dropped = found.dropped.max(1);
        }
        Ok(found)
    }

    fn peek(&mut self, block: &Block) -> Result<PageSet, AccessError> {
        let tables = &self.programs.tables;
        let value = tables.lookup(&block.bytes(), MapFlags::ANY);
        let value = value.map_err(unreadable)?;
        Ok(value.and_then(|value| pages(&value)).unwrap_or_default())
    }

    fn sample(&mut self, slot: usize, inode: u64) {
        self.programs.sampled.write(slot, inode);
    }
}

/// A map with room for this many tables.
fn new_tables(room: u32) -> libbpf_rs::Result<MapHandle> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
        ..Default::default()
    };
    let (key, value) = (KEY_BYTES, TABLE_BYTES);
    MapHandle::create(MapType::Hash, Some("tables"), key, value, room, &opts)
}

/// Lets the programs write to another map. The kernel returns when those that used the one before
/// have ended (`maybe_wait_bpf_programs`): after a grace period of RCU, some 10 ms, without CPU.
fn write_to(written: &MapHandle, tables: &MapHandle) -> libbpf_rs::Result<()> {
    let fd = tables.as_fd().as_raw_fd().to_ne_bytes();
    written.update(&[0; 4], &fd, MapFlags::ANY)
}

/// Tables for a machine with this much memory: a power of two, to which the kernel rounds up.
fn tables_of(memory_bytes: u64) -> u32 {
    let wanted = (memory_bytes / PAGE_BYTES / PAGES_PER_ROOM).clamp(TABLES_MIN, TABLES_MAX);
    1 << wanted.ilog2()
}

/// Adds up the field at this offset of `struct af_counts`, of which each CPU has one.
fn sum(of_cpus: &[Vec<u8>], offset: usize) -> u64 {
    let field = |of: &Vec<u8>| of.get(offset..offset + 8)?.try_into().ok();
    of_cpus
        .iter()
        .filter_map(field)
        .map(u64::from_ne_bytes)
        .sum()
}

/// Whether `last_index` is one past the last page, given the pages up to it of a read of page 1.
/// The read ends where the file system's smallest folio does, whose size is a power of two.
fn is_exclusive(pages: &PageSet) -> bool {
    pages.pages().last().is_some_and(|last| last % 2 == 0)
}

fn unreadable(error: libbpf_rs::Error) -> AccessError {
    AccessError::Unsupported {
        what: TRACER,
        why: format!("its map cannot be read: {error}"),
    }
}

const TRACER: &str = "accesses to the page cache";

/// Parses `struct af_table`.
fn pages(bytes: &[u8]) -> Option<PageSet> {
    let words = bytes.chunks_exact(8);
    let words: Vec<u64> = words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        .collect();
    Some(PageSet::new(words.try_into().ok()?))
}

fn of_canary(error: std::io::Error) -> AccessError {
    AccessError::io("a file of our own", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_table_for_some_pages_of_memory() {
        let of_gib = [1, 4, 24, 32, 1024].map(|gib| tables_of(gib << 30));
        assert_eq!(of_gib, [1 << 15, 1 << 15, 1 << 16, 1 << 17, 1 << 18]);
    }

    /// Of folios of one, two and four pages.
    #[test]
    fn an_end_behind_the_last_page_is_told_from_the_last_page() {
        let is_exclusive_up_to = |last: usize| {
            let mut pages = PageSet::NONE;
            (1..=last).for_each(|page| pages[page / 64] |= 1 << (page % 64));
            is_exclusive(&pages)
        };
        let found = [1, 2, 3, 4].map(is_exclusive_up_to);
        assert_eq!(found, [false, true, false, true]);
    }
}
