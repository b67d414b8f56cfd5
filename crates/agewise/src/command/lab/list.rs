// SPDX-License-Identifier: Apache-2.0
//! `agewise lab list`.

use std::io::{self, Write};
use std::process::ExitCode;

use agewise_lab::experiment::damon;
use agewise_lab::experiment::machine_run::{MEASURES, TIER_MEASURES, ZONE_MEASURES};
use agewise_lab::experiment::settings::SETTINGS;
use agewise_lab::machine::Policy;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::profile_file;
use agewise_lab::workload::library;
use agewise_lab::yardstick;
use serde::Serialize;

use agewise_cli::output::{self, Format};

/// List the workloads, policies, yardsticks, swap devices, settings, fields of profiles
/// (mglru:FILE.toml), uses of DAMON with their parameters, and measures of the lab, each described.
///
/// Yardsticks are textbook replacement policies, run on the same accesses for comparison.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// text: under headings; json: one object per line; csv: the same fields.
    #[arg(long, default_value = "text")]
    pub format: Format,
}

#[derive(Debug, Serialize)]
struct Entry {
    kind: &'static str,
    name: String,
    description: String,
}

fn describe_policy(name: &str) -> &'static str {
    match name {
        "classic" => "active and inactive lists, as in 7.2; classic:6.12 as there",
        "mglru:7.2" => "the multi-gen LRU of Linux 7.2",
        "mglru:6.12" => "the multi-gen LRU of Linux 6.12",
        "mglru:6.14" => "mglru:6.12 with the rework of 6.14 of uses, refaults and types",
        "mglru:v6" => "the multi-gen LRU as posted in January 2022",
        "classic+zone" => "classic with lists per zone, the highest zone used up first",
        "classic+zone+fair" => {
            "classic with lists per zone, zones used in turn (Linux 3.12 to 4.7)"
        }
        "classic+rd" => "classic, where a refault distance decides what joins the active list",
        "mglru+rd:7.2" => "mglru:7.2, where a refault distance may raise what comes back",
        _ => "a version of one of these",
    }
}

fn entries() -> anyhow::Result<Vec<Entry>> {
    let entry = |kind, name: &str, description: &str| Entry {
        kind,
        name: name.to_owned(),
        description: description.to_owned(),
    };
    let mut entries = Vec::new();
    for name in library::names() {
        let workload = library::find(name)?;
        entries.push(entry("workload", name, &workload.description));
    }
    for name in Policy::names() {
        entries.push(entry("policy", &name, describe_policy(&name)));
    }
    for spec in yardstick::beside_kernels() {
        entries.push(entry("yardstick", spec.name, spec.summary));
    }
    for kind in DeviceKind::ALL {
        entries.push(entry("swap", kind.name(), kind.description()));
    }
    entries.push(entry(
        "swap",
        "none",
        "no swap: anonymous memory cannot be evicted",
    ));
    for setting in SETTINGS {
        entries.push(entry("setting", setting.key, setting.description));
    }
    for field in profile_file::FIELDS {
        entries.push(entry("profile", field.key, field.description));
    }
    for (name, summary, params) in damon::uses() {
        entries.push(entry("damon", name, summary));
        for (key, value, meaning) in params {
            let name = format!("{name}:{key}={value}");
            entries.push(entry("damon", &name, meaning));
        }
    }
    for (name, description) in MEASURES {
        entries.push(entry("measure", name, description));
    }
    // All zones have the same measures.
    for (name, description) in ZONE_MEASURES[0] {
        let name = name.replacen("zone_dma", "zone_NAME", 1);
        entries.push(entry("measure", &name, description));
    }
    for (name, description) in TIER_MEASURES {
        entries.push(entry("measure", name, description));
    }
    Ok(entries)
}

/// Prints the list.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let entries = entries()?;
    let mut out = io::stdout().lock();
    match args.format {
        Format::Text => {
            let mut kind = "";
            for entry in &entries {
                if entry.kind != kind {
                    kind = entry.kind;
                    writeln!(out, "{kind}:")?;
                }
                writeln!(out, "  {:24} {}", entry.name, entry.description)?;
            }
        }
        format => output::rows(&mut out, format, &entries)?,
    }
    Ok(ExitCode::SUCCESS)
}
