// SPDX-License-Identifier: Apache-2.0
//! Curves as PNG: the picture of `svg.rs` for programs that do not show SVG. The font of the text
//! is part of the program, so the same curves give the same bytes on every machine.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{Color, Paint, PathBuilder, Pixmap, Stroke, Transform};

use super::{colour, label, short, size_range, size_ticks};
use agewise_trace::curve::Curve;

/// Size in pixels: twice that of the SVG.
const WIDTH: f32 = 1720.0;
const HEIGHT: f32 = 960.0;
const LEFT: f32 = 120.0;
const RIGHT: f32 = 40.0;
const TOP: f32 = 80.0;
const BOTTOM: f32 = 110.0;
const LEGEND_ROW: f32 = 36.0;
/// Limit on legend rows: the height of the picture is limited, however many curves there are.
const LEGEND_ROWS_MAX: usize = 64;

/// The point of a text that is at the given position.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// Draws curves with the size on a logarithmic axis, error bars if there are any, and a legend.
///
/// # Errors
/// Fails if the picture cannot be encoded.
pub fn png(curves: &[Curve]) -> Result<Vec<u8>, String> {
    let rows = curves.len().min(LEGEND_ROWS_MAX);
    let height = HEIGHT + LEGEND_ROW * rows as f32;
    let mut canvas = Canvas::new(WIDTH, height)?;
    let (smallest, largest) = size_range(curves);
    let span = (largest / smallest).ln().max(f64::MIN_POSITIVE);
    let x = |size: f64| LEFT + ((size / smallest).ln() / span) as f32 * (WIDTH - LEFT - RIGHT);
    let y = |ratio: f64| TOP + (1.0 - ratio.clamp(0.0, 1.0)) as f32 * (HEIGHT - TOP - BOTTOM);
    let mut traces: Vec<&str> = curves.iter().map(|curve| curve.trace.as_str()).collect();
    traces.dedup();
    canvas.text(
        LEFT,
        40.0,
        Anchor::Start,
        RasterHeight::Size32,
        &format!("Miss ratio by pages of memory: {}", traces.join(", ")),
    );
    let small = RasterHeight::Size24;
    for step in 0..=10 {
        let ratio = f64::from(step) / 10.0;
        let at = y(ratio);
        canvas.line(&[(LEFT, at), (WIDTH - RIGHT, at)], "#dddddd", 2.0, 1.0);
        canvas.text(LEFT - 16.0, at, Anchor::End, small, &format!("{ratio:.1}"));
    }
    for tick in size_ticks((smallest, largest)) {
        let (at, end) = (x(tick), HEIGHT - BOTTOM);
        canvas.line(&[(at, TOP), (at, end)], "#eeeeee", 2.0, 1.0);
        canvas.text(at, end + 28.0, Anchor::Middle, small, &short(tick));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    canvas.text(middle, HEIGHT - 40.0, Anchor::Middle, small, "pages");
    for (at, curve) in curves.iter().enumerate() {
        let mut points = Vec::new();
        for (size, ratio, error) in curve.ratios() {
            let across = x(size as f64);
            points.push((across, y(ratio)));
            if error > 0.0 {
                let bar = [(across, y(ratio - error)), (across, y(ratio + error))];
                canvas.line(&bar, colour(at), 2.0, 0.5);
            }
        }
        if let [(across, up)] = points[..] {
            // A single point makes no line.
            canvas.line(
                &[(across - 4.0, up), (across + 4.0, up)],
                colour(at),
                8.0,
                1.0,
            );
        }
        canvas.line(&points, colour(at), 3.0, 1.0);
        if at >= LEGEND_ROWS_MAX {
            continue;
        }
        let row = HEIGHT + LEGEND_ROW * at as f32;
        canvas.line(&[(LEFT, row), (LEFT + 48.0, row)], colour(at), 4.0, 1.0);
        canvas.text(
            LEFT + 64.0,
            row,
            Anchor::Start,
            small,
            &label(curve, curves),
        );
    }
    canvas
        .pixels
        .encode_png()
        .map_err(|error| error.to_string())
}

struct Canvas {
    pixels: Pixmap,
}

impl Canvas {
    fn new(width: f32, height: f32) -> Result<Self, String> {
        let mut pixels = Pixmap::new(width as u32, height as u32)
            .ok_or_else(|| format!("no picture of {width} by {height} pixels"))?;
        pixels.fill(Color::WHITE);
        Ok(Self { pixels })
    }

    /// A line through points; `colour` is `#rrggbb`.
    fn line(&mut self, points: &[(f32, f32)], colour: &str, width: f32, opacity: f32) {
        let mut path = PathBuilder::new();
        for (at, &(x, y)) in points.iter().enumerate() {
            if at == 0 {
                path.move_to(x, y);
            } else {
                path.line_to(x, y);
            }
        }
        // A single point makes no line.
        let Some(path) = path.finish() else {
            return;
        };
        let part = |at: usize| {
            colour
                .get(at..at + 2)
                .and_then(|hex| u8::from_str_radix(hex, 16).ok())
                .unwrap_or(0)
        };
        let mut paint = Paint::default();
        let alpha = (opacity * 255.0) as u8;
        paint.set_color_rgba8(part(1), part(3), part(5), alpha);
        let stroke = Stroke {
            width,
            ..Stroke::default()
        };
        let place = Transform::identity();
        self.pixels.stroke_path(&path, &paint, &stroke, place, None);
    }

    /// Draws black text over the picture, with its middle at `y`. Letters missing in the font
    /// become `?`.
    fn text(&mut self, x: f32, y: f32, anchor: Anchor, size: RasterHeight, text: &str) {
        let weight = FontWeight::Regular;
        let advance = get_raster_width(weight, size);
        let width = (advance * text.chars().count()) as f32;
        let start = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let left = start.max(0.0) as usize;
        let top = (y - size.val() as f32 / 2.0).max(0.0) as usize;
        for (at, letter) in text.chars().enumerate() {
            let Some(glyph) =
                get_raster(letter, weight, size).or_else(|| get_raster('?', weight, size))
            else {
                continue;
            };
            for (row, pixels) in glyph.rows().enumerate() {
                for (column, &ink) in pixels.iter().enumerate() {
                    self.darken(left + at * advance + column, top + row, ink);
                }
            }
        }
    }

    fn darken(&mut self, x: usize, y: usize, ink: u8) {
        let (width, height) = (self.pixels.width() as usize, self.pixels.height() as usize);
        if ink == 0 || x >= width || y >= height {
            return;
        }
        let at = (y * width + x) * 4;
        // The background is opaque, so premultiplied colours are the visible ones.
        for part in &mut self.pixels.data_mut()[at..at + 3] {
            *part = (u32::from(*part) * u32::from(255 - ink) / 255) as u8;
        }
    }
}
