// SPDX-License-Identifier: Apache-2.0
//! Compares the ages in the daemon's files with the truth from programs that record when they
//! touched each of their pages. Needs root, BPF, FUSE (or plain files) and memory cgroups; skipped
//! with a message otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agewise_bench::exercise::spawned::Spawned;
use agewise_bench::exercise::truth::{Truth, now_ns};
use agewise_host::process::Process;
use rustix::process::Signal;
use support::need::zram;
use support::{AGEWISE, Daemon, Group, MIB, blind, one, wait_until, write_config};

/// Upper bounds of the bins in ms; the last bin has none.
const BOUNDS_MS: [u64; 3] = [4000, 8000, 16_000];
const SIZE: &str = "128M";
/// Largest error of a bin, as a share of resident memory.
const BIN_SHARE: f64 = 0.02;
/// Largest error of the sum of all bins.
const SUM_SHARE: f64 = 0.01;

/// A program in a cgroup of its own.
struct Subject {
    exerciser: Spawned,
    group: Group,
    file: PathBuf,
}

impl Subject {
    fn start(group: Group, files: &Path, pattern: &str, rate: &str) -> Self {
        let entrance = OpenOptions::new()
            .write(true)
            .open(group.dir.join("cgroup.procs"))
            .unwrap();
        let arguments = ["--size", SIZE, "--pattern", pattern, "--rate", rate];
        let exerciser =
            Spawned::start_in(Path::new(AGEWISE), arguments, Some(&entrance), None).unwrap();
        let directory = files.join("cgroup").join(&group.path[1..]);
        let file = directory.join("memory.workingset.page_age");
        wait_until(&file.display().to_string(), || file.exists());
        let interval = directory.join("memory.workingset.refresh_interval");
        std::fs::write(interval, "N0=100").unwrap();
        Subject {
            exerciser,
            group,
            file,
        }
    }

    /// Compares the file with the truth. Returns the largest error of a bin and the error of the
    /// sum, as shares of resident memory, and the file's content. File pages (the program itself)
    /// are shared with other exercisers and count in only one of them, so they are compared only
    /// `with_files`, where nobody else has them.
    fn compare(&self, with_files: bool) -> (f64, f64, String) {
        let text = std::fs::read_to_string(&self.file).unwrap();
        let truth = truth_bins(self.exerciser.truth(), now_ns());
        let process = Process::open(self.exerciser.pid()).unwrap();
        let status = process.status().unwrap();
        let resident = if with_files {
            process.rss_bytes().unwrap()
        } else {
            status.rss_anon_bytes + status.rss_shmem_bytes
        } as f64;
        let (anon, file) = (file_bins(&text, "anon="), file_bins(&text, "file="));
        let off = |(said, is): (&u64, &u64)| said.abs_diff(*is) as f64 / resident;
        let worst = anon.iter().zip(&truth).map(off).fold(0.0, f64::max);
        let files = if with_files { file.as_slice() } else { &[] };
        let sum: u64 = anon.iter().chain(files).sum();
        let sum_off = (sum as f64 - resident).abs() / resident;
        let told = format!("{}: {anon:?} + {file:?}, is {truth:?}", self.group.path);
        (worst, sum_off, told)
    }

    /// Fails if an error is larger than allowed.
    fn check(&self, with_files: bool, when: &str) {
        let (bin, sum, told) = self.compare(with_files);
        println!(
            "{when}: a bin off by {:.2} %, the sum by {:.2} % ({told})",
            bin * 100.0,
            sum * 100.0
        );
        assert!(bin <= BIN_SHARE, "{when}: {told}");
        assert!(sum <= SUM_SHARE, "{when}: {told}");
    }
}

/// A file's bytes of a kind in each bin.
fn file_bins(text: &str, kind: &str) -> Vec<u64> {
    let bins: Vec<u64> = text
        .lines()
        .filter_map(|line| line.split_once(kind)?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(bins.len(), BOUNDS_MS.len() + 1, "{text}");
    bins
}

/// The true number of bytes in each bin.
fn truth_bins(truth: &Truth, now_ns: u64) -> [u64; 4] {
    let mut bins = [0; 4];
    for slot in 0..truth.pages() {
        let age_ms = now_ns.saturating_sub(truth.last_access_ns(slot)) / 1_000_000;
        let bin = BOUNDS_MS.iter().position(|bound| age_ms < *bound);
        bins[bin.unwrap_or(BOUNDS_MS.len())] += truth.page_size();
    }
    bins
}

#[test]
fn the_files_tell_the_truth_and_do_so_across_a_stall() {
    if let Some(why) = blind() {
        println!("SKIPPED the_files_tell_the_truth: {why}");
        return;
    }
    let _one = one();
    let (scan, half) = match (Group::create("scan"), Group::create("half")) {
        (Ok(scan), Ok(half)) => (scan, half),
        (Err(why), _) | (_, Err(why)) => {
            return println!("SKIPPED the_files_tell_the_truth: {why}");
        }
    };
    let files = tempfile::tempdir().unwrap();
    let bounds = BOUNDS_MS.map(|ms| format!("{ms}ms")).join(",");
    let daemon = Daemon::start(&format!(
        "[observe]\ncgroups = ['{}', '{}']\ntick = '100ms'\ncpu_percent = 50\n\
         intervals = '{bounds}'\n[files]\nenabled = true\ndirectory = '{}'\n",
        scan.path,
        half.path,
        files.path().display()
    ));
    daemon.wait_for("files", |_| true);
    // One cycle in 24 s gives ages of every kind; the other program never touches half of its
    // memory again.
    let scan = Subject::start(scan, files.path(), "scan", "1365");
    let half = Subject::start(half, files.path(), "hotcold:0.5", "40000");
    let began = Instant::now();
    for after_s in [6, 10, 14, 20, 26] {
        let at = Duration::from_secs(after_s);
        std::thread::sleep(at.saturating_sub(began.elapsed()));
        scan.check(true, &format!("after {after_s} s"));
        half.check(false, &format!("after {after_s} s"));
    }

    // A younger one, whose cold half is 1 s old when the daemon is stopped. Afterwards it is 2 s
    // old counted in ticks, but 11 s old by the clock.
    half.exerciser.finish().unwrap();
    let half = Subject::start(half.group, files.path(), "hotcold:0.5", "40000");
    std::thread::sleep(Duration::from_secs(1));
    daemon.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(10));
    daemon.signal(Signal::CONT);
    // Pages accessed during the stall may appear as old as the stall until accessed again; within
    // 2.5 s all but 0.2 % of the hot half are.
    std::thread::sleep(Duration::from_millis(2500));
    half.check(false, "after a stall of 10 s");
    daemon.end();
    scan.exerciser.finish().unwrap();
    half.exerciser.finish().unwrap();
}

/// The thread that holds a target under a budget clears accessed bits, too. The agent has to learn
/// what it saw, also when a reload has replaced the agent.
#[test]
fn ages_beside_a_budget_stay_true_after_a_reload() {
    skip_if!("ages_beside_a_budget_stay_true_after_a_reload", blind());
    let _one = one();
    // What is held really moves: a rehearsal hardly looks.
    let (group, device) = match (Group::create("held"), zram(128 * MIB)) {
        (Ok(group), Ok(device)) => (group, device),
        (Err(why), _) | (_, Err(why)) => {
            return println!("SKIPPED ages_beside_a_budget_stay_true_after_a_reload: {why}");
        }
    };
    let files = tempfile::tempdir().unwrap();
    let config = |bounds: &str| {
        format!(
            "[observe]\ncgroups = ['{path}']\ntick = '1s'\ncpu_percent = 50\n\
             intervals = '{bounds}'\n[files]\nenabled = true\ndirectory = '{files}'\n\
             [[act]]\ncgroups = ['{path}']\npolicy = 'budget:72M'\ndry_run = false\n",
            path = group.path,
            files = files.path().display()
        )
    };
    let daemon = Daemon::start(&config("5s,10s,20s"));
    daemon.wait_for("files", |_| true);
    let after = config("4s,8s,16s");
    let held = Subject::start(group, files.path(), "hotcold:0.5", "5461");
    let interval = held
        .file
        .with_file_name("memory.workingset.refresh_interval");
    std::fs::write(interval, "N0=1000").unwrap();
    daemon.wait_for("follow", |line| line["policy"] == "budget");
    write_config(daemon.directory.path(), &after);
    daemon.signal(Signal::HUP);
    let began = Instant::now();
    // The new agent knows nothing of the time before, so only the hot half can be compared. Pages
    // stay in the first bin for 4 s if their accesses are missed.
    for after_s in [7, 9, 11, 13] {
        let at = Duration::from_secs(after_s);
        std::thread::sleep(at.saturating_sub(began.elapsed()));
        let text = std::fs::read_to_string(&held.file).unwrap();
        let young = file_bins(&text, "anon=")[0];
        let truth = truth_bins(held.exerciser.truth(), now_ns())[0];
        println!("after {after_s} s: {young} of {truth} B accessed within 4 s");
        assert!(
            young as f64 >= 0.95 * truth as f64,
            "after {after_s} s: {young} of {truth}"
        );
    }
    daemon.end();
    held.exerciser.finish().unwrap();
    device.remove().unwrap();
}
