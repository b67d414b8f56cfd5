// SPDX-License-Identifier: Apache-2.0
//! Sweeps: their cells, one file per cell, and resuming a sweep that was killed.

mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A directory with a trace, a workload and the description of a sweep.
struct Place(tempfile::TempDir);

/// 120 cells.
const SPEC: &str = r#"
seeds = 2

[[grid]]
workload = ["small.toml", "one.t*"]
policy = ["classic", "mglru:7.2", "mglru:6.12"]
memory = ["300p", "400p", "500p", "600p"]
set.swappiness = [10, 60, 100, 150, 200]
"#;

/// 48 curves.
const CURVES: &str = r#"
[[grid]]
trace = "one.t*"
policy = ["lru", "arc", "s3fifo", "lirs"]
sizes = ["5%", "10%,20%", "40%"]
rate = ["", 0.05, 0.1, 0.2]
samples = 4
[[skip]]
rate = ""
"#;

const KILLED: [&str; 4] = ["sweep", "sweep.toml", "--out", "killed"];

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a directory"));
        let pages: String = (0..40_000u64)
            .map(|n| format!("{}\n", n * n % 1009 + n % 7))
            .collect();
        place.write("one.trace", &pages);
        place.write("small.toml", &program::small_workload(60_000));
        place.write("sweep.toml", SPEC);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).expect("written");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("agewise"));
        command.arg("lab").args(arguments);
        command.current_dir(self.0.path());
        command
    }

    /// Whether it succeeded, standard output and standard error.
    fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let output = self.command(arguments).output().expect("a program");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        (output.status.success(), printed, said)
    }

    /// The files of a data set, by their relative names.
    fn names(&self, out: &str) -> Vec<PathBuf> {
        let root = self.at(out);
        let (mut names, mut directories) = (Vec::new(), vec![root.clone()]);
        while let Some(directory) = directories.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            for path in entries.map(|entry| entry.expect("an entry").path()) {
                match path.is_dir() {
                    true => directories.push(path),
                    false => names.push(path.strip_prefix(&root).expect("below").to_owned()),
                }
            }
        }
        names
    }

    /// The same files with their content.
    fn files(&self, out: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let content = |name: &PathBuf| fs::read(self.at(out).join(name)).expect("a file");
        let names = self.names(out).into_iter();
        names.map(|name| (name.clone(), content(&name))).collect()
    }

    fn cells_done(&self, out: &str) -> usize {
        let names = self.names(out).into_iter();
        let is_cell = |path: &PathBuf| path.extension().is_some_and(|end| end == "parquet");
        names.filter(is_cell).count()
    }
}

fn is_path_of_cell(path: &Path) -> bool {
    let parts: Vec<String> = path
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let is_subject = |part: &str| part.starts_with("workload=") || part.starts_with("trace=");
    parts.len() == 3 && is_subject(&parts[0]) && parts[1].starts_with("policy=")
}

#[test]
fn a_sweep_killed_ten_times_ends_as_one_that_was_not() {
    ends_as_one_that_was_not_killed(SPEC, 120, 10);
}

#[test]
fn so_does_one_of_curves() {
    ends_as_one_that_was_not_killed(CURVES, 36, 5);
}

fn ends_as_one_that_was_not_killed(spec: &str, cells: usize, kills: u64) {
    let place = Place::new();
    place.write("sweep.toml", spec);
    let (ok, printed, said) = place.run(&["sweep", "sweep.toml", "--out", "whole"]);
    assert!(ok, "{said}");
    let expected = format!("{cells} cells: {cells} run, 0 were there, 0 failed\n");
    assert_eq!(printed, expected);
    let whole = place.files("whole");
    let paths = whole.keys().filter(|path| is_path_of_cell(path)).count();
    assert_eq!(paths, cells);

    let mut done = 0;
    for kill in 0..kills {
        let mut sweep = place.command(&KILLED);
        sweep.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = sweep.spawn().expect("a program");
        let started = Instant::now();
        // Kill it some time after it resumed work.
        while place.cells_done("killed") == done && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(kill * kill % 11));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let now = place.cells_done("killed");
        assert!(now > done, "kill {kill}: {now} cells after {done}");
        done = now;
        let (ok, printed, said) = place.run(&[&KILLED[..], &["--dry-run"]].concat());
        assert!(ok, "{said}");
        assert_eq!(printed, format!("{cells} cells, {done} of them done\n"));
    }
    let (ok, printed, said) = place.run(&KILLED);
    assert!(ok, "{said}");
    let (ran, found) = (cells - done, done);
    let expected = format!("{cells} cells: {ran} run, {found} were there, 0 failed\n");
    assert_eq!(printed, expected);
    assert!(place.files("killed") == whole, "other files or bytes");
}

#[test]
fn a_damaged_cell_is_run_again() {
    let place = Place::new();
    place.write(
        "sweep.toml",
        "[[grid]]\ntrace='one.trace'\npolicy=['lru', 'arc', 'fifo', 'opt', 'lirs', 'lfu']\n",
    );
    let (ok, _, said) = place.run(&KILLED);
    assert!(ok && !said.contains("damaged"), "{said}");
    let whole = place.files("killed");
    let cells = whole.iter().filter(|(of, _)| is_path_of_cell(of));
    for (at, (path, bytes)) in cells.enumerate() {
        let mut damaged = bytes.clone();
        match at {
            0 => damaged.clear(),
            1 => damaged.truncate(bytes.len() / 2),
            // A value that is no less plausible.
            2 => damaged[bytes.len() / 3] ^= 1,
            // As another program writes it.
            3 => {
                let key = bytes.windows(14).rposition(|of| of == b"agewise_sha256");
                damaged[key.expect("a checksum")] = b'A';
            }
            4 => damaged.fill(0),
            _ => {}
        }
        fs::write(place.at("killed").join(path), damaged).expect("written");
    }
    for command in ["show killed", "check killed killed"] {
        let (ok, _, said) = place.run(&command.split(' ').collect::<Vec<_>>());
        assert!(!ok && said.contains(".parquet is damaged: "), "{said}");
    }
    let (_, printed, said) = place.run(&[&KILLED[..], &["--dry-run"]].concat());
    assert_eq!(printed, "6 cells, 1 of them done\n");
    assert!(said.contains(".parquet and 4 more are damaged"), "{said}");
    let (ok, printed, said) = place.run(&KILLED);
    assert!(ok && said.contains("4 more are damaged"), "{said}");
    assert_eq!(printed, "6 cells: 5 run, 1 were there, 0 failed\n");
    assert!(place.files("killed") == whole, "other files or bytes");
}

#[test]
fn cells_are_those_of_lab_run() {
    let place = Place::new();
    let spec = "[[grid]]\nworkload = 'one.trace'\npolicy = 'mglru'\nmemory = '25%'\nseeds = 2\n\
                set.swappiness = 10\noptions.access = 'mapped'\n\
                proactive = ['', 'age:50ms/100ms']";
    place.write("sweep.toml", spec);
    let (ok, _, said) = place.run(&["sweep", "sweep.toml", "--out", "out"]);
    assert!(ok, "{said}");
    let run = "run one.trace --policy mglru --memory 25% --seeds 2 --set swappiness=10 \
               --access mapped --proactive age:50ms/100ms --format parquet";
    let run: Vec<&str> = run.split_whitespace().collect();
    let output = place.command(&run).output().expect("a program");
    fs::write(place.at("run.parquet"), output.stdout).expect("written");
    // The same description and the same numbers.
    let (_, swept, said) = place.run(&["show", "out", "--format", "json"]);
    let (_, of_run, _) = place.run(&["show", "run.parquet", "--format", "json"]);
    assert!(
        swept == of_run && swept.lines().count() == 2,
        "{swept}{of_run}{said}"
    );
    let (ok, compared, said) = place.run(&["check", "out", "run.parquet", "--format", "json"]);
    assert!(ok && compared.lines().count() == 44, "{compared}{said}");
    for line in compared.lines() {
        let cell: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(cell["before"], cell["after"], "{line}");
    }
    // A single cell can be run again.
    let files = place.files("out");
    let one = files.keys().find(|path| is_path_of_cell(path));
    let one = place.at("out").join(one.expect("a cell"));
    let (ok, again, said) = place.run(&["rerun", &one.to_string_lossy()]);
    assert!(ok && again.starts_with("the same "), "{again}{said}");
    let (ok, again, said) = place.run(&["rerun", "out"]);
    assert!(
        !ok && said.contains("name one of the files of a sweep"),
        "{again}{said}"
    );
}

#[test]
fn curves_are_those_of_lab_curve() {
    let place = Place::new();
    let spec = "[[grid]]\ntrace = 'one.t*'\npolicy = ['arc', 'lru']\nsizes = '10%,40%'\n\
                options.page_shift = 0\n[[grid]]\ntrace = 'one.trace'\npolicy = 'lru'\n\
                sizes = ['10%,40%', '40%']\nrate = 0.2\nsamples = 4\noptions.page_shift = 0";
    place.write("sweep.toml", spec);
    let (ok, printed, said) = place.run(&["sweep", "sweep.toml", "--out", "out"]);
    assert!(
        ok && printed.starts_with("4 cells: 4 run"),
        "{printed}{said}"
    );
    let curves = [
        "--policy arc,lru --sizes 10%,40%",
        "--policy lru --sizes 10%,40% --sampled --rate 0.2 --samples 4",
    ];
    let mut counted: Vec<String> = Vec::new();
    for options in curves {
        let curve = format!("curve one.trace --page-shift 0 --format json {options}");
        let curve: Vec<&str> = curve.split(' ').collect();
        let (ok, printed, said) = place.run(&curve);
        assert!(ok, "{said}");
        counted.extend(printed.lines().map(str::to_owned));
    }
    place.write("curves.json", &counted.join("\n"));
    let (ok, compared, said) = place.run(&["check", "out", "curves.json", "--format", "json"]);
    assert!(ok && compared.lines().count() == 6, "{compared}{said}");
    for line in compared.lines() {
        let cell: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(cell["before"], cell["after"], "{line}");
    }
    let files = place.files("out");
    for path in files.keys().filter(|path| is_path_of_cell(path)) {
        assert!(path.starts_with("trace=one"), "{}", path.display());
        let one = place.at("out").join(path);
        let (ok, again, said) = place.run(&["rerun", &one.to_string_lossy()]);
        assert!(ok && again.starts_with("the same "), "{again}{said}");
    }
}

#[test]
fn mistakes_and_strangers_are_told() {
    const OUT: [&str; 4] = ["sweep", "sweep.toml", "--out", "out"];
    let place = Place::new();
    let fails = |spec: &str, more: &[&str], expected: &str| {
        place.write("sweep.toml", spec);
        let (ok, printed, said) = place.run(&[&OUT[..], more].concat());
        assert!(!ok, "{printed}");
        assert!(said.contains(expected), "{said}");
    };
    let grid = |policy: &str, more: &str| {
        format!("[[grid]]\nworkload='small.toml'\nseeds=1\npolicy='{policy}'\n{more}")
    };
    fails(&grid("clasic", ""), &[], "did you mean `classic`");
    fails(
        &grid("classic", "options.acess='fd'"),
        &[],
        "did you mean `access`",
    );
    fails(&grid("classic", "seeds_='1'"), &[], "did you mean `seeds`");
    fails(&grid("classic", "points=3"), &[], "points is for curves");
    // Before anything runs.
    let setting = grid("classic", "set.swappines=1");
    fails(&setting, &["--dry-run"], "did you mean `swappiness`");
    let swap = grid("classic", "swap='nmve'");
    fails(&swap, &["--dry-run"], "did you mean `nvme`");
    let curve = |more: &str| format!("[[grid]]\ntrace='one.trace'\npolicy='lru'\n{more}");
    fails(&curve("swap='nvme'"), &[], "swap is for runs");
    fails(&curve("options.access='fd'"), &[], "access is for runs");
    fails(&curve("samples=4"), &[], "samples need a rate");
    fails(&curve("sizes='0'"), &[], "not a size");
    fails(&curve("sizes='9'\npoints=2"), &[], "not both");
    let both = format!("{}{}", grid("classic", ""), curve(""));
    fails(&both, &[], "make two of them");
    // A cell that fails only when run does not affect the others.
    fails(
        &grid("classic", "memory=['400p', '25%']"),
        &[],
        "memory=25%",
    );
    assert_eq!(place.cells_done("out"), 1);
    // Cells of another sweep are neither mixed with this sweep's nor deleted unasked.
    fails(
        &grid("mglru", ""),
        &[],
        "1 cells that are not of this sweep",
    );
    place.write("out/notes.txt", "mine");
    let (ok, printed, said) = place.run(&[&OUT[..], &["--prune"]].concat());
    assert!(ok, "{said}");
    assert_eq!(printed, "1 cell: 1 run, 0 were there, 0 failed\n");
    assert_eq!(place.cells_done("out"), 1);
    assert!(place.at("out/notes.txt").exists());
    // Two sweeps cannot write to one directory.
    let lock = fs::File::open(place.at("out/.lock")).expect("a lock");
    lock.try_lock().expect("free");
    fails(&grid("mglru", ""), &[], "another sweep writes to it");
}
