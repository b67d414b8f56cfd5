// SPDX-License-Identifier: Apache-2.0
//! The tree as a FUSE file system: `read(2)`, `write(2)` and `poll(2)` behave as on `sysfs`.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agewise_policy::workingset::report::ReportError;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, Notifier, OpenAccMode, OpenFlags, PollEvents, PollFlags, PollHandle,
    PollNotifier, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyPoll, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::access::{Access, DIRECTORY_MODE, FILE_MODE};
use super::handles::Handles;
use super::inodes::Inodes;
use super::source::{ReportFile, Source};
use super::tree::Entry;

/// The kernel must ask every time, because cgroups come and go.
const TTL: Duration = Duration::ZERO;
/// The size that files claim to have, as on `sysfs`.
const FILE_BYTES: u64 = 4096;
/// The most that one write can pass, as on `sysfs`.
const WRITE_BYTES_MAX: usize = 4096;
/// The number of an entry that was never looked up (`FUSE_UNKNOWN_INO`).
const UNKNOWN_INODE: u64 = 0xffff_ffff;

/// Open files, shared with the notifier.
pub type Polled = Arc<Mutex<Handles<PollHandle>>>;

/// The file system.
pub struct Tree {
    source: Arc<Source>,
    access: Access,
    since: SystemTime,
    inodes: Mutex<Inodes>,
    handles: Polled,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: &ReportError) -> Errno {
    Errno::from_i32(error.errno())
}

/// Wakes the pollers of a file.
pub fn notify(handles: &Polled, notifier: &Notifier, file: &ReportFile) {
    // Wake without holding the lock: the pollers need it next.
    let waiters = lock(handles).notify(file);
    for waiter in waiters {
        // This fails if the file was closed meanwhile.
        let _ = notifier.poll(waiter);
    }
}

impl Tree {
    /// A file system for a source, with permissions according to `access`.
    pub fn new(source: Arc<Source>, access: Access) -> (Self, Polled) {
        let handles = Polled::default();
        let tree = Tree {
            source,
            access,
            since: SystemTime::now(),
            inodes: Mutex::default(),
            handles: Arc::clone(&handles),
        };
        (tree, handles)
    }

    /// The entry with this number; `None` if it is unknown or no longer exists.
    fn entry(&self, inode: INodeNo) -> Option<Entry> {
        let entry = lock(&self.inodes).get(inode.0)?;
        entry.exists(&self.source).then_some(entry)
    }

    fn attributes(&self, entry: &Entry, inode: u64) -> FileAttr {
        let (kind, size, nlink) = if entry.is_dir() {
            (FileType::Directory, 0, 2)
        } else {
            (FileType::RegularFile, FILE_BYTES, 1)
        };
        FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: UNIX_EPOCH,
            kind,
            perm: mode_of(entry),
            nlink,
            uid: self.access.uid,
            gid: self.access.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Tree {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let child = self
            .entry(parent)
            .zip(name.to_str())
            .and_then(|(parent, name)| parent.child(name, &self.source));
        match child {
            Some(child) => {
                let number = lock(&self.inodes).look_up(&child);
                reply.entry(&TTL, &self.attributes(&child, number), Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn forget(&self, _req: &Request, inode: INodeNo, count: u64) {
        lock(&self.inodes).forget(inode.0, count);
    }

    fn getattr(&self, _req: &Request, inode: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.entry(inode) {
            Some(entry) => reply.attr(&TTL, &self.attributes(&entry, inode.0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Truncation, which opening for writing requests, has no effect; all else is refused.
    fn setattr(
        &self,
        _req: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match self.entry(inode) {
            Some(entry) => reply.attr(&TTL, &self.attributes(&entry, inode.0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let file = match self.entry(inode) {
            Some(Entry::File(file)) => file,
            Some(_) => return reply.error(Errno::EISDIR),
            None => return reply.error(Errno::ENOENT),
        };
        if flags.acc_mode() != OpenAccMode::O_RDONLY && !file.is_writable() {
            return reply.error(errno(&ReportError::ReadOnly));
        }
        match lock(&self.handles).open(file) {
            Some(number) => reply.opened(FileHandle(number), FopenFlags::FOPEN_DIRECT_IO),
            None => reply.error(Errno::ENFILE),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.handles).close(handle.0);
        reply.ok();
    }

    fn flush(
        &self,
        _req: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// A read from the beginning generates the text; further reads use the same text.
    fn read(
        &self,
        _req: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let known = match lock(&self.handles).get(handle.0) {
            Some(open) if offset == 0 => {
                open.is_notified = false;
                Err(open.file.clone())
            }
            Some(open) => open.text.clone().ok_or_else(|| open.file.clone()),
            None => return reply.error(Errno::EBADF),
        };
        // Read without the lock: a histogram may have to wait for a look.
        let text = match known {
            Ok(text) => text,
            Err(file) => match self.source.read(&file) {
                Ok(text) => text.into_bytes(),
                Err(error) => return reply.error(errno(&error)),
            },
        };
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        reply.data(&text[from..to]);
        if let Some(open) = lock(&self.handles).get(handle.0) {
            open.text = Some(text);
        }
    }

    /// Each write is one setting, at whatever offset.
    fn write(
        &self,
        _req: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if data.len() > WRITE_BYTES_MAX {
            return reply.error(Errno::E2BIG);
        }
        let file = match lock(&self.handles).get(handle.0) {
            Some(open) => open.file.clone(),
            None => return reply.error(Errno::EBADF),
        };
        match self.source.write(&file, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entry) = self.entry(inode).filter(Entry::is_dir) else {
            return reply.error(Errno::ENOENT);
        };
        let children = entry.children(&self.source);
        let dots = [".", ".."].map(|name| (name.to_owned(), entry.clone()));
        let all = dots.into_iter().chain(children);
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, child)) in all.enumerate().skip(skipped) {
            let kind = if child.is_dir() {
                FileType::Directory
            } else {
                FileType::RegularFile
            };
            let number = lock(&self.inodes).number(&child).unwrap_or(UNKNOWN_INODE);
            if reply.add(INodeNo(number), place as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    /// Always readable and writable, like `sysfs` files. Also `POLLPRI` and `POLLERR` if the
    /// histogram was notified since it was last read from the beginning.
    fn poll(
        &self,
        _req: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _events: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let mut handles = lock(&self.handles);
        let Some(open) = handles.get(handle.0) else {
            drop(handles);
            return reply.error(Errno::EBADF);
        };
        let mut ready = PollEvents::POLLIN
            | PollEvents::POLLRDNORM
            | PollEvents::POLLOUT
            | PollEvents::POLLWRNORM;
        if open.file.is_page_age() && open.is_notified {
            ready |= PollEvents::POLLPRI | PollEvents::POLLERR;
        } else if flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY) {
            open.waiter = Some(notifier.handle());
        }
        drop(handles);
        reply.poll(ready);
    }
}

/// Histograms cannot be written.
fn mode_of(entry: &Entry) -> u16 {
    match entry {
        Entry::File(file) if file.is_writable() => FILE_MODE,
        Entry::File(_) => FILE_MODE & 0o444,
        _ => DIRECTORY_MODE,
    }
}
