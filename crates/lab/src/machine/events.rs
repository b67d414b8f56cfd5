// SPDX-License-Identifier: Apache-2.0
//! Events that the machine handles at a later time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::NodeId;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// The periodic flush of the memcg statistics (every 2 s).
    StatFlush,
    /// Writeback of a page ended.
    WritebackDone(Pfn),
    /// An allocation for a page that moves found a node below its low watermark.
    LowMemory(NodeId),
    /// The node's kswapd takes its next step.
    Kswapd(NodeId),
    /// The flusher writes its next batch.
    Flusher,
    /// kdamond wakes up.
    Kdamond,
    /// The aging thread of the working-set reports wakes up.
    Aging,
}

/// Events in order of time; events due at the same time in the order they were added.
#[derive(Clone, Debug)]
pub struct EventQueue {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    added: u64,
    /// When the first event is due; read at every access.
    next_ns: u64,
}

impl Default for EventQueue {
    fn default() -> Self {
        EventQueue {
            heap: BinaryHeap::new(),
            added: 0,
            next_ns: u64::MAX,
        }
    }
}

impl EventQueue {
    /// Adds an event due at `at_ns`.
    pub fn push(&mut self, at_ns: u64, event: Event) {
        self.heap.push(Reverse((at_ns, self.added, event)));
        self.added += 1;
        self.next_ns = self.next_ns.min(at_ns);
    }

    /// When the first event is due; `u64::MAX` if there is none.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Removes and returns the first event that is due at `now_ns`.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<(u64, Event)> {
        if self.next_ns > now_ns {
            return None;
        }
        let first = self.heap.pop();
        self.note_next();
        first.map(|Reverse((at_ns, _, event))| (at_ns, event))
    }

    /// Removes and returns the first event due at `now_ns` that is `wanted`. Those before it stay.
    pub fn pop_wanted(&mut self, now_ns: u64, wanted: impl Fn(Event) -> bool) -> Option<Event> {
        let mut passed = Vec::new();
        let mut found = None;
        while found.is_none() && self.next_ns <= now_ns {
            let Some(first) = self.heap.pop() else {
                break;
            };
            self.note_next();
            let Reverse((.., event)) = first;
            match wanted(event) {
                true => found = Some(event),
                false => passed.push(first),
            }
        }
        if !passed.is_empty() {
            self.heap.extend(passed);
            self.note_next();
        }
        found
    }

    fn note_next(&mut self) {
        let next = self.heap.peek();
        self.next_ns = next.map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_adding() {
        let mut queue = EventQueue::default();
        queue.push(5, Event::Flusher);
        queue.push(3, Event::Kswapd(NodeId(1)));
        queue.push(5, Event::StatFlush);
        assert_eq!(queue.pop_due(2), None);
        assert_eq!(queue.pop_due(9), Some((3, Event::Kswapd(NodeId(1)))));
        assert_eq!(queue.pop_due(9), Some((5, Event::Flusher)));
        assert_eq!(queue.pop_due(9), Some((5, Event::StatFlush)));
        assert_eq!(queue.next_ns(), u64::MAX);
    }

    #[test]
    fn an_event_that_is_wanted_is_taken_out_of_turn() {
        let mut queue = EventQueue::default();
        queue.push(3, Event::Flusher);
        queue.push(4, Event::Kdamond);
        queue.push(9, Event::Aging);
        queue.push(9, Event::Kdamond);
        let kdamond = |event| event == Event::Kdamond;
        assert_eq!(queue.pop_wanted(3, kdamond), None);
        assert_eq!(queue.pop_wanted(4, kdamond), Some(Event::Kdamond));
        assert_eq!(queue.pop_wanted(8, kdamond), None);
        assert_eq!(queue.next_ns(), 3);
        assert_eq!(queue.pop_due(9), Some((3, Event::Flusher)));
        assert_eq!(queue.pop_due(9), Some((9, Event::Aging)));
    }
}
