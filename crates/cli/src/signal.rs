// SPDX-License-Identifier: Apache-2.0
//! SIGINT, SIGTERM and SIGHUP ask for an orderly end: guards run, devices go, limits are put back.
//!
//! Nothing here kills: a command looks at [`Stop`] between bounded steps and waits through it, so
//! a signal cuts a wait short and never cuts a step in two.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask for an end.
pub const STOP_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether an end was asked for, and a sleep that such a request cuts short.
///
/// While it lives the signals do nothing else; when it is dropped they have no effect at all
/// until the process ends (signal-hook keeps its handlers), which is what cleaning up needs.
#[derive(Debug)]
pub struct Stop {
    /// The signal that came last; 0 for none.
    signal: Arc<AtomicUsize>,
    /// Whether one came.
    flag: Arc<AtomicBool>,
    /// Whether SIGHUP came since it was asked last, where that means to read the configuration
    /// again.
    reload: Arc<AtomicBool>,
    /// Readable once a signal came.
    wake: OwnedFd,
    registered: Vec<SigId>,
}

/// Why a wait of [`Stop::wait_for`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The time was over.
    Time,
    /// The descriptor became readable.
    Readable,
    /// A signal came: see [`Stop::requested`] and [`Stop::take_reload`].
    Signal,
}

impl Stop {
    /// Starts listening.
    ///
    /// # Errors
    /// The operating system's, when it has no file descriptor left.
    pub fn install() -> io::Result<Self> {
        Self::install_for(&STOP_SIGNALS)
    }

    /// The same for a daemon, to which SIGHUP says to read its configuration again.
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub fn install_for_daemon() -> io::Result<Self> {
        let mut stop = Self::install_for(&[SIGINT, SIGTERM])?;
        let raise = Arc::clone(&stop.reload);
        let waker = stop.wake.try_clone()?;
        // SAFETY: as below: an atomic is stored and an eventfd written.
        let id = unsafe {
            signal_hook::low_level::register(SIGHUP, move || {
                raise.store(true, Ordering::SeqCst);
                let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
            })
        }?;
        stop.registered.push(id);
        Ok(stop)
    }

    fn install_for(signals: &[i32]) -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let flag = Arc::new(AtomicBool::new(false));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut registered = Vec::new();
        for &number in signals {
            let note = Arc::clone(&signal);
            let raise = Arc::clone(&flag);
            let waker = wake.try_clone()?;
            // SAFETY: the handler stores atomics and writes to an eventfd, both of which are
            // async-signal-safe; it neither allocates nor takes a lock.
            let id = unsafe {
                signal_hook::low_level::register(number, move || {
                    note.store(number as usize, Ordering::SeqCst);
                    raise.store(true, Ordering::SeqCst);
                    let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
                })
            }?;
            registered.push(id);
        }
        Ok(Self {
            signal,
            flag,
            reload: Arc::default(),
            wake,
            registered,
        })
    }

    /// Whether SIGHUP came since the last call.
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::SeqCst)
    }

    /// Sleeps until `deadline`, until `other` is readable, or until a signal came that was not
    /// taken yet.
    pub fn wait_for(&self, deadline: Instant, other: BorrowedFd<'_>) -> Woken {
        loop {
            if self.requested().is_some() || self.reload.load(Ordering::SeqCst) {
                // Drained, or the next wait would not wait.
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                return Woken::Signal;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [
                PollFd::new(&self.wake, PollFlags::IN),
                PollFd::new(&other, PollFlags::IN),
            ];
            // An error is EINTR, which the loop is for.
            let _ = poll(&mut fds, timeout.as_ref());
            if !fds[1].revents().is_empty() {
                return Woken::Readable;
            }
            if fds[0].revents().is_empty() && left.is_zero() {
                return Woken::Time;
            }
            if !fds[0].revents().is_empty()
                && self.requested().is_none()
                && !self.reload.load(Ordering::SeqCst)
            {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            }
        }
    }

    /// The signal that asked for an end, if one did.
    pub fn requested(&self) -> Option<i32> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }

    /// Becomes true when an end is asked for: for what takes a flag to stop at.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Sleeps for `duration` or until an end is asked for; true in the latter case.
    pub fn wait(&self, duration: Duration) -> bool {
        self.wait_until(Instant::now() + duration)
    }

    /// Sleeps until `deadline` or until an end is asked for; true in the latter case.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        while self.requested().is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let timeout = Timespec::try_from(left).ok();
            // An error is EINTR, which the loop is for; any other would be a plain sleep cut short.
            let _ = poll(
                &mut [PollFd::new(&self.wake, PollFlags::IN)],
                timeout.as_ref(),
            );
        }
        true
    }

    /// The exit status a shell gives a command that a signal ended: 128 plus its number.
    pub fn exit_code(signal: i32) -> u8 {
        128u8.saturating_add(u8::try_from(signal).unwrap_or(0))
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_itself() {
        let stop = Stop::install().expect("eventfd");
        let start = Instant::now();
        let asked = stop.wait(Duration::from_millis(20));
        assert!(asked == stop.requested().is_some());
        assert!(asked || start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_signal_cuts_a_wait_short() {
        let stop = Stop::install().expect("eventfd");
        signal_hook::low_level::raise(SIGHUP).expect("raise");
        let start = Instant::now();
        assert!(stop.wait(Duration::from_secs(60)));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(stop.requested(), Some(SIGHUP));
        assert_eq!(Stop::exit_code(SIGHUP), 129);
    }
}
