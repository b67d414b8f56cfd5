// SPDX-License-Identifier: Apache-2.0
//! The list of access sources. Each has one file and one line in [`ALL`], from which come the
//! values of `report --source`, the rows of `agewise doctor`, and the order in which sources are
//! tried by default.

mod damon;
mod lru_gen;
mod page_cache;
mod page_faults;
mod pagemap;
mod pagewalk;

use agewise_policy::workingset::{Intervals, OldestPages};

use crate::access::{AccessError, AccessSource, PAGE_BYTES};
use crate::agent::Targets;
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, Group, State};
use crate::kernel_source::{KernelSource, KernelSourceError};
use crate::root::Roots;

/// All sources. By default, the first usable one that looks at pages is used.
pub static ALL: [&Source; 6] = [
    &pagewalk::SOURCE,
    &pagemap::SOURCE,
    &damon::SOURCE,
    &lru_gen::SOURCE,
    &page_faults::SOURCE,
    &page_cache::SOURCE,
];

/// An access source.
#[derive(Debug)]
pub struct Source {
    /// Its name on the command line, in output and in `docs/use/access-sources.md`.
    pub name: &'static str,
    /// A phrase that describes it, for help.
    pub about: &'static str,
    /// How it is used.
    pub open: Open,
    /// Whether it counts right where the kernel's pages are larger than 4 KiB.
    pub large_pages: bool,
    /// Its row in the capability table.
    pub(crate) capability: fn(&Facts) -> Capability,
}

/// Opens a source that looks at pages.
pub type OpenPages = fn() -> Result<Box<dyn AccessSource>, AccessError>;
/// Opens a source that returns histograms of targets.
pub type OpenHistograms =
    fn(&Roots, &Targets, &AgesWanted) -> Result<Box<dyn KernelSource>, KernelSourceError>;

/// How a source is used.
#[derive(Clone, Copy, Debug)]
pub enum Open {
    /// It looks at the pages of processes, and an agent keeps their ages.
    Pages(OpenPages),
    /// It keeps ages itself, and returns histograms of targets.
    Histograms(OpenHistograms),
    /// It reports events, for traces. No ages can be derived from it alone.
    Events,
    /// It reports accesses to files: [`FileAges`](crate::pagecache::FileAges) keeps their ages.
    Files,
}

/// Parameters for a source that keeps ages itself.
#[derive(Clone, Debug)]
pub struct AgesWanted {
    /// Bounds of the bins.
    pub intervals: Intervals,
    /// The bin for memory that was never seen accessed.
    pub oldest: OldestPages,
    /// Time between two looks, in ms.
    pub window_ms: u64,
}

impl Source {
    /// Finds a source by name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Source> {
        ALL.into_iter().find(|source| source.name == name)
    }

    /// The sources that can report ages.
    pub fn of_ages() -> impl Iterator<Item = &'static Source> {
        ALL.into_iter()
            .filter(|source| matches!(source.open, Open::Pages(_) | Open::Histograms(_)))
    }
}

/// The capability rows of all sources.
pub(crate) fn capabilities(facts: &Facts) -> Vec<Capability> {
    let row = |source: &Source| match source.large_pages || facts.page_bytes == PAGE_BYTES {
        true => (source.capability)(facts),
        false => {
            line(source.name, State::Missing, "it needs pages of 4 KiB").advise("see arch above")
        }
    };
    ALL.into_iter().map(row).collect()
}

/// Names of the sources used by default, the best first.
pub(crate) fn preference() -> Vec<&'static str> {
    let of_pages = |source: &&Source| matches!(source.open, Open::Pages(_));
    ALL.into_iter()
        .filter(of_pages)
        .map(|source| source.name)
        .collect()
}

fn line(name: &'static str, state: State, found: impl Into<String>) -> Capability {
    Capability::new(Group::Source, name, state, found)
}

/// The row for a BPF program that could not be loaded.
fn refused(facts: &Facts, name: &'static str, error: &AccessError, needs: &str) -> Capability {
    let advice = match error {
        AccessError::NoPrivilege { hint, .. } => (*hint).to_owned(),
        _ if !facts.has_btf => "use a kernel built with CONFIG_DEBUG_INFO_BTF=y".to_owned(),
        _ if facts.lockdown.as_deref() == Some("confidentiality") => {
            "boot with lockdown=integrity or none".to_owned()
        }
        _ => format!("see the kernel lines above; needs {needs}"),
    };
    let found = match error {
        // The hint is shown as the advice.
        AccessError::NoPrivilege { what, .. } => format!("{what}: not permitted"),
        other => other.to_string(),
    };
    line(name, State::Missing, found).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_found_by_its_name_and_has_its_row() {
        for source in ALL {
            assert!(std::ptr::eq(Source::named(source.name).unwrap(), source));
            assert!(!source.about.is_empty() && !source.about.ends_with('.'));
        }
        assert!(Source::named("glasses").is_none());
        assert_eq!(preference(), ["pagewalk", "pagemap"]);
        let of_ages: Vec<_> = Source::of_ages().map(|source| source.name).collect();
        assert_eq!(of_ages, ["pagewalk", "pagemap", "damon", "lru_gen"]);
    }

    #[test]
    fn every_source_is_in_the_documentation() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/use/access-sources.md"
        );
        let docs = std::fs::read_to_string(path).unwrap();
        for source in ALL {
            let row = format!("| `{}` |", source.name);
            assert!(
                docs.contains(&row),
                "docs/use/access-sources.md has no row {row}"
            );
        }
    }
}
