// SPDX-License-Identifier: Apache-2.0
//! Processes of ordinary users that hold the lock of their address space for as long as they
//! please: they replace a mapping of a file whose file system does not answer.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use super::{BASE, Child, PAGE, fill, map_fixed};

/// Pages of anonymous memory of each process, at [`BASE`].
pub const PAGES: usize = 600;
/// Where it maps the file.
const FILE_AT: usize = BASE + (1 << 30);
/// Nobody has these user ids.
const FIRST_USER: u32 = 40_000;

/// A process of a user of its own, which hangs when told to: from then on until this is dropped.
pub struct Hangs {
    // Dropped in this order: the process ends only when the server of its file has.
    _watch: Sender<()>,
    _server: Child,
    _mount: Mount,
    pub child: Rc<Child>,
}

struct Mount(tempfile::NamedTempFile);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// The descriptor of the server.
static DEVICE: AtomicI32 = AtomicI32::new(-1);

impl Hangs {
    /// Starts it, or says why it cannot hang here.
    pub fn start() -> Result<Self, String> {
        Self::start_as(new_user(), false)
    }

    /// Like [`start`](Self::start), for a process of this user, or in a user namespace of his.
    pub fn start_as(user: u32, is_in_namespace: bool) -> Result<Self, String> {
        if is_in_namespace {
            let unshare = Command::new("unshare")
                .args(["-U", "true"])
                .uid(user)
                .status();
            let is_allowed = unshare.is_ok_and(|status| status.success());
            is_allowed.then_some(()).ok_or("no user namespaces")?;
        }
        let at = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=100644,user_id=0,group_id=0,allow_other");
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("hangs", at.path(), "fuse", flags, Some(options.as_c_str()))
            .map_err(|error| format!("no FUSE: {error}"))?;
        let mount = Mount(at);
        DEVICE.store(fd, SeqCst);
        let server = Child::spawn(|| {});
        server.tumble(answer);
        // Only the server keeps it open.
        drop(device);
        let child = Rc::new(mount.child(user, is_in_namespace));
        Ok(Hangs {
            _watch: watch(server.pid),
            _server: server,
            _mount: mount,
            child,
        })
    }
}

impl Mount {
    /// Starts a process that maps the file.
    fn child(&self, user: u32, is_in_namespace: bool) -> Child {
        let path = CString::new(self.0.path().as_os_str().as_encoded_bytes()).unwrap();
        Child::spawn(|| {
            map_fixed(BASE, PAGES, libc::MADV_NOHUGEPAGE);
            fill(BASE, PAGES);
            map_file(&path);
            fill(FILE_AT, 1);
            // SAFETY: plain system calls. A process of another user no longer dies with the test.
            unsafe {
                libc::setuid(user);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if is_in_namespace && libc::unshare(libc::CLONE_NEWUSER) != 0 {
                    libc::_exit(103);
                }
            }
        })
    }
}

/// A user that nobody else is.
pub fn new_user() -> u32 {
    static USERS: AtomicU32 = AtomicU32::new(FIRST_USER);
    USERS.fetch_add(1, SeqCst)
}

/// Kills the server after a minute, unless the other end is dropped: a test that waits for ever
/// would not fail.
fn watch(server: u32) -> Sender<()> {
    let (watch, over) = channel::<()>();
    std::thread::spawn(move || {
        if over.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            // SAFETY: a child of ours, not reaped before the other end is dropped.
            unsafe { libc::kill(server.cast_signed(), libc::SIGKILL) };
        }
    });
    watch
}

/// Makes it hang. It does when this returns.
pub fn hang(child: &Child) {
    hang_by(child, |_| map_fixed(FILE_AT, 1, libc::MADV_NORMAL));
}

/// Gives a process in a user namespace another user id, and makes it hang.
pub fn hang_as(child: &Child, user: u32) {
    std::fs::write(
        format!("/proc/{}/uid_map", child.pid),
        format!("0 {user} 1"),
    )
    .unwrap();
    hang_by(child, |_| {
        // SAFETY: a plain system call, which its namespace allows.
        if unsafe { libc::setuid(0) } != 0 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(104) };
        }
        map_fixed(FILE_AT, 1, libc::MADV_NORMAL);
    });
    let id = std::fs::read_to_string(format!("/proc/{}/status", child.pid)).unwrap();
    assert!(id.contains(&format!("\nUid:\t{user}\t{user}\t")), "{id}");
}

fn hang_by(child: &Child, work: fn(usize)) {
    child.tumble(work);
    let stat = format!("/proc/{}/stat", child.pid);
    let mut times = 0;
    while times < 10 {
        let waits = std::fs::read_to_string(&stat).unwrap().contains(") D ");
        times = if waits { times + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn map_file(path: &CString) {
    // SAFETY: a path that ends with NUL, and an address where nothing else is mapped.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // The kernel asks for its size.
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut stat);
        let got = libc::mmap(FILE_AT as *mut _, PAGE, access, flags, fd, 0);
        if fd < 0 || got == libc::MAP_FAILED {
            libc::_exit(102);
        }
    }
}

/// Requests and answers of FUSE, as words of 32 bits (include/uapi/linux/fuse.h).
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INIT: u32 = 26;
const SILENT: [u32; 4] = [WRITE, 2, 36, 42];

/// Answers a request, except writes, and forgetting and interrupting, which have no answer. Makes
/// only system calls.
fn answer(_: usize) {
    let (mut request, mut answer) = ([0u32; 4096], [0u32; 4 + PAGE / 4]);
    let fd = DEVICE.load(SeqCst);
    // SAFETY: as many bytes as there are.
    unsafe {
        if libc::read(fd, request.as_mut_ptr().cast(), size_of_val(&request)) <= 0 {
            libc::_exit(0);
        }
        let words = match request[1] {
            // Version 7.31, writes of a page.
            INIT => {
                (answer[4], answer[5], answer[9]) = (7, 31, PAGE as u32);
                16
            }
            // Valid for ever, inode 1, one page, and at the end mode and links.
            GETATTR => {
                (answer[4], answer[8], answer[10]) = (u32::MAX, 1, PAGE as u32);
                (answer[23], answer[24]) = (libc::S_IFREG | 0o666, 1);
                26
            }
            OPEN => 4,
            READ => PAGE / 4,
            _ => {
                answer[1] = (-libc::ENOSYS).cast_unsigned();
                0
            }
        };
        if SILENT.contains(&request[1]) {
            return;
        }
        answer[0] = 16 + 4 * words as u32;
        (answer[2], answer[3]) = (request[2], request[3]);
        libc::write(fd, answer.as_ptr().cast(), answer[0] as usize);
    }
}
