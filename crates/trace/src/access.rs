// SPDX-License-Identifier: Apache-2.0
//! What a trace consists of: requests as stored, and the single-page accesses they stand for.

/// Whether an access read or wrote, if recorded in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum AccessKind {
    /// The trace does not say.
    #[default]
    Unknown,
    /// A load, a read, a lookup.
    Read,
    /// A store, a write.
    Write,
}

/// What backs the page, if recorded in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum PageClass {
    /// The trace does not say.
    #[default]
    Unknown,
    /// Anonymous memory: heap, stack, private writable mappings.
    Anon,
    /// A file's page in the page cache.
    File,
}

/// How an access is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum Evidence {
    /// It was seen. In a trace recorded by interval: at some time since the previous look.
    #[default]
    Seen,
    /// It caused a page fault, at exactly this time, also in a trace recorded by interval; whether
    /// something had to be read for it is not known.
    Fault,
    /// It was not seen, but inferred from nearby pages that were seen ([`crate::page_trace`]).
    Inferred,
    /// A page fault for which nothing had to be read.
    MinorFault,
    /// A page fault for which something had to be read.
    MajorFault,
}

impl Evidence {
    /// It is a page fault of any kind.
    #[must_use]
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Evidence::Fault | Evidence::MinorFault | Evidence::MajorFault
        )
    }
}

/// One record of a trace: a run of neighbouring pages touched together.
///
/// Most formats store runs of one page. Disk traces store a start and a count, which
/// [`crate::AccessStream`] splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// The first page (or block, or key) of the run.
    pub first_page: u64,
    /// Pages in the run; 0 stands for no access at all. `first_page + page_count` fits in 64 bits.
    pub page_count: u64,
    /// Nanoseconds since an origin of the trace's own; 0 if the format has no time.
    pub time_ns: u64,
    /// The process that made the access; 0 if the format has none.
    pub process: u32,
    /// Read or write.
    pub kind: AccessKind,
    /// Anonymous or file.
    pub class: PageClass,
    /// Seen, or inferred.
    pub evidence: Evidence,
}

impl Request {
    /// A request of one page about which nothing more is known.
    #[must_use]
    pub fn page(page: u64) -> Self {
        Self {
            first_page: page,
            page_count: 1,
            ..Self::default()
        }
    }
}

/// One access of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The page (or block, or key).
    pub page: u64,
    /// Nanoseconds since an origin of the trace's own; 0 if the format has no time.
    pub time_ns: u64,
    /// The process that made the access; 0 if the format has none.
    pub process: u32,
    /// Read or write.
    pub kind: AccessKind,
    /// Anonymous or file.
    pub class: PageClass,
    /// Seen, or inferred.
    pub evidence: Evidence,
}
