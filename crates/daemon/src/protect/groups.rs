// SPDX-License-Identifier: Apache-2.0
//! Which cgroups are compared with each other, and which cgroup below the culprit is acted upon.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agewise_host::access::PAGE_BYTES;
use agewise_host::cgroup::{Cgroup, Hierarchy, TreeLimits};
use agewise_host::root::ProcRoot;

use crate::config::Matcher;
use crate::observer::Seen;
use crate::state::SubjectView;

/// A cgroup below the culprit with this share of the culprit's demand is acted upon in its place.
const NARROW_SHARE: f64 = 0.8;
/// The share that is enough for a cgroup that is held back already.
const STAY_SHARE: f64 = 0.5;
/// Where demand moves on from so many cgroups of a culprit that are held back, what holds them all
/// is acted upon: a program that moves from cgroup to cgroup would always be at the first step.
const HELD_MAX: usize = 2;

/// A cgroup that is compared with the others.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Its path.
    pub name: Arc<str>,
    /// The cgroup; `None` only in tests without a cgroup file system.
    pub cgroup: Option<Cgroup>,
    /// Whether its working set is protected.
    pub is_protected: bool,
    /// Whether it is only reported, never acted upon.
    pub is_untouchable: bool,
    /// Pages that this daemon has seen come back to it from swap so far.
    pub refaulted_pages: u64,
}

/// The order by what is demanded; of equals, the upper one comes last.
fn greatest<'a>(
    (name, asked): &(&'a Arc<str>, u64),
) -> (u64, Reverse<usize>, Reverse<&'a Arc<str>>) {
    (*asked, Reverse(name.len()), Reverse(*name))
}

/// Whether the path `below` is equal to `above` or below it.
pub fn is_within(below: &str, above: &str) -> bool {
    above == "/"
        || below == above
        || below
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with('/'))
}

/// The name itself and those of all cgroups above it, without the root.
fn names_above(name: &str) -> impl Iterator<Item = &str> {
    let above = name.match_indices('/').map(|(at, _)| &name[..at]);
    above.filter(|above| !above.is_empty()).chain([name])
}

/// The path itself and all its ancestors, without the root.
pub fn self_and_above(path: &Path) -> impl Iterator<Item = &Path> {
    path.ancestors().filter(|above| above.parent().is_some())
}

/// Where the daemon is.
#[derive(Debug)]
pub struct Ours<'a> {
    /// It and its ancestors, by pid.
    pub line: &'a [u32],
    /// Its cgroup: it is in no list of observed processes itself.
    pub cgroup: Option<PathBuf>,
}

/// Finds the daemon among what it observes.
pub struct Own {
    /// Processes that are never acted upon: the daemon and its ancestors, by pid.
    pub line: &'static [u32],
    /// The result of a search of all cgroups.
    searched: OnceCell<Option<PathBuf>>,
}

impl Own {
    /// The daemon has not been searched for yet.
    pub fn new(line: &'static [u32]) -> Self {
        Own {
            line,
            searched: OnceCell::new(),
        }
    }

    /// Looks for the daemon in the hierarchy of what was observed.
    pub fn among(&self, root: &ProcRoot, seen: &[Seen]) -> Ours<'static> {
        let mut cgroups = seen.iter().filter_map(|seen| seen.cgroup.as_ref());
        let hierarchy = cgroups.next().map(Cgroup::hierarchy);
        // In a cgroup namespace of its own (a pod), its path starts there, not at the mount point.
        let search = |hierarchy| self.searched.get_or_init(|| search(hierarchy)).clone();
        Ours {
            line: self.line,
            cgroup: hierarchy.and_then(|of| of.own_path(root).or_else(|| search(of))),
        }
    }
}

impl Ours<'_> {
    /// Whether the daemon or an ancestor is in a cgroup or below it.
    pub fn is_in(&self, seen: &Seen) -> bool {
        let path = path_of(seen);
        let cgroup = self.cgroup.as_ref();
        cgroup.is_some_and(|own| own.starts_with(path))
            || seen.pids.iter().any(|pid| self.line.contains(pid))
    }
}

/// The cgroup that lists this process.
fn search(hierarchy: &Hierarchy) -> Option<PathBuf> {
    let top = Cgroup::open(hierarchy, "/").ok()?;
    let below = top.descendants(TreeLimits::WIDE).ok()?.cgroups;
    let lists_us = |cgroup: &&Cgroup| {
        let pids = cgroup.procs(false);
        pids.is_ok_and(|pids| pids.contains(&std::process::id()))
    };
    let found = below.iter().chain([&top]).find(lists_us)?;
    Some(found.path().to_owned())
}

/// The name is only used if there is no cgroup: it differs from the path if that is not UTF-8.
fn path_of(seen: &Seen) -> &Path {
    match &seen.cgroup {
        Some(cgroup) => cgroup.path(),
        None => Path::new(&*seen.key.0),
    }
}

/// Selects cgroups, none below another: the protected ones, and of the others the topmost that are
/// neither above nor below those. One with a process that must not be touched is only selected if
/// none below it is observed: otherwise all services of a machine would be one.
pub fn choose(
    seen: &[Seen],
    views: &[SubjectView],
    matcher: &Matcher,
    ours: &Ours<'_>,
) -> Vec<Watched> {
    let cgroups: Vec<(&Seen, &SubjectView)> = seen
        .iter()
        .zip(views)
        .filter(|(_, view)| view.is_cgroup && &*view.name != "/")
        .collect();
    let holds_ours = |seen: &Seen| seen.pids.contains(&1) || ours.is_in(seen);
    // Sorted by path: what is below a cgroup follows it immediately.
    let has_below = |at: usize| {
        let next = cgroups.get(at + 1);
        next.is_some_and(|(_, next)| is_within(&next.name, &cgroups[at].1.name))
    };
    let mut taken: Vec<Watched> = Vec::new();
    // Names of those taken, and of all cgroups above them.
    let (mut within, mut around) = (HashSet::new(), HashSet::new());
    for wants_protected in [true, false] {
        for (at, (seen, view)) in cgroups.iter().enumerate() {
            let name = &view.name;
            let is_apart =
                !around.contains(&**name) && !names_above(name).any(|of| within.contains(of));
            let is_split = !wants_protected && holds_ours(seen) && has_below(at);
            let path = path_of(seen);
            if matcher.is_protected(path) != wants_protected || is_split || !is_apart {
                continue;
            }
            within.insert(&**name);
            around.extend(names_above(name));
            taken.push(Watched {
                name: Arc::clone(name),
                cgroup: seen.cgroup.clone(),
                is_protected: wants_protected,
                is_untouchable: holds_ours(seen)
                    || self_and_above(path).any(|path| matcher.is_spared(path)),
                refaulted_pages: view.found_refaulted_bytes / PAGE_BYTES,
            });
        }
    }
    taken
}

/// A cgroup at the last tick.
#[derive(Debug)]
struct Demand {
    /// Memory mapped by its processes.
    mapped_bytes: u64,
    /// Its memory including swap, as charged to it: also what no process maps (files, tmpfs,
    /// sockets).
    held_bytes: u64,
    /// Its refaults so far.
    refaulted_bytes: u64,
    /// The memory that it demanded between the last two ticks that say something about that.
    asked_bytes: u64,
    cgroup: Option<Cgroup>,
    /// Whether it is a container or a pod.
    is_container: bool,
}

/// The demand for memory of every observed cgroup.
#[derive(Debug, Default)]
pub struct Demands(HashMap<Arc<str>, Demand>);

impl Demand {
    /// The memory demanded since an earlier tick; a new cgroup demanded all it has.
    fn since(&self, before: Option<&Demand>) -> u64 {
        let held_bytes = before.map_or(0, |before| before.held_bytes);
        let refaulted_bytes = before.map_or(0, |before| before.refaulted_bytes);
        let grown_bytes = self.held_bytes.saturating_sub(held_bytes);
        grown_bytes.saturating_add(self.refaulted_bytes.saturating_sub(refaulted_bytes))
    }
}

impl Demands {
    /// Takes in the results of a tick. `counts` is false if the time since the last one says
    /// nothing about who demands memory: what was known stays.
    pub fn update(&mut self, seen: &[Seen], views: &[SubjectView], counts: bool) {
        let before = std::mem::take(&mut self.0);
        for (seen, view) in seen.iter().zip(views).filter(|(_, view)| view.is_cgroup) {
            let resident = view.resident_bytes();
            let mapped_bytes = resident[0].saturating_add(resident[1]);
            let cgroup = seen.cgroup.as_ref();
            let charged_bytes = cgroup.and_then(|of| of.usage_bytes().ok()?);
            let mut demand = Demand {
                mapped_bytes,
                held_bytes: charged_bytes
                    .unwrap_or(mapped_bytes)
                    .saturating_add(view.swapped_bytes),
                refaulted_bytes: view.found_refaulted_bytes,
                asked_bytes: 0,
                cgroup: seen.cgroup.clone(),
                is_container: seen.container.is_some(),
            };
            let before = before.get(&view.name);
            demand.asked_bytes = if counts {
                demand.since(before)
            } else {
                before.map_or(0, |before| before.asked_bytes)
            };
            self.0.insert(Arc::clone(&view.name), demand);
        }
    }

    /// Memory mapped by its processes at the last tick.
    pub fn mapped_bytes(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |demand| demand.mapped_bytes)
    }

    /// The cgroup, if the last tick found it.
    pub fn cgroup(&self, name: &str) -> Option<Cgroup> {
        self.0.get(name)?.cgroup.clone()
    }

    /// The lowest cgroup at or below the culprit with almost all of the culprit's demand: a slice
    /// is not held back because of one of its services. Nor is it because of several: in a cgroup
    /// of `strangers`, the one that demands most is held back alone.
    pub fn narrow(
        &self,
        guilty: &Arc<str>,
        is_held: impl Fn(&str) -> bool,
        strangers: impl Fn(&str) -> bool,
    ) -> Arc<str> {
        let (mut lowest, mut all) = (guilty, self.asked_bytes(guilty));
        loop {
            let causes_it = |(name, asked): &(&Arc<str>, u64)| {
                let share = if is_held(name) {
                    STAY_SHARE
                } else {
                    NARROW_SHARE
                };
                all > 0 && *asked as f64 >= all as f64 * share
            };
            // Where one cgroup shrinks, several others may have almost all: the greatest counts.
            let cause = self.below(lowest).filter(causes_it).max_by_key(greatest);
            if let Some((name, _)) = cause {
                lowest = name;
                continue;
            }
            let most = self.greatest_of(lowest).filter(|_| strangers(lowest));
            let Some((name, asked)) = most else {
                return Arc::clone(lowest);
            };
            // Below it, its own demand counts: what other strangers ask for makes nobody in it
            // guilty.
            (lowest, all) = (name, asked);
        }
    }

    /// The cgroup in this one that demands most, if together they cause almost all of its demand.
    fn greatest_of(&self, name: &str) -> Option<(&Arc<str>, u64)> {
        let is_child = |(below, _): &(&Arc<str>, u64)| {
            let mut between = names_above(below).filter(|of| is_within(of, name));
            !between.any(|of| of != name && of != &***below && self.0.contains_key(of))
        };
        let children: Vec<(&Arc<str>, u64)> = self.below(name).filter(is_child).collect();
        let asked = children.iter().map(|(_, asked)| *asked);
        let all = self.asked_bytes(name) as f64;
        let is_theirs = asked.fold(0, u64::saturating_add) as f64 >= all * NARROW_SHARE;
        let most = children.into_iter().max_by_key(greatest);
        most.filter(|(_, asked)| *asked > 0 && is_theirs)
    }

    /// All cgroups below this one, and what they demanded.
    fn below(&self, name: &str) -> impl Iterator<Item = (&Arc<str>, u64)> {
        let all = self.0.iter().map(|(of, demand)| (of, demand.asked_bytes));
        all.filter(move |(of, _)| is_within(of, name) && &***of != name)
    }

    fn asked_bytes(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |demand| demand.asked_bytes)
    }

    /// Whether it is a container or a pod.
    pub fn is_container(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|demand| demand.is_container)
    }

    /// The lowest cgroup at or below the culprit that holds both `part` and all that is held back
    /// in the culprit, if that is more than a few others.
    pub fn holding<'a>(
        &self,
        guilty: &str,
        part: &str,
        held: impl Iterator<Item = &'a Arc<str>>,
    ) -> Option<Arc<str>> {
        let others = held.filter(|name| &***name != part && is_within(name, guilty));
        let others: Vec<&Arc<str>> = others.collect();
        let holds_all =
            |name: &str| is_within(part, name) && others.iter().all(|other| is_within(other, name));
        let all = self.0.keys().filter(|name| is_within(name, guilty));
        let lowest = all
            .filter(|name| holds_all(name))
            .max_by_key(|name| name.len());
        lowest.filter(|_| others.len() >= HELD_MAX).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_on_from_cgroup_to_cgroup_is_held_as_a_whole() {
        let names = [
            "/s",
            "/s/user",
            "/s/user/a",
            "/s/user/b",
            "/s/user/c",
            "/s/x",
        ]
        .map(Arc::from);
        let demand = || Demand {
            mapped_bytes: 0,
            held_bytes: 0,
            refaulted_bytes: 0,
            asked_bytes: 0,
            cgroup: None,
            is_container: false,
        };
        let demands = Demands(names.iter().cloned().map(|name| (name, demand())).collect());
        let [_, user, a, b, c, x] = &names;
        let holding = |part: &str, held: &[&Arc<str>]| {
            let whole = demands.holding("/s", part, held.iter().copied());
            whole.map(|name| name.to_string())
        };
        assert_eq!(holding("/s/user/b", &[a]), None);
        assert_eq!(holding("/s/user/b", &[a, b]), None, "it is one of two");
        assert_eq!(holding("/s/user/c", &[a, b]).as_deref(), Some("/s/user"));
        // What is held as a whole stays so, and what is elsewhere does not count.
        let all = [a, b, user, &Arc::from("/other/d")];
        assert_eq!(holding("/s/user/c", &all).as_deref(), Some("/s/user"));
        assert_eq!(holding("/s/user", &all).as_deref(), Some("/s/user"));
        assert_eq!(holding("/s/x", &[a, b, c, x]).as_deref(), Some("/s"));
    }

    #[test]
    fn names_above_end_with_the_name() {
        let all: Vec<&str> = names_above("/a/b c/d").collect();
        assert_eq!(all, ["/a", "/a/b c", "/a/b c/d"]);
        assert_eq!(names_above("7 (sh)").collect::<Vec<_>>(), ["7 (sh)"]);
    }
}
