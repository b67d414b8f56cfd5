// SPDX-License-Identifier: Apache-2.0
//! Working-set reports: histograms of age by node and memory cgroup, kept fresh, with
//! notifications under pressure, behind the files of the kernel's proposed interface.
//!
//! Source: "mm: workingset reporting" v4, patches 1 to 5 and 9. The same code serves the lab, whose
//! simulated kernel has these files, and the daemon on a real machine. It differs from the posted
//! patches where they are wrong: shares are conserved exactly, `N0` without `=` is invalid,
//! notifications have their own clock, a global reclaim (no cgroup, or the root) notifies the node,
//! a failing refresh does not spin, a shorter interval wakes a sleeping aging thread, and the
//! thread also refreshes the receivers of balloons, which have their own bins.

mod error;
mod files;
mod lruvecs;
mod number;
mod receiver;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::{Intervals, OldestPages};

pub use error::ReportError;
pub use files::{File, GroupFile, NodeFile};
pub use lruvecs::Lruvecs;
pub use number::Tick;
pub use receiver::ReceiverId;
pub use text::{
    format_intervals, format_ms, format_node_ms, parse_intervals, parse_ms, parse_node_ms,
};
pub use view::{DEF_PRIORITY, MIN_SLEEP_MS};

use receiver::Receiver;
use view::{Subject, View};

/// Who is notified of pressure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice<G> {
    /// Whoever polls the node's `page_age`.
    Node(u32),
    /// Whoever polls the cgroup's `page_age`.
    Group(G),
    /// A receiver; its report is up to date.
    Receiver(ReceiverId),
}

/// A node: the bins for everything on it, and its own report.
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
    /// Only cgroups whose files were written to.
    groups: BTreeMap<G, BTreeMap<u32, View>>,
    receivers: BTreeMap<ReceiverId, Receiver>,
    next_aging_ms: Option<u64>,
}

impl<G: Clone + Ord> Reports<G> {
    /// Reports of these nodes, all switched off. `root` is the cgroup that stands for the whole
    /// machine, like no cgroup at all.
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

    /// Adds a node whose memory came online, or forgets one whose memory went offline.
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

    /// Sets the bins of a node as its file would, for a configuration.
    ///
    /// # Errors
    /// [`ReportError::NodeOffline`] if the node has no memory.
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

    /// Reads a file. An expired histogram is refreshed first; one that is switched off is empty.
    ///
    /// # Errors
    /// If the node or the cgroup is gone.
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

    /// Writes a file; the new value takes effect at once.
    ///
    /// # Errors
    /// As in the document: see [`ReportError::errno`].
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

    /// Refresh interval and threshold of a cgroup on a node, or of the node itself (`None`), ms.
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

    /// Sets interval and threshold as the files would, for a configuration.
    ///
    /// # Errors
    /// [`ReportError::NodeOffline`] if the node has no memory.
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

    /// Frees what is switched off, so that it costs nothing.
    fn forget_unset(&mut self, group: &G) {
        if let Some(views) = self.groups.get_mut(group) {
            views.retain(|_, view| !view.is_unset());
            if views.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    /// When the aging thread must call [`age`](Self::age) next; `None` while nothing is switched
    /// on. A write may bring the time forward, so a sleeping thread must check again after one.
    pub fn next_aging_ms(&self) -> Option<u64> {
        self.next_aging_ms
    }

    fn wake_aging(&mut self, now_ms: u64) {
        self.next_aging_ms = Some(
            self.next_aging_ms
                .map_or(now_ms, |next_ms| next_ms.min(now_ms)),
        );
    }

    /// One round of the aging thread: refreshes everything that has expired, so that no reader has
    /// to wait, and plans the next round.
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

    /// Reclaim of `group` (of the machine if `None` or the root) on a node has reached `priority`.
    /// Returns who must be notified. The first pass, at [`DEF_PRIORITY`], is no sign of pressure.
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
