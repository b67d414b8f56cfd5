// SPDX-License-Identifier: Apache-2.0
//! Recommendations as text, JSON lines and CSV.

use std::io::Write;

use agewise_cli::{output, units};
use agewise_host::untrusted::Untrusted;
use serde::Serialize;

use super::Record;

pub(super) fn json(out: &mut impl Write, records: &[impl Serialize]) -> anyhow::Result<()> {
    for record in records {
        output::json_line(out, record)?;
    }
    Ok(out.flush()?)
}

pub(super) fn csv(out: &mut impl Write, records: &[Record]) -> anyhow::Result<()> {
    let clean = |text: &str| agewise_host::untrusted::clean(text);
    let mut csv = csv::Writer::from_writer(out);
    for record in records {
        csv.serialize(Record {
            host: record.host.as_deref().map(clean),
            cgroup: clean(&record.cgroup),
            ..record.clone()
        })?;
    }
    Ok(csv.flush()?)
}

pub(super) fn text(
    out: &mut impl Write,
    records: &[Record],
    price: Option<f64>,
) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:>12} {:>12} {:>12} {:>10} {:>10}  cgroup",
        "resident", "request", "limit", "waiting", "at most"
    )?;
    for record in records {
        let host = record.host.as_deref().map(|host| format!("{host} "));
        let name = Untrusted::from(format!("{}{}", host.unwrap_or_default(), record.cgroup));
        let percent = |share: f64| format!("{:.3} %", share * 100.0);
        writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>10} {:>10}  {}",
            units::bytes_text(record.resident_bytes),
            units::bytes_text(record.request_bytes),
            units::bytes_text(record.limit_bytes),
            percent(record.wait_ratio),
            record.wait_high.map_or("?".to_owned(), percent),
            name.terminal(),
        )?;
        write!(out, "{:>12} {}", "", record.reason)?;
        if let Some(unused) = record.unused_bytes.filter(|bytes| *bytes > 0) {
            let unused = units::bytes_text(unused);
            write!(
                out,
                "; {unused} were not used at all, and may be wanted later"
            )?;
        }
        writeln!(out)?;
    }
    total(out, records, price)
}

/// Nested cgroups count memory twice: only those that are below no other are added up.
fn total(out: &mut impl Write, records: &[Record], price: Option<f64>) -> anyhow::Result<()> {
    let is_below = |below: &Record, above: &Record| {
        let rest = below
            .cgroup
            .strip_prefix(above.cgroup.trim_end_matches('/'));
        below.host == above.host && rest.is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    let outer: Vec<&Record> = match records.len() {
        // What a fleet has is looked through by the server.
        0..=2000 => {
            let is_outer = |of: &&Record| !records.iter().any(|other| is_below(of, other));
            records.iter().filter(is_outer).collect()
        }
        _ => records.iter().collect(),
    };
    let saved: i64 = outer.iter().map(|record| record.saving_bytes).sum();
    let amount = units::bytes_text(saved.unsigned_abs());
    let sign = if saved < 0 { "more" } else { "less" };
    write!(out, "all: {amount} {sign} than is resident")?;
    if price.is_some() {
        let money: f64 = outer
            .iter()
            .filter_map(|record| record.saving_per_month)
            .sum();
        write!(out, ", {money:.2} a month")?;
    }
    writeln!(out)?;
    Ok(out.flush()?)
}
