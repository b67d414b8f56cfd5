// SPDX-License-Identifier: Apache-2.0
//! What a controller answers.

use serde::Serialize;

use crate::generations::ByType;

/// What to do to the target now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Page out what is older, oldest first.
    PageOut {
        /// By type: idle for at least so long; `None`: nothing of this type.
        older_than_ms: ByType<Option<u64>>,
        /// At most so much.
        bytes_max: u64,
    },
    /// Page out the coldest by decayed heat, the newest first among equals, in runs where
    /// neighbours are equally cold; without heat, the oldest.
    Coldest {
        /// Anon, file: whether this type may go.
        types: ByType<bool>,
        /// At most so much.
        bytes_max: u64,
    },
    /// Make what is older the first to go under pressure, without moving it.
    Sort {
        /// By type: idle for at least so long; `None`: nothing of this type.
        older_than_ms: ByType<Option<u64>>,
        /// At most so much.
        bytes_max: u64,
    },
    /// Let the kernel reclaim so much (`memory.reclaim`).
    Reclaim {
        /// How much.
        bytes: u64,
        /// Whether anonymous memory may go (else `swappiness=0`).
        anon: bool,
    },
}

impl Action {
    /// Bytes that may leave.
    pub fn bytes(&self) -> u64 {
        match *self {
            Action::PageOut { bytes_max, .. } | Action::Coldest { bytes_max, .. } => bytes_max,
            Action::Reclaim { bytes, .. } => bytes,
            Action::Nothing | Action::Sort { .. } => 0,
        }
    }

    /// The same with at most `bytes`; nothing if that is none.
    pub(super) fn at_most(self, bytes: u64) -> Action {
        if bytes == 0 {
            return match self {
                Action::Sort { .. } => self,
                _ => Action::Nothing,
            };
        }
        match self {
            Action::PageOut {
                older_than_ms,
                bytes_max,
            } => Action::PageOut {
                older_than_ms,
                bytes_max: bytes_max.min(bytes),
            },
            Action::Coldest { types, bytes_max } => Action::Coldest {
                types,
                bytes_max: bytes_max.min(bytes),
            },
            Action::Reclaim { bytes: all, anon } => Action::Reclaim {
                bytes: all.min(bytes),
                anon,
            },
            Action::Nothing | Action::Sort { .. } => self,
        }
    }

    /// The same without anonymous memory; nothing if that was all.
    pub(super) fn without_anon(self) -> Action {
        match self {
            Action::PageOut {
                older_than_ms: [_, Some(file_ms)],
                bytes_max,
            } => Action::PageOut {
                older_than_ms: [None, Some(file_ms)],
                bytes_max,
            },
            Action::Coldest {
                types: [_, true],
                bytes_max,
            } => Action::Coldest {
                types: [false, true],
                bytes_max,
            },
            Action::Reclaim { bytes, .. } => Action::Reclaim { bytes, anon: false },
            Action::Sort { .. } => self,
            _ => Action::Nothing,
        }
    }

    /// Whether anonymous memory may leave.
    pub(super) fn takes_anon(&self) -> bool {
        match self {
            Action::PageOut { older_than_ms, .. } => older_than_ms[0].is_some(),
            Action::Coldest { types, .. } => types[0],
            Action::Reclaim { anon, .. } => *anon,
            Action::Nothing | Action::Sort { .. } => false,
        }
    }
}

/// Why a controller holds still for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Too much of what went came back.
    Refaults,
    /// What was asked for did not leave.
    NoProgress,
}

/// Why this and nothing else: machine-readable, and a sentence by `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// It is not time yet.
    NotDue,
    /// No look at the ages came with the facts.
    NoAges,
    /// Ages have not been kept for long enough.
    Watching {
        /// How long they have to be kept, in ms.
        needed_ms: u64,
    },
    /// Nothing is old enough.
    NothingCold,
    /// Neither hand this policy can use works here.
    NoHand,
    /// All that is left must stay.
    AtFloor {
        /// What must stay.
        floor_bytes: u64,
    },
    /// Swap is too full, and no file memory is cold.
    SwapFull {
        /// What is free.
        free_bytes: u64,
    },
    /// Holding still.
    CoolingDown {
        /// Until then, in ms.
        until_ms: u64,
        /// Why.
        cause: Cause,
    },
    /// The rate allows no more now.
    RateSpent,
    /// More could come back than `harm` allows: what is out has to prove that it is cold first.
    ComesBack,
    /// Tasks wait for memory (or I/O) already.
    PressureHigh {
        /// Share of time in which they did.
        share: f64,
        /// The share at which the policy stops.
        share_max: f64,
    },
    /// `age`: the period is over.
    Older {
        /// The age.
        idle_ms: u64,
        /// Bytes that are older.
        cold_bytes: u64,
    },
    /// `pressure`: there is room for a probe.
    Probe {
        /// Share of time in which tasks waited.
        share: f64,
        /// Share of resident memory taken.
        probe: f64,
    },
    /// `cost`: so much would stay away for long enough.
    Projected {
        /// Age by type.
        idle_ms: ByType<Option<u64>>,
        /// Bytes that are older.
        cold_bytes: u64,
        /// Share of time their return is expected to cost, with what is out already.
        stall: f64,
    },
    /// `cost`: it would come back too soon.
    TooDear {
        /// Share of time the return of what is out costs now.
        stall: f64,
    },
    /// `budget`: more is resident than should be.
    OverBudget {
        /// How much has to go.
        over_bytes: u64,
        /// How far below the budget it is held.
        headroom_bytes: u64,
        /// Memory grows faster than it was moved: the kernel's own reclaim has to help.
        behind: bool,
    },
    /// `budget`: there is room.
    WithinBudget {
        /// How much.
        room_bytes: u64,
    },
}

/// What made a decision smaller than the policy wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The floor.
    Floor,
    /// The rate.
    Rate,
    /// Room in swap.
    Swap,
    /// The slow start after backing off.
    SlowStart,
    /// Refaults that may happen, against accesses.
    Harm,
    /// Pressure on the target.
    Pressure,
}

/// A controller's answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// What to do.
    #[serde(flatten)]
    pub action: Action,
    /// Why.
    #[serde(flatten)]
    pub reason: Reason,
    /// What cut it, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// When to ask again at the latest, in ms.
    pub next_ms: u64,
}
