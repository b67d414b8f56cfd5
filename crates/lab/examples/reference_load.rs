// SPDX-License-Identifier: Apache-2.0
//! Makes the touches of a reference trace on a real kernel, and prints what the kernel counted:
//! rows of `reference/kernels.csv`. `make reference` runs it in a guest.
//!
//! `reference_load REP PATTERN PAGES HOT THETA TOUCHES CGROUP FILE [MEMBERS MEMBER]`: it moves
//! itself into the cgroup, or as one of several members into `CGROUP/mN`, and reads what limits it,
//! the kernel's version, swappiness and `lru_gen/enabled` by itself. Members wait for a byte on
//! standard input before each turn, and write one after it: with `all` for MEMBER it starts them
//! and gives them their turns. A pattern that ends in `+w` writes anonymous memory, others read.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use agewise_lab::reference::{COLUMNS, Phase, TURN};
use agewise_lab::workload::kernel_trace::{FILE_BIT, Medium, TraceGenerator, TraceSpec};
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};

const PAGE: usize = 4096;
const SEED: u64 = 12345;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The program's memory, as a trace wants it.
struct Memory {
    medium: Medium,
    writes: bool,
    anon: MmapMut,
    mapped: Option<Mmap>,
    /// None where the trace needs none: opening one charges pages of its file system.
    file: Option<File>,
    buffer: Box<[u8; PAGE]>,
}

impl Memory {
    fn new(spec: &TraceSpec, medium: Medium, writes: bool, file: &str) -> Result<Self> {
        let file = match medium {
            Medium::Anon => None,
            Medium::File | Medium::Mmap | Medium::Mixed => Some(File::open(file)?),
        };
        let anon_pages = match medium {
            Medium::Anon => spec.pages,
            Medium::Mixed => spec.hot,
            Medium::File | Medium::Mmap => 1,
        };
        let anon = MmapOptions::new()
            .len(anon_pages as usize * PAGE)
            .map_anon()?;
        let mapped = match (medium, &file) {
            (Medium::Mmap, Some(file)) => {
                // SAFETY: nobody writes the file or cuts it while this program runs.
                let map = unsafe {
                    MmapOptions::new()
                        .len(spec.pages as usize * PAGE)
                        .map(file)?
                };
                map.advise(Advice::Normal)?;
                Some(map)
            }
            _ => None,
        };
        if let Some(file) = &file {
            // SAFETY: a descriptor of ours; pages come one by one.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        }
        Ok(Memory {
            medium,
            writes,
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
                let wanted = (at / PAGE) as u32 + 1;
                let word = &mut self.anon[at..at + 4];
                if self.writes {
                    word.copy_from_slice(&wanted.to_ne_bytes());
                    return Ok(());
                }
                match u32::from_ne_bytes((&*word).try_into()?) {
                    found if found == wanted => Ok(()),
                    found => Err(format!("page {} holds {found}", at / PAGE).into()),
                }
            }
        }
    }

    fn read(&mut self, at: usize) -> Result<()> {
        let file = self.file.as_ref().ok_or("no file")?;
        Ok(file.read_exact_at(&mut self.buffer[..], at as u64)?)
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

/// What the arguments say.
struct Load {
    rep: String,
    spec: TraceSpec,
    writes: bool,
    cgroup: String,
    file: String,
    members: u32,
    /// None: the one who gives all of them their turns.
    member: Option<u32>,
}

impl Load {
    fn parse(args: &[String]) -> Result<Self> {
        let (args, members) = args.split_at(args.len().min(8));
        let [rep, pattern, pages, hot, theta, touches, cgroup, file] = args else {
            return Err(
                "usage: reference_load REP PATTERN PAGES HOT THETA TOUCHES CGROUP FILE \
                        [MEMBERS MEMBER]"
                    .into(),
            );
        };
        let (members, member) = match members {
            [] => (1, Some(0)),
            [members, all] if all == "all" => (members.parse()?, None),
            [members, member] => (members.parse()?, Some(member.parse()?)),
            _ => return Err("MEMBERS and MEMBER come together".into()),
        };
        let (pattern, writes) = match pattern.strip_suffix("+w") {
            Some(plain) => (plain, true),
            None => (pattern.as_str(), false),
        };
        let spec = TraceSpec {
            pattern: pattern.to_owned(),
            pages: pages.parse()?,
            hot: hot.parse()?,
            theta: theta.parse()?,
            seed: SEED + u64::from(member.unwrap_or(0)),
            touches: touches.parse()?,
        };
        Ok(Load {
            rep: rep.clone(),
            spec,
            writes,
            cgroup: cgroup.clone(),
            file: file.clone(),
            members,
            member,
        })
    }

    /// Touches of a phase.
    fn touches(&self, phase: Phase, medium: Medium) -> u64 {
        match (phase, medium) {
            (Phase::Populate, Medium::Mixed) => self.spec.hot.into(),
            (Phase::Populate, _) => self.spec.pages.into(),
            (Phase::Warm, _) => self.spec.touches / 4,
            (Phase::Main, _) => self.spec.touches,
        }
    }

    fn own_cgroup(&self, member: u32) -> String {
        match self.members {
            1 => self.cgroup.clone(),
            _ => format!("{}/m{member}", self.cgroup),
        }
    }

    /// The columns that are the same in all phases.
    fn about(&self, member: u32) -> Result<String> {
        let protection = |name: &str| match self.members {
            1 => Ok("0".to_owned()),
            _ => word(&format!("{}/m0/{name}", self.cgroup)),
        };
        Ok([
            word("/proc/sys/kernel/osrelease")?,
            "1".into(),
            self.rep.clone(),
            word("/sys/kernel/mm/lru_gen/enabled")?,
            word(&format!("{}/memory.max", self.cgroup))?,
            word("/proc/sys/vm/swappiness")?,
            self.members.to_string(),
            member.to_string(),
            protection("memory.min")?,
            protection("memory.low")?,
            u32::from(self.writes).to_string(),
        ]
        .join(","))
    }
}

/// One program: its rows.
fn run(load: &Load, member: u32) -> Result<Vec<String>> {
    let spec = &load.spec;
    // Made before the cgroup is entered, as it is not of the trace.
    let mut trace = TraceGenerator::new(spec)?;
    let about = load.about(member)?;
    let cgroup = load.own_cgroup(member);
    fs::write(format!("{cgroup}/cgroup.procs"), "0")?;
    let medium = trace.pattern().medium;
    let mut memory = Memory::new(spec, medium, load.writes, &load.file)?;
    let mut rows = Vec::new();
    for phase in Phase::ALL {
        let count = load.touches(phase, medium);
        let before = Counts::take(&cgroup)?;
        for t in 0..count {
            if load.members > 1 && t % TURN == 0 {
                wait_for_turn(t > 0)?;
            }
            match phase {
                Phase::Populate => memory.populate(t as u32)?,
                Phase::Warm | Phase::Main => memory.touch(trace.next(t, count))?,
            }
        }
        if load.members > 1 {
            // The last turn is over; what was counted is read in a turn as well.
            wait_for_turn(true)?;
        }
        let after = Counts::take(&cgroup)?;
        let by_reads = matches!(medium, Medium::File | Medium::Mixed) && phase != Phase::Populate;
        let misses = match by_reads {
            true => after.read_pages - before.read_pages,
            false => after.major_faults - before.major_faults,
        };
        let elapsed = (after.at - before.at).as_secs_f64();
        rows.push(format!(
            "{about},{},{},{},{},{},{},{count},{misses},{elapsed:.3},{}",
            phase.name(),
            spec.pattern,
            spec.pages,
            spec.hot,
            spec.theta,
            spec.seed,
            after.scanned - before.scanned
        ));
        if load.members > 1 {
            std::io::stdout().write_all(b"t")?;
            std::io::stdout().flush()?;
        }
    }
    let hash = trace.hash();
    Ok(rows
        .into_iter()
        .map(|row| format!("{row},{hash:016x},0"))
        .collect())
}

/// Ends a turn, if one was had, and waits for the next.
fn wait_for_turn(had_one: bool) -> Result<()> {
    if had_one {
        std::io::stdout().write_all(b"t")?;
        std::io::stdout().flush()?;
    }
    std::io::stdin().read_exact(&mut [0])?;
    Ok(())
}

/// Starts the members and gives them their turns, one after the other, until all have ended.
fn give_turns(load: &Load) -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut members = Vec::new();
    for number in 0..load.members {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&args[..9]).arg(number.to_string());
        members.push(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?,
        );
    }
    let mut turns = 0;
    for phase in Phase::ALL {
        let medium = TraceGenerator::new(&load.spec)?.pattern().medium;
        // And one more, in which the counts are read.
        turns += load.touches(phase, medium).div_ceil(TURN) + 1;
    }
    for _ in 0..turns {
        for member in &mut members {
            let (to, from) = (member.stdin.as_mut(), member.stdout.as_mut());
            to.ok_or("no pipe")?.write_all(b"t")?;
            from.ok_or("no pipe")?.read_exact(&mut [0])?;
        }
    }
    println!("@{COLUMNS}");
    for mut member in members {
        drop(member.stdin.take());
        let mut rows = String::new();
        member
            .stdout
            .take()
            .ok_or("no pipe")?
            .read_to_string(&mut rows)?;
        print!("{rows}");
        member.wait()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let load = Load::parse(&args)?;
    let Some(member) = load.member else {
        return give_turns(&load);
    };
    let rows = run(&load, member)?;
    if load.members == 1 {
        println!("@{COLUMNS}");
    }
    for row in rows {
        println!("@{row}");
    }
    Ok(())
}
