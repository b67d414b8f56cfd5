// SPDX-License-Identifier: Apache-2.0
//! Shared by all users of BPF programs: maps as memory, and running syscall programs.

pub(crate) mod watched;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Mutex;

use libbpf_rs::{MapCore, MapHandle, Object, PrintLevel, libbpf_sys};

use crate::access::AccessError;

/// Enough for the end of a verifier log, which states the reason.
const KEEP_BYTES: usize = 6000;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SAID: Mutex<String> = Mutex::new(String::new());

/// Returns the result of `work` and the last messages libbpf printed during it, for the error
/// message instead of our stderr.
pub(crate) fn collected<T>(work: impl FnOnce() -> T) -> (T, String) {
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, note)));
    let result = work();
    libbpf_rs::set_print(before);
    let mut said = SAID.lock().unwrap_or_else(|poison| poison.into_inner());
    let text = std::mem::take(&mut *said);
    let mut from = text.len().saturating_sub(KEEP_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    (result, text[from..].trim().replace('\n', "; "))
}

fn note(_level: PrintLevel, text: String) {
    SAID.lock()
        .unwrap_or_else(|poison| poison.into_inner())
        .push_str(&text);
}

/// Loads programs by calling `work`. In errors, `what` names what is unavailable if the kernel
/// rejects the programs, and `loading` what was not permitted.
///
/// # Errors
/// [`AccessError::NoPrivilege`], or [`AccessError::Unsupported`] with libbpf's messages.
pub(crate) fn load<T>(
    what: &'static str,
    loading: &str,
    work: impl FnOnce() -> libbpf_rs::Result<T>,
) -> Result<T, AccessError> {
    let (loaded, said) = collected(work);
    loaded.map_err(|error| match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => denied(loading),
        _ => AccessError::Unsupported {
            what,
            why: format!("{error:#} ({said})"),
        },
    })
}

/// The kernel did not permit to load these programs.
pub(crate) fn denied(loading: &str) -> AccessError {
    AccessError::NoPrivilege {
        what: format!("loading {loading}"),
        hint: "run as root, or with CAP_BPF and CAP_PERFMON (and without kernel lockdown in \
               confidentiality mode)",
    }
}

/// Finds a map of a loaded object.
///
/// # Errors
/// The object has no map of that name.
pub(crate) fn map_named(object: &Object, name: &str) -> libbpf_rs::Result<MapHandle> {
    let found = object.maps().find(|map| map.name().to_str() == Some(name));
    let found = found.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    MapHandle::try_from(&found)
}

/// The kernel's description of its own types (BTF).
pub(crate) struct KernelTypes(Vec<u8>);

impl KernelTypes {
    /// Reads the BTF of the running kernel; empty if there is none.
    pub fn read() -> Self {
        KernelTypes(std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default())
    }

    /// Whether the kernel has a tracepoint, judged by the type of the function called there.
    pub fn have_tracepoint(&self, name: &str) -> bool {
        self.have_name(&format!("btf_trace_{name}"))
    }

    /// Whether the kernel has a function, given a name that nothing else has.
    pub fn have_function(&self, name: &str) -> bool {
        self.have_name(name)
    }

    fn have_name(&self, name: &str) -> bool {
        memchr::memmem::find(&self.0, format!("\0{name}\0").as_bytes()).is_some()
    }
}

/// Runs a program of type `BPF_PROG_TYPE_SYSCALL` once.
pub(crate) fn run_syscall(fd: RawFd) -> io::Result<()> {
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `fd` is a program of an object we own; `opts` is a valid option block with its size.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(fd, &mut opts) };
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(())
    }
}

/// How often the loaded programs of an object were not run since, because the same program was
/// running on that CPU already: in a task that it was preempted in, or that was interrupted.
pub(crate) fn recursion_misses(object: &Object) -> u64 {
    let loaded = object.progs().filter(|program| program.autoload());
    let misses = loaded.map(|program| {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut bytes = size_of_val(&info) as u32;
        let fd = program.as_fd().as_raw_fd();
        // SAFETY: `info` is plain data with room for the bytes stated.
        let result = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut bytes) };
        // Kernels before 5.12 do not count them, and leave 0.
        if result < 0 { 0 } else { info.recursion_misses }
    });
    misses.sum()
}

/// A BPF array map (or one of agewise's own files), mapped into memory. The kernel writes a map
/// only while the program runs.
pub(crate) struct Mapping<T> {
    at: NonNull<T>,
    count: usize,
    map_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is accessed only through &self and &mut self.
unsafe impl<T: Send> Send for Mapping<T> {}

impl<T: Copy> Mapping<T> {
    pub fn of(object: &Object, name: &str, count: usize) -> libbpf_rs::Result<Self> {
        let map = map_named(object, name)?;
        Self::map(map.as_fd(), count).map_err(libbpf_rs::Error::from)
    }

    pub fn map(fd: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // Array values are padded to eight bytes; all of ours are multiples of that.
        let map_bytes = (count * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                0,
            )?
        };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping {
            at,
            count,
            map_bytes,
        })
    }

    pub fn get(&self, index: usize) -> &T {
        assert!(index < self.count, "map slot {index} of {}", self.count);
        // SAFETY: within the mapping; T is plain old data; written only during a run, which takes
        // &mut self of the owner.
        unsafe { self.at.add(index).as_ref() }
    }

    pub fn slice(&self, count: usize) -> &[T] {
        assert!(count <= self.count, "{count} map slots of {}", self.count);
        // SAFETY: within the mapping; otherwise as `get`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), count) }
    }

    pub fn read(&self, index: usize) -> T {
        *self.get(index)
    }

    pub fn write(&mut self, index: usize, value: T) {
        assert!(index < self.count, "map slot {index} of {}", self.count);
        // SAFETY: within the mapping, which is writable and exclusively ours.
        unsafe { self.at.add(index).write_volatile(value) }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no reference outlives self.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.map_bytes) };
    }
}
