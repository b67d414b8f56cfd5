// SPDX-License-Identifier: Apache-2.0
//! Page faults in exact order, from BPF tracepoints: `trace record --faults` adds them to page
//! tables.

use super::{Open, Source, line, refused};
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};

pub(super) static SOURCE: Source = Source {
    name: "page_faults",
    about: "Page faults, one by one",
    open: Open::Events,
    large_pages: false,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    match &facts.faults {
        Ok(()) => line(
            name,
            State::Available,
            "first touches and refaults with time and order, by BPF tracepoint",
        ),
        Err(error) => refused(facts, name, error, "Linux 5.8 on x86-64"),
    }
    .since("5.8")
}
