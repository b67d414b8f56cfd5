// SPDX-License-Identifier: Apache-2.0
//! SIGINT, SIGTERM, SIGHUP and SIGQUIT ask for an orderly end: guards run, devices go, limits are
//! put back. So does a terminal on standard output that is gone, for which a process outside its
//! foreground gets no signal.
//!
//! Nothing here kills: a command looks at [`Stop`] between bounded steps and waits through it, so
//! a signal cuts a wait short and never cuts a step in two.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// The signals that ask for an end.
pub const STOP_SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Whether an end was asked for, and a sleep that such a request cuts short.
///
/// While it lives the signals do nothing else; when it is dropped they have no effect at all
/// until the process ends (signal-hook keeps its handlers), which is what cleaning up needs.
#[derive(Debug)]
pub struct Stop {
    request: Arc<Request>,
    /// Standard output, where it is a terminal that the command cannot do without.
    terminal: Option<OwnedFd>,
    registered: Vec<SigId>,
}

/// What was asked for so far; handlers and other threads share it.
#[derive(Debug)]
pub struct Request {
    /// The signal that came last; 0 for none.
    signal: AtomicI32,
    /// Whether one came.
    flag: AtomicBool,
    /// Whether SIGHUP came since it was asked last, where that means to read the configuration
    /// again.
    reload: AtomicBool,
    /// Readable once a signal came.
    wake: OwnedFd,
}

impl Request {
    fn new() -> io::Result<Self> {
        Ok(Request {
            signal: AtomicI32::new(0),
            flag: AtomicBool::new(false),
            reload: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Asks for an end as if `signal` had come. Async-signal-safe: it stores atomics and writes to an
    /// eventfd, and neither allocates nor takes a lock.
    pub fn end(&self, signal: i32) {
        self.signal.store(signal, Ordering::SeqCst);
        self.flag.store(true, Ordering::SeqCst);
        self.rouse();
    }

    /// The signal that asked for an end, if one did.
    pub fn requested(&self) -> Option<i32> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            number => Some(number),
        }
    }

    /// Readable from the moment an end is asked for.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn rouse(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor wait again, unless it has an end to tell of.
    fn settle(&self) {
        if self.requested().is_none() {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            // One that came in between must not be lost.
            if self.requested().is_some() {
                self.rouse();
            }
        }
    }
}

/// Whether a poll found that the other side of a descriptor is gone.
pub fn is_gone(found: PollFlags) -> bool {
    found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Why a wait of [`Stop::wait_for`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The time was over.
    Time,
    /// The descriptor became readable.
    Readable,
    /// The other side of the descriptor is gone: it will never be readable again.
    Gone,
    /// A signal came: see [`Stop::requested`] and [`Stop::take_reload`].
    Signal,
}

impl Stop {
    /// Starts listening.
    ///
    /// # Errors
    /// The operating system's, when it has no file descriptor left.
    pub fn install() -> io::Result<Self> {
        let mut stop = Self::install_for(&STOP_SIGNALS)?;
        let output = io::stdout();
        if output.is_terminal() {
            stop.terminal = Some(output.as_fd().try_clone_to_owned()?);
        }
        Ok(stop)
    }

    /// The same for a daemon, to which SIGHUP says to read its configuration again, and which goes
    /// on without a terminal.
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub fn install_for_daemon() -> io::Result<Self> {
        let mut stop = Self::install_for(&[SIGINT, SIGTERM, SIGQUIT])?;
        let request = Arc::clone(&stop.request);
        // SAFETY: as below: an atomic is stored and an eventfd written.
        let id = unsafe {
            signal_hook::low_level::register(SIGHUP, move || {
                request.reload.store(true, Ordering::SeqCst);
                request.rouse();
            })
        }?;
        stop.registered.push(id);
        Ok(stop)
    }

    fn install_for(signals: &[i32]) -> io::Result<Self> {
        let mut stop = Self {
            request: Arc::new(Request::new()?),
            terminal: None,
            registered: Vec::new(),
        };
        for &number in signals {
            let request = Arc::clone(&stop.request);
            // SAFETY: `end` is async-signal-safe.
            let id =
                unsafe { signal_hook::low_level::register(number, move || request.end(number)) }?;
            stop.registered.push(id);
        }
        Ok(stop)
    }

    /// What was asked for, for another thread.
    pub fn request(&self) -> Arc<Request> {
        Arc::clone(&self.request)
    }

    /// Whether SIGHUP came since the last call.
    pub fn take_reload(&self) -> bool {
        self.request.reload.swap(false, Ordering::SeqCst)
    }

    /// Sleeps until `deadline`, until `other` is readable, or until a signal came that was not
    /// taken yet.
    pub fn wait_for(&self, deadline: Instant, other: BorrowedFd<'_>) -> Woken {
        loop {
            if self.requested().is_some() || self.request.reload.load(Ordering::SeqCst) {
                // Drained, or the next wait would not wait.
                self.request.settle();
                return Woken::Signal;
            }
            let (found, is_over) = self.poll(deadline, Some(other));
            if is_gone(found) {
                return Woken::Gone;
            }
            if !found.is_empty() {
                return Woken::Readable;
            }
            if is_over {
                return Woken::Time;
            }
        }
    }

    /// Waits once, for a signal, for the terminal to go, for `other`. Returns what was found of that,
    /// and whether the time was over before.
    fn poll(&self, deadline: Instant, other: Option<BorrowedFd<'_>>) -> (PollFlags, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = vec![PollFd::new(&self.request.wake, PollFlags::IN)];
        // Nothing is asked about the terminal: that it is gone is said all the same.
        let terminal = self.terminal.as_ref();
        fds.extend(terminal.map(|fd| PollFd::new(fd, PollFlags::empty())));
        fds.extend(other.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // An error is EINTR, which the caller's loop is for.
        let _ = poll(&mut fds, timeout.as_ref());
        if terminal.is_some() && is_gone(fds[1].revents()) {
            self.request.end(SIGHUP);
        }
        if !fds[0].revents().is_empty() && !self.request.reload.load(Ordering::SeqCst) {
            // Of a reload that was taken already.
            self.request.settle();
        }
        let found = match other {
            Some(_) => fds[fds.len() - 1].revents(),
            None => PollFlags::empty(),
        };
        (found, left.is_zero())
    }

    /// The signal that asked for an end, if one did.
    pub fn requested(&self) -> Option<i32> {
        self.request.requested()
    }

    /// Becomes true when an end is asked for: for what takes a flag to stop at.
    pub fn flag(&self) -> &AtomicBool {
        &self.request.flag
    }

    /// Sleeps for `duration` or until an end is asked for; true in the latter case.
    pub fn wait(&self, duration: Duration) -> bool {
        self.wait_until(Instant::now() + duration)
    }

    /// Sleeps until `deadline` or until an end is asked for; true in the latter case.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        while self.requested().is_none() {
            if self.poll(deadline, None).1 {
                return self.requested().is_some();
            }
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
