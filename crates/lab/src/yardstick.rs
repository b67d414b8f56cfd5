// SPDX-License-Identifier: Apache-2.0
//! All policies that can run on a trace alone: yardsticks of the field, and the kernel's LRUs as
//! pools.

use std::sync::{Arc, PoisonError, RwLock};

use agewise_trace::suggest::nearest;
use agewise_trace::yardstick::{PolicySpec, YARDSTICKS, Yardstick};

use crate::kernel_pool::KernelPolicy;
use crate::machine::profile_file::{Source, named_in};
use crate::reuse_pool::Reuse;
use crate::{kernel_pool, reuse_pool};

/// The kernel's LRUs in a memory cgroup that is limited to the capacity.
pub static KERNELS: &[&PolicySpec] = &[
    &kernel_pool::CLASSIC,
    &kernel_pool::CLASSIC_MAPPED,
    &kernel_pool::MGLRU_6_12,
    &kernel_pool::MGLRU_6_12_MAPPED,
    &kernel_pool::MGLRU_7_2,
    &kernel_pool::MGLRU_7_2_MAPPED,
];

/// Policies of agewise itself.
pub static OWN: &[&PolicySpec] = &[&reuse_pool::SPEC];

/// Policies registered by other crates.
static REGISTERED: RwLock<Vec<&'static PolicySpec>> = RwLock::new(Vec::new());

/// All policies.
pub fn all() -> impl Iterator<Item = &'static PolicySpec> {
    beside_kernels().chain(KERNELS.iter().copied())
}

/// All policies except the kernel's, which the machine itself implements.
pub fn beside_kernels() -> impl Iterator<Item = &'static PolicySpec> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let known = YARDSTICKS.iter().chain(OWN).copied();
    known.chain(registered.clone())
}

/// Adds a policy of another crate, which can then be used like any yardstick.
///
/// # Errors
/// Fails if one of its names is taken.
pub fn register(spec: &'static PolicySpec) -> Result<(), String> {
    let mut names = [spec.name].into_iter().chain(spec.aliases.iter().copied());
    if let Some(taken) = names.find(|name| by_name(name).is_some()) {
        return Err(format!("there is a policy '{taken}' already"));
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    registered.push(spec);
    Ok(())
}

/// Finds a policy by name (case and `-`, `_`, `:`, `.` do not matter).
#[must_use]
pub fn by_name(name: &str) -> Option<&'static PolicySpec> {
    all().find(|spec| spec.is_called(name))
}

/// Parses a policy: a name, possibly with parameters (`reuse:look=0.25,batch=8,decay=0.99`,
/// `mglru:FILE.toml`).
///
/// # Errors
/// Says what is wrong and which policies exist.
pub fn parse(text: &str) -> Result<Arc<dyn Yardstick>, String> {
    parse_at(text, None)
}

/// Like [`parse`], with the profile if it is not where the name says.
///
/// # Errors
/// The same as those of [`parse`].
pub fn parse_at(text: &str, profile: Option<Source<'_>>) -> Result<Arc<dyn Yardstick>, String> {
    if let Some((name, parameters)) = text.split_once(':')
        && reuse_pool::SPEC.is_called(name)
    {
        return Ok(Arc::new(Reuse::parse(parameters)?));
    }
    if named_in(text).is_some() {
        return Ok(Arc::new(KernelPolicy::parse(text, profile)?));
    }
    let spec = by_name(text).ok_or_else(|| match nearest(text, all().map(|spec| spec.name)) {
        Some(near) => format!("there is no policy '{text}'; did you mean '{near}'?"),
        None => format!("there is no policy '{text}'; there are {}", names()),
    })?;
    Ok(Arc::new(spec))
}

/// Parses several policies separated by commas, which also separate the parameters of one.
///
/// # Errors
/// The same as those of [`parse`].
pub fn parse_list(text: &str) -> Result<Vec<Arc<dyn Yardstick>>, String> {
    let parts: Vec<&str> = text.split(',').collect();
    let written = with_parameters(&parts);
    written.iter().map(|text| parse(text)).collect()
}

/// Rejoins names with their parameters after a split at commas.
pub fn with_parameters(parts: &[impl AsRef<str>]) -> Vec<String> {
    let mut written: Vec<String> = Vec::new();
    for part in parts.iter().map(AsRef::as_ref) {
        match written.last_mut() {
            // A parameter of the previous policy.
            Some(before) if part.contains('=') && before.contains(':') && !part.contains(':') => {
                *before = format!("{before},{part}");
            }
            _ => written.push(part.to_owned()),
        }
    }
    written
}

/// The names of all policies, for messages.
#[must_use]
pub fn names() -> String {
    all().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for spec in all() {
            for name in [spec.name].iter().chain(spec.aliases) {
                assert_eq!(by_name(name).unwrap().name, spec.name);
            }
        }
        assert!(by_name("nonsense").is_none());
    }

    #[test]
    fn what_is_registered_is_found_and_unique() {
        static MINE: PolicySpec = PolicySpec {
            name: "mine",
            aliases: &["my-own"],
            summary: "none",
            simulation: agewise_trace::yardstick::Simulation::Offline(|_, capacity, _| {
                capacity as u64
            }),
        };
        register(&MINE).unwrap();
        assert_eq!(parse("My_Own").unwrap().name(), "mine");
        assert!(register(&MINE).unwrap_err().contains("'mine' already"));
    }

    #[test]
    fn parameters_belong_to_the_policy_before_them() {
        let list = parse_list("opt,reuse:look=0.5,batch=8,lru,reuse,reuse:decay=0.95").unwrap();
        let names: Vec<&str> = list.iter().map(|one| one.name()).collect();
        assert_eq!(
            names,
            [
                "opt",
                "reuse:look=0.5,batch=8",
                "lru",
                "reuse",
                "reuse:decay=0.95"
            ]
        );
        for (text, complaint) in [
            ("batch=8", "there is no policy 'batch=8'; there are opt, "),
            (
                "s3fif",
                "there is no policy 's3fif'; did you mean 's3fifo'?",
            ),
            (
                "mglru-7.3",
                "there is no policy 'mglru-7.3'; did you mean 'mglru-7.2'?",
            ),
            ("reuse:look=0", "look is 0: it goes from 0.001 to 4"),
            ("reuse:decay=x", "decay is x, which is no number"),
            ("reuse:look=1,look=2", "look is given twice"),
            ("reuse:batch=8.5", "batch is 8.5, which is no whole number"),
            ("reuse:speed=1", "reuse knows look, batch, decay, not speed"),
            ("reuse:", "reuse knows look, batch, decay, not "),
        ] {
            let error = parse_list(text).unwrap_err();
            assert!(error.starts_with(complaint), "{text}: {error}");
        }
    }
}
