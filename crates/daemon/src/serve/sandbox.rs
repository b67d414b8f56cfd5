// SPDX-License-Identifier: Apache-2.0
//! Gives up everything except answering requests.

use std::io;
use std::os::fd::RawFd;

use caps::{CapSet, Capability};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};

/// Connections at a time, plus other descriptors.
const FILES_MAX: u64 = 128;
/// Snapshots are bounded, and so is everything made from them.
const MEMORY_MAX_BYTES: u64 = 1 << 30;

/// The user and group of serving processes: in none of the ranges that programs, containers and
/// directory services give users of, so that no other process of that user can signal them.
const OWN_USER: u32 = 2_123_456_789;
/// `nobody` and `nogroup`, for a user namespace without [`OWN_USER`].
const NOBODY: u32 = 65_534;

/// What a process may do besides reading, waiting, and writing to what is open. All other system
/// calls fail with EPERM: no file can be opened, no program executed, no process signalled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Calls {
    /// Take connections that clients make.
    Answer {
        /// What they come to. It is shared with the daemon and with the process that comes after
        /// this one, so only descriptors above it may be shut down.
        clients: RawFd,
    },
    /// Make connections by IP: to no socket of this machine's programs in the file system, for
    /// instance.
    #[cfg(feature = "otlp")]
    Connect,
}

impl Calls {
    fn own(self) -> &'static [libc::c_long] {
        match self {
            Calls::Answer { .. } => &[libc::SYS_accept4],
            #[cfg(feature = "otlp")]
            Calls::Connect => &[
                libc::SYS_connect,
                libc::SYS_getsockopt,
                libc::SYS_setsockopt,
            ],
        }
    }

    /// System calls of which an argument decides: its number, and what it must be. Of ioctl only
    /// `FIONBIO` is allowed: `TIOCSTI` on standard error would type into the terminal that the
    /// daemon was started in.
    fn checked(self) -> Vec<(libc::c_long, u32, Vec<Must>)> {
        let ioctl = (libc::SYS_ioctl, 1, vec![Must::Equal(libc::FIONBIO as u32)]);
        let own = match self {
            Calls::Answer { clients } => {
                let above = Must::Exceed(clients.cast_unsigned());
                (libc::SYS_shutdown, 0, vec![above])
            }
            #[cfg(feature = "otlp")]
            Calls::Connect => {
                let kinds = [libc::AF_INET, libc::AF_INET6];
                let kinds = kinds.map(|kind| Must::Equal(kind.cast_unsigned()));
                (libc::SYS_socket, 0, kinds.to_vec())
            }
        };
        vec![ioctl, own]
    }
}

/// What the lower half of an argument must be.
#[derive(Clone, Copy, Debug)]
enum Must {
    Equal(u32),
    Exceed(u32),
}

/// The system calls of all of them.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_restart_syscall,
    // The first steps of a thread: those just started may not have made them yet.
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// The architecture as seccomp names it (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Gives up the user and capabilities, and whatever executing programs could gain. Makes the
/// process end with the daemon.
///
/// # Errors
/// The kernel's error, or one that says that the daemon has already ended.
pub(super) fn give_up_rights(parent: u32) -> io::Result<()> {
    // Signals to the process group are meant for the daemon; this process ends with it.
    // One about the size of a file, as standard error may be, would kill where that has a limit.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGXFSZ] {
        // SAFETY: no handler runs.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Others of the same user must at no time read its memory, which has the headers of what is
    // sent. A program executed as that user would be open to them at first; who changes the user
    // later, or still has capabilities, is not.
    become_another_user();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid()
        .map(Pid::as_raw_nonzero)
        .map(|pid| pid.get().cast_unsigned())
        != Some(parent)
    {
        return Err(io::Error::other("the daemon has ended"));
    }
    if caps::runtime::ambient_set_supported().is_ok() {
        caps::clear(None, CapSet::Ambient).map_err(io::Error::other)?;
    }
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    rustix::thread::set_no_new_privs(true)?;
    for (resource, most) in [
        (Resource::Nofile, FILES_MAX),
        (Resource::Core, 0),
        (Resource::As, MEMORY_MAX_BYTES),
    ] {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// A process that cannot change its user keeps it, but loses all rights as well.
fn become_another_user() {
    let may = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    if may(Capability::CAP_SETUID) && may(Capability::CAP_SETGID) {
        // SAFETY: no pointer is read: the list is empty.
        unsafe {
            libc::setgroups(0, std::ptr::null());
        }
        for id in [OWN_USER, NOBODY] {
            // SAFETY: these take numbers.
            let failed = unsafe { libc::setresgid(id, id, id) | libc::setresuid(id, id, id) };
            if failed == 0 {
                break;
            }
        }
    }
}

/// Restricts all threads to the [`ALLOWED`] system calls and these, for good.
///
/// # Errors
/// If the kernel has no seccomp filters.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn lock_in(calls: Calls) -> io::Result<()> {
    let filter = filter(&[ALLOWED, calls.own()].concat(), &calls.checked());
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program and its instructions outlive the call, which copies them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match done {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!(
            "thread {thread} has another filter"
        ))),
    }
}

/// For other architectures there is no list of system call numbers.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn lock_in(_calls: Calls) -> io::Result<()> {
    Ok(())
}

/// One comparison per system call, then EPERM. Calls of another architecture kill the process.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn filter(
    allowed: &[libc::c_long],
    checked: &[(libc::c_long, u32, Vec<Must>)],
) -> Vec<libc::sock_filter> {
    let one = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let exceeds = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // struct seccomp_data has the number at 0, the architecture at 4, and the arguments from 16 on,
    // 8 bytes each, of which the kernel reads the lower half of those below (an int).
    let mut filter = vec![
        one(load, 4, 0, 0),
        one(equal, ARCH, 1, 0),
        one(answer, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        one(load, 0, 0, 0),
    ];
    for call in allowed {
        filter.push(one(equal, *call as u32, 0, 1));
        filter.push(one(answer, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let refuse = one(answer, refused, 0, 0);
    for (call, argument, allowed) in checked {
        // Its argument, two instructions for each value, and the refusal.
        let steps = 2 + 2 * u8::try_from(allowed.len()).expect("a few values");
        filter.push(one(equal, *call as u32, 0, steps));
        filter.push(one(load, 16 + 8 * argument, 0, 0));
        for must in allowed {
            filter.push(match must {
                Must::Equal(value) => one(equal, *value, 0, 1),
                Must::Exceed(value) => one(exceeds, *value, 0, 1),
            });
            filter.push(one(answer, libc::SECCOMP_RET_ALLOW, 0, 0));
        }
        filter.push(refuse);
    }
    filter.push(refuse);
    filter
}
