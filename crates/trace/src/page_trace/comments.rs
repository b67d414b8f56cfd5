// SPDX-License-Identifier: Apache-2.0
//! The header of a page trace as comment lines, which a CSV file has before the names of its
//! columns.

use super::layout::{Header, METADATA_BYTES_MAX, Order, PAGE_SHIFT_MAX};

/// Beginning of the line with the fields of the header, `name=value` separated by blanks.
const FIELDS: &str = "# page trace: ";
/// Beginning of a line of the metadata.
const METADATA: &str = "# metadata: ";

impl Header {
    /// The header as lines of comments, which a CSV file has above the names of its columns: its
    /// fields, then its metadata.
    #[must_use]
    pub fn to_comments(&self) -> String {
        let order = match self.order {
            Order::Exact => "exact",
            Order::Interval => "interval",
        };
        let mut text = format!(
            "{FIELDS}page_shift={} order={order} interval_ns={} evidence={}\n",
            self.page_shift, self.interval_ns, self.evidence
        );
        for line in self.metadata.lines() {
            text += METADATA;
            text += line;
            text.push('\n');
        }
        text
    }

    /// Whether a file that begins like this begins with a header as comments.
    pub(crate) fn is_in_comments(head: &[u8]) -> bool {
        head.starts_with(FIELDS.as_bytes())
    }

    /// Takes in one line. Returns false, and changes nothing, if the line is not part of a header.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub(crate) fn read_comment(header: &mut Option<Self>, line: &[u8]) -> Result<bool, String> {
        if let Some(fields) = line.strip_prefix(FIELDS.as_bytes()) {
            *header = Some(Self::of_fields(text(fields)?)?);
            return Ok(true);
        }
        let (Some(header), Some(line)) = (header, line.strip_prefix(METADATA.as_bytes())) else {
            return Ok(false);
        };
        header.metadata += text(line)?;
        header.metadata.push('\n');
        if header.metadata.len() > METADATA_BYTES_MAX {
            return Err(format!("more than {METADATA_BYTES_MAX} bytes of metadata"));
        }
        Ok(true)
    }

    fn of_fields(fields: &str) -> Result<Self, String> {
        let mut header = Self::default();
        for field in fields.split_ascii_whitespace() {
            let is_set = match field.split_once('=') {
                Some(("page_shift", value)) => value.parse().is_ok_and(|shift| {
                    header.page_shift = shift;
                    shift <= PAGE_SHIFT_MAX
                }),
                Some(("order", "exact")) => true,
                Some(("order", "interval")) => {
                    header.order = Order::Interval;
                    true
                }
                Some(("interval_ns", value)) => value.parse().is_ok_and(|interval| {
                    header.interval_ns = interval;
                    true
                }),
                Some(("evidence", value)) => value.parse().is_ok_and(|evidence| {
                    header.evidence = evidence;
                    true
                }),
                _ => false,
            };
            if !is_set {
                return Err(format!(
                    "\"{field}\" in the line that starts \"{FIELDS}\"; expected page_shift=0 to \
                     {PAGE_SHIFT_MAX}, order=exact or interval, interval_ns=NUMBER, evidence=true \
                     or false"
                ));
            }
        }
        Ok(header)
    }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "a comment that is not UTF-8".to_owned())
}
