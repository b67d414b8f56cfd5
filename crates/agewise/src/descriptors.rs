// SPDX-License-Identifier: Apache-2.0
//! How many files agewise may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. Each process that is followed takes a descriptor, and the
/// usual soft limit of services and sessions, 1024, only protects programs that use `select`.
pub fn allow_as_many_as_possible() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If refused, what cannot be opened is reported.
    let _ = setrlimit(Resource::Nofile, raised);
}
