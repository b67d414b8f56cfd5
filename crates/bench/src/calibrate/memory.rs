// SPDX-License-Identifier: Apache-2.0
//! Prices of what the kernel does with pages, each measured by one operation on memory of our own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use agewise_cli::children::children_usage;
use agewise_host::clock::thread_cpu_ns;
use memmap2::{Mmap, MmapMut, MmapOptions};

use crate::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;
/// Pages of a measurement, where their number does not matter.
pub const PAGES: usize = 4096;
/// Pages for loads that mostly miss the caches: 128 MiB.
const WIDE_PAGES: usize = 1 << 15;
/// Further mappings of a page whose reverse map is walked.
const MAPPINGS: usize = 16;
/// Processes made for the price of one, and changes of protection for that of a flush.
const REPEATS: usize = 200;

/// CPU time of this thread while `work` ran, in ns, per one of `count` operations.
fn cpu_ns(count: usize, work: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
    let start_ns = thread_cpu_ns();
    work()?;
    Ok(thread_cpu_ns().saturating_sub(start_ns) as f64 / count as f64)
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives advice on a mapping of our own.
fn advise(at: *const u8, bytes: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the callers own the range, and none of the advice they give changes its content.
    check(unsafe { libc::madvise(at.cast_mut().cast(), bytes, advice) })
}

/// Anonymous memory in base pages; nothing of it is present.
fn anonymous(pages: usize) -> io::Result<MmapMut> {
    let memory = MmapOptions::new().len(pages * PAGE).map_anon()?;
    advise(memory.as_ptr(), memory.len(), libc::MADV_NOHUGEPAGE)?;
    Ok(memory)
}

fn touch_all(memory: &mut [u8]) {
    memory
        .iter_mut()
        .step_by(PAGE)
        .for_each(|byte| *std::hint::black_box(byte) = 1);
}

/// `hit_ns`: each load is from another page, at an address that the one before has brought.
pub fn hit_ns() -> io::Result<f64> {
    let mut memory = anonymous(WIDE_PAGES)?;
    // A full-period generator modulo the number of pages visits each of them once.
    let next = |page: usize| (page * 5 + 12_345) % WIDE_PAGES;
    let line = |page: usize| page * PAGE + page % 64 * 64;
    for page in 0..WIDE_PAGES {
        let following = (next(page) as u32).to_ne_bytes();
        memory[line(page)..line(page) + 4].copy_from_slice(&following);
    }
    let mut page = 0;
    let ns = cpu_ns(WIDE_PAGES, || {
        for _ in 0..WIDE_PAGES {
            let at = line(page);
            let bytes = [memory[at], memory[at + 1], memory[at + 2], memory[at + 3]];
            page = u32::from_ne_bytes(bytes) as usize;
        }
        Ok(())
    });
    std::hint::black_box(page);
    ns
}

/// `fault_ns`: the first touch of an anonymous page.
pub fn fault_ns() -> io::Result<f64> {
    let mut memory = anonymous(PAGES)?;
    cpu_ns(PAGES, || {
        touch_all(&mut memory);
        Ok(())
    })
}

/// `file_io_ns`: `pread` of a page that is in the page cache.
pub fn file_io_ns(file: &File) -> io::Result<f64> {
    let mut buffer = [0; PAGE];
    let mut read =
        || (0..PAGES).try_for_each(|page| file.read_exact_at(&mut buffer, (page * PAGE) as u64));
    read()?;
    cpu_ns(PAGES, read)
}

/// `pte_check_ns` and `list_move_ns`: `MADV_COLD` looks at every entry and takes active pages to
/// the inactive list. Once they are there, it only looks. None with the multi-gen LRU, which moves
/// a page each time or, since Linux 6.14, never.
pub fn walk_and_move_ns(file: &File) -> io::Result<Option<[f64; 2]>> {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
    if enabled.trim_end().ends_with(['1', '3', '5', '7']) {
        return Ok(None);
    }
    let mapped = map(file)?;
    let cold = || advise(mapped.as_ptr(), mapped.len(), libc::MADV_COLD);
    // Now no entry is marked as accessed, and reading through the descriptor marks none.
    cold()?;
    let mut buffer = [0; PAGE];
    for _ in 0..3 {
        for page in 0..PAGES {
            file.read_exact_at(&mut buffer, (page * PAGE) as u64)?;
        }
    }
    let both = cpu_ns(PAGES, cold)?;
    let walk = cpu_ns(PAGES, cold)?;
    Ok(Some([walk, both - walk]))
}

/// Maps the file, with all its pages present.
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the file is a temporary one that only this program has.
    unsafe { MmapOptions::new().len(PAGES * PAGE).populate().map(file) }
}

/// `rmap_visit_ns`: before a page is written back, all its mappings are visited
/// (`folio_mkclean`). Those here are read-only, so that there is nothing to do with them. None if
/// the file has no device.
pub fn rmap_visit_ns(file: &File) -> io::Result<f64> {
    let write_back = || {
        for page in 0..PAGES {
            file.write_all_at(&[1], (page * PAGE) as u64)?;
        }
        cpu_ns(PAGES, || file.sync_data())
    };
    let alone = write_back()?;
    let mappings: Vec<Mmap> = (0..MAPPINGS).map(|_| map(file)).collect::<Result<_, _>>()?;
    let mapped = write_back()?;
    drop(mappings);
    Ok((mapped - alone) / MAPPINGS as f64)
}

/// `tlb_flush_ns`: taking the permission to write from a page that is present, less the same where
/// nothing is present and no flush follows.
pub fn tlb_flush_ns() -> io::Result<f64> {
    let mut memory = anonymous(2)?;
    memory[0] = 1;
    let protect = |page: usize, protection| {
        // SAFETY: a page of our own mapping, which nobody uses meanwhile.
        check(unsafe { libc::mprotect(memory.as_ptr().add(page * PAGE) as _, PAGE, protection) })
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let change = |page: usize| {
        cpu_ns(REPEATS, || {
            (0..REPEATS).try_for_each(|_| {
                protect(page, libc::PROT_READ)?;
                protect(page, both)
            })
        })
    };
    let [absent, present] = [change(1)?, change(0)?];
    Ok(present - absent)
}

/// `tlb_remote_ns`: how much more a flush takes while another thread of ours runs on another CPU.
pub fn tlb_remote_ns(local_ns: f64) -> io::Result<f64> {
    let stop = AtomicBool::new(false);
    let started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.store(true, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let both = tlb_flush_ns();
        stop.store(true, Ordering::Relaxed);
        both.map(|both| both - local_ns)
    })
}

/// `process_ns`: half of making a process and of its end, with what the process itself takes.
pub fn process_ns() -> io::Result<f64> {
    let before = children_usage().cpu;
    let ns = cpu_ns(REPEATS, || {
        (0..REPEATS).try_for_each(|_| {
            // SAFETY: the child calls nothing but _exit.
            match unsafe { libc::fork() } {
                -1 => Err(io::Error::last_os_error()),
                // SAFETY: ends the child at once.
                0 => unsafe { libc::_exit(0) },
                // SAFETY: waits for a child of ours, and wants no status.
                pid => match unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                },
            }
        })
    })?;
    let ended = children_usage().cpu.saturating_sub(before);
    Ok((ns + ended.as_nanos() as f64 / REPEATS as f64) / 2.0)
}
