// SPDX-License-Identifier: Apache-2.0
//! Lists the files with the most memory, for those who look at the page. Paths take a lookup of
//! each file in the kernel and in the file system, so they are not listed at every look.

use agewise_cli::units::unix_ms;
use agewise_host::agent::{Agent, FilesIn};
use agewise_host::pagecache::LargeFile as Found;
use agewise_host::untrusted::Untrusted;

use super::state::{AgeBin, LargeFile, LargestFiles};

/// The most files listed.
const FILES_MAX: usize = 20;
/// The longest name, so that a list is no larger than some 25 KiB.
const NAME_MAX_BYTES: usize = 512;
/// Time between two lists. At first they follow each other faster: all files look young then.
const LIST_EVERY_MS: std::ops::RangeInclusive<u64> = 5_000..=60_000;

/// The last list.
#[derive(Default)]
pub struct Lister {
    last: Option<LargestFiles>,
    listed_ms: Option<u64>,
}

impl Lister {
    /// The last list, or a new one if it is time; `None` if the page cache is not followed, or was
    /// not looked at yet.
    pub fn files(&mut self, agent: &mut Agent, now_ms: u64) -> Option<LargestFiles> {
        agent.cached_ms()?;
        let last_ms = self.last.as_ref().map_or(0, |last| last.observed_ms);
        let pause_ms = last_ms.clamp(*LIST_EVERY_MS.start(), *LIST_EVERY_MS.end());
        let due_ms = self.listed_ms.map_or(0, |at_ms| at_ms + pause_ms);
        if now_ms >= due_ms {
            // If there is none, the last one stays.
            self.last = list(agent).or(self.last.take());
            self.listed_ms = Some(now_ms);
        }
        self.last.clone()
    }
}

fn list(agent: &mut Agent) -> Option<LargestFiles> {
    let found = agent.largest_files(FilesIn::All, FILES_MAX).ok()?;
    let files = found.files.into_iter();
    let largest = files.map(|file| {
        let cgroup = agent.cgroup_path(file.cgroup).map(Untrusted::from);
        shown(file, cgroup)
    });
    Some(LargestFiles {
        unix_ms: unix_ms(),
        observed_ms: found.observed_ms,
        count: found.count,
        resident_bytes: found.resident_bytes,
        largest: largest.collect(),
    })
}

fn shown(file: Found, cgroup: Option<Untrusted>) -> LargeFile {
    let are_ages_known = file.kind.has_ages();
    LargeFile {
        name: end_of(&file.name),
        cgroup: cgroup.as_ref().map(end_of),
        resident_bytes: file.resident_bytes,
        dirty_bytes: file.dirty_bytes,
        oldest_ms: are_ages_known.then_some(file.oldest_ms),
        ages: are_ages_known.then(|| AgeBin::all(&file.ages)),
        is_sampled: file.is_sampled,
    }
}

/// The end of a long name, which tells more than its beginning.
fn end_of(name: &Untrusted) -> Untrusted {
    let bytes = name.as_bytes();
    let Some(mut from) = bytes.len().checked_sub(NAME_MAX_BYTES) else {
        return name.clone();
    };
    // No character is cut in two.
    from += bytes[from..]
        .iter()
        .take_while(|byte| **byte & 0xc0 == 0x80)
        .count();
    Untrusted::from(&*[b"...", &bytes[from..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_host::pagecache::CacheKind;
    use agewise_policy::workingset::Histogram;

    #[test]
    fn shared_memory_is_listed_without_ages() {
        let of = |kind| {
            let file = Found {
                name: "a".into(),
                kind,
                cgroup: 0,
                resident_bytes: 4096,
                dirty_bytes: 0,
                ages: Histogram::new(&"1s".parse().unwrap()),
                oldest_ms: 3000,
                is_sampled: false,
            };
            let file = shown(file, None);
            (file.oldest_ms, file.ages.map(|bins| bins.len()))
        };
        assert_eq!(of(CacheKind::File), (Some(3000), Some(2)));
        assert_eq!(of(CacheKind::Shmem), (None, None));
    }

    #[test]
    fn of_a_long_name_the_end_is_kept() {
        let short = Untrusted::from("a".repeat(NAME_MAX_BYTES - 1));
        assert_eq!(end_of(&short), short);
        let long = end_of(&Untrusted::from(format!("{}/data", "\u{e4}".repeat(4000))));
        let shown = long.terminal().to_string();
        assert!(shown.starts_with("...\u{e4}") && shown.ends_with("\u{e4}/data"));
        assert!(long.as_bytes().len() <= NAME_MAX_BYTES + 3);
    }
}
