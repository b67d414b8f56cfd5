// SPDX-License-Identifier: Apache-2.0
//! Makes the touches of a reference trace on a real kernel, and prints the kernel's counts as rows
//! of `reference/kernels.csv`. `make reference` runs it in a guest.
//!
//! `reference_load REP PATTERN PAGES HOT THETA TOUCHES CGROUP FILE [MEMBERS MEMBER]` moves itself
//! into the cgroup, or as one of several members into `CGROUP/mN`. It finds out its limits, the
//! kernel's version, swappiness and `lru_gen/enabled` by itself. Members wait for a byte on
//! standard input before each turn, and write one after it; with `all` for MEMBER it starts them
//! and gives them their turns. With a pattern that ends in `+w`, `file` and `mmap` write a few
//! bytes of a page of the file, the others write anonymous memory. With `+i` after it, memory is
//! interleaved over all nodes. Without MEMBERS it starts itself as the only program, and adds a row
//! if that is killed.

mod counts;

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use agewise_lab::reference::{COLUMNS, Phase, TURN};
use agewise_lab::workload::kernel_trace::{FILE_BIT, Medium, Pattern, TraceGenerator, TraceSpec};
use counts::{COUNTED, Counts, free_pages};
use memmap2::{MmapMut, MmapOptions, MmapRaw};

const PAGE: usize = 4096;
const SEED: u64 = 12345;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Memory of the program, as the trace needs it.
struct Memory {
    medium: Medium,
    writes: bool,
    anon: MmapMut,
    mapped: Option<MmapRaw>,
    /// None if the trace uses no file: opening one charges pages of its file system.
    file: Option<File>,
    buffer: Box<[u8; PAGE]>,
}

impl Memory {
    fn new(spec: &TraceSpec, medium: Medium, writes: bool, file: &str) -> Result<Self> {
        let file = match medium {
            Medium::Anon => None,
            Medium::File | Medium::Mmap | Medium::Mixed => Some(
                File::options()
                    .read(true)
                    .write(writes && medium != Medium::Mixed)
                    .open(file)?,
            ),
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
                let mut options = MmapOptions::new();
                options.len(spec.pages as usize * PAGE);
                Some(match writes {
                    true => options.map_raw(file)?,
                    false => options.map_raw_read_only(file)?,
                })
            }
            _ => None,
        };
        if let Some(file) = &file {
            // SAFETY: the descriptor is ours; the advice only makes pages come one by one.
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
            Medium::File if self.writes => {
                let file = self.file.as_ref().ok_or("no file")?;
                Ok(file.write_all_at(&code.to_ne_bytes(), at as u64)?)
            }
            Medium::File => self.read(at),
            Medium::Mixed if code & FILE_BIT != 0 => self.read(at),
            Medium::Mmap => {
                let mapped = self.mapped.as_ref().ok_or("no mapping")?;
                // SAFETY: the trace stays within the mapped pages, which are writable if it writes,
                // and nobody truncates the file while this program runs.
                unsafe {
                    match self.writes {
                        true => mapped.as_mut_ptr().add(at).write_volatile(code as u8),
                        false => _ = mapped.as_ptr().add(at).read_volatile(),
                    }
                }
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

fn word(path: &str) -> Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// Number of nodes with memory, which are numbered from 0.
fn nodes() -> Result<u32> {
    let list = word("/sys/devices/system/node/has_memory")?;
    let last = list.rsplit(['-', ',']).next().unwrap_or_default();
    Ok(last.parse::<u32>()? + 1)
}

/// Makes this process take its memory from so many nodes in turn.
fn interleave(nodes: u32) -> Result<()> {
    let mask: libc::c_ulong = (1 << nodes) - 1;
    // SAFETY: the mask outlives the call, and has as many bits as the call says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_INTERLEAVE,
            &raw const mask,
            libc::c_ulong::BITS,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// The parsed arguments.
struct Load {
    rep: String,
    spec: TraceSpec,
    medium: Medium,
    writes: bool,
    /// Number of nodes over which memory is interleaved, or 1.
    interleave: u32,
    cgroup: String,
    file: String,
    members: u32,
    /// None for the process that gives the members their turns.
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
            [] => (1, None),
            [members, all] if all == "all" => (members.parse()?, None),
            [members, member] => (members.parse()?, Some(member.parse()?)),
            _ => return Err("MEMBERS and MEMBER come together".into()),
        };
        let (pattern, interleave) = match pattern.strip_suffix("+i") {
            Some(plain) => (plain, nodes()?),
            None => (pattern.as_str(), 1),
        };
        let (pattern, writes) = match pattern.strip_suffix("+w") {
            Some(plain) => (plain, true),
            None => (pattern, false),
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
            medium: Pattern::parse(pattern)?.medium,
            spec,
            writes,
            interleave,
            cgroup: cgroup.clone(),
            file: file.clone(),
            members,
            member,
        })
    }

    /// Number of touches in a phase.
    fn touches(&self, phase: Phase) -> u64 {
        match (phase, self.medium) {
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

    /// The columns with the same values in all phases: those before the phase, and those after
    /// `err`.
    fn about(&self, member: u32) -> Result<[String; 2]> {
        let protection = |name: &str| match self.members {
            1 => Ok("0".to_owned()),
            _ => word(&format!("{}/m0/{name}", self.cgroup)),
        };
        let limit = word(&format!("{}/memory.max", self.cgroup))?;
        let is_limited = limit != "max";
        let first = [
            word("/proc/sys/kernel/osrelease")?,
            "1".into(),
            self.rep.clone(),
            word("/sys/kernel/mm/lru_gen/enabled")?,
            if is_limited { limit } else { "0".into() },
            word("/proc/sys/vm/swappiness")?,
            self.members.to_string(),
            member.to_string(),
            protection("memory.min")?,
            protection("memory.low")?,
            u32::from(self.writes).to_string(),
        ];
        let thp = word("/sys/kernel/mm/transparent_hugepage/enabled")?;
        let last = [
            std::thread::available_parallelism()?.to_string(),
            word("/sys/kernel/mm/lru_gen/min_ttl_ms")?,
            u32::from(thp.contains("[always]")).to_string(),
            if is_limited {
                String::new()
            } else {
                free_pages()?
            },
        ];
        Ok([first.join(","), last.join(",")])
    }

    /// The row of a phase.
    fn row(&self, about: &[String; 2], phase: Phase, row: &Row) -> Result<String> {
        let Load { spec, .. } = self;
        let [first, last] = about;
        let touches = self.touches(phase);
        let [scanned, further @ ..] = row.counted;
        let killed = u32::from(row.killed);
        let further = further.map(|count| count.to_string()).join(",");
        Ok(format!(
            "{first},{},{},{},{},{},{},{touches},{},{:.3},{scanned},{},0,{last},\
             {further},{},{killed},{},{}",
            phase.name(),
            spec.pattern,
            spec.pages,
            spec.hot,
            spec.theta,
            spec.seed,
            row.misses,
            row.elapsed_s,
            row.hash
                .map_or(String::new(), |hash| format!("{hash:016x}")),
            row.allocstall,
            word("/proc/sys/vm/watermark_boost_factor")?,
            self.interleave
        ))
    }
}

/// The measured part of a row.
#[derive(Default)]
struct Row {
    misses: u64,
    elapsed_s: f64,
    counted: [u64; COUNTED.len()],
    allocstall: u64,
    hash: Option<u64>,
    killed: bool,
}

/// The hash of all touches of the trace.
fn hash_of(load: &Load) -> Result<u64> {
    let mut trace = TraceGenerator::new(&load.spec)?;
    for phase in [Phase::Warm, Phase::Main] {
        let count = load.touches(phase);
        for t in 0..count {
            trace.next(t, count);
        }
    }
    Ok(trace.hash())
}

/// Runs one program. It prints a row at the end of each phase; one of several members prints all
/// rows at the end, since until then its output delimits turns.
fn run(load: &Load, member: u32) -> Result<()> {
    // Computed before entering the cgroup, as it is not part of the trace.
    let hash = hash_of(load)?;
    let mut trace = TraceGenerator::new(&load.spec)?;
    let cgroup = load.own_cgroup(member);
    if word(&format!("{}/memory.max", load.cgroup))? == "max" {
        // Without a limit, this memory must not be reclaimed either.
        // SAFETY: it locks mapped memory and changes none of it.
        unsafe { libc::mlockall(libc::MCL_CURRENT) };
    }
    let about = load.about(member)?;
    fs::write(format!("{cgroup}/cgroup.procs"), "0")?;
    if load.interleave > 1 {
        interleave(load.interleave)?;
    }
    let medium = load.medium;
    let mut memory = Memory::new(&load.spec, medium, load.writes, &load.file)?;
    let mut rows = Vec::new();
    for phase in Phase::ALL {
        let count = load.touches(phase);
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
            // After the last turn; the counts are also read in a turn.
            wait_for_turn(true)?;
        }
        let after = Counts::take(&cgroup)?;
        let by_reads = matches!(medium, Medium::File | Medium::Mixed) && phase != Phase::Populate;
        let row = Row {
            misses: match by_reads {
                true => after.read_pages - before.read_pages,
                false => after.major_faults - before.major_faults,
            },
            elapsed_s: (after.at - before.at).as_secs_f64(),
            counted: std::array::from_fn(|at| after.counted[at] - before.counted[at]),
            allocstall: after.allocstall - before.allocstall,
            hash: Some(hash),
            killed: false,
        };
        rows.push(load.row(&about, phase, &row)?);
        if load.members > 1 {
            std::io::stdout().write_all(b"t")?;
            std::io::stdout().flush()?;
        } else {
            println!("{}", rows.remove(0));
        }
    }
    for row in rows {
        println!("{row}");
    }
    Ok(())
}

/// Starts the only program, and adds a row for the phase in which it was killed.
fn supervise(load: &Load) -> Result<()> {
    println!("@{COLUMNS}");
    let args: Vec<String> = std::env::args().skip(1).collect();
    let about = load.about(0)?;
    let mut program = Command::new(std::env::current_exe()?)
        .args(&args[..8])
        .args(["1", "0"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut phases = Phase::ALL.into_iter();
    let mut since = Instant::now();
    let output = program.stdout.take().ok_or("no pipe")?;
    for row in BufReader::new(output).lines() {
        println!("@{}", row?);
        phases.next();
        since = Instant::now();
    }
    match (program.wait()?.signal(), phases.next()) {
        (Some(libc::SIGKILL), Some(phase)) => {
            let row = Row {
                elapsed_s: since.elapsed().as_secs_f64(),
                killed: true,
                ..Row::default()
            };
            println!("@{}", load.row(&about, phase, &row)?);
            Ok(())
        }
        (None, None) => Ok(()),
        (status, _) => Err(format!("the program ended early: signal {status:?}").into()),
    }
}

/// Ends the current turn, if any, and waits for the next.
fn wait_for_turn(had_one: bool) -> Result<()> {
    if had_one {
        std::io::stdout().write_all(b"t")?;
        std::io::stdout().flush()?;
    }
    std::io::stdin().read_exact(&mut [0])?;
    Ok(())
}

/// Starts the members and gives them turns, one after the other, until all have ended.
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
        // One more turn, in which the counts are read.
        turns += load.touches(phase).div_ceil(TURN) + 1;
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
        for row in rows.lines() {
            println!("@{row}");
        }
        member.wait()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let load = Load::parse(&args)?;
    match load.member {
        Some(member) => run(&load, member),
        None if load.members > 1 => give_turns(&load),
        None => supervise(&load),
    }
}
