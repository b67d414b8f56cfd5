// SPDX-License-Identifier: Apache-2.0
//! A manifest: a CSV file that lists many traces, with the columns `file`, `trace_name`, `format`
//! and any others.
//!
//! The format is free text, as people write it; the name of a supported format is taken literally.
//! If the text is not conclusive, the file names and then the content of the file decide.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::error::TraceError;
use super::registry;
use super::stream::TraceSource;

/// Suffix of trace names that means: runs of accesses to one page are collapsed into one.
const DEDUP_SUFFIX: &str = "_dedup";
/// Suffix of trace names that means: byte addresses in pages of 4 KiB.
const PAGES_SUFFIX: &str = "_p4k";

/// One trace of a manifest.
#[derive(Debug, Clone)]
struct Entry {
    /// Its name.
    name: String,
    /// Where and how to read it.
    source: TraceSource,
}

/// The traces of a manifest, in its order.
#[derive(Debug, Clone)]
pub struct Manifest {
    entries: Vec<Entry>,
}

impl Manifest {
    /// Reads a manifest. Files are looked up under `directory` by the given name, then by its last
    /// component alone, then next to the manifest.
    ///
    /// # Errors
    /// [`TraceError::Open`] if the manifest cannot be opened, [`TraceError::Table`] if it cannot be
    /// read or lacks a column. A missing trace file is reported when it is opened.
    pub fn read(path: &Path, directory: &Path) -> Result<Self, TraceError> {
        let bad = |error: csv::Error| TraceError::table(path, error.to_string());
        let file = File::open(path).map_err(|source| TraceError::Open {
            path: path.to_path_buf(),
            source,
        })?;
        let mut reader = csv::Reader::from_reader(file);
        let headers = reader.headers().map_err(bad)?.clone();
        let column = |name: &str| headers.iter().position(|header| header.trim() == name);
        let needed = |name: &str| {
            column(name).ok_or_else(|| TraceError::table(path, format!("no column \"{name}\"")))
        };
        let (file_at, name_at) = (needed("file")?, needed("trace_name")?);
        let format_at = column("format");
        let mut entries = Vec::new();
        for record in reader.records() {
            let record = record.map_err(bad)?;
            let text = |at: usize| record.get(at).unwrap_or_default().trim();
            let (file, name) = (text(file_at), text(name_at));
            let mut source = TraceSource::new(&find_file(path, directory, Path::new(file)));
            source.format = format_at
                .and_then(|at| registry::by_description(text(at)))
                .or_else(|| registry::by_file_name(Path::new(file)))
                .or_else(|| registry::by_file_name(Path::new(name)));
            entries.push(Entry {
                name: name.to_string(),
                source,
            });
        }
        Ok(Self { entries })
    }

    /// The source of the trace of this name. A name that ends in `_dedup` means the trace without
    /// the suffix, with runs of one page collapsed into one; `_p4k` may be omitted or added for
    /// traces of addresses.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<TraceSource> {
        if let Some(entry) = self.entries.iter().find(|entry| entry.name == name) {
            return Some(entry.source.clone());
        }
        if let Some(base) = name.strip_suffix(DEDUP_SUFFIX) {
            let mut source = self.source(base)?;
            source.collapse_repeats = true;
            return Some(source);
        }
        // Addresses are read as pages of 4 KiB anyway.
        let is_addresses = |entry: &&Entry| {
            let format = entry.source.format.map_or("", |format| format.name);
            matches!(format, "ucsd" | "lackey")
        };
        let base = name.strip_suffix(PAGES_SUFFIX).unwrap_or(name);
        let same =
            |entry: &&Entry| entry.name.strip_suffix(PAGES_SUFFIX).unwrap_or(&entry.name) == base;
        self.entries
            .iter()
            .filter(is_addresses)
            .find(same)
            .map(|entry| entry.source.clone())
    }
}

fn find_file(manifest: &Path, directory: &Path, file: &Path) -> PathBuf {
    let beside = manifest.parent().unwrap_or(Path::new(""));
    let name = file.file_name().map(Path::new).unwrap_or(file);
    let candidates = [
        directory.join(file),
        directory.join(name),
        beside.join(file),
        beside.join(name),
    ];
    let found = candidates.iter().find(|path| path.is_file());
    found.unwrap_or(&candidates[0]).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_suffixes_and_files() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("traces")).unwrap();
        std::fs::write(at("traces/a.trace"), "s 0x1000 1\nl 0x1008 1\nl 0x2000 1\n").unwrap();
        std::fs::write(at("b.bin"), [0, 0, 0, 1]).unwrap();
        std::fs::write(
            at("manifest.csv"),
            "file,trace_name,x,format\n\
             traces/a.trace,prog_p4k,1,\"text: \"\"s|l 0xADDR n\"\", page = ADDR>>12\"\n\
             traces/b.bin,keys,2,\"binary, big-endian uint32\"\n\
             c.trace,plain,3,\n",
        )
        .unwrap();
        let manifest = Manifest::read(&at("manifest.csv"), &at("traces")).unwrap();
        let format = |name: &str| {
            manifest
                .source(name)
                .unwrap()
                .format
                .map(|format| format.name)
        };
        assert_eq!(format("prog_p4k"), Some("ucsd"));
        assert_eq!(format("prog"), Some("ucsd"));
        assert_eq!(format("keys"), Some("cache2k"));
        assert_eq!(format("plain"), None);
        assert!(manifest.source("keys_p4k").is_none());
        assert!(manifest.source("other").is_none());
        assert_eq!(manifest.source("keys").unwrap().path, at("b.bin"));

        let dedup = manifest.source("prog_p4k_dedup").unwrap();
        let trace = crate::DenseTrace::read(&dedup).unwrap();
        assert_eq!(trace.accesses(), [0, 1]);
    }

    #[test]
    fn a_missing_column_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.csv");
        std::fs::write(&path, "file,name\nx,y\n").unwrap();
        let error = Manifest::read(&path, directory.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("trace_name") && error.contains("m.csv"),
            "{error}"
        );
    }
}
