// SPDX-License-Identifier: Apache-2.0
//! The truth file: when an exerciser last touched each of its pages, for others to read live.
//!
//! All words are native-endian u64, written with relaxed atomic stores. The file begins with one
//! header page of 512 words:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | magic, `AGEWISET` in ASCII |
//! | 1 | layout version, 1 |
//! | 2 | pid of the exerciser |
//! | 3 | page size in bytes |
//! | 4 | pages in all regions |
//! | 5 | number of regions, at most 8 |
//! | 6 | state: 0 filling, 1 steady, 2 checking at the end, 3 ended |
//! | 7 | operations done since it became steady |
//! | 8 | pages found changed |
//! | 9 | CLOCK_MONOTONIC ns at which it became steady |
//! | 16 + 4 r | region r: address, pages, kind (0 anon, 1 huge anon, 2 file), first slot |
//!
//! From the second page on there is one word per page, in slot order: CLOCK_MONOTONIC ns right
//! after its last access, 0 for never. An access and its stamp are a few nanoseconds apart, unless
//! the exerciser is preempted in between.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memmap2::{MmapOptions, MmapRaw};

const MAGIC: u64 = u64::from_be_bytes(*b"AGEWISET");
const VERSION: u64 = 1;
const HEADER_WORDS: usize = 512;
const REGION_WORDS: usize = 4;
const FIRST_REGION: usize = 16;
/// The most regions that a truth file can describe.
pub const REGIONS_MAX: usize = 8;

/// Indices of the header words.
mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const PID: usize = 2;
    pub const PAGE_SIZE: usize = 3;
    pub const PAGES: usize = 4;
    pub const REGIONS: usize = 5;
    pub const STATE: usize = 6;
    pub const OPS: usize = 7;
    pub const ERRORS: usize = 8;
    pub const STEADY_NS: usize = 9;
}

/// What backs a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous memory in 4 KiB pages.
    Anon,
    /// Private anonymous memory for which huge pages were requested.
    AnonHuge,
    /// A file mapped read-only.
    File,
}

/// A range of pages whose truth is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of the first page in the exerciser.
    pub address: u64,
    /// Number of pages.
    pub pages: u64,
    /// What backs it.
    pub kind: Kind,
    /// Slot of its first page.
    pub first_slot: u64,
}

/// The phase of an exerciser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Writes its pages for the first time.
    Filling,
    /// Follows its pattern.
    Steady,
    /// Reads all pages once more to check that nothing changed.
    Checking,
    Ended,
}

/// An unusable truth file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("truth file {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a truth file of this version of agewise: {reason}")]
    Malformed {
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A mapped truth file, of this process (writable) or of another (read-only).
#[derive(Debug)]
pub struct Truth {
    map: MmapRaw,
    regions: Vec<Region>,
    page_size: u64,
}

impl Truth {
    /// Creates the truth of `regions`, in `path` or, if `None`, in memory only. An existing file is
    /// replaced.
    ///
    /// # Errors
    /// The file cannot be created or mapped.
    pub fn create(path: Option<&Path>, regions: &[Region], page_size: u64) -> Result<Self, Error> {
        let shown = path.unwrap_or(Path::new("(memory)"));
        let io_error = |source| Error::Io {
            path: shown.into(),
            source,
        };
        if regions.len() > REGIONS_MAX {
            return Err(Error::Malformed {
                path: shown.into(),
                reason: "too many regions",
            });
        }
        let pages: u64 = regions.iter().map(|region| region.pages).sum();
        let bytes = (HEADER_WORDS as u64 + pages).saturating_mul(8);
        let length =
            usize::try_from(bytes).map_err(|_| io_error(io::ErrorKind::FileTooLarge.into()))?;
        let map = match path {
            None => MmapOptions::new().len(length).map_anon().map(MmapRaw::from),
            Some(path) => {
                // Create a new inode: a reader of an old file of that name must not see it change.
                remove_old(path).map_err(io_error)?;
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)
                    .map_err(io_error)?;
                file.set_len(bytes).map_err(io_error)?;
                MmapOptions::new().len(length).map_raw(&file)
            }
        }
        .map_err(io_error)?;
        let truth = Self {
            map,
            regions: regions.to_vec(),
            page_size,
        };
        truth.write_header(pages);
        Ok(truth)
    }

    fn write_header(&self, pages: u64) {
        let set = |index: usize, value: u64| self.word(index).store(value, Relaxed);
        set(word::VERSION, VERSION);
        set(word::PID, u64::from(std::process::id()));
        set(word::PAGE_SIZE, self.page_size);
        set(word::PAGES, pages);
        set(word::REGIONS, self.regions.len() as u64);
        for (index, region) in self.regions.iter().enumerate() {
            let at = FIRST_REGION + REGION_WORDS * index;
            let kind = match region.kind {
                Kind::Anon => 0,
                Kind::AnonHuge => 1,
                Kind::File => 2,
            };
            for (offset, value) in [region.address, region.pages, kind, region.first_slot]
                .into_iter()
                .enumerate()
            {
                set(at + offset, value);
            }
        }
        // Store the magic last: a reader that sees it sees everything else.
        self.word(word::MAGIC)
            .store(MAGIC, std::sync::atomic::Ordering::Release);
    }

    /// Maps the truth of another process read-only.
    ///
    /// # Errors
    /// The file cannot be opened, is not a truth file, or is not complete (yet).
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io_error = |source| Error::Io {
            path: path.into(),
            source,
        };
        let malformed = |reason| Error::Malformed {
            path: path.into(),
            reason,
        };
        let file = OpenOptions::new().read(true).open(path).map_err(io_error)?;
        let length = file.metadata().map_err(io_error)?.len();
        if length < HEADER_WORDS as u64 * 8 {
            return Err(malformed("shorter than its header"));
        }
        let map = MmapOptions::new()
            .map_raw_read_only(&file)
            .map_err(io_error)?;
        let mut truth = Self {
            map,
            regions: Vec::new(),
            page_size: 0,
        };
        let get = |index: usize| truth.word(index).load(Relaxed);
        if truth
            .word(word::MAGIC)
            .load(std::sync::atomic::Ordering::Acquire)
            != MAGIC
        {
            return Err(malformed("no magic"));
        }
        if get(word::VERSION) != VERSION {
            return Err(malformed("another layout version"));
        }
        let count = get(word::REGIONS) as usize;
        let pages = get(word::PAGES);
        if count > REGIONS_MAX || length / 8 < HEADER_WORDS as u64 + pages {
            return Err(malformed("shorter than its header says"));
        }
        let mut regions = Vec::with_capacity(count);
        for index in 0..count {
            let at = FIRST_REGION + REGION_WORDS * index;
            let kind = match get(at + 2) {
                0 => Kind::Anon,
                1 => Kind::AnonHuge,
                2 => Kind::File,
                _ => return Err(malformed("unknown kind of region")),
            };
            let region = Region {
                address: get(at),
                pages: get(at + 1),
                kind,
                first_slot: get(at + 3),
            };
            if region
                .first_slot
                .checked_add(region.pages)
                .is_none_or(|end| end > pages)
            {
                return Err(malformed("a region outside of its pages"));
            }
            regions.push(region);
        }
        truth.page_size = get(word::PAGE_SIZE);
        truth.regions = regions;
        Ok(truth)
    }

    /// The word at `index`, counted from the start of the file.
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(
            index < self.map.len() / 8,
            "word {index} is outside of the truth file"
        );
        // SAFETY: the mapping is page-aligned and lives as long as `self`, and the index was just
        // checked; every access by any process is an atomic load or store of a whole word.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(index)) }
    }

    /// Records that the page in `slot` was accessed at `now_ns`.
    #[inline]
    pub fn stamp(&self, slot: u64, now_ns: u64) {
        self.word(HEADER_WORDS + slot as usize)
            .store(now_ns, Relaxed);
    }

    /// The time of the last access to the page in `slot`: CLOCK_MONOTONIC ns, 0 for never.
    #[inline]
    pub fn last_access_ns(&self, slot: u64) -> u64 {
        self.word(HEADER_WORDS + slot as usize).load(Relaxed)
    }

    /// The regions, in slot order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Page size in bytes.
    pub fn page_size(&self) -> u64 {
        self.page_size
    }

    /// Pages in all regions.
    pub fn pages(&self) -> u64 {
        self.word(word::PAGES).load(Relaxed)
    }

    /// The pid of the exerciser.
    pub fn pid(&self) -> u32 {
        self.word(word::PID).load(Relaxed) as u32
    }

    /// Operations done since the exerciser became steady.
    pub fn ops(&self) -> u64 {
        self.word(word::OPS).load(Relaxed)
    }

    /// Sets the number of operations done.
    pub fn set_ops(&self, ops: u64) {
        self.word(word::OPS).store(ops, Relaxed);
    }

    /// Changed pages found so far.
    pub fn errors(&self) -> u64 {
        self.word(word::ERRORS).load(Relaxed)
    }

    /// Counts a changed page.
    pub fn count_error(&self) {
        self.word(word::ERRORS).fetch_add(1, Relaxed);
    }

    /// The current phase of the exerciser.
    pub fn state(&self) -> State {
        match self.word(word::STATE).load(Relaxed) {
            0 => State::Filling,
            1 => State::Steady,
            2 => State::Checking,
            _ => State::Ended,
        }
    }

    /// Sets the phase, which starts at `now_ns`.
    pub fn set_state(&self, state: State, now_ns: u64) {
        if state == State::Steady {
            self.word(word::STEADY_NS).store(now_ns, Relaxed);
        }
        self.word(word::STATE).store(state as u64, Relaxed);
    }
}

/// CLOCK_MONOTONIC in nanoseconds, the clock of all stamps.
#[inline]
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Removes an earlier file; anything else (a device such as `/dev/null`, a link) stays.
fn remove_old(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it is no regular file, and stays as it is: give another path",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Vec<Region> {
        vec![
            Region {
                address: 0x1000_0000,
                pages: 300,
                kind: Kind::Anon,
                first_slot: 0,
            },
            Region {
                address: 0x7000_0000,
                pages: 20,
                kind: Kind::File,
                first_slot: 300,
            },
        ]
    }

    #[test]
    fn only_a_file_is_replaced() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "an old one").expect("write");
        std::os::unix::fs::symlink(&file, &link).expect("link");
        for there in [&link, &dir.path().to_owned()] {
            let refused = Truth::create(Some(there), &[], 4096).map(drop).unwrap_err();
            assert!(refused.to_string().contains("no regular file"), "{refused}");
        }
        assert_eq!(std::fs::read(&file).expect("read"), b"an old one");
        Truth::create(Some(&file), &[], 4096).expect("replaced");
        assert_ne!(std::fs::read(&file).expect("read"), b"an old one");
    }

    #[test]
    fn a_reader_sees_what_the_writer_stamps() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("truth");
        let writer = Truth::create(Some(&path), &regions(), 4096).expect("create");
        let reader = Truth::open(&path).expect("open");
        assert_eq!(reader.regions(), regions());
        assert_eq!((reader.pages(), reader.page_size()), (320, 4096));
        assert_eq!(reader.pid(), std::process::id());
        assert_eq!(reader.state(), State::Filling);
        writer.stamp(319, 42);
        writer.set_ops(7);
        writer.set_state(State::Steady, 99);
        writer.count_error();
        assert_eq!(reader.last_access_ns(319), 42);
        assert_eq!(reader.last_access_ns(0), 0);
        assert_eq!((reader.ops(), reader.errors()), (7, 1));
        assert_eq!(reader.state(), State::Steady);
    }

    #[test]
    fn what_is_no_truth_file_is_refused() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("truth");
        assert!(matches!(Truth::open(&path), Err(Error::Io { .. })));
        std::fs::write(&path, b"short").expect("write");
        assert!(matches!(Truth::open(&path), Err(Error::Malformed { .. })));
        std::fs::write(&path, vec![0u8; 8192]).expect("write");
        assert!(matches!(Truth::open(&path), Err(Error::Malformed { .. })));
        drop(Truth::create(Some(&path), &regions(), 4096).expect("create"));
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(4096).expect("truncate");
        let error = Truth::open(&path).expect_err("cut off").to_string();
        assert!(error.contains("shorter than its header says"), "{error}");
    }
}
