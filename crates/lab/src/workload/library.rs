// SPDX-License-Identifier: Apache-2.0
//! The workloads that come with the lab.

use thiserror::Error;

use super::spec::{Workload, WorkloadError};
use agewise_trace::suggest::{nearest, question};

macro_rules! library {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every workload.
        const WORKLOADS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../workloads/", $name, ".toml")))),*
        ];
    };
}

library![
    "aging",
    "anon-zipf-080",
    "anon-zipf-099",
    "anon-zipf-120",
    "anon-uniform",
    "anon-scan",
    "anon-zscan",
    "anon-zipfshift",
    "file-zipf-080",
    "file-zipf-099",
    "file-uniform",
    "mmap-zipf",
    "mixed-6144",
    "mixed-12288",
    "bonnie",
    "desktop",
    "forkers",
    "kv",
    "loop",
    "mglru-cassandra",
    "mglru-db",
    "mglru-desktop",
    "mglru-fio",
    "mglru-kv",
    "mglru-mongodb",
    "mglru-redis",
    "mglru-sort",
    "mglru-store",
    "paralleldd",
    "pgbench",
    "scan",
    "shift",
    "stutter",
    "tiobench",
    "thrash",
    "writers",
];

/// Names of all workloads.
pub fn names() -> impl Iterator<Item = &'static str> {
    WORKLOADS.iter().map(|(name, _)| *name)
}

/// A workload that is not available.
#[derive(Debug, Error)]
pub enum LibraryError {
    #[error("unknown workload `{name}`{}", question(*.nearest))]
    Unknown {
        name: String,
        nearest: Option<&'static str>,
    },
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// Text of a workload.
pub fn text(name: &str) -> Option<&'static str> {
    let found = WORKLOADS.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

/// Finds a workload by name.
///
/// # Errors
/// [`LibraryError`] if there is none.
pub fn find(name: &str) -> Result<Workload, LibraryError> {
    let Some(text) = text(name) else {
        return Err(LibraryError::Unknown {
            name: name.to_owned(),
            nearest: nearest(name, names()),
        });
    };
    Ok(Workload::parse(name, text)?)
}

#[cfg(test)]
mod tests {
    use super::super::kernel_trace::trace_hash;
    use super::*;

    #[test]
    fn every_workload_is_sound() {
        for name in names() {
            let workload = find(name).unwrap();
            assert!(!workload.description.is_empty(), "{name}");
        }
    }

    #[test]
    fn traces_of_the_reference_have_its_hashes() {
        let mut checked = 0;
        for name in names() {
            let Some(trace) = find(name).unwrap().trace else {
                continue;
            };
            let expected = trace.hash.as_deref().unwrap_or_default();
            let hash = trace_hash(&trace.spec(12345)).unwrap();
            assert_eq!(format!("{hash:016x}"), expected, "{name}");
            checked += 1;
        }
        assert_eq!(checked, 13);
    }

    #[test]
    fn the_nearest_name_is_told() {
        let error = find("mixed-6143").unwrap_err().to_string();
        assert!(error.contains("did you mean `mixed-6144`"), "{error}");
        assert!(
            !find("xyzzy-plugh")
                .unwrap_err()
                .to_string()
                .contains("mean")
        );
    }
}
