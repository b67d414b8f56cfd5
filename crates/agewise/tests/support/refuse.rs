// SPDX-License-Identifier: Apache-2.0
//! A kernel that lacks a system call, or a container run time that forbids it.

use std::io;

/// Answers `errno` to the system call of this number from now on in this process. Makes system
/// calls only, so it may be called between fork and exec.
pub fn refuse_call(number: u32, errno: i32) -> io::Result<()> {
    let one = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let answer = libc::BPF_RET | libc::BPF_K;
    // The number of the call is the first word of struct seccomp_data.
    let filter = [
        one(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        one(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 1),
        one(answer, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        one(answer, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
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
