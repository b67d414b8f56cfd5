// SPDX-License-Identifier: Apache-2.0
//! CSV with a header that names its columns.
//!
//! | column | names | meaning |
//! |---|---|---|
//! | page | page, key, id, obj_id, block, lba, vpn | a page, block or key number |
//! | address | address, addr, vaddr, offset | a byte address, shifted by `page_shift` |
//! | bytes | bytes, size, length, len | bytes from the address on; every page they touch |
//! | count | count, pages, blocks | pages from the page, or that of the address, on |
//! | time | time_ns, time_us, time_ms, time_s; time, timestamp (seconds) | since an origin |
//! | kind | kind, op, operation, rw, type | r, read, l, load, get or w, write, s, store, set, m |
//! | process | process, pid, tgid | number |
//! | class | class, page_type, backing | anon or file |
//! | evidence | evidence | fault, minor_fault, major_fault or inferred; empty: seen |
//!
//! Either page or address is required, everything else is optional, other columns are ignored.
//! Columns are separated by commas, semicolons or tabs. Kind and class may be empty or unknown. A
//! line is at most 256 KiB; a quoted field stays on its line.
//!
//! Lines before the header that start with `#` are comments, unless they are the header. Of these,
//! `# page trace: ` and `# metadata: ` are the header of a page trace that was written as CSV.

mod fields;

use std::mem;

use fields::Fields;

use super::column::Column;
use crate::access::{AccessKind, Evidence, PageClass, Request};
use crate::error::TraceError;
use crate::format::{Format, ReadOptions, RequestReader};
use crate::input::Input;
use crate::number;
use crate::page_trace::Header;

/// CSV with named columns.
pub static FORMAT: Format = Format {
    name: "csv",
    name_hints: &[".csv", ".tsv"],
    description_hints: &[&["csv"], &["named columns"], &["header", "column"]],
    recognise: |head| {
        let mut lines = head.split(|&byte| byte == b'\n');
        let names = lines.find(|line| !is_comment(line, &[]));
        let names = names.unwrap_or_default().trim_ascii();
        Header::is_in_comments(head) || Layout::of_header(names, &[]).is_ok()
    },
    open: |mut input, options: &ReadOptions| {
        let mut header = None;
        let names = loop {
            let Some(line) = input.next_line(FORMAT.name)?.map(<[u8]>::to_vec) else {
                return Err(TraceError::Empty {
                    path: input.path().to_path_buf(),
                    format: FORMAT.name,
                    note: None,
                });
            };
            let of_page_trace = Header::read_comment(&mut header, &line);
            let of_page_trace = of_page_trace.map_err(|what| input.malformed(FORMAT.name, what))?;
            if !of_page_trace && !is_comment(&line, &options.columns) {
                break line;
            }
        };
        let layout = Layout::of_header(&names, &options.columns)
            .and_then(Layout::certain)
            .map_err(|what| input.malformed(FORMAT.name, what))?;
        let fields = Fields::new(layout.delimiter);
        let mut page_shift = options.page_shift_or_default(input.path())?;
        if let Some(header) = &header {
            page_shift = header.page_shift.into();
        }
        if layout.columns.iter().any(|(_, of)| *of == Column::Evidence) {
            let without = || Header {
                page_shift: page_shift as u8,
                ..Header::default()
            };
            header.get_or_insert_with(without).evidence = true;
        }
        let note = layout.unused.clone();
        Ok(Box::new(Csv {
            input,
            layout,
            fields,
            page_shift,
            header,
            last_ns: Some(0),
            note,
        }))
    },
};

/// Whether a line before the header is a comment. Some programs put a `#` before the header, too.
fn is_comment(line: &[u8], named: &[(Column, String)]) -> bool {
    line.starts_with(b"#") && Layout::of_header(line.trim_ascii(), named).is_err()
}

/// The index of each column in a line.
struct Layout {
    delimiter: u8,
    columns: Vec<(usize, Column)>,
    widest: usize,
    /// Why it is not certain which of two columns is meant.
    doubt: Option<String>,
    /// Which column has no effect, and why.
    unused: Option<String>,
}

impl Layout {
    fn of_header(header: &[u8], named: &[(Column, String)]) -> Result<Self, String> {
        let delimiter = *b",;\t"
            .iter()
            .find(|byte| header.contains(byte))
            .unwrap_or(&b',');
        let mut fields = Fields::new(delimiter);
        fields.split(header)?;
        let names: Vec<String> = (0..fields.count())
            .map(|at| String::from_utf8_lossy(fields.get(at)).trim().to_string())
            .collect();
        let (columns, mut doubt) = choose(&names, named)?;
        let has = |wanted: Column| columns.iter().any(|(_, column)| *column == wanted);
        if !has(Column::Page) && !has(Column::Address) {
            let found = number::lossy(header);
            return Err(format!(
                "a column named page or address is needed; the header is: {found}; name one with \
                 --column page=NAME or, if this is no header, write one above it"
            ));
        }
        let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        let is_twice = |name: &&String| names.iter().filter(|of| same(of, name)).count() > 1;
        let mut read = columns.iter().map(|(at, _)| &names[*at]);
        if let Some(name) = read.find(is_twice) {
            doubt = Some(format!(
                "two columns of the header are called \"{name}\": rename the one that is not meant"
            ));
        }
        let widest = columns.iter().map(|(at, _)| *at).max().unwrap_or(0);
        let name_of = |wanted: Column| {
            let (at, _) = columns.iter().find(|(_, column)| *column == wanted)?;
            Some(names[*at].clone())
        };
        let unused = name_of(Column::Bytes).and_then(|bytes| {
            if let Some(page) = name_of(Column::Page) {
                return Some(format!(
                    "the column \"{bytes}\" is not used: a line is one page, that of \"{page}\" \
                     (--column address={page} if that is a byte address)"
                ));
            }
            let count = name_of(Column::Count)?;
            Some(format!(
                "the column \"{count}\" is not used: \"{bytes}\" says how long an access is"
            ))
        });
        Ok(Self {
            delimiter,
            columns,
            widest,
            doubt,
            unused,
        })
    }

    fn certain(self) -> Result<Self, String> {
        match self.doubt {
            Some(doubt) => Err(doubt),
            None => Ok(self),
        }
    }
}

/// The columns that are read, each with its place in a line, and why it is not certain which of two
/// is meant. Those that --column names come before those that are known by name.
///
/// # Errors
/// A column of --column is not there.
fn choose(names: &[String], named: &[(Column, String)]) -> Result<Chosen, String> {
    let mut columns: Vec<(usize, Column)> = Vec::new();
    let mut doubt = None;
    for (column, name) in named {
        if columns.iter().any(|(_, other)| is_same(other, column)) {
            doubt = Some(format!(
                "--column says twice the same (page and address both say which page), the second \
                 time with \"{name}\""
            ));
        }
        let at = names
            .iter()
            .position(|known| known == name)
            .ok_or_else(|| format!("no column \"{name}\" in the header: {}", names.join(", ")))?;
        columns.push((at, *column));
    }
    for (at, name) in names.iter().enumerate() {
        if columns.iter().any(|(taken, _)| *taken == at) {
            continue;
        }
        let Some(column) = Column::by_name(name) else {
            continue;
        };
        match columns.iter().find(|(_, other)| is_same(other, &column)) {
            None => columns.push((at, column)),
            // Those that --column names are what is meant.
            Some((first, other))
                if *first < at && !named.iter().any(|(of, _)| is_same(of, &column)) =>
            {
                let first = &names[*first];
                let (same, one) = match (*other, column) {
                    (Column::Page, Column::Address) => ("both say which page", name),
                    (Column::Address, Column::Page) => ("both say which page", first),
                    _ => ("mean the same", first),
                };
                doubt = Some(format!(
                    "the columns \"{first}\" and \"{name}\" {same}: choose one, as in --column \
                     {one}={one}"
                ));
            }
            Some(_) => {}
        }
    }
    Ok((columns, doubt))
}

/// Whether a line needs only one of them.
fn is_same(a: &Column, b: &Column) -> bool {
    let is_place = |column: &Column| matches!(column, Column::Page | Column::Address);
    mem::discriminant(a) == mem::discriminant(b) || is_place(a) && is_place(b)
}

/// Columns with their places, and a doubt.
type Chosen = (Vec<(usize, Column)>, Option<String>);

struct Csv {
    input: Input,
    layout: Layout,
    fields: Fields,
    page_shift: u32,
    header: Option<Header>,
    /// The time of the request before; None once that of another was earlier.
    last_ns: Option<u64>,
    note: Option<String>,
}

impl Csv {
    /// Says of the first time that goes back that it does: the lines may be in another order.
    fn note_order(&mut self, request: &Request) {
        let Some(last_ns) = self.last_ns else { return };
        if request.time_ns >= last_ns {
            self.last_ns = Some(request.time_ns);
            return;
        }
        self.last_ns = None;
        let note = format!(
            "{}: line {} is earlier than the line above. Accesses are taken in the order of the \
             lines: sort these by time if that is not theirs",
            self.input.path().display(),
            self.input.line()
        );
        let notes: Vec<String> = self.note.take().into_iter().chain([note]).collect();
        self.note = Some(notes.join("; "));
    }
}

impl RequestReader for Csv {
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            let Some(line) = self.input.next_line(FORMAT.name)? else {
                return Ok(None);
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let parsed = self
                .fields
                .split(line)
                .and_then(|()| parse(&self.fields, &self.layout, self.page_shift));
            let request = parsed.map_err(|what| self.input.malformed(FORMAT.name, what))?;
            self.note_order(&request);
            return Ok(Some(request));
        }
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn page_trace_header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

fn parse(fields: &Fields, layout: &Layout, page_shift: u32) -> Result<Request, String> {
    if fields.count() <= layout.widest {
        return Err(format!("{} fields; the header has more", fields.count()));
    }
    let mut request = Request {
        page_count: 1,
        ..Request::default()
    };
    let (mut page, mut address, mut bytes) = (None, None, None);
    for &(at, column) in &layout.columns {
        let text = fields.get(at);
        match column {
            Column::Page => page = Some(number::either(text)?),
            Column::Address => address = Some(number::either(text)?),
            Column::Bytes => bytes = Some(number::decimal(text)?),
            Column::Count => request.page_count = number::decimal(text)?,
            Column::Time(unit_ns) => request.time_ns = time(text, unit_ns)?,
            Column::Kind => request.kind = kind(text)?,
            Column::Process => {
                let process = number::decimal(text)?;
                request.process = u32::try_from(process)
                    .map_err(|_| format!("process {process} is too large"))?;
            }
            Column::Class => request.class = class(text)?,
            Column::Evidence => request.evidence = evidence(text)?,
        }
    }
    match (page, address) {
        (Some(page), _) => request.first_page = page,
        (None, Some(address)) => {
            request.first_page = address >> page_shift;
            if let Some(bytes) = bytes {
                let last = address
                    .checked_add(bytes.max(1) - 1)
                    .ok_or_else(|| format!("{bytes} bytes from {address} do not fit in 64 bits"))?;
                request.page_count = (last >> page_shift) - request.first_page + 1;
            }
        }
        (None, None) => return Err("neither page nor address".into()),
    }
    request.check()?;
    Ok(request)
}

fn time(text: &[u8], unit_ns: u64) -> Result<u64, String> {
    if let Ok(whole) = number::decimal(text) {
        return whole.checked_mul(unit_ns).ok_or_else(|| {
            format!(
                "time {whole} does not fit in 64 bits of nanoseconds; if it has another unit, say \
                 so: --column time_us=NAME (or time_ms, time_ns)"
            )
        });
    }
    let value: f64 = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("\"{}\" is not a time", number::lossy(text)))?;
    let ns = value * unit_ns as f64;
    if !(0.0..u64::MAX as f64).contains(&ns) {
        return Err(format!("time {value} is out of range"));
    }
    Ok(ns as u64)
}

fn kind(text: &[u8]) -> Result<AccessKind, String> {
    match text.to_ascii_lowercase().as_slice() {
        b"" | b"unknown" => Ok(AccessKind::Unknown),
        b"r" | b"read" | b"l" | b"load" | b"get" => Ok(AccessKind::Read),
        b"w" | b"write" | b"s" | b"store" | b"set" | b"m" => Ok(AccessKind::Write),
        _ => Err(format!(
            "\"{}\" is neither read nor write",
            number::lossy(text)
        )),
    }
}

fn class(text: &[u8]) -> Result<PageClass, String> {
    match text.to_ascii_lowercase().as_slice() {
        b"" | b"unknown" => Ok(PageClass::Unknown),
        b"anon" => Ok(PageClass::Anon),
        b"file" => Ok(PageClass::File),
        _ => Err(format!(
            "\"{}\" is neither anon nor file",
            number::lossy(text)
        )),
    }
}

fn evidence(text: &[u8]) -> Result<Evidence, String> {
    let is_name = |(name, _): &&(&str, Evidence)| text.eq_ignore_ascii_case(name.as_bytes());
    let found = Evidence::NAMES.iter().find(is_name);
    found.map(|(_, evidence)| *evidence).ok_or_else(|| {
        format!(
            "\"{}\" is not a kind of evidence: fault, minor_fault, major_fault, inferred or empty",
            number::lossy(text)
        )
    })
}

#[cfg(test)]
mod tests;
