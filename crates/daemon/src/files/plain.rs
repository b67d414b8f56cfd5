// SPDX-License-Identifier: Apache-2.0
//! If there is no FUSE: the same tree as plain files, which are replaced after each tick, and a
//! socket for what plain files cannot do.
//!
//! A client of `control` sends one line and gets one answer:
//!
//! | line | answer |
//! |---|---|
//! | `write PATH VALUE` | `ok`, or `error ERRNO TEXT` |
//! | `read PATH` | `ok BYTES` and the bytes |
//! | `wait PATH` | `ok` when the histogram was notified |
//!
//! Paths are those of the tree. A line is at most 4 KiB.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::access::{DIRECTORY_MODE, FILE_MODE};
use super::handles::Handles;
use super::mount::{CONTROL, MARKER, remove_contents};
use super::source::{ReportFile, Source};
use super::tree::Entry;

/// The mode of directories: the daemon has to create files in them.
const MADE_IN: u32 = DIRECTORY_MODE as u32 | 0o200;
const LINE_BYTES_MAX: u64 = 4096;
const CLIENTS_MAX: usize = 16;
/// A client that is silent for this long is disconnected.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// After a failure to accept (no file descriptor left), clients have to wait for this long.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// How often the daemon checks on a waiting client.
const WAIT_STEP: Duration = Duration::from_millis(500);

/// The directory of plain files and its socket. Dropping it removes both.
pub struct Plain {
    dir: PathBuf,
    source: Arc<Source>,
    written: HashMap<String, String>,
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

struct Server {
    source: Arc<Source>,
    /// The clients that wait for each file.
    waiting: Mutex<Handles<Sender<()>>>,
    clients: AtomicUsize,
    is_stopped: AtomicBool,
}

impl Server {
    fn new(source: Arc<Source>) -> Arc<Self> {
        Arc::new(Server {
            source,
            waiting: Mutex::default(),
            clients: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
        })
    }
}

impl Plain {
    /// Fills a directory that [`mount::prepare`] prepared.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn new(dir: &Path, source: Arc<Source>) -> io::Result<Self> {
        fs::set_permissions(dir, Permissions::from_mode(MADE_IN))?;
        fs::write(dir.join(MARKER), "")?;
        let listener = UnixListener::bind(dir.join(CONTROL))?;
        let mode = Permissions::from_mode(u32::from(FILE_MODE));
        fs::set_permissions(dir.join(CONTROL), mode)?;
        let server = Server::new(Arc::clone(&source));
        let accepting = Arc::clone(&server);
        let thread = std::thread::Builder::new()
            .name("files-control".to_owned())
            .spawn(move || accept(&accepting, listener.incoming()))?;
        let mut plain = Plain {
            dir: dir.to_owned(),
            source,
            written: HashMap::new(),
            server,
            thread: Some(thread),
        };
        plain.rewrite()?;
        Ok(plain)
    }

    /// Updates the files: changed ones are replaced, and those that no longer exist are removed.
    ///
    /// # Errors
    /// The first error of the operating system; the other files are updated, and the next call
    /// tries again.
    pub fn rewrite(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        let mut there = HashMap::new();
        for file in self.source.files() {
            // It may have gone since it was listed.
            if let Ok(text) = self.source.read(&file) {
                let path = Entry::File(file).path();
                let text = match self.written.get(&path) == Some(&text) {
                    true => text,
                    false => match self.replace(&path, &text) {
                        Ok(()) => text,
                        Err(error) => {
                            result = result.and(Err(error));
                            // As if it had another text, so that it is replaced or removed later.
                            String::new()
                        }
                    },
                };
                there.insert(path, text);
            }
        }
        for (path, text) in std::mem::take(&mut self.written) {
            if !there.contains_key(&path)
                && let Err(error) = self.remove(&path)
            {
                result = result.and(Err(error));
                there.insert(path, text);
            }
        }
        self.written = there;
        result
    }

    /// Writes to a temporary file and renames it: a reader sees either the old text or the new one.
    fn replace(&self, path: &str, text: &str) -> io::Result<()> {
        let target = self.dir.join(path);
        let parent = target.parent().unwrap_or(&self.dir);
        DirBuilder::new()
            .recursive(true)
            .mode(MADE_IN)
            .create(parent)?;
        // Not next to it: a cgroup may have any name.
        let fresh = self.dir.join(".new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(u32::from(FILE_MODE))
            .open(&fresh)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, &target)
    }

    /// Removes a file, and directories that are empty afterwards.
    fn remove(&self, path: &str) -> io::Result<()> {
        match fs::remove_file(self.dir.join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut at = Path::new(path).parent();
        while let Some(dir) = at.filter(|dir| !dir.as_os_str().is_empty()) {
            if fs::remove_dir(self.dir.join(dir)).is_err() {
                break;
            }
            at = dir.parent();
        }
        Ok(())
    }

    /// Wakes the clients that wait for a file.
    pub fn notify(&self, file: &ReportFile) {
        let waiting = &self.server.waiting;
        for waiter in waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .notify(file)
        {
            // The client may have hung up.
            let _ = waiter.send(());
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.server.is_stopped.store(true, Ordering::SeqCst);
        // Ends the waiting accept.
        let _ = UnixStream::connect(self.dir.join(CONTROL));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = remove_contents(&self.dir) {
            agewise_cli::note!("cannot remove the files in {}: {error}", self.dir.display());
        }
    }
}

fn accept(server: &Arc<Server>, clients: impl Iterator<Item = io::Result<UnixStream>>) {
    for client in clients {
        if server.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if server.clients.fetch_add(1, Ordering::SeqCst) >= CLIENTS_MAX {
            server.clients.fetch_sub(1, Ordering::SeqCst);
            let _ = (&client).write_all(b"error 11 too many clients, try again\n");
            continue;
        }
        let served = Arc::clone(server);
        let spawned = std::thread::Builder::new()
            .name("files-client".to_owned())
            .spawn(move || {
                // If anything goes wrong, only this client is affected.
                let _ = serve(&served, &client);
                served.clients.fetch_sub(1, Ordering::SeqCst);
            });
        if spawned.is_err() {
            server.clients.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn serve(server: &Server, mut client: &UnixStream) -> io::Result<()> {
    client.set_read_timeout(Some(CLIENT_PATIENCE))?;
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new(client.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let (verb, rest) = split_at_space(line, |_| true).unwrap_or((line, b""));
    let file_at = |path: &[u8]| {
        let found = Entry::find(&String::from_utf8_lossy(path), &server.source);
        found.and_then(|entry| match entry {
            Entry::File(file) => Some(file),
            _ => None,
        })
    };
    // Names of cgroups may contain spaces.
    let (path, value) = match verb {
        b"write" => split_at_space(rest, |path| file_at(path).is_some()).unwrap_or((rest, b"")),
        _ => (rest, &b""[..]),
    };
    let Some(file) = file_at(path) else {
        let path = String::from_utf8_lossy(path);
        return writeln!(client, "error {} no such file: {path}", libc::ENOENT);
    };
    match verb {
        b"write" => match server.source.write(&file, value) {
            Ok(()) => writeln!(client, "ok"),
            Err(error) => writeln!(client, "error {} {error}", error.errno()),
        },
        b"read" => match server.source.read(&file) {
            Ok(text) => write!(client, "ok {}\n{text}", text.len()),
            Err(error) => writeln!(client, "error {} {error}", error.errno()),
        },
        b"wait" if file.is_page_age() => wait(server, file, client),
        _ => writeln!(client, "error {} say write, read or wait", libc::EINVAL),
    }
}

/// Splits a line at the first space that `is_end` accepts as the end of what precedes it.
fn split_at_space(line: &[u8], is_end: impl Fn(&[u8]) -> bool) -> Option<(&[u8], &[u8])> {
    let mut spaces = (0..line.len()).filter(|&at| line[at] == b' ');
    let at = spaces.find(|&at| is_end(&line[..at]))?;
    Some((&line[..at], &line[at + 1..]))
}

/// Waits until the file is notified, the client hangs up, or the daemon ends.
fn wait(server: &Server, file: ReportFile, mut client: &UnixStream) -> io::Result<()> {
    let (sender, receiver) = channel();
    let lock = || {
        server
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    let number = lock().open(file);
    let Some(number) = number else {
        return writeln!(client, "error {} too many wait", libc::ENFILE);
    };
    if let Some(handle) = lock().get(number) {
        handle.waiter = Some(sender);
    }
    client.set_read_timeout(Some(Duration::from_millis(1)))?;
    let result = loop {
        if receiver.recv_timeout(WAIT_STEP).is_ok() {
            break writeln!(client, "ok");
        }
        let hung_up = matches!(client.read(&mut [0u8; 1]), Ok(0));
        if hung_up || server.is_stopped.load(Ordering::SeqCst) {
            break Ok(());
        }
    };
    lock().close(number);
    result
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::demo;
    use crate::state::{Hub, Settings};

    #[test]
    fn a_failure_to_accept_is_no_reason_to_spin() {
        let hub = Hub::new(Settings::default());
        let server = Server::new(Arc::new(Source::new(hub, || 0, Duration::ZERO)));
        let (until, mut tries) = (Instant::now() + ACCEPT_PAUSE / 2, 0);
        let failures = std::iter::from_fn(|| {
            tries += 1;
            (Instant::now() < until).then(|| Err(io::Error::from_raw_os_error(libc::EMFILE)))
        });
        accept(&server, failures);
        assert_eq!(tries, 2, "one failure, and the end");
    }

    #[test]
    fn names_of_cgroups_may_contain_spaces() {
        let hub = Hub::new(Settings::default());
        let mut snapshot = demo::snapshot(1, 1000);
        snapshot.subjects[1].name = "/two words".into();
        hub.publish(snapshot);
        let server = Server::new(Arc::new(Source::new(hub, || 1000, Duration::ZERO)));
        let ask = |line: String| {
            let (mut client, served) = UnixStream::pair().unwrap();
            client.write_all(line.as_bytes()).unwrap();
            serve(&server, &served).unwrap();
            drop(served);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        };
        let file = "cgroup/two words/memory.workingset.refresh_interval";
        assert_eq!(ask(format!("write {file} N0=5000\n")), "ok\n");
        assert_eq!(ask(format!("read {file}\n")), "ok 14\nN0=5000 N1=0 \n");
    }
}
