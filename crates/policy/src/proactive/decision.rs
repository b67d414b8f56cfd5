// SPDX-License-Identifier: Apache-2.0
//! The answer of a controller.

use serde::Serialize;
use serde::ser::SerializeMap;

use crate::generations::ByType;

/// What to do to the target now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Page out memory older than this, the oldest first.
    PageOut {
        /// Minimum idle time by type; `None` if nothing of this type may go.
        older_than_ms: ByType<Option<u64>>,
        /// Upper limit.
        bytes_max: u64,
    },
    /// Page out the coldest by decayed heat, in runs of equally cold neighbours; among equals, the
    /// newest first. If heat is not known, page out the oldest.
    Coldest {
        /// Anon, file: whether this type may go.
        types: ByType<bool>,
        /// Upper limit.
        bytes_max: u64,
    },
    /// Mark older memory to be reclaimed first under pressure, without moving it.
    Sort {
        /// Minimum idle time by type; `None` for nothing of this type.
        older_than_ms: ByType<Option<u64>>,
        /// Upper limit.
        bytes_max: u64,
    },
    /// Let the kernel reclaim this much (`memory.reclaim`).
    Reclaim {
        /// How much.
        bytes: u64,
        /// Whether anonymous memory may go (otherwise `swappiness=0`).
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

    /// The same, but at most `bytes`; nothing if that is zero.
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

    /// The same without anonymous memory; nothing if nothing else is left.
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
    /// Too much of what left has come back.
    Refaults,
    /// What was asked for did not leave.
    NoProgress,
}

/// Why this decision, for journals: a name and figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// It is not time yet.
    NotDue,
    /// The facts contained no look at the ages.
    NoAges,
    /// Nothing is old enough.
    NothingCold,
    /// Neither mover that this policy can use works here.
    NoMover,
    /// Everything that is left must stay.
    AtFloor {
        /// What must stay.
        floor_bytes: u64,
    },
    /// Swap is too full, and no file memory is cold.
    SwapFull {
        /// What is free.
        free_bytes: u64,
    },
    /// Pausing.
    CoolingDown {
        /// For this much longer, in ms.
        for_ms: u64,
        /// Why.
        cause: Cause,
    },
    /// The rate allows no more now.
    RateSpent,
    /// More could come back than `harm` allows: what is out must prove cold first.
    ComesBack,
    /// Tasks already wait for memory.
    PressureHigh {
        /// Share of time in which they did.
        share: f64,
        /// The share at which the policy stops.
        share_max: f64,
    },
    /// `budget`: more is resident than should be.
    OverBudget {
        /// How much must go.
        over_bytes: u64,
        /// How far below the budget memory is held.
        headroom_bytes: u64,
        /// Memory grows faster than it is moved: the kernel's own reclaim has to help.
        behind: bool,
    },
    /// `budget`: there is room.
    WithinBudget {
        /// How much.
        room_bytes: u64,
    },
    /// A policy's own reason, which needs no variant here.
    #[serde(untagged)]
    Own(Grounds),
}

impl Reason {
    /// Its name in journals.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::NotDue => "not_due",
            Reason::NoAges => "no_ages",
            Reason::NothingCold => "nothing_cold",
            Reason::NoMover => "no_mover",
            Reason::AtFloor { .. } => "at_floor",
            Reason::SwapFull { .. } => "swap_full",
            Reason::CoolingDown { .. } => "cooling_down",
            Reason::RateSpent => "rate_spent",
            Reason::ComesBack => "comes_back",
            Reason::PressureHigh { .. } => "pressure_high",
            Reason::OverBudget { .. } => "over_budget",
            Reason::WithinBudget { .. } => "within_budget",
            Reason::Own(grounds) => grounds.name,
        }
    }
}

/// A policy's own reason: a name and named figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grounds {
    name: &'static str,
    figures: [Option<(&'static str, Figure)>; Self::FIGURES_MAX],
}

/// A figure of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Figure {
    /// Bytes or ms.
    Count(u64),
    /// A part of a whole.
    Share(f64),
    /// An age in ms by type, if there is one.
    Ages(ByType<Option<u64>>),
}

impl Grounds {
    /// The most figures a reason can have.
    pub const FIGURES_MAX: usize = 4;

    /// A reason with its figures; those beyond [`Self::FIGURES_MAX`] are left out.
    pub fn new(name: &'static str, figures: &[(&'static str, Figure)]) -> Self {
        Grounds {
            name,
            figures: std::array::from_fn(|at| figures.get(at).copied()),
        }
    }
}

impl Serialize for Grounds {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let figures = self.figures.iter().flatten();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("reason", self.name)?;
        for (name, figure) in figures {
            map.serialize_entry(name, figure)?;
        }
        map.end()
    }
}

/// What made a decision smaller than the policy wanted.
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
    /// Refaults that may happen, compared with accesses.
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
    /// What made it smaller, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// When to ask again at the latest, in ms.
    pub next_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_in_journals() {
        let cause = Cause::Refaults;
        let figures = [
            ("idle_ms", Figure::Ages([Some(1), None])),
            ("stall", Figure::Share(0.5)),
            ("cold_bytes", Figure::Count(7)),
        ];
        for reason in [
            Reason::NotDue,
            Reason::NoAges,
            Reason::NothingCold,
            Reason::NoMover,
            Reason::AtFloor { floor_bytes: 1 },
            Reason::SwapFull { free_bytes: 1 },
            Reason::CoolingDown { for_ms: 1, cause },
            Reason::RateSpent,
            Reason::ComesBack,
            Reason::PressureHigh {
                share: 0.1,
                share_max: 0.1,
            },
            Reason::OverBudget {
                over_bytes: 1,
                headroom_bytes: 1,
                behind: true,
            },
            Reason::WithinBudget { room_bytes: 1 },
            Reason::Own(Grounds::new("projected", &figures)),
        ] {
            let json = serde_json::to_value(reason).unwrap();
            assert_eq!(json["reason"], reason.name());
        }
        let own = Reason::Own(Grounds::new("projected", &figures));
        assert_eq!(
            serde_json::to_string(&own).unwrap(),
            r#"{"reason":"projected","idle_ms":[1,null],"stall":0.5,"cold_bytes":7}"#
        );
    }
}
