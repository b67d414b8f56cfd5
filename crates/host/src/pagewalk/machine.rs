// SPDX-License-Identifier: Apache-2.0
//! Finds the properties of this machine's page tables: address width, memory encryption, the end of
//! memory, and the kernel's direct map. Nothing is assumed: a walk to one of agewise's own pages
//! must find the word written there, or the walker is not used.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry::{self, Bits, EntryFormat};
use super::layout::{Ctl, Entry, KIND_PMD, KIND_TABLE, RC_DONE, RC_NO_TASK, Range};
use super::program::Program;
use super::shape::Shape;
use crate::access::{AccessError, PAGE_BYTES, TABLE_BYTES, kernel_page_bytes};
use crate::process::Process;

/// Verified properties of this machine's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Kernel virtual address of physical address 0.
    pub direct_map: u64,
    /// Levels of a page table: 4, 5 with LA57 and LPA2, on AArch64 also 3 (39-bit addresses, or
    /// larger pages) and 2 (larger pages and at most 42 bits).
    pub levels: u32,
    /// How to read entries.
    pub format: EntryFormat,
    /// The address bit that marks encrypted memory (AMD SME, SEV); 0 for none.
    pub encryption_mask: u64,
    /// The first frame of the huge zero page, if one was found. Before Linux 6.18 its entries are
    /// not special.
    pub huge_zero: Option<u64>,
}

impl Machine {
    /// The parameters common to all walks on this machine.
    pub(super) fn ctl(&self) -> Ctl {
        Ctl {
            direct_map: self.direct_map,
            addr_mask: self.format.address_mask,
            levels: self.levels,
            page_shift: self.format.shape.page_shift(),
            ..self.format.bits.ctl()
        }
    }
}

/// A clock tick of `/proc`, as in `walk.h`.
const NS_PER_TICK: u64 = 10_000_000;

/// Memory of our own, whole pages of any size, with a word that occurs nowhere else.
struct MagicPage {
    page: Box<MagicBytes>,
    word: u64,
}

#[repr(C, align(0x1_0000))]
struct MagicBytes([u64; 0x1_0000 / 8]);

impl MagicPage {
    fn new() -> Self {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |t| t.as_nanos() as u64);
        let word = (clock ^ u64::from(std::process::id()) << 40)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
            | 1;
        let mut page = Box::new(MagicBytes([0; 0x1_0000 / 8]));
        page.0[0] = word;
        std::hint::black_box(&mut page);
        MagicPage { page, word }
    }

    fn va(&self) -> u64 {
        (&raw const *self.page) as u64
    }

    /// Hides it from the MMU while `during` runs.
    fn hidden<T>(&mut self, during: impl FnOnce(&Self) -> T) -> Result<T, AccessError> {
        use rustix::mm::{MprotectFlags, mprotect};
        let at = (&raw mut *self.page).cast();
        let protect = |flags| {
            // SAFETY: these pages are ours alone, and nobody accesses them until they are restored.
            let done = unsafe { mprotect(at, size_of::<MagicBytes>(), flags) };
            done.map_err(|error| AccessError::io("mprotect(2)", error.into()))
        };
        protect(MprotectFlags::empty())?;
        let said = during(self);
        protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        Ok(said)
    }
}

/// The shape of this machine's page tables, if the walker supports them.
///
/// # Errors
/// [`AccessError::Unsupported`] with the reason.
pub(super) fn shape() -> Result<Shape, AccessError> {
    if entry::known_here().is_empty() {
        let arch = std::env::consts::ARCH;
        return unsupported(format!(
            "it supports page tables of x86-64 and AArch64, not {arch}"
        ));
    }
    let bytes = kernel_page_bytes();
    match Shape::of_pages(bytes) {
        Some(shape) => Ok(shape),
        None => unsupported(format!("it does not know pages of {bytes} bytes")),
    }
}

/// Finds the properties of the machine with the loaded program.
///
/// Without `CAP_SYS_ADMIN` and `CAP_SYSLOG`, the kernel reveals neither the frames of our pages nor
/// the address of its direct map. So each possible start of the direct map is tried: only with the
/// right one does the walk end at a page with our word in it.
pub(super) fn discover(program: &mut Program, shape: Shape) -> Result<Machine, AccessError> {
    let known = entry::known_here();
    let Some(bits) = known.first() else {
        return unsupported("it does not know this architecture");
    };
    let address = AddressWidth::read(bits);
    let address_end = memory_end(shape)?;
    if address_end > bits.address + PAGE_BYTES {
        return unsupported("memory ends above 256 TiB");
    }
    let format = EntryFormat {
        bits,
        address_mask: address.mask & !(shape.page_bytes() - 1),
        address_end,
        shape,
    };
    let mut magic = MagicPage::new();
    // The page may be migrated between two walks: retry.
    for _ in 0..8 {
        let first = search(program, shape, 0, 0, magic.word)?;
        // The root table of this process is in the direct map, so the map starts at most this many
        // steps below it.
        let shift = shape.direct_map_shift();
        let steps = (address_end >> shift) + 2;
        let below = (0..steps).map(|step| first.search_from.wrapping_sub(step << shift));
        let symbol = Some(first.search_symbol).filter(|at| *at != 0);
        for (direct_map, levels) in symbol.into_iter().chain(below).flat_map(with_levels) {
            let machine = Machine {
                direct_map,
                levels,
                format,
                encryption_mask: address.encryption_mask,
                huge_zero: None,
            };
            let Some(frame) = walk_to(program, &machine, magic.va())? else {
                continue;
            };
            let proof = search(program, shape, frame * PAGE_BYTES, steps, magic.word)?;
            if proof.rc != RC_DONE || proof.search_found != direct_map {
                continue;
            }
            match magic.hidden(|magic| with_bits(program, machine, magic, frame))?? {
                Some(machine) => return Ok(machine),
                None => break,
            }
        }
    }
    unsupported("a walk to a page of our own did not find what is in it")
}

/// Ticks by which start times in `/proc` are ahead of the kernel's own (wrapping): in a time
/// namespace they are those of its clock. For another process it may be one more or less.
pub(super) fn ticks_ahead(program: &mut Program, machine: &Machine) -> Result<u64, AccessError> {
    let pid = std::process::id();
    let found = program.walk(Ctl {
        tid: pid,
        tgid: pid,
        ..machine.ctl()
    })?;
    let own = Process::open(pid).map_err(|error| AccessError::Unsupported {
        what: "the BPF page-table walker",
        why: format!("it cannot look at itself: {error}"),
    })?;
    let ticks = found.seen_start_boottime / NS_PER_TICK;
    Ok(own.start_ticks().wrapping_sub(ticks))
}

/// A possible start of the direct map, with each possible number of levels.
fn with_levels(direct_map: u64) -> [(u64, u32); 4] {
    [4, 5, 3, 2].map(|levels| (direct_map, levels))
}

/// Completes the machine with the meaning of its entry bits, if that depends on the kernel: with
/// the right one, a page hidden from the MMU is still present at `frame`.
fn with_bits(
    program: &mut Program,
    machine: Machine,
    hidden: &MagicPage,
    frame: u64,
) -> Result<Option<Machine>, AccessError> {
    for bits in entry::known_here() {
        let format = EntryFormat {
            bits,
            ..machine.format
        };
        let machine = Machine { format, ..machine };
        if walk_to(program, &machine, hidden.va())? == Some(frame) {
            return Ok(Some(machine));
        }
    }
    Ok(None)
}

fn unsupported<T>(why: impl Into<String>) -> Result<T, AccessError> {
    Err(AccessError::Unsupported {
        what: "the BPF page-table walker",
        why: why.into(),
    })
}

/// Searches for the direct map: first where the kernel's symbol says, then at this many of its
/// possible starts.
fn search(
    program: &mut Program,
    shape: Shape,
    phys: u64,
    steps: u64,
    magic: u64,
) -> Result<Ctl, AccessError> {
    let found = program.search(Ctl {
        tid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        search_shift: shape.direct_map_shift(),
        search_phys: phys,
        search_magic: magic,
        search_steps: steps,
        ..Default::default()
    })?;
    if found.rc == RC_NO_TASK {
        return unsupported(
            "this process has another pid in the initial PID namespace; run agewise outside PID \
             namespaces (for a container: with the host's)",
        );
    }
    Ok(found)
}

/// The frame at which the walk to an address of our own arrives, run as in production.
pub(super) fn walk_to(
    program: &mut Program,
    machine: &Machine,
    va: u64,
) -> Result<Option<u64>, AccessError> {
    let (format, shape) = (machine.format, machine.format.shape);
    let Some(entry) = entry_at(program, machine, va)? else {
        return Ok(None);
    };
    Ok(if entry.kind == KIND_TABLE {
        let page = va % TABLE_BYTES / PAGE_BYTES;
        let (at, _) = shape.entry_of(va - va % TABLE_BYTES, page as usize);
        format.pfn(program.table(entry.slot).e[at])
    } else {
        Some(format.pfn_in_leaf(entry.entry, shape.entry_bytes(1), va))
    })
}

/// What a walk finds at an address of our own.
fn entry_at(
    program: &mut Program,
    machine: &Machine,
    va: u64,
) -> Result<Option<Entry>, AccessError> {
    program.set_ranges(&[Range {
        start: va,
        end: va + machine.format.shape.page_bytes(),
    }]);
    let out = program.walk(Ctl {
        tid: std::process::id(),
        tgid: std::process::id(),
        n_ranges: 1,
        ..machine.ctl()
    })?;
    let is_found = out.rc == RC_DONE && out.n_entries == 1;
    Ok(is_found.then(|| program.entries(1)[0]))
}

/// The first frame of the huge zero page, which anonymous memory gets that is read before it is
/// written. Two places of our own have it in common. It stays where it is for as long as we live,
/// because the kernel keeps it for a process that has ever read through it. If huge pages are off
/// now, it is not found, nor is it looked for again.
pub(super) fn huge_zero(
    program: &mut Program,
    machine: &Machine,
) -> Result<Option<u64>, AccessError> {
    if machine.format.shape.entry_bytes(1) != TABLE_BYTES {
        return Ok(None);
    }
    let Ok(unwritten) = Unwritten::map() else {
        return Ok(None);
    };
    let mut found = [None; 2];
    for (frame, va) in found.iter_mut().zip(unwritten.read()) {
        let entry = entry_at(program, machine, va)?;
        let leaf = entry.filter(|entry| entry.kind == KIND_PMD);
        *frame = leaf.and_then(|entry| machine.format.leaf_pfn(entry.entry));
    }
    Ok(found[0].filter(|_| found[0] == found[1]))
}

/// Anonymous memory of our own that is only read, in huge pages if the kernel permits.
struct Unwritten {
    at: *mut std::ffi::c_void,
}

impl Unwritten {
    /// Room for two aligned huge pages.
    const BYTES: usize = 3 * TABLE_BYTES as usize;

    fn map() -> rustix::io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, of which nothing else knows.
        let at = unsafe { mmap_anonymous(null, Self::BYTES, ProtFlags::READ, MapFlags::PRIVATE)? };
        let unwritten = Unwritten { at };
        // SAFETY: exactly that mapping; the advice changes no content.
        unsafe { madvise(at, Self::BYTES, Advice::LinuxHugepage)? };
        Ok(unwritten)
    }

    /// Reads from both, and returns their addresses.
    fn read(&self) -> [u64; 2] {
        let first = (self.at as usize).next_multiple_of(TABLE_BYTES as usize) - self.at as usize;
        [first, first + TABLE_BYTES as usize].map(|offset| {
            let at = self.at.cast::<u8>().wrapping_add(offset);
            // SAFETY: within the mapping, which is readable and never written.
            let _ = unsafe { at.read_volatile() };
            at as u64
        })
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, to which no reference exists.
        let _ = unsafe { rustix::mm::munmap(self.at, Self::BYTES) };
    }
}

struct AddressWidth {
    mask: u64,
    encryption_mask: u64,
}

impl AddressWidth {
    /// Reads CPUID 0x8000_0008 (physical address width) and 0x8000_001f (AMD memory encryption).
    #[cfg(target_arch = "x86_64")]
    fn read(bits: &Bits) -> Self {
        use std::arch::x86_64::__cpuid;
        let highest = __cpuid(0x8000_0000).eax;
        let width = if highest >= 0x8000_0008 {
            __cpuid(0x8000_0008).eax & 0xff
        } else {
            36
        };
        let width = width.clamp(32, 52);
        let mut encryption_mask = 0;
        if highest >= 0x8000_001f {
            let leaf = __cpuid(0x8000_001f);
            if leaf.eax & 0b11 != 0 {
                encryption_mask = (1u64 << (leaf.ebx & 0x3f)) & bits.address;
            }
        }
        let mask = bits.address & ((1u64 << width) - 1) & !encryption_mask;
        AddressWidth {
            mask,
            encryption_mask,
        }
    }

    /// The address width is not reported here, so assume all that an entry has room for.
    #[cfg(not(target_arch = "x86_64"))]
    fn read(bits: &Bits) -> Self {
        AddressWidth {
            mask: bits.address,
            encryption_mask: 0,
        }
    }
}

/// One past the last frame managed by the kernel, from the zones of `/proc/zoneinfo`.
pub(super) fn memory_end(shape: Shape) -> Result<u64, AccessError> {
    const PATH: &str = "/proc/zoneinfo";
    let text = fs::read_to_string(PATH).map_err(|error| AccessError::io(PATH, error))?;
    match zones_end(&text) {
        Some(pages) => Ok(pages.saturating_mul(shape.page_bytes())),
        None => unsupported(format!("{PATH} names no zone with memory")),
    }
}

/// The highest `start_pfn + spanned` of all zones.
fn zones_end(zoneinfo: &str) -> Option<u64> {
    let mut spanned = 0u64;
    let mut end = None;
    for line in zoneinfo.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("spanned"), Some(pages)) => spanned = pages.parse().ok()?,
            (Some("start_pfn:"), Some(first)) if spanned > 0 => {
                let first: u64 = first.parse().ok()?;
                end = end.max(Some(first + spanned));
            }
            _ => {}
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_memory_is_the_highest_zone() {
        let text = "Node 0, zone      DMA\n  pages free     2816\n        spanned  4095\n\
                    \x20       present  3998\n  start_pfn:           1\n\
                    Node 0, zone   Normal\n        spanned  5767168\n\
                    \x20 node_unreclaimable:  0\n  start_pfn:           1048576\n\
                    Node 0, zone  Movable\n        spanned  0\n  start_pfn:           0\n";
        assert_eq!(zones_end(text), Some(1048576 + 5767168));
        assert_eq!(zones_end(""), None);
    }
}
