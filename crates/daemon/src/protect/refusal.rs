// SPDX-License-Identifier: Apache-2.0
//! Whether anything may be done, and to which cgroups.

use std::fs;
use std::os::unix::fs::MetadataExt;

use agewise_host::cgroup::{Cgroup, name};
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{ThrottleError, touchable};

use crate::config::{Matcher, Protect, UpTo};

use super::groups::self_and_above;

/// Whether the configuration lets the daemon act.
pub fn acts(config: &Protect, dry_run: bool) -> bool {
    !config.cgroups.is_empty() && config.up_to != UpTo::Report && !config.dry_run && !dry_run
}

/// Why a cgroup must be left alone, if it must be.
///
/// # Errors
/// If its contents are unknown: then it must not be touched either.
pub fn refusal(
    root: &ProcRoot,
    cgroup: &Cgroup,
    matcher: &Matcher,
) -> Result<Option<String>, ThrottleError> {
    cgroup.check()?;
    let below = match touchable(root, cgroup)? {
        Ok(below) => below,
        Err(why) => return Ok(Some(why.reason().to_owned())),
    };
    let spared = self_and_above(cgroup.path()).find(|path| matcher.is_spared(path));
    if let Some(path) = spared {
        return Ok(Some(format!("{} is protected or spared", name::text(path))));
    }
    // One between it and one below may not be listed.
    let mut paths = below.iter().flat_map(|path| self_and_above(path));
    let spared = paths.find(|path| matcher.is_spared(path));
    Ok(spared.map(|path| {
        let path = name::text(path);
        format!("it holds {path}, which is protected or spared")
    }))
}

/// Whether it belongs to a user, who may move processes between the cgroups in it. Those in one of
/// root's may be of several users, none of whom is to blame for another.
pub(super) fn is_of_user(cgroup: &Cgroup) -> bool {
    fs::metadata(cgroup.dir()).is_ok_and(|meta| meta.uid() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_host::cgroup::{Hierarchy, Version};

    #[test]
    fn cgroups_of_root_are_of_no_user() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("job");
        fs::create_dir(&dir).unwrap();
        let cgroup = Cgroup::open(&Hierarchy::at(Version::V2, top.path()), "/job").unwrap();
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(is_of_user(&cgroup), !is_root);
        if is_root {
            std::os::unix::fs::chown(&dir, Some(1000), None).unwrap();
            assert!(is_of_user(&cgroup));
        }
        fs::remove_dir(&dir).unwrap();
        assert!(!is_of_user(&cgroup));
    }
}
