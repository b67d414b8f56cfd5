// SPDX-License-Identifier: Apache-2.0
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use super::*;

#[derive(Serialize)]
struct Count {
    n: u64,
}

#[test]
fn its_size_is_bounded_and_the_newest_lines_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let health = Health::default();
    let open = || Lines::new(Target::file(&path).unwrap(), 300, 2, health.clone());
    let mut journal = open();
    for n in 0..50 {
        journal.write("count", &Count { n });
    }
    drop(journal);
    // When opened again, it continues where it was.
    let mut journal = open();
    journal.write("count", &Count { n: 50 });
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    names.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
    assert_eq!(names.len(), 3);
    let mut numbers = Vec::new();
    for entry in &names {
        let meta = entry.metadata().unwrap();
        assert!(meta.len() <= 300);
        assert_eq!(meta.permissions().mode() & 0o007, 0, "not for everybody");
        for line in std::fs::read_to_string(entry.path()).unwrap().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["record"], "count");
            assert!(line["unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
            numbers.push(line["n"].as_u64().unwrap());
        }
    }
    let first = numbers[0];
    assert!(numbers.len() > 5);
    assert_eq!(numbers, (first..=50).collect::<Vec<_>>());
}

#[test]
fn a_file_that_is_gone_is_made_anew_and_the_old_ones_stay() {
    let top = tempfile::tempdir().unwrap();
    let (dir, away) = (top.path().join("log"), top.path().join("away"));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("journal");
    let mut lines = Lines::new(Target::file(&path).unwrap(), 300, 3, Health::default());
    let mut write = |first: u64, last: u64| {
        let mut counts = first..=last;
        counts.all(|n| lines.write("count", &Count { n }))
    };
    let old =
        |dir: &Path| [1, 2, 3].map(|n| std::fs::read(dir.join(format!("journal.{n}"))).unwrap());
    assert!(write(0, 40));
    let kept = old(&dir);
    // Moved away, and so many lines that it would have been rotated by this program.
    std::fs::remove_file(&path).unwrap();
    assert!(write(41, 47));
    assert!(path.exists() && old(&dir) == kept);
    // A new file cannot be created for a while.
    std::fs::rename(&dir, &away).unwrap();
    assert!(!write(48, 60));
    assert!(!write(61, 61));
    std::fs::create_dir(&dir).unwrap();
    assert!(write(62, 62) && old(&away) == kept);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("\"lost\"") && text.contains("\"n\":62"),
        "{text}"
    );
}

#[test]
fn opened_again_it_ends_a_line_that_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let open = || {
        let target = Target::file(&path).unwrap();
        Journal(Arc::new(Mutex::new(Lines::new(
            target,
            1000,
            1,
            Health::default(),
        ))))
    };
    let journal = open();
    journal.lock().append_some(b"{\"record\":").unwrap();
    journal.lock().is_torn = true;
    journal.replace_by(open());
    journal.write("count", &Count { n: 1 });
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"record\":\n{"), "{text}");
    // In an empty file nothing is cut off.
    journal.lock().is_torn = true;
    std::fs::remove_file(&path).unwrap();
    journal.replace_by(open());
    journal.write("count", &Count { n: 2 });
    assert!(std::fs::read_to_string(&path).unwrap().starts_with('{'));
}

fn full() -> Target {
    Target::File {
        path: PathBuf::from("/dev/full"),
        file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
        size_bytes: 0,
    }
}

#[test]
fn lines_that_were_lost_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let health = Health::default();
    let lines = Lines::new(full(), 1000, 1, health.clone());
    let journal = Journal(Arc::new(Mutex::new(lines)));
    assert!(!journal.permits("count", &Count { n: 1 }));
    journal.write("count", &Count { n: 2 });
    journal.retry();
    assert_eq!(journal.lost_lines(), 2);
    let reasons = health.reasons();
    assert!(
        reasons[0].starts_with("journal: /dev/full cannot be written"),
        "{reasons:?}"
    );
    // The next file takes over what has not been reported yet.
    let fresh = Lines::new(Target::file(&path).unwrap(), 1000, 1, health.clone());
    journal.replace_by(Journal(Arc::new(Mutex::new(fresh))));
    assert!(
        !health.reasons().is_empty(),
        "not before a line was written"
    );
    journal.retry();
    assert!(health.reasons().is_empty());
    assert!(journal.permits("count", &Count { n: 3 }));
    assert_eq!(journal.lost_lines(), 2);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("\"lost\"") && lines[0].contains("\"lines\":2"));
    assert!(lines[1].contains("\"n\":3"));
}

#[test]
fn a_line_that_was_cut_off_is_ended_before_the_next() {
    let (mut reader, writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let target = Target::Stdout(File::from(std::os::fd::OwnedFd::from(writer)));
    let mut lines = Lines::new(target, 0, 0, Health::default());
    // A pipe that nobody reads holds 64 KiB.
    let long = "x".repeat(6000);
    let mut written = 0u64;
    while lines.write("long", &long_fields(&long)) {
        written += 1;
    }
    assert!(lines.is_torn && written > 5);
    let mut text = vec![0; 1 << 20];
    let mut length = reader.read(&mut text).unwrap();
    assert!(lines.write("count", &Count { n: 7 }));
    length += reader.read(&mut text[length..]).unwrap();
    let text = String::from_utf8(text[..length].to_vec()).unwrap();
    let whole = text
        .lines()
        .filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
    assert_eq!(
        whole.count() as u64,
        written + 2,
        "the cut one is the only one that is lost"
    );
    assert!(text.trim_end().ends_with("\"n\":7}") && text.contains("\"lost\""));
}

#[test]
fn what_a_full_disk_took_of_a_line_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let health = Health::default();
    let mut lines = Lines::new(Target::file(&path).unwrap(), 1000, 1, health);
    assert!(lines.write("count", &Count { n: 1 }));
    let whole = std::fs::read(&path).unwrap();
    let cut = |lines: &mut Lines| {
        lines.append_some(b"{\"record\":").unwrap();
        lines.is_torn = true;
    };
    cut(&mut lines);
    lines.take_back(whole.len() as u64, false);
    assert!(!lines.is_torn && std::fs::read(&path).unwrap() == whole);
    // Somebody else has written to it as well.
    cut(&mut lines);
    let mut other = OpenOptions::new().append(true).open(&path).unwrap();
    other.write_all(b"theirs\n").unwrap();
    lines.take_back(whole.len() as u64, false);
    assert!(lines.is_torn);
    assert!(std::fs::read(&path).unwrap().ends_with(b"theirs\n"));
    assert!(lines.write("count", &Count { n: 2 }));
}

fn long_fields(text: &str) -> impl Serialize {
    std::collections::BTreeMap::from([("text", text.to_owned())])
}
