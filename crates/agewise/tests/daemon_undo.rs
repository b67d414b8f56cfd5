// SPDX-License-Identifier: Apache-2.0
//! The command itself undoes what a killed daemon left behind, whatever happened to its
//! configuration and disk. Directories stand in for cgroups, so this runs everywhere.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use agewise_host::throttle::{Kind, Ledger, Step, Undo};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

const AGEWISE: &str = env!("CARGO_BIN_EXE_agewise");

/// What a daemon left behind: a squeezed cgroup and a socket.
struct Scene {
    top: tempfile::TempDir,
    state: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let state = top.path().join("state");
        let scene = Scene { top, state };
        fs::create_dir(scene.cgroup()).unwrap();
        scene
    }

    fn cgroup(&self) -> PathBuf {
        self.top.path().join("cgroup")
    }

    fn socket(&self) -> PathBuf {
        self.top.path().join("socket")
    }

    fn ledger(&self) -> PathBuf {
        self.state.join("ledger")
    }

    /// Opens the ledger, retrying: its lock may live on briefly in a child forked by another test
    /// that has not yet called exec.
    fn open_ledger(&self) -> Ledger {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let (ledger, _) = Ledger::open(&self.state).unwrap();
            match ledger.claim() {
                Ok(()) => return ledger,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn leave(&self) {
        let high = self.cgroup().join("memory.high");
        fs::write(&high, "100").unwrap();
        let ledger = self.open_ledger();
        let squeeze = Undo {
            dir: self.cgroup(),
            inode: fs::metadata(self.cgroup()).unwrap().ino(),
            kind: Kind::Squeeze,
            steps: vec![Step::Write {
                file: high,
                value: "max".to_owned(),
            }],
        };
        ledger.add(squeeze).unwrap();
        ledger.add(Undo::socket(&self.socket())).unwrap();
        let _ = fs::remove_file(self.socket());
        drop(UnixListener::bind(self.socket()).unwrap());
        assert!(self.ledger().exists() && self.socket().exists());
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(AGEWISE)
            .arg("daemon")
            .args(arguments)
            .env("STATE_DIRECTORY", &self.state)
            .output()
            .unwrap()
    }

    fn limit(&self) -> String {
        fs::read_to_string(self.cgroup().join("memory.high")).unwrap()
    }

    fn is_undone(&self) -> bool {
        self.limit() == "max" && !self.socket().exists()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn any_configuration_or_none_will_do() {
    let scene = Scene::new();
    let broken = scene.top.path().join("broken.toml");
    fs::write(&broken, "oops = [").unwrap();
    let other = scene.top.path().join("other.toml");
    fs::write(&other, "[protect]\nledger = '/nonexistent/ledger'\n").unwrap();
    let fifo = scene.top.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let [broken, other, fifo] = [&broken, &other, &fifo].map(|path| path.to_str().unwrap());
    for arguments in [
        vec!["--undo"],
        vec!["--let-go"],
        vec!["--undo", "--config", broken],
        vec!["--undo", "--config", other],
        vec!["--undo", "--config", fifo],
        vec!["--undo", "--config", "/nonexistent/agewise.toml"],
        vec!["--undo", "--state-dir", scene.state.to_str().unwrap()],
    ] {
        scene.leave();
        let output = scene.run(&arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert!(said(&output).contains("2 of what a killed agewise left was undone"));
        assert!(
            scene.is_undone() && !scene.ledger().exists(),
            "{arguments:?}"
        );
    }
    let nothing = scene.run(&["--undo"]);
    assert!(nothing.status.success() && said(&nothing).contains("nothing to undo"));
}

#[test]
fn a_daemon_that_cannot_start_undoes_first() {
    let scene = Scene::new();
    let config = scene.top.path().join("agewise.toml");
    let files = "[files]\nenabled = true\ndirectory = '/etc'\n".to_owned();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let listen = format!("[metrics]\nenabled = true\nlisten = '{listen}'\n");
    for (text, code) in [("oops = [".to_owned(), 78), (files, 78), (listen, 1)] {
        scene.leave();
        fs::write(&config, text).unwrap();
        let output = scene.run(&["--ticks", "1", "--config", config.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(scene.is_undone(), "{output:?}");
        assert!(!scene.ledger().exists());
    }
}

#[test]
fn a_ledger_that_a_configuration_still_names_is_undone_once_more() {
    let scene = Scene::new();
    let (dir, inode) = (scene.cgroup(), fs::metadata(scene.cgroup()).unwrap().ino());
    let dir = dir.display();
    let old = scene.top.path().join("throttle");
    let line = format!("squeeze\t{inode}\t{dir}\twrite\t{dir}/memory.high\tmax\n");
    fs::write(scene.cgroup().join("memory.high"), "100").unwrap();
    fs::write(&old, &line).unwrap();
    let config = scene.top.path().join("agewise.toml");
    fs::write(
        &config,
        format!("[protect]\nledger = '{}'\n", old.display()),
    )
    .unwrap();
    let arguments = ["--undo", "--config", config.to_str().unwrap()];
    let output = scene.run(&arguments);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("protect.ledger is no longer used"));
    assert!(scene.limit() == "max" && !old.exists());
    // A line that makes no sense is not dropped.
    fs::write(scene.cgroup().join("memory.high"), "100").unwrap();
    fs::write(&old, format!("{line}freeze\t1\t/a\tlaeve\t/a\t/b\n")).unwrap();
    let output = scene.run(&arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("laeve") && old.exists());
    assert_eq!(scene.limit(), "max");
}

#[test]
fn a_ledger_that_others_could_have_written_is_not_carried_out() {
    let scene = Scene::new();
    scene.leave();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // If a parent directory is closed, the mode of the directory does not matter.
    mode(scene.top.path(), 0o700);
    mode(&scene.state, 0o777);
    assert!(scene.run(&["--undo"]).status.success() && scene.is_undone());
    scene.leave();
    mode(scene.top.path(), 0o755);
    let output = scene.run(&["--undo"]);
    if output.status.success() {
        println!("SKIPPED a_ledger_of_others: the temporary directory is closed to others");
        return;
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("others may write to the directory"),
        "{output:?}"
    );
    assert!(!scene.is_undone());
    mode(&scene.state, 0o700);
    assert!(scene.run(&["--undo"]).status.success() && scene.is_undone());
}

/// A file system for the state directory, unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir(at).unwrap();
        match mount(
            "agewise-test",
            at,
            "tmpfs",
            MountFlags::empty(),
            c"size=64k,mode=0700",
        ) {
            Ok(()) => Some(Disk(at.to_owned())),
            Err(errno) => {
                println!("SKIPPED a_small_disk: no file system can be mounted here ({errno})");
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_disk_that_is_full_or_read_only_keeps_nothing_from_being_undone() {
    let scene = Scene::new();
    let Some(disk) = Disk::mount(&scene.state) else {
        return;
    };
    scene.leave();
    fs::write(disk.0.join("filler"), vec![1u8; 1 << 20]).unwrap_err();
    let output = scene.run(&["--undo"]);
    assert!(output.status.success(), "{output:?}");
    assert!(scene.is_undone() && !scene.ledger().exists());

    fs::remove_file(disk.0.join("filler")).unwrap();
    scene.leave();
    mount_remount(&disk.0, MountFlags::RDONLY, c"").unwrap();
    let output = scene.run(&["--undo"]);
    // Everything is undone; only the record of it could not be removed.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(scene.is_undone() && scene.ledger().exists());
    mount_remount(&disk.0, MountFlags::empty(), c"").unwrap();
    assert!(scene.run(&["--undo"]).status.success() && !scene.ledger().exists());
    // There is nothing to undo and nothing can be written, which is fine.
    mount_remount(&disk.0, MountFlags::RDONLY, c"").unwrap();
    assert!(scene.run(&["--undo"]).status.success());
}
