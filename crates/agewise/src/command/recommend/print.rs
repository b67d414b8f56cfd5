// SPDX-License-Identifier: Apache-2.0
//! Recommendations as text, JSON lines and CSV.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

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
    let mut csv = csv::Writer::from_writer(out);
    for record in records {
        let fields = record.container.as_ref().map(Container::fields);
        let text = |field: Option<&Untrusted>| field.map(|field| field.terminal().to_string());
        let [namespace, pod, container, container_id, image] = fields.unwrap_or_default().map(text);
        let names = Names {
            namespace,
            pod,
            container,
            container_id,
            image,
        };
        let record = Record {
            host: (record.host.as_deref()).map(|host| Untrusted::from(host).terminal().to_string()),
            cgroup: name::shown(&record.cgroup).terminal().to_string(),
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
        writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>10} {:>10}  {}{}",
            units::bytes_text(record.resident_bytes),
            units::bytes_text(record.request_bytes),
            units::bytes_text(record.limit_bytes),
            units::percent_text(record.wait_ratio),
            record.wait_high.map_or("?".to_owned(), units::percent_text),
            host.terminal(),
            name::shown(&record.cgroup).terminal(),
        )?;
        if let Some(title) = record.container.as_ref().and_then(Container::title) {
            writeln!(out, "{:>12} {}", "", title.terminal())?;
        }
        let gone = if record.gone { "gone; " } else { "" };
        write!(out, "{:>12} {gone}{}", "", record.reason)?;
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

/// Prints the total of those that exist. A nested cgroup is also counted in its ancestors, so only
/// outermost ones are added up.
fn total(out: &mut impl Write, records: &[Record], price: Option<f64>) -> anyhow::Result<()> {
    let key = |record: &Record, cgroup: &str| (record.host.clone(), cgroup.to_owned());
    let existing = || records.iter().filter(|record| !record.gone);
    let known: HashSet<_> = existing().map(|r| key(r, &r.cgroup)).collect();
    let is_inner = |record: &Record| {
        let mut above = Path::new(&record.cgroup).ancestors().skip(1);
        above.any(|above| known.contains(&key(record, &above.to_string_lossy())))
    };
    let outer: Vec<&Record> = existing().filter(|r| !is_inner(r)).collect();
    let saved: i64 = outer.iter().map(|record| record.saving_bytes).sum();
    let amount = units::bytes_text(saved.unsigned_abs());
    let sign = if saved < 0 { "more" } else { "less" };
    write!(out, "all: {amount} {sign} than is resident")?;
    if price.is_some() {
        let savings = outer.iter().filter_map(|record| record.saving_per_month);
        // The sum of none would be -0.
        let money = savings.fold(0.0, |sum, saving| sum + saving);
        write!(out, ", {money:.2} a month")?;
    }
    match records.len() - existing().count() {
        0 => {}
        1 => write!(out, ", without the one that is gone")?,
        gone => write!(out, ", without the {gone} that are gone")?,
    }
    writeln!(out)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cgroup: String) -> Record {
        Record {
            record: "recommendation",
            host: None,
            cgroup,
            container: None,
            gone: false,
            request_bytes: 0,
            limit_bytes: 0,
            lower_bytes: 0,
            curve_bytes: 0,
            resident_bytes: 1 << 20,
            limit_now_bytes: None,
            saving_bytes: 1 << 20,
            saving_per_month: None,
            target_wait_ratio: 0.001,
            wait_ratio: 0.0,
            wait_low: 0.0,
            wait_high: None,
            unused_bytes: None,
            unseen_processes: None,
            observed_seconds: 1.0,
            basis: "curve",
            reason: String::new(),
        }
    }

    #[test]
    fn no_two_cgroups_look_the_same_in_csv() {
        let records = [record("/a\x1b".into()), record(r"/a\x1b".into())];
        let mut text = Vec::new();
        csv(&mut text, &records).expect("memory takes it");
        let text = String::from_utf8(text).expect("it is text");
        let cgroups = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split(',').nth(2));
        assert_eq!(cgroups.collect::<Vec<_>>(), [r"/a\x1b", r"/a\x5cx1b"]);
    }

    #[test]
    fn what_is_in_another_cgroup_is_added_up_once() {
        let mut records = vec![record("/web".into()), record("/web-2".into())];
        records.extend((0..3000).map(|pod| record(format!("/web/pod{pod}"))));
        let mut text = Vec::new();
        total(&mut text, &records, None).expect("memory takes it");
        assert_eq!(text, b"all: 2.0 MiB less than is resident\n");
        let gone = Record {
            gone: true,
            ..record("/".into())
        };
        records.push(gone);
        text.clear();
        total(&mut text, &records, None).expect("memory takes it");
        assert_eq!(
            text,
            b"all: 2.0 MiB less than is resident, without the one that is gone\n"
        );
        records.pop();
        records.push(record("/".into()));
        text.clear();
        total(&mut text, &records, None).expect("memory takes it");
        assert_eq!(text, b"all: 1.0 MiB less than is resident\n");
    }
}
