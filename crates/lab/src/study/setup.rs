// SPDX-License-Identifier: Apache-2.0
//! What to run on: workloads and traces by name, memory, swap, settings.

use agewise_policy::table::PAGE_BYTES;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use agewise_policy::units::size_bytes;
use agewise_trace::curve::SizeSpec;
use agewise_trace::suggest::{nearest, question};
use agewise_trace::{Format, Reading, TraceSource, short_name};
use sha2::{Digest, Sha256};

use super::error::StudyError;
use crate::experiment::contender::Contender;
use crate::experiment::machine_run::{MIN_MEMORY_PAGES, Plan, Subject};
use crate::experiment::replay::{Arrangement, Replay, Through};
use crate::experiment::settings;
use crate::machine::Policy;
use crate::machine::config::PolicyError;
use crate::machine::device::DeviceKind;
use crate::machine::profile_file::{ProfileError, Source};
use crate::workload::library;
use crate::workload::spec::Workload;
use crate::yardstick;

/// What to run on, as given by the user.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// `memory.max` of the cgroup: a size, pages (`5000p`), or a percentage of a trace's footprint
    /// (`25%`). By default the subject's own.
    pub memory: Option<String>,
    /// The swap device, or `none`; by default the subject's own.
    pub swap: Option<String>,
    /// Settings of the machine, as `key=value`.
    pub settings: Vec<String>,
    /// DAMON beside the policy, as `USE[:KEY=VALUE…]`.
    pub damon: Option<String>,
    /// How the pages of a trace are accessed; by default as recorded.
    pub through: Option<Through>,
    /// Order of accesses within an interval of a trace.
    pub arrangement: Arrangement,
    /// How traces are read.
    pub reading: Reading,
}

/// A workload or trace that was read.
#[derive(Clone, Debug)]
pub struct Named {
    /// The workload or trace.
    pub subject: Subject,
    /// SHA-256 of the file or text, in hexadecimal.
    pub sha256: String,
    /// The format of the trace, if it was given or a manifest names it.
    pub format: Option<&'static Format>,
}

/// Finds a policy of the machine by name.
///
/// # Errors
/// Fails if there is none, and names the most similar one.
pub fn parse_policy(text: &str) -> Result<Policy, StudyError> {
    parse_policy_at(text, None, Vec::new())
}

/// Finds a policy of the machine; `yardsticks` may be given in place of one.
fn parse_policy_at(
    text: &str,
    profile: Option<Source<'_>>,
    yardsticks: Vec<String>,
) -> Result<Policy, StudyError> {
    Policy::parse_at(text, profile).map_err(|error| {
        let error = match error {
            PolicyError::Unknown(_) => error,
            PolicyError::Profile(ProfileError::Read { path, source }) => {
                return StudyError::Read { path, source };
            }
            _ => return StudyError::Argument(error.to_string()),
        };
        let names = Policy::names().into_iter().chain(yardsticks.clone());
        let names: Vec<String> = names.collect();
        let near = nearest(text, names.iter().map(String::as_str));
        let or = match near {
            None if !yardsticks.is_empty() => {
                format!("; or a yardstick: {}", yardsticks.join(", "))
            }
            near => question(near),
        };
        StudyError::Argument(format!("{error}{or}"))
    })
}

/// Finds a policy of the machine or a yardstick by name.
///
/// # Errors
/// Fails if there is none, and names the most similar one.
pub fn parse_contender(text: &str) -> Result<Contender, StudyError> {
    parse_contender_at(text, None)
}

/// Like [`parse_contender`], with the profile if it is not where the name says.
///
/// # Errors
/// The same as those of [`parse_contender`].
pub(super) fn parse_contender_at(
    text: &str,
    profile: Option<Source<'_>>,
) -> Result<Contender, StudyError> {
    let name = text.split(':').next().unwrap_or(text);
    if yardstick::beside_kernels().any(|spec| spec.is_called(name)) {
        let yardstick = yardstick::parse(text).map_err(StudyError::Argument)?;
        return Ok(Contender::Yardstick(yardstick));
    }
    let yardsticks = yardstick::beside_kernels().map(|spec| spec.name.to_owned());
    parse_policy_at(text, profile, yardsticks.collect()).map(Contender::Kernel)
}

/// Finds a swap device by name; `none` means no swap.
///
/// # Errors
/// Fails if there is none, and names the most similar one.
pub fn parse_swap(text: &str) -> Result<Option<DeviceKind>, StudyError> {
    if text == "none" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| {
        let names = DeviceKind::ALL.map(DeviceKind::name);
        StudyError::Argument(match nearest(text, names.into_iter().chain(["none"])) {
            Some(near) => format!("{error}; did you mean `{near}`?"),
            None => format!("{error}; one of {}, none", names.join(", ")),
        })
    })
}

/// Parses a memory size; returns it in pages, with a remark for the user.
fn parse_memory_pages(text: &str, subject: &Subject) -> Result<(u64, Option<String>), StudyError> {
    let text = text.trim();
    let wrong = |why: String| StudyError::Argument(format!("--memory `{text}` {why}"));
    if let Some(percent) = text.strip_suffix('%') {
        let name = subject.name();
        let Subject::Trace(replay, _) = subject else {
            return Err(wrong(format!(
                "is a share of a trace's footprint; `{name}` is a workload: give a size"
            )));
        };
        let percent: f64 = percent
            .trim()
            .parse()
            .map_err(|_| wrong("is no share".to_owned()))?;
        if !(percent > 0.0 && percent <= 1000.0) {
            return Err(wrong("is not between 0 and 1000 percent".to_owned()));
        }
        let pages = SizeSpec::Share(percent / 100.0).pages(replay.footprint_pages()) as u64;
        let note = (pages < MIN_MEMORY_PAGES).then(|| {
            format!(
                "{name}: {text} of the footprint is {pages} pages; {MIN_MEMORY_PAGES} are used, \
                 the least a cgroup works with"
            )
        });
        return Ok((pages.max(MIN_MEMORY_PAGES), note));
    }
    if let Some(pages) = text.strip_suffix(['p', 'P']) {
        let pages = pages.trim().parse();
        let pages = pages.map_err(|_| wrong("is no number of pages".to_owned()))?;
        return Ok((pages, None));
    }
    let bytes = size_bytes(text).map_err(|error| wrong(error.to_string()))?;
    Ok((bytes / PAGE_BYTES, None))
}

/// SHA-256 of the data, in hexadecimal.
pub(super) fn sha256(mut from: impl Read) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hex(hash))
}

pub(super) fn hex(hash: Sha256) -> String {
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// Fails if it cannot be read.
pub fn sha256_of(path: &Path) -> Result<String, StudyError> {
    File::open(path)
        .and_then(sha256)
        .map_err(|source| StudyError::Read {
            path: path.to_owned(),
            source,
        })
}

impl Setup {
    /// The plan for a subject, a policy and a seed, with remarks for the user.
    ///
    /// # Errors
    /// Fails for invalid memory, swap or settings.
    pub fn plan(
        &self,
        subject: &Subject,
        policy: Policy,
        seed: u64,
    ) -> Result<(Plan, Vec<String>), StudyError> {
        let (memory_pages, note) = match &self.memory {
            None => (None, None),
            Some(size) => {
                let (pages, note) = parse_memory_pages(size, subject)?;
                (Some(pages), note)
            }
        };
        let notes = note.into_iter().chain(self.unused(subject)).collect();
        settings::check(&self.settings).map_err(|error| StudyError::Argument(error.to_string()))?;
        let plan = Plan {
            subject: subject.clone(),
            memory_pages,
            swap: self.swap.as_deref().map(parse_swap).transpose()?,
            settings: self.settings.clone(),
            damon: self.damon.clone(),
            policy,
            seed,
            proactive: None,
        };
        Ok((plan, notes))
    }

    /// Finds a subject by name: a workload of the library, a TOML file, or a trace.
    ///
    /// # Errors
    /// Fails if there is none or it cannot be read.
    pub fn subject(&self, name: &str) -> Result<Named, StudyError> {
        match self.place(name)? {
            Place::Workload { name, text } => Ok(Named {
                subject: Subject::Workload(Arc::new(Workload::parse(&name, &text)?)),
                sha256: hex(Sha256::new_with_prefix(text)),
                format: None,
            }),
            Place::Trace(source) => self.trace(name, &source),
        }
    }

    /// The hash that [`Setup::subject`] would return.
    ///
    /// # Errors
    /// The same as those of [`Setup::subject`], except errors found only by reading the subject.
    pub fn subject_sha256(&self, name: &str) -> Result<String, StudyError> {
        match self.place(name)? {
            Place::Workload { text, .. } => Ok(hex(Sha256::new_with_prefix(text))),
            Place::Trace(source) => sha256_of(&source.path),
        }
    }

    /// Whether a name is that of a trace, not of a workload.
    pub(super) fn is_trace(&self, name: &str) -> bool {
        matches!(self.place(name), Ok(Place::Trace(_)))
    }

    /// The file of a workload or trace named by its path.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = Path::new(name);
        let is_named = self.reading.manifest.is_none() && path.is_file();
        is_named.then(|| path.to_owned())
    }

    fn place(&self, name: &str) -> Result<Place, StudyError> {
        let path = Path::new(name);
        if is_description(name) {
            let text = read_text(path)?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = stem.into_owned();
            return Ok(Place::Workload { name, text });
        }
        let is_path = self.reading.manifest.is_some() || path.exists();
        if !is_path || self.reading.manifest.is_none() && !path.is_file() {
            match library::find(name) {
                Ok(found) => {
                    let text = library::text(name).unwrap_or_default().to_owned();
                    let name = found.name;
                    return Ok(Place::Workload { name, text });
                }
                Err(error) if !is_path => {
                    return Err(StudyError::Argument(format!(
                        "{error}; nor is there a trace file of that name (`agewise lab list` names \
                         all workloads; a file that describes one ends in .toml)"
                    )));
                }
                Err(_) => {}
            }
        }
        Ok(Place::Trace(hashable(&self.reading, name)?))
    }

    fn trace(&self, name: &str, source: &TraceSource) -> Result<Named, StudyError> {
        let read = || {
            let mut stream = source.open()?;
            Replay::read(short_name(name), &source.path, &mut stream, self.through)
        };
        let (replay, sha256) = hashed_beside(&source.path, read);
        let replay = replay?;
        if !replay.order_unknown && self.arrangement != Arrangement::Each {
            return Err(StudyError::Argument(format!(
                "{name}: --order is for traces recorded by interval; the order of this one is known"
            )));
        }
        Ok(Named {
            subject: Subject::Trace(Arc::new(replay), self.arrangement),
            sha256: sha256?,
            format: source.format,
        })
    }
}

/// Location of a workload or trace.
enum Place {
    /// A workload with its name and text.
    Workload { name: String, text: String },
    /// A trace.
    Trace(TraceSource),
}

/// Whether this is the file of a workload, by its name.
pub(super) fn is_description(name: &str) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| ending == "toml")
}

/// Finds a trace that is read twice, the second time for its hash.
///
/// # Errors
/// Fails if there is none, or it is a pipe.
pub(super) fn hashable(reading: &Reading, trace: &str) -> Result<TraceSource, StudyError> {
    let source = reading.source(trace)?;
    source.require_file()?;
    Ok(source)
}

/// Expands patterns in names (`traces/*.pages`), sorted by name.
///
/// # Errors
/// Fails if a pattern is invalid or matches nothing.
pub fn expand(names: &[String]) -> Result<Vec<String>, StudyError> {
    let mut found = Vec::new();
    for name in names {
        let is_pattern = name.contains(['*', '?', '[']) && !Path::new(name).exists();
        if !is_pattern {
            found.push(name.clone());
            continue;
        }
        let before = found.len();
        let paths = glob::glob(name)
            .map_err(|error| StudyError::Argument(format!("`{name}` is no pattern: {error}")))?;
        for path in paths {
            let path = path.map_err(|error| StudyError::Read {
                path: error.path().to_owned(),
                source: error.into(),
            })?;
            found.push(path.to_string_lossy().into_owned());
        }
        if found.len() == before {
            return Err(StudyError::Argument(format!("no file matches `{name}`")));
        }
    }
    Ok(found)
}

pub(super) fn read_text(path: &Path) -> Result<String, StudyError> {
    std::fs::read_to_string(path).map_err(|source| StudyError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Runs `read` and computes the hash of the file in parallel; returns both results.
pub(super) fn hashed_beside<T>(
    path: &Path,
    read: impl FnOnce() -> T,
) -> (T, Result<String, StudyError>) {
    thread::scope(|scope| {
        let hash = scope.spawn(|| sha256_of(path));
        let read = read();
        let hash = hash.join().unwrap_or_else(|_| sha256_of(path));
        (read, hash)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_the_nearest() {
        let error = parse_contender("mglru:7.3").unwrap_err().to_string();
        assert!(error.contains("did you mean `mglru:7.2`"), "{error}");
        let error = parse_contender("reuse:look=0").unwrap_err().to_string();
        assert!(error.contains("look is 0"), "{error}");
        let error = parse_contender("arcc").unwrap_err().to_string();
        assert!(error.contains("did you mean `arc`"), "{error}");
        let error = parse_contender("nope").unwrap_err().to_string();
        assert!(error.contains("; or a yardstick: opt, "), "{error}");
        // Where only a policy of the machine can be, no yardstick is suggested.
        let error = parse_policy("arc").unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
        let error = parse_swap("nmve").unwrap_err().to_string();
        assert!(error.contains("did you mean `nvme`"), "{error}");
        assert_eq!(parse_swap("none").unwrap(), None);
    }

    #[test]
    fn memory_is_bytes_or_pages() {
        let kv = Subject::Workload(Arc::new(library::find("kv").unwrap()));
        assert_eq!(parse_memory_pages("24M", &kv).unwrap().0, 6144);
        assert_eq!(parse_memory_pages("5000p", &kv).unwrap().0, 5000);
        for (bad, expected) in [("25%", "workload"), ("much", "not a size"), ("-1p", "-1p")] {
            let error = parse_memory_pages(bad, &kv).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn wrong_settings_are_wrong_arguments() {
        let kv = Subject::Workload(Arc::new(library::find("kv").unwrap()));
        let setup = Setup {
            settings: vec!["swappines=1".to_owned()],
            ..Setup::default()
        };
        let error = setup.plan(&kv, Policy::default(), 1).unwrap_err();
        assert!(matches!(&error, StudyError::Argument(what) if what.contains("`swappiness`")));
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&b"abc"[..]).unwrap(), of_abc);
    }
}
