// SPDX-License-Identifier: Apache-2.0
//! Custom kernels: a TOML file that starts from a known kernel, changes decisions of its multi-gen
//! LRU, or switches features off.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use agewise_kernel::mglru::ablation::{Ablation, Part};
use agewise_kernel::mglru::profile::{
    AgingRule, DebugfsSyntax, FaultMark, MemcgOrder, Profile, ReclaimLoop, TypeChoice, UsageCount,
};
use agewise_trace::suggest::nearest;
use sha2::{Digest, Sha256};
use thiserror::Error;
use toml::{Table, Value};

use super::kernel::Kernel;

/// Size limit of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// A key that never had an effect. Results of earlier builds, which record their profiles, have to
/// remain repeatable.
const WITHOUT_EFFECT: &str = "contended_table_is_dense";

/// Limit on different files in one process.
const FILES_MAX: usize = 10_000;

/// Where a profile is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In this file.
    File(&'a Path),
    /// Here, as a result recorded it.
    Text(&'a str),
}

/// A profile that cannot be used.
#[derive(Debug, Error)]
pub enum ProfileError {
    #[error("cannot read the profile {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("profile {}: {what}", path.display())]
    Invalid { path: PathBuf, what: String },
}

/// One key of a profile: its name, what it decides, and the values it accepts.
pub struct Field {
    /// Name.
    pub key: &'static str,
    /// What it decides.
    pub description: &'static str,
    expected: &'static str,
    /// Accepted values as written in a profile; for numbers, examples.
    pub values: &'static [&'static str],
    set: fn(&mut Parts, &Value) -> Option<()>,
}

/// The parts of a kernel that a profile can change.
struct Parts {
    profile: Profile,
    ablation: Ablation,
}

macro_rules! flag {
    ($key:ident: $description:literal) => {
        Field {
            key: stringify!($key),
            description: $description,
            expected: "true or false",
            values: &["true", "false"],
            set: |parts, value| {
                parts.profile.$key = value.as_bool()?;
                Some(())
            },
        }
    };
}

macro_rules! choice {
    ($key:ident, $description:literal, $expected:literal, $($name:literal => $value:expr),+) => {
        Field {
            key: stringify!($key),
            description: $description,
            expected: $expected,
            values: &[$(concat!("'", $name, "'")),+],
            set: |parts, value| {
                parts.profile.$key = match value.as_str()? {
                    $($name => $value,)+
                    _ => return None,
                };
                Some(())
            },
        }
    };
}

/// All decisions of a profile, and the features that can be switched off.
pub const FIELDS: &[Field] = &[
    Field {
        key: "generations",
        description: "most generations of a list; a refault window of all of them follows",
        expected: "a number from 4 to 7",
        values: &["4", "5", "7"],
        set: |parts, value| {
            let generations = whole(value, 4, 7)?;
            parts.profile.generations = generations as u8;
            // Keys come in order, so `refault_window` may still say otherwise.
            parts.profile.refault_window = parts.profile.refault_window.map(|_| generations);
            Some(())
        },
    },
    Field {
        key: "tiers",
        description: "tiers of a generation, by uses through file descriptors",
        expected: "a number from 2 to 4",
        values: &["2", "3", "4"],
        set: |parts, value| {
            parts.profile.tiers = whole(value, 2, 4)? as u8;
            Some(())
        },
    },
    choice!(usage, "which flag counts the second use", "workingset-second or workingset-last",
        "workingset-second" => UsageCount::WorkingsetSecond,
        "workingset-last" => UsageCount::WorkingsetLast),
    choice!(fault_mark, "what a fault does to the page it brings in", "activate or reference",
        "activate" => FaultMark::Activate, "reference" => FaultMark::Reference),
    flag!(first_sighting_promotes: "the first accessed bit promotes"),
    choice!(aging, "when eviction ages first", "ratio-by-file, ratio or spare-generation",
        "ratio-by-file" => AgingRule::RatioByFile,
        "ratio" => AgingRule::Ratio,
        "spare-generation" => AgingRule::SpareGeneration),
    choice!(reclaim_loop, "how much a pass evicts", "rounds or batches",
        "rounds" => ReclaimLoop::Rounds, "batches" => ReclaimLoop::Batches),
    choice!(type_choice, "how the type to evict is chosen", "tier-zero or all-tiers",
        "tier-zero" => TypeChoice::TierZero, "all-tiers" => TypeChoice::AllTiers),
    Field {
        key: "tier_gain",
        description: "gains of tier 0 and of the tier it is compared with",
        expected: "two numbers from 1 to 1000, such as [2, 3]",
        values: &["[1, 1]", "[1, 2]", "[2, 3]", "[5, 7]"],
        set: |parts, value| {
            let [a, b] = value.as_array()?.as_slice() else {
                return None;
            };
            parts.profile.tier_gain = (whole(a, 1, 1000)?, whole(b, 1, 1000)?);
            Some(())
        },
    },
    Field {
        key: "refault_window",
        description: "how many generations back a refault is recent",
        expected: "a number from 1 to 7, or oldest: the oldest generation only",
        values: &["'oldest'", "1", "2", "3", "4"],
        set: |parts, value| {
            parts.profile.refault_window = match value.as_str() {
                Some("oldest") => None,
                Some(_) => return None,
                None => Some(whole(value, 1, 7)?),
            };
            Some(())
        },
    },
    flag!(file_may_lead: "file generations may run ahead of anonymous ones"),
    flag!(protect_to_head: "protected pages go to the young end of the next generation"),
    flag!(sorts_dirty: "dirty pages are moved up by sorting"),
    flag!(isolation_needs_io: "reclaimers that must not start I/O leave pages that need it"),
    flag!(kswapd_writes_files: "kswapd may write dirty file pages"),
    flag!(flusher_per_batch: "the flusher is woken after each batch"),
    flag!(kswapd_ages_all: "kswapd ages every cgroup before each pass"),
    choice!(memcg_order, "the order of cgroups in global reclaim", "memcg-lru or cursor",
        "memcg-lru" => MemcgOrder::MemcgLru, "cursor" => MemcgOrder::Cursor),
    flag!(reparents_on_offline: "pages of a removed cgroup move to its parent at once"),
    flag!(has_swappiness_max: "swappiness 201 exists"),
    flag!(has_switching_state: "reclaim tries both structures while they are switched"),
    Field {
        key: "anon_token_bits",
        description: "bits of the generation in the shadow of an anonymous page",
        expected: "a number from 16 to 36",
        values: &["16", "31", "36"],
        set: |parts, value| {
            parts.profile.anon_token_bits = whole(value, 16, 36)? as u32;
            Some(())
        },
    },
    flag!(shadow_limit_counts_lists: "the limit of shadows sees the sizes of lists"),
    choice!(debugfs, "syntax of the debugfs files", "patches, short-ids or long-ids",
        "patches" => DebugfsSyntax::Patches,
        "short-ids" => DebugfsSyntax::ShortIds,
        "long-ids" => DebugfsSyntax::LongIds),
    Field {
        key: "without",
        description: "parts that are left out",
        expected: "a list of bloom, protection, look-around, restore, fault-mark, refault-window \
                   or early-aging",
        values: &[
            "['bloom']",
            "['protection']",
            "['look-around']",
            "['restore']",
            "['fault-mark']",
            "['refault-window']",
            "['early-aging']",
        ],
        set: |parts, value| {
            let named = value.as_array()?.iter();
            parts.ablation = named
                .map(|part| Part::by_name(part.as_str()?))
                .collect::<Option<_>>()?;
            Some(())
        },
    },
];

fn whole(value: &Value, low: u64, high: u64) -> Option<u64> {
    let number = u64::try_from(value.as_integer()?).ok()?;
    (low..=high).contains(&number).then_some(number)
}

/// The file that the name of a policy refers to, as in `mglru:FILE.toml`.
#[must_use]
pub fn named_in(policy: &str) -> Option<&str> {
    let (_, file) = policy.split_once(':')?;
    file.ends_with(".toml").then_some(file)
}

/// Reads a kernel; its name is `name`, the path by which the file was first given.
///
/// # Errors
/// Describes what is wrong with the profile.
pub fn read(name: &str, from: Source<'_>) -> Result<&'static Kernel, ProfileError> {
    let (path, text) = match from {
        Source::File(path) => (path, text_of(path)?),
        Source::Text(text) => (Path::new(name), text.to_owned()),
    };
    let invalid = |what| ProfileError::Invalid {
        path: path.to_owned(),
        what,
    };
    let (base, parts) = parse(&text).map_err(invalid)?;
    let sha256 = sha256_of(&text);
    keep(name, (&sha256, Some(&text)), base, parts).ok_or_else(|| {
        invalid(format!(
            "{FILES_MAX} other profiles were read before it: restart agewise"
        ))
    })
}

/// SHA-256 of the text of a profile, in hexadecimal.
pub fn sha256_of(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text of a file that may be a profile.
fn text_of(path: &Path) -> Result<String, ProfileError> {
    let invalid = |what| ProfileError::Invalid {
        path: path.to_owned(),
        what,
    };
    let unreadable = |source| ProfileError::Read {
        path: path.to_owned(),
        source,
    };
    let meta = std::fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() {
        // A FIFO would block until somebody writes to it.
        return Err(invalid("it is not a regular file".to_owned()));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(invalid(
            "it is larger than 64 KiB, too large for a profile".to_owned(),
        ));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// A kernel with some lines of a profile changed; None if they change nothing.
///
/// # Errors
/// Describes what is wrong with the lines.
pub fn changed(kernel: &str, lines: &str) -> Result<Option<&'static Kernel>, String> {
    let text = format!("base = \"{kernel}\"\n{lines}\n");
    let (base, parts) = parse(&text)?;
    if (parts.profile, parts.ablation) == (*base.mglru, base.ablation) {
        return Ok(None);
    }
    let name = format!("{kernel}, {lines}");
    let full = || format!("{FILES_MAX} other profiles were read before it: restart agewise");
    keep(&name, ("", None), base, parts)
        .map(Some)
        .ok_or_else(full)
}

/// Keeps a kernel for the life of the process, because kernels are compared and copied as static
/// references. Each kernel read is kept once.
fn keep(
    name: &str,
    (sha256, text): (&str, Option<&str>),
    base: &Kernel,
    parts: Parts,
) -> Option<&'static Kernel> {
    static KEPT: Mutex<Vec<&'static Kernel>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |kernel: &&&Kernel| (kernel.name(), kernel.sha256) == (name, Some(sha256));
    if let Some(known) = kept.iter().find(is_it) {
        return Some(known);
    }
    if kept.len() == FILES_MAX {
        return None;
    }
    let mglru: &'static Profile = Box::leak(Box::new(Profile {
        name: name.to_owned().leak(),
        ..parts.profile
    }));
    let kernel = Box::leak(Box::new(Kernel {
        mglru,
        ablation: parts.ablation,
        sha256: Some(sha256.to_owned().leak()),
        text: text.map(|text| &*text.to_owned().leak()),
        ..base.clone()
    }));
    kept.push(kernel);
    Some(kernel)
}

fn parse(text: &str) -> Result<(&'static Kernel, Parts), String> {
    let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let names = || super::kernel::KERNELS.iter().map(Kernel::name);
    let base = match table.get("base") {
        None => Kernel::NEWEST,
        Some(base) => base.as_str().and_then(Kernel::by_name).ok_or_else(|| {
            format!(
                "base is one of \"{}\"",
                names().collect::<Vec<_>>().join("\", \"")
            )
        })?,
    };
    let mut parts = Parts {
        profile: *base.mglru,
        ablation: base.ablation,
    };
    let is_field = |key: &str| !["base", WITHOUT_EFFECT].contains(&key);
    for (key, value) in table.iter().filter(|(key, _)| is_field(key)) {
        let Some(field) = FIELDS.iter().find(|field| field.key == key) else {
            let keys = FIELDS.iter().map(|field| field.key).chain(["base"]);
            let near = nearest(key, keys).map(|near| format!("did you mean `{near}`?"));
            let near = near.unwrap_or_else(|| "`agewise lab list` names all".to_owned());
            return Err(format!("unknown field `{key}`; {near}"));
        };
        (field.set)(&mut parts, value)
            .ok_or_else(|| format!("{key}: {value} is not {}", field.expected))?;
    }
    Ok((base, parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Policy;

    #[test]
    fn every_field_can_be_changed_and_runs() {
        // A new field of either struct needs its line in FIELDS.
        let Profile {
            name: _,
            generations: _,
            tiers: _,
            usage: _,
            fault_mark: _,
            first_sighting_promotes: _,
            aging: _,
            reclaim_loop: _,
            type_choice: _,
            tier_gain: _,
            refault_window: _,
            file_may_lead: _,
            protect_to_head: _,
            sorts_dirty: _,
            isolation_needs_io: _,
            kswapd_writes_files: _,
            flusher_per_batch: _,
            kswapd_ages_all: _,
            memcg_order: _,
            reparents_on_offline: _,
            has_swappiness_max: _,
            has_switching_state: _,
            anon_token_bits: _,
            shadow_limit_counts_lists: _,
            debugfs: _,
        } = Profile::default();
        assert_eq!(FIELDS.len(), 24 + 1);
        let pages: Vec<u64> = (0..30_000u64).map(|n| n * n % 1009 + n % 300).collect();
        let trace = agewise_trace::DenseTrace::from_pages(&pages);
        let place = tempfile::tempdir().expect("a directory");
        for (base, of) in [("7.2", "mglru-7.2"), ("6.12", "mglru-6.12-mapped")] {
            let unchanged = crate::yardstick::by_name(of).unwrap().misses(&trace, 600);
            let lines = FIELDS.iter().flat_map(|field| {
                let line = |value| format!("{} = {value}", field.key);
                field.values.iter().map(line)
            });
            let is_change = |line: &String| changed(base, line).unwrap().is_some();
            let mut parts = Part::names().map(|part| format!("without = ['{part}']"));
            let changes: Vec<String> = lines.filter(is_change).collect();
            assert!(parts.all(|part| changes.contains(&part)));
            for field in FIELDS {
                let is_of = |line: &String| line.starts_with(field.key);
                assert!(changes.iter().any(is_of), "{}", field.key);
            }
            for (number, change) in changes.iter().enumerate() {
                let path = place.path().join(format!("{number}-{base}.toml"));
                std::fs::write(&path, format!("base = \"{base}\"\n{change}\n")).expect("written");
                let name = format!("mglru:{}", path.display());
                let policy = Policy::parse(&name).expect("a policy");
                assert_eq!(policy.name(), name);
                let name = match base {
                    "6.12" => name.replace("mglru:", "mglru-mapped:"),
                    _ => name,
                };
                let yardstick = crate::yardstick::parse(&name).expect("a policy");
                let misses = yardstick.misses(&trace, 600);
                assert!(misses > 600 && misses < unchanged * 3, "{change}: {misses}");
            }
        }
    }

    #[test]
    fn a_refault_window_follows_the_generations_unless_it_is_given() {
        let of = |text: &str| {
            let (_, parts) = parse(text).expect(text);
            (parts.profile.generations, parts.profile.refault_window)
        };
        assert_eq!(of("generations = 6"), (6, Some(6)));
        assert_eq!(of("refault_window = 2\ngenerations = 6"), (6, Some(2)));
        assert_eq!(of("base = '6.12'\ngenerations = 6"), (6, None));
    }

    #[test]
    fn a_profile_of_an_earlier_build_is_what_it_was() {
        assert!(
            changed("7.2", "contended_table_is_dense = true")
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn mistakes_are_told() {
        for (text, expected) in [
            ("base = '7.3'", "base is one of \"7.2\""),
            (
                "agin = 'ratio'",
                "unknown field `agin`; did you mean `aging`?",
            ),
            ("xyz = 1", "`agewise lab list` names all"),
            (
                "aging = 'often'",
                "aging: \"often\" is not ratio-by-file, ratio or",
            ),
            ("sorts_dirty = 1", "sorts_dirty: 1 is not true or false"),
            ("without = ['blom']", "is not a list of bloom, protection"),
            ("tier_gain = [0, 1]", "two numbers from 1"),
            ("anon_token_bits = -1", "16 to 36"),
            ("generations = 3", "generations: 3 is not a number from 4"),
            ("generations = 8", "generations: 8 is not a number from 4"),
            ("tiers = 1", "tiers: 1 is not a number from 2 to 4"),
            ("a b", "line 1"),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = Policy::parse("mglru:/nonexistent.toml")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cannot read the profile /nonexistent.toml"),
            "{error}"
        );
        let error = Policy::parse("classic:my.toml").unwrap_err().to_string();
        assert!(error.contains("multi-gen"), "{error}");
    }

    #[test]
    fn only_regular_files_are_read() {
        let error = read("null.toml", Source::File(Path::new("/dev/null"))).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
