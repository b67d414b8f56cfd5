// SPDX-License-Identifier: Apache-2.0
//! Observations of cgroups of this machine: the daemon's histories, or a fresh observation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agewise_cli::observe;
use agewise_cli::output;
use agewise_cli::prices::costs;
use agewise_cli::signal::Stop;
use agewise_cli::units::unix_ms;
use agewise_cli::whatif::watch;
use agewise_daemon::curves::{beyond_bytes, histories, history, history_path};
use agewise_host::cgroup::{Cgroup, CgroupError, Hierarchy};
use agewise_host::container::Containers;
use agewise_host::root::ProcRoot;
use agewise_host::swap::SwapArea;
use agewise_host::throttle::state_directory;
use agewise_host::whatif::Files;
use agewise_policy::whatif::history::{DAY_MS, HOUR_MS};
use agewise_policy::whatif::recommend::Time;
use agewise_policy::whatif::{Curves, History, Prices};
use anyhow::{Context, bail};

use super::{Args, Seen};

/// Observes all given cgroups, with the names of their containers, and says how many of several
/// could not be: why is noted for each. `stop` is installed once one has to be watched; after an
/// interruption the remaining ones are left out.
///
/// # Errors
/// Nothing can be said of the only one that was given, or of any.
pub(super) fn all(args: &Args, stop: &mut Option<Stop>) -> anyhow::Result<(Vec<Seen>, usize)> {
    let (mut all, failed) = unnamed(args, stop)?;
    let mut containers = Containers::new(&ProcRoot::default());
    let found = containers.look(all.iter().map(|seen| Path::new(&seen.cgroup)));
    for (seen, container) in all.iter_mut().zip(found) {
        seen.container = container;
    }
    Ok((all, failed))
}

fn unnamed(args: &Args, stop: &mut Option<Stop>) -> anyhow::Result<(Vec<Seen>, usize)> {
    if SwapArea::all(&ProcRoot::default()).is_ok_and(|areas| areas.is_empty()) {
        agewise_cli::note!("no swap: anonymous memory cannot leave without it");
    }
    let state = state_directory();
    let prices = costs().prices;
    let known = Known {
        hierarchy: Hierarchy::discover(&ProcRoot::default()).ok(),
        since_ms: unix_ms().saturating_sub(observe::millis(args.over)),
        prices,
    };
    if args.all {
        return of_all(&known, state).map(|all| (all, 0));
    }
    let (mut all, mut failed) = (Vec::new(), 0);
    // Each cgroup once, in the order given.
    let mut names = BTreeSet::new();
    for given in &args.cgroup {
        let opened = known
            .hierarchy
            .as_ref()
            .map(|h| observe::open_cgroup(h, given));
        let name = match &opened {
            Some(Ok(cgroup)) => cgroup.name(),
            _ => given.clone(),
        };
        if !names.insert(name.clone()) {
            continue;
        }
        if stop.as_ref().is_some_and(|stop| stop.requested().is_some()) {
            break;
        }
        let kept = state.as_deref().and_then(|state| kept(state, &name));
        match known.one(args, (&name, opened), kept, stop) {
            Ok(seen) => all.push(seen),
            Err(error) if args.cgroup.len() == 1 => return Err(error),
            Err(error) => {
                agewise_cli::note!("{name} is left out: {}", output::chain(&error));
                failed += 1;
            }
        }
    }
    Ok((all, failed))
}

/// The history that the daemon keeps of a cgroup. A damaged one counts as none.
fn kept(state: &Path, name: &str) -> Option<History> {
    history(state, name).unwrap_or_else(|error| {
        let path = history_path(state, name);
        agewise_cli::note!("{} is not used: {error}", path.display());
        None
    })
}

fn of_all(known: &Known, state: Option<PathBuf>) -> anyhow::Result<Vec<Seen>> {
    let state = state.context("no state directory: set STATE_DIRECTORY to that of the daemon")?;
    let place = || format!("histories in {}", state.display());
    let (histories, damaged) = histories(&state).with_context(place)?;
    for (path, error) in damaged {
        agewise_cli::note!("{} is not used: {error}", path.display());
    }
    if histories.is_empty() {
        bail!(
            "no history in {}: run `agewise daemon` for some days, or give --cgroup to look now",
            state.display()
        );
    }
    // Processes given by pid have histories too, but no limit to set.
    let cgroups = histories
        .into_iter()
        .filter(|(name, _)| name.starts_with('/'));
    Ok(cgroups
        .map(|(name, history)| known.seen(name, &history))
        .collect())
}

struct Known {
    hierarchy: Option<Hierarchy>,
    since_ms: u64,
    prices: Prices,
}

impl Known {
    fn seen(&self, cgroup: String, history: &History) -> Seen {
        let times = |kept: &mut dyn Iterator<Item = (u64, Curves)>, length_ms: u64| {
            // One that had begun before counts as a whole: without it there would be too little.
            let kept =
                kept.filter(|(begin_ms, _)| begin_ms.saturating_add(length_ms) > self.since_ms);
            kept.map(|(_, curves)| Time::new(&curves, self.prices))
                .collect()
        };
        // Days reach farther back than was asked for: they are for what the hours do not cover.
        let first_hour = history.hours().next();
        let days = match first_hour.is_some_and(|(begin_ms, _)| begin_ms <= self.since_ms) {
            true => Vec::new(),
            false => times(&mut history.days(), DAY_MS),
        };
        let hierarchy = self.hierarchy.as_ref();
        let opened = hierarchy.map(|hierarchy| Cgroup::open(hierarchy, &cgroup));
        Seen {
            host: None,
            gone: matches!(opened, Some(Err(CgroupError::NotFound { .. }))),
            limit_now_bytes: opened.and_then(Result::ok).as_ref().and_then(limit),
            cgroup,
            container: None,
            recent: times(&mut history.hours(), HOUR_MS),
            longer: days,
            knows_unused: true,
            unseen_processes: None,
        }
    }

    /// Observes one of the given cgroups: its history, if there is one, or now.
    fn one(
        &self,
        args: &Args,
        (name, opened): (&str, Option<anyhow::Result<Cgroup>>),
        kept: Option<History>,
        stop: &mut Option<Stop>,
    ) -> anyhow::Result<Seen> {
        if let Some(history) = kept {
            if args.watching.is_changed() {
                agewise_cli::note!(
                    "{name} has a history: --duration and --files are only for those without (page \
                     cache is in it if the daemon follows files: observe.files)"
                );
            }
            return Ok(self.seen(name.to_owned(), &history));
        }
        let Some(cgroup) = opened.transpose()? else {
            bail!("nothing is known of cgroup {name}, and there are no cgroups here");
        };
        let stop: &Stop = match stop {
            Some(stop) => stop,
            None => stop.insert(Stop::install()?),
        };
        self.look(args, &cgroup, stop)
    }

    fn look(&self, args: &Args, cgroup: &Cgroup, stop: &Stop) -> anyhow::Result<Seen> {
        let name = cgroup.name();
        let plan = args.watching.plan(None, true)?;
        let targets = observe::listed(&[], std::slice::from_ref(&name))?;
        let found = watch(targets, plan, stop)?;
        if let Some(gone) = &found.gone {
            agewise_cli::note!("{name}: {gone}; what was seen until then counts");
        }
        for caveat in found.caveats() {
            agewise_cli::note!("{name}: {caveat}");
        }
        let mut curves = found.curves;
        curves.beyond_bytes = beyond_bytes(cgroup, Files::All);
        Ok(Seen {
            host: None,
            cgroup: name,
            container: None,
            gone: false,
            limit_now_bytes: limit(cgroup),
            recent: vec![Time::new(&curves, found.costs.prices)],
            longer: Vec::new(),
            knows_unused: true,
            unseen_processes: Some(found.unseen_processes),
        })
    }
}

fn limit(cgroup: &Cgroup) -> Option<u64> {
    let limits = cgroup.limits().ok()?;
    limits.max_bytes.or(limits.high_bytes)
}

#[cfg(test)]
mod tests {
    use agewise_policy::whatif::Estimate;

    use super::*;

    #[test]
    fn the_time_asked_for_is_covered_at_any_time_of_the_day() {
        let mut history = History::default();
        for hour in 0..48 {
            let curves = Curves::of_anon(1 << 30, HOUR_MS, |_| Estimate::exact(0.0));
            history.add(20_000 * DAY_MS + hour * HOUR_MS, &curves);
        }
        let now_ms = 20_001 * DAY_MS + 23 * HOUR_MS + HOUR_MS / 2;
        let observed_ms = |over_ms: u64| {
            let known = Known {
                hierarchy: None,
                since_ms: now_ms - over_ms,
                prices: Prices::exact(1e4, 1e5),
            };
            let seen = known.seen("/web".to_owned(), &history);
            let sum = |times: &[Time]| times.iter().map(|time| time.observed_ms).sum::<u64>();
            (sum(&seen.recent), sum(&seen.longer))
        };
        assert_eq!(observed_ms(2 * HOUR_MS), (3 * HOUR_MS, 0));
        assert_eq!(observed_ms(DAY_MS), (25 * HOUR_MS, 0));
        assert_eq!(
            observed_ms(DAY_MS + 2 * HOUR_MS),
            (25 * HOUR_MS, 2 * DAY_MS)
        );
    }
}
