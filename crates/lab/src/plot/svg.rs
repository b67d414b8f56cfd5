// SPDX-License-Identifier: Apache-2.0
//! Curves as SVG.

use agewise_trace::curve::Curve;

use super::{colour, label, short, size_range, size_ticks};
use crate::svg::{Svg, escape};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const LEGEND_ROW: f64 = 18.0;

/// Draws curves with the size on a logarithmic axis, error bars if there are any, and a legend.
#[must_use]
pub fn svg(curves: &[Curve]) -> String {
    let (smallest, largest) = size_range(curves);
    let span = (largest / smallest).ln().max(f64::MIN_POSITIVE);
    let x = |size: f64| LEFT + (size / smallest).ln() / span * (WIDTH - LEFT - RIGHT);
    let y = |ratio: f64| TOP + (1.0 - ratio.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM);
    let height = HEIGHT + LEGEND_ROW * curves.len() as f64;
    let mut out = Svg::new(WIDTH, height);
    let mut traces: Vec<&str> = curves.iter().map(|curve| curve.trace.as_str()).collect();
    traces.dedup();
    out.line(format_args!(
        "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Miss ratio by pages of memory: {}</text>",
        escape(&traces.join(", "))
    ));
    for step in 0..=10 {
        let ratio = f64::from(step) / 10.0;
        let (at, end) = (y(ratio), WIDTH - RIGHT);
        out.line(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.1}</text>",
            LEFT - 8.0,
            at + 4.0
        ));
    }
    for tick in size_ticks((smallest, largest)) {
        let (at, end) = (x(tick), HEIGHT - BOTTOM);
        out.line(format_args!(
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{end}\" stroke=\"#eee\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            end + 18.0,
            short(tick)
        ));
    }
    out.line(format_args!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">pages</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - BOTTOM + 36.0
    ));
    for (at, curve) in curves.iter().enumerate() {
        draw(&mut out, curve, colour(at), x, y);
        let row = HEIGHT + LEGEND_ROW * at as f64;
        out.line(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{row:.1}\" x2=\"{:.1}\" y2=\"{row:.1}\" stroke=\"{}\" \
             stroke-width=\"2\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT + 24.0,
            colour(at),
            LEFT + 32.0,
            row + 4.0,
            escape(&label(curve, curves))
        ));
    }
    out.finish()
}

fn draw(
    out: &mut Svg,
    curve: &Curve,
    colour: &str,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) {
    let mut points = String::new();
    if let [point] = curve.ratios().collect::<Vec<_>>()[..] {
        // A single point makes no line.
        let (across, up) = (x(point.0 as f64), y(point.1));
        out.line(format_args!(
            "<circle cx=\"{across:.1}\" cy=\"{up:.1}\" r=\"4\" fill=\"{colour}\"/>"
        ));
    }
    for (size, ratio, error) in curve.ratios() {
        let at = x(size as f64);
        points += &format!("{at:.1},{:.1} ", y(ratio));
        if error > 0.0 {
            out.line(format_args!(
                "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" \
                 stroke=\"{colour}\" stroke-opacity=\"0.5\"/>",
                y(ratio - error),
                y(ratio + error)
            ));
        }
    }
    out.line(format_args!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        points.trim_end()
    ));
}
