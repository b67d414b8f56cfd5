// SPDX-License-Identifier: Apache-2.0
//! Why a read or write of a report's file fails, with its errno.

use super::super::INTERVALS_MAX;

/// Why a read or write was refused, and what to do about it. [`errno`](Self::errno) is what
/// `write(2)` returns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// `EINVAL`.
    #[error("{text:?} is not an unsigned number of milliseconds (EINVAL)")]
    NotANumber {
        /// What was written.
        text: String,
    },
    /// `ERANGE`.
    #[error("{text:?} is beyond 32 bits (ERANGE)")]
    TooLarge {
        /// What was written.
        text: String,
    },
    /// `EINVAL`.
    #[error(
        "age bounds must increase: {next_ms} ms follows {before_ms} ms, after rounding up to clock \
         ticks (EINVAL)"
    )]
    NotIncreasing {
        /// The bound before.
        before_ms: u64,
        /// The bound that is not above it.
        next_ms: u64,
    },
    /// `ERANGE`.
    #[error("more than {INTERVALS_MAX} age bounds (ERANGE)")]
    TooMany,
    /// `EINVAL`.
    #[error("{text:?} is not of the form N<node>=<milliseconds> (EINVAL)")]
    NotANodeSetting {
        /// What was written.
        text: String,
    },
    /// `EINVAL`.
    #[error("node {node} has no memory or is offline (EINVAL)")]
    NodeOffline {
        /// Its number.
        node: u32,
    },
    /// `ENODEV`.
    #[error("the cgroup does not exist any more (ENODEV)")]
    GroupGone,
    /// `EACCES`.
    #[error("the file is read-only (EACCES)")]
    ReadOnly,
}

impl ReportError {
    /// The error number on Linux.
    pub fn errno(&self) -> i32 {
        match self {
            ReportError::NotANumber { .. }
            | ReportError::NotIncreasing { .. }
            | ReportError::NotANodeSetting { .. }
            | ReportError::NodeOffline { .. } => 22,
            ReportError::TooLarge { .. } | ReportError::TooMany => 34,
            ReportError::GroupGone => 19,
            ReportError::ReadOnly => 13,
        }
    }
}
