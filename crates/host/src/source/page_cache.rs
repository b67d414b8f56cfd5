// SPDX-License-Identifier: Apache-2.0
//! File pages that no process maps, seen through the kernel's tracepoints on the page cache or the
//! functions behind them. `agewise files` keeps their ages.

use super::{Open, Source, line, refused};
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};
use crate::pagecache::hooks::{Hook, Kind, Sees};

pub(super) static SOURCE: Source = Source {
    name: "page_cache",
    about: "Pages of files, read through descriptors",
    open: Open::Files,
    large_pages: false,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    let hooks = match &facts.page_cache {
        Ok(hooks) => hooks,
        Err(error) => {
            return refused(facts, name, error, "Linux 6.1 on x86-64, 6.12 on AArch64")
                .since("6.1");
        }
    };
    let of_kind = |kind: Kind, what: &str| {
        let of_it = |hook: &&&'static Hook| hook.kind == kind;
        let names: Vec<_> = hooks.iter().filter(of_it).map(|hook| hook.name).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let places = [
        of_kind(Kind::Tracepoint, "tracepoints"),
        of_kind(Kind::Function, "functions"),
    ];
    let places: Vec<_> = places.into_iter().flatten().collect();
    let found = format!("every page of files, by BPF on {}", places.join("; "));
    let is_missing = |sees: &Sees| !hooks.iter().any(|hook| hook.sees == *sees);
    let missing: Vec<_> = [Sees::Faults, Sees::Writes]
        .into_iter()
        .filter(is_missing)
        .map(Sees::name)
        .collect();
    match missing.is_empty() {
        true => line(name, State::Available, found),
        false => line(
            name,
            State::Limited,
            format!("{found}; not seen: {}", missing.join(", ")),
        ),
    }
    .since("6.1")
}
