// SPDX-License-Identifier: Apache-2.0
//! The pages of one file: counted and dropped through a read-only descriptor.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use super::names::Place;
use super::stat::cachestat;
use crate::access::PAGE_BYTES;

/// Operations on the pages of a file.
pub(super) trait CacheHand {
    /// Counts the cached pages, and those of them that are dirty or under writeback.
    ///
    /// # Errors
    /// The error of the system call.
    fn stat(&self, pages: &Range<u64>) -> io::Result<(u64, u64)>;

    /// Drops clean pages that nobody maps.
    ///
    /// # Errors
    /// The error of the system call.
    fn drop(&self, pages: &Range<u64>) -> io::Result<()>;
}

/// A file opened for reading, for `cachestat` and `posix_fadvise`.
pub(super) struct FileHand(File);

impl FileHand {
    /// Opens exactly the file that was seen: a regular file with its inode number and, where the
    /// file system tells it, its generation. A file that replaced it may have got its number.
    pub fn open(number: u64, generation: u32, place: &Place) -> io::Result<Self> {
        // Nothing is read through it, so no access time changes.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let open = |path: &Path| File::options().read(true).custom_flags(flags).open(path);
        let opened = open(&place.path)?;
        let found = opened.metadata()?;
        // Devices are asked nothing: their answers may have effects.
        let same = found.is_file()
            && found.ino() == number
            && found.dev() == place.device
            && generation_of(&opened).is_none_or(|found| found == generation);
        match same {
            true => Ok(FileHand(opened)),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// `FS_IOC_GETVERSION` of linux/fs.h.
const GET_GENERATION: libc::Ioctl = 0x8008_7601;

/// The generation of an inode, if its file system tells it.
pub(super) fn generation_of(file: &File) -> Option<u32> {
    let mut generation = 0u32;
    // SAFETY: the kernel writes an int, whatever the size in the request says.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), GET_GENERATION, &raw mut generation) };
    (done == 0).then_some(generation)
}

impl CacheHand for FileHand {
    fn stat(&self, pages: &Range<u64>) -> io::Result<(u64, u64)> {
        let stat = cachestat(&self.0, pages.clone())?;
        Ok((stat.pages, stat.dirty_pages + stat.writeback_pages))
    }

    fn drop(&self, pages: &Range<u64>) -> io::Result<()> {
        let bytes = NonZeroU64::new((pages.end - pages.start) * PAGE_BYTES);
        Ok(fadvise(
            &self.0,
            pages.start * PAGE_BYTES,
            bytes,
            Advice::DontNeed,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::stat::has_cachestat;
    use super::*;

    const PAGES: u64 = 16;

    /// A file whose pages are cached and clean, as a look would show it: its number, generation and
    /// place.
    fn seen(path: &Path) -> (u64, u32, Place) {
        fs::write(path, [1; (PAGES * PAGE_BYTES) as usize]).unwrap();
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        let found = file.metadata().unwrap();
        let place = Place {
            path: path.to_owned(),
            device: found.dev(),
        };
        (found.ino(), generation_of(&file).unwrap_or(0), place)
    }

    #[test]
    fn only_the_file_that_was_seen_is_opened() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        let first = seen(&path);
        let other = seen(&dir.path().join("other"));
        let error = |seen: &(u64, u32, Place), place: &Place| {
            let opened = FileHand::open(seen.0, seen.1, place);
            opened.err().map(|error| error.kind())
        };
        let gone = Some(io::ErrorKind::NotFound);
        let place = &first.2;
        assert_eq!(error(&first, place), None);
        let elsewhere = Place {
            device: place.device + 1,
            ..place.clone()
        };
        assert_eq!(error(&first, &elsewhere), gone);
        // A later file with the number of this one.
        let earlier = (first.0, first.1.wrapping_add(1), place.clone());
        match generation_of(&File::open(&path).unwrap()) {
            Some(_) => assert_eq!(error(&earlier, place), gone),
            None => println!(
                "SKIPPED generations of inodes: unknown to {}",
                path.display()
            ),
        }
        // Both exist until one replaces the other, so that their numbers differ.
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert_eq!(error(&first, place), gone);
        assert_eq!(error(&other, place), None);
        fs::rename(&path, dir.path().join("moved")).unwrap();
        assert_eq!(error(&other, place), gone);
        symlink(dir.path().join("moved"), &path).unwrap();
        assert!(error(&other, place).is_some(), "a link to the same file");
    }

    #[test]
    fn a_file_that_is_deleted_and_truncated_meanwhile_has_no_pages() {
        if !has_cachestat() {
            return println!("SKIPPED a file truncated meanwhile: cachestat needs Linux 6.5");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let (number, generation, place) = seen(&path);
        let hand = FileHand::open(number, generation, &place).unwrap();
        assert_eq!(hand.stat(&(0..PAGES)).unwrap(), (PAGES, 0));
        let file = File::options().write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(hand.stat(&(0..PAGES)).unwrap(), (0, 0));
        hand.drop(&(0..PAGES)).unwrap();
    }
}
