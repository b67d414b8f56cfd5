// SPDX-License-Identifier: Apache-2.0
//! Pages of files that no process maps, by the kernel's tracepoints on the page cache: what
//! `agewise files` keeps the ages of.

use super::{Open, Source, line, refused};
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};
use crate::pagecache::accessed::TRACEPOINTS;

pub(super) static SOURCE: Source = Source {
    name: "page_cache",
    about: "Pages of files, read through descriptors",
    open: Open::Files,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    let points = match &facts.page_cache {
        Ok(points) => points,
        Err(error) => return refused(facts, name, error, "Linux 6.11 on x86-64").since("6.11"),
    };
    let names: Vec<_> = points.iter().map(|point| point.name).collect();
    let found = format!("every page of files, by BPF on {}", names.join(", "));
    let missing = TRACEPOINTS.iter().filter(|point| !points.contains(point));
    let missing: Vec<_> = missing.map(|point| point.sees).collect();
    match missing.is_empty() {
        true => line(name, State::Available, found),
        false => line(
            name,
            State::Limited,
            format!("{found}; not seen: {}", missing.join(", ")),
        ),
    }
    .since("6.11")
}
