// SPDX-License-Identifier: Apache-2.0
//! Writing SVG, shared by all pictures of the lab.

use std::fmt::{Arguments, Write};

/// A picture under construction.
#[derive(Debug)]
pub(crate) struct Svg(String);

impl Svg {
    /// A white picture of this size.
    pub fn new(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    /// Adds markup as a line.
    pub fn line(&mut self, markup: Arguments<'_>) {
        put(&mut self.0, markup);
    }

    /// The complete markup.
    pub fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// Adds a line of markup.
pub(crate) fn put(out: &mut String, markup: Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(markup);
    out.push('\n');
}

/// Escapes text for use in markup. XML has no way to write control characters: they are left out.
pub(crate) fn escape(text: &str) -> String {
    let is_xml = |c: &char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let text: String = text.chars().filter(is_xml).collect();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_has_no_characters_that_xml_forbids() {
        let text = "a\u{1b}[31m<b>\u{0}\u{ffff}\u{9b}\n\"é\"";
        assert_eq!(escape(text), "a[31m&lt;b&gt;&quot;é&quot;");
    }
}
