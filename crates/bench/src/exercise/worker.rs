// SPDX-License-Identifier: Apache-2.0
//! The main loop of the exerciser: chooses a page, checks it, may write it, stamps it, keeps the
//! rate.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::Args;
use super::content::{Changed, Content, WORDS};
use super::memory::{MappedFile, PAGE_SIZE, Pages};
use super::pattern::Walk;
use super::summary::Summary;
use super::truth::{Kind, Region, State, Truth, now_ns};
use agewise_cli::signal::Stop;

/// Operations between two checks of the clock and of signals.
const BATCH_MAX: u64 = 256;
/// If it falls behind its rate by more than this, the exerciser resets the schedule instead of
/// catching up.
const BEHIND_MAX: Duration = Duration::from_millis(500);
/// One operation in this many checks the whole page.
const WHOLE_EVERY: u64 = 64;

/// How an exerciser ended.
pub enum Ending {
    /// No page was found changed.
    Unharmed,
    /// A page has changed.
    Changed {
        /// Its number in the order of the truth file.
        page: u64,
        address: u64,
        /// The difference.
        change: Changed,
    },
}

/// A region and its access pattern.
struct Part {
    first_slot: u64,
    walk: Walk,
}

/// An exerciser with its memory mapped.
pub struct Worker {
    content: Content,
    anon: Pages,
    file: Option<MappedFile>,
    parts: Vec<Part>,
    truth: Truth,
    rng: Pcg64,
    rate: u64,
    writes: f64,
    seconds: Option<Duration>,
    every: Option<Duration>,
    final_check: bool,
    /// Latencies of the current interval and of the whole run, in ns. Fixed in size.
    interval: Histogram<u64>,
    total: Histogram<u64>,
}

impl Worker {
    /// Maps memory and file, and creates the truth; only touches the file so far.
    pub fn new(args: &Args) -> anyhow::Result<Self> {
        let content = Content::new(args.seed);
        let anon_pages = args.size.div_ceil(PAGE_SIZE);
        let anon = Pages::anonymous(anon_pages, args.thp).context("cannot map --size")?;
        let file = match &args.file {
            None => None,
            Some(path) if args.file_size.is_none() && path.exists() => Some(
                MappedFile::open(path)
                    .with_context(|| format!("cannot map --file {}", path.display()))?,
            ),
            Some(path) => {
                let pages = args.file_bytes().div_ceil(PAGE_SIZE);
                Some(
                    MappedFile::create(path, pages, &content, anon_pages)
                        .with_context(|| format!("cannot make --file {}", path.display()))?,
                )
            }
        };
        let mut regions = Vec::new();
        if anon_pages > 0 {
            let kind = if args.thp { Kind::AnonHuge } else { Kind::Anon };
            regions.push(Region {
                address: anon.address(),
                pages: anon_pages,
                kind,
                first_slot: 0,
            });
        }
        if let Some(file) = &file {
            let pages = file.pages();
            regions.push(Region {
                address: pages.address(),
                pages: pages.pages(),
                kind: Kind::File,
                first_slot: anon_pages,
            });
        }
        let truth = Truth::create(args.truth.as_deref(), &regions, PAGE_SIZE)?;
        let active = args.active.unwrap_or_else(|| args.pattern.default_active());
        let parts = regions
            .iter()
            .map(|region| Part {
                first_slot: region.first_slot,
                walk: Walk::new(args.pattern, region.pages, active, args.scatter),
            })
            .collect();
        let latencies =
            Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).context("latency histogram")?;
        Ok(Self {
            content,
            anon,
            file,
            parts,
            truth,
            rng: Pcg64::seed_from_u64(args.seed),
            rate: args.rate,
            writes: args.writes,
            seconds: args
                .seconds
                .map(|of| Duration::try_from_secs_f64(of).unwrap_or(Duration::MAX)),
            every: args.every,
            final_check: !args.no_final_check,
            interval: latencies.clone(),
            total: latencies,
        })
    }

    /// Fills memory, works until `stop` or until the time is over, and checks; `tell` prints a
    /// summary.
    pub fn run(
        &mut self,
        stop: &Stop,
        mut tell: impl FnMut(&Summary) -> io::Result<()>,
    ) -> anyhow::Result<Ending> {
        let filled = self.fill(stop);
        let start = Instant::now();
        let mut changed = None;
        if filled {
            self.truth.set_state(State::Steady, now_ns());
            changed = self.work(stop, start, &mut tell)?;
        }
        let span = start.elapsed();
        self.truth.set_state(State::Checking, now_ns());
        if filled && changed.is_none() && self.final_check {
            changed = self.check_all();
        }
        if changed.is_some() {
            self.truth.count_error();
        }
        self.truth.set_state(State::Ended, now_ns());
        let mut summary = Summary::new("total", span.as_nanos() as u64, &self.total);
        summary.elapsed_ms = span.as_millis() as u64;
        summary.changed_pages = self.truth.errors();
        tell(&summary)?;
        Ok(match changed {
            None => Ending::Unharmed,
            Some((page, change)) => Ending::Changed {
                page,
                address: self.address(page),
                change,
            },
        })
    }

    /// Touches every page for the first time; returns false if stopped before the end.
    fn fill(&self, stop: &Stop) -> bool {
        let anon_pages = self.anon.pages();
        for slot in 0..self.truth.pages() {
            if slot < anon_pages {
                self.content.fill(slot, self.anon.page(slot));
            } else {
                // Already written to the file: touching only maps it.
                touch(self.page(slot));
            }
            self.truth.stamp(slot, now_ns());
            if slot % 4096 == 0 && stop.requested().is_some() {
                return false;
            }
        }
        true
    }

    /// The page in `slot`.
    #[inline]
    fn page(&self, slot: u64) -> &[std::sync::atomic::AtomicU64; WORDS] {
        match &self.file {
            Some(file) if slot >= self.anon.pages() => file.pages().page(slot - self.anon.pages()),
            _ => self.anon.page(slot),
        }
    }

    fn address(&self, slot: u64) -> u64 {
        self.page(slot).as_ptr() as u64
    }

    /// Works until stopped, until the time is over, or until a page is found changed.
    fn work(
        &mut self,
        stop: &Stop,
        start: Instant,
        tell: &mut impl FnMut(&Summary) -> io::Result<()>,
    ) -> anyhow::Result<Option<(u64, Changed)>> {
        let end = self.seconds.and_then(|seconds| start.checked_add(seconds));
        let batch = if self.rate == 0 {
            BATCH_MAX
        } else {
            (self.rate / 1000).clamp(1, BATCH_MAX)
        };
        let (mut pace_start, mut pace_ops, mut ops) = (start, 0u64, 0u64);
        let mut interval_start = start;
        loop {
            let now = Instant::now();
            if let Some(every) = self.every
                && now - interval_start >= every
            {
                self.tell_interval(start, now, interval_start, tell)?;
                interval_start = now;
            }
            if stop.requested().is_some() || end.is_some_and(|end| now >= end) {
                return Ok(None);
            }
            if self.rate > 0 {
                let due = pace_start + Duration::from_secs_f64(pace_ops as f64 / self.rate as f64);
                if due > now {
                    stop.wait_until(end.map_or(due, |end| due.min(end)));
                    continue;
                }
                if now - due > BEHIND_MAX {
                    (pace_start, pace_ops) = (now, 0);
                }
            }
            if let Err(changed) = self.batch(batch, now - start) {
                return Ok(Some(changed));
            }
            pace_ops += batch;
            ops += batch;
            self.truth.set_ops(ops);
        }
    }

    /// Does `count` operations.
    fn batch(&mut self, count: u64, elapsed: Duration) -> Result<(), (u64, Changed)> {
        let mut before_ns = now_ns();
        for _ in 0..count {
            let Some(slot) = self.choose(elapsed) else {
                // The pattern covers no page: nothing is touched, but the rate is kept.
                before_ns = now_ns();
                self.record(1);
                continue;
            };
            self.operate(slot).map_err(|changed| (slot, changed))?;
            let after_ns = now_ns();
            self.truth.stamp(slot, after_ns);
            self.record((after_ns - before_ns).max(1));
            before_ns = after_ns;
        }
        Ok(())
    }

    /// Chooses the next slot: a region in proportion to its size, then a page by its pattern.
    #[inline]
    fn choose(&mut self, elapsed: Duration) -> Option<u64> {
        let which = match self.parts.len() {
            1 => 0,
            _ => usize::from(
                self.rng.random_range(0..self.truth.pages()) >= self.parts[1].first_slot,
            ),
        };
        let part = &mut self.parts[which];
        Some(part.first_slot + part.walk.next(&mut self.rng, elapsed)?)
    }

    /// Checks the page in `slot`, and may write it.
    #[inline]
    fn operate(&mut self, slot: u64) -> Result<(), Changed> {
        let dice: u64 = self.rng.random();
        let page = self.page(slot);
        if !self.knows(slot) {
            touch(page);
            return Ok(());
        }
        if dice.is_multiple_of(WHOLE_EVERY) {
            self.content.check_whole(slot, page)?;
        }
        let writes = self.content.check(slot, page, (dice >> 8) as usize)?;
        let write = ((dice >> 11) as f64) < self.writes * (1u64 << 53) as f64;
        if write && slot < self.anon.pages() {
            self.content.write(slot, page, writes);
        }
        Ok(())
    }

    #[inline]
    fn record(&mut self, latency_ns: u64) {
        self.interval.saturating_record(latency_ns);
        self.total.saturating_record(latency_ns);
    }

    fn tell_interval(
        &mut self,
        start: Instant,
        now: Instant,
        interval_start: Instant,
        tell: &mut impl FnMut(&Summary) -> io::Result<()>,
    ) -> io::Result<()> {
        let span_ns = (now - interval_start).as_nanos() as u64;
        let mut summary = Summary::new("interval", span_ns, &self.interval);
        summary.elapsed_ms = (now - start).as_millis() as u64;
        summary.changed_pages = self.truth.errors();
        self.interval.reset();
        tell(&summary)
    }

    /// Whether the expected contents of the page in `slot` are known: not in a file that existed
    /// before.
    #[inline]
    fn knows(&self, slot: u64) -> bool {
        slot < self.anon.pages() || self.file.as_ref().is_some_and(MappedFile::is_ours)
    }

    /// Checks every page with known contents in full.
    fn check_all(&self) -> Option<(u64, Changed)> {
        (0..self.truth.pages())
            .filter(|&slot| self.knows(slot))
            .find_map(|slot| {
                self.content
                    .check_whole(slot, self.page(slot))
                    .err()
                    .map(|changed| (slot, changed))
            })
    }
}

/// Reads a word of the page.
fn touch(page: &[std::sync::atomic::AtomicU64; WORDS]) {
    std::hint::black_box(page[0].load(std::sync::atomic::Ordering::Relaxed));
}
