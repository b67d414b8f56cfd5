// SPDX-License-Identifier: Apache-2.0
//! The kernel's DAMON: regions of adaptive size, by sampling.

use super::{Open, Source, line};
use crate::capability::facts::Facts;
use crate::capability::row::{Capability, State};
use crate::damon::{Availability, Offer};
use crate::kernel_source;

pub(super) static SOURCE: Source = Source {
    name: "damon",
    about: "The kernel's DAMON: regions of adaptive size, by sampling; of processes (--pid, \
            --cgroup), or of physical memory (--all; --cgroup where the kernel's DAMON watches \
            nothing else)",
    open: Open::Histograms(|roots, targets, ages| {
        let intervals = ages.intervals.clone();
        kernel_source::start_damon(roots.clone(), targets, intervals, ages.oldest)
    }),
    large_pages: false,
    capability,
};

fn capability(facts: &Facts) -> Capability {
    let name = SOURCE.name;
    let missing = |found: String, advice: &str| line(name, State::Missing, found).advise(advice);
    match &facts.damon {
        Availability::Absent { is_built: false } => missing(
            "no /sys/kernel/mm/damon".to_owned(),
            "use a kernel built with CONFIG_DAMON_SYSFS=y",
        ),
        Availability::Absent { is_built: true } => missing(
            "DAMON is built in, without its interface in /sys/kernel/mm/damon".to_owned(),
            "use a kernel built with CONFIG_DAMON_SYSFS=y",
        ),
        Availability::Unreadable(error) => missing(error.to_string(), "run as root"),
        Availability::InUse { owner, operations } => {
            let offers = match &operations[..] {
                [] => String::new(),
                words => format!("; it offers {}", words.join(", ")),
            };
            missing(
                format!("in use by {owner}, and it has one owner at a time{offers}"),
                "leave it to them, or stop it where it was started",
            )
        }
        Availability::Free(offer) => damon_offers(facts, name, offer),
    }
    .since("5.18")
}

/// The row for a DAMON that is not in use.
fn damon_offers(facts: &Facts, name: &'static str, offer: &Offer) -> Capability {
    let offers = match &offer.operations[..] {
        [] => "nothing that can be watched".to_owned(),
        words => words.join(", "),
    };
    let offers = format!("offers {offers}");
    if !offer.has_regions {
        let found = format!("{offers}, but not to read the regions of a monitor");
        return line(name, State::Missing, found).advise("needs Linux 6.2");
    }
    let by_process = offer.has("vaddr");
    let by_frame = offer.has("paddr") && facts.has_frame_owners;
    let found = format!("{offers}: regions of adaptive size, by sampling");
    let limited = |works: &str| line(name, State::Limited, format!("{found}: {works}"));
    match (by_process, by_frame) {
        (true, true) if offer.has_target_filter => {
            let works = "--pid, --cgroup and --all";
            line(name, State::Available, format!("{found}: {works}"))
        }
        (true, _) if !offer.has_target_filter => limited(match by_frame {
            true => "--pid and --cgroup of one process, and --all",
            false => "--pid and --cgroup of one process, not --all",
        })
        .advise("several processes need Linux 6.6"),
        (true, _) => limited("--pid and --cgroup, not --all").advise(by_frame_advice(offer)),
        (false, true) => limited("--cgroup and --all, by physical memory, not --pid").advise(
            "processes need a kernel built with CONFIG_DAMON_VADDR=y; --source pagewalk sees them",
        ),
        (false, false) if offer.has("paddr") => line(name, State::Missing, offers)
            .advise("use a kernel built with CONFIG_DAMON_VADDR=y, or CONFIG_PROC_PAGE_MONITOR=y"),
        (false, false) => line(name, State::Missing, offers)
            .advise("use a kernel built with CONFIG_DAMON_VADDR=y and CONFIG_DAMON_PADDR=y"),
    }
}

/// Advice if physical memory cannot be watched.
fn by_frame_advice(offer: &Offer) -> &'static str {
    match offer.has("paddr") {
        true => {
            "--all needs a kernel built with CONFIG_PROC_PAGE_MONITOR=y and CONFIG_MEMCG=y: it has \
             no /proc/kpagecgroup"
        }
        false => "--all needs a kernel built with CONFIG_DAMON_PADDR=y",
    }
}
