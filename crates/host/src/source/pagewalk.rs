// SPDX-License-Identifier: Apache-2.0
//! Page tables read by a BPF program, which is exact for every page.

use super::{Open, Source, line, refused};
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};
use crate::pagewalk::PageWalk;

pub(super) static SOURCE: Source = Source {
    name: "pagewalk",
    about: "Page tables: every single page",
    open: Open::Pages(|| Ok(Box::new(PageWalk::open()?))),
    large_pages: true,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    match &facts.walker {
        Ok(walker) => {
            let found = format!(
                "every page of every process; BPF {} program, {}-level tables",
                walker.flavour, walker.levels
            );
            line(name, State::Available, found)
        }
        Err(error) => refused(facts, name, error, "Linux 5.17 on x86-64 or AArch64"),
    }
    .since("5.17")
}
