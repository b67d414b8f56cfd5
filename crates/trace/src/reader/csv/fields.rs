// SPDX-License-Identifier: Apache-2.0
//! A line of CSV, split into its fields.

/// The fields of one line, unquoted.
pub(super) struct Fields {
    /// Reused for every line: creating one takes longer than parsing a thousand lines.
    reader: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl Fields {
    pub fn new(delimiter: u8) -> Self {
        Fields {
            reader: csv_core::ReaderBuilder::new().delimiter(delimiter).build(),
            text: Vec::new(),
            ends: Vec::new(),
            count: 0,
        }
    }

    pub fn split(&mut self, line: &[u8]) -> Result<(), String> {
        // What was converted to CR LF twice.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 2, 0);
        self.count = 0;
        if line.is_empty() {
            return Ok(());
        }
        self.reader.reset();
        let (_, used, written, ends) =
            self.reader
                .read_record(line, &mut self.text, &mut self.ends);
        // Where it takes a line to end: the rest would be lost.
        if used < line.len() {
            return Err("a carriage return inside a line: lines end in LF or CR LF".into());
        }
        let (result, _, _, more) =
            self.reader
                .read_record(b"\n", &mut self.text[written..], &mut self.ends[ends..]);
        self.count = ends + more;
        match result {
            csv_core::ReadRecordResult::Record => Ok(()),
            _ => Err("a quote that is not closed on its line".into()),
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn get(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        self.text[start..self.ends[at]].trim_ascii()
    }
}
