// SPDX-License-Identifier: Apache-2.0
//! The mappings of a process: `/proc/PID/maps` (format: proc_pid_maps(5)), and from
//! `/proc/PID/smaps` only what maps lacks: which mappings are locked.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use agewise_policy::table::{PageSet, TableBits};
use serde::Serialize;

use crate::access::AddressRange;
use crate::error::FileError;
use crate::patient;
use crate::root::{ProcRoot, numbers_in};

mod filesystems;

pub(crate) use filesystems::Filesystems;

/// The kind of memory behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VmaKind {
    /// Anonymous memory: heap, stack, private mappings without a file.
    Anon,
    /// A private file mapping: file pages until written, anonymous pages after.
    FilePrivate,
    /// A shared file mapping.
    FileShared,
    /// tmpfs, memfd, System V shared memory, shared anonymous memory: swapped out although it has
    /// an inode. Swapped-out pages leave no trace in page tables.
    Shmem,
    /// hugetlbfs huge pages: they cannot be reclaimed, and their accessed bits are not cleared.
    Hugetlb,
    /// vdso, vvar, vsyscall, device memory, io_uring rings and the like: memory that can be neither
    /// aged nor reclaimed.
    Special,
}

impl VmaKind {
    /// Whether its pages go to swap (except those read from a file and left unchanged).
    pub fn is_swap_backed(self) -> bool {
        matches!(self, VmaKind::Anon | VmaKind::Shmem)
    }

    /// The pages in a table of such a mapping that belong to its file. Written pages of a private
    /// mapping are anonymous; the kernel maps the file's own pages there clean and read-only.
    pub fn files(self, bits: &TableBits) -> PageSet {
        match self {
            VmaKind::FileShared => PageSet::ALL,
            VmaKind::FilePrivate => bits.present.without(&bits.dirty),
            _ => PageSet::NONE,
        }
    }
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// Its addresses.
    pub range: AddressRange,
    pub read: bool,
    pub write: bool,
    /// Shared with other processes (`s`), not private (`p`).
    pub shared: bool,
    /// The kind of memory behind it.
    pub kind: VmaKind,
    /// Whether it is mlocked. Valid after [`VmaTable::mark_locked`].
    pub locked: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device of the file, as in `st_dev`; 0 without a file.
    pub device: u64,
    /// Inode of the file; 0 without a file.
    pub inode: u64,
    name: (u32, u32),
}

impl Vma {
    /// Device and inode of its file; `None` without a file.
    pub(crate) fn file(&self) -> Option<(u64, u64)> {
        (self.inode != 0).then_some((self.device, self.inode))
    }
}

/// All mappings of a process, in ascending address order.
#[derive(Debug, Default)]
pub struct VmaTable {
    vmas: Vec<Vma>,
    names: String,
}

/// State shared when reading the mappings of many processes, or of one again and again: a buffer,
/// and what is known about file systems.
#[derive(Debug, Default)]
pub struct MapsReader {
    proc: ProcRoot,
    text: Vec<u8>,
    filesystems: Filesystems,
}

impl MapsReader {
    /// Creates a reader that knows no file systems yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a reader for processes below another root.
    pub fn below(proc: ProcRoot) -> Self {
        MapsReader {
            proc,
            ..Self::default()
        }
    }

    /// Forgets what is known about file systems. Necessary from time to time, and for new
    /// processes: the numbers of their devices may have been others' before.
    pub(crate) fn forget_filesystems(&mut self) {
        self.filesystems.forget();
    }

    /// Reads a file about the address space of a process. Returns the path that was read.
    fn slurp_of(&mut self, pid: u32, file: &'static str) -> Result<PathBuf, FileError> {
        let process = self.proc.of(pid);
        let path = process.join(file);
        let mut text = std::mem::take(&mut self.text);
        let answer = patient::call(pid, move || {
            let read = slurp_of(&process, pid, file, &mut text);
            (read, text)
        });
        let (read, text) = answer.map_err(|source| FileError::Read { path, source })?;
        self.text = text;
        read
    }
}

/// Reads a file below the directory of a process. The first thread's file is empty once that thread
/// has ended; if other threads live on, uses theirs. Returns the path that was read.
fn slurp_of(
    process: &Path,
    pid: u32,
    file: &str,
    text: &mut Vec<u8>,
) -> Result<PathBuf, FileError> {
    let path = process.join(file);
    slurp(&path, text)?;
    if text.is_empty() {
        let threads = numbers_in(&process.join("task"))?;
        for thread in threads.into_iter().filter(|thread| *thread != pid) {
            let path = process.join(format!("task/{thread}/{file}"));
            if slurp(&path, text).is_ok() && !text.is_empty() {
                return Ok(path);
            }
        }
        text.clear();
    }
    Ok(path)
}

fn slurp(path: &Path, text: &mut Vec<u8>) -> Result<(), FileError> {
    text.clear();
    let read = File::open(path).and_then(|mut file| file.read_to_end(text));
    read.map(drop).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

impl VmaTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the mappings of `pid` afresh. The table is empty for a process without any (kernel
    /// thread, zombie).
    ///
    /// # Errors
    /// [`FileError`]: the process is gone ([`FileError::is_not_found`]), may not be observed
    /// ([`FileError::is_denied`]), or its file has an unknown format.
    pub fn read(&mut self, pid: u32) -> Result<(), FileError> {
        self.read_by(&mut MapsReader::new(), pid)
    }

    /// Like [`read`](Self::read), with a reusable reader that looks up the file system of a device
    /// only once.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_by(&mut self, reader: &mut MapsReader, pid: u32) -> Result<(), FileError> {
        let path = reader.slurp_of(pid, "maps")?;
        let mut table = VmaTable {
            vmas: Vec::with_capacity(self.vmas.len()),
            names: String::with_capacity(self.names.len()),
        };
        table.parse(&reader.text, &mut reader.filesystems, &path)?;
        // Only now: those who keep indexes of the mappings still have them after an error.
        *self = table;
        self.vmas.shrink_to(self.vmas.len() + self.vmas.len() / 8);
        self.names
            .shrink_to(self.names.len() + self.names.len() / 8);
        Ok(())
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.vmas.capacity() * size_of::<Vma>() + self.names.capacity()
    }

    /// Builds a table from `text`, for tests of its users.
    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self {
        let mut table = VmaTable::new();
        let filesystems = &mut Filesystems::default();
        table
            .parse(text.as_bytes(), filesystems, "maps".as_ref())
            .unwrap();
        table
    }

    #[cfg(test)]
    pub(crate) fn set_locked(&mut self, index: usize) {
        self.vmas[index].locked = true;
    }

    /// Parses what was read from `path`. The mount table of the process, which may not be ours, is
    /// the file next to it.
    pub(crate) fn parse(
        &mut self,
        text: &[u8],
        filesystems: &mut Filesystems,
        path: &std::path::Path,
    ) -> Result<(), FileError> {
        let mounts = path.with_file_name("mountinfo");
        let mut mounts = Some(mounts.as_path());
        for line in text
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let parsed = Line::parse(line).ok_or_else(|| {
                let line = String::from_utf8_lossy(line);
                FileError::format(path, "start-end perms offset dev inode [path]", &line)
            })?;
            let name = self.keep_name(&String::from_utf8_lossy(parsed.name));
            let kind = filesystems.kind(&parsed, &mut mounts);
            self.vmas.push(Vma {
                range: parsed.range,
                read: parsed.perms[0] == b'r',
                write: parsed.perms[1] == b'w',
                shared: parsed.perms[3] == b's',
                kind,
                locked: false,
                offset: parsed.offset,
                device: parsed.device,
                inode: parsed.inode,
                name,
            });
        }
        Ok(())
    }

    /// Keeps the name of the next mapping. Those of a program or library are adjacent.
    fn keep_name(&mut self, name: &str) -> (u32, u32) {
        match self.vmas.last() {
            Some(last) if self.name(last) == name => last.name,
            _ => {
                let at = self.names.len() as u32;
                self.names.push_str(name);
                (at, self.names.len() as u32)
            }
        }
    }

    /// Finds out which mappings are mlocked. Cheap if `/proc/PID/status` says that none is;
    /// otherwise reads `/proc/PID/smaps`, for which the kernel walks all page tables.
    ///
    /// # Errors
    /// [`FileError`], as [`read`](Self::read).
    pub fn mark_locked(&mut self, pid: u32) -> Result<(), FileError> {
        let mut reader = MapsReader::new();
        slurp(&reader.proc.of(pid).join("status"), &mut reader.text)?;
        let none = reader.text.split(|&byte| byte == b'\n').any(|line| {
            line.strip_prefix(b"VmLck:")
                .is_some_and(|rest| rest.trim_ascii_start().starts_with(b"0 "))
        });
        if none {
            return Ok(());
        }
        reader.slurp_of(pid, "smaps")?;
        mark_locked_from(&reader.text, &mut self.vmas);
        Ok(())
    }

    /// The mappings, in ascending address order.
    pub fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    /// The path or bracketed name of a mapping of this table; empty for nameless memory. As the
    /// kernel prints it: newlines appear as `\012`, a removed file ends in ` (deleted)`.
    pub fn name(&self, vma: &Vma) -> &str {
        self.names
            .get(vma.name.0 as usize..vma.name.1 as usize)
            .unwrap_or("")
    }

    /// The mapping that contains `va`.
    pub fn find(&self, va: u64) -> Option<&Vma> {
        let at = self.vmas.partition_point(|vma| vma.range.end <= va);
        self.vmas.get(at).filter(|vma| vma.range.start <= va)
    }
}

/// Sets `locked` from the VmFlags in a smaps text (`lo`, see proc_pid_smaps(5)).
fn mark_locked_from(smaps: &[u8], vmas: &mut [Vma]) {
    let mut current = None;
    for line in smaps.split(|&byte| byte == b'\n') {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let locked = flags.split(|&byte| byte == b' ').any(|flag| flag == b"lo");
            if let (true, Some(start)) = (locked, current) {
                // The mappings may have changed since maps was read, so match by address, not by
                // order.
                let at = vmas.partition_point(|vma: &Vma| vma.range.end <= start);
                if let Some(vma) = vmas.get_mut(at).filter(|vma| vma.range.start <= start) {
                    vma.locked = true;
                }
            }
        } else if let Some(line) = Line::parse(line) {
            current = Some(line.range.start);
        }
    }
}

struct Line<'a> {
    range: AddressRange,
    perms: [u8; 4],
    offset: u64,
    device: u64,
    inode: u64,
    name: &'a [u8],
}

impl<'a> Line<'a> {
    /// Parses `start-end perms offset major:minor inode   name`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut at = Scan(line);
        let start = at.number(16, b'-')?;
        let end = at.number(16, b' ')?;
        let perms: [u8; 4] = at.0.get(..4)?.try_into().ok()?;
        at.0 = at.0.get(4..)?.strip_prefix(b" ")?;
        let offset = at.number(16, b' ')?;
        let major = at.number(16, b':')?;
        let minor = at.number(16, b' ')?;
        let digits = at.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (inode, name) = at.0.split_at(digits);
        let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
        let device = rustix::fs::makedev(major.try_into().ok()?, minor.try_into().ok()?);
        let name = name.trim_ascii_start();
        (start < end).then_some(Line {
            range: AddressRange { start, end },
            perms,
            offset,
            device,
            inode,
            name,
        })
    }
}

struct Scan<'a>(&'a [u8]);

impl Scan<'_> {
    /// Parses a number and the byte that must follow it.
    fn number(&mut self, radix: u32, stop: u8) -> Option<u64> {
        let mut value = 0u64;
        let mut used = 0;
        for &byte in self.0 {
            let Some(digit) = char::from(byte).to_digit(radix) else {
                break;
            };
            value = value
                .checked_mul(u64::from(radix))?
                .checked_add(u64::from(digit))?;
            used += 1;
        }
        if used == 0 || self.0.get(used) != Some(&stop) {
            return None;
        }
        self.0 = &self.0[used + 1..];
        Some(value)
    }
}

#[cfg(test)]
#[path = "vma_tests.rs"]
mod tests;
