// SPDX-License-Identifier: Apache-2.0
//! Lists the cgroups below a given one, within limits.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;

use super::{Cgroup, CgroupError};
use crate::error::FileError;

/// How much of a tree to list. Machines with leaked cgroups can have hundreds of thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Levels below the start; 1 lists only the children.
    pub depth_max: usize,
    /// Total number of cgroups. If there are more, those nearest to the start are kept.
    pub count_max: usize,
}

/// Room for the name of a file of a cgroup.
const FILE_NAME_MAX: usize = 64;
const PATH_MAX: usize = libc::PATH_MAX as usize;

impl TreeLimits {
    /// For whoever acts on a cgroup: users who may create cgroups in it must not be able to stop
    /// that by a few of them.
    pub const WHOLE: Self = Self {
        depth_max: usize::MAX,
        count_max: 1 << 16,
    };

    /// For finding the cgroup of a page. Pages of cgroups beyond these count only for the whole
    /// machine.
    pub const WIDE: Self = Self {
        depth_max: 64,
        count_max: 1 << 16,
    };
}

impl Default for TreeLimits {
    /// 16 levels, 4096 cgroups.
    fn default() -> Self {
        Self {
            depth_max: 16,
            count_max: 4096,
        }
    }
}

/// The result of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by path, component by component, so that a cgroup comes right before those below it.
    pub cgroups: Vec<Cgroup>,
    /// Whether there were more than the limits allow.
    pub truncated: bool,
}

pub(super) fn descendants(start: &Cgroup, limits: TreeLimits) -> Result<Listing, CgroupError> {
    let mut listing = Listing::default();
    let mut queue = VecDeque::from([(start.clone(), 0)]);
    while let Some((parent, depth)) = queue.pop_front() {
        let children = match children(&parent) {
            Ok(children) => children,
            // A cgroup below the start that was just removed is skipped.
            Err(error) if error.is_gone() && depth > 0 => continue,
            Err(error) => return Err(error),
        };
        if depth == limits.depth_max {
            listing.truncated |= !children.is_empty();
            continue;
        }
        for child in children {
            if listing.cgroups.len() == limits.count_max {
                listing.truncated = true;
                queue.clear();
                break;
            }
            listing.cgroups.push(child.clone());
            queue.push_back((child, depth + 1));
        }
    }
    listing.cgroups.sort_by(|a, b| a.path().cmp(b.path()));
    Ok(listing)
}

/// The direct children, sorted by name.
fn children(parent: &Cgroup) -> Result<Vec<Cgroup>, CgroupError> {
    let dir = parent.dir();
    let failed = |source| {
        parent.vanished(FileError::Read {
            path: dir.clone(),
            source,
        })
    };
    let mut children = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A v2 cgroup has some sixty files: only directories are looked at.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        // The kernel refuses longer paths, so none of its files can be opened. Who makes a cgroup
        // like that gains nothing: it is as if its memory were that of `parent`.
        let is_path = dir.as_os_str().len() + name.len() + FILE_NAME_MAX < PATH_MAX;
        if is_dir
            && is_path
            && let Ok(meta) = entry.metadata()
        {
            children.push(parent.child(&name, meta.ino()));
        }
    }
    children.sort_by(|a, b| a.path().cmp(b.path()));
    Ok(children)
}
