// SPDX-License-Identifier: Apache-2.0
//! Whole mappings, from `/proc/PID/pagemap` and `smaps`: for the user's own processes, without
//! privileges.

use super::{Open, Source, line};
use crate::access::check_page_size;
use crate::access::pagemap::Pagemap;
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};

pub(super) static SOURCE: Source = Source {
    name: "pagemap",
    about: "Whole mappings, of your own processes",
    open: Open::Pages(|| {
        check_page_size("the access source pagemap")?;
        Ok(Box::new(Pagemap::new()))
    }),
    large_pages: false,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    if !facts.has_clear_refs {
        return line(name, State::Missing, "no /proc/PID/pagemap and clear_refs")
            .since("2.6.25")
            .advise("use a kernel built with CONFIG_PROC_PAGE_MONITOR=y");
    }
    let whose = match facts.privileges.missing(&["CAP_SYS_PTRACE"])[..] {
        [] => "all processes",
        _ => "your own processes",
    };
    let found = format!("{whose}, a mapping at a time: coarser, and slower, than page tables");
    line(name, State::Limited, found).since("2.6.25")
}
