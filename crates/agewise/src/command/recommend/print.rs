// SPDX-License-Identifier: Apache-2.0
//! Recommendations as text, JSON lines and CSV.

use std::io::Write;

use agewise_cli::{output, units};
use agewise_host::cgroup::name;
use agewise_host::container::Container;
use agewise_host::untrusted::Untrusted;
use serde::Serialize;

use super::Record;

pub(super) fn json(out: &mut impl Write, records: &[impl Serialize]) -> anyhow::Result<()> {
    for record in records {
        output::json_line(out, record)?;
    }
    Ok(out.flush()?)
}

/// A record with the names of its container.
#[derive(Serialize)]
struct Named<'a> {
    #[serde(flatten)]
    record: &'a Record,
    #[serde(flatten)]
    container: Option<&'a Container>,
}

pub(super) fn records(out: &mut impl Write, records: &[Record]) -> anyhow::Result<()> {
    let named = |record| Named {
        record,
        container: record.container.as_ref(),
    };
    json(out, &records.iter().map(named).collect::<Vec<_>>())
}

/// The names as columns, in the order of [`Container::NAMES`].
#[derive(Serialize)]
struct Names {
    namespace: Option<String>,
    pod: Option<String>,
    container: Option<String>,
    container_id: Option<String>,
    image: Option<String>,
}

pub(super) fn csv(out: &mut impl Write, records: &[Record]) -> anyhow::Result<()> {
    let clean = |text: &str| agewise_host::untrusted::clean(text);
    let mut csv = csv::Writer::from_writer(out);
    for record in records {
        let fields = record.container.as_ref().map(Container::fields);
        let name = |field: Option<&Untrusted>| field.map(|field| field.terminal().to_string());
        let [namespace, pod, container, container_id, image] = fields.unwrap_or_default().map(name);
        let names = Names {
            namespace,
            pod,
            container,
            container_id,
            image,
        };
        let record = Record {
            host: record.host.as_deref().map(clean),
            cgroup: clean(&record.cgroup),
            ..record.clone()
        };
        csv.serialize((record, names))?;
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
        let host = Untrusted::from(host.unwrap_or_default());
        let percent = |share: f64| format!("{:.3} %", share * 100.0);
        writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>10} {:>10}  {}{}",
            units::bytes_text(record.resident_bytes),
            units::bytes_text(record.request_bytes),
            units::bytes_text(record.limit_bytes),
            percent(record.wait_ratio),
            record.wait_high.map_or("?".to_owned(), percent),
            host.terminal(),
            name::shown(&record.cgroup).terminal(),
        )?;
        if let Some(title) = record.container.as_ref().and_then(Container::title) {
            writeln!(out, "{:>12} {}", "", title.terminal())?;
        }
        write!(out, "{:>12} {}", "", record.reason)?;
        if let Some(unused) = record.unused_bytes.filter(|bytes| *bytes > 0) {
            let unused = units::bytes_text(unused);
            write!(
                out,
                "; {unused} were not used at all, and may be needed later"
            )?;
        }
        writeln!(out)?;
    }
    total(out, records, price)
}

/// Prints the total. A nested cgroup is also counted in its ancestors, so only outermost ones are
/// added up.
fn total(out: &mut impl Write, records: &[Record], price: Option<f64>) -> anyhow::Result<()> {
    let is_below = |below: &Record, above: &Record| {
        let rest = below
            .cgroup
            .strip_prefix(above.cgroup.trim_end_matches('/'));
        below.host == above.host && rest.is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    let outer: Vec<&Record> = match records.len() {
        // For more records the check below would take too long.
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
