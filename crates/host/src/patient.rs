// SPDX-License-Identifier: Apache-2.0
//! Reads files that may never answer.
//!
//! The kernel locks an address space while a system call changes it, and the call may wait for a
//! file system: a program that replaces a shared mapping of its own FUSE file holds the lock for as
//! long as its server pleases (`fuse_vma_close`, Linux 6.18). Whoever reads `maps` or `smaps` of
//! that process then waits too, and only SIGKILL ends that. So a thread reads them; one that does
//! not come back is left waiting, and the others are read by another. Handing over takes 11 us of
//! CPU time a file, beside 65 us for reading that of a small program.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::clock;

/// How long a file may take. The largest lists of mappings take 0.1 s.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most threads left waiting. With more such processes no file is read until one of them answers:
/// then the ages of memory stand still, but everything else goes on.
const WAITING_MAX: usize = 16;

thread_local! {
    /// One per thread, however much it reads: threads are few, and those that wait are known.
    static READER: RefCell<PatientReader> = RefCell::default();
}

/// Replaces `text` by the contents of a file.
///
/// # Errors
/// The error of the system; `TimedOut` if the file does not answer, at once if it already did not
/// the last time.
pub(crate) fn read(path: &Path, text: &mut Vec<u8>) -> io::Result<()> {
    READER.with_borrow_mut(|reader| reader.read(path, text))
}

/// Reads files, one after another.
#[derive(Debug, Default)]
struct PatientReader {
    thread: Option<Thread>,
    /// Those that have not come back.
    waiting: Vec<(PathBuf, Thread)>,
}

#[derive(Debug)]
struct Thread {
    paths: Sender<(PathBuf, Vec<u8>)>,
    answers: Receiver<Answer>,
}

#[derive(Debug)]
struct Answer {
    read: io::Result<()>,
    text: Vec<u8>,
    cpu_ns: u64,
}

impl Thread {
    fn start() -> io::Result<Self> {
        let (paths, asked) = channel::<(PathBuf, Vec<u8>)>();
        let (answer, answers) = channel();
        // It ends when nobody asks any more.
        std::thread::Builder::new()
            .name("agewise-reads".to_owned())
            .stack_size(64 << 10)
            .spawn(move || {
                let mut counted_ns = 0;
                for (path, mut text) in asked {
                    text.clear();
                    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut text));
                    let used_ns = clock::thread_cpu_ns();
                    let sent = answer.send(Answer {
                        read: read.map(drop),
                        text,
                        cpu_ns: used_ns.saturating_sub(counted_ns),
                    });
                    counted_ns = used_ns;
                    if sent.is_err() {
                        return;
                    }
                }
            })?;
        Ok(Thread { paths, answers })
    }
}

impl PatientReader {
    fn read(&mut self, path: &Path, text: &mut Vec<u8>) -> io::Result<()> {
        let is_waiting = |thread: &Thread| thread.answers.try_recv().err();
        self.waiting
            .retain(|(_, thread)| is_waiting(thread) == Some(TryRecvError::Empty));
        let waits = self.waiting.iter().any(|(of, _)| of == path);
        if waits || self.waiting.len() >= WAITING_MAX {
            return Err(no_answer());
        }
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => Thread::start()?,
        };
        let asked = thread.paths.send((path.to_owned(), std::mem::take(text)));
        asked.map_err(|_| no_answer())?;
        let Ok(answer) = thread.answers.recv_timeout(PATIENCE) else {
            self.waiting.push((path.to_owned(), thread));
            return Err(no_answer());
        };
        clock::count_helper(answer.cpu_ns);
        *text = answer.text;
        self.thread = Some(thread);
        answer.read
    }
}

fn no_answer() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the kernel does not answer: a file system that a process maps may hang",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A FIFO, which nobody can open for reading until somebody writes to it.
    fn hang(path: &Path) {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends with NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn what_does_not_answer_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let (hung, well) = (dir.path().join("hung"), dir.path().join("well"));
        hang(&hung);
        fs::write(&well, "x").unwrap();
        let (mut reader, mut text) = (PatientReader::default(), b"before".to_vec());
        reader.read(&well, &mut text).unwrap();
        assert_eq!(text, b"x");
        for _ in 0..3 {
            let error = reader.read(&hung, &mut text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            reader.read(&well, &mut text).unwrap();
            assert_eq!(text, b"x");
        }
        assert_eq!(
            reader.waiting.len(),
            1,
            "one thread waits, however often it is asked"
        );
        fs::write(&hung, "at last").unwrap();
        while !reader.waiting.is_empty() {
            reader.read(&well, &mut text).unwrap();
        }
        // Now there is no writer, so it hangs again, for another thread.
        reader.read(&hung, &mut text).unwrap_err();
        assert_eq!(reader.waiting.len(), 1);
        let missing = reader
            .read(&dir.path().join("none"), &mut text)
            .unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn so_many_threads_wait_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (mut reader, mut text) = (PatientReader::default(), Vec::new());
        for _ in 0..WAITING_MAX {
            let thread = Thread::start().unwrap();
            let path = dir.path().join(reader.waiting.len().to_string());
            hang(&path);
            thread.paths.send((path.clone(), Vec::new())).unwrap();
            reader.waiting.push((path, thread));
        }
        let error = reader.read(Path::new("/proc/self/maps"), &mut text);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        fs::write(&reader.waiting[3].0, "").unwrap();
        while reader
            .read(Path::new("/proc/self/maps"), &mut text)
            .is_err()
        {
            std::thread::yield_now();
        }
        assert!(!text.is_empty());
    }
}
