// SPDX-License-Identifier: Apache-2.0
//! The tree of files: `node0/workingset_report/…` as below `/sys/devices/system/node`, and
//! `cgroup/PATH/memory.workingset.…` as below the mount point of the hierarchy. Cgroups have a
//! directory of their own, so that one called `node0` is not taken for a node.

#[cfg(feature = "fuse")]
use std::collections::BTreeSet;
use std::sync::Arc;

use agewise_policy::workingset::report::{File, GroupFile, NodeFile};

use super::source::{Group, ReportFile, Source};

const NODE: &str = "node";
const REPORT: &str = "workingset_report";
const CGROUP: &str = "cgroup";

/// A place in the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// The top directory.
    Root,
    /// `nodeX`.
    Node(u32),
    /// `nodeX/workingset_report`.
    Report(u32),
    /// A cgroup's directory; `/` is `cgroup` itself.
    Cgroup(Group),
    File(ReportFile),
}

impl Entry {
    /// Whether it is a directory.
    #[cfg(feature = "fuse")]
    pub fn is_dir(&self) -> bool {
        !matches!(self, Entry::File(_))
    }

    /// Whether it exists: nodes and cgroups come and go.
    pub fn exists(&self, source: &Source) -> bool {
        match self {
            Entry::Root => true,
            Entry::Node(node) | Entry::Report(node) | Entry::File(File::Node(node, _)) => {
                source.nodes().contains(node)
            }
            Entry::Cgroup(path) => {
                &**path == "/"
                    || source
                        .groups()
                        .iter()
                        .any(|group| is_at_or_below(group, path))
            }
            Entry::File(File::Group(group, _)) => source.groups().contains(group),
        }
    }

    /// The entry with this name in this directory.
    pub fn child(&self, name: &str, source: &Source) -> Option<Entry> {
        let entry = match self {
            Entry::Root if name == CGROUP => Entry::Cgroup(Arc::from("/")),
            Entry::Root => Entry::Node(node_number(name)?),
            Entry::Node(node) if name == REPORT => Entry::Report(*node),
            Entry::Node(_) | Entry::File(_) => return None,
            Entry::Report(node) => {
                let kind = NodeFile::ALL.into_iter().find(|kind| kind.name() == name)?;
                Entry::File(File::Node(*node, kind))
            }
            Entry::Cgroup(path) => {
                let kind = GroupFile::ALL.into_iter().find(|kind| kind.name() == name);
                match kind {
                    Some(kind) => Entry::File(File::Group(Arc::clone(path), kind)),
                    None => Entry::Cgroup(below(path, name)),
                }
            }
        };
        entry.exists(source).then_some(entry)
    }

    /// The names in this directory, with their entries.
    #[cfg(feature = "fuse")]
    pub fn children(&self, source: &Source) -> Vec<(String, Entry)> {
        match self {
            Entry::Root => {
                let nodes = source.nodes().into_iter();
                let mut children: Vec<(String, Entry)> = nodes
                    .map(|node| (format!("{NODE}{node}"), Entry::Node(node)))
                    .collect();
                children.push((CGROUP.to_owned(), Entry::Cgroup(Arc::from("/"))));
                children
            }
            Entry::Node(node) => vec![(REPORT.to_owned(), Entry::Report(*node))],
            Entry::Report(node) => NodeFile::ALL
                .into_iter()
                .map(|kind| (kind.name().to_owned(), Entry::File(File::Node(*node, kind))))
                .collect(),
            Entry::Cgroup(path) => cgroup_children(path, source),
            Entry::File(_) => Vec::new(),
        }
    }

    /// Its path below the root of the tree.
    pub fn path(&self) -> String {
        match self {
            Entry::Root => String::new(),
            Entry::Node(node) => format!("{NODE}{node}"),
            Entry::Report(node) => format!("{NODE}{node}/{REPORT}"),
            Entry::Cgroup(path) => format!("{CGROUP}{}", path.trim_end_matches('/')),
            Entry::File(File::Node(node, kind)) => {
                format!("{}/{}", Entry::Report(*node).path(), kind.name())
            }
            Entry::File(File::Group(path, kind)) => {
                format!("{}/{}", Entry::Cgroup(Arc::clone(path)).path(), kind.name())
            }
        }
    }

    /// The entry with this path below the root of the tree.
    pub fn find(path: &str, source: &Source) -> Option<Entry> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names
            .into_iter()
            .try_fold(Entry::Root, |entry, name| entry.child(name, source))
    }
}

#[cfg(feature = "fuse")]
fn cgroup_children(path: &Group, source: &Source) -> Vec<(String, Entry)> {
    let mut children = Vec::new();
    let mut names = BTreeSet::new();
    for group in source.groups() {
        if group == *path {
            let file = |kind: GroupFile| Entry::File(File::Group(Arc::clone(path), kind));
            let files = GroupFile::ALL.into_iter();
            children.extend(files.map(|kind| (kind.name().to_owned(), file(kind))));
        } else if is_at_or_below(&group, path) {
            let rest = group[path.trim_end_matches('/').len()..].trim_start_matches('/');
            let name = rest.split('/').next().unwrap_or(rest);
            names.insert(name.to_owned());
        }
    }
    for name in names {
        let entry = Entry::Cgroup(below(path, &name));
        children.push((name, entry));
    }
    children
}

fn below(path: &str, name: &str) -> Group {
    Arc::from(format!("{}/{name}", path.trim_end_matches('/')))
}

fn is_at_or_below(group: &str, path: &str) -> bool {
    let rest = group.strip_prefix(path.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Parses `node12`: digits only, no leading zero, so that each node has one name.
fn node_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NODE)?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{demo, state::Hub};
    use std::time::Duration;

    fn source() -> Source {
        let hub = Hub::new(demo::settings());
        hub.publish(demo::snapshot(1, 100_000));
        Source::new(hub, || 100_000, Duration::ZERO)
    }

    /// Every entry can be found by its path and as a child of its parent.
    #[cfg(feature = "fuse")]
    #[test]
    fn paths_lead_back() {
        let source = source();
        let mut pending = vec![Entry::Root];
        let mut files = Vec::new();
        while let Some(entry) = pending.pop() {
            assert_eq!(Entry::find(&entry.path(), &source), Some(entry.clone()));
            for (name, child) in entry.children(&source) {
                assert_eq!(entry.child(&name, &source), Some(child.clone()));
                assert!(child.exists(&source));
                pending.push(child);
            }
            if !entry.is_dir() {
                files.push(entry.path());
            }
        }
        files.sort();
        assert_eq!(files.len(), 2 * 4 + 4 * 3, "{files:?}");
        assert!(files.contains(&"node1/workingset_report/page_age_intervals".to_owned()));
        assert!(files.contains(&"cgroup/batch/job-2/memory.workingset.page_age".to_owned()));
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let source = source();
        for path in [
            "node2",
            "node00",
            "node",
            "node+1",
            "node0/page_age",
            "workingset_report",
            "cgroup/memory.workingset.page_age",
            "cgroup/we",
            "cgroup/web/x",
            "cgroup/web/memory.workingset.page_age/x",
            "node0/workingset_report/..",
            "cgroup/4711 (redis-server)",
        ] {
            assert_eq!(Entry::find(path, &source), None, "{path}");
        }
    }
}
