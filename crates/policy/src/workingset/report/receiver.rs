// SPDX-License-Identifier: Apache-2.0
//! Receivers: parties to which the reports of a node are sent, such as the host side of a balloon.
//! Each has its own bins, interval and threshold. In the posted code they overwrite those of the
//! node's files.

use super::super::{Histogram, Intervals, OldestPages};
use super::view::{Subject, View, make};
use super::{Lruvecs, ReportError, Reports};

/// Identifies a receiver.
pub type ReceiverId = u32;

#[derive(Clone, Debug)]
pub(super) struct Receiver {
    pub node: u32,
    pub intervals: Intervals,
    pub view: View,
}

impl Receiver {
    pub fn refresh<L: Lruvecs>(&mut self, world: &mut L, oldest: OldestPages) -> Option<u64> {
        let subject = Subject {
            root: None,
            node: self.node,
            intervals: &self.intervals,
            oldest,
        };
        self.view.refresh(world, &subject)
    }
}

impl<G: Clone + Ord> Reports<G> {
    /// Registers or changes a receiver. With an interval of 0 it only gets reports on request and
    /// under pressure.
    ///
    /// # Errors
    /// [`ReportError::NodeOffline`]; nothing has changed then.
    pub fn set_receiver(
        &mut self,
        id: ReceiverId,
        node: u32,
        intervals: Intervals,
        refresh_ms: u64,
        threshold_ms: u64,
        now_ms: u64,
    ) -> Result<(), ReportError> {
        self.node_mut(node)?;
        let receiver = self.receivers.entry(id).or_insert_with(|| Receiver {
            node,
            intervals: Intervals::default(),
            view: View::default(),
        });
        receiver.node = node;
        receiver.intervals = intervals;
        receiver.view.threshold_ms = threshold_ms;
        let wakes = receiver.view.set_refresh_ms(refresh_ms);
        receiver.view.expire();
        if wakes {
            self.wake_aging(now_ms);
        }
        Ok(())
    }

    /// The node and the up-to-date histogram of a receiver, in bytes; `None` if it was never
    /// registered. Without an interval, the histogram is made for this request, without aging.
    pub fn request<L: Lruvecs<Group = G>>(
        &mut self,
        id: ReceiverId,
        world: &mut L,
    ) -> Option<(u32, Histogram)> {
        let oldest = self.oldest;
        let receiver = self.receivers.get_mut(&id)?;
        if receiver.refresh(world, oldest).is_none() {
            let subject = Subject {
                root: None,
                node: receiver.node,
                intervals: &receiver.intervals,
                oldest,
            };
            let report = make(world, &subject, u64::MAX);
            return Some((receiver.node, report.histogram));
        }
        let report = receiver.view.report.as_ref()?;
        Some((receiver.node, report.histogram.clone()))
    }
}
