// SPDX-License-Identifier: Apache-2.0
//! Prints what `size` found.

use std::io::Write;

use agewise_host::untrusted::clean;
use agewise_trace::sizing::SizePoint;
use serde::Serialize;

use agewise_cli::output::{self, Format};
use agewise_cli::units;

use super::{Args, Found, Watched};

/// A point of the curve as printed.
#[derive(Debug, Serialize)]
struct Point {
    record: &'static str,
    memory_bytes: u64,
    /// Absent for a trace without times, as `wait_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    faults_per_second: Option<f64>,
    /// Only for a trace without times, as `wait_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    faults_per_1000_accesses: Option<f64>,
    faults_low: f64,
    #[serde(serialize_with = "output::bound")]
    faults_high: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ratio: Option<f64>,
    /// Per access.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_us: Option<f64>,
    #[serde(serialize_with = "output::bound")]
    wait_high: f64,
}

impl Point {
    fn new(point: &SizePoint, is_timed: bool) -> Point {
        let (timed, untimed) = (is_timed.then_some(*point), (!is_timed).then_some(*point));
        Point {
            record: "point",
            memory_bytes: point.memory_bytes,
            faults_per_second: timed.map(|point| point.faults),
            faults_per_1000_accesses: untimed.map(|point| point.faults),
            faults_low: point.faults_low,
            faults_high: point.faults_high,
            wait_ratio: timed.map(|point| point.wait),
            wait_us: untimed.map(|point| point.wait),
            wait_high: point.wait_high,
        }
    }
}

/// The answer, with the field names of all outputs.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    record: &'static str,
    footprint_bytes: u64,
    knee_bytes: u64,
    recommended_bytes: u64,
    /// For a trace without times: us per access.
    target_wait: f64,
    cost_model: &'a str,
    /// Of a page from swap.
    refault_us: f64,
    /// Of a page from a file.
    file_refault_us: f64,
    observed_seconds: f64,
    first_touch_share: f64,
    order_uncertainty: f64,
    /// Resident memory of a live program that was not used meanwhile.
    unused_bytes: Option<u64>,
    /// Processes that could not be looked at.
    unseen_processes: Option<usize>,
    /// What of the target is left out or seen only roughly.
    note: Option<String>,
    /// Why watching ended early.
    gone: Option<&'a str>,
}

fn answer(target_wait: f64, found: &Found) -> Answer<'_> {
    let Found { cost, need, .. } = found;
    let live = found.live.as_ref();
    Answer {
        record: "summary",
        footprint_bytes: need.footprint_bytes,
        knee_bytes: need.knee_bytes,
        recommended_bytes: need.recommended_bytes,
        target_wait,
        cost_model: cost.name,
        refault_us: cost.prices.anon_ns.likely / 1e3,
        file_refault_us: cost.prices.file_ns.likely / 1e3,
        observed_seconds: found.seconds,
        first_touch_share: need.first_touch_share,
        order_uncertainty: need.order_uncertainty,
        unused_bytes: live.map(|live| live.curves.unused_bytes),
        unseen_processes: live.map(|live| live.unseen_processes),
        note: live.and_then(agewise_cli::whatif::Found::caveat),
        gone: live.and_then(|live| live.gone.as_deref()),
    }
}

pub(super) fn print(out: &mut impl Write, args: &Args, found: &Found) -> anyhow::Result<()> {
    let answer = answer(args.target_wait, found);
    let is_timed = found.seconds > 0.0;
    let points = found.need.points.iter();
    let points = points.map(|point| Point::new(point, is_timed));
    match args.format {
        Format::Json => {
            output::rows(out, args.format, points)?;
            output::json_line(out, &answer)?;
        }
        Format::Csv => {
            output::rows(out, args.format, points)?;
            if let Some(live) = &found.live {
                let gone = live.gone.iter().map(|gone| format!("gone: {gone}"));
                for caveat in live.caveats().into_iter().chain(gone) {
                    agewise_cli::note!("{caveat}");
                }
            }
        }
        Format::Text => text(out, &answer, found)?,
    }
    Ok(())
}

fn text(out: &mut impl Write, answer: &Answer<'_>, found: &Found) -> std::io::Result<()> {
    let Found { cost, need, .. } = found;
    let timed = answer.observed_seconds > 0.0;
    let (unit, waiting) = if timed {
        ("faults/s", "waiting")
    } else {
        ("faults/1000", "us/access")
    };
    writeln!(
        out,
        "{:>12} {unit:>15} {:>24} {waiting:>10}",
        "memory", "interval"
    )?;
    for point in &need.points {
        let wait = if timed {
            units::percent_text(point.wait)
        } else {
            format!("{:.3}", point.wait)
        };
        let mark = match point.memory_bytes {
            size if size == need.recommended_bytes => "  <- recommended",
            size if size == need.knee_bytes => "  <- knee",
            _ => "",
        };
        writeln!(
            out,
            "{:>12} {:>15.1} {:>11.1} .. {:>9} {wait:>10}{mark}",
            units::bytes_text(point.memory_bytes),
            point.faults,
            point.faults_low,
            match point.faults_high.is_finite() {
                true => format!("{:.1}", point.faults_high),
                false => "?".to_owned(),
            },
        )?;
    }
    writeln!(
        out,
        "recommended: {} of {}, for at most {} waiting, at {}; knee at {}",
        units::bytes_text(need.recommended_bytes),
        units::bytes_text(need.footprint_bytes),
        if timed {
            format!("{:.2} % of the time", answer.target_wait * 100.0)
        } else {
            format!("{} us an access", answer.target_wait)
        },
        cost.text,
        units::bytes_text(need.knee_bytes),
    )?;
    writeln!(
        out,
        "how sure: {:.1} s observed; {:.1} % of accesses were first touches (pages used less often \
         than that are not counted); at the recommended size, unknown order inside intervals is \
         worth {:.1} % of the range",
        answer.observed_seconds,
        need.first_touch_share * 100.0,
        need.order_uncertainty * 100.0,
    )?;
    match &found.live {
        Some(live) => unknown(out, live),
        None => Ok(()),
    }
}

/// Says what the curve of a live program does not show.
fn unknown(out: &mut impl Write, live: &Watched) -> std::io::Result<()> {
    writeln!(
        out,
        "not known: {} was not used meanwhile and may be needed later",
        units::bytes_text(live.curves.unused_bytes)
    )?;
    for caveat in live.caveats() {
        writeln!(out, "{caveat}")?;
    }
    match &live.gone {
        Some(gone) => writeln!(out, "# gone: {}", clean(gone)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use agewise_trace::sizing::Need;

    use super::super::{Cost, cost_model};
    use super::*;

    #[test]
    fn every_point_is_printed() {
        let point = |at: u64| SizePoint {
            memory_bytes: at << 20,
            faults: 5.0,
            faults_low: 5.0,
            faults_high: 5.0,
            wait: 0.0,
            wait_high: 0.0,
        };
        let need = Need {
            points: (1..=9).map(point).collect(),
            footprint_bytes: 9 << 20,
            knee_bytes: 8 << 20,
            recommended_bytes: 4 << 20,
            first_touch_share: 0.0,
            order_uncertainty: 0.0,
        };
        let found = Found {
            cost: Cost::of(cost_model("ssd").unwrap()),
            seconds: 60.0,
            need,
            live: None,
        };
        let mut out = Vec::new();
        text(&mut out, &answer(0.01, &found), &found).unwrap();
        let out = String::from_utf8(out).unwrap();
        let rows = out.lines().filter(|line| line.contains(" 5.0 .. "));
        assert_eq!(rows.count(), 9, "{out}");
    }
}
