// SPDX-License-Identifier: Apache-2.0
//! Curves as pictures: text for a terminal, SVG, PNG, and a self-contained HTML page.

mod html;
mod png;
mod svg;
mod text;

pub use html::html;
pub use png::png;
pub use svg::svg;
pub use text::text;

use agewise_trace::curve::Curve;

/// Colours that stay distinct in print and with most colour deficiencies (Okabe and Ito, and two
/// more).
const COLOURS: [&str; 10] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933",
    "#882255", "#777777",
];

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// Label of a curve: the policy, and the trace if there are several.
fn label(curve: &Curve, curves: &[Curve]) -> String {
    if curves.iter().all(|other| other.trace == curve.trace) {
        curve.policy.clone()
    } else {
        format!("{} {}", curve.trace, curve.policy)
    }
}

/// The smallest and the largest size of all points.
fn size_range(curves: &[Curve]) -> (f64, f64) {
    let sizes = || {
        curves
            .iter()
            .flat_map(|curve| &curve.points)
            .map(|p| p.size_pages as f64)
    };
    let smallest = sizes().fold(f64::INFINITY, f64::min);
    let largest = sizes().fold(1.0, f64::max);
    (smallest.clamp(1.0, largest), largest)
}

/// Powers of ten inside a range, with their doubles and fives if the range is short.
fn size_ticks((smallest, largest): (f64, f64)) -> Vec<f64> {
    let decades = (largest / smallest).log10();
    let steps: &[f64] = if decades > 3.0 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let mut ticks = Vec::new();
    let mut power = 10f64.powf(smallest.log10().floor());
    while power <= largest {
        ticks.extend(steps.iter().map(|step| step * power));
        power *= 10.0;
    }
    ticks.retain(|tick| (smallest..=largest).contains(tick));
    ticks
}

/// Formats a number of pages in a few characters: 4096, 33k, 1.2M.
fn short(pages: f64) -> String {
    if pages >= 1e6 {
        format!("{:.3}", pages / 1e6)
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_string()
            + "M"
    } else if pages >= 1e4 {
        format!("{:.1}", pages / 1e3)
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_string()
            + "k"
    } else {
        format!("{pages}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_trace::curve::Point;

    fn curve(policy: &str, misses: [f64; 3]) -> Curve {
        let sizes = [10, 100, 1000];
        Curve {
            trace: "a<b".into(),
            policy: policy.into(),
            accesses: 100,
            footprint_pages: 1000,
            sampling_rate: None,
            points: sizes
                .iter()
                .zip(misses)
                .map(|(&size_pages, misses)| Point {
                    size_pages,
                    misses,
                    misses_error: 1.0,
                })
                .collect(),
        }
    }

    #[test]
    fn ticks_and_labels() {
        assert_eq!(size_ticks((7.0, 250.0)), [10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!(size_ticks((1.0, 1e5)), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(
            [short(4096.0), short(33000.0), short(1_250_000.0)],
            ["4096", "33k", "1.25M"]
        );
    }

    #[test]
    fn every_picture_of_every_curve() {
        let curves = [
            curve("lru", [90.0, 50.0, 10.0]),
            curve("opt", [70.0, 30.0, 10.0]),
        ];
        let plain = text(&curves, 60, 12);
        assert!(
            plain.contains("a  lru") && plain.contains("b  opt"),
            "{plain}"
        );
        // Both curves end in the same place, where the first is shown.
        let lowest = plain
            .lines()
            .rfind(|line| line.contains('|') && line.contains(['a', 'b']));
        assert!(lowest.unwrap().ends_with('a'), "{plain}");
        let picture = svg(&curves);
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert!(picture.contains("a&lt;b") && !picture.contains("a<b"));
        let image = png(&curves).unwrap();
        assert!(image.starts_with(b"\x89PNG\r\n\x1a\n"));
        assert_eq!(image, png(&curves).unwrap(), "the same bytes again");
        // Curves and letters were drawn, not just grid and background.
        let picture = tiny_skia::Pixmap::decode_png(&image).unwrap();
        let colour = |wanted: [u8; 3]| {
            let of = |pixel: &&tiny_skia::PremultipliedColorU8| {
                [pixel.red(), pixel.green(), pixel.blue()] == wanted
            };
            picture.pixels().iter().filter(of).count()
        };
        for (wanted, at_least) in [
            ([0, 0x72, 0xb2], 1000),
            ([0xd5, 0x5e, 0], 1000),
            ([0; 3], 1000),
        ] {
            assert!(colour(wanted) > at_least, "{wanted:?}: {}", colour(wanted));
        }
        let page = html(&curves);
        assert!(
            page.contains("\\u003c") && !page.contains("a<b"),
            "trace names are escaped"
        );
        assert!(
            !page.contains("http://") && !page.contains("https://"),
            "nothing is fetched"
        );
    }

    #[test]
    fn a_curve_of_one_size_is_a_dot() {
        let mut one = curve("lru", [50.0; 3]);
        one.points.truncate(1);
        assert_eq!(
            svg(std::slice::from_ref(&one)).matches("<circle").count(),
            1
        );
        let none = Curve {
            points: Vec::new(),
            ..one.clone()
        };
        assert_ne!(png(&[one]), png(&[none]));
    }

    #[test]
    fn a_trace_without_accesses_has_no_curve() {
        let idle = Curve {
            accesses: 0,
            ..curve("lru", [0.0; 3])
        };
        let curves = [idle, curve("opt", [70.0, 30.0, 10.0])];
        let lines = text(&curves, 60, 12);
        assert!(
            !lines
                .lines()
                .any(|line| line.contains('|') && line.contains('a'))
        );
        assert!(svg(&curves).contains("<polyline points=\"\""));
        assert!(html(&curves).contains("points:[]"));
        let none = Curve {
            points: Vec::new(),
            ..curves[0].clone()
        };
        assert_eq!(png(&curves), png(&[none, curves[1].clone()]));
    }

    #[test]
    fn no_points_no_picture_no_panic() {
        let mut empty = curve("lru", [1.0; 3]);
        empty.points.clear();
        for curves in [vec![], vec![empty]] {
            assert!(text(&curves, 40, 8).contains("miss ratio"));
            assert!(svg(&curves).ends_with("</svg>\n"));
            assert!(html(&curves).ends_with("</html>\n"));
            assert!(png(&curves).is_ok());
        }
    }
}
