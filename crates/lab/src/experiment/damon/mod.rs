// SPDX-License-Identifier: Apache-2.0
//! DAMON beside a policy, as requested by `--damon USE[:KEY=VALUE…]`.

mod scheme;

use agewise_damon::attrs::Attrs;
use agewise_damon::lru_sort;
use agewise_damon::module::{Common, Module};
use agewise_damon::monitor::Monitor;
use agewise_damon::params::{Errno, ParamsError};
use agewise_damon::profile::Profile;
use agewise_damon::reclaim;
use agewise_damon::scheme::{Scheme, Stats};
use agewise_damon::target::TargetId;
use thiserror::Error;

use crate::machine::damon::{Kdamond, Watched};
use crate::machine::kernel::Kernel;
use crate::machine::{Machine, ProcessId};
use agewise_trace::suggest::{nearest, question};

/// An invalid description of a monitor.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DamonError {
    #[error("--damon `{name}`: not one of lru_sort, reclaim, scheme{}", question(*.nearest))]
    Unknown {
        name: String,
        nearest: Option<&'static str>,
    },
    /// A part that is not `key=value`.
    #[error("--damon {of}: `{part}` is not of the form key=value")]
    Form { of: &'static str, part: String },
    #[error("--damon {of}: {key} is given twice")]
    Twice { of: &'static str, key: String },
    #[error("--damon {of} of Linux {kernel}: {refusal}{}", question(*.nearest))]
    Params {
        of: &'static str,
        kernel: &'static str,
        refusal: ParamsError,
        /// The most similar parameter, if there is none of that name.
        nearest: Option<&'static str>,
    },
}

/// The monitor that was asked for.
#[derive(Clone, Debug)]
pub struct Damon {
    /// Name of the use.
    of: &'static str,
    profile: Profile,
    common: Common,
    /// Whether it watches the processes instead of physical memory.
    is_virtual: bool,
    attrs: Attrs,
    schemes: Vec<Scheme>,
    /// The kernel's read-only files about it.
    files: &'static [&'static str],
}

/// A parameter as `lab list` prints it: name, default, meaning.
pub type ParamLine = (&'static str, String, &'static str);

/// A use as `lab list` prints it: name, what it does, its parameters.
pub type UseLines = (&'static str, &'static str, Vec<ParamLine>);

/// All uses with the parameters they have in the newest kernel.
pub fn uses() -> [UseLines; 3] {
    [
        lines::<lru_sort::Params>("hot regions up, long idle ones down (DAMON_LRU_SORT)"),
        lines::<reclaim::Params>("long idle regions are paged out (DAMON_RECLAIM)"),
        lines::<scheme::Params>("one scheme of your own; action stat only observes"),
    ]
}

fn lines<M: Module + Default>(does: &'static str) -> UseLines {
    (M::NAME, does, M::default().values(Kernel::NEWEST.damon))
}

fn read<M: Module + Default>(profile: Profile, rest: &str) -> Result<M, DamonError> {
    let mut params = M::default();
    let mut given = Vec::new();
    for part in rest.split(':').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| DamonError::Form {
            of: M::NAME,
            part: part.to_owned(),
        })?;
        if given.contains(&key) {
            return Err(DamonError::Twice {
                of: M::NAME,
                key: key.to_owned(),
            });
        }
        given.push(key);
        params
            .set(profile, key, value)
            .map_err(|source| refused::<M>(profile, source))?;
    }
    Ok(params)
}

fn refused<M: Module + Default>(profile: Profile, source: ParamsError) -> DamonError {
    let near = match (source.errno, source.given.first()) {
        (Errno::Enoent, Some((key, _))) => {
            let names = M::default().values(profile);
            nearest(key, names.iter().map(|(name, ..)| *name)).filter(|near| near != key)
        }
        _ => None,
    };
    DamonError::Params {
        of: M::NAME,
        kernel: profile.name,
        refusal: source,
        nearest: near,
    }
}

impl Damon {
    /// Parses `USE[:KEY=VALUE…]` by the rules of a kernel's profile.
    ///
    /// # Errors
    /// [`DamonError`], with the kernel's error for a parameter that it would refuse.
    pub fn parse(text: &str, profile: Profile) -> Result<Damon, DamonError> {
        const NAMES: [&str; 3] = [
            lru_sort::Params::NAME,
            reclaim::Params::NAME,
            scheme::Params::NAME,
        ];
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        match name {
            lru_sort::Params::NAME => Damon::of::<lru_sort::Params>(read(profile, rest)?, profile),
            reclaim::Params::NAME => Damon::of::<reclaim::Params>(read(profile, rest)?, profile),
            scheme::Params::NAME => {
                let params: scheme::Params = read(profile, rest)?;
                Ok(Damon {
                    is_virtual: params.is_virtual,
                    ..Damon::of(params, profile)?
                })
            }
            _ => Err(DamonError::Unknown {
                name: name.to_owned(),
                nearest: nearest(name, NAMES),
            }),
        }
    }

    /// The monitor of physical memory that a module defines.
    fn of<M: Module + Default>(params: M, profile: Profile) -> Result<Damon, DamonError> {
        let monitor = params
            .monitor(profile, TargetId(0), 0)
            .map_err(|source| refused::<M>(profile, source))?;
        Ok(Damon {
            of: M::NAME,
            profile,
            common: *params.common(),
            is_virtual: false,
            attrs: *monitor.attrs(),
            schemes: monitor.schemes().to_vec(),
            files: M::READ_ONLY,
        })
    }

    /// Starts the monitor on a machine with these processes.
    ///
    /// # Errors
    /// The same as those of [`Damon::parse`].
    pub fn start(
        &self,
        machine: &mut Machine,
        processes: &[ProcessId],
        seed: u64,
    ) -> Result<(), DamonError> {
        if !self.common.enabled {
            return Ok(());
        }
        let (watched, targets) = match self.is_virtual {
            true => (Watched::Virtual(processes.to_vec()), processes.len()),
            false => (Watched::Physical(self.common.range()), 1),
        };
        machine.start_damon(self.monitor(targets as u32, seed)?, watched);
        Ok(())
    }

    fn monitor(&self, targets: u32, seed: u64) -> Result<Monitor, DamonError> {
        let targets: Vec<TargetId> = (0..targets).map(TargetId).collect();
        let schemes = self.schemes.clone();
        Monitor::new(self.profile, self.attrs, &targets, schemes, seed).map_err(|error| {
            DamonError::Params {
                of: self.of,
                kernel: self.profile.name,
                refusal: error.into(),
                nearest: None,
            }
        })
    }

    /// Names and meanings of the values of [`Damon::measured`], in order: kdamond, then the
    /// statistics of each scheme under the names of the kernel's files.
    pub fn measures(&self) -> Vec<(&'static str, &'static str)> {
        const MEANINGS: [&str; 5] = [
            "regions the scheme was tried on",
            "their bytes",
            "regions it was carried out on",
            "bytes it was carried out on",
            "quota windows that ended full",
        ];
        let kdamond = [
            (
                "damon_samples",
                "samples taken; 0: watermarks kept it asleep",
            ),
            ("damon_regions", "regions, mean over aggregations"),
            ("damon_cpu_ms", "CPU time of kdamond"),
            ("damon_cpu_percent", "the same in percent of one CPU"),
        ];
        let schemes = self.files[1..]
            .iter()
            .copied()
            .zip(MEANINGS.into_iter().cycle());
        kdamond.into_iter().chain(schemes).collect()
    }

    /// The values that [`Damon::measures`] names.
    pub fn measured(&self, kdamond: Option<&Kdamond>, elapsed_ns: u64) -> Vec<f64> {
        let mut values = vec![0.0; 4];
        if let Some(kdamond) = kdamond {
            values = vec![
                kdamond.samples() as f64,
                kdamond.mean_regions(),
                kdamond.cpu_ns() as f64 / 1e6,
                kdamond.cpu_ns() as f64 * 100.0 / elapsed_ns.max(1) as f64,
            ];
            for scheme in kdamond.monitor().schemes() {
                values.extend(stats(&scheme.stats));
            }
        }
        values.resize(self.measures().len(), 0.0);
        values
    }
}

fn stats(stats: &Stats) -> [f64; 5] {
    [
        stats.nr_tried,
        stats.sz_tried,
        stats.nr_applied,
        stats.sz_applied,
        stats.qt_exceeds,
    ]
    .map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Damon::parse(text, Profile::V7_2).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_name_key_value_and_the_kernels_error() {
        for (text, expected) in [
            ("lru_srot", "did you mean `lru_sort`?"),
            (
                "lru_sort:quota_ms",
                "`quota_ms` is not of the form key=value",
            ),
            (
                "lru_sort:min_nr_regions=2",
                "lru_sort of Linux 7.2: min_nr_regions=2 is refused with EINVAL",
            ),
            (
                "reclaim:sample_interval=200000",
                "sample_interval=200000 aggr_interval=100000 is refused with EINVAL",
            ),
            (
                "reclaim:quota_size=1",
                "ENOENT: damon_reclaim has no such parameter; did you mean `quota_sz`?",
            ),
            (
                "scheme:action=prio",
                "action=prio is refused with EINVAL: it takes stat, pageout, lru_prio",
            ),
            (
                "scheme:min_size=4K",
                "min_size=4K is refused with EINVAL: it takes a whole number of bytes from 0",
            ),
            (
                "scheme:min_age=2:max_age=1",
                "min_age=2 max_age=1 is refused with EINVAL: min_age may be at most 1 us, max_age",
            ),
            ("reclaim:quota_sz=0:quota_sz=1", "quota_sz is given twice"),
            ("scheme:anon=no", "it takes any, only or skip"),
            (
                "scheme:space=virtual:action=lru_prio",
                "action=lru_prio space=virtual is refused with EINVAL: \
                 virtual space has the actions stat, pageout, cold and willneed",
            ),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
        let old = Damon::parse("lru_sort:addr_unit=1", Profile::V6_12).unwrap_err();
        assert!(
            old.to_string()
                .contains("of Linux 6.12: addr_unit=1 is refused with ENOENT")
        );
    }

    #[test]
    fn each_use_has_a_value_for_each_measure() {
        for text in ["lru_sort", "reclaim", "scheme", "lru_sort:enabled=N"] {
            let damon = Damon::parse(text, Profile::V7_2).unwrap();
            let measures = damon.measures();
            assert_eq!(damon.measured(None, 0).len(), measures.len());
            let schemes = damon.monitor(1, 1).unwrap().schemes().len();
            assert_eq!(measures.len(), 4 + 5 * schemes, "{text}");
        }
    }
}
