// SPDX-License-Identifier: Apache-2.0
//! Pictures of heat over time and addresses: the real heat, the heat that the monitor saw, and the
//! distance between them.

use super::Window;
use crate::svg::{Svg, escape, put};

/// Columns of time in a picture; more windows than this are averaged.
const COLUMNS: usize = 150;
const WIDTH: f64 = 860.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const PANEL: f64 = 190.0;
const GAP: f64 = 34.0;
const TOP: f64 = 44.0;

/// From cold to hot, in equal steps of lightness that can be told apart in print.
const SHADES: [&str; 9] = [
    "#f7f7f7", "#fde5c8", "#fdcb8f", "#fca863", "#f6803f", "#e0571f", "#b93a12", "#8a240c",
    "#551207",
];

fn shade(heat: f32) -> usize {
    // Most pages are cold most of the time; the square root makes small heats visible.
    let step = (heat.clamp(0.0, 1.0).sqrt() * (SHADES.len() - 1) as f32).ceil();
    (step as usize).min(SHADES.len() - 1)
}

/// One of the two heats of a window.
type Rows = fn(&Window) -> &[f32];

/// At most this many groups of windows, each averaged.
fn columns(windows: &[Window], most: usize, of: Rows) -> Vec<Vec<f32>> {
    let count = windows.len().min(most);
    (0..count)
        .map(|at| {
            let group = &windows[at * windows.len() / count..(at + 1) * windows.len() / count];
            let rows = group
                .iter()
                .map(|window| of(window).len())
                .min()
                .unwrap_or(0);
            (0..rows)
                .map(|row| {
                    let sum: f32 = group.iter().map(|window| of(window)[row]).sum();
                    sum / group.len() as f32
                })
                .collect()
        })
        .collect()
}

/// The picture as SVG: real heat, heat by the monitor, and their distance over time.
#[must_use]
pub fn svg(title: &str, windows: &[Window]) -> String {
    let height = TOP + 3.0 * (PANEL + GAP) + 10.0;
    let mut out = Svg::new(WIDTH, height);
    out.line(format_args!(
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>",
        escape(title)
    ));
    let panels: [(&str, Rows); 2] = [
        ("accessed", |window| &window.true_rows),
        ("as the monitor saw it", |window| &window.seen_rows),
    ];
    for (at, (name, of)) in panels.into_iter().enumerate() {
        let top = TOP + at as f64 * (PANEL + GAP);
        heat_panel(&mut out, top, name, &columns(windows, COLUMNS, of));
    }
    distance_panel(&mut out, TOP + 2.0 * (PANEL + GAP), windows);
    out.finish()
}

fn frame(out: &mut Svg, top: f64, name: &str) {
    let width = WIDTH - LEFT - RIGHT;
    out.line(format_args!(
        "<text x=\"{LEFT}\" y=\"{:.1}\">{name}</text>\n\
             <rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width}\" height=\"{PANEL}\" \
             fill=\"none\" stroke=\"#999\"/>",
        top - 5.0
    ));
}

fn heat_panel(out: &mut Svg, top: f64, name: &str, columns: &[Vec<f32>]) {
    let width = (WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64;
    for (at, column) in columns.iter().enumerate() {
        let step = PANEL / column.len().max(1) as f64;
        let mut row = 0;
        while row < column.len() {
            let colour = shade(column[row]);
            let same = column[row..]
                .iter()
                .take_while(|&&heat| shade(heat) == colour);
            let rows = same.count();
            if colour > 0 {
                out.line(format_args!(
                    "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{}\"/>",
                    LEFT + at as f64 * width,
                    top + row as f64 * step,
                    width + 0.05,
                    rows as f64 * step + 0.05,
                    SHADES[colour]
                ));
            }
            row += rows;
        }
    }
    frame(out, top, name);
    for (label, y) in [("address 0", top + 10.0), ("end", top + PANEL - 2.0)] {
        out.line(format_args!(
            "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"#444\">{label}</text>",
            LEFT - 6.0
        ));
    }
}

fn distance_panel(out: &mut Svg, top: f64, windows: &[Window]) {
    let highest = windows
        .iter()
        .map(|window| window.distance)
        .fold(0.0, f64::max);
    let scale = if highest > 0.0 { highest } else { 1.0 };
    let (first, last) = match windows {
        [] => (0.0, 1.0),
        [first, .., last] => (first.at_ms, last.at_ms),
        [only] => (only.at_ms, only.at_ms + 1.0),
    };
    let mut points = String::new();
    for window in windows {
        let x = LEFT + (window.at_ms - first) / (last - first) * (WIDTH - LEFT - RIGHT);
        let y = top + PANEL * (1.0 - window.distance / scale);
        points += &format!("{x:.1},{y:.1} ");
    }
    frame(
        out,
        top,
        "earth mover's distance of the two, share of the range",
    );
    out.line(format_args!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#0072b2\" stroke-width=\"1.5\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444\">{highest:.3}</text>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444\">0</text>\n\
             <text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#444\">{first:.0} ms</text>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444\">{last:.0} ms</text>",
        points.trim_end(),
        LEFT - 6.0,
        top + 10.0,
        LEFT - 6.0,
        top + PANEL,
        top + PANEL + 16.0,
        WIDTH - RIGHT,
        top + PANEL + 16.0
    ));
}

/// One page with the picture and a table of the windows. It loads nothing from elsewhere.
#[must_use]
pub fn html(title: &str, windows: &[Window]) -> String {
    let mut rows = String::new();
    for window in windows {
        let Window {
            at_ms,
            regions,
            true_heat,
            seen_heat,
            distance,
            ..
        } = window;
        put(
            &mut rows,
            format_args!(
                "<tr><td>{at_ms:.1}</td><td>{regions}</td><td>{true_heat:.4}</td>\
                 <td>{seen_heat:.4}</td><td>{distance:.4}</td></tr>"
            ),
        );
    }
    let picture = svg(title, windows);
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>{title}</title>\n\
         <style>\nbody {{ font: 14px sans-serif; margin: 1.5em; color: #222; background: #fff; }}\n\
         svg {{ max-width: 100%; height: auto; }}\n\
         td, th {{ text-align: right; padding: 0 1em; font-variant-numeric: tabular-nums; }}\n\
         </style>\n</head>\n<body>\n{picture}\
         <table>\n<tr><th>ms</th><th>regions</th><th>true heat</th><th>seen heat</th>\
         <th>distance</th></tr>\n\
         {rows}</table>\n</body>\n</html>\n"
    )
}

/// Both heats side by side for a terminal: time to the right, addresses downwards.
#[must_use]
pub fn text(windows: &[Window], columns_each: usize, rows: usize) -> String {
    const LETTERS: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '#', '@'];
    let both = [
        columns(windows, columns_each, |window| &window.true_rows),
        columns(windows, columns_each, |window| &window.seen_rows),
    ];
    let mut out = format!("{:columns_each$}   as the monitor saw it\n", "accessed");
    for row in 0..rows {
        let line = both.each_ref().map(|side| {
            let cells = side.iter().map(|column| {
                let part = &column[row * column.len() / rows..(row + 1) * column.len() / rows];
                let hottest = part.iter().copied().fold(0.0, f32::max);
                LETTERS[shade(hottest)]
            });
            cells.collect::<String>()
        });
        out += &format!("{:columns_each$} | {}\n", line[0], line[1].trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(at: usize) -> Window {
        let mut true_rows = vec![0.0; 64];
        true_rows[at % 64] = 1.0;
        Window {
            at_ms: at as f64 * 100.0,
            regions: 10,
            bytes: 1 << 20,
            true_heat: 0.1,
            seen_heat: 0.2,
            distance: 0.05,
            seen_rows: vec![0.5; 64],
            true_rows,
        }
    }

    #[test]
    fn pictures_of_some_and_of_no_windows() {
        let windows: Vec<Window> = (0..400).map(window).collect();
        let picture = svg("a<b", &windows);
        assert!(picture.contains("a&lt;b") && picture.ends_with("</svg>\n"));
        assert!(picture.matches("<rect").count() < 2 * 64 * COLUMNS);
        let page = html("a<b", &windows);
        assert_eq!(page.matches("<tr>").count(), 401);
        // The SVG namespace is the only address: nothing is loaded.
        assert_eq!(page.matches("http").count(), 1);
        let plain = text(&windows, 30, 16);
        // Half of the samples, everywhere; heat that moves between windows is averaged.
        assert!(
            plain.contains("| ******") && plain.contains("monitor"),
            "{plain}"
        );
        for empty in [vec![], vec![window(1)]] {
            assert!(svg("", &empty).ends_with("</svg>\n"));
            assert!(html("", &empty).ends_with("</html>\n"));
            assert!(text(&empty, 10, 4).contains("accessed"));
        }
    }
}
