// SPDX-License-Identifier: Apache-2.0
//! Which kernel's rules are followed.

/// Kernel whose rules the monitor and its schemes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Linux 6.12.
    V6_12,
    /// Linux 7.2.
    V7_2,
}
