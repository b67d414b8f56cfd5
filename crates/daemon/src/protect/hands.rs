// SPDX-License-Identifier: Apache-2.0
//! What is done to the guilty, noted in a ledger before it is done.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use agewise_host::cgroup::{Cgroup, TreeLimits, name};
use agewise_host::error::FileError;
use agewise_host::restrain::{LedgerLock, RestrainError, Restraints, untouchable};
use agewise_host::root::ProcRoot;

use crate::config::{Matcher, Protect, UpTo};

use super::groups::self_and_above;

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another program does.
    #[error(
        "protect.ledger: another agewise daemon uses {0}; give each its own, or let only one act"
    )]
    Taken(String),
    /// The directory cannot be made.
    #[error("protect.ledger: cannot make the directory {0}: {1}")]
    Directory(String, std::io::Error),
    /// It cannot be read or written.
    #[error("protect.ledger: {0}")]
    File(#[from] FileError),
}

/// Whether a configuration lets the daemon act.
pub fn acts(config: &Protect, dry_run: bool) -> bool {
    !config.cgroups.is_empty() && config.up_to != UpTo::Report && !config.dry_run && !dry_run
}

/// Hands that can hold a cgroup back. Dropped, they let all go.
#[derive(Debug)]
pub struct Hands {
    restraints: Restraints,
    // Let go of after the restraints.
    _lock: LedgerLock,
}

impl Hands {
    /// Opens the ledger, after taking back what a killed daemon left. Returns what of that failed.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn open(ledger: &Path) -> Result<(Self, Vec<FileError>), LedgerError> {
        let directory = ledger.parent().unwrap_or(Path::new("/"));
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                let directory = directory.display().to_string();
                return Err(LedgerError::Directory(directory, error));
            }
            _ => {}
        }
        let lock = LedgerLock::take(ledger)?
            .ok_or_else(|| LedgerError::Taken(ledger.display().to_string()))?;
        let (restraints, failures) = Restraints::new(ProcRoot::default(), Some(ledger))?;
        Ok((
            Hands {
                restraints,
                _lock: lock,
            },
            failures,
        ))
    }

    /// Takes back what a killed daemon left, if it left anything and no other one runs. Returns
    /// whether there was something, and what of it failed.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn take_back(ledger: &Path) -> Result<(bool, Vec<FileError>), LedgerError> {
        if !ledger.exists() {
            return Ok((false, Vec::new()));
        }
        match Self::open(ledger) {
            Ok((_, failures)) => Ok((true, failures)),
            Err(LedgerError::Taken(_)) => Ok((false, Vec::new())),
            Err(error) => Err(error),
        }
    }

    /// What is held back, to act on.
    pub fn restraints(&mut self) -> &mut Restraints {
        &mut self.restraints
    }
}

/// Why a cgroup is left alone, if it must be.
///
/// # Errors
/// What it holds cannot be told: then it must not be touched either.
pub fn refusal(cgroup: &Cgroup, matcher: &Matcher) -> Result<Option<String>, RestrainError> {
    cgroup.check()?;
    if let Some(why) = untouchable(&ProcRoot::default(), cgroup)? {
        return Ok(Some(why.reason().to_owned()));
    }
    let spared = self_and_above(cgroup.path()).find(|path| matcher.is_spared(path));
    if let Some(path) = spared {
        return Ok(Some(format!("{} is protected or spared", name::text(path))));
    }
    let below = cgroup.descendants(TreeLimits::default())?;
    if below.truncated {
        return Ok(Some("it holds more cgroups than are listed".to_owned()));
    }
    let mut paths = below.cgroups.iter().map(Cgroup::path);
    let spared = paths.find(|path| matcher.is_spared(path));
    Ok(spared.map(|path| {
        let path = name::text(path);
        format!("it holds {path}, which is protected or spared")
    }))
}
