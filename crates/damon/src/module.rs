// SPDX-License-Identifier: Apache-2.0
//! Monitoring, quota and watermark parameters common to the two DAMON modules
//! (mm/damon/modules-common.h). Names and defaults are those of
//! `/sys/module/damon_{lru_sort,reclaim}/parameters/`.

use super::attrs::{Attrs, IntervalsGoal, PAGE_BYTES};
use super::monitor::Monitor;
use super::params::{Errno, Param, ParamsError, SWITCH, number, put, switch, yes_no};
use super::profile::Profile;
use super::scheme::{Scheme, Watermarks};
use super::target::TargetId;

/// Parameters common to both modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// `enabled`: whether it runs. The kernel's default is N; a module created here is meant to
    /// run.
    pub enabled: bool,
    /// `sample_interval` in us.
    pub sample_us: u64,
    /// `aggr_interval` in us.
    pub aggr_us: u64,
    /// `min_nr_regions`.
    pub min_nr_regions: u64,
    /// `max_nr_regions`.
    pub max_nr_regions: u64,
    /// `monitor_region_start` and `_end`, in address units; both 0 for all memory.
    pub region: (u64, u64),
    /// `autotune_monitoring_intervals` (7.2): starts from 5 ms and 100 ms regardless of the
    /// settings above.
    pub autotune: bool,
    /// `addr_unit` (7.2): bytes per unit of addresses.
    pub addr_unit: u64,
    /// `quota_ms`: time that all schemes together may use per window; 0 for no limit.
    pub quota_ms: u64,
    /// `quota_reset_interval_ms`.
    pub quota_reset_interval_ms: u64,
    /// `wmarks_*`.
    pub watermarks: Watermarks,
}

impl Common {
    /// The kernel's defaults with these watermarks, in 1/1000 of memory free.
    #[must_use]
    pub fn new(high: u64, mid: u64, low: u64) -> Common {
        let attrs = Attrs::default();
        Common {
            enabled: true,
            sample_us: attrs.sample_us,
            aggr_us: attrs.aggr_us,
            min_nr_regions: attrs.min_nr_regions,
            max_nr_regions: attrs.max_nr_regions,
            region: (0, 0),
            autotune: false,
            addr_unit: 1,
            quota_ms: 10,
            quota_reset_interval_ms: 1000,
            watermarks: Watermarks {
                interval_us: 5_000_000,
                high,
                mid,
                low,
            },
        }
    }

    /// The range to monitor in bytes; `None` for all memory.
    #[must_use]
    pub fn range(&self) -> Option<(u64, u64)> {
        let (start, end) = self.region;
        let bytes = |at: u64| at.saturating_mul(self.addr_unit);
        (self.region != (0, 0)).then(|| (bytes(start), bytes(end)))
    }

    /// The attributes of the monitor.
    ///
    /// # Errors
    /// Values that both modules refuse.
    pub fn attrs(&self, profile: Profile) -> Result<Attrs, ParamsError> {
        let (start, end) = self.region;
        if start > end || start == end && end != 0 {
            let given = [("monitor_region_start", start), ("monitor_region_end", end)];
            return Err(ParamsError::invalid(
                &given,
                "the start must be below the end (address units; 0 and 0 for all memory)",
            ));
        }
        if !profile.has_tuning_params {
            if self.autotune {
                return Err(ParamsError::too_new("autotune_monitoring_intervals", "Y"));
            }
            if self.addr_unit != 1 {
                return Err(ParamsError::too_new("addr_unit", self.addr_unit));
            }
        }
        if self.addr_unit == 0 {
            let given = [("addr_unit", 0)];
            return Err(ParamsError::invalid(&given, "it must be from 1 byte"));
        }
        let granule = (PAGE_BYTES / self.addr_unit).max(1);
        if !granule.is_power_of_two() {
            let given = [("addr_unit", self.addr_unit)];
            let reason =
                format!("4096 bytes / addr_unit, here {granule}, must be 0 or a power of two");
            return Err(ParamsError::invalid(&given, reason));
        }
        let mut attrs = Attrs {
            sample_us: self.sample_us,
            aggr_us: self.aggr_us,
            // Both modules update their ranges at every sample.
            ops_update_us: 0,
            min_nr_regions: self.min_nr_regions,
            max_nr_regions: self.max_nr_regions,
            tune: None,
            min_region_bytes: granule * self.addr_unit,
        };
        if self.autotune {
            attrs.sample_us = 5_000;
            attrs.aggr_us = 100_000;
            attrs.tune = Some(IntervalsGoal {
                access_bp: 40,
                aggrs: 3,
                min_sample_us: 5_000,
                max_sample_us: 10_000_000,
            });
        }
        attrs.validate()?;
        Ok(attrs)
    }
}

/// A parameter that is a number: its name and field, what it takes, and what it means.
macro_rules! number_param {
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
pub(super) use number_param;

/// A parameter that is on or off: its name and field, and what it means.
macro_rules! switch_param {
    ($name:literal => $field:ident, $meaning:literal) => {
        Param::new(
            $name,
            $meaning,
            SWITCH,
            |p, text| put(&mut p.$field, switch(text)),
            |p| yes_no(p.$field),
        )
    };
}
pub(super) use switch_param;

/// The parameters common to both modules.
const COMMON: &[Param<Common>] = &[
    switch_param!("enabled" => enabled, "whether it runs (Y)"),
    number_param!("quota_ms" => quota_ms, "milliseconds from 0 to 2^64-1",
        "ms per window that all schemes together may take; 0: no limit"),
    number_param!("quota_reset_interval_ms" => quota_reset_interval_ms,
        "milliseconds from 0 to 2^64-1", "length of a window, ms (1000)"),
    number_param!("wmarks_interval" => watermarks.interval_us, "microseconds from 0 to 2^64-1",
        "us between checks of free memory while inactive (5000000)"),
    number_param!("wmarks_high" => watermarks.high, "thousandths of memory from 0 to 2^64-1",
        "inactive above this much free memory, 1/1000"),
    number_param!("wmarks_mid" => watermarks.mid, "thousandths of memory from 0 to 2^64-1",
        "active again below this much, 1/1000"),
    number_param!("wmarks_low" => watermarks.low, "thousandths of memory from 0 to 2^64-1",
        "inactive below this much, 1/1000"),
    number_param!("sample_interval" => sample_us, "microseconds from 0 to aggr_interval",
        "us between two looks (5000)"),
    number_param!("aggr_interval" => aggr_us, "microseconds from sample_interval to 2^64-1",
        "us over which looks are aggregated (100000)"),
    number_param!("min_nr_regions" => min_nr_regions, "regions from 3 to max_nr_regions",
        "fewest regions (10)"),
    number_param!("max_nr_regions" => max_nr_regions, "regions from min_nr_regions to 2^64-1",
        "most regions (1000)"),
    number_param!("monitor_region_start" => region.0, "address units from 0 to 2^64-1",
        "first address; 0 with end 0: all memory (0)"),
    number_param!("monitor_region_end" => region.1, "address units from 0 to 2^64-1",
        "one past the last address (0)"),
    Param::of_tuning(
        switch_param!("autotune_monitoring_intervals" => autotune, "tune the intervals (N)"),
    ),
    Param::of_tuning(
        number_param!("addr_unit" => addr_unit, "bytes from 1 to 2^64-1",
        "bytes a step of an address stands for (1)"),
    ),
];

/// A DAMON module: a set of parameters that defines a monitor.
pub trait Module: Sized + 'static {
    /// Its name after `damon_`.
    const NAME: &'static str;

    /// The parameters that only this module has.
    const OWN: &'static [Param<Self>];

    /// Its read-only files: `kdamond_pid`, then for each scheme regions and bytes tried, regions
    /// and bytes applied, and the number of times the quota was exceeded.
    const READ_ONLY: &'static [&'static str];

    /// The common parameters.
    fn common(&self) -> &Common;

    /// The common parameters, mutable.
    fn common_mut(&mut self) -> &mut Common;

    /// Checks the parameters; returns what the monitor observes by, and its schemes.
    ///
    /// # Errors
    /// Those of [`Module::monitor`].
    fn schemes(&self, profile: Profile) -> Result<(Attrs, Vec<Scheme>), ParamsError>;

    /// Creates the monitor with its schemes.
    ///
    /// # Errors
    /// Values that the module refuses, and parameters that the profile's kernel does not have.
    fn monitor(
        &self,
        profile: Profile,
        target: TargetId,
        seed: u64,
    ) -> Result<Monitor, ParamsError> {
        let (attrs, schemes) = self.schemes(profile)?;
        Ok(Monitor::new(profile, attrs, &[target], schemes, seed)?)
    }

    /// Sets a parameter before the module is started.
    ///
    /// # Errors
    /// Those of the kernel: `ENOENT` for an unknown name, `EACCES` for a read-only parameter,
    /// `EINVAL` or `ERANGE` for a value that cannot be parsed.
    fn set(&mut self, profile: Profile, key: &str, value: &str) -> Result<(), ParamsError> {
        let refuse = |errno, reason: String| ParamsError {
            errno,
            given: vec![(key.to_owned(), value.to_owned())],
            reason,
        };
        let module = format!("damon_{}", Self::NAME);
        let (result, takes) = if let Some(param) = Self::OWN.iter().find(|param| param.name == key)
        {
            if !param.exists_in(profile) {
                return Err(ParamsError::too_new(key, value));
            }
            ((param.set)(self, value), param.takes)
        } else if let Some(param) = COMMON.iter().find(|param| param.name == key) {
            if !param.exists_in(profile) {
                return Err(ParamsError::too_new(key, value));
            }
            ((param.set)(self.common_mut(), value), param.takes)
        } else if key == "commit_inputs" {
            return match switch(value) {
                Err(errno) => Err(ParamsError::unreadable(key, value, errno, SWITCH)),
                // Otherwise the flag is read later, when there is nothing new to commit.
                Ok(true) if profile.refuses_early_commit => {
                    Err(refuse(Errno::Einval, format!("{module} was never started")))
                }
                Ok(_) => Ok(()),
            };
        } else if Self::READ_ONLY.contains(&key) {
            return Err(refuse(Errno::Eacces, format!("{module} only tells it")));
        } else {
            return Err(refuse(
                Errno::Enoent,
                format!("{module} has no such parameter"),
            ));
        };
        result.map_err(|errno| ParamsError::unreadable(key, value, errno, takes))
    }

    /// All writable parameters of the profile's kernel: name, value, meaning.
    fn values(&self, profile: Profile) -> Vec<(&'static str, String, &'static str)> {
        let own = Self::OWN
            .iter()
            .filter(|param| param.exists_in(profile))
            .map(|param| (param.name, (param.get)(self), param.meaning));
        let common = COMMON
            .iter()
            .filter(|param| param.exists_in(profile))
            .map(|param| (param.name, (param.get)(self.common()), param.meaning));
        own.chain(common).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{lru_sort, reclaim};
    use super::*;

    fn refused<M: Module + Default>(profile: Profile, pairs: &[(&str, &str)]) -> ParamsError {
        let mut params = M::default();
        for (key, value) in pairs {
            if let Err(error) = params.set(profile, key, value) {
                return error;
            }
        }
        params
            .monitor(profile, TargetId(0), 1)
            .expect_err("refused when started")
    }

    /// Every combination in the tables that the kernel refuses, for both modules.
    #[test]
    fn every_invalid_combination_gives_the_kernels_error() {
        use Errno::{Eacces, Einval, Enoent, Erange};
        let new = Profile::V7_2;
        type Row<'a> = (&'a [(&'a str, &'a str)], Errno);
        let rows: &[Row] = &[
            (&[("min_nr_regions", "2")], Einval),
            (&[("min_nr_regions", "1001")], Einval),
            (&[("max_nr_regions", "9")], Einval),
            (
                &[("min_nr_regions", "50"), ("max_nr_regions", "40")],
                Einval,
            ),
            (&[("sample_interval", "100001")], Einval),
            (&[("aggr_interval", "4999")], Einval),
            (&[("aggr_interval", "0")], Einval),
            (
                &[("monitor_region_start", "2"), ("monitor_region_end", "1")],
                Einval,
            ),
            (
                &[
                    ("monitor_region_start", "4096"),
                    ("monitor_region_end", "4096"),
                ],
                Einval,
            ),
            (&[("addr_unit", "0")], Einval),
            (&[("addr_unit", "3")], Einval),
            (&[("commit_inputs", "Y")], Einval),
            (&[("commit_inputs", "maybe")], Einval),
            (&[("quota_ms", "ten")], Einval),
            (&[("wmarks_high", "-1")], Einval),
            (&[("enabled", "perhaps")], Einval),
            (&[("sample_interval", "18446744073709551616")], Erange),
            (&[("kdamond_pid", "1")], Eacces),
            (&[("cold_min_ages", "1")], Enoent),
        ];
        for (pairs, errno) in rows {
            for error in [
                refused::<lru_sort::Params>(new, pairs),
                refused::<reclaim::Params>(new, pairs),
            ] {
                assert_eq!(error.errno, *errno, "{pairs:?}: {error}");
                let (key, value) = pairs.last().unwrap();
                let text = error.to_string();
                assert!(text.contains(&format!("{key}={value}")), "{text}");
                assert!(text.contains(errno.name()), "{text}");
            }
        }
        let sort = |pairs| refused::<lru_sort::Params>(new, pairs).errno;
        assert_eq!(sort(&[("sample_interval", "0")]), Einval);
        assert_eq!(sort(&[("active_mem_bp", "10001")]), Einval);
        assert_eq!(sort(&[("nr_hot_quota_exceeds", "0")]), Eacces);
        assert_eq!(sort(&[("min_age", "1")]), Enoent, "that one is of reclaim");
        let reclaim = |pairs| refused::<reclaim::Params>(new, pairs).errno;
        assert_eq!(reclaim(&[("hot_thres_access_freq", "1")]), Enoent);
        assert_eq!(reclaim(&[("skip_anon", "2x")]), Einval);
    }

    /// What a parameter says it takes, it takes: a number if its value is one, otherwise words.
    #[test]
    fn what_a_parameter_takes_agrees_with_its_value() {
        let check = |name: &str, takes: &str, value: &str| {
            let is_number = value.parse::<u64>().is_ok();
            assert_eq!(takes.starts_with("a whole number of "), is_number, "{name}");
            assert_eq!(
                takes.contains(" from "),
                is_number || name.ends_with("weights"),
                "{name}"
            );
        };
        let (sort, reclaim) = (lru_sort::Params::default(), reclaim::Params::default());
        for param in COMMON {
            check(param.name, param.takes, &(param.get)(&sort.common));
        }
        for param in lru_sort::Params::OWN {
            check(param.name, param.takes, &(param.get)(&sort));
        }
        for param in reclaim::Params::OWN {
            check(param.name, param.takes, &(param.get)(&reclaim));
        }
    }

    #[test]
    fn what_6_12_lacks_is_not_there() {
        let old = Profile::V6_12;
        for key in ["addr_unit", "autotune_monitoring_intervals"] {
            assert_eq!(
                refused::<lru_sort::Params>(old, &[(key, "1")]).errno,
                Errno::Enoent
            );
            assert_eq!(
                refused::<reclaim::Params>(old, &[(key, "1")]).errno,
                Errno::Enoent
            );
        }
        for key in ["active_mem_bp", "filter_young_pages"] {
            assert_eq!(
                refused::<lru_sort::Params>(old, &[(key, "1")]).errno,
                Errno::Enoent
            );
        }
        let mut params = lru_sort::Params::default();
        assert_eq!(params.set(old, "commit_inputs", "Y"), Ok(()));
    }

    #[test]
    fn values_are_read_back() {
        let mut params = lru_sort::Params::default();
        for (key, value, _) in params.values(Profile::V7_2) {
            params.set(Profile::V7_2, key, &value).unwrap();
        }
        assert_eq!(params, lru_sort::Params::default());
        params.set(Profile::V7_2, "wmarks_low", "0").unwrap();
        params
            .set(Profile::V7_2, "monitor_region_end", "0x1000")
            .unwrap();
        assert_eq!(params.common.watermarks.low, 0);
        assert_eq!(params.common.range(), Some((0, 4096)));
        let listed = |profile| params.values(profile).len();
        assert_eq!(listed(Profile::V7_2), listed(Profile::V6_12) + 4);
    }

    #[test]
    fn a_coarse_unit_makes_coarse_regions() {
        let mut params = lru_sort::Params::default();
        params.common.addr_unit = 1 << 16;
        params.common.region = (1, 17);
        let monitor = params.monitor(Profile::V7_2, TargetId(0), 1).unwrap();
        assert_eq!(monitor.attrs().min_region_bytes, 1 << 16);
        assert_eq!(params.common.range(), Some((1 << 16, 17 << 16)));
    }
}
