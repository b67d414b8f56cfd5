// SPDX-License-Identifier: Apache-2.0
//! The contents of the files: the engine's working-set reports, based on what the daemon observed.
//!
//! The hub's settings are authoritative: whether a file or the configuration changes them, the
//! reports follow before the next read or write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agewise_policy::workingset::report::{
    File, GroupFile, Lruvecs, NodeFile, Notice, ReportError, Reports, Tick,
};
use agewise_policy::workingset::{Histogram, OldestPages};

use crate::state::{Hub, ReportSetting, Scope, Settings, Snapshot, SubjectView};

/// Identifies a cgroup: its path below the hierarchy.
pub type Group = Arc<str>;
/// A file of the reports, by place and kind.
pub type ReportFile = File<Group>;

/// The root of the hierarchy, which stands for the machine.
const ROOT: &str = "/";

/// Reads and writes report files, from any thread.
pub struct Source {
    hub: Hub,
    adapted: Mutex<Adapted>,
    known: Mutex<Known>,
    clock: fn() -> u64,
    look_timeout: Duration,
}

/// The reports, and the nodes, cgroups and settings that they have been adapted to.
struct Adapted {
    reports: Reports<Group>,
    to: Option<(Arc<Snapshot>, Arc<Settings>)>,
}

/// A snapshot, and where its cgroups are: there are several files of each.
#[derive(Clone)]
struct Known {
    snapshot: Arc<Snapshot>,
    at: Arc<HashMap<Group, usize>>,
}

impl Known {
    fn new(snapshot: Arc<Snapshot>) -> Self {
        let subjects = snapshot.subjects.iter().enumerate();
        let cgroups = subjects.filter(|(_, subject)| subject.is_cgroup);
        let at = cgroups.map(|(at, subject)| (Arc::clone(&subject.name), at));
        Known {
            at: Arc::new(at.collect()),
            snapshot,
        }
    }
}

impl Source {
    /// Files for a hub, with ages by `clock` (ms). If a histogram needs a new look, a read waits
    /// for the daemon at most `look_timeout`, and then returns the histogram of the last look.
    pub fn new(hub: Hub, clock: fn() -> u64, look_timeout: Duration) -> Self {
        let known = Known::new(hub.snapshot());
        let reports = Reports::new(
            known.snapshot.nodes.clone(),
            Some(Arc::from(ROOT)),
            Tick::default(),
            OldestPages::AtLeast,
        );
        Source {
            hub,
            adapted: Mutex::new(Adapted { reports, to: None }),
            known: Mutex::new(known),
            clock,
            look_timeout,
        }
    }

    /// The hub with the contents.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The nodes that have memory.
    pub fn nodes(&self) -> Vec<u32> {
        self.hub.snapshot().nodes.clone()
    }

    /// The observed cgroups, in the order of their paths. The root has no files.
    pub fn groups(&self) -> Vec<Group> {
        let snapshot = self.hub.snapshot();
        let cgroups = snapshot.subjects.iter().filter(|subject| subject.is_cgroup);
        cgroups
            .map(|subject| Arc::clone(&subject.name))
            .filter(|name| &**name != ROOT)
            .collect()
    }

    /// The files of all nodes and cgroups.
    pub fn files(&self) -> Vec<ReportFile> {
        let nodes = self.nodes().into_iter();
        let nodes = nodes.flat_map(|node| NodeFile::ALL.map(|kind| File::Node(node, kind)));
        let groups = self.groups().into_iter();
        let groups = groups.flat_map(|group| {
            let of = |kind| File::Group(Arc::clone(&group), kind);
            GroupFile::ALL.map(of)
        });
        nodes.chain(groups).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If its node or cgroup is gone.
    pub fn read(&self, file: &ReportFile) -> Result<String, ReportError> {
        let (text, wants_look) = self.read_known(file)?;
        if !wants_look {
            return Ok(text);
        }
        // Without the lock: others can read meanwhile, and share the look.
        self.hub.refreshed(self.look_timeout);
        self.read_known(file).map(|(text, _)| text)
    }

    fn read_known(&self, file: &ReportFile) -> Result<(String, bool), ReportError> {
        let mut world = self.world();
        let text = self.adapted(&world).reports.read(file, &mut world)?;
        Ok((text, world.wants_look))
    }

    /// Writes a file. A setting takes effect at once, for every reader.
    ///
    /// # Errors
    /// As for the kernel's files: see [`ReportError::errno`].
    pub fn write(&self, file: &ReportFile, text: &[u8]) -> Result<(), ReportError> {
        let world = self.world();
        let reports = &mut self.adapted(&world).reports;
        reports.write(file, text, &world)?;
        let (group, nodes) = match file {
            File::Node(node, _) => (None, vec![*node]),
            File::Group(group, _) => (Some(group), reports.nodes().collect()),
        };
        for node in nodes {
            let intervals = reports.intervals(node).cloned().unwrap_or_default();
            if group.is_none() && self.hub.settings().intervals_of(node) != intervals {
                self.hub.set_intervals(node, intervals);
            }
            let scope = Scope {
                cgroup: group.cloned(),
                node,
            };
            let setting = setting_of(reports, group, node);
            let before = self.hub.settings().reports.get(&scope).copied();
            if before.unwrap_or_default() != setting {
                self.hub.set_report(scope, |set| *set = setting);
            }
        }
        Ok(())
    }

    /// The kernel reclaims from this scope: returns the pollers to wake.
    pub fn pressure(&self, scope: &Scope) -> Vec<Notice<Group>> {
        let mut world = self.world();
        let reports = &mut self.adapted(&world).reports;
        // The daemon only reports reclaim beyond the first pass.
        reports.pressure(scope.cgroup.as_ref(), scope.node, 0, &mut world)
    }

    /// One round of the aging thread: refreshes what has expired, and requests a look if ages are
    /// not recent enough. Returns how long it may sleep; `None` until something is switched on.
    pub fn age(&self) -> Option<Duration> {
        let mut world = self.world();
        let reports = &mut self.adapted(&world).reports;
        if reports
            .next_aging_ms()
            .is_some_and(|at_ms| at_ms <= world.now_ms)
        {
            reports.age(&mut world);
        }
        if world.wants_look {
            self.hub.wake();
        }
        let at_ms = reports.next_aging_ms()?;
        Some(Duration::from_millis(at_ms.saturating_sub(world.now_ms)))
    }

    fn world(&self) -> World {
        let snapshot = self.hub.snapshot();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&known.snapshot, &snapshot) {
            *known = Known::new(snapshot);
        }
        let Known { snapshot, at } = known.clone();
        World {
            snapshot,
            at,
            now_ms: (self.clock)(),
            wants_look: false,
        }
    }

    /// The reports, after adapting them to the current nodes, cgroups and settings.
    fn adapted(&self, world: &World) -> MutexGuard<'_, Adapted> {
        let mut adapted = self.adapted.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = self.hub.settings();
        let is_current = adapted.to.as_ref().is_some_and(|(snapshot, known)| {
            Arc::ptr_eq(snapshot, &world.snapshot) && Arc::ptr_eq(known, &settings)
        });
        if !is_current {
            adapted.adapt(world, &settings);
            adapted.to = Some((Arc::clone(&world.snapshot), settings));
        }
        adapted
    }
}

impl Adapted {
    fn adapt(&mut self, world: &World, settings: &Settings) {
        let reports = &mut self.reports;
        let known: Vec<u32> = reports.nodes().collect();
        for &node in known
            .iter()
            .filter(|node| !world.snapshot.nodes.contains(node))
        {
            reports.set_online(node, false);
        }
        for &node in &world.snapshot.nodes {
            reports.set_online(node, true);
            let intervals = settings.intervals_of(node);
            if reports.intervals(node) != Some(&intervals) {
                // Cannot fail: the node was set online above.
                let _ = reports.set_intervals(node, intervals);
            }
        }
        reports.retain_groups(|group| world.subject(group).is_some());
        let mut scopes: Vec<Scope> = settings.reports.keys().cloned().collect();
        scopes.extend(
            world
                .snapshot
                .nodes
                .iter()
                .map(|&node| Scope { cgroup: None, node }),
        );
        scopes.extend(reports.groups().map(|(group, node)| Scope {
            cgroup: Some(Arc::clone(group)),
            node,
        }));
        for scope in scopes {
            let group = scope.cgroup.as_ref();
            if group.is_some_and(|group| world.subject(group).is_none()) {
                continue;
            }
            let wanted = settings.reports.get(&scope).copied().unwrap_or_default();
            if setting_of(reports, group, scope.node) != wanted {
                let (refresh_ms, threshold_ms) =
                    (wanted.refresh_interval_ms, wanted.report_threshold_ms);
                // The setting of a node that is offline takes effect when it comes back.
                let _ = reports.set(
                    group,
                    scope.node,
                    refresh_ms.into(),
                    threshold_ms.into(),
                    world.now_ms,
                );
            }
        }
    }
}

/// The settings of a report in the format of the hub.
fn setting_of(reports: &Reports<Group>, group: Option<&Group>, node: u32) -> ReportSetting {
    let (refresh_ms, threshold_ms) = reports.settings(group, node);
    let in_32_bits = |ms: u64| u32::try_from(ms).unwrap_or(u32::MAX);
    ReportSetting {
        refresh_interval_ms: in_32_bits(refresh_ms),
        report_threshold_ms: in_32_bits(threshold_ms),
    }
}

/// A snapshot as the engine sees it.
struct World {
    snapshot: Arc<Snapshot>,
    at: Arc<HashMap<Group, usize>>,
    now_ms: u64,
    /// Whether something was too old to report.
    wants_look: bool,
}

impl World {
    fn subject(&self, group: &str) -> Option<&SubjectView> {
        Some(&self.snapshot.subjects[*self.at.get(group)?])
    }

    /// Subjects that together are everything observed: the topmost cgroups; processes only if there
    /// are no cgroups, since their memory would count twice.
    fn tops(&self) -> Vec<Group> {
        let mut tops: Vec<Group> = Vec::new();
        for subject in self
            .snapshot
            .subjects
            .iter()
            .filter(|subject| subject.is_cgroup)
        {
            // Those below it come directly after it.
            let is_below = tops.last().is_some_and(|top| {
                let rest = subject.name.strip_prefix(&**top);
                &**top == ROOT || rest.is_some_and(|rest| rest.starts_with('/'))
            });
            if !is_below {
                tops.push(Arc::clone(&subject.name));
            }
        }
        if tops.is_empty() {
            let names = self
                .snapshot
                .subjects
                .iter()
                .map(|subject| Arc::clone(&subject.name));
            tops.extend(names);
        }
        tops
    }

    fn any_subject(&self, name: &str) -> Option<&SubjectView> {
        self.subject(name).or_else(|| self.snapshot.subject(name))
    }
}

impl Lruvecs for World {
    type Group = Group;

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn subtree(&self, root: Option<&Group>) -> Vec<Group> {
        match root {
            // A subject already includes everything below it.
            Some(group) => self
                .subject(group)
                .map(|s| Arc::clone(&s.name))
                .into_iter()
                .collect(),
            None => self.tops(),
        }
    }

    fn youngest_birth_ms(&self, group: &Group, node: u32) -> Option<u64> {
        // Each look is at all of a subject.
        let node = self.any_subject(group)?.node(node);
        node.map(|_| self.snapshot.time_ms)
    }

    fn age(&mut self, _group: &Group, _node: u32) {
        self.wants_look = true;
    }

    fn add_ages(&self, group: &Group, node: u32, _oldest: OldestPages, into: &mut Histogram) {
        if let Some(view) = self
            .any_subject(group)
            .and_then(|subject| subject.node(node))
        {
            // It has the bounds of this report, unless these were set since the last tick.
            into.add_spread(&view.report);
        }
    }

    fn unit_bytes(&self) -> u64 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;
    use crate::state::Settings;

    #[test]
    fn cgroups_are_indexed_once_per_snapshot() {
        let hub = Hub::new(Settings::default());
        hub.publish(demo::snapshot(1, 1000));
        let source = Source::new(hub.clone(), || 1000, Duration::ZERO);
        let first = source.world().at;
        for file in source.files() {
            source.read(&file).unwrap();
        }
        assert!(Arc::ptr_eq(&source.world().at, &first));
        hub.publish(demo::snapshot(2, 2000));
        assert!(!Arc::ptr_eq(&source.world().at, &first));
    }
}
