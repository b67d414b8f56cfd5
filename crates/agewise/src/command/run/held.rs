// SPDX-License-Identifier: Apache-2.0
//! Holds a family of processes below a memory limit, in a cgroup of its own, using the policy and
//! the thread with which the daemon holds budgets.

use std::sync::Arc;

use agewise_daemon::ahead::{self, Ahead, Report};
use agewise_daemon::observer::Key;
use agewise_daemon::world::World;
use agewise_host::access::PAGE_BYTES;
use agewise_host::cgroup::{Limits, OwnCgroup};
use agewise_host::guest::Guests;
use agewise_host::process::Process;
use agewise_host::root::{ProcRoot, Roots};
use agewise_host::swap;
use agewise_policy::proactive::{Backend, Spec};
use anyhow::{Context, ensure};

use super::keeper::{Done, Notes, Way};
use super::summary::Summary;
use agewise_cli::units::bytes_text;

/// No budget is smaller.
const LIMIT_MIN_BYTES: u64 = 64 << 10;

/// Holds memory below a limit.
pub struct Held {
    ahead: Ahead,
    /// The cgroup with the limit; `None` in a dry run.
    own: Option<Arc<OwnCgroup>>,
    limit_bytes: u64,
    spec: Spec,
    backend: Backend,
    files: bool,
    /// The least free swap at any look, bytes.
    least_free_swap_bytes: Option<u64>,
    guests: Guests,
    sum: Report,
}

impl Held {
    /// Opens the access source and creates the cgroup. `how` has the other parameters of the policy
    /// `budget`; `files` also allows dropping pages of the cgroup's page cache, `guests` moving
    /// memory of processes that run KVM guests.
    ///
    /// # Errors
    /// No swap, no access to page tables, or no usable cgroup; each error says how to fix it.
    pub fn new(
        limit_bytes: u64,
        how: &str,
        files: bool,
        guests: Guests,
        rehearse: bool,
    ) -> anyhow::Result<Self> {
        if limit_bytes < LIMIT_MIN_BYTES {
            agewise_cli::refuse!(
                "--memory {}: nothing runs in that; give at least {}",
                bytes_text(limit_bytes),
                bytes_text(LIMIT_MIN_BYTES)
            );
        }
        let spec: Spec = format!("budget:{limit_bytes},{how}")
            .parse()
            .with_context(|| format!("--memory {} ({how})", bytes_text(limit_bytes)))?;
        let backend = World::new(Roots::default()).backend();
        ensure!(
            backend != Backend::None || files,
            "no free swap: --memory moves what is worth least there; add some (zram will do), or \
             leave the limit to the kernel by a cgroup without agewise"
        );
        let ahead =
            Ahead::start(Box::new(|_, _| true)).context("--memory has to see single pages")?;
        let own = match rehearse {
            true => None,
            false => {
                let own = super::make_cgroup()?;
                own.set_limit(limit_bytes)?;
                Some(Arc::new(own))
            }
        };
        Ok(Held {
            ahead,
            own,
            limit_bytes,
            spec,
            backend,
            files,
            least_free_swap_bytes: None,
            guests,
            sum: Report::default(),
        })
    }

    /// The cgroup in which the command must be started.
    pub fn own(&self) -> Option<Arc<OwnCgroup>> {
        self.own.clone()
    }

    /// Notes a limit that is no longer ours: the figures then say nothing about the one asked for.
    fn check_limit(&self, notes: &mut Notes) {
        let limits = self.own.as_ref().map(|own| own.cgroup().limits());
        let Some(Ok(Limits { max_bytes, .. })) = limits else {
            return;
        };
        // The kernel rounds to pages.
        let pages = |bytes: u64| bytes / PAGE_BYTES;
        if max_bytes.map(pages) != Some(pages(self.limit_bytes)) {
            let now = max_bytes.map_or("no limit".to_owned(), bytes_text);
            notes.add(format!(
                "somebody else changed the limit of the cgroup from {} to {now}",
                bytes_text(self.limit_bytes)
            ));
        }
    }

    fn add(&mut self, reports: Vec<(Key, Report)>, notes: &mut Notes) {
        for (_, mut report) in reports {
            report
                .trouble
                .take()
                .into_iter()
                .for_each(|trouble| notes.add(trouble));
            self.sum.add(report);
        }
    }
}

impl Way for Held {
    fn look(&mut self, family: &[Process], notes: &mut Notes) {
        let process = |process: &Process| (process.pid(), process.start_ticks());
        let held = ahead::Held {
            key: (Arc::from(super::PREFIX), 0),
            cgroup: self.own.as_ref().map(|own| own.cgroup().clone()),
            processes: family.iter().map(process).collect(),
            spec: self.spec.clone(),
            dry_run: self.own.is_none(),
            backend: self.backend,
            // In a dry run there is no cgroup that file pages would be charged to.
            files: self.files && self.own.is_some(),
            guests: self.guests,
            without: Vec::new(),
        };
        if let Err(error) = self.ahead.hold(vec![held]) {
            notes.add(format!("statistics are not kept fresh: {error}"));
        }
        let reports = self.ahead.take_reports();
        self.add(reports, notes);
        self.check_limit(notes);
        // Noted at each look, since a kill empties swap.
        let free = swap::free_bytes(&ProcRoot::default()).ok();
        let seen = [self.least_free_swap_bytes, free];
        self.least_free_swap_bytes = seen.into_iter().flatten().min();
    }

    fn done(&self) -> Done {
        Done {
            left_bytes: self.sum.left_bytes,
            rehearsed_bytes: self.sum.rehearsed_bytes,
            refaulted_bytes: None,
        }
    }

    fn finish(mut self: Box<Self>, summary: &mut Summary, notes: &mut Notes) {
        // The thread must end before its cgroup is removed.
        let reports = self.ahead.end();
        self.add(reports, notes);
        self.check_limit(notes);
        summary.policy = Some(self.spec.to_string());
        summary.reclaimed_bytes = self.sum.left_bytes;
        let dropped_bytes = self.sum.dropped_bytes;
        summary.reclaimed_anon_bytes = self.sum.left_bytes.saturating_sub(dropped_bytes);
        summary.reclaimed_file_bytes = dropped_bytes;
        summary.scans = self.sum.scans;
        summary.gain = self.sum.measured;
        summary.not_held = self.sum.kernel_first;
        let Some(own) = self.own else {
            let limit = bytes_text(self.limit_bytes);
            return notes.add(format!(
                "no cgroup was made and no limit of {limit} set (--dry-run)"
            ));
        };
        summary.limit_bytes = Some(self.limit_bytes);
        summary.limit_hits = own.cgroup().limit_hits().ok().flatten();
        summary.oom_kills = own.cgroup().oom_kills().ok().flatten();
        if let Some(killed @ 1..) = summary.oom_kills {
            let free = self.least_free_swap_bytes.map_or(String::new(), |bytes| {
                format!(" (least free swap seen: {})", bytes_text(bytes))
            });
            notes.add(format!(
                "the kernel killed processes of the command ({killed}): it found nothing to \
                 reclaim below the limit{free}; give more memory or swap"
            ));
        }
        summary.major_faults = own.cgroup().stat().ok().map(|stat| stat.major_faults);
        if let Err(error) = own.remove() {
            notes.add(format!("{error}; remove it by hand"));
        }
    }
}
