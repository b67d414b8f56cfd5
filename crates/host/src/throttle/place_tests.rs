// SPDX-License-Identifier: Apache-2.0
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn place(dir: &Path) -> Place {
    Place::open(dir, OsStr::new("ledger")).unwrap().unwrap()
}

/// A directory that others may search, below one that they may search as well: only there does the
/// owner of the file matter. `None` if the path to it is closed, like a private `TMPDIR`.
fn open_to_others() -> Option<(tempfile::TempDir, PathBuf)> {
    let top = tempfile::tempdir().unwrap();
    mode(top.path(), 0o755);
    let dir = top.path().join("state");
    fs::create_dir(&dir).unwrap();
    mode(&dir, 0o755);
    if place(&dir).is_closed {
        println!("SKIPPED a place of others: the temporary directory is closed to others");
        return None;
    }
    Some((top, dir))
}

#[test]
fn what_is_written_is_read_and_replaced_whole() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("a/b");
    assert!(Place::open(&dir, OsStr::new("ledger")).unwrap().is_none());
    let place = Place::make(&dir, OsStr::new("ledger")).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    assert_eq!(place.read().unwrap(), None);
    place.remove().unwrap();
    for text in ["one", "two"] {
        place.replace(text.as_bytes()).unwrap();
        assert_eq!(place.read().unwrap().as_deref(), Some(text.as_bytes()));
    }
    assert_eq!(fs::metadata(place.path()).unwrap().mode() & 0o777, 0o600);
    place.remove().unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

/// Who chooses the names of thousands of cgroups makes it long.
#[test]
fn what_could_not_be_read_again_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path());
    place.replace(b"one").unwrap();
    let too_large = vec![b'x'; SIZE_MAX as usize + 1];
    let error = place.replace(&too_large).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(place.read().unwrap().as_deref(), Some(&b"one"[..]));
}

#[test]
fn one_program_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = place(dir.path());
    assert!(first.lock().unwrap());
    assert!(!place(dir.path()).lock().unwrap());
    drop(first);
    assert!(place(dir.path()).lock().unwrap());
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let Some((_top, dir)) = open_to_others() else {
        return;
    };
    for (bits, why) in [(0o777, "others may write"), (0o1777, "others may write")] {
        mode(&dir, bits);
        let error = Place::open(&dir, OsStr::new("ledger"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
    // Above the last directory a sticky bit is enough: nobody can rename files of others.
    mode(&dir, 0o1777);
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    mode(&below, 0o755);
    assert!(!place(&below).is_closed);
    mode(&dir, 0o777);
    assert!(Place::open(&below, OsStr::new("ledger")).is_err());
}

#[test]
fn a_file_of_another_user() {
    let Some((_top, dir)) = open_to_others() else {
        return;
    };
    let file = dir.join("ledger");
    fs::write(&file, "x").unwrap();
    mode(&file, 0o666);
    let error = place(&dir).read().unwrap_err().to_string();
    assert!(error.contains("others may write to it"), "{error}");
    mode(&file, 0o600);
    assert!(place(&dir).read().unwrap().is_some());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
        let error = place(&dir).read().unwrap_err().to_string();
        assert!(error.contains("belongs to another user"), "{error}");
    } else {
        println!("SKIPPED a_file_of_another_user: giving a file away takes root");
    }
    mode(&file, 0o666);
    mode(&dir, 0o700);
    assert!(place(&dir).read().unwrap().is_some());
    // So is everything below such a directory, whoever owns it.
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    mode(&below, 0o777);
    assert!(place(&below).is_closed);
}

#[test]
fn links_and_what_is_no_file_are_refused() {
    let top = tempfile::tempdir().unwrap();
    let real = top.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::write(top.path().join("victim"), "x").unwrap();
    symlink(top.path().join("victim"), real.join("ledger")).unwrap();
    let error = place(&real).read().unwrap_err().to_string();
    assert!(error.contains("it is a symbolic link"), "{error}");
    // Replacing it creates a separate file.
    place(&real).replace(b"y").unwrap();
    assert_eq!(fs::read(top.path().join("victim")).unwrap(), b"x");
    // A link at the name of the new file is not followed either.
    symlink(top.path().join("victim"), real.join("ledger.new")).unwrap();
    place(&real).replace(b"z").unwrap();
    assert_eq!(fs::read(top.path().join("victim")).unwrap(), b"x");
    place(&real).remove().unwrap();
    fs::create_dir(real.join("ledger")).unwrap();
    let error = place(&real).read().unwrap_err().to_string();
    assert!(error.contains("it is not a file"), "{error}");
    // The directory may be reached by a link, like a unit's state directory.
    symlink(&real, top.path().join("link")).unwrap();
    assert_eq!(place(&top.path().join("link")).path(), place(&real).path());
}
