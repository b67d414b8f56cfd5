// SPDX-License-Identifier: Apache-2.0
//! What less memory would cost: continuously estimated for every subject, from looks that are made
//! anyway.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io, mem};

use agewise_cli::{output::finite, prices::Meter, units::unix_ms};
use agewise_host::access::pages_per_kernel_page;
use agewise_host::agent::{Agent, TickReport};
use agewise_host::cgroup::{Cgroup, CgroupError};
use agewise_host::pagecache::Uses;
use agewise_host::root::Roots;
use agewise_host::whatif::{Around, Files, Sights, is_charged_for_files, kernel_in_use};
use agewise_policy::whatif::history::History;
use agewise_policy::whatif::{Curves, Decider, Params, Prices, WhatIf};

use crate::observer::{Key, Seen};
use crate::state::LessMemory;
use stored::{FILES_MAX, directory, file_name, read, remove_old, replace};
pub use stored::{ReadError, histories, history, history_path, keep};

mod stored;

/// Maximum number of subjects that are simulated, in their order. Each takes about 100 KiB, with
/// its history.
const SUBJECTS_MAX: usize = 256;
/// The first looks only find out where pages are.
const LEARN_LOOKS: u32 = 10;
/// Time between two measurements of prices: a machine that starts is busier than it will be.
const PRICE_EVERY: Duration = Duration::from_secs(15 * 60);
/// Counts are collected for this long, then added to the hour, and restarted.
const COUNT_MS: u64 = 15 * 60 * 1000;
/// The displayed curve is recomputed after this time, and sooner while it is new: computing a curve
/// takes longer than simulating a look, and it hardly changes from look to look.
const SHOW_MS: u64 = 60 * 1000;
/// Old histories are removed at the start, and each time that so many were stored.
const STORED_MAX: usize = 1024;

/// The sizes shown, percent of the peak resident size.
const SHOWN_PERCENT: [u16; 5] = [50, 60, 75, 90, 100];

/// The cost of less memory at the sizes shown, for the LRU of this kernel. Unknown bounds are left
/// out; what has no memory has no less.
fn shown(curves: &Curves, prices: Prices) -> Vec<LessMemory> {
    if curves.full_bytes == 0 {
        return Vec::new();
    }
    let at = |percent: u16| {
        let point = curves.of(Decider::Kernel).at(f64::from(percent));
        let (faults, wait) = (point.faults_per_second(), point.wait_ratio(prices));
        Some(LessMemory {
            percent,
            memory_bytes: curves.bytes_at(percent),
            beyond_bytes: curves.beyond_bytes,
            faults_per_second: finite(faults.likely)?,
            faults_high: finite(faults.high),
            wait_ratio: finite(wait.likely)?,
            wait_high: finite(wait.high),
        })
    };
    SHOWN_PERCENT.into_iter().filter_map(at).collect()
}

/// A subject that is simulated.
struct Followed {
    what_if: WhatIf,
    history: History,
    cgroup: Option<Cgroup>,
    has_files: bool,
    /// Whether its files are those charged to it, because the page cache is followed.
    is_cached: bool,
    is_counting: bool,
    /// Unix time when counting began.
    began_ms: u64,
    /// The observed time at which `latest` must be recomputed.
    show_at_ms: u64,
    latest: Vec<LessMemory>,
    /// The curves of the last full quarter of an hour.
    counted: Option<Box<Curves>>,
}

impl Followed {
    /// The curves counted so far.
    fn curves(&self) -> Curves {
        Curves {
            beyond_bytes: (self.cgroup.as_ref()).map_or(0, |of| beyond_bytes(of, Files::All)),
            ..self.what_if.curves()
        }
    }

    /// Starts a new simulation.
    fn begin_anew(&mut self, params: Params) {
        self.what_if = WhatIf::new(params);
        self.is_counting = false;
    }

    /// Forgets what was simulated with other pages.
    fn forget(&mut self, params: Params) {
        self.begin_anew(params);
        (self.counted, self.show_at_ms) = (None, 0);
        self.latest.clear();
    }

    /// Recomputes what is shown.
    fn show(&mut self, curves: &Curves, prices: Prices) {
        self.latest = shown(curves, prices);
        self.show_at_ms = curves.observed_ms + curves.observed_ms.min(SHOW_MS);
    }
}

/// Simulates all subjects.
pub struct AllCurves {
    sights: Sights,
    params: Params,
    meter: Meter,
    prices: Prices,
    priced: Instant,
    by_key: HashMap<Key, Followed>,
    blind_ms: f64,
    /// Uses of the page cache up to the last tick.
    uses: Uses,
    /// The last look at the page cache that was processed.
    cached_ms: Option<u64>,
    /// Where histories are stored; `None` if nowhere.
    dir: Option<PathBuf>,
    /// That directory, locked: another daemon has a history of its own for every name.
    lock: Option<fs::File>,
    /// How many were stored since old ones were removed.
    stored: usize,
    is_trouble_reported: bool,
}

impl AllCurves {
    /// Starts without observations. Histories are stored in a directory of the state directory.
    pub fn new(state: Option<PathBuf>) -> Self {
        let meter = Meter::at_once();
        let dir = state.as_deref().map(directory);
        if let Some(dir) = &dir {
            remove_old(dir, FILES_MAX);
        }
        AllCurves {
            sights: Sights::default(),
            params: Params::small(kernel_in_use(&Roots::default())),
            prices: meter.costs().prices,
            meter,
            priced: Instant::now(),
            by_key: HashMap::new(),
            blind_ms: 0.0,
            uses: Uses::default(),
            cached_ms: None,
            dir,
            lock: None,
            stored: 0,
            is_trouble_reported: false,
        }
    }

    /// Makes one look, by `look`, and records what it shows.
    ///
    /// # Errors
    /// Those of `look`.
    pub fn tick(
        &mut self,
        agent: &mut Agent,
        look: impl FnOnce(&mut Agent, &mut Sights) -> Result<TickReport, CgroupError>,
    ) -> Result<TickReport, CgroupError> {
        if self.priced.elapsed() >= PRICE_EVERY {
            self.priced = Instant::now();
            self.meter.measure();
            self.prices = self.meter.costs().prices;
        }
        self.sights.clear();
        let began = Instant::now();
        let report = look(agent, &mut self.sights);
        self.blind_ms = began.elapsed().as_secs_f64() * 1e3;
        self.uses = agent.take_cache_uses();
        report
    }

    /// Takes in and forgets what the last tick showed of these subjects, and drops the others.
    pub fn take(&mut self, agent: &Agent, seen: &[Seen]) {
        // A larger page would count as several faults.
        if pages_per_kernel_page() != 1 {
            return;
        }
        // One that is not looked at any more must not show its old curve.
        let seen = &seen[..seen.len().min(SUBJECTS_MAX)];
        self.retain(seen);
        let (sights, uses) = (mem::take(&mut self.sights), mem::take(&mut self.uses));
        let cached = agent.cached(&uses, &mut self.cached_ms);
        for seen in seen {
            if !self.by_key.contains_key(&seen.key) {
                let followed = self.follow(agent, seen);
                self.by_key.insert(seen.key.clone(), followed);
            }
            let Some(followed) = self.by_key.get_mut(&seen.key) else {
                continue;
            };
            let cgroup = seen.cgroup.as_ref();
            let is_cached = cgroup.is_some() && agent.cached_ms().is_some();
            if std::mem::replace(&mut followed.is_cached, is_cached) != is_cached {
                followed.forget(self.params);
            }
            let around = Around {
                files: Files::of(is_cached, followed.has_files),
                cgroup,
                cached: cached.as_ref(),
                blind_ms: self.blind_ms,
            };
            let what_if = &mut followed.what_if;
            sights.show(agent, &seen.pids, what_if, around);
            if !followed.is_counting {
                if what_if.looks() >= LEARN_LOOKS {
                    what_if.count_anew();
                    followed.is_counting = true;
                    followed.began_ms = unix_ms();
                }
                continue;
            }
            let observed_ms = what_if.observed_ms();
            if observed_ms >= COUNT_MS {
                self.close(&seen.key);
                self.judge_files(agent, seen);
            } else if observed_ms >= followed.show_at_ms {
                let curves = followed.curves();
                followed.show(&curves, self.prices);
            }
        }
    }

    /// The cost of less memory for a subject, based on what was seen since the last quarter of an
    /// hour began; empty while nothing is known.
    pub fn of(&self, key: &Key) -> Vec<LessMemory> {
        (self.by_key.get(key)).map_or_else(Vec::new, |of| of.latest.clone())
    }

    /// Curves that are reliable enough to act on: those of the last full quarter of an hour.
    pub fn counted(&self, key: &Key) -> Option<&Curves> {
        self.by_key.get(key)?.counted.as_deref()
    }

    /// Which files charged to a subject its curves cover.
    pub fn files(&self, key: &Key) -> Files {
        let followed = self.by_key.get(key);
        followed.map_or(Files::None, |of| Files::of(of.is_cached, of.has_files))
    }

    /// Sets the curves of all subjects, as if a quarter of an hour had been counted.
    #[cfg(test)]
    pub fn plant(&mut self, curves: impl Fn() -> Curves) {
        for followed in self.by_key.values_mut() {
            followed.counted.get_or_insert_with(|| Box::new(curves()));
        }
    }

    /// The cost of bringing pages back.
    pub fn prices(&self) -> Prices {
        self.prices
    }

    /// Stores everything that is known.
    pub fn finish(&mut self) {
        let keys: Vec<Key> = self.by_key.keys().cloned().collect();
        for key in keys {
            self.close(&key);
        }
    }

    /// Drops subjects that are not among these.
    fn retain(&mut self, seen: &[Seen]) {
        let there: HashSet<&Key> = seen.iter().map(|seen| &seen.key).collect();
        let gone = self.by_key.keys().filter(|key| !there.contains(key));
        let gone: Vec<Key> = gone.cloned().collect();
        for key in gone {
            self.close(&key);
            self.by_key.remove(&key);
        }
    }

    fn follow(&mut self, agent: &Agent, seen: &Seen) -> Followed {
        let path = self.path(&seen.key);
        let history = path.as_deref().map(|path| read(path, &seen.key.0));
        let history = history.unwrap_or(Ok(None)).unwrap_or_else(|error| {
            let path = path.unwrap_or_default();
            self.trouble(&format!("{} is not used: {error}", path.display()));
            None
        });
        Followed {
            what_if: WhatIf::new(self.params),
            history: history.unwrap_or_default(),
            cgroup: seen.cgroup.clone(),
            has_files: is_charged_for_files(seen.cgroup.as_ref(), agent, &seen.pids),
            is_cached: false,
            is_counting: false,
            began_ms: 0,
            show_at_ms: 0,
            latest: Vec::new(),
            counted: None,
        }
    }

    /// Checks whether the files that a subject maps are still charged to it: if that changed, what
    /// was simulated with or without them is useless.
    fn judge_files(&mut self, agent: &Agent, seen: &Seen) {
        let has_files = is_charged_for_files(seen.cgroup.as_ref(), agent, &seen.pids);
        let Some(followed) = self.by_key.get_mut(&seen.key) else {
            return;
        };
        if std::mem::replace(&mut followed.has_files, has_files) != has_files {
            followed.forget(self.params);
        }
    }

    /// Stores the counts of a subject, and restarts them.
    fn close(&mut self, key: &Key) {
        let path = self.path(key);
        let Some(followed) = self.by_key.get_mut(key) else {
            return;
        };
        if !followed.is_counting {
            return;
        }
        let curves = followed.curves();
        followed.history.add(followed.began_ms, &curves);
        followed.show(&curves, self.prices);
        if curves.observed_ms >= COUNT_MS {
            followed.counted = Some(Box::new(curves));
        }
        match followed.what_if.is_sparse() {
            true => followed.begin_anew(self.params),
            false => followed.what_if.count_anew(),
        }
        (followed.began_ms, followed.show_at_ms) = (unix_ms(), SHOW_MS);
        let Some(path) = path else { return };
        let bytes = followed.history.encode(&key.0);
        let stored = self.lock().and_then(|()| replace(&path, &bytes));
        if let Err(error) = stored {
            self.trouble(&format!("{} cannot be written: {error}", path.display()));
        }
        self.stored += 1;
        if self.stored >= STORED_MAX {
            self.stored = 0;
            self.dir.iter().for_each(|dir| remove_old(dir, FILES_MAX));
        }
    }

    /// Keeps other daemons from storing histories in the directory.
    fn lock(&mut self) -> io::Result<()> {
        let (Some(dir), None) = (&self.dir, &self.lock) else {
            return Ok(());
        };
        fs::create_dir_all(dir)?;
        let lock = fs::File::open(dir)?;
        // Some file systems have no locks.
        if let Err(fs::TryLockError::WouldBlock) = lock.try_lock() {
            return Err(io::Error::other(
                "another daemon stores its histories there; give this one another STATE_DIRECTORY",
            ));
        }
        self.lock = Some(lock);
        Ok(())
    }

    /// The file of a subject. A subject that is created again with the same name continues its
    /// history.
    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(file_name(&key.0)))
    }

    fn trouble(&mut self, text: &str) {
        if !std::mem::replace(&mut self.is_trouble_reported, true) {
            agewise_cli::note!("history of curves: {text}");
        }
    }
}

/// What is charged to a cgroup in addition to anonymous memory and these files. In addition to all
/// files, that is kernel memory.
pub fn beyond_bytes(cgroup: &Cgroup, files: Files) -> u64 {
    let (Ok(stat), Ok(Some(usage))) = (cgroup.stat(), cgroup.usage_bytes()) else {
        return 0;
    };
    usage.saturating_sub(files.charged_bytes(&stat))
}

#[cfg(test)]
mod tests;
