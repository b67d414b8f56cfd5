// SPDX-License-Identifier: Apache-2.0
//! The kernel's own files for the same question: `/proc/PID/smaps` (how much of each mapping was
//! referenced) and `/proc/PID/pagemap` (which pages are present, nothing about accesses). The cost
//! of agewise is reported relative to the cost of these in the same session.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use agewise_host::clock::thread_cpu_ns;

/// Cost and result of one reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPU time, in ns.
    pub cpu_ns: u64,
    /// Resident memory found, in bytes.
    pub resident_bytes: u64,
    /// Referenced memory found, in bytes; 0 if the file does not report it.
    pub referenced_bytes: u64,
}

/// Reads all of smaps and sums up `Rss` and `Referenced`.
///
/// # Errors
/// The file cannot be read.
pub fn smaps(pid: u32) -> io::Result<Reading> {
    let mut text = String::new();
    let start = thread_cpu_ns();
    File::open(format!("/proc/{pid}/smaps"))?.read_to_string(&mut text)?;
    let mut reading = Reading::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            reading.resident_bytes += kib(rest);
        } else if let Some(rest) = line.strip_prefix("Referenced:") {
            reading.referenced_bytes += kib(rest);
        }
    }
    reading.cpu_ns = thread_cpu_ns() - start;
    Ok(reading)
}

/// Parses `   1234 kB` into bytes; returns 0 for anything else.
fn kib(text: &str) -> u64 {
    text.trim()
        .strip_suffix(" kB")
        .and_then(|n| n.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Reads the pagemap of `ranges` (address, pages) and counts the present pages.
///
/// # Errors
/// The file cannot be read.
pub fn pagemap(pid: u32, ranges: &[(u64, u64)]) -> io::Result<Reading> {
    const PRESENT: u64 = 1 << 63;
    const ENTRIES: usize = 1 << 16;
    let mut buffer = vec![0u8; ENTRIES * 8];
    let start = thread_cpu_ns();
    let file = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut present = 0u64;
    for &(address, pages) in ranges {
        let mut done = 0;
        while done < pages {
            let count = (pages - done).min(ENTRIES as u64);
            let part = &mut buffer[..count as usize * 8];
            file.read_exact_at(part, (address / super::PAGE_BYTES + done) * 8)?;
            present += part
                .as_chunks::<8>()
                .0
                .iter()
                .filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0)
                .count() as u64;
            done += count;
        }
    }
    Ok(Reading {
        cpu_ns: thread_cpu_ns() - start,
        resident_bytes: present * super::PAGE_BYTES,
        referenced_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_there() {
        let memory = vec![1u8; 1 << 20];
        let first = (memory.as_ptr() as u64).next_multiple_of(super::super::PAGE_BYTES);
        let reading = pagemap(std::process::id(), &[(first, 255)]).expect("pagemap");
        assert_eq!(reading.resident_bytes, 255 * super::super::PAGE_BYTES);
        let reading = smaps(std::process::id()).expect("smaps");
        assert!(reading.resident_bytes > 1 << 20);
        assert!(reading.referenced_bytes > 0);
    }

    #[test]
    fn kibibytes() {
        assert_eq!(kib("     12 kB"), 12288);
        assert_eq!(kib("nothing"), 0);
    }
}
