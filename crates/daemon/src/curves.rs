// SPDX-License-Identifier: Apache-2.0
//! What less memory would cost, for every subject, all the time: from the looks that are made
//! anyway.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use agewise_cli::whatif::costs;
use agewise_host::agent::{Agent, TickReport};
use agewise_host::cgroup::CgroupError;
use agewise_host::root::Roots;
use agewise_host::whatif::{Around, Sights, is_charged_for_files, kernel_in_use};
use agewise_policy::whatif::history::{DAYS, History};
use agewise_policy::whatif::{Curves, Decider, Params, Prices, WhatIf, page_hash};

use crate::journal::unix_ms;
use crate::observer::{Key, Seen};
use crate::state::LessMemory;

/// Subjects that are simulated, at most: the first ones. Some 100 KiB each, with their history.
const SUBJECTS_MAX: usize = 256;
/// Looks that only tell which pages are where.
const LEARN_LOOKS: u32 = 10;
/// Counted for so long, then kept as a part of the hour, and counted anew.
const COUNT_MS: u64 = 15 * 60 * 1000;
/// Histories of subjects that have not been seen for so long are removed.
const KEPT: Duration = Duration::from_secs(DAYS as u64 * 86_400);

/// Sizes that are shown, percent of the most that was resident.
const SHOWN_PERCENT: [u16; 4] = [50, 60, 75, 90];

/// What a subject would do with less memory, at the sizes that are shown, under the LRU of this
/// kernel. Bounds that are not known are left out.
fn shown(curves: &Curves, prices: Prices) -> Vec<LessMemory> {
    let known = |value: f64| value.is_finite().then_some(value);
    let at = |percent: u16| {
        let point = curves.of(Decider::Kernel).at(f64::from(percent));
        let (faults, wait) = (point.faults_per_second(), point.wait_ratio(prices));
        Some(LessMemory {
            percent,
            faults_per_second: known(faults.likely)?,
            faults_high: known(faults.high),
            wait_ratio: known(wait.likely)?,
            wait_high: known(wait.high),
        })
    };
    SHOWN_PERCENT.into_iter().filter_map(at).collect()
}

/// A subject that is simulated.
struct Followed {
    what_if: WhatIf,
    history: History,
    has_files: bool,
    is_counting: bool,
    /// Unix time since when it is counted.
    began_ms: u64,
    latest: Vec<LessMemory>,
}

/// Simulates all subjects.
pub struct AllCurves {
    sights: Sights,
    params: Params,
    prices: Prices,
    by_key: HashMap<Key, Followed>,
    blind_ms: f64,
    /// Where histories are kept; none: nowhere.
    dir: Option<PathBuf>,
    is_trouble_told: bool,
}

impl AllCurves {
    /// Nothing seen yet. Histories are kept in a directory of the state directory.
    pub fn new(state: Option<PathBuf>) -> Self {
        let dir = state.map(|state| state.join("whatif"));
        if let Some(dir) = &dir {
            remove_old(dir);
        }
        AllCurves {
            sights: Sights::default(),
            params: Params::small(kernel_in_use(&Roots::default())),
            prices: costs().prices,
            by_key: HashMap::new(),
            blind_ms: 0.0,
            dir,
            is_trouble_told: false,
        }
    }

    /// Looks once, and listens.
    ///
    /// # Errors
    /// As [`Agent::tick`].
    pub fn tick(&mut self, agent: &mut Agent) -> Result<TickReport, CgroupError> {
        self.sights.clear();
        let began = Instant::now();
        let report = agent.tick_tapped(Some(&mut self.sights));
        self.blind_ms = began.elapsed().as_secs_f64() * 1e3;
        report
    }

    /// Takes in what the last tick showed of these subjects, and lets go of those that are gone.
    pub fn take(&mut self, agent: &Agent, seen: &[Seen], report: &TickReport) {
        let there: HashSet<&Key> = seen.iter().map(|seen| &seen.key).collect();
        let gone = self.by_key.keys().filter(|key| !there.contains(key));
        let gone: Vec<Key> = gone.cloned().collect();
        for key in gone {
            self.close(&key);
            self.by_key.remove(&key);
        }
        for seen in seen.iter().take(SUBJECTS_MAX) {
            if !self.by_key.contains_key(&seen.key) {
                let followed = self.follow(agent, seen);
                self.by_key.insert(seen.key.clone(), followed);
            }
            let Some(followed) = self.by_key.get_mut(&seen.key) else {
                continue;
            };
            let around = Around {
                is_whole: report.failed == 0,
                has_files: followed.has_files,
                blind_ms: self.blind_ms,
            };
            let what_if = &mut followed.what_if;
            self.sights.show(agent, &seen.pids, what_if, around);
            if !followed.is_counting {
                if what_if.looks() >= LEARN_LOOKS {
                    what_if.count_anew();
                    followed.is_counting = true;
                    followed.began_ms = unix_ms();
                }
                continue;
            }
            let curves = what_if.curves();
            let is_due = curves.observed_ms >= COUNT_MS;
            followed.latest = shown(&curves, self.prices);
            if is_due {
                self.close(&seen.key);
            }
        }
    }

    /// What a subject would do with less memory, by what was seen since the last quarter of an hour
    /// began; nothing until there is something to say.
    pub fn of(&self, key: &Key) -> Vec<LessMemory> {
        let followed = self.by_key.get(key);
        followed.map_or_else(Vec::new, |followed| followed.latest.clone())
    }

    /// Writes down what is known.
    pub fn finish(&mut self) {
        let keys: Vec<Key> = self.by_key.keys().cloned().collect();
        for key in keys {
            self.close(&key);
        }
    }

    fn follow(&mut self, agent: &Agent, seen: &Seen) -> Followed {
        let path = self.path(&seen.key);
        let read = path.as_ref().and_then(|path| fs::read(path).ok());
        let history = match read.map(|bytes| History::decode(&bytes)) {
            Some(Ok(history)) => history,
            Some(Err(error)) => {
                let path = path.unwrap_or_default();
                self.trouble(&format!("{} is not used: {error}", path.display()));
                History::default()
            }
            None => History::default(),
        };
        Followed {
            what_if: WhatIf::new(self.params),
            history,
            has_files: is_charged_for_files(seen.cgroup.as_ref(), agent, &seen.pids),
            is_counting: false,
            began_ms: 0,
            latest: Vec::new(),
        }
    }

    /// Keeps what was counted of a subject, and counts anew.
    fn close(&mut self, key: &Key) {
        let path = self.path(key);
        let Some(followed) = self.by_key.get_mut(key) else {
            return;
        };
        if !followed.is_counting {
            return;
        }
        followed
            .history
            .add(followed.began_ms, &followed.what_if.curves());
        followed.what_if.count_anew();
        followed.began_ms = unix_ms();
        let bytes = followed.history.encode();
        if let Some(path) = path
            && let Err(error) = replace(&path, &bytes)
        {
            self.trouble(&format!("{} cannot be written: {error}", path.display()));
        }
    }

    /// The file of a name: one that is made again under its name goes on with its history.
    fn path(&self, key: &Key) -> Option<PathBuf> {
        let bytes = key.0.bytes();
        let hash = bytes.fold(0, |hash, byte| page_hash(hash, byte.into()));
        Some(self.dir.as_ref()?.join(format!("{hash:016x}")))
    }

    fn trouble(&mut self, text: &str) {
        if !std::mem::replace(&mut self.is_trouble_told, true) {
            agewise_cli::note!("history of curves: {text}");
        }
    }
}

/// What nobody has seen for long.
fn remove_old(dir: &Path) {
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let modified = file.metadata().and_then(|meta| meta.modified());
        let age = modified.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
        if age.is_ok_and(|age| age > KEPT) {
            // One that stays is removed by the next start.
            let _ = fs::remove_file(file.path());
        }
    }
}

/// The old file or the new one is there, whatever happens.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes)?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn histories_survive_by_name_and_damage_is_no_history() {
        let dir = tempfile::tempdir().unwrap();
        let all = AllCurves::new(Some(dir.path().to_owned()));
        let key: Key = (Arc::from("/web"), 7);
        let path = all.path(&key).unwrap();
        assert_eq!(Some(&path), all.path(&(Arc::from("/web"), 8)).as_ref());
        assert_ne!(Some(&path), all.path(&(Arc::from("/db"), 7)).as_ref());
        replace(&path, &History::default().encode()).unwrap();
        assert!(History::decode(&fs::read(&path).unwrap()).is_ok());
        assert!(!path.with_extension("new").exists());
        let old = SystemTime::now() - KEPT - Duration::from_secs(5);
        fs::File::open(&path).unwrap().set_modified(old).unwrap();
        let _ = AllCurves::new(Some(dir.path().to_owned()));
        assert!(!path.exists(), "nobody has seen it for long");
    }
}
