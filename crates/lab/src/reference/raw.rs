// SPDX-License-Identifier: Apache-2.0
//! A row of a reference as stored in the file.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use super::cell::{Cell, Guest, MEMBERS_MAX, Measured, Members, NODES_MAX, Phase};
use crate::workload::kernel_trace::TraceSpec;

/// A reference that cannot be read.
#[derive(Debug, Error)]
pub enum ReferenceError {
    /// It is not CSV, a column is missing, or a field is not a number.
    #[error("the reference cannot be read: {0}")]
    Csv(#[from] csv::Error),
    #[error("line {line} of the reference: {column} `{value}` {reason}")]
    Field {
        /// Line of the file, from 1.
        line: u64,
        column: &'static str,
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    #[error("the reference has no row")]
    Empty,
}

#[derive(Debug, Deserialize)]
pub(super) struct RawRow {
    pub kver: String,
    pub nomadv: u32,
    pub rep: String,
    pub lru_gen_enabled: String,
    pub limit_bytes: u64,
    #[serde(default = "default_swappiness")]
    pub swappiness: u32,
    #[serde(default = "default_members")]
    pub members: u32,
    #[serde(default)]
    pub member: u32,
    #[serde(default)]
    pub min_bytes: u64,
    #[serde(default)]
    pub low_bytes: u64,
    #[serde(default)]
    pub writes: u32,
    pub phase: String,
    pub pattern: String,
    pub npages: u32,
    #[serde(default)]
    pub hot: u32,
    pub theta: f64,
    pub seed: u64,
    pub touches: u64,
    pub misses: u64,
    pub elapsed: f64,
    pub pgscan: u64,
    pub tracehash: String,
    #[serde(default)]
    pub err: Option<String>,
    pub cpus: Option<u32>,
    pub min_ttl_ms: Option<u32>,
    pub thp: Option<u32>,
    pub free_pages: Option<String>,
    pub oom_kill: Option<u32>,
    pub watermark_boost_factor: Option<u32>,
    pub interleave: Option<u32>,
}

fn default_swappiness() -> u32 {
    60
}

fn default_members() -> u32 {
    1
}

fn kernel_of(kver: &str) -> Option<String> {
    let mut numbers = kver.split(['.', ' ', '+', '-']);
    let (major, minor) = (numbers.next()?, numbers.next()?);
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (plain(major) && plain(minor)).then(|| format!("{major}.{minor}"))
}

impl RawRow {
    pub fn check(&self, line: u64) -> Result<(String, u32, Phase, Option<u64>), ReferenceError> {
        let field = |column, value: &str, reason| ReferenceError::Field {
            line,
            column,
            value: value.to_owned(),
            reason,
        };
        let kernel = kernel_of(&self.kver)
            .ok_or_else(|| field("kver", &self.kver, "does not start with a kernel version"))?;
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let lru_gen = hex(&self.lru_gen_enabled)
            .and_then(|bits| u32::try_from(bits).ok())
            .ok_or_else(|| field("lru_gen_enabled", &self.lru_gen_enabled, "is no bit mask"))?;
        let phase = Phase::ALL
            .into_iter()
            .find(|phase| phase.name() == self.phase)
            .ok_or_else(|| field("phase", &self.phase, "is none of populate, warm, main"))?;
        // A killed run has no hash.
        let hash = match self.tracehash.as_str() {
            "" => None,
            text => Some(
                hex(text).ok_or_else(|| field("tracehash", text, "is no hexadecimal number"))?,
            ),
        };
        let limit = self.limit_bytes.to_string();
        if self.limit_bytes != 0 && !(1 << 18..=1 << 46).contains(&self.limit_bytes) {
            let reason = "is neither 0 nor between 256 KiB and 64 TiB";
            return Err(field("limit_bytes", &limit, reason));
        }
        if self.limit_bytes == 0 && self.zones().is_none() {
            let zones = self.free_pages.as_deref().unwrap_or_default();
            let reason = "is not the free pages of four zones, such as 3800/26000/0/0, for each \
                          node, separated by semicolons, of 4 MiB to 16 TiB in all, which a row \
                          without a limit needs";
            return Err(field("free_pages", zones, reason));
        }
        if !(1..=NODES_MAX as u32).contains(&self.interleave.unwrap_or(1)) {
            let nodes = self.interleave.unwrap_or_default().to_string();
            return Err(field("interleave", &nodes, "is not between 1 and 64"));
        }
        let global = self.zones().filter(|_| self.limit_bytes == 0);
        if let (Some(nodes @ 2..), Some(zones)) = (self.interleave, global)
            && nodes as usize != zones.len()
        {
            let reason = "is neither 1 nor the number of nodes in free_pages";
            return Err(field("interleave", &nodes.to_string(), reason));
        }
        if self.swappiness > 200 {
            let swappiness = self.swappiness.to_string();
            return Err(field("swappiness", &swappiness, "is not between 0 and 200"));
        }
        if !(1..=MEMBERS_MAX).contains(&self.members) {
            let members = self.members.to_string();
            return Err(field("members", &members, "is not between 1 and 16"));
        }
        if self.member >= self.members {
            let member = self.member.to_string();
            return Err(field("member", &member, "is none of the members"));
        }
        if let Some(err) = self.err.as_deref().filter(|err| !matches!(*err, "" | "0")) {
            return Err(field("err", err, "says that the guest read wrong data"));
        }
        if !self.elapsed.is_finite() || self.elapsed < 0.0 {
            let elapsed = self.elapsed.to_string();
            return Err(field("elapsed", &elapsed, "is no duration"));
        }
        Ok((kernel, lru_gen, phase, hash))
    }

    /// Free pages of the four zones of each node.
    fn zones(&self) -> Option<Vec<[u32; 4]>> {
        let node = |text: &str| {
            let numbers = text.split('/').map(str::parse);
            let zones: Vec<u32> = numbers.collect::<Result<_, _>>().ok()?;
            zones.try_into().ok()
        };
        let nodes = self.free_pages.as_deref()?.split(';').map(node);
        let nodes: Vec<[u32; 4]> = nodes.collect::<Option<_>>()?;
        let all: u64 = nodes.iter().flatten().map(|&pages| u64::from(pages)).sum();
        let is_machine = nodes.len() <= NODES_MAX && (1024..1 << 32).contains(&all);
        is_machine.then_some(nodes)
    }

    /// The cell of the row, without runs and without the touches of the main phase.
    pub fn cell(&self, kernel: String, lru_gen: u32, trace_hash: Option<u64>) -> Cell {
        Cell {
            kernel,
            rules: None,
            lru_gen,
            limit_bytes: self.limit_bytes,
            guest: Guest {
                cpus: self.cpus.unwrap_or(Guest::PLAIN.cpus),
                min_ttl_ms: self.min_ttl_ms.unwrap_or(Guest::PLAIN.min_ttl_ms),
                thp: self.thp == Some(1),
                watermark_boost_factor: self
                    .watermark_boost_factor
                    .unwrap_or(Guest::PLAIN.watermark_boost_factor),
                interleave: self.interleave.unwrap_or(Guest::PLAIN.interleave),
                free_pages: self.zones().filter(|_| self.limit_bytes == 0),
            },
            swappiness: self.swappiness,
            members: Members {
                count: self.members,
                this: self.member,
                min_bytes: self.min_bytes,
                low_bytes: self.low_bytes,
            },
            nomadv: self.nomadv != 0,
            writes: self.writes != 0,
            trace: TraceSpec {
                pattern: self.pattern.clone(),
                pages: self.npages,
                hot: self.hot,
                theta: self.theta,
                seed: self.seed,
                touches: 0,
            },
            trace_hash,
            runs: Vec::new(),
        }
    }

    /// The length of the main phase according to the row. A killed run shows it only in the warm
    /// phase.
    pub fn main_touches(&self, phase: Phase) -> Option<u64> {
        match phase {
            Phase::Main => Some(self.touches),
            Phase::Warm => Some(self.touches.saturating_mul(4)),
            Phase::Populate => None,
        }
    }

    /// A key that is equal for all members in one phase of one run.
    pub fn turn(&self) -> String {
        let run = (&self.kver, &self.rep, &self.phase);
        let cgroup = (
            self.limit_bytes,
            self.min_bytes,
            self.low_bytes,
            self.members,
        );
        let kernel = (&self.lru_gen_enabled, self.swappiness, self.nomadv);
        let nodes = self.zones().map_or(0, |nodes| nodes.len());
        let guest = (
            self.cpus,
            nodes,
            self.min_ttl_ms,
            self.thp,
            (self.watermark_boost_factor, self.interleave),
        );
        let trace = (
            &self.pattern,
            self.npages,
            self.hot,
            self.theta,
            self.writes,
        );
        format!(
            "{run:?} {cgroup:?} {kernel:?} {guest:?} {trace:?} {}",
            self.touches
        )
    }

    pub fn measured(&self, all_misses: u64) -> Measured {
        Measured {
            touches: self.touches,
            misses: self.misses,
            scanned: self.pgscan,
            all_misses,
            elapsed_s: self.elapsed,
        }
    }
}

/// Misses of all members in each phase of each run with several. Members missing in the reference
/// are assumed to have missed as often as the others.
pub(super) fn misses_together(rows: &[RawRow]) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.members > 1) {
        let (misses, members) = sums.entry(row.turn()).or_default();
        *misses = misses.saturating_add(row.misses);
        *members += 1;
    }
    let rows = rows.iter().filter(|row| row.members > 1);
    rows.map(|row| {
        let (turn, members) = (row.turn(), u64::from(row.members));
        let (misses, known) = sums[&turn];
        let all = u128::from(misses) * u128::from(members) / u128::from(known);
        (turn, u64::try_from(all).unwrap_or(u64::MAX))
    })
    .collect()
}
