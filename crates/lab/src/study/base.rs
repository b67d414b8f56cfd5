// SPDX-License-Identifier: Apache-2.0
//! The files that a result was made from: found again by name and content.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use agewise_trace::ReadLimits;

use super::description::{DescribedPolicy, Description, Origin};
use super::error::StudyError;
use super::setup::sha256_of;
use crate::machine::profile_file::{self, Source};
use crate::workload::library;

/// Environment for running a result again.
#[derive(Clone, Debug, Default)]
pub struct Base {
    /// Where files are, if not where the result says: files, and directories of files.
    pub places: Vec<PathBuf>,
    /// Limits on the size of traces.
    pub limits: ReadLimits,
    /// The commit of this build, or `unknown`.
    pub build: String,
}

/// What was found under the name of a file.
enum Found {
    /// The file, where it is now.
    Same(PathBuf),
    /// Only a file with another content, with its SHA-256.
    Other(PathBuf, String),
    Nothing,
}

impl Base {
    /// An environment in which files are where the result says, or beside it.
    #[must_use]
    pub fn of(result: &Path) -> Base {
        let beside = match result.parent() {
            _ if result.is_dir() => result,
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        Base {
            places: vec![beside.to_owned()],
            ..Base::default()
        }
    }

    /// Current name of the workload or trace of a result.
    ///
    /// # Errors
    /// [`StudyError::Needs`] if it is a file that is not there any more.
    pub fn source(&self, origin: &Origin) -> Result<String, StudyError> {
        let source = &origin.source;
        let of_library = !Path::new(source).is_file() && library::find(source).is_ok();
        // The names in a manifest are not paths.
        if of_library || origin.options.contains("manifest=") {
            return Ok(source.clone());
        }
        // The name of the file is in the rows, so it has to be the same.
        let found = find(&origin.source_sha256, &self.named(source))?;
        let path = needed(source, &origin.source_sha256, found)?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// Checks the hash of what was run against that of the result, also for workloads of the lab.
    ///
    /// # Errors
    /// [`StudyError::Needs`] if they differ.
    pub fn check_hash(origin: &Origin, found: &str) -> Result<(), StudyError> {
        let path = PathBuf::from(&origin.source);
        let found = match found == origin.source_sha256 {
            true => Found::Same(path),
            false => Found::Other(path, found.to_owned()),
        };
        needed(&origin.source, &origin.source_sha256, found).map(drop)
    }

    /// Calls `read` with the profile that a policy names, if it names one: the text in the result,
    /// or else the file, where it is now.
    ///
    /// # Errors
    /// [`StudyError::Needs`] if neither is there.
    pub(super) fn with_profile<T>(
        &self,
        of: DescribedPolicy<'_>,
        read: impl FnOnce(Option<Source<'_>>) -> T,
    ) -> Result<T, StudyError> {
        if let Some(text) = of.recorded() {
            return Ok(read(Some(Source::Text(text))));
        }
        let Some(sha256) = of.sha256 else {
            return Ok(read(None));
        };
        // One of the same name that comes with agewise is another.
        let name = profile_file::named_in(of.name).ok_or_else(|| {
            StudyError::Argument(format!(
                "{} is a class of a Python program, which has to run it again",
                of.name
            ))
        })?;
        let path = needed(name, sha256, self.find_profile(name, sha256)?)?;
        Ok(read(Some(Source::File(&path))))
    }

    /// One line per profile that has changed since the result was made. One that is missing or
    /// cannot be read is not known to have changed.
    #[must_use]
    pub fn changed_profiles(&self, of: &Description) -> Vec<String> {
        let mut profiles = BTreeMap::new();
        for policy in of.policies() {
            if let (Some(name), Some(sha256)) = (profile_file::named_in(policy.name), policy.sha256)
            {
                profiles.insert(name, (sha256, policy.recorded().is_some()));
            }
        }
        let mut lines = Vec::new();
        for (name, (sha256, is_recorded)) in profiles {
            if let Ok(Found::Other(path, now)) = self.find_profile(name, sha256) {
                let runs = match is_recorded {
                    true => "; `lab rerun` uses the recorded one",
                    false => "",
                };
                lines.push(format!(
                    "the profile {} has changed since the result was made: its SHA-256 is {now}, \
                     it was {sha256}{runs}",
                    path.display()
                ));
            }
        }
        lines
    }

    /// Current path of a manifest. Its content is not recorded: that of the trace is.
    pub fn manifest(&self, manifest: &Path) -> PathBuf {
        let mut named = self.named(&manifest.to_string_lossy()).into_iter();
        named
            .find(|path| path.is_file())
            .unwrap_or(manifest.to_owned())
    }

    /// A profile under its name, or under another one in the places.
    fn find_profile(&self, name: &str, sha256: &str) -> Result<Found, StudyError> {
        match find(sha256, &self.named(name))? {
            Found::Same(path) => Ok(Found::Same(path)),
            // Nothing says that one of these is it, so one that cannot be read is passed over.
            known => {
                let mut others = self.profiles().into_iter();
                let is_it = |path: &PathBuf| {
                    path.is_file() && sha256_of(path).is_ok_and(|found| found == sha256)
                };
                Ok(others.find(is_it).map_or(known, Found::Same))
            }
        }
    }

    /// Where a file of this name may be.
    fn named(&self, name: &str) -> Vec<PathBuf> {
        let name = Path::new(name);
        let file_name = name.file_name().unwrap_or_default();
        let mut paths = vec![name.to_owned()];
        for place in &self.places {
            match place.is_dir() {
                true => paths.extend([place.join(name), place.join(file_name)]),
                false if place.file_name() == Some(file_name) => paths.push(place.clone()),
                false => {}
            }
        }
        paths
    }

    /// The places that are files, and the TOML files in those that are directories.
    fn profiles(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for place in &self.places {
            let entries = fs::read_dir(place).into_iter().flatten().flatten();
            let mut inside: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            inside.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
            inside.sort();
            paths.push(place.clone());
            paths.extend(inside);
        }
        paths
    }
}

/// The first of the files that has this content.
fn find(sha256: &str, paths: &[PathBuf]) -> Result<Found, StudyError> {
    let mut other = Found::Nothing;
    for path in paths.iter().filter(|path| path.is_file()) {
        let found = sha256_of(path)?;
        if found == sha256 {
            return Ok(Found::Same(path.clone()));
        }
        if matches!(other, Found::Nothing) {
            other = Found::Other(path.clone(), found);
        }
    }
    Ok(other)
}

fn needed(name: &str, sha256: &str, found: Found) -> Result<PathBuf, StudyError> {
    let found = match found {
        Found::Same(path) => return Ok(path),
        Found::Other(path, sha256) => format!(
            "{} is not what the result is of, its SHA-256 is {sha256}",
            path.display()
        ),
        Found::Nothing => "there is no file of that name".to_owned(),
    };
    Err(StudyError::Needs {
        name: name.to_owned(),
        sha256: sha256.to_owned(),
        found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_not_the_policy_of_its_name() {
        let class = DescribedPolicy {
            name: "lru",
            sha256: Some("1f"),
            profile: None,
        };
        let error = Base::default().with_profile(class, |_| ()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("lru is a class of a Python program"),
            "{error}"
        );
    }
}
