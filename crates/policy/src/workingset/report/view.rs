// SPDX-License-Identifier: Apache-2.0
//! One report: for a node, for a cgroup on a node, or for a receiver.

use super::super::{Histogram, Intervals, OldestPages};
use super::Lruvecs;

/// Minimum sleep of the aging thread, ms.
pub const MIN_SLEEP_MS: u64 = 10;
/// The aging thread also sleeps for at least one part in this many of the interval: a refresh that
/// failed is not tried again sooner.
const MIN_SLEEP_PARTS: u64 = 8;

/// The kernel's `DEF_PRIORITY`: the first pass of reclaim, which is no sign of pressure.
pub const DEF_PRIORITY: u32 = 12;

/// Settings, report and notification of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub refresh_ms: u64,
    pub threshold_ms: u64,
    /// Exists if the interval is not 0.
    pub report: Option<Report>,
    pub last_notified_ms: Option<u64>,
}

/// The result of the last refresh.
#[derive(Clone, Debug)]
pub(super) struct Report {
    /// The oldest birth of a youngest generation at that time: the report includes everything that
    /// happened before. `None` makes the next look refresh it.
    pub timestamp_ms: Option<u64>,
    pub histogram: Histogram,
}

/// Where the pages come from, and how they are counted.
pub(super) struct Subject<'a, G> {
    pub root: Option<&'a G>,
    pub node: u32,
    pub intervals: &'a Intervals,
    pub oldest: OldestPages,
}

impl View {
    /// Sets the interval; 0 frees the report. Returns whether the aging thread must check again,
    /// because the interval was off or longer.
    pub fn set_refresh_ms(&mut self, refresh_ms: u64) -> bool {
        let before_ms = std::mem::replace(&mut self.refresh_ms, refresh_ms);
        if refresh_ms == 0 {
            self.report = None;
            return false;
        }
        self.report.get_or_insert_with(|| Report {
            timestamp_ms: None,
            histogram: Histogram::new(&Intervals::default()),
        });
        before_ms == 0 || refresh_ms < before_ms
    }

    /// Whether the settings are those of a file nobody wrote to.
    pub fn is_unset(&self) -> bool {
        self.refresh_ms == 0 && self.threshold_ms == 0
    }

    /// Makes the next look refresh the report, because the bins changed.
    pub fn expire(&mut self) {
        if let Some(report) = &mut self.report {
            report.timestamp_ms = None;
        }
    }

    /// Refreshes the report if it has expired; returns when it expires next, `None` if it is off.
    pub fn refresh<L: Lruvecs>(
        &mut self,
        world: &mut L,
        subject: &Subject<'_, L::Group>,
    ) -> Option<u64> {
        let interval_ms = self.refresh_ms;
        if interval_ms == 0 {
            return None;
        }
        let now_ms = world.now_ms();
        if let Some(Report {
            timestamp_ms: Some(at_ms),
            ..
        }) = self.report
            && at_ms.saturating_add(interval_ms) > now_ms
        {
            return Some(at_ms.saturating_add(interval_ms));
        }
        let report = make(world, subject, interval_ms);
        let expires_ms = report
            .timestamp_ms
            .unwrap_or(now_ms)
            .saturating_add(interval_ms);
        self.report = Some(report);
        Some(expires_ms)
    }

    /// When the aging thread must check again after a refresh that ended at `now_ms`.
    pub fn look_again_ms(&self, expires_ms: u64, now_ms: u64) -> u64 {
        let min_sleep_ms = MIN_SLEEP_MS.max(self.refresh_ms / MIN_SLEEP_PARTS);
        expires_ms.max(now_ms.saturating_add(min_sleep_ms))
    }

    /// Whether to report pressure now; records that it does. Nothing is reported while the report
    /// or the last notification is younger than the threshold.
    pub fn notify(&mut self, now_ms: u64) -> bool {
        let Some(report) = &self.report else {
            return false;
        };
        if self.threshold_ms == 0 {
            return false;
        }
        let since_ms = report
            .timestamp_ms
            .unwrap_or(0)
            .max(self.last_notified_ms.unwrap_or(0));
        // A report that was never made counts as infinitely old.
        let never = report.timestamp_ms.is_none() && self.last_notified_ms.is_none();
        if !never && since_ms.saturating_add(self.threshold_ms) > now_ms {
            return false;
        }
        self.last_notified_ms = Some(now_ms);
        true
    }
}

/// Ages what is due and counts the pages.
///
/// A generation is due when it is as old as the interval. The posted code requires it to be older:
/// then a look exactly when the report expires finds nothing to do.
pub(super) fn make<L: Lruvecs>(
    world: &mut L,
    subject: &Subject<'_, L::Group>,
    interval_ms: u64,
) -> Report {
    let began_ms = world.now_ms();
    let groups = world.subtree(subject.root);
    for group in &groups {
        let birth_ms = world.youngest_birth_ms(group, subject.node);
        if birth_ms.is_some_and(|birth_ms| birth_ms.saturating_add(interval_ms) <= began_ms) {
            world.age(group, subject.node);
        }
    }
    let mut histogram = Histogram::new(subject.intervals);
    let mut oldest_birth_ms: Option<u64> = None;
    for group in &groups {
        // The cgroup may have gone while the others were aged.
        let Some(birth_ms) = world.youngest_birth_ms(group, subject.node) else {
            continue;
        };
        oldest_birth_ms = Some(oldest_birth_ms.map_or(birth_ms, |oldest| oldest.min(birth_ms)));
        world.add_ages(group, subject.node, subject.oldest, &mut histogram);
    }
    Report {
        timestamp_ms: Some(oldest_birth_ms.unwrap_or_else(|| world.now_ms())),
        histogram: histogram.scaled(world.unit_bytes()),
    }
}
