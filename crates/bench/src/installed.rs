// SPDX-License-Identifier: Apache-2.0
//! Programs that a benchmark needs.

/// Whether an executable is found, or that it is not.
pub fn is_installed(executable: &str) -> Result<(), String> {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(executable).is_file())
    });
    match found {
        true => Ok(()),
        false => Err(format!("{executable} is not installed")),
    }
}
