// SPDX-License-Identifier: Apache-2.0
//! What dropping the cold half of a file does to a program that reads the hot half.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agewise_cli::signal::Stop;
use agewise_host::agent::FilesOf;
use agewise_host::pagecache::{DropLimits, cachestat};
use anyhow::{Context, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use super::Cached;
use super::watched::Watched;
use crate::statistics::{Change, median};

/// The cold half has not been read for this long when it is dropped.
const AGE: Duration = Duration::from_millis(1000);
/// Looks in that time; a page is only dropped if several of them did not find it accessed.
const LOOKS: u32 = 3;

/// The 99th percentile of reads of the hot half, and what dropping changes about it.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Dropping {
    p99_ns: f64,
    #[serde(flatten)]
    change: Change,
    /// How long dropping took.
    ms: f64,
    /// Of the cold half and of the hot half, what was dropped.
    cold_ratio: f64,
    hot_ratio: f64,
}

/// Measures it, in pairs of random order: half of the times nothing is dropped, for as long as
/// dropping took before.
pub(super) fn measure(
    program: &Path,
    file: &Cached,
    pairs: usize,
    stop: &Stop,
) -> anyhow::Result<Dropping> {
    let mut of = Halves {
        watched: Watched::start(program, file)?,
        file,
        took: Vec::new(),
        left: Vec::new(),
    };
    of.turn(true, stop)?;
    let mut random = Pcg64Mcg::seed_from_u64(99);
    let mut measured = Vec::new();
    for _ in 0..pairs {
        let first = random.random::<bool>();
        let mut ns = [0.0; 2];
        for drops in [first, !first] {
            ns[usize::from(drops)] = of.turn(drops, stop)? as f64;
        }
        measured.push((ns[0], ns[1]));
    }
    let without: Vec<f64> = measured.iter().map(|(without, _)| *without).collect();
    let took_ms: Vec<f64> = of
        .took
        .iter()
        .map(|took| took.as_secs_f64() * 1e3)
        .collect();
    let mean = |half: usize| {
        let sum: f64 = of.left.iter().map(|left| left[half]).sum();
        sum / of.left.len() as f64
    };
    Ok(Dropping {
        p99_ns: median(&without),
        change: Change::of_pairs(&measured).context("fewer than three pairs")?,
        ms: median(&took_ms),
        cold_ratio: mean(1),
        hot_ratio: mean(0),
    })
}

/// A file whose first half is read and whose second half is not.
struct Halves<'a> {
    watched: Watched,
    file: &'a Cached,
    /// How long each drop took.
    took: Vec<Duration>,
    /// What each drop took of both halves.
    left: Vec<[f64; 2]>,
}

impl Halves<'_> {
    /// Lets the second half become cold, and drops it or not. Returns the 99th percentile of reads
    /// of the first half meanwhile, in ns.
    fn turn(&mut self, drops: bool, stop: &Stop) -> anyhow::Result<u64> {
        self.watched.reader.ask("fill")?;
        self.watched.look()?;
        for _ in 0..LOOKS {
            ensure!(!stop.wait(AGE / LOOKS + AGE / 10), "interrupted");
            self.watched.reader.ask("warm")?;
            self.watched.look()?;
        }
        let before = self.cached()?;
        self.watched.reader.begin()?;
        match self.took.last() {
            Some(took) if !drops => std::thread::sleep(*took),
            _ => self.drop_cold()?,
        }
        let p99_ns = self.watched.reader.end()?;
        if drops {
            let after = self.cached()?;
            let left = |half: usize| 1.0 - after[half] as f64 / before[half].max(1) as f64;
            self.left.push([left(0), left(1)]);
        }
        Ok(p99_ns)
    }

    fn drop_cold(&mut self) -> anyhow::Result<()> {
        let of = FilesOf {
            cgroup: self.watched.reader.cgroup(),
            without: &[],
        };
        let limits = DropLimits {
            bytes_max: u64::MAX,
            rate_bytes_per_s: u64::MAX,
            rehearse: false,
            far: false,
            files_max: usize::MAX,
        };
        let (began, cancel) = (Instant::now(), AtomicBool::new(false));
        let age_ms = AGE.as_millis() as u64;
        let agent = &mut self.watched.agent;
        agent.drop_cold_files(of, age_ms, limits, &cancel)?;
        self.took.push(began.elapsed());
        Ok(())
    }

    /// Cached pages of both halves.
    fn cached(&self) -> anyhow::Result<[u64; 2]> {
        let (half, all) = (self.file.pages / 2, self.file.pages);
        let pages = |range| anyhow::Ok(cachestat(&self.file.file, range)?.pages);
        Ok([pages(0..half)?, pages(half..all)?])
    }
}
