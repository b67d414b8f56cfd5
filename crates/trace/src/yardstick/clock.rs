// SPDX-License-Identifier: Apache-2.0
//! CLOCK with one accessed bit: FIFO that gives a page another round if it was accessed.
//!
//! A hand moving over a ring of frames makes the same decisions as a queue that moves accessed
//! pages from the tail back to the front: pages the hand has passed correspond to those put back.

use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "clock",
    aliases: &["second-chance", "fifo-reinsertion"],
    summary: "second chance, one accessed bit",
    simulation: Simulation::Online(|capacity| Box::new(Clock::new(capacity))),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Resident,
    Accessed,
}

struct Clock {
    capacity: usize,
    frames: Vec<u32>,
    hand: usize,
    state: Vec<State>,
}

impl Clock {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            frames: Vec::new(),
            hand: 0,
            state: Vec::new(),
        }
    }

    /// Moves the hand past the first page that was not accessed; returns its frame.
    fn sweep(&mut self) -> usize {
        loop {
            let frame = self.hand;
            self.hand = if frame + 1 == self.capacity {
                0
            } else {
                frame + 1
            };
            let state = &mut self.state[self.frames[frame] as usize];
            if *state != State::Accessed {
                return frame;
            }
            *state = State::Resident;
        }
    }
}

impl Policy for Clock {
    fn reserve(&mut self, page_count: usize) {
        self.state
            .resize(page_count.max(self.state.len()), State::Absent);
    }

    #[inline]
    fn access(&mut self, page: u32) -> bool {
        let state = &mut self.state[page as usize];
        if *state != State::Absent {
            *state = State::Accessed;
            return true;
        }
        *state = State::Resident;
        if self.frames.len() < self.capacity {
            self.frames.push(page);
            return false;
        }
        // Insert the new page after the sweep, which must not encounter it.
        let frame = self.sweep();
        let victim = std::mem::replace(&mut self.frames[frame], page);
        self.state[victim as usize] = State::Absent;
        false
    }

    fn resident_pages(&self) -> usize {
        self.frames.len()
    }
}
