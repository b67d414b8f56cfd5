// SPDX-License-Identifier: Apache-2.0
//! The processes given by pid.

use std::collections::BTreeMap;
use std::sync::Arc;

use agewise_host::process::Bound;
use agewise_host::root::ProcRoot;

use crate::config::Matcher;
use crate::journal::Journal;
use crate::record::Message;

/// The processes that rules apply to, and others that are observed.
pub(super) type BoundPids = BTreeMap<u32, Arc<Bound>>;

/// Binds the pids of a configuration. Those bound earlier stay bound, even if another process has
/// the pid now.
pub(super) fn bind(root: &ProcRoot, matcher: &Matcher, before: &BoundPids) -> BoundPids {
    let bind = |pid: u32| match before.get(&pid) {
        Some(bound) => Arc::clone(bound),
        None => Arc::new(Bound::new(root, pid)),
    };
    let pids = matcher.pids().into_iter();
    pids.map(|pid| (pid, bind(pid))).collect()
}

/// Reports newly bound pids without a process that can be observed: nothing will be done for them,
/// even if a process gets such a pid later.
pub(super) fn report_unbound(journal: &Journal, pids: &BoundPids, before: &BoundPids) {
    let new = pids.iter().filter(|(pid, _)| !before.contains_key(pid));
    for error in new.filter_map(|(_, bound)| bound.process().err()) {
        let message = format!("pids: {error}");
        journal.write("trouble", &Message { message });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Config};
    use crate::health::Health;

    #[test]
    fn a_pid_without_a_process_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("journal");
        let config = config::Journal {
            file: file.clone(),
            ..Default::default()
        };
        let journal = Journal::open(&config, &Health::default()).unwrap();
        let config = Config::parse("[observe]\npids = [7]\n").unwrap();
        let matcher = Matcher::new(&config).unwrap();
        let pids = bind(&ProcRoot::new(dir.path()), &matcher, &BoundPids::new());
        report_unbound(&journal, &pids, &BoundPids::new());
        report_unbound(&journal, &pids, &pids);
        let written = std::fs::read_to_string(file).unwrap();
        assert_eq!(written.lines().count(), 1, "{written}");
        assert!(written.contains("process 7 does not exist"), "{written}");
    }
}
