// SPDX-License-Identifier: Apache-2.0
//! A pseudoterminal with the test at its master side.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// A pseudoterminal, 100 columns by 30 rows.
pub struct Pty {
    master: File,
    /// Keeps the terminal and its settings after the program has ended.
    slave: File,
    said: Vec<u8>,
}

impl Pty {
    pub fn open() -> Self {
        // SAFETY: opens a new descriptor, which is owned from here on.
        let master = unsafe {
            let fd = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        let fd = master.as_raw_fd();
        let mut name = [0u8; 64];
        // SAFETY: the buffers outlive the calls, and their lengths are passed.
        unsafe {
            assert_eq!(libc::grantpt(fd), 0);
            assert_eq!(libc::unlockpt(fd), 0);
            assert_eq!(libc::ptsname_r(fd, name.as_mut_ptr().cast(), name.len()), 0);
            let flags = libc::fcntl(fd, libc::F_GETFL);
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        }
        let end = name.iter().position(|byte| *byte == 0).unwrap();
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(std::str::from_utf8(&name[..end]).unwrap())
            .unwrap();
        let pty = Pty {
            master,
            slave,
            said: Vec::new(),
        };
        pty.resize(100);
        pty
    }

    /// Gives it this many columns; the kernel sends SIGWINCH to the program in its foreground.
    pub fn resize(&self, columns: u16) {
        let size = libc::winsize {
            ws_row: 30,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the buffer outlives the call.
        let done =
            unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// The slave side, for the program.
    pub fn slave(&self) -> File {
        self.slave.try_clone().unwrap()
    }

    pub fn write(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    /// Everything written to the terminal so far.
    pub fn all(&mut self) -> String {
        let mut piece = [0; 4096];
        loop {
            match self.master.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => self.said.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        String::from_utf8_lossy(&self.said).into_owned()
    }

    pub fn wait_for(&mut self, text: &str, patience: Duration) {
        let began = Instant::now();
        while !self.all().contains(text) {
            assert!(
                began.elapsed() < patience,
                "no {text:?} in {:?}",
                self.all()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// From now on, writes to the terminal block, as on a connection that hangs.
    pub fn stall(&mut self) {
        // SAFETY: the descriptor is ours.
        let done = unsafe { libc::tcflow(self.slave.as_raw_fd(), libc::TCOOFF) };
        assert_eq!(done, 0);
    }

    /// Whether it echoes input and is in line mode.
    pub fn is_cooked(&self) -> bool {
        // SAFETY: all zero is a valid value, which the call overwrites.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            assert_eq!(
                libc::tcgetattr(self.slave.as_raw_fd(), &raw mut settings),
                0
            );
            settings
        };
        settings.c_lflag & (libc::ECHO | libc::ICANON) == libc::ECHO | libc::ICANON
    }
}
