// SPDX-License-Identifier: Apache-2.0
//! Passes the commit being built to the program, which writes it into the results of the lab.
//!
//! Without a repository, `AGEWISE_BUILD` provides it. Debug builds do not ask git, since they would
//! have to be rebuilt after every commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=AGEWISE_BUILD");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("AGEWISE_BUILD").ok();
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = given.or_else(|| if is_release { of_git() } else { None });
    let commit = commit.filter(|commit| !commit.trim().is_empty());
    let commit = commit.as_deref().map_or("unknown", str::trim);
    println!("cargo::rustc-env=AGEWISE_BUILD={commit}");
}

/// The commit, with `-dirty` if files differ from it.
fn of_git() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    println!("cargo::rerun-if-changed=../../crates");
    // git writes to this log at every commit.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&[
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ])
}
