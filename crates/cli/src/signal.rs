// SPDX-License-Identifier: Apache-2.0
//! Orderly exit on signals that would otherwise end the process at once: drop guards run, devices
//! are removed, limits are restored. A terminal on standard output that is gone has the same
//! effect, since a process outside its foreground process group gets no signal.
//!
//! Nothing here kills: a command checks [`Stop`] between bounded steps and waits through it, so a
//! signal cuts a wait short but never interrupts a step.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use signal_hook::SigId;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// The signals that request an exit. The last three mean nothing to agewise, and without a handler
/// would end it with a terminal in raw mode, or a limit that is not restored.
pub const STOP_SIGNALS: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM];

/// Tells whether an exit was requested, and sleeps until then.
///
/// While it lives, the signals have no other effect. After it is dropped they have no effect at all
/// until the process ends (signal-hook keeps its handlers), as cleaning up requires.
#[derive(Debug)]
pub struct Stop {
    request: Arc<Request>,
    /// Standard output, if it is a terminal that the command depends on.
    terminal: Option<OwnedFd>,
    /// For a daemon: the controlling terminal whose hang-up ends it.
    controlling: Option<Controlling>,
    registered: Vec<SigId>,
}

/// The requests so far, shared with signal handlers and other threads.
#[derive(Debug)]
pub struct Request {
    /// The last signal, or 0.
    signal: AtomicI32,
    /// Whether an exit was requested.
    flag: AtomicBool,
    /// Whether SIGHUP arrived since the last check, where it means to reload the configuration.
    reload: AtomicBool,
    /// Readable once a signal has arrived.
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

    /// Requests an exit as if `signal` had arrived. Async-signal-safe: it stores to atomics and
    /// writes to an eventfd, without allocating or locking.
    pub fn end(&self, signal: i32) {
        self.signal.store(signal, Ordering::SeqCst);
        self.flag.store(true, Ordering::SeqCst);
        self.rouse();
    }

    /// The signal that requested an exit, if any.
    pub fn requested(&self) -> Option<i32> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            number => Some(number),
        }
    }

    /// A descriptor that is readable once an exit is requested.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn rouse(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Resets the descriptor, unless an exit was requested.
    fn settle(&self) {
        if self.requested().is_none() {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            // A request that arrived in between must not be lost.
            if self.requested().is_some() {
                self.rouse();
            }
        }
    }
}

/// The controlling terminal of this process. The kernel takes it away when it hangs up, before it
/// sends SIGHUP to the shell, which sends it on to its jobs if they are still known to it.
#[derive(Debug, Default)]
struct Controlling {
    /// When its loss was noticed.
    lost: OnceLock<Instant>,
}

impl Controlling {
    /// The SIGHUP of a hang-up arrives within this time. A later one means something else.
    const SIGNAL_WITHIN: Duration = Duration::from_secs(10);

    /// Looks whether the terminal is gone, and notes when it first was. Returns whether a SIGHUP
    /// that arrives now says that it hung up.
    fn look(&self) -> bool {
        // An error of another kind says nothing about the terminal.
        let gone = [rustix::io::Errno::NXIO, rustix::io::Errno::IO].map(|no| no.raw_os_error());
        let error = std::fs::File::open("/dev/tty").err();
        let number = error.and_then(|error| error.raw_os_error());
        self.was_lost_by(number.is_some_and(|no| gone.contains(&no)), Instant::now())
    }

    fn was_lost_by(&self, is_gone: bool, now: Instant) -> bool {
        let since = |lost: &Instant| now.saturating_duration_since(*lost);
        is_gone && since(self.lost.get_or_init(|| now)) < Self::SIGNAL_WITHIN
    }
}

/// Whether SIGHUP is ignored, as `nohup` arranges.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set & 1 << (SIGHUP - 1) != 0)
}

/// Whether poll found that the other end of a descriptor is gone.
pub fn is_gone(found: PollFlags) -> bool {
    found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Why [`Stop::wait_for`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The deadline has passed.
    Time,
    /// The descriptor is readable.
    Readable,
    /// The other end of the descriptor is gone: it will never be readable again.
    Gone,
    /// A signal arrived: see [`Stop::requested`] and [`Stop::take_reload`].
    Signal,
}

impl Stop {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// That of the operating system if no file descriptor is available.
    pub fn install() -> io::Result<Self> {
        let mut stop = Self::install_for(&STOP_SIGNALS)?;
        let output = io::stdout();
        if output.is_terminal() {
            stop.terminal = Some(output.as_fd().try_clone_to_owned()?);
        }
        Ok(stop)
    }

    /// Installs the handlers for a daemon: SIGHUP means to reload the configuration, and no
    /// terminal is needed. Of a daemon that was started in one it is also what the kernel or a
    /// shell sends when that terminal is closed, and then it means to end, unless SIGHUP was
    /// ignored at the start (`nohup`).
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub fn install_for_daemon() -> io::Result<Self> {
        let has_terminal = std::fs::File::open("/dev/tty").is_ok();
        let controlling = (has_terminal && !ignores_hangups()).then(Controlling::default);
        let others = STOP_SIGNALS.into_iter().filter(|no| *no != SIGHUP);
        let mut stop = Self::install_for(&others.collect::<Vec<_>>())?;
        stop.controlling = controlling;
        let request = Arc::clone(&stop.request);
        // SAFETY: as below; it stores to an atomic and writes to an eventfd.
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
            controlling: None,
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

    /// The requests so far, for use in another thread.
    pub fn request(&self) -> Arc<Request> {
        Arc::clone(&self.request)
    }

    /// Whether SIGHUP arrived since the last call, and meant to reload. If it meant to end, an exit
    /// is requested instead.
    pub fn take_reload(&self) -> bool {
        let has_arrived = self.request.reload.swap(false, Ordering::SeqCst);
        if has_arrived && self.look_at_terminal() {
            self.request.end(SIGHUP);
            return false;
        }
        has_arrived
    }

    /// See [`Controlling::look`].
    fn look_at_terminal(&self) -> bool {
        self.controlling.as_ref().is_some_and(Controlling::look)
    }

    /// Sleeps until `deadline`, until `other` is readable, or until an unhandled signal arrives.
    pub fn wait_for(&self, deadline: Instant, other: BorrowedFd<'_>) -> Woken {
        loop {
            if self.requested().is_some() || self.request.reload.load(Ordering::SeqCst) {
                // Drain it, or the next wait would return at once.
                self.request.settle();
                return Woken::Signal;
            }
            // A terminal that was lost without a signal is noticed here.
            self.look_at_terminal();
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

    /// Polls once, for a signal, for the loss of the terminal, and for `other`. Returns the events
    /// on `other`, and whether the deadline had already passed.
    fn poll(&self, deadline: Instant, other: Option<BorrowedFd<'_>>) -> (PollFlags, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = vec![PollFd::new(&self.request.wake, PollFlags::IN)];
        // Without requested events, poll still reports a hang-up of the terminal.
        let terminal = self.terminal.as_ref();
        fds.extend(terminal.map(|fd| PollFd::new(fd, PollFlags::empty())));
        fds.extend(other.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // The only expected error is EINTR, and the caller loops.
        let _ = poll(&mut fds, timeout.as_ref());
        if terminal.is_some() && is_gone(fds[1].revents()) {
            self.request.end(SIGHUP);
        }
        if !fds[0].revents().is_empty() && !self.request.reload.load(Ordering::SeqCst) {
            // The wake-up was for a reload that has already been taken.
            self.request.settle();
        }
        let found = match other {
            Some(_) => fds[fds.len() - 1].revents(),
            None => PollFlags::empty(),
        };
        (found, left.is_zero())
    }

    /// The signal that requested an exit, if any.
    pub fn requested(&self) -> Option<i32> {
        self.request.requested()
    }

    /// Becomes true when an exit is requested, for code that takes a flag.
    pub fn flag(&self) -> &AtomicBool {
        &self.request.flag
    }

    /// Sleeps for `duration` or until an exit is requested; returns true in the latter case.
    pub fn wait(&self, duration: Duration) -> bool {
        self.wait_until(Instant::now() + duration)
    }

    /// Sleeps until `deadline` or until an exit is requested; returns true in the latter case.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        while self.requested().is_none() {
            if self.poll(deadline, None).1 {
                return self.requested().is_some();
            }
        }
        true
    }

    /// The exit status that a shell reports for a command ended by a signal: 128 plus its number.
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
    fn only_a_signal_soon_after_the_loss_of_the_terminal_is_a_hang_up() {
        let controlling = Controlling::default();
        let now = Instant::now();
        assert!(!controlling.was_lost_by(false, now));
        let lost = now + Duration::from_secs(3600);
        assert!(controlling.was_lost_by(true, lost));
        assert!(controlling.was_lost_by(true, lost + Duration::from_secs(9)));
        assert!(!controlling.was_lost_by(true, lost + Duration::from_secs(10)));
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
