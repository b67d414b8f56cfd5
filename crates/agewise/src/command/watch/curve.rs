// SPDX-License-Identifier: Apache-2.0
//! The what-if curve as text.

use std::fmt::Write;

use agewise_cli::units::{bound_text, bytes_text, percent_text};
use agewise_host::access::check_page_size;
use agewise_policy::whatif::{Curves, Decider};

use super::followed::{Known, LEARN_LOOKS};

/// Sizes shown, in percent of the peak resident size.
const PERCENTS: [u16; 10] = [100, 90, 80, 70, 60, 50, 40, 30, 20, 10];
/// Width of the plot in columns.
const PLOT: f64 = 10.0;

/// Describes a target with less memory, in lines of at most 68 cells; longer sentences must be
/// wrapped by the caller.
pub fn text(known: Option<&Known>) -> String {
    if let Err(error) = check_page_size("the curve of a memory") {
        return format!(" {error}.");
    }
    let Some(known) = known else {
        return " Nothing is known yet: it is followed from the next look on.".to_owned();
    };
    let Some(curves) = &known.curves else {
        return match known.is_gone {
            true => " It is gone, and nothing is known of it.".to_owned(),
            false => format!(
                " Nothing is known yet: learning which pages are where, look {} of {LEARN_LOOKS}.",
                known.looks.min(LEARN_LOOKS)
            ),
        };
    };
    table(curves, known) + &remarks(curves, known)
}

fn table(curves: &Curves, known: &Known) -> String {
    let mut text = format!(
        " {:>10} {:>5} {:>10} {:>9} {:>9} {:>9}\n",
        "memory", "", "faults/s", "at most", "waiting", "at most"
    );
    let curve = curves.of(Decider::Kernel);
    let points = PERCENTS.map(|percent| (percent, curve.at(f64::from(percent))));
    let most = points
        .iter()
        .map(|(_, point)| point.faults_per_second().likely)
        .fold(1.0, f64::max);
    for (percent, point) in points {
        let (faults, wait) = (
            point.faults_per_second(),
            point.wait_ratio(known.costs.prices),
        );
        let bar = "#".repeat((faults.likely / most * PLOT).ceil() as usize);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            " {:>10} {percent:>4}% {:>10.1} {:>9} {:>9} {:>9} {bar}",
            bytes_text(curves.bytes_at(percent)),
            faults.likely,
            bound_text(faults.high, |high| format!("{high:.1}")),
            percent_text(wait.likely),
            bound_text(wait.high, percent_text),
        );
    }
    text
}

/// Remarks on how the curve was obtained and what it does not cover.
fn remarks(curves: &Curves, known: &Known) -> String {
    let mut text = format!(
        " {:.0} s counted{}. As it is, {:.1} pages per second came back.\n \
         Not known: {} was not used meanwhile and may be needed later; {:.1} uses per second \
         were the first since w was pressed. `?`: nothing seen sets a bound.\n {}.",
        curves.observed_ms as f64 / 1000.0,
        if known.is_gone {
            ", then it was gone"
        } else {
            ""
        },
        curves.seen_per_second,
        bytes_text(curves.unused_bytes),
        curves.unknown_per_second,
        known.costs.text(),
    );
    if !known.has_files {
        text += "\n Most files it maps are charged to other cgroups; none are included.";
    }
    text
}
