// SPDX-License-Identifier: Apache-2.0
//! `agewise bench soak`: whether the daemon stays stable during hours of faults.

mod faults;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_cli::signal::Stop;
use agewise_cli::{output, units};
use agewise_host::process::Process;
use anyhow::{Context, ensure};
use faults::{Faults, Place};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Serialize;

use super::super::service::{self, Service};
use super::super::statistics::median;
use super::super::{Format, print};
use super::crowd::{Crowd, CrowdArgs};
use super::left_behind;

/// Time before measuring: the first looks find everything new.
const WARM_UP: Duration = Duration::from_secs(60);
/// The part of the CPU budget that may have been saved up.
const SAVED_UP: Duration = Duration::from_secs(60);
/// Allowed growth of memory: this share or this many bytes, whichever is more.
const GROWTH_RATIO_MAX: f64 = 0.01;
const GROWTH_BYTES_MAX: f64 = 1048576.0;
/// Allowed growth of descriptors other than those of processes, and how many of the latter there
/// may be beyond two for each process: during a look there are those of the look before, too.
const DESCRIPTORS_GROWTH_MAX: f64 = 0.02;
/// Allowed excess over the CPU budget.
const EXCESS_MAX: f64 = 0.02;
/// Mount options of the disk for journal and ledger.
const DISK_OPTIONS: &str = "size=32m,mode=0700";

/// Options of `bench soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    crowd: CrowdArgs,
    /// How long it is measured; a signal ends it earlier, with the verdict of what there was.
    #[arg(long, value_name = "DURATION", default_value = "2h")]
    #[arg(value_parser = units::positive_duration)]
    time: Duration,
    /// Time from one fault to the next.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    #[arg(value_parser = units::positive_duration)]
    fault_every: Duration,
    /// How to print; csv has the verdict alone.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The state of the daemon at one moment.
#[derive(Clone, Debug, Serialize)]
struct Minute {
    record: &'static str,
    minutes: f64,
    #[serde(flatten)]
    sample: Sample,
    /// CPU time since the last line, as a share of one core.
    cpu_ratio: f64,
    looks: u64,
    faults: usize,
    processes_came: u64,
    cgroups_came: u64,
}

/// The verdict.
#[derive(Clone, Debug, Serialize)]
struct Soaked {
    processes: u64,
    cgroups: u64,
    seconds: f64,
    processes_came: u64,
    cgroups_came: u64,
    faults: usize,
    looks: u64,
    /// CPU time of the daemon, as a share of one core.
    cpu_ratio: f64,
    granted_ratio: f64,
    /// CPU time above the budget (including the minute saved up before), as a share of the budget;
    /// negative if it used less.
    excess_ratio: f64,
    /// Median of the last quarter of the time, and its growth since the second quarter.
    resident_bytes: f64,
    growth_bytes: f64,
    /// Without those of processes. Mean of the last quarter, and its growth since the second.
    descriptors: f64,
    descriptors_growth: f64,
    /// There is one per process that the last look found, so their number depends on when looks
    /// took place, and only the maximum says anything.
    process_descriptors_max: u64,
    /// Maximum of the last quarter, and its growth since the second.
    threads: f64,
    threads_growth: f64,
    resident_max_bytes: u64,
    servers_resident_max_bytes: u64,
    servers_descriptors_max: u64,
    /// Lines lost because the disk was full.
    journal_lost_lines: u64,
    left_behind: u64,
    /// The bars that were missed.
    failed: String,
}

/// A small disk, unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(dir: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir(&dir)?;
        let options = std::ffi::CString::new(DISK_OPTIONS)?;
        mount(
            "agewise-soak",
            &dir,
            "tmpfs",
            MountFlags::NODEV,
            Some(options.as_c_str()),
        )
        .with_context(|| format!("cannot mount a tmpfs at {}", dir.display()))?;
        Ok(Disk(dir))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.0, UnmountFlags::DETACH) {
            agewise_cli::note!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

/// Runs the soak test.
///
/// # Errors
/// Missing privileges, or the daemon has ended.
pub fn measure(program: &Path, args: &Args, stop: &Stop) -> anyhow::Result<ExitCode> {
    let mut crowd = Crowd::start(program, &args.crowd, stop)?;
    let directory = tempfile::tempdir()?;
    let disk = Disk::mount(directory.path().join("state"))?;
    configure(directory.path(), &crowd, args)?;
    let mut daemon = Service::start(program, directory.path())?;
    daemon.wait_for_look(stop)?;
    let warm_up = WARM_UP.min(args.time / 4);
    ensure!(!stop.wait_until(Instant::now() + warm_up), "interrupted");
    let faults = Faults::new(
        Place {
            pid: daemon.pid(),
            directory: directory.path().to_owned(),
            disk: disk.0.clone(),
            top: crowd.dir(),
        },
        args.fault_every,
    );
    let mut soak = Soak {
        daemon: daemon.process()?,
        faults,
        samples: Vec::new(),
        looks: 0,
        lost_lines: 0,
    };
    let began = Instant::now();
    let cpu_began_ns = soak.daemon.stat()?.cpu_ns();
    let looks_before = daemon.snapshot().map_or(0, |s| soak.hear(&s));
    soak.run(&mut crowd, &mut daemon, args, stop)?;
    let (seconds, cpu_ns) = (began.elapsed().as_secs_f64(), soak.daemon.stat()?.cpu_ns());
    soak.faults.mend()?;
    if let Some(snapshot) = daemon.snapshot() {
        soak.hear(&snapshot);
    }
    daemon.check()?;
    daemon.end()?;
    let left = left_behind(directory.path());
    let cpu_s = cpu_ns.saturating_sub(cpu_began_ns) as f64 / 1e9;
    let mut soaked = soak.verdict(args, &crowd, seconds, cpu_s);
    soaked.looks -= looks_before;
    soaked.left_behind = left;
    soaked.judge();
    print("soak", args.format, &soaked)?;
    Ok(ExitCode::from(u8::from(!soaked.failed.is_empty())))
}

fn configure(directory: &Path, crowd: &Crowd, args: &Args) -> anyhow::Result<()> {
    let at = |name: &str| directory.join(name).display().to_string();
    let config = format!(
        "[journal]\nfile = '{0}'\nsize_max = '1M'\nkeep = 2\n\
         [observe]\ncgroups = ['/{1}', '/{1}/*']\ncgroups_max = 8192\ncpu_percent = {2}\n\
         [[act]]\ncgroups = ['/{1}/1', '/{1}/2']\npolicy = 'age:10s/40s'\n\
         [protect]\ncgroups = ['/{1}/0']\nup_to = 'squeeze'\n\
         [files]\nenabled = true\ndirectory = '{3}'\n\
         [metrics]\nenabled = true\nlisten = 'unix:{4}'\n",
        at("state/journal"),
        crowd.name()?,
        args.crowd.cpu_percent,
        at("files"),
        at(service::SOCKET),
    );
    Ok(fs::write(directory.join(service::CONFIG), config)?)
}

/// A running soak test.
struct Soak {
    daemon: Process,
    faults: Faults,
    /// One sample per second.
    samples: Vec<Sample>,
    looks: u64,
    lost_lines: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    resident_bytes: u64,
    descriptors: u64,
    process_descriptors: u64,
    threads: u64,
    /// Sum over the serving processes.
    servers_resident_bytes: u64,
    servers_descriptors: u64,
}

impl Soak {
    /// Reads the daemon's own figures from a snapshot; returns the number of looks.
    fn hear(&mut self, snapshot: &serde_json::Value) -> u64 {
        let own = &snapshot["own"];
        self.looks = own["ticks"].as_u64().unwrap_or(self.looks);
        let lost = own["journal_lost_lines"].as_u64();
        self.lost_lines = lost.unwrap_or(self.lost_lines);
        self.looks
    }

    fn run(
        &mut self,
        crowd: &mut Crowd,
        daemon: &mut Service,
        args: &Args,
        stop: &Stop,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut sampled = began;
        let (mut said, mut said_cpu_ns) = (began, self.daemon.stat()?.cpu_ns());
        while began.elapsed() < args.time && stop.requested().is_none() {
            self.faults.turn()?;
            if !crowd.turn(began.elapsed())? {
                std::thread::sleep(Duration::from_millis(2));
            }
            if sampled.elapsed() >= Duration::from_secs(1) {
                sampled = Instant::now();
                daemon.check()?;
                self.samples.push(self.sample()?);
            }
            if said.elapsed() >= Duration::from_secs(60) {
                if let Some(snapshot) = daemon.snapshot() {
                    self.hear(&snapshot);
                }
                let cpu_ns = self.daemon.stat()?.cpu_ns();
                let taken_ns = cpu_ns.saturating_sub(said_cpu_ns) as f64;
                let cpu_ratio = taken_ns / said.elapsed().as_nanos() as f64;
                (said, said_cpu_ns) = (Instant::now(), cpu_ns);
                self.say(args.format, began.elapsed(), cpu_ratio, crowd)?;
            }
        }
        Ok(())
    }

    fn sample(&self) -> anyhow::Result<Sample> {
        let servers = faults::servers_of(self.daemon.pid());
        let servers: Vec<Process> = servers.into_iter().flat_map(Process::open).collect();
        let resident = servers.iter().flat_map(Process::rss_bytes);
        let (process_descriptors, descriptors) = descriptors(&self.daemon.path("fd"));
        Ok(Sample {
            resident_bytes: self.daemon.rss_bytes()?,
            descriptors,
            process_descriptors,
            threads: entries(&self.daemon.path("task")),
            servers_resident_bytes: resident.sum(),
            servers_descriptors: servers
                .iter()
                .map(|server| entries(&server.path("fd")))
                .sum(),
        })
    }

    fn say(
        &self,
        format: Format,
        elapsed: Duration,
        cpu_ratio: f64,
        crowd: &Crowd,
    ) -> anyhow::Result<()> {
        let Some(last) = self.samples.last() else {
            return Ok(());
        };
        let minute = Minute {
            record: "soak_minute",
            minutes: elapsed.as_secs_f64() / 60.0,
            sample: *last,
            cpu_ratio,
            looks: self.looks,
            faults: self.faults.count,
            processes_came: crowd.came,
            cgroups_came: crowd.cgroups_came,
        };
        let mut out = std::io::stdout().lock();
        match format {
            Format::Json => output::json_line(&mut out, &minute)?,
            Format::Text => {
                use std::io::Write;
                writeln!(
                    out,
                    "{:5.0} min  {} bytes, {} descriptors and {} of processes, {} threads; \
                     servers {} bytes, {} descriptors; {:.2} % CPU, {} looks, {} faults",
                    minute.minutes,
                    last.resident_bytes,
                    last.descriptors,
                    last.process_descriptors,
                    last.threads,
                    last.servers_resident_bytes,
                    last.servers_descriptors,
                    cpu_ratio * 100.0,
                    minute.looks,
                    minute.faults,
                )?;
            }
            Format::Csv => {}
        }
        Ok(())
    }

    fn verdict(&self, args: &Args, crowd: &Crowd, seconds: f64, cpu_s: f64) -> Soaked {
        let quarter = |number: usize, of: fn(&Sample) -> u64| -> Vec<f64> {
            let length = self.samples.len() / 4;
            let samples = self.samples.iter().skip(number * length).take(length);
            samples.map(|sample| of(sample) as f64).collect()
        };
        let middle = |number| median(&quarter(number, |s| s.resident_bytes));
        let mean = |number| {
            let descriptors = quarter(number, |s| s.descriptors);
            descriptors.iter().sum::<f64>() / (descriptors.len() as f64).max(1.0)
        };
        let peak = |number| {
            let threads = quarter(number, |s| s.threads);
            threads.into_iter().fold(0.0, f64::max)
        };
        let most = |of: fn(&Sample) -> u64| self.samples.iter().map(of).max().unwrap_or(0);
        let granted_ratio = args.crowd.cpu_percent / 100.0;
        let granted_s = granted_ratio * (seconds + SAVED_UP.as_secs_f64());
        Soaked {
            processes: args.crowd.processes,
            cgroups: args.crowd.cgroups,
            seconds,
            processes_came: crowd.came,
            cgroups_came: crowd.cgroups_came,
            faults: self.faults.count,
            looks: self.looks,
            cpu_ratio: cpu_s / seconds,
            granted_ratio,
            excess_ratio: cpu_s / granted_s - 1.0,
            resident_bytes: middle(3),
            growth_bytes: middle(3) - middle(1),
            descriptors: mean(3),
            descriptors_growth: mean(3) - mean(1),
            process_descriptors_max: most(|s| s.process_descriptors),
            threads: peak(3),
            threads_growth: peak(3) - peak(1),
            resident_max_bytes: most(|s| s.resident_bytes),
            servers_resident_max_bytes: most(|s| s.servers_resident_bytes),
            servers_descriptors_max: most(|s| s.servers_descriptors),
            journal_lost_lines: self.lost_lines,
            left_behind: 0,
            failed: String::new(),
        }
    }
}

impl Soaked {
    fn judge(&mut self) {
        let before = self.resident_bytes - self.growth_bytes;
        let allowed = (before * GROWTH_RATIO_MAX).max(GROWTH_BYTES_MAX);
        let descriptors_allowed =
            (self.descriptors - self.descriptors_growth) * DESCRIPTORS_GROWTH_MAX;
        let process_descriptors_allowed =
            2.0 * self.processes as f64 * (1.0 + DESCRIPTORS_GROWTH_MAX);
        let bars = [
            ("memory", self.growth_bytes <= allowed),
            (
                "descriptors",
                self.descriptors_growth <= descriptors_allowed,
            ),
            (
                "process_descriptors",
                self.process_descriptors_max as f64 <= process_descriptors_allowed,
            ),
            ("threads", self.threads_growth <= 0.0),
            ("budget", self.excess_ratio <= EXCESS_MAX),
            ("left_behind", self.left_behind == 0),
        ];
        let missed = bars.iter().filter(|(_, is_kept)| !is_kept);
        self.failed = missed.map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
    }
}

/// Counts the descriptors in `/proc/PID/fd`: those of processes, and all others.
fn descriptors(dir: &Path) -> (u64, u64) {
    let targets = fs::read_dir(dir).into_iter().flatten().flatten();
    let (processes, others): (Vec<PathBuf>, Vec<PathBuf>) = targets
        .flat_map(|entry| fs::read_link(entry.path()))
        .partition(|target| target.as_os_str() == "anon_inode:[pidfd]");
    (processes.len() as u64, others.len() as u64)
}

fn entries(dir: &Path) -> u64 {
    fs::read_dir(dir).map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_can_be_missed() {
        let good = Soaked {
            processes: 1,
            cgroups: 1,
            seconds: 1.0,
            processes_came: 0,
            cgroups_came: 0,
            faults: 8,
            looks: 1,
            cpu_ratio: 0.01,
            granted_ratio: 0.01,
            excess_ratio: 0.02,
            resident_bytes: 70e6,
            descriptors: 60.0,
            threads: 7.0,
            growth_bytes: 1e6,
            descriptors_growth: 0.0,
            process_descriptors_max: 1,
            threads_growth: 0.0,
            resident_max_bytes: 80_000_000,
            servers_resident_max_bytes: 0,
            servers_descriptors_max: 0,
            journal_lost_lines: 3,
            left_behind: 0,
            failed: String::new(),
        };
        let judged = |change: fn(&mut Soaked)| {
            let mut soaked = good.clone();
            change(&mut soaked);
            soaked.judge();
            soaked.failed
        };
        assert_eq!(judged(|_| {}), "");
        assert_eq!(judged(|s| s.growth_bytes = 2e6), "memory");
        assert_eq!(judged(|s| s.descriptors_growth = 2.0), "descriptors");
        assert_eq!(
            judged(|s| s.process_descriptors_max = 3),
            "process_descriptors"
        );
        assert_eq!(judged(|s| s.threads_growth = 1.0), "threads");
        assert_eq!(judged(|s| s.excess_ratio = 0.021), "budget");
        assert_eq!(judged(|s| s.left_behind = 1), "left_behind");
    }
}
