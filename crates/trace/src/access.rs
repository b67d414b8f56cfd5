// SPDX-License-Identifier: Apache-2.0
//! Contents of a trace: requests as stored, and the single-page accesses they represent.

/// The largest run of pages in one request; anything larger is a damaged record.
pub const PAGES_PER_REQUEST_MAX: u64 = 1 << 24;

/// Whether an access read or wrote, if recorded in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum AccessKind {
    /// Not recorded.
    #[default]
    Unknown,
    /// A load, a read, a lookup.
    Read,
    /// A store, a write.
    Write,
}

impl AccessKind {
    /// Its name in CSV; empty if it is not recorded.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Read => "r",
            Self::Write => "w",
        }
    }
}

/// What backs the page, if recorded in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum PageClass {
    /// Not recorded.
    #[default]
    Unknown,
    /// Anonymous memory: heap, stack, private writable mappings.
    Anon,
    /// A file's page in the page cache.
    File,
}

impl PageClass {
    /// Its name in CSV; empty if it is not recorded.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Anon => "anon",
            Self::File => "file",
        }
    }
}

/// How an access is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum Evidence {
    /// It was seen; in a trace recorded by interval, at some time since the previous look.
    #[default]
    Seen,
    /// It caused a page fault at exactly this time, even in a trace recorded by interval; whether
    /// the fault had to read something is unknown.
    Fault,
    /// It was not seen, but inferred from nearby pages that were seen ([`crate::page_trace`]).
    Inferred,
    /// It caused a page fault that did not have to read anything.
    MinorFault,
    /// It caused a page fault that had to read something.
    MajorFault,
}

impl Evidence {
    /// All kinds with their names in CSV, which [`Evidence::Seen`] leaves empty.
    pub const NAMES: [(&str, Self); 5] = [
        ("", Self::Seen),
        ("fault", Self::Fault),
        ("inferred", Self::Inferred),
        ("minor_fault", Self::MinorFault),
        ("major_fault", Self::MajorFault),
    ];

    /// Its name in CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, known)| *known == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether it is a page fault of any kind.
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
    /// Pages in the run, at most [`PAGES_PER_REQUEST_MAX`]; 0 means no access at all. `first_page +
    /// page_count` fits in 64 bits, except for a single page.
    pub page_count: u64,
    /// Nanoseconds since the origin of the trace; 0 if the format has no time.
    pub time_ns: u64,
    /// The process that made the access; 0 if the format has none.
    pub process: u32,
    /// Read or write.
    pub kind: AccessKind,
    /// Anonymous or file.
    pub class: PageClass,
    /// Seen, faulted or inferred.
    pub evidence: Evidence,
}

impl Request {
    /// A request for one page, with everything else unknown.
    #[must_use]
    pub fn page(page: u64) -> Self {
        Self {
            first_page: page,
            page_count: 1,
            ..Self::default()
        }
    }

    /// Checks that readers accept it: at most [`PAGES_PER_REQUEST_MAX`] pages, whose numbers fit in
    /// 64 bits. A single page may be the last one of the address space.
    pub(crate) fn check(&self) -> Result<(), String> {
        let count = self.page_count;
        if count > PAGES_PER_REQUEST_MAX {
            return Err(format!(
                "a request of {count} pages; at most {PAGES_PER_REQUEST_MAX}"
            ));
        }
        if count > 1 && self.first_page.checked_add(count).is_none() {
            return Err(format!(
                "{count} pages from {} do not fit in 64 bits",
                self.first_page
            ));
        }
        Ok(())
    }
}

/// One access of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The page (or block, or key).
    pub page: u64,
    /// Nanoseconds since the origin of the trace; 0 if the format has no time.
    pub time_ns: u64,
    /// The process that made the access; 0 if the format has none.
    pub process: u32,
    /// Read or write.
    pub kind: AccessKind,
    /// Anonymous or file.
    pub class: PageClass,
    /// Seen, faulted or inferred.
    pub evidence: Evidence,
}
