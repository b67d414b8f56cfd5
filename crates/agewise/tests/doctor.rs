// SPDX-License-Identifier: Apache-2.0
//! `agewise doctor` as a program, privileged and not.

mod program;

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use program::json_lines;
use serde_json::Value;
use tempfile::TempDir;

fn records(output: &Output) -> Vec<Value> {
    json_lines(&String::from_utf8_lossy(&output.stdout))
}

fn chosen_source(records: &[Value]) -> Option<&str> {
    let chosen = |record: &&Value| record["group"] == "source" && record["chosen"] == true;
    records
        .iter()
        .find(chosen)
        .and_then(|record| record["name"].as_str())
}

/// Copies the program to where every user may execute it: the build directory may be private.
/// Another process makes the copy. A descriptor of ours open for writing would be inherited by any
/// process that another test starts at that moment, and exec would then fail with ETXTBSY.
fn for_all() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("agewise");
    let copied = Command::new("cp")
        .args([&cargo_bin("agewise"), &binary])
        .status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    (dir, binary)
}

#[test]
fn json_has_the_same_fields_in_every_line_and_the_status_tells_whether_observing_works() {
    let output = Command::new(cargo_bin("agewise"))
        .args(["doctor", "--format", "json"])
        .output();
    let output = output.unwrap();
    let records = records(&output);
    assert!(records.len() > 20);
    for record in &records {
        let fields: Vec<&String> = record.as_object().unwrap().keys().collect();
        let expected = [
            "advice", "chosen", "found", "group", "name", "since", "state",
        ];
        let mut fields: Vec<&str> = fields.into_iter().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, expected);
        assert!(["available", "limited", "missing"].contains(&record["state"].as_str().unwrap()));
    }
    let status = output.status.code();
    assert_eq!(
        status,
        Some(if chosen_source(&records).is_some() {
            0
        } else {
            3
        })
    );
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `agewise doctor --need … | head`: the reader's leaving does not make a success of it.
#[test]
fn the_status_stays_if_the_reader_leaves() {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(cargo_bin("agewise"));
        command.args(["doctor", "--format", "json"]).args(arguments);
        command
    };
    let records = records(&doctor(&[]).output().unwrap());
    let is_missing = |of: &&Value| of["state"] == "missing";
    let (Some(missing), Some(_)) = (records.iter().find(is_missing), chosen_source(&records))
    else {
        return println!("SKIPPED the_status_stays_if_the_reader_leaves: all works, or nothing");
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = doctor(&["--need", missing["name"].as_str().unwrap()])
        .stdout(writer)
        .stderr(std::process::Stdio::null())
        .status();
    assert_eq!(status.unwrap().code(), Some(4), "{missing}");
}

#[test]
fn text_into_a_pipe_has_no_colour() {
    let output = Command::new(cargo_bin("agewise"))
        .arg("doctor")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b'));
    for heading in [
        "Kernel\n",
        "Machine\n",
        "Access sources: ",
        "Movers: ",
        "Observing ",
    ] {
        assert!(text.contains(heading), "{heading}");
    }
}

#[test]
fn without_privileges_it_answers_as_well() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "SKIPPED without_privileges_it_answers_as_well: only root can give up rights"
        );
    }
    let (_dir, binary) = for_all();
    const NOBODY: u32 = 65_534;
    let output = Command::new(&binary)
        .args(["doctor", "--format", "json"])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let records = records(&output);
    assert_ne!(chosen_source(&records), Some("pagewalk"));
    let privileges = records
        .iter()
        .find(|record| record["name"] == "privileges")
        .unwrap();
    assert_eq!(privileges["state"], "missing");
    assert!(
        privileges["found"]
            .as_str()
            .unwrap()
            .starts_with("uid 65534, without CAP_BPF")
    );
    let pageout = records
        .iter()
        .find(|record| record["name"] == "pageout")
        .unwrap();
    assert_eq!(pageout["state"], "missing");
    let damon = records.iter().find(|record| record["name"] == "damon");
    let damon = damon.unwrap();
    assert_eq!(damon["state"], "missing", "only root may use it: {damon}");
    if std::path::Path::new("/sys/kernel/mm/damon/admin").exists() {
        assert_eq!(damon["advice"], "run as root", "{damon}");
    }
    assert_eq!(
        output.status.code(),
        Some(if chosen_source(&records).is_some() {
            0
        } else {
            3
        })
    );
}

/// Without `CAP_SYS_ADMIN` and `CAP_SYSLOG` the kernel hides page frame numbers and its own
/// addresses: the capabilities of the service must suffice to read page tables.
#[test]
fn with_the_capabilities_of_the_unit_it_sees_what_root_sees() {
    const NAME: &str = "with_the_capabilities_of_the_unit_it_sees_what_root_sees";
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED {NAME}: only root can give up rights");
    }
    let unit = include_str!("../../../packaging/systemd/agewise.service");
    let of_unit = unit
        .lines()
        .find_map(|l| l.strip_prefix("AmbientCapabilities="));
    let names = of_unit
        .unwrap()
        .split(' ')
        .map(|name| name.strip_prefix("CAP_").unwrap());
    let capabilities = names.fold("-all".to_owned(), |all, name| {
        format!("{all},+{}", name.to_lowercase())
    });
    let (_dir, binary) = for_all();
    let limited = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(
            ["inh-caps", "ambient-caps", "bounding-set"].map(|of| format!("--{of}={capabilities}")),
        )
        .arg(&binary)
        .args(["doctor", "--format", "json"])
        .output();
    let Ok(limited) = limited else {
        return println!("SKIPPED {NAME}: no setpriv here (util-linux)");
    };
    let root = Command::new(&binary)
        .args(["doctor", "--format", "json"])
        .output()
        .unwrap();
    let (limited, root) = (records(&limited), records(&root));
    assert_eq!(chosen_source(&limited), chosen_source(&root), "{limited:?}");
    for name in ["pagewalk", "page_faults", "page_cache", "pageout", "cold"] {
        let [limited, root] = [&limited, &root].map(|records| {
            let mut records = records.iter();
            records.find(|record| record["name"] == name).unwrap()
        });
        assert_eq!(limited["state"], root["state"], "{limited} {root}");
    }
}

/// What others read while it is tried must not leave it without room.
#[test]
fn the_page_cache_is_seen_while_files_are_read() {
    const NAME: &str = "the_page_cache_is_seen_while_files_are_read";
    const READING_MAX: Duration = Duration::from_secs(60);
    let state = || {
        let output = Command::new(cargo_bin("agewise"))
            .args(["doctor", "--format", "json"])
            .output();
        let records = records(&output.unwrap());
        let is_it = |of: &&Value| of["group"] == "source" && of["name"] == "page_cache";
        let found = records.iter().find(is_it).unwrap().clone();
        (found["state"] == "available", found)
    };
    if !state().0 {
        return println!("SKIPPED {NAME}: the page cache is not seen here");
    }
    // Pages of a hole are cached, too. Not on tmpfs, whose reads are others.
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(256 << 20).unwrap();
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let states = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1 << 20];
            for at in (0..256u64).cycle() {
                if is_over.load(Ordering::Relaxed) || began.elapsed() > READING_MAX {
                    return;
                }
                file.read_exact_at(&mut buffer, at << 20).unwrap();
            }
        });
        let states: Vec<_> = (0..8).map(|_| state()).collect();
        is_over.store(true, Ordering::Relaxed);
        states
    });
    for (is_seen, found) in states {
        assert!(is_seen, "{found}");
    }
}

/// Nothing at all could be done, which is no success.
#[test]
fn sort_fails_if_it_may_not_look() {
    const NAME: &str = "sort_fails_if_it_may_not_look";
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED {NAME}: only root can give up rights");
    }
    let (_dir, binary) = for_all();
    let nobody = |program: &Path| {
        let mut command = Command::new(program);
        command.uid(65_534).gid(65_534);
        command
    };
    let mut target = nobody(Path::new("sleep")).arg("60").spawn().unwrap();
    let pid = target.id().to_string();
    let words = ["sort", "--duration", "1s", "--pid", &pid];
    let output = nobody(&binary).args(words).output();
    target.kill().unwrap();
    target.wait().unwrap();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("run as root"), "{said}");
}

/// A process that may not be observed is reported as such, not as observed for too short a time.
#[test]
fn whatif_says_that_a_process_may_not_be_looked_at() {
    const NAME: &str = "whatif_says_that_a_process_may_not_be_looked_at";
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED {NAME}: only root can give up rights");
    }
    let (_dir, binary) = for_all();
    let ours = std::process::id().to_string();
    let output = Command::new(&binary)
        .args(["whatif", "--duration", "1s", "--pid", &ours])
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("nothing is known yet: cannot read /proc/"),
        "{said}"
    );
    assert!(said.contains("Permission denied"), "{said}");
}
