// SPDX-License-Identifier: Apache-2.0
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::thread::CapabilitySet;

use super::*;
use crate::throttle::Step;

/// A directory that represents a cgroup, and a state directory.
struct Scene {
    _top: tempfile::TempDir,
    cgroup: PathBuf,
    state: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let cgroup = top.path().join("cgroup");
        fs::create_dir(&cgroup).unwrap();
        fs::write(cgroup.join("memory.high"), "100").unwrap();
        fs::write(cgroup.join("cgroup.freeze"), "1").unwrap();
        let state = top.path().join("state");
        Scene {
            _top: top,
            cgroup,
            state,
        }
    }

    fn undo(&self, kind: Kind, file: &str, value: &str) -> Undo {
        Undo {
            dir: self.cgroup.clone(),
            inode: fs::metadata(&self.cgroup).unwrap().ino(),
            kind,
            steps: vec![Step::Write {
                file: self.cgroup.join(file),
                value: value.to_owned(),
            }],
        }
    }

    fn squeeze(&self) -> Undo {
        self.undo(Kind::Squeeze, "memory.high", "max")
    }

    fn freeze(&self) -> Undo {
        self.undo(Kind::Freeze, "cgroup.freeze", "0")
    }

    fn value(&self, file: &str) -> String {
        fs::read_to_string(self.cgroup.join(file)).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.state.join(NAME)
    }
}

#[test]
fn what_a_killed_program_left_is_undone_by_the_next() {
    let scene = Scene::new();
    let (ledger, undone) = Ledger::open(&scene.state).unwrap();
    assert!(
        undone.is_nothing() && !scene.state.exists(),
        "nothing is made in vain"
    );
    ledger.add(scene.squeeze()).unwrap();
    ledger.add(scene.freeze()).unwrap();
    assert_eq!(fs::metadata(scene.file()).unwrap().mode() & 0o777, 0o600);
    let taken = Ledger::open(&scene.state).unwrap_err();
    assert!(matches!(taken, LedgerError::Taken { .. }), "{taken}");
    drop(ledger);
    let (ledger, undone) = Ledger::open(&scene.state).unwrap();
    assert!(undone.is_well() && !scene.file().exists(), "{undone:?}");
    assert_eq!(undone.done.len(), 2);
    assert!(scene.value("memory.high").starts_with("max"));
    assert!(scene.value("cgroup.freeze").starts_with('0'));
    assert!(!ledger.has(&scene.cgroup, Kind::Squeeze));
}

#[test]
fn what_cannot_be_undone_stays_noted() {
    let scene = Scene::new();
    fs::remove_file(scene.cgroup.join("cgroup.freeze")).unwrap();
    // Writing to a directory fails.
    fs::create_dir(scene.cgroup.join("cgroup.freeze")).unwrap();
    let (ledger, _) = Ledger::open(&scene.state).unwrap();
    ledger.add(scene.freeze()).unwrap();
    ledger.add(scene.squeeze()).unwrap();
    let undone = ledger.undo_throttles();
    assert_eq!(undone.failures.len(), 1);
    let done: Vec<String> = undone.done.iter().map(Undo::describe).collect();
    let dir = scene.cgroup.display();
    assert_eq!(done, [format!("the squeeze of {dir}")]);
    assert!(
        scene.value("memory.high").starts_with("max"),
        "the others are undone"
    );
    drop(ledger);
    let (ledger, undone) = Ledger::open(&scene.state).unwrap();
    assert_eq!((undone.done.len(), undone.failures.len()), (0, 1));
    assert!(scene.file().exists() && ledger.has(&scene.cgroup, Kind::Freeze));
    drop(ledger);
    fs::remove_dir(scene.cgroup.join("cgroup.freeze")).unwrap();
    let (_, undone) = Ledger::open(&scene.state).unwrap();
    assert!(undone.is_well() && !scene.file().exists(), "{undone:?}");
}

#[test]
fn a_line_that_cannot_be_read_is_said_and_kept_and_the_others_are_undone() {
    let scene = Scene::new();
    let (ledger, _) = Ledger::open(&scene.state).unwrap();
    ledger.add(scene.freeze()).unwrap();
    ledger.add(scene.squeeze()).unwrap();
    drop(ledger);
    let text = fs::read_to_string(scene.file()).unwrap();
    fs::write(scene.file(), text.replace("freeze\t0", "freeze\t9")).unwrap();
    for round in 0..2 {
        let (ledger, undone) = Ledger::open(&scene.state).unwrap();
        assert_eq!((undone.done.len(), undone.unreadable.len()), (1 - round, 1));
        assert!(!undone.is_well() && undone.unreadable[0].contains("cgroup.freeze\\t9"));
        let notes: Vec<String> = undone.unreadable_notes().collect();
        assert!(notes.len() == 1 && notes[0].ends_with(&undone.unreadable[0]));
        assert!(scene.value("memory.high").starts_with("max"));
        assert_eq!(scene.value("cgroup.freeze"), "1");
        // It survives later entries and undos.
        ledger.add(scene.squeeze()).unwrap();
        ledger.undo(&scene.cgroup, Kind::Squeeze).unwrap();
        assert!(
            fs::read_to_string(scene.file())
                .unwrap()
                .contains("freeze\t9")
        );
    }
}

#[test]
fn a_ledger_of_an_earlier_version_is_undone_where_it_lies() {
    let scene = Scene::new();
    let file = scene.cgroup.join("throttle");
    let nothing = Ledger::undo_file(&file).unwrap();
    assert!(nothing.is_nothing());
    let dir = scene.cgroup.display();
    let inode = scene.squeeze().inode;
    let line = format!("squeeze\t{inode}\t{dir}\twrite\t{dir}/memory.high\tmax\n");
    fs::write(&file, format!("{line}laeve\n")).unwrap();
    // The program that wrote it is still running.
    let lock = fs::File::create(file.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(
        Ledger::undo_file(&file),
        Err(LedgerError::Taken { .. })
    ));
    assert_eq!(scene.value("memory.high"), "100");
    drop(lock);
    let undone = Ledger::undo_file(&file).unwrap();
    assert_eq!((undone.done.len(), undone.unreadable.len()), (1, 1));
    assert!(scene.value("memory.high").starts_with("max") && file.exists());
    fs::write(&file, &line).unwrap();
    assert!(Ledger::undo_file(&file).unwrap().is_well() && !file.exists());
}

/// Otherwise the next program would thaw a cgroup that somebody else has frozen.
#[test]
fn what_was_undone_goes_from_the_file_as_soon_as_it_can_be_written() {
    let scene = Scene::new();
    let (ledger, _) = Ledger::open(&scene.state).unwrap();
    ledger.add(scene.squeeze()).unwrap();
    ledger.add(scene.freeze()).unwrap();
    ledger.hold(&scene.cgroup, Kind::Squeeze, true);
    let noted = || fs::read_to_string(scene.file()).unwrap();
    fs::create_dir(scene.state.join("ledger.new")).unwrap();
    assert!(ledger.undo(&scene.cgroup, Kind::Freeze).is_err());
    assert!(scene.value("cgroup.freeze").starts_with('0'));
    assert!(!ledger.has(&scene.cgroup, Kind::Freeze) && noted().contains("freeze"));
    // An entry that cannot be added does not hide that.
    assert!(
        ledger
            .add(scene.undo(Kind::Limit, "memory.high", "max"))
            .is_err()
    );
    assert_eq!(ledger.undo_throttles().failures.len(), 1);
    fs::remove_dir(scene.state.join("ledger.new")).unwrap();
    assert!(ledger.undo_throttles().is_nothing());
    assert!(!noted().contains("freeze") && noted().contains("squeeze"));
}

#[test]
fn what_cannot_be_noted_is_refused_and_what_was_noted_is_undone_all_the_same() {
    let scene = Scene::new();
    // Nobody, not even root, can create a directory below a file.
    fs::write(&scene.state, "").unwrap();
    assert!(Ledger::open(&scene.state.join("x")).is_err());
    fs::remove_file(&scene.state).unwrap();
    let (ledger, _) = Ledger::open(&scene.state).unwrap();
    ledger.add(scene.squeeze()).unwrap();
    // A directory in place of the new file: the ledger cannot be replaced any more, not even by
    // root.
    fs::create_dir(scene.state.join("ledger.new")).unwrap();
    assert!(ledger.add(scene.freeze()).is_err());
    assert!(
        !ledger.has(&scene.cgroup, Kind::Freeze),
        "it is not done, so not noted"
    );
    drop(ledger);
    let (_, undone) = Ledger::open(&scene.state).unwrap();
    assert!(undone.is_well(), "{undone:?}");
    assert!(scene.value("memory.high").starts_with("max"));
}

#[test]
fn without_a_place_it_lives_in_memory() {
    let scene = Scene::new();
    let ledger = Ledger::default();
    ledger.add(scene.squeeze()).unwrap();
    ledger
        .add(Undo::socket(Path::new("/nowhere/at/all")))
        .unwrap();
    assert!(ledger.has(&scene.cgroup, Kind::Squeeze));
    assert!(ledger.undo_throttles().is_well());
    assert!(scene.value("memory.high").starts_with("max"));
    assert!(ledger.has(Path::new("/nowhere/at/all"), Kind::Socket));
    ledger
        .undo(Path::new("/nowhere/at/all"), Kind::Socket)
        .unwrap();
    assert!(!ledger.has(Path::new("/nowhere/at/all"), Kind::Socket));
}

/// Somebody else may have frozen the same cgroup since.
#[test]
fn what_was_undone_at_the_start_is_not_undone_again_where_the_file_could_not_go() {
    let scene = Scene::new();
    let (ledger, _) = Ledger::open(&scene.state).unwrap();
    ledger.add(scene.freeze()).unwrap();
    drop(ledger);
    let allow = |mode| fs::set_permissions(&scene.state, fs::Permissions::from_mode(mode)).unwrap();
    std::thread::scope(|scope| {
        // Capabilities belong to threads: this one only exists for the test.
        scope.spawn(|| {
            let mut held = rustix::thread::capabilities(None).unwrap();
            held.effective.remove(CapabilitySet::DAC_OVERRIDE);
            rustix::thread::set_capabilities(None, held).unwrap();
            allow(0o500);
            let (ledger, undone) = Ledger::open(&scene.state).unwrap();
            assert_eq!((undone.done.len(), undone.failures.len()), (1, 1));
            assert_eq!(ledger.undo_throttles().failures.len(), 1);
            allow(0o700);
            fs::write(scene.cgroup.join("cgroup.freeze"), "1").unwrap();
            ledger.claim().unwrap();
            assert!(!ledger.has(&scene.cgroup, Kind::Freeze));
            assert!(ledger.undo_throttles().is_nothing() && !scene.file().exists());
            assert_eq!(scene.value("cgroup.freeze"), "1");
        });
    });
}
