// SPDX-License-Identifier: Apache-2.0
//! The files of the interface, by place and kind.

/// A file in `nodeX/workingset_report`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeFile {
    /// Bounds of the age bins, for the node and all cgroups on it.
    PageAgeIntervals,
    /// How old a report may become, ms; 0 switches it off.
    RefreshInterval,
    /// How old a report must be for pressure to be reported, ms; 0 means never.
    ReportThreshold,
    /// The histogram.
    PageAge,
}

impl NodeFile {
    /// All of them, in the order of the document.
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
    /// Like [`NodeFile::RefreshInterval`], by node.
    RefreshInterval,
    /// Like [`NodeFile::ReportThreshold`], by node.
    ReportThreshold,
    /// The histograms of all nodes on which it is switched on.
    PageAge,
}

impl GroupFile {
    /// All of them, in the order of the document.
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

/// A file, by place and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum File<G> {
    /// A file of a node.
    Node(u32, NodeFile),
    /// A file of a cgroup; the root has none.
    Group(G, GroupFile),
}

impl<G> File<G> {
    /// Whether it accepts writes.
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
