// SPDX-License-Identifier: Apache-2.0
//! Prints what `size` found.

use std::io::Write;

use agewise_trace::sizing::SizePoint;
use serde::Serialize;

use agewise_cli::output::{self, Format};
use agewise_cli::units;

use super::{Args, Found};

/// The answer, with the field names of all outputs.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    footprint_bytes: u64,
    knee_bytes: u64,
    recommended_bytes: u64,
    target_stall: f64,
    cost_model: &'a str,
    /// Of a page from swap.
    refault_us: f64,
    /// Of a page from a file.
    file_refault_us: f64,
    seconds: f64,
    first_touch_share: f64,
    order_uncertainty: f64,
    /// Why watching ended early.
    gone: Option<&'a str>,
}

fn answer(target: f64, found: &Found) -> Answer<'_> {
    let Found { cost, need, .. } = found;
    Answer {
        footprint_bytes: need.footprint_bytes,
        knee_bytes: need.knee_bytes,
        recommended_bytes: need.recommended_bytes,
        target_stall: target,
        cost_model: cost.name,
        refault_us: cost.prices.anon_ns.likely / 1e3,
        file_refault_us: cost.prices.file_ns.likely / 1e3,
        seconds: found.seconds,
        first_touch_share: need.first_touch_share,
        order_uncertainty: need.order_uncertainty,
        gone: found.gone.as_deref(),
    }
}

pub(super) fn print(out: &mut impl Write, args: &Args, found: &Found) -> anyhow::Result<()> {
    let need = &found.need;
    let answer = answer(args.target, found);
    match args.format {
        Format::Json => {
            for point in &need.points {
                output::json_line(out, point)?;
            }
            output::json_line(out, &answer)?;
        }
        Format::Csv => {
            if let Some(gone) = &found.gone {
                agewise_cli::note!("gone: {gone}");
            }
            writeln!(
                out,
                "size_bytes,refaults,refaults_min,refaults_max,stall,stall_max"
            )?;
            for point in &need.points {
                let SizePoint {
                    size_bytes,
                    refaults,
                    refaults_min,
                    refaults_max,
                    stall,
                    stall_max,
                } = point;
                // Empty where nothing bounds it.
                let most = [*refaults_max, *stall_max].map(|most| {
                    let most = output::finite(most);
                    most.map_or(String::new(), |most| most.to_string())
                });
                writeln!(
                    out,
                    "{size_bytes},{refaults},{refaults_min},{},{stall},{}",
                    most[0], most[1]
                )?;
            }
        }
        Format::Text => text(out, &answer, found)?,
    }
    Ok(())
}

fn text(out: &mut impl Write, answer: &Answer<'_>, found: &Found) -> std::io::Result<()> {
    let Found { cost, need, .. } = found;
    let timed = answer.seconds > 0.0;
    let (unit, waiting) = if timed {
        ("refaults/s", "stall")
    } else {
        ("refaults/1000", "us/access")
    };
    writeln!(
        out,
        "{:>12} {unit:>15} {:>24} {waiting:>10}",
        "memory", "interval"
    )?;
    for point in &need.points {
        let stall = if timed {
            format!("{:.3} %", point.stall * 100.0)
        } else {
            format!("{:.3}", point.stall)
        };
        let mark = match point.size_bytes {
            size if size == need.recommended_bytes => "  <- recommended",
            size if size == need.knee_bytes => "  <- knee",
            _ => "",
        };
        writeln!(
            out,
            "{:>12} {:>15.1} {:>11.1} .. {:>9} {stall:>10}{mark}",
            units::bytes_text(point.size_bytes),
            point.refaults,
            point.refaults_min,
            match point.refaults_max.is_finite() {
                true => format!("{:.1}", point.refaults_max),
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
            format!("{:.2} % of the time", answer.target_stall * 100.0)
        } else {
            format!("{} us an access", answer.target_stall)
        },
        cost.text,
        units::bytes_text(need.knee_bytes),
    )?;
    writeln!(
        out,
        "how sure: {:.1} s observed; {:.1} % of accesses were first touches (pages used less often \
         than that are not counted); unknown order inside intervals is worth {:.1} % of the range",
        answer.seconds,
        need.first_touch_share * 100.0,
        need.order_uncertainty * 100.0,
    )?;
    match answer.gone {
        Some(gone) => writeln!(out, "# gone: {}", agewise_host::untrusted::clean(gone)),
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
            size_bytes: at << 20,
            refaults: 5.0,
            refaults_min: 5.0,
            refaults_max: 5.0,
            stall: 0.0,
            stall_max: 0.0,
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
            gone: None,
        };
        let mut out = Vec::new();
        text(&mut out, &answer(0.01, &found), &found).unwrap();
        let out = String::from_utf8(out).unwrap();
        let rows = out.lines().filter(|line| line.contains(" 5.0 .. "));
        assert_eq!(rows.count(), 9, "{out}");
    }
}
