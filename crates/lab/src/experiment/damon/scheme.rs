// SPDX-License-Identifier: Apache-2.0
//! A single user-defined scheme (`--damon scheme:action=…`), as it could be set up in
//! `DAMON_SYSFS`.

use agewise_damon::action::Action;
use agewise_damon::attrs::Attrs;
use agewise_damon::filter::{Filter, FilterKind};
use agewise_damon::module::{Common, Module};
use agewise_damon::params::{Errno, Param, ParamsError, number, number32, put};
use agewise_damon::profile::Profile;
use agewise_damon::quota::{Limits, Quota};
use agewise_damon::scheme::{AccessPattern, Scheme};
use agewise_damon::score::Weights;

/// Which pages a filter of one kind lets through to the scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// All pages.
    Any,
    /// Only pages of this kind.
    Only,
    /// Only pages that are not of this kind.
    Skip,
}

/// Parameters of the scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Monitoring, quota and watermarks.
    pub common: Common,
    pub action: Action,
    /// Node that `migrate_hot` and `migrate_cold` move pages to.
    target_node: u32,
    /// Whether it watches the processes instead of physical memory.
    pub is_virtual: bool,
    freq_permille: (u64, u64),
    age_us: (u64, u64),
    size_bytes: (u64, u64),
    apply_interval_us: u64,
    quota_bytes: u64,
    weights: (u32, u32),
    anon: Wish,
    young: Wish,
}

impl Default for Params {
    fn default() -> Self {
        // Free memory is never above 1000 permille, so the scheme always runs.
        let mut common = Common::new(1000, 1001, 0);
        common.quota_ms = 0;
        Params {
            common,
            action: Action::Stat,
            target_node: Action::NO_NODE,
            is_virtual: false,
            freq_permille: (0, 1000),
            age_us: (0, u64::MAX),
            size_bytes: (0, u64::MAX),
            apply_interval_us: 0,
            quota_bytes: 0,
            weights: (1, 1),
            anon: Wish::Any,
            young: Wish::Any,
        }
    }
}

fn wish(text: &str) -> Result<Wish, Errno> {
    match text {
        "any" => Ok(Wish::Any),
        "only" => Ok(Wish::Only),
        "skip" => Ok(Wish::Skip),
        _ => Err(Errno::Einval),
    }
}

fn wish_text(wish: Wish) -> String {
    let text = match wish {
        Wish::Any => "any",
        Wish::Only => "only",
        Wish::Skip => "skip",
    };
    text.to_owned()
}

fn action(text: &str) -> Result<Action, Errno> {
    let found = Action::ALL.into_iter().find(|action| action.name() == text);
    found.ok_or(Errno::Einval)
}

/// Whether the action is for physical memory alone.
fn is_physical(action: Action) -> bool {
    matches!(
        action,
        Action::LruPrio | Action::LruDeprio | Action::MigrateHot(_) | Action::MigrateCold(_)
    )
}

fn node(text: &str) -> Result<u32, Errno> {
    match text {
        "-1" => Ok(Action::NO_NODE),
        number => number32(number),
    }
}

fn weights(text: &str) -> Result<(u32, u32), Errno> {
    let (rate, age) = text.split_once(',').ok_or(Errno::Einval)?;
    Ok((number32(rate)?, number32(age)?))
}

/// A parameter that is a number: its name and field, what it takes, and what it means.
macro_rules! number {
    ($name:literal => $($field:tt).+, $takes:literal, $meaning:literal) => {
        Param::new(
            $name,
            $meaning,
            concat!("a whole number of ", $takes),
            |p, text| put(&mut p.$($field).+, number(text)),
            |p| p.$($field).+.to_string(),
        )
    };
}

impl Module for Params {
    const NAME: &'static str = "scheme";

    const OWN: &'static [Param<Params>] = &[
        Param::new(
            "action",
            "stat, pageout, lru_prio, lru_deprio, migrate_hot, migrate_cold, cold or willneed \
             (stat)",
            "stat, pageout, lru_prio, lru_deprio, migrate_hot, migrate_cold, cold or willneed",
            |p, text| put(&mut p.action, action(text)),
            |p| p.action.name().to_owned(),
        ),
        Param::new(
            "target_nid",
            "node that migrate_hot and migrate_cold move pages to; 1 is slow_memory (none)",
            "the number of a node, or -1",
            |p, text| put(&mut p.target_node, node(text)),
            |p| match p.target_node {
                Action::NO_NODE => "-1".to_owned(),
                node => node.to_string(),
            },
        ),
        Param::new(
            "space",
            "physical, or virtual: that of the workload's processes (physical)",
            "physical or virtual",
            |p, text| {
                p.is_virtual = match text {
                    "physical" => false,
                    "virtual" => true,
                    _ => return Err(Errno::Einval),
                };
                Ok(())
            },
            |p| if p.is_virtual { "virtual" } else { "physical" }.to_owned(),
        ),
        number!("min_freq" => freq_permille.0, "thousandths from 0 to 2^64-1",
            "accessed in at least this many looks, 1/1000 (0)"),
        number!("max_freq" => freq_permille.1, "thousandths from 0 to 2^64-1",
            "and in at most this many (1000)"),
        number!("min_age" => age_us.0, "microseconds from 0 to 2^64-1",
            "unchanged for at least this long, us (0)"),
        number!("max_age" => age_us.1, "microseconds from 0 to 2^64-1",
            "and for at most this long (no limit)"),
        number!("min_size" => size_bytes.0, "bytes from 0 to 2^64-1",
            "at least this many bytes (0)"),
        number!("max_size" => size_bytes.1, "bytes from 0 to 2^64-1",
            "and at most this many (no limit)"),
        number!("apply_interval" => apply_interval_us, "microseconds from 0 to 2^64-1",
            "us between two applications; 0: once per aggregation (0)"),
        number!("quota_sz" => quota_bytes, "bytes from 0 to 2^64-1",
            "bytes per window it may try; 0: no limit (0)"),
        Param::new(
            "weights",
            "weights RATE,AGE in the order of regions (1,1)",
            "RATE,AGE: two whole numbers from 0 to 2^32-1",
            |p, text| put(&mut p.weights, weights(text)),
            |p| format!("{},{}", p.weights.0, p.weights.1),
        ),
        Param::new(
            "anon",
            "anonymous pages: any, only or skip (any)",
            "any, only or skip",
            |p, text| put(&mut p.anon, wish(text)),
            |p| wish_text(p.anon),
        ),
        Param::new(
            "young",
            "pages accessed since the last look: any, only or skip (any)",
            "any, only or skip",
            |p, text| put(&mut p.young, wish(text)),
            |p| wish_text(p.young),
        ),
    ];

    const READ_ONLY: &'static [&'static str] = &[
        "kdamond_pid",
        "nr_tried",
        "sz_tried",
        "nr_applied",
        "sz_applied",
        "qt_exceeds",
    ];

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn schemes(&self, profile: Profile) -> Result<(Attrs, Vec<Scheme>), ParamsError> {
        let physical = is_physical(self.action);
        let of_processes = matches!(self.action, Action::Cold | Action::Willneed);
        if self.is_virtual && physical || !self.is_virtual && of_processes {
            let (space, others) = if self.is_virtual {
                ("virtual", "cold and willneed")
            } else {
                (
                    "physical",
                    "lru_prio, lru_deprio, migrate_hot and migrate_cold",
                )
            };
            return Err(ParamsError {
                errno: Errno::Einval,
                given: vec![
                    ("action".to_owned(), self.action.name().to_owned()),
                    ("space".to_owned(), space.to_owned()),
                ],
                reason: format!("{space} space has the actions stat, pageout, {others}"),
            });
        }
        let range = |name: [&str; 2], (low, high): (u64, u64), unit: &str| {
            if low > high {
                let given = [(name[0], low), (name[1], high)];
                let reason = format!("{} may be at most {high} {unit}, {}", name[0], name[1]);
                return Err(ParamsError::invalid(&given, reason));
            }
            Ok(())
        };
        range(["min_freq", "max_freq"], self.freq_permille, "thousandths")?;
        range(["min_age", "max_age"], self.age_us, "us")?;
        range(["min_size", "max_size"], self.size_bytes, "bytes")?;
        let attrs = self.common.attrs(profile)?;
        let most = u128::from(attrs.max_nr_accesses());
        let looks =
            |permille: u64| u32::try_from(most * u128::from(permille) / 1000).unwrap_or(u32::MAX);
        let age = |us: u64| u32::try_from(us / attrs.aggr_us.max(1)).unwrap_or(u32::MAX);
        let pattern = AccessPattern {
            size_bytes: self.size_bytes.0..=self.size_bytes.1,
            nr_accesses: looks(self.freq_permille.0)..=looks(self.freq_permille.1),
            age: age(self.age_us.0)..=age(self.age_us.1),
        };
        let limits = Limits {
            ms: self.common.quota_ms,
            bytes: self.quota_bytes,
            reset_interval_ms: self.common.quota_reset_interval_ms,
            goals: Vec::new(),
            weights: Weights {
                size: 0,
                nr_accesses: self.weights.0,
                age: self.weights.1,
            },
        };
        let action = self.action.to_node(self.target_node);
        let mut scheme = Scheme::new(pattern, action, Quota::new(limits));
        scheme.apply_interval_us = self.apply_interval_us;
        scheme.watermarks = Some(self.common.watermarks);
        for (wish, kind) in [
            (self.anon, FilterKind::Anon),
            (self.young, FilterKind::Young),
        ] {
            if wish != Wish::Any {
                scheme
                    .filters
                    .push(Filter::reject(kind, wish == Wish::Skip));
            }
        }
        Ok((attrs, vec![scheme]))
    }
}
