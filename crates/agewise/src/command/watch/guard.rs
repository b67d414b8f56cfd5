// SPDX-License-Identifier: Apache-2.0
//! Ends `watch` when the terminal is gone, and in time whatever it is busy with.
//!
//! Reading keys waits for the rest of a key that never comes, and goes round for ever on a terminal
//! that was closed; drawing waits for a terminal that takes nothing; a look at all memory takes as
//! long as it takes. None of them can be cut short from within, so a thread waits beside.

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

/// How long an orderly end may take, once it was asked for.
const GRACE: Duration = Duration::from_millis(120);

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Guard {
    is_done: Arc<AtomicBool>,
}

impl Guard {
    /// Begins to watch standard input and output, and what `stop` hears.
    ///
    /// # Errors
    /// No file descriptor or thread can be had.
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
            // Nothing is asked about them: that they are gone is said all the same.
            PollFd::new(&ends[0], PollFlags::empty()),
            PollFd::new(&ends[1], PollFlags::empty()),
        ];
        // An error is EINTR.
        let _ = poll(&mut fds, None);
        if fds[1..].iter().any(|fd| is_gone(fd.revents())) {
            request.end(SIGHUP);
        }
    };
    std::thread::sleep(GRACE);
    if !is_done.load(Ordering::SeqCst) {
        let _ = restore();
        // Nothing outlives the process: looking leaves nothing behind that would have to be undone.
        signal_hook::low_level::exit(i32::from(Stop::exit_code(signal)));
    }
}

/// Gives the terminal back beside a thread that may hang in it: by a descriptor of its own, which
/// does not wait.
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
