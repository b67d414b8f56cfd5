// SPDX-License-Identifier: Apache-2.0
//! Curves as one HTML page that contains its script and data: drag to zoom, switch curves on and
//! off, read values under the pointer.

use super::{colour, label};
use agewise_trace::curve::Curve;

/// The page around the data.
const PAGE: &str = include_str!("page.html");
/// Mark in the page that the data replaces.
const DATA_MARK: &str = "/*DATA*/";

/// Renders the page. It loads nothing from elsewhere.
#[must_use]
pub fn html(curves: &[Curve]) -> String {
    let mut data = String::from("[");
    for (at, curve) in curves.iter().enumerate() {
        if at > 0 {
            data.push(',');
        }
        let points: Vec<String> = curve
            .ratios()
            .map(|(size, ratio, error)| format!("[{size},{ratio:.8},{error:.8}]"))
            .collect();
        data += &format!(
            "\n{{name:{},colour:\"{}\",points:[{}]}}",
            quoted(&label(curve, curves)),
            colour(at),
            points.join(",")
        );
    }
    data.push(']');
    let mut traces: Vec<&str> = curves.iter().map(|curve| curve.trace.as_str()).collect();
    traces.dedup();
    let data = format!(
        "const title = {};\nconst curves = {data};",
        quoted(&traces.join(", "))
    );
    PAGE.replacen(DATA_MARK, &data, 1)
}

/// A quoted script string that cannot end the script element.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            ' '..='~' if !matches!(letter, '"' | '\\' | '<' | '>' | '&') => out.push(letter),
            _ => {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    out += &format!("\\u{unit:04x}");
                }
            }
        }
    }
    out + "\""
}
