// SPDX-License-Identifier: Apache-2.0
//! Plays a laid-out trace: which access comes next, and when it is due.

use super::Replay;
use crate::workload::random::XorShift64Star;

/// The order given to the accesses of one interval, whose real order is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// Seed 1 as [`Arrangement::Forward`], seed 2 as [`Arrangement::Reverse`], all others shuffled:
    /// the spread over the seeds shows the effect of the unknown order.
    #[default]
    Each,
    /// Rising addresses, as in the file.
    Forward,
    /// Falling addresses.
    Reverse,
    /// Shuffled, drawn from the seed.
    Shuffle,
}

impl Arrangement {
    fn of_seed(self, seed: u64) -> Arrangement {
        match (self, seed) {
            (Arrangement::Each, 1) => Arrangement::Forward,
            (Arrangement::Each, 2) => Arrangement::Reverse,
            (Arrangement::Each, _) => Arrangement::Shuffle,
            (chosen, _) => chosen,
        }
    }
}

/// Limit on a pause of the program: nothing on the machine changes after that long, and a damaged
/// time stamp must not cause years of timers.
pub const GAP_NS_MAX: u64 = 60_000_000_000;

/// One access to be made on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the process.
    pub process: u32,
    pub page: u32,
    pub write: bool,
    /// When it is due, in ns since the start.
    pub due_ns: u64,
}

/// Position of a replay in its trace.
#[derive(Clone, Debug)]
pub struct Cursor {
    arrangement: Arrangement,
    random: XorShift64Star,
    moment: usize,
    /// Position within the moment.
    at: usize,
    /// Order of the moment's accesses; empty for the stored order.
    shuffled: Vec<u32>,
    /// Time of the moment before, as replayed.
    begin_ns: u64,
    end_ns: u64,
    /// Recorded time of the moment entered last.
    stamp_ns: u64,
}

impl Cursor {
    pub fn new(replay: &Replay, arrangement: Arrangement, seed: u64) -> Cursor {
        let mut cursor = Cursor {
            arrangement: if replay.order_unknown {
                arrangement.of_seed(seed)
            } else {
                Arrangement::Forward
            },
            random: XorShift64Star::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            moment: 0,
            at: 0,
            shuffled: Vec::new(),
            begin_ns: 0,
            end_ns: 0,
            // Accesses found by the first scan happened in the interval before it.
            stamp_ns: if replay.order_unknown {
                replay.first_time_ns.saturating_sub(replay.interval_ns)
            } else {
                replay.first_time_ns
            },
        };
        cursor.enter(replay);
        cursor
    }

    fn bounds(&self, replay: &Replay) -> Option<(usize, usize)> {
        let end = replay.moments.get(self.moment)?.end;
        let start = self
            .moment
            .checked_sub(1)
            .map_or(0, |before| replay.moments[before].end);
        Some((start, end))
    }

    fn enter(&mut self, replay: &Replay) {
        let Some((start, end)) = self.bounds(replay) else {
            return;
        };
        let time_ns = replay.moments[self.moment].time_ns;
        let gap_ns = time_ns.saturating_sub(self.stamp_ns).min(GAP_NS_MAX);
        self.stamp_ns = time_ns;
        self.begin_ns = self.end_ns;
        self.end_ns = self.begin_ns.saturating_add(gap_ns);
        self.at = 0;
        self.shuffled.clear();
        if self.arrangement == Arrangement::Shuffle {
            // The number of accesses in a moment fits into 32 bits.
            self.shuffled.extend(0..(end - start) as u32);
            for last in (1..self.shuffled.len()).rev() {
                let other = self.random.below(last as u32 + 1) as usize;
                self.shuffled.swap(last, other);
            }
        }
    }

    /// Whether there is no next access.
    pub fn is_done(&self, replay: &Replay) -> bool {
        let is_last = self.moment + 1 >= replay.moments.len();
        is_last
            && self
                .bounds(replay)
                .is_none_or(|(start, end)| start + self.at == end)
    }

    /// The next access; None at the end.
    pub fn next(&mut self, replay: &Replay) -> Option<Step> {
        let (mut start, mut end) = self.bounds(replay)?;
        if start + self.at == end {
            self.moment += 1;
            self.enter(replay);
            (start, end) = self.bounds(replay)?;
        }
        let count = end - start;
        let chosen = match self.arrangement {
            Arrangement::Shuffle => self.shuffled[self.at] as usize,
            Arrangement::Reverse => count - 1 - self.at,
            Arrangement::Forward | Arrangement::Each => self.at,
        };
        let due_ns = if replay.order_unknown && !replay.moments[self.moment].exact {
            let span = u128::from(self.end_ns - self.begin_ns);
            self.begin_ns + (span * self.at as u128 / count as u128) as u64
        } else {
            self.end_ns
        };
        self.at += 1;
        let item = replay.items[start + chosen];
        Some(Step {
            process: item.who >> 1,
            page: item.page,
            write: item.who & 1 != 0,
            due_ns,
        })
    }
}
