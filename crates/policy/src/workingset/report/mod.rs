// SPDX-License-Identifier: Apache-2.0
//! Working-set reports: histograms of age by node and memory cgroup, kept fresh, with
//! notifications under pressure, behind the files of the kernel's proposed interface.
//!
//! Source: "mm: workingset reporting" v4, patches 1 to 5 and 9. The same code serves the lab, whose
//! simulated kernel has the files, and the daemon on a real machine. It differs from the posted
//! patches where these are wrong: shares are conserved exactly, a `N0` without `=` is invalid,
//! notifications have a clock of their own, a global reclaim (no cgroup, or the root) notifies the
//! node, a failing refresh does not spin, a shorter interval wakes a sleeping aging thread, and the
//! thread refreshes the receivers of balloons as well, which have bins of their own.

mod error;
mod lruvecs;
mod number;
mod receiver;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::{Histogram, Intervals, OldestPages};

pub use error::ReportError;
pub use lruvecs::Lruvecs;
pub use number::Tick;
pub use receiver::ReceiverId;
pub use text::{
    format_intervals, format_ms, format_node_ms, parse_intervals, parse_ms, parse_node_ms,
};
pub use view::{DEF_PRIORITY, MIN_SLEEP_MS};

use receiver::Receiver;
use view::{Subject, View};

/// A file of `nodeX/workingset_report`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeFile {
    /// Bounds of the age bins, for the node and all cgroups on it.
    PageAgeIntervals,
    /// How old a report may become, ms; 0 switches it off.
    RefreshInterval,
    /// How old a report must be for pressure to be reported, ms; 0: never.
    ReportThreshold,
    /// The histogram.
    PageAge,
}

impl NodeFile {
    /// All, in the order of the document.
    pub const ALL: [NodeFile; 4] = [
        NodeFile::PageAgeIntervals,
        NodeFile::RefreshInterval,
        NodeFile::ReportThreshold,
        NodeFile::PageAge,
    ];

    /// Its name in the directory.
    pub fn name(self) -> &'static str {
        match self {
            NodeFile::PageAgeIntervals => "page_age_intervals",
            NodeFile::RefreshInterval => "refresh_interval",
            NodeFile::ReportThreshold => "report_threshold",
            NodeFile::PageAge => "page_age",
        }
    }
}

/// A file `memory.workingset.*` of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupFile {
    /// As [`NodeFile::RefreshInterval`], by node.
    RefreshInterval,
    /// As [`NodeFile::ReportThreshold`], by node.
    ReportThreshold,
    /// The histograms of all nodes that are switched on.
    PageAge,
}

impl GroupFile {
    /// All, in the order of the document.
    pub const ALL: [GroupFile; 3] = [
        GroupFile::RefreshInterval,
        GroupFile::ReportThreshold,
        GroupFile::PageAge,
    ];

    /// Its name in the cgroup's directory.
    pub fn name(self) -> &'static str {
        match self {
            GroupFile::RefreshInterval => "memory.workingset.refresh_interval",
            GroupFile::ReportThreshold => "memory.workingset.report_threshold",
            GroupFile::PageAge => "memory.workingset.page_age",
        }
    }
}

/// A file by place and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum File<G> {
    /// Of a node.
    Node(u32, NodeFile),
    /// Of a cgroup; the root has none.
    Group(G, GroupFile),
}

impl<G> File<G> {
    /// Whether it takes writes.
    pub fn is_writable(&self) -> bool {
        !self.is_page_age()
    }

    /// Whether it is a histogram, which can be polled.
    pub fn is_page_age(&self) -> bool {
        matches!(
            self,
            File::Node(_, NodeFile::PageAge) | File::Group(_, GroupFile::PageAge)
        )
    }
}

/// A receiver of pressure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice<G> {
    /// Who polls the node's `page_age`.
    Node(u32),
    /// Who polls the cgroup's `page_age`.
    Group(G),
    /// A receiver; its report is up to date.
    Receiver(ReceiverId),
}

/// A node: bins for all on it, and its own report.
#[derive(Clone, Debug, Default)]
struct Node {
    intervals: Intervals,
    view: View,
}

/// The reports of a machine.
#[derive(Clone, Debug)]
pub struct Reports<G> {
    tick: Tick,
    oldest: OldestPages,
    root: Option<G>,
    nodes: BTreeMap<u32, Node>,
    /// Only those that were written to.
    groups: BTreeMap<G, BTreeMap<u32, View>>,
    receivers: BTreeMap<ReceiverId, Receiver>,
    next_aging_ms: Option<u64>,
}

impl<G: Clone + Ord> Reports<G> {
    /// Reports of these nodes, all off. `root` is the cgroup that means the whole machine, like no
    /// cgroup at all.
    pub fn new(
        nodes: impl IntoIterator<Item = u32>,
        root: Option<G>,
        tick: Tick,
        oldest: OldestPages,
    ) -> Self {
        Reports {
            tick,
            oldest,
            root,
            nodes: nodes
                .into_iter()
                .map(|node| (node, Node::default()))
                .collect(),
            groups: BTreeMap::new(),
            receivers: BTreeMap::new(),
            next_aging_ms: None,
        }
    }

    /// The nodes that have memory, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.keys().copied()
    }

    /// A node's memory came or went. What is known of one that goes is forgotten.
    pub fn set_online(&mut self, node: u32, online: bool) {
        if online {
            self.nodes.entry(node).or_default();
        } else {
            self.nodes.remove(&node);
            self.groups.values_mut().for_each(|views| {
                views.remove(&node);
            });
            self.receivers.retain(|_, receiver| receiver.node != node);
        }
    }

    /// Drops every cgroup for which `exists` is false.
    pub fn retain_groups(&mut self, exists: impl Fn(&G) -> bool) {
        self.groups.retain(|group, _| exists(group));
    }

    /// Sets the bins of a node without its file, for a configuration.
    ///
    /// # Errors
    /// [`ReportError::NodeOffline`].
    pub fn set_intervals(&mut self, node: u32, intervals: Intervals) -> Result<(), ReportError> {
        self.node_mut(node)?.intervals = intervals;
        if let Some(own) = self.nodes.get_mut(&node) {
            own.view.expire();
        }
        for views in self.groups.values_mut() {
            if let Some(view) = views.get_mut(&node) {
                view.expire();
            }
        }
        Ok(())
    }

    /// The bins of a node.
    pub fn intervals(&self, node: u32) -> Option<&Intervals> {
        self.nodes.get(&node).map(|node| &node.intervals)
    }

    /// Reads a file. A histogram that has expired is refreshed first; one that is off is empty.
    ///
    /// # Errors
    /// The node or the cgroup is gone.
    pub fn read<L: Lruvecs<Group = G>>(
        &mut self,
        file: &File<G>,
        world: &mut L,
    ) -> Result<String, ReportError> {
        match file {
            File::Node(node, kind) => self.read_node(*node, *kind, world),
            File::Group(group, kind) => self.read_group(group, *kind, world),
        }
    }

    fn read_node<L: Lruvecs<Group = G>>(
        &mut self,
        node: u32,
        kind: NodeFile,
        world: &mut L,
    ) -> Result<String, ReportError> {
        let oldest = self.oldest;
        let Node { intervals, view } = self.node_mut(node)?;
        Ok(match kind {
            NodeFile::PageAgeIntervals => format_intervals(intervals),
            NodeFile::RefreshInterval => format_ms(view.refresh_ms),
            NodeFile::ReportThreshold => format_ms(view.threshold_ms),
            NodeFile::PageAge => {
                let subject = Subject {
                    root: None,
                    node,
                    intervals,
                    oldest,
                };
                match view.refresh(world, &subject) {
                    Some(_) => page_age(view),
                    None => String::new(),
                }
            }
        })
    }

    fn read_group<L: Lruvecs<Group = G>>(
        &mut self,
        group: &G,
        kind: GroupFile,
        world: &mut L,
    ) -> Result<String, ReportError> {
        self.check_group(group, world)?;
        let setting = |of: fn(&View) -> u64| {
            let views = self.groups.get(group);
            format_node_ms(
                self.nodes
                    .keys()
                    .map(|node| (*node, views.and_then(|views| views.get(node)).map_or(0, of))),
            )
        };
        match kind {
            GroupFile::RefreshInterval => return Ok(setting(|view| view.refresh_ms)),
            GroupFile::ReportThreshold => return Ok(setting(|view| view.threshold_ms)),
            GroupFile::PageAge => {}
        }
        let mut text = String::new();
        for (&node, view) in self.groups.get_mut(group).into_iter().flatten() {
            let Some(of_node) = self.nodes.get(&node) else {
                continue;
            };
            let subject = Subject {
                root: Some(group),
                node,
                intervals: &of_node.intervals,
                oldest: self.oldest,
            };
            if view.refresh(world, &subject).is_some() {
                text.push_str(&format!("N{node}\n"));
                text.push_str(&page_age(view));
            }
        }
        Ok(text)
    }

    /// Writes a file; the new value counts at once.
    ///
    /// # Errors
    /// As the document says it: see [`ReportError::errno`].
    pub fn write<L: Lruvecs<Group = G>>(
        &mut self,
        file: &File<G>,
        text: &[u8],
        world: &L,
    ) -> Result<(), ReportError> {
        match file {
            File::Node(node, kind) => self.write_node(*node, *kind, text, world.now_ms()),
            File::Group(group, kind) => {
                self.check_group(group, world)?;
                self.write_group(group, *kind, text, world.now_ms())
            }
        }
    }

    fn write_node(
        &mut self,
        node: u32,
        kind: NodeFile,
        text: &[u8],
        now_ms: u64,
    ) -> Result<(), ReportError> {
        let tick = self.tick;
        match kind {
            NodeFile::PageAgeIntervals => {
                self.node_mut(node)?;
                self.set_intervals(node, parse_intervals(text, tick)?)?;
            }
            NodeFile::RefreshInterval => {
                let view = &mut self.node_mut(node)?.view;
                if view.set_refresh_ms(parse_ms(text, tick)?) {
                    self.wake_aging(now_ms);
                }
            }
            NodeFile::ReportThreshold => {
                self.node_mut(node)?.view.threshold_ms = parse_ms(text, tick)?;
            }
            NodeFile::PageAge => return Err(ReportError::ReadOnly),
        }
        Ok(())
    }

    fn write_group(
        &mut self,
        group: &G,
        kind: GroupFile,
        text: &[u8],
        now_ms: u64,
    ) -> Result<(), ReportError> {
        if kind == GroupFile::PageAge {
            return Err(ReportError::ReadOnly);
        }
        let (node, ms) = parse_node_ms(text, self.tick)?;
        let (mut refresh_ms, mut threshold_ms) = self.settings(Some(group), node);
        match kind {
            GroupFile::RefreshInterval => refresh_ms = ms,
            GroupFile::ReportThreshold | GroupFile::PageAge => threshold_ms = ms,
        }
        self.set(Some(group), node, refresh_ms, threshold_ms, now_ms)
    }

    /// Refresh interval and threshold, ms, of a cgroup on a node, or (no cgroup) of the node.
    pub fn settings(&self, group: Option<&G>, node: u32) -> (u64, u64) {
        let view = match group {
            Some(group) => self.groups.get(group).and_then(|views| views.get(&node)),
            None => self.nodes.get(&node).map(|node| &node.view),
        };
        view.map_or((0, 0), |view| (view.refresh_ms, view.threshold_ms))
    }

    /// The cgroups with any setting, with their nodes.
    pub fn groups(&self) -> impl Iterator<Item = (&G, u32)> {
        let nodes = |(group, views)| {
            let of = move |node: &u32| (group, *node);
            BTreeMap::<u32, View>::keys(views).map(of)
        };
        self.groups.iter().flat_map(nodes)
    }

    /// Sets interval and threshold without a file, for a configuration.
    ///
    /// # Errors
    /// [`ReportError::NodeOffline`].
    pub fn set(
        &mut self,
        group: Option<&G>,
        node: u32,
        refresh_ms: u64,
        threshold_ms: u64,
        now_ms: u64,
    ) -> Result<(), ReportError> {
        let of_node = self.nodes.get_mut(&node);
        let of_node = of_node.ok_or(ReportError::NodeOffline { node })?;
        let view = match group {
            Some(group) => {
                let views = self.groups.entry(group.clone()).or_default();
                views.entry(node).or_default()
            }
            None => &mut of_node.view,
        };
        view.threshold_ms = threshold_ms;
        let wakes = view.set_refresh_ms(refresh_ms);
        if let Some(group) = group {
            self.forget_unset(group);
        }
        if wakes {
            self.wake_aging(now_ms);
        }
        Ok(())
    }

    /// What is off costs nothing.
    fn forget_unset(&mut self, group: &G) {
        if let Some(views) = self.groups.get_mut(group) {
            views.retain(|_, view| !view.is_unset());
            if views.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    /// When the aging thread is to run [`age`](Self::age) next; `None`: not before something is
    /// switched on. A write may bring it forward: a thread that sleeps must look again after one.
    pub fn next_aging_ms(&self) -> Option<u64> {
        self.next_aging_ms
    }

    fn wake_aging(&mut self, now_ms: u64) {
        self.next_aging_ms = Some(
            self.next_aging_ms
                .map_or(now_ms, |next_ms| next_ms.min(now_ms)),
        );
    }

    /// One round of the aging thread: brings everything that has expired up to date, so that nobody
    /// who reads has to wait, and plans the next round.
    pub fn age<L: Lruvecs<Group = G>>(&mut self, world: &mut L) {
        let mut next_ms: Option<u64> = None;
        let mut plan = |view: &View, expires_ms: Option<u64>, now_ms: u64| {
            if let Some(expires_ms) = expires_ms {
                let at_ms = view.look_again_ms(expires_ms, now_ms);
                next_ms = Some(next_ms.map_or(at_ms, |next_ms| next_ms.min(at_ms)));
            }
        };
        let oldest = self.oldest;
        for (&node, Node { intervals, view }) in &mut self.nodes {
            let subject = Subject {
                root: None,
                node,
                intervals,
                oldest,
            };
            let expires_ms = view.refresh(world, &subject);
            plan(view, expires_ms, world.now_ms());
        }
        for (group, views) in &mut self.groups {
            for (&node, view) in views {
                let Some(Node { intervals, .. }) = self.nodes.get(&node) else {
                    continue;
                };
                let subject = Subject {
                    root: Some(group),
                    node,
                    intervals,
                    oldest,
                };
                let expires_ms = view.refresh(world, &subject);
                plan(view, expires_ms, world.now_ms());
            }
        }
        for receiver in self.receivers.values_mut() {
            let expires_ms = receiver.refresh(world, oldest);
            plan(&receiver.view, expires_ms, world.now_ms());
        }
        self.next_aging_ms = next_ms;
    }

    /// A reclaim of `group` (`None` or the root: of the machine) on a node has come to `priority`.
    /// Returns the receivers. The first pass, at [`DEF_PRIORITY`], is no sign of pressure.
    pub fn pressure<L: Lruvecs<Group = G>>(
        &mut self,
        group: Option<&G>,
        node: u32,
        priority: u32,
        world: &mut L,
    ) -> Vec<Notice<G>> {
        let mut notices = Vec::new();
        if priority >= DEF_PRIORITY {
            return notices;
        }
        let now_ms = world.now_ms();
        if let Some(group) = group.filter(|group| self.root.as_ref() != Some(group)) {
            let view = self
                .groups
                .get_mut(group)
                .and_then(|views| views.get_mut(&node));
            if view.is_some_and(|view| view.notify(now_ms)) {
                notices.push(Notice::Group(group.clone()));
            }
            return notices;
        }
        if self
            .nodes
            .get_mut(&node)
            .is_some_and(|node| node.view.notify(now_ms))
        {
            notices.push(Notice::Node(node));
        }
        let oldest = self.oldest;
        for (id, receiver) in &mut self.receivers {
            if receiver.node == node && receiver.view.notify(now_ms) {
                receiver.refresh(world, oldest);
                notices.push(Notice::Receiver(*id));
            }
        }
        notices
    }

    /// The last histogram of a node, without refreshing it, in bytes.
    pub fn histogram(&self, node: u32) -> Option<&Histogram> {
        let report = self.nodes.get(&node)?.view.report.as_ref()?;
        report.timestamp_ms.map(|_| &report.histogram)
    }

    fn node_mut(&mut self, node: u32) -> Result<&mut Node, ReportError> {
        self.nodes
            .get_mut(&node)
            .ok_or(ReportError::NodeOffline { node })
    }

    fn check_group<L: Lruvecs<Group = G>>(&self, group: &G, world: &L) -> Result<(), ReportError> {
        if world.subtree(Some(group)).is_empty() {
            return Err(ReportError::GroupGone);
        }
        Ok(())
    }
}

fn page_age(view: &View) -> String {
    view.report
        .as_ref()
        .map_or_else(String::new, |report| report.histogram.to_string())
}
