// SPDX-License-Identifier: Apache-2.0
//! Checks for programs that a benchmark needs.

/// Looks for an executable in `PATH`; `Err` says that it is missing.
pub fn is_installed(executable: &str) -> Result<(), String> {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(executable).is_file())
    });
    match found {
        true => Ok(()),
        false => Err(format!("{executable} is not installed")),
    }
}
