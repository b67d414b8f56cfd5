// SPDX-License-Identifier: Apache-2.0
//! Reads the file of a configuration without being blocked by it.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::{Config, ConfigError};

/// Too large for a configuration.
const SIZE_MAX: u64 = 1 << 20;
/// How long reading a file may take while other work waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// A file system did not respond, and a thread still waits for it. There is at most one such
    /// thread for each that asks; only the daemon's main thread does.
    static IS_WAITING: Arc<AtomicBool> = Arc::default();
}

/// The text of a file. FIFOs and devices are only opened to see what they are.
pub(super) fn text(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(ConfigError::NoFile {
            path: path.to_owned(),
        });
    }
    let mut text = String::new();
    let read = file
        .take(SIZE_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if read as u64 > SIZE_MAX {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(text)
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(path, &text(path)?)
    }

    /// Like [`read`](Self::read), but within two seconds: a file system that hangs because its
    /// server is gone does not block the caller.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read_in_time(path: &Path) -> Result<Self, ConfigError> {
        let text = within(path, PATIENCE, text)?;
        Self::of_file(path, &text)
    }

    fn of_file(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse(text).map_err(|message| ConfigError::Invalid {
            path: path.to_owned(),
            message,
        })
    }
}

/// Reads on a separate thread, which is left behind if it takes too long.
pub(super) fn within(
    path: &Path,
    patience: Duration,
    read: fn(&Path) -> Result<String, ConfigError>,
) -> Result<String, ConfigError> {
    let slow = |_| ConfigError::Slow {
        path: path.to_owned(),
        patience,
    };
    let is_waiting = IS_WAITING.with(Arc::clone);
    if is_waiting.swap(true, Ordering::SeqCst) {
        return Err(slow(()));
    }
    let has_read = Arc::clone(&is_waiting);
    let (sender, receiver) = mpsc::channel();
    let of_thread: PathBuf = path.to_owned();
    let started = std::thread::Builder::new()
        .name("configuration".to_owned())
        .spawn(move || {
            let result = read(&of_thread);
            has_read.store(false, Ordering::SeqCst);
            // The receiver may be gone.
            let _ = sender.send(result);
        });
    if let Err(source) = started {
        is_waiting.store(false, Ordering::SeqCst);
        return Err(ConfigError::Read {
            path: path.to_owned(),
            source,
        });
    }
    receiver.recv_timeout(patience).map_err(|_| slow(()))?
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let began = Instant::now();
        for path in [&fifo, Path::new("/dev/zero"), dir.path()] {
            let error = Config::read(path).unwrap_err();
            assert!(matches!(error, ConfigError::NoFile { .. }), "{error}");
        }
        assert!(Config::read(&socket).is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_file_system_that_hangs_holds_nobody_up() {
        let path = Path::new("/hung");
        let hangs = |_: &Path| {
            std::thread::sleep(Duration::from_millis(500));
            Ok("late".to_owned())
        };
        let began = Instant::now();
        let error = within(path, SOON, hangs).unwrap_err();
        assert!(matches!(error, ConfigError::Slow { .. }), "{error}");
        // No second thread is started.
        let error = within(path, Duration::from_secs(60), hangs).unwrap_err();
        assert!(matches!(error, ConfigError::Slow { .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10));
        while IS_WAITING.with(|of| of.load(Ordering::SeqCst)) {
            std::thread::sleep(SOON);
        }
        let quick = |_: &Path| Ok("text".to_owned());
        let text = within(path, Duration::from_secs(60), quick).unwrap();
        assert_eq!(text, "text");
    }
}
