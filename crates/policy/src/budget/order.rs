// SPDX-License-Identifier: Apache-2.0
//! The order in which pages go.

use crate::reuse::{PageHistory, ReuseModel, ReuseParams, VALUE_UNKNOWN};

/// Ranks are below this.
pub(super) const RANKS: usize = 512;
/// The rank of a page that is certain to be used.
const RANK_TOP: i16 = 400;

/// What decides which page goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The past value of similar pages: [`crate::reuse`].
    #[default]
    Reuse,
    /// Decayed frequency of access; what was accessed since the last scan stays.
    Heat,
    /// The most valuable goes first. Only for tests of the detection of harmful policies.
    Worst,
}

impl Order {
    /// All of them, with their names.
    pub const NAMES: &'static [(&'static str, Order)] = &[
        ("reuse", Order::Reuse),
        ("heat", Order::Heat),
        ("worst", Order::Worst),
    ];

    /// The model that this order uses.
    pub(super) fn model(self) -> ReuseModel {
        let params = ReuseParams::default();
        ReuseModel::new(match self {
            Order::Reuse | Order::Worst => params,
            // All values between 0.95 and 0.98 did well; with a lower one, a page read twice looks
            // like a page read all the time.
            Order::Heat => ReuseParams {
                decay: 0.97,
                ..params
            },
        })
    }

    /// Whether a newly arrived page may go before older ones.
    pub(super) fn takes_newcomers(self) -> bool {
        self != Order::Heat
    }

    /// The place of a page: low ranks go first; `None` if it must not go. `is_touched` refers to
    /// the time since the last scan that cleared accessed bits.
    #[inline]
    pub(super) fn rank(
        self,
        model: &ReuseModel,
        page: PageHistory,
        is_touched: bool,
    ) -> Option<u16> {
        let by_reuse = || {
            let value = match is_touched {
                true => model.value_touched(page),
                false => model.value_untouched(page),
            };
            match value {
                VALUE_UNKNOWN => 0,
                value => (value + RANK_TOP).clamp(1, RANK_TOP) as u16,
            }
        };
        match self {
            Order::Reuse => Some(by_reuse()),
            Order::Worst => Some(RANK_TOP as u16 - by_reuse()),
            Order::Heat if is_touched || model.is_fresh(page) => None,
            Order::Heat => Some(model.heat_step(page).into()),
        }
    }
}
