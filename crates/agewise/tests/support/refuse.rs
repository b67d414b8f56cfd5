// SPDX-License-Identifier: Apache-2.0
//! A kernel that lacks a system call, or a container run time that forbids it.

use std::io;

/// Answers `errno` to the system call of this number from now on in this process. Makes system
/// calls only, so it may be called between fork and exec.
pub fn refuse_call(number: u32, errno: i32) -> io::Result<()> {
    filter(&[
        instruction(LOAD, NUMBER_AT, 0),
        instruction(SKIP_UNLESS, number, 1),
        instruction(ANSWER, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        instruction(ANSWER, libc::SECCOMP_RET_ALLOW, 0),
    ])
}

/// From now on, dropping pages of a file (`POSIX_FADV_DONTNEED`) kills this process and those it
/// starts. May be called between fork and exec, as [`refuse_call`].
pub fn die_of_dropped_files() -> io::Result<()> {
    filter(&[
        instruction(LOAD, NUMBER_AT, 0),
        instruction(SKIP_UNLESS, libc::SYS_fadvise64 as u32, 3),
        instruction(LOAD, FOURTH_AT, 0),
        instruction(SKIP_UNLESS, libc::POSIX_FADV_DONTNEED as u32, 1),
        instruction(ANSWER, libc::SECCOMP_RET_KILL_PROCESS, 0),
        instruction(ANSWER, libc::SECCOMP_RET_ALLOW, 0),
    ])
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const SKIP_UNLESS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;
/// Where struct seccomp_data has the number of the call.
const NUMBER_AT: u32 = 0;
/// Where it has the low half of the fourth argument, on little-endian machines.
const FOURTH_AT: u32 = 16 + 3 * 8;

fn instruction(code: u32, k: u32, skipped: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skipped,
        k,
    }
}

fn filter(instructions: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: instructions.len() as u16,
        filter: instructions.as_ptr().cast_mut(),
    };
    // SAFETY: the program and its instructions outlive the calls, which copy them.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    match is_set {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}
