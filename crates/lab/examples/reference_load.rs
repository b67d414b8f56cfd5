// SPDX-License-Identifier: Apache-2.0
//! Makes the touches of a reference trace on a real kernel, and prints what the kernel counted: rows
//! of `reference/kernels.csv`. `make reference` runs it in a guest.
//!
//! `reference_load REP PATTERN PAGES HOT THETA TOUCHES CGROUP FILE`: it moves itself into the cgroup
//! and reads its limit, the kernel's version, swappiness and `lru_gen/enabled` by itself.

use std::error::Error;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use agewise_lab::reference::{COLUMNS, Phase};
use agewise_lab::workload::kernel_trace::{FILE_BIT, Medium, TraceGenerator, TraceSpec};
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};

const PAGE: usize = 4096;
const SEED: u64 = 12345;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The program's memory, as a trace wants it.
struct Memory {
    medium: Medium,
    anon: MmapMut,
    mapped: Option<Mmap>,
    file: File,
    buffer: Box<[u8; PAGE]>,
}

impl Memory {
    fn new(spec: &TraceSpec, medium: Medium, file: &str) -> Result<Self> {
        let file = File::open(file)?;
        let anon_pages = match medium {
            Medium::Anon => spec.pages,
            Medium::Mixed => spec.hot,
            Medium::File | Medium::Mmap => 1,
        };
        let anon = MmapOptions::new()
            .len(anon_pages as usize * PAGE)
            .map_anon()?;
        let mapped = match medium {
            Medium::Mmap => {
                // SAFETY: nobody writes the file or cuts it while this program runs.
                let map = unsafe {
                    MmapOptions::new()
                        .len(spec.pages as usize * PAGE)
                        .map(&file)?
                };
                map.advise(Advice::Normal)?;
                Some(map)
            }
            _ => None,
        };
        // SAFETY: a descriptor of ours; pages come one by one.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Ok(Memory {
            medium,
            anon,
            mapped,
            file,
            buffer: Box::new([0; PAGE]),
        })
    }

    fn populate(&mut self, page: u32) -> Result<()> {
        match self.medium {
            Medium::Anon | Medium::Mixed => {
                let at = page as usize * PAGE;
                self.anon[at..at + 4].copy_from_slice(&(page + 1).to_ne_bytes());
                Ok(())
            }
            Medium::File | Medium::Mmap => self.touch(page),
        }
    }

    fn touch(&mut self, code: u32) -> Result<()> {
        let at = (code & !FILE_BIT) as usize * PAGE;
        match self.medium {
            Medium::File => self.read(at),
            Medium::Mixed if code & FILE_BIT != 0 => self.read(at),
            Medium::Mmap => {
                let mapped = self.mapped.as_ref().ok_or("no mapping")?;
                std::hint::black_box(mapped[at]);
                Ok(())
            }
            Medium::Anon | Medium::Mixed => {
                let word = u32::from_ne_bytes(self.anon[at..at + 4].try_into()?);
                match word as usize == at / PAGE + 1 {
                    true => Ok(()),
                    false => Err(format!("page {} holds {word}", at / PAGE).into()),
                }
            }
        }
    }

    fn read(&mut self, at: usize) -> Result<()> {
        Ok(self.file.read_exact_at(&mut self.buffer[..], at as u64)?)
    }
}

/// What the kernel counts of this process and its cgroup.
struct Counts {
    major_faults: u64,
    read_pages: u64,
    scanned: u64,
    at: Instant,
}

impl Counts {
    fn take(cgroup: &str) -> Result<Self> {
        // Counters of all CPUs are brought together by a write.
        let _ = fs::write("/proc/sys/vm/stat_refresh", "1");
        let stat = fs::read_to_string("/proc/self/stat")?;
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let major_faults = after_name.split_whitespace().nth(9).ok_or("no majflt")?;
        Ok(Counts {
            major_faults: major_faults.parse()?,
            read_pages: field("/proc/self/io", "read_bytes:")? / PAGE as u64,
            scanned: field(&format!("{cgroup}/memory.stat"), "pgscan")?,
            at: Instant::now(),
        })
    }
}

fn field(path: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(word, _)| *word == name);
    Ok(found
        .ok_or_else(|| format!("{path} has no {name}"))?
        .1
        .trim()
        .parse()?)
}

fn word(path: &str) -> Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rep, pattern, pages, hot, theta, touches, cgroup, file] = &args[..] else {
        return Err("usage: reference_load REP PATTERN PAGES HOT THETA TOUCHES CGROUP FILE".into());
    };
    let spec = TraceSpec {
        pattern: pattern.clone(),
        pages: pages.parse()?,
        hot: hot.parse()?,
        theta: theta.parse()?,
        seed: SEED,
        touches: touches.parse()?,
    };
    // Made before the cgroup is entered, as it is not of the trace.
    let mut trace = TraceGenerator::new(&spec)?;
    let about = [
        word("/proc/sys/kernel/osrelease")?,
        "1".into(),
        rep.clone(),
        word("/sys/kernel/mm/lru_gen/enabled")?,
        word(&format!("{cgroup}/memory.max"))?,
        word("/proc/sys/vm/swappiness")?,
    ]
    .join(",");
    fs::write(format!("{cgroup}/cgroup.procs"), "0")?;
    let medium = trace.pattern().medium;
    let mut memory = Memory::new(&spec, medium, file)?;
    let mut rows = Vec::new();
    for phase in Phase::ALL {
        let count = match (phase, medium) {
            (Phase::Populate, Medium::Mixed) => spec.hot.into(),
            (Phase::Populate, _) => spec.pages.into(),
            (Phase::Warm, _) => spec.touches / 4,
            (Phase::Main, _) => spec.touches,
        };
        let before = Counts::take(cgroup)?;
        for t in 0..count {
            match phase {
                Phase::Populate => memory.populate(t as u32)?,
                Phase::Warm | Phase::Main => memory.touch(trace.next(t, count))?,
            }
        }
        let after = Counts::take(cgroup)?;
        let by_reads = matches!(medium, Medium::File | Medium::Mixed) && phase != Phase::Populate;
        let misses = match by_reads {
            true => after.read_pages - before.read_pages,
            false => after.major_faults - before.major_faults,
        };
        let elapsed = (after.at - before.at).as_secs_f64();
        rows.push(format!(
            "{about},{},{pattern},{pages},{hot},{theta},{SEED},{count},{misses},{elapsed:.3},{}",
            phase.name(),
            after.scanned - before.scanned
        ));
    }
    println!("@{COLUMNS}");
    for row in rows {
        println!("@{row},{:016x},0", trace.hash());
    }
    Ok(())
}
