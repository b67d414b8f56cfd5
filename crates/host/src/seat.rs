// SPDX-License-Identifier: Apache-2.0
//! The CPU that a thread sits on while it works on the memory of a program.
//!
//! A page that is taken from a program must be forgotten by every CPU that runs it: by an interrupt that the taker
//! waits for, two for a page that lies alone (`try_to_unmap_flush` and `flush_tlb_batched_pending`
//! below `madvise_pageout`, 6.12). From the very CPU that runs the program there is nobody to tell.
//! In a virtual machine, where interrupts are dear, this takes a third of what such a page costs.
//!
//! It suits work in small portions: the program does not run meanwhile.

use std::marker::PhantomData;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The place of the calling thread. Dropping it gives back the choice of CPUs it began with.
#[derive(Debug)]
pub struct Seat {
    /// Where the thread may run; none where the system does not say, or does not let us choose.
    usual: Option<CpuSet>,
    at: Option<usize>,
    /// It belongs to one thread.
    thread: PhantomData<*const ()>,
}

impl Seat {
    /// The thread runs wherever it may.
    pub fn new() -> Self {
        Seat {
            usual: sched_getaffinity(None).ok(),
            at: None,
            thread: PhantomData,
        }
    }

    /// Sits down on `cpu`, if the thread may run there; else anywhere.
    pub fn take(&mut self, cpu: usize) {
        if self.at == Some(cpu) {
            return;
        }
        let is_allowed = |usual: &CpuSet| cpu < CpuSet::MAX_CPU && usual.is_set(cpu);
        if !self.usual.as_ref().is_some_and(is_allowed) {
            self.leave();
            return;
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        match sched_setaffinity(None, &set) {
            Ok(()) => self.at = Some(cpu),
            // Off line, or taken from our cpuset meanwhile.
            Err(_) => self.leave(),
        }
    }

    /// Runs wherever it may again.
    pub fn leave(&mut self) {
        if self.at.take().is_some()
            && let Some(usual) = &self.usual
            && sched_setaffinity(None, usual).is_err()
        {
            self.usual = None;
        }
    }
}

/// From now on the calling thread does not interrupt who runs when it wakes up, but waits until that one
/// waits for something or has had its turn (`SCHED_BATCH`). Its share of the CPU stays the same.
///
/// # Errors
/// What the system says.
pub fn be_patient() -> std::io::Result<()> {
    // SAFETY: all zero is a valid parameter, which must be 0 for this policy.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameter lives over the call; 0 names the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Default for Seat {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getcpu;

    use super::*;

    #[test]
    fn it_is_taken_and_given_back() {
        let before = sched_getaffinity(None).unwrap();
        let mut seat = Seat::new();
        let allowed = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu));
        for cpu in allowed.take(4) {
            seat.take(cpu);
            assert_eq!((seat.at, sched_getcpu()), (Some(cpu), cpu));
        }
        seat.leave();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        seat.take(sched_getcpu());
        drop(seat);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn patience_is_a_policy_of_the_thread() {
        std::thread::spawn(|| {
            be_patient().unwrap();
            // SAFETY: 0 names the calling thread; nothing is written.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_BATCH);
        })
        .join()
        .unwrap();
        // SAFETY: as above.
        assert_ne!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_BATCH);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_not_taken() {
        let before = sched_getaffinity(None).unwrap();
        let mut seat = Seat::new();
        seat.take(sched_getcpu());
        let missing = (0..CpuSet::MAX_CPU).rev().find(|cpu| !before.is_set(*cpu));
        for cpu in missing.into_iter().chain([CpuSet::MAX_CPU, usize::MAX]) {
            seat.take(cpu);
            assert_eq!(seat.at, None);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        }
    }
}
