// SPDX-License-Identifier: Apache-2.0
//! Mounts and sockets, recorded in the ledger as long as they exist.

use std::path::PathBuf;

use agewise_host::throttle::{Kind, Ledger, Undo};

/// The record of something in the file system. Drop it after that was removed: the record is
/// removed as well, and also the thing itself if it still exists.
#[derive(Debug)]
pub struct Noted {
    ledger: Ledger,
    path: PathBuf,
    kind: Kind,
}

impl Noted {
    /// Records it. Returns `None` if that fails, which is reported: unlike a frozen cgroup, a mount
    /// or a socket does no harm, and the next daemon that serves there removes it.
    pub fn new(ledger: &Ledger, undo: Undo) -> Option<Self> {
        let (path, kind) = (undo.dir.clone(), undo.kind);
        match ledger.add(undo) {
            Ok(()) => Some(Noted {
                ledger: ledger.clone(),
                path,
                kind,
            }),
            Err(error) => {
                let path = path.display();
                agewise_cli::note!(
                    "{path} is not noted, so `daemon --undo` will not find it: {error}"
                );
                None
            }
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Err(error) = self.ledger.undo(&self.path, self.kind) {
            agewise_cli::note!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_note_lives_as_long_as_what_it_is_about() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let state = dir.path().join("state");
        let (ledger, _) = Ledger::open(&state).unwrap();
        let noted = Noted::new(&ledger, Undo::socket(&socket)).unwrap();
        assert!(state.join("ledger").exists());
        drop(UnixListener::bind(&socket).unwrap());
        assert!(socket.exists(), "as after a kill");
        drop(noted);
        assert!(!socket.exists() && !state.join("ledger").exists());
    }

    #[test]
    fn what_cannot_be_noted_is_done_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (ledger, _) = Ledger::open(&state).unwrap();
        // No directory can be created where a file is.
        std::fs::write(&state, "").unwrap();
        assert!(Noted::new(&ledger, Undo::socket(&dir.path().join("socket"))).is_none());
    }
}
