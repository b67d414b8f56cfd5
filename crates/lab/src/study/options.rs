// SPDX-License-Identifier: Apache-2.0
//! Options that change what is run, other than memory, swap and settings, as one text: `key=value`
//! separated by blanks, only those that differ from their defaults. Blanks and percent signs inside
//! a value are escaped as in URLs.

use std::path::PathBuf;

use agewise_trace::Reading;
use agewise_trace::reader::column::Column;
use agewise_trace::registry;
use agewise_trace::suggest::{nearest, question};

use super::description::Origin;
use super::error::StudyError;
use super::setup::{Named, Setup};
use crate::experiment::machine_run::Subject;
use crate::experiment::replay::{Arrangement, Through};
use crate::proactive::Sight;

/// A value of an option: its name, what it stands for, and what it means.
pub type Choice<T> = (&'static str, T, &'static str);

/// Ways to access pages of a trace.
pub const WAYS: [Choice<Through>; 3] = [
    (
        "fd",
        Through::Descriptor,
        "Read and written through a file descriptor: policies see each access",
    ),
    (
        "mapped",
        Through::Mapping,
        "Mapped: policies find accessed bits",
    ),
    (
        "anon",
        Through::Anonymous,
        "Anonymous memory; pages that the trace marks as file pages are mapped",
    ),
];

/// Orders of accesses within an interval, where the real one is not known.
pub const ORDERS: [Choice<Arrangement>; 4] = [
    (
        "each",
        Arrangement::Each,
        "Seed 1 rising addresses, seed 2 falling, all others shuffled: the range over the seeds \
         reflects the unknown order",
    ),
    ("forward", Arrangement::Forward, "Rising addresses"),
    ("reverse", Arrangement::Reverse, "Falling addresses"),
    ("shuffle", Arrangement::Shuffle, "Shuffled by the seed"),
];

/// Access sources of agents.
pub const SIGHTS: [Choice<Sight>; 3] = [
    (
        "page-cache",
        Sight::PageCache,
        "Page tables and tracepoints of the page cache: every page, and clean file pages are \
         dropped",
    ),
    (
        "page-tables",
        Sight::PageTables,
        "Page tables only: every mapped page",
    ),
    (
        "generations",
        Sight::Generations,
        "The kernel's generations (multi-gen LRU): all memory, page cache too, but no single page",
    ),
];

/// Options that take a number or a path.
const OTHERS: [&str; 5] = [
    "trace_format",
    "page_shift",
    "column",
    "manifest",
    "collapse_repeats",
];

/// The entry of this name.
///
/// # Errors
/// Names the most similar entry, or all of them.
pub fn choose<T: Copy>(what: &str, name: &str, of: &[Choice<T>]) -> Result<T, StudyError> {
    if let Some((_, value, _)) = of.iter().find(|(known, ..)| *known == name) {
        return Ok(*value);
    }
    let names = of.iter().map(|(known, ..)| *known);
    let all: Vec<&str> = names.clone().collect();
    Err(StudyError::argument(match nearest(name, names) {
        Some(near) => format!("unknown {what} `{name}`; did you mean `{near}`?"),
        None => format!("unknown {what} `{name}`; there are {}", all.join(", ")),
    }))
}

fn name_of<T: PartialEq>(value: &T, of: &[Choice<T>]) -> Option<&'static str> {
    let found = of.iter().find(|(_, known, _)| known == value);
    found.map(|(name, ..)| *name)
}

pub(super) fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(' ', "%20")
}

fn unescape(text: &str) -> String {
    text.replace("%20", " ").replace("%25", "%")
}

/// The options that differ from their defaults, as text.
pub(super) fn to_text(setup: &Setup, sight: Sight) -> String {
    let mut parts = Vec::new();
    let mut put = |key: &str, value: &str| parts.push(format!("{key}={}", escape(value)));
    if let Some(way) = setup.through.and_then(|way| name_of(&way, &WAYS)) {
        put("access", way);
    }
    if setup.arrangement != Arrangement::Each {
        put(
            "order",
            name_of(&setup.arrangement, &ORDERS).unwrap_or_default(),
        );
    }
    if sight != Sight::default() {
        put("sight", name_of(&sight, &SIGHTS).unwrap_or_default());
    }
    let reading = &setup.reading;
    if let Some(format) = reading.format {
        put("trace_format", format.name);
    }
    if let Some(shift) = reading.page_shift {
        put("page_shift", &shift.to_string());
    }
    for (column, header) in &reading.columns {
        put("column", &format!("{}:{header}", column.name()));
    }
    if let Some(manifest) = &reading.manifest {
        put("manifest", &manifest.to_string_lossy());
    }
    if reading.collapse_repeats {
        put("collapse_repeats", "1");
    }
    parts.join(" ")
}

/// Sets the options given in a text.
///
/// # Errors
/// Fails for unknown options and invalid values.
pub fn from_text(text: &str, setup: &mut Setup, sight: &mut Sight) -> Result<(), StudyError> {
    for part in text.split(' ').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let value = unescape(value);
        let wrong = || StudyError::argument(format!("option {key} cannot be `{value}`"));
        let reading = &mut setup.reading;
        match key {
            "access" => setup.through = Some(choose("access", &value, &WAYS)?),
            "order" => setup.arrangement = choose("order", &value, &ORDERS)?,
            "sight" => *sight = choose("sight", &value, &SIGHTS)?,
            "trace_format" => {
                reading.format = Some(registry::by_name(&value).ok_or_else(wrong)?);
            }
            "page_shift" => {
                let shift = value.parse().ok().filter(|shift| *shift < 64);
                reading.page_shift = Some(shift.ok_or_else(wrong)?);
            }
            "column" => {
                // Recorded with a colon, and given as `--column` takes it.
                let (column, header) = value.split_once([':', '=']).ok_or_else(wrong)?;
                let column = Column::by_name(column).ok_or_else(wrong)?;
                reading.columns.push((column, header.to_owned()));
            }
            "manifest" => reading.manifest = Some(PathBuf::from(&value)),
            "collapse_repeats" => {
                reading.collapse_repeats = match value.as_str() {
                    "0" => false,
                    "1" => true,
                    _ => return Err(wrong()),
                };
            }
            _ => {
                let known = ["access", "order", "sight"].into_iter().chain(OTHERS);
                let near = question(nearest(key, known));
                return Err(StudyError::argument(format!(
                    "unknown option `{key}`{near}"
                )));
            }
        }
    }
    Ok(())
}

/// Checks that there are only options of reading, for what does not replay a trace.
///
/// # Errors
/// Names the first one that is about replaying.
pub fn require_reading(setup: &Setup, sight: Sight) -> Result<(), StudyError> {
    let replaying = [
        ("access", setup.through.is_some()),
        ("order", setup.arrangement != Arrangement::default()),
        ("sight", sight != Sight::default()),
    ];
    match replaying.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => Err(StudyError::Argument(format!(
            "option {option} is for runs: here are only those of reading a trace"
        ))),
    }
}

impl Setup {
    /// What applies to a subject: options of traces mean nothing for a workload.
    #[must_use]
    pub fn used(&self, subject: &Subject) -> Setup {
        let used = self.clone();
        match subject {
            Subject::Trace(..) => used,
            Subject::Workload(_) => Setup {
                through: None,
                arrangement: Arrangement::default(),
                reading: Reading::default(),
                ..used
            },
        }
    }

    /// What a row says of the program and the input. `name` is that of the subject as given.
    #[must_use]
    pub fn origin(&self, name: &str, named: &Named, sight: Sight, build: &str) -> Origin {
        let mut used = self.used(&named.subject);
        // The manifest may say another one by the time this is run again.
        used.reading.format = named.format;
        Origin {
            options: to_text(&used, sight),
            source: name.to_owned(),
            source_sha256: named.sha256.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build.to_owned(),
        }
    }

    /// The settings, as `key=value` separated by blanks.
    #[must_use]
    pub fn settings_text(&self) -> String {
        let without_blanks = |text: &String| text.split_whitespace().collect::<String>();
        let settings: Vec<String> = self.settings.iter().map(without_blanks).collect();
        settings.join(" ")
    }

    /// A remark on an option that does not apply to the subject.
    pub(super) fn unused(&self, subject: &Subject) -> Option<String> {
        let Subject::Workload(workload) = subject else {
            return None;
        };
        let given = to_text(self, Sight::default());
        let (option, _) = given.split_once('=')?;
        Some(format!(
            "{}: --{} is for traces and changes nothing here",
            workload.name,
            option.replace('_', "-")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::machine::Policy;
    use crate::workload::library;

    #[test]
    fn what_is_written_is_read_back() {
        let mut setup = Setup {
            through: Some(Through::Mapping),
            arrangement: Arrangement::Reverse,
            ..Setup::default()
        };
        setup.reading.page_shift = Some(0);
        setup.reading.columns = vec![(Column::Page, "my 100% id".to_owned())];
        setup.reading.collapse_repeats = true;
        let text = to_text(&setup, Sight::Generations);
        assert_eq!(
            text,
            "access=mapped order=reverse sight=generations page_shift=0 \
             column=page:my%20100%25%20id collapse_repeats=1"
        );
        let (mut again, mut sight) = (Setup::default(), Sight::default());
        from_text(&text, &mut again, &mut sight).unwrap();
        assert_eq!(to_text(&again, sight), text);
        assert_eq!(again.reading.columns[0].1, "my 100% id");
        from_text("column=page=a:b", &mut again, &mut sight).unwrap();
        assert_eq!(again.reading.columns[1].1, "a:b");
        assert_eq!(to_text(&Setup::default(), Sight::default()), "");
        for (text, expected) in [
            ("acess=fd", "did you mean `access`"),
            ("order=foward", "did you mean `forward`"),
            ("page_shift=64", "cannot be `64`"),
            ("collapse_repeats=true", "cannot be `true`"),
        ] {
            let error = from_text(text, &mut again, &mut sight).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn options_of_traces_are_not_those_of_a_workload() {
        let kv = Subject::Workload(Arc::new(library::find("kv").unwrap()));
        let note = |setup: &Setup| setup.plan(&kv, Policy::default(), 1).unwrap().1;
        assert!(note(&Setup::default()).is_empty());
        let setup = Setup {
            reading: Reading {
                page_shift: Some(14),
                ..Reading::default()
            },
            settings: vec!["hit_ns=5".to_owned()],
            ..Setup::default()
        };
        assert!(note(&setup)[0].contains("kv: --page-shift is for traces"));
        let used = setup.used(&kv);
        assert_eq!(to_text(&used, Sight::default()), "");
        assert_eq!(used.settings, setup.settings);
    }
}
