// SPDX-License-Identifier: Apache-2.0
//! Ends `watch` when the terminal is gone, and within a bounded time whatever it is doing.
//!
//! Reading keys may wait for the rest of an incomplete key sequence, or loop forever on a closed
//! terminal; drawing may wait for a terminal that accepts no output; a look at all memory takes its
//! time. None of these can be interrupted from within, so a separate thread stands by.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::{ExecutableCommand, cursor, terminal};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::SIGHUP;

use agewise_cli::signal::{Request, Stop, is_gone};

/// Time allowed for an orderly exit once it was asked for.
const GRACE: Duration = Duration::from_millis(120);

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Guard {
    is_done: Arc<AtomicBool>,
}

impl Guard {
    /// Starts watching standard input and output, and the signals of `stop`.
    ///
    /// # Errors
    /// No file descriptor or thread is available.
    pub fn set(stop: &Stop) -> io::Result<Self> {
        let ends = [
            io::stdin().as_fd().try_clone_to_owned()?,
            io::stdout().as_fd().try_clone_to_owned()?,
        ];
        let request = stop.request();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        std::thread::Builder::new()
            .name("terminal".to_owned())
            .spawn(move || stand_by(&request, &ends, &done))?;
        Ok(Guard { is_done })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::SeqCst);
    }
}

fn stand_by(request: &Request, ends: &[OwnedFd; 2], is_done: &AtomicBool) {
    let signal = loop {
        if let Some(signal) = request.requested() {
            break signal;
        }
        let wake = request.wake_fd();
        let mut fds = [
            PollFd::new(&wake, PollFlags::IN),
            // Without requested events, poll still reports a hang-up.
            PollFd::new(&ends[0], PollFlags::empty()),
            PollFd::new(&ends[1], PollFlags::empty()),
        ];
        // The only expected error is EINTR.
        let _ = poll(&mut fds, None);
        if fds[1..].iter().any(|fd| is_gone(fd.revents())) {
            request.end(SIGHUP);
        }
    };
    std::thread::sleep(GRACE);
    if !is_done.load(Ordering::SeqCst) {
        let _ = restore();
        // It is safe to exit here: looking leaves nothing behind that would have to be undone.
        signal_hook::low_level::exit(i32::from(Stop::exit_code(signal)));
    }
}

/// Restores the terminal while another thread may hang in it: uses a non-blocking descriptor of its
/// own.
fn restore() -> io::Result<()> {
    terminal::disable_raw_mode()?;
    let mut output = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open("/proc/self/fd/1")?;
    output
        .execute(terminal::LeaveAlternateScreen)?
        .execute(cursor::Show)?
        .flush()
}
