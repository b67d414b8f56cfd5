// SPDX-License-Identifier: Apache-2.0
//! Proactive LRU sorting (mm/damon/lru_sort.c): moves hot regions up and long-idle regions down, so
//! that the kernel's own reclaim takes the right pages first.

use super::action::Action;
use super::attrs::Attrs;
use super::filter::{Filter, FilterKind};
use super::goal::{Goal, GoalMetric};
use super::module::{Common, Module, number_param, switch_param};
use super::params::{Errno, Param, ParamsError, SWITCH};
use super::params::{number, number32, put, switch, yes_no};
use super::profile::Profile;
use super::quota::{Limits, Quota};
use super::region::BP;
use super::scheme::{AccessPattern, Scheme};
use super::score::Weights;

/// Parameters of `DAMON_LRU_SORT`, with the kernel's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Parameters common to both modules.
    pub common: Common,
    /// `hot_thres_access_freq`: accessed in at least this share of the checks, in 1/1000.
    pub hot_freq_permille: u64,
    /// `cold_min_age` in us.
    pub cold_min_age_us: u64,
    /// `active_mem_bp` (7.2): target share of active memory; 0 is off.
    pub active_mem_bp: u64,
    /// `filter_young_pages` (7.2).
    pub filter_young_pages: bool,
    /// Weights of rate and age in the priorities of the hot scheme; not a parameter of the kernel.
    /// `None` for the profile's (6.12: 1, 0; 7.2: 1, 1). The document this is based on has (1, 0).
    pub hot_weights: Option<(u32, u32)>,
    /// The same for the cold scheme; the document has (0, 1).
    pub cold_weights: Option<(u32, u32)>,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            common: Common::new(200, 150, 50),
            hot_freq_permille: 500,
            cold_min_age_us: 120_000_000,
            active_mem_bp: 0,
            filter_young_pages: false,
            hot_weights: None,
            cold_weights: None,
        }
    }
}

/// Index of the hot scheme among the monitor's schemes.
pub const HOT: usize = 0;

/// Index of the cold scheme among the monitor's schemes.
pub const COLD: usize = 1;

/// What `active_mem_bp` takes.
const ACTIVE_MEM: &str = "a whole number of ten-thousandths from 0 to 10000";

/// What the two weights take.
const OWN_WEIGHTS: &str = "kernel, or RATE,AGE: two whole numbers from 0 to 2^32-1";

/// Parses `kernel` or `RATE,AGE`.
fn weights(text: &str) -> Result<Option<(u32, u32)>, Errno> {
    if text == "kernel" {
        return Ok(None);
    }
    let (rate, age) = text.split_once(',').ok_or(Errno::Einval)?;
    Ok(Some((number32(rate)?, number32(age)?)))
}

fn weights_text(weights: Option<(u32, u32)>) -> String {
    weights.map_or("kernel".to_owned(), |(rate, age)| format!("{rate},{age}"))
}

impl Module for Params {
    const NAME: &'static str = "lru_sort";

    const OWN: &'static [Param<Params>] = &[
        number_param!("hot_thres_access_freq" => hot_freq_permille, "thousandths from 0 to 2^64-1",
            "hot: accessed in at least this many looks, 1/1000 (500)"),
        number_param!("cold_min_age" => cold_min_age_us, "microseconds from 0 to 2^64-1",
            "cold: idle for this long, us (120000000)"),
        Param::of_tuning(Param::new(
            "active_mem_bp",
            "wanted share of active memory, 1/10000; 0: off (0)",
            ACTIVE_MEM,
            |p, text| put(&mut p.active_mem_bp, number(text)),
            |p| p.active_mem_bp.to_string(),
        )),
        Param::of_tuning(switch_param!("filter_young_pages" => filter_young_pages,
            "look again at each page before it is moved (N)")),
        Param::new(
            "hot_weights",
            "RATE,AGE in the order of hot regions; no kernel has it (kernel)",
            OWN_WEIGHTS,
            |p, text| put(&mut p.hot_weights, weights(text)),
            |p| weights_text(p.hot_weights),
        ),
        Param::new(
            "cold_weights",
            "RATE,AGE in the order of cold regions; no kernel has it (kernel)",
            OWN_WEIGHTS,
            |p, text| put(&mut p.cold_weights, weights(text)),
            |p| weights_text(p.cold_weights),
        ),
    ];

    const READ_ONLY: &'static [&'static str] = &[
        "kdamond_pid",
        "nr_lru_sort_tried_hot_regions",
        "bytes_lru_sort_tried_hot_regions",
        "nr_lru_sorted_hot_regions",
        "bytes_lru_sorted_hot_regions",
        "nr_hot_quota_exceeds",
        "nr_lru_sort_tried_cold_regions",
        "bytes_lru_sort_tried_cold_regions",
        "nr_lru_sorted_cold_regions",
        "bytes_lru_sorted_cold_regions",
        "nr_cold_quota_exceeds",
    ];

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn schemes(&self, profile: Profile) -> Result<(Attrs, Vec<Scheme>), ParamsError> {
        if self.common.sample_us == 0 {
            let given = [("sample_interval", 0)];
            let reason = "it must be from 1 to aggr_interval (us)";
            return Err(ParamsError::invalid(&given, reason));
        }
        let attrs = self.common.attrs(profile)?;
        self.check(profile)?;
        let hot_min = u128::from(attrs.max_nr_accesses()) * u128::from(self.hot_freq_permille);
        let hot_min = u32::try_from(hot_min / 1000).unwrap_or(u32::MAX);
        // The kernels truncate this to 32 bits, so that a very long age becomes short.
        let cold_age = self.cold_min_age_us / attrs.aggr_us.max(1);
        let cold_age = u32::try_from(cold_age).unwrap_or(u32::MAX);
        let size_bytes = attrs.min_region_bytes..=u64::MAX;
        let hot = AccessPattern {
            size_bytes: size_bytes.clone(),
            nr_accesses: hot_min..=u32::MAX,
            age: 0..=u32::MAX,
        };
        let cold = AccessPattern {
            size_bytes,
            nr_accesses: 0..=0,
            age: cold_age..=u32::MAX,
        };
        let weights = |own: Option<(u32, u32)>| {
            let (nr_accesses, age) = own.unwrap_or(profile.sort_weights);
            Weights {
                size: 0,
                nr_accesses,
                age,
            }
        };
        let hot = self.scheme(hot, Action::LruPrio, weights(self.hot_weights));
        let cold = self.scheme(cold, Action::LruDeprio, weights(self.cold_weights));
        Ok((attrs, vec![hot, cold]))
    }
}

impl Params {
    fn check(&self, profile: Profile) -> Result<(), ParamsError> {
        if !profile.has_tuning_params {
            if self.active_mem_bp > 0 {
                return Err(ParamsError::too_new("active_mem_bp", self.active_mem_bp));
            }
            if self.filter_young_pages {
                return Err(ParamsError::too_new("filter_young_pages", "Y"));
            }
        }
        if self.active_mem_bp > BP {
            let given = [("active_mem_bp", self.active_mem_bp)];
            return Err(ParamsError::invalid(
                &given,
                format!("it takes {ACTIVE_MEM}"),
            ));
        }
        Ok(())
    }

    fn scheme(&self, pattern: AccessPattern, action: Action, weights: Weights) -> Scheme {
        let hot = action == Action::LruPrio;
        let mut limits = Limits {
            // Half for each scheme. The kernel rounds down, and 1 becomes 0, "no limit"; here it is
            // rounded up.
            ms: self.common.quota_ms.div_ceil(2),
            reset_interval_ms: self.common.quota_reset_interval_ms,
            weights,
            ..Limits::default()
        };
        if self.active_mem_bp > 0 {
            let goal = if hot {
                Goal::new(GoalMetric::ActiveMem, self.active_mem_bp)
            } else {
                Goal::new(GoalMetric::InactiveMem, BP - self.active_mem_bp + 2)
            };
            limits.goals.push(goal);
        }
        let mut scheme = Scheme::new(pattern, action, Quota::new(limits));
        scheme.watermarks = Some(self.common.watermarks);
        if self.filter_young_pages {
            // The hot scheme rejects pages that are not young, the cold one pages that are.
            let filter = Filter::reject(FilterKind::Young, !hot);
            scheme.filters.push(filter);
        }
        scheme
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::TargetId;
    use super::super::testing::HotRange;
    use super::*;

    const TARGET: TargetId = TargetId(0);

    #[test]
    fn defaults_translate_as_in_the_kernel() {
        let monitor = Params::default().monitor(Profile::V7_2, TARGET, 1).unwrap();
        let [hot, cold] = monitor.schemes() else {
            panic!("two schemes")
        };
        assert_eq!(hot.pattern.nr_accesses, 10..=u32::MAX);
        assert_eq!(cold.pattern.age, 1200..=u32::MAX);
        assert_eq!((hot.quota.limits.ms, cold.quota.limits.ms), (5, 5));
    }

    #[test]
    fn a_refusal_says_which_values_are_valid_and_in_which_unit() {
        for (key, value, expected) in [
            ("quota_ms", "ten", "milliseconds from 0 to 2^64-1"),
            ("sample_interval", "5ms", "microseconds from 0 to aggr_int"),
            ("sample_interval", "200000", "us; it may be at most as long"),
            ("sample_interval", "0", "from 1 to aggr_interval (us)"),
            ("wmarks_high", "50%", "thousandths of memory from 0"),
            ("max_nr_regions", "1e3", "regions from min_nr_regions to"),
            ("min_nr_regions", "2", "from 3 to max_nr_regions"),
            ("addr_unit", "0", "from 1 byte"),
            ("enabled", "perhaps", "it takes Y or N"),
            ("hot_weights", "1", "RATE,AGE: two whole numbers from 0"),
            ("active_mem_bp", "10001", "ten-thousandths from 0 to 10000"),
            ("active_mem_bp", "half", "ten-thousandths from 0 to 10000"),
        ] {
            let mut params = Params::default();
            let set = params.set(Profile::V7_2, key, value);
            let error = set.and_then(|()| params.monitor(Profile::V7_2, TARGET, 1).map(|_| ()));
            let text = error.unwrap_err().to_string();
            assert!(text.contains(&format!("{key}={value} ")), "{text}");
            assert!(text.contains(expected), "{text}");
        }
        let error = Params::default().set(Profile::V7_2, "cold_min_age", "2m");
        assert_eq!(
            error.unwrap_err().to_string(),
            "cold_min_age=2m is refused with EINVAL: \
             it takes a whole number of microseconds from 0 to 2^64-1"
        );
    }

    #[test]
    fn a_quota_of_one_ms_stays_a_limit() {
        let mut params = Params::default();
        params.common.quota_ms = 1;
        let monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        assert!(
            monitor
                .schemes()
                .iter()
                .all(|scheme| scheme.quota.limits.ms == 1)
        );
    }

    #[test]
    fn thresholds_neither_overflow_nor_come_out_short() {
        let params = Params {
            // 2^32 + 1 aggregations, which the kernels truncate to 1.
            cold_min_age_us: ((1 << 32) + 1) * 100_000,
            hot_freq_permille: u64::MAX,
            ..Params::default()
        };
        let monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        assert_eq!(monitor.schemes()[COLD].pattern.age, u32::MAX..=u32::MAX);
        assert_eq!(
            monitor.schemes()[HOT].pattern.nr_accesses,
            u32::MAX..=u32::MAX
        );
    }

    #[test]
    fn weights_are_the_profiles_unless_given() {
        let ages = |params: Params, profile| {
            let monitor = params.monitor(profile, TARGET, 1).unwrap();
            [HOT, COLD].map(|at| {
                let weights = monitor.schemes()[at].quota.limits.weights;
                (weights.nr_accesses, weights.age)
            })
        };
        let mut params = Params::default();
        assert_eq!(ages(params, Profile::V6_12), [(1, 0), (1, 0)]);
        assert_eq!(ages(params, Profile::V7_2), [(1, 1), (1, 1)]);
        params.set(Profile::V7_2, "cold_weights", "0,1").unwrap();
        assert_eq!(ages(params, Profile::V7_2), [(1, 1), (0, 1)]);
        assert!(params.set(Profile::V7_2, "hot_weights", "1").is_err());
    }

    #[test]
    fn goals_split_memory_and_leave_a_little_to_both() {
        let params = Params {
            active_mem_bp: 6_000,
            filter_young_pages: true,
            ..Params::default()
        };
        let monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        let target = |at: usize| monitor.schemes()[at].quota.limits.goals[0].target;
        assert_eq!((target(HOT), target(COLD)), (6_000, 4_002));
        let young = |at: usize| monitor.schemes()[at].filters[0];
        assert_eq!(young(HOT), Filter::reject(FilterKind::Young, false));
        assert_eq!(young(COLD), Filter::reject(FilterKind::Young, true));
    }

    #[test]
    fn it_raises_the_hot_range_and_lowers_the_idle_rest() {
        let params = Params {
            cold_min_age_us: 500_000,
            ..Params::default()
        };
        let mut monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        let mut space = HotRange::new(10_000, 2_000..4_000);
        monitor.start(&mut space);
        for _ in 0..20 * 60 {
            monitor.wait(&space);
            monitor.prepare(&mut space);
            space.now_us += 5_000;
            monitor.check(&mut space);
        }
        let (mut raised, mut lowered) = (vec![false; 10_000], vec![false; 10_000]);
        for &(action, first, pages) in &space.applied {
            let range = first as usize..(first + pages) as usize;
            match action {
                Action::LruPrio => raised[range].fill(true),
                _ => lowered[range].fill(true),
            }
        }
        let count = |pages: &[bool]| pages.iter().filter(|&&page| page).count();
        assert!(count(&raised[2_000..4_000]) > 1_900);
        assert!(count(&lowered[..1_500]) + count(&lowered[4_500..]) > 6_000);
    }
}
