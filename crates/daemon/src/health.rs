// SPDX-License-Identifier: Apache-2.0
//! Whether each part of the daemon is able to do its job, as reported by `/healthz`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A part of the daemon that can have problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Actions cannot be recorded, so none are taken.
    Journal,
    /// Something that was done has not been undone yet.
    Ledger,
    /// Something that an earlier daemon did was not undone at the start, and is not tried again.
    Start,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Journal => "journal",
            Part::Ledger => "ledger",
            Part::Start => "start",
        }
    }
}

/// The current problems. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Troubles>>);

#[derive(Debug, Default)]
struct Troubles {
    of: BTreeMap<Part, String>,
    /// Problems as reported by another process.
    reported: Vec<String>,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, Troubles> {
        // Every change is a single assignment, so a poisoned lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a problem of a part.
    pub fn fails(&self, part: Part, why: String) {
        self.lock().of.insert(part, why);
    }

    /// Records that a part has no problem any more.
    pub fn recovers(&self, part: Part) {
        self.lock().of.remove(&part);
    }

    /// Replaces the problems reported by the process that knows them, one per line.
    pub fn replace(&self, reported: Vec<String>) {
        self.lock().reported = reported;
    }

    /// The problems, one line for each; empty if there are none.
    pub fn reasons(&self) -> Vec<String> {
        let reported = |(part, why): (&Part, &String)| {
            // One line for each, whatever the message contains.
            let why: String = why.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{}: {why}", part.name())
        };
        let troubles = self.lock();
        let of = troubles.of.iter().map(reported);
        of.chain(troubles.reported.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_fails_and_recovers_by_itself() {
        let health = Health::default();
        health.clone().fails(Part::Ledger, "a\nb".to_owned());
        health.fails(Part::Journal, "full".to_owned());
        assert_eq!(health.reasons(), ["journal: full", "ledger: a b"]);
        health.recovers(Part::Journal);
        health.recovers(Part::Journal);
        assert_eq!(health.reasons(), ["ledger: a b"]);
    }
}
