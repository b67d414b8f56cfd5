// SPDX-License-Identifier: Apache-2.0
//! CSV with a header that names its columns.
//!
//! | column | names | meaning |
//! |---|---|---|
//! | page | page, key, id, obj_id, block, lba, vpn | a page, block or key number |
//! | address | address, addr, vaddr, offset | a byte address, shifted by `page_shift` |
//! | bytes | bytes, size, length, len | bytes from the address on; every page they touch |
//! | count | count, pages, blocks | pages from the page on |
//! | time | time_ns, time_us, time_ms, time_s; time, timestamp (seconds) | since an origin |
//! | kind | kind, op, operation, rw, type | r, read, l, load, get or w, write, s, store, set, m |
//! | process | process, pid, tgid | number |
//! | class | class, page_type, backing | anon or file |
//! | evidence | evidence | fault, minor_fault, major_fault or inferred; empty: seen |
//!
//! Page or address is required, everything else is optional, other columns are ignored. Columns are
//! separated by commas, semicolons or tabs. A line is at most 256 KiB; a quoted field stays on its
//! line.
//!
//! Lines before the header that start with `#` are comments, unless they are the header. Of these,
//! `# page trace: ` and `# metadata: ` are the header of a page trace that was written as CSV.

mod fields;

use fields::Fields;

use super::column::Column;
use crate::access::{AccessKind, Evidence, PageClass, Request};
use crate::error::TraceError;
use crate::format::{Format, PAGES_PER_REQUEST_MAX, ReadOptions, RequestReader};
use crate::input::Input;
use crate::number;
use crate::page_trace::Header;

/// CSV with named columns.
pub static FORMAT: Format = Format {
    name: "csv",
    summary: "text with a header naming its columns: page or address, bytes, count, time, kind, \
              ...",
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
                });
            };
            let of_page_trace = Header::read_comment(&mut header, &line);
            let of_page_trace = of_page_trace.map_err(|what| input.malformed(FORMAT.name, what))?;
            if !of_page_trace && !is_comment(&line, &options.columns) {
                break line;
            }
        };
        let layout = Layout::of_header(&names, &options.columns)
            .and_then(Layout::unique)
            .map_err(|what| input.malformed(FORMAT.name, what))?;
        let fields = Fields::new(layout.delimiter);
        let mut page_shift = options.page_shift_or_default();
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
        let note = layout.unused.as_ref().map(|(bytes, page)| {
            format!(
                "the column \"{bytes}\" is not used: a line is one page, that of \"{page}\" \
                 (--column address={page} if that is a byte address)"
            )
        });
        Ok(Box::new(Csv {
            input,
            layout,
            fields,
            page_shift,
            header,
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
    /// The name of a column that is read, if another has it too.
    twice: Option<String>,
    /// The names of a column of lengths and of one of pages, which have no length.
    unused: Option<(String, String)>,
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
        let mut columns = Vec::new();
        for (column, name) in named {
            let at = names
                .iter()
                .position(|known| known == name)
                .ok_or_else(|| {
                    format!("no column \"{name}\" in the header: {}", names.join(", "))
                })?;
            columns.push((at, *column));
        }
        for (at, name) in names.iter().enumerate() {
            if columns.iter().any(|(taken, _)| *taken == at) {
                continue;
            }
            if let Some(column) = Column::by_name(name) {
                let same = |other: &Column| {
                    std::mem::discriminant(other) == std::mem::discriminant(&column)
                };
                if !columns.iter().any(|(_, other)| same(other)) {
                    columns.push((at, column));
                }
            }
        }
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
        let twice = read.find(is_twice).cloned();
        let widest = columns.iter().map(|(at, _)| *at).max().unwrap_or(0);
        let name_of = |wanted: Column| {
            let (at, _) = columns.iter().find(|(_, column)| *column == wanted)?;
            Some(names[*at].clone())
        };
        let unused = name_of(Column::Bytes).zip(name_of(Column::Page));
        Ok(Self {
            delimiter,
            columns,
            widest,
            twice,
            unused,
        })
    }

    fn unique(self) -> Result<Self, String> {
        match self.twice {
            Some(name) => Err(format!(
                "two columns of the header are called \"{name}\": rename the one that is not meant"
            )),
            None => Ok(self),
        }
    }
}

struct Csv {
    input: Input,
    layout: Layout,
    fields: Fields,
    page_shift: u32,
    header: Option<Header>,
    note: Option<String>,
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
            return parsed
                .map(Some)
                .map_err(|what| self.input.malformed(FORMAT.name, what));
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
    let (mut page, mut address, mut bytes) = (None, None, 1);
    for &(at, column) in &layout.columns {
        let text = fields.get(at);
        match column {
            Column::Page => page = Some(number::either(text)?),
            Column::Address => address = Some(number::either(text)?),
            Column::Bytes => bytes = number::decimal(text)?,
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
            let last = address
                .checked_add(bytes.max(1) - 1)
                .ok_or_else(|| format!("{bytes} bytes from {address} do not fit in 64 bits"))?;
            request.page_count = (last >> page_shift) - request.first_page + 1;
        }
        (None, None) => return Err("neither page nor address".into()),
    }
    if request.page_count > PAGES_PER_REQUEST_MAX {
        let count = request.page_count;
        return Err(format!(
            "a request of {count} pages; at most {PAGES_PER_REQUEST_MAX}"
        ));
    }
    // A single page may be the last one of the address space.
    let single = request.page_count == 1;
    if !single && request.first_page.checked_add(request.page_count).is_none() {
        return Err("the pages of the request do not fit in 64 bits".into());
    }
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
        b"" => Ok(AccessKind::Unknown),
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
        b"" => Ok(PageClass::Unknown),
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
mod tests {
    use super::super::testing::{error, pages, read, read_with};
    use super::*;

    #[test]
    fn columns_in_any_order() {
        let text = b"op;time_us;Page;class;pid;other\nw;5;7;anon;12;x\nr;6;0x10;file;13;\"a;b\"\n";
        let (requests, error) = read(&FORMAT, text);
        assert!(error.is_none(), "{error:?}");
        let first = Request {
            first_page: 7,
            page_count: 1,
            time_ns: 5000,
            process: 12,
            kind: AccessKind::Write,
            class: PageClass::Anon,
            ..Request::default()
        };
        assert_eq!(requests[0], first);
        assert_eq!(
            (requests[1].first_page, requests[1].class),
            (16, PageClass::File)
        );
    }

    #[test]
    fn bytes_touch_every_page_they_reach() {
        let (requests, _) = read(&FORMAT, b"address,size,time\n4095,2,0.5\n8192,0,1\n");
        let larger = b"# page trace: page_shift=16\naddress\n65536\n";
        assert_eq!(pages(&FORMAT, larger), [1]);
        assert_eq!((requests[0].first_page, requests[0].page_count), (0, 2));
        assert_eq!(requests[0].time_ns, 500_000_000);
        assert_eq!((requests[1].first_page, requests[1].page_count), (2, 1));
    }

    #[test]
    fn columns_can_be_named() {
        let options = ReadOptions {
            columns: vec![(Column::Page, "object".into())],
            ..ReadOptions::default()
        };
        let (requests, error) = read_with(&FORMAT, b"id,object\n1,2\n", &options);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(requests[0].first_page, 2);
    }

    /// The headers of docs/use/traces.md.
    #[test]
    fn published_layouts_need_a_header_only() {
        let msr = b"ticks,host,disk,op,offset,size,response\n9,usr,0,Read,8191,8192,4\n";
        let alibaba = b"device,op,offset,size,time_us\n419,W,16384,4096,1577808144360767\n";
        let tencent = b"time,offset,size,io,volume\n1538323200,16,9,0,1063\n";
        for (text, page_shift, run) in [
            (&msr[..], None, (1, 3)),
            (alibaba, None, (4, 1)),
            (tencent, Some(3), (2, 2)),
        ] {
            let options = ReadOptions {
                page_shift,
                ..ReadOptions::default()
            };
            let (requests, error) = read_with(&FORMAT, text, &options);
            assert!(error.is_none(), "{error:?}");
            assert_eq!((requests[0].first_page, requests[0].page_count), run);
        }
    }

    #[test]
    fn lengths_of_pages_are_said_to_be_ignored() {
        let note = |text: &[u8]| {
            let input = std::io::Cursor::new(text.to_vec());
            let input = Input::from_reader(std::path::Path::new("test"), input).unwrap();
            let reader = (FORMAT.open)(input, &ReadOptions::default()).unwrap();
            reader.note().map(str::to_owned)
        };
        let said = note(b"time,lba,size\n0,8,4096\n").unwrap();
        assert!(said.contains("\"size\" is not used"), "{said}");
        assert!(said.contains("--column address=lba"), "{said}");
        assert_eq!(note(b"time,offset,size\n0,8,4096\n"), None);
    }

    #[test]
    fn what_cannot_be_parted_into_fields_is_not_left_out() {
        let open = error(&FORMAT, b"page,note\n1,\"a\n2\"\n");
        assert!(open.contains("quote that is not closed"), "{open}");
        assert!(open.contains("line 2"), "{open}");
        for mixed in [&b"page\n1\r2\n3\n"[..], b"page\r1\r2\r"] {
            let mixed = error(&FORMAT, mixed);
            assert!(mixed.contains("a carriage return inside"), "{mixed}");
        }
        assert_eq!(
            pages(&FORMAT, b"page,note\n1,\"a \"\"b\"\"\"\n2,\n"),
            [1, 2]
        );
        assert_eq!(pages(&FORMAT, b"page,note\r\r\n1,a\r\r\n2,\r\r\n"), [1, 2]);
    }

    #[test]
    fn comments_come_before_the_header() {
        let text = b"# by hand\n#\n# page trace: page_shift=16\n# metadata: a=b\npage\n7\n";
        let (requests, error) = read(&FORMAT, text);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(requests[0].first_page, 7);
        assert!((FORMAT.recognise)(text));
        let marked = b"# by hand\n# time,page\n1,7\n";
        assert_eq!(pages(&FORMAT, marked), [7]);
        assert!((FORMAT.recognise)(marked));
    }

    #[test]
    fn errors() {
        assert!(error(&FORMAT, b"a,b\n1,2\n").contains("page or address is needed"));
        assert!(error(&FORMAT, b"page,op\n1\n").contains("1 fields"));
        assert!(error(&FORMAT, b"page,op\n1,x\n").contains("neither read nor write"));
        assert!(error(&FORMAT, b"page,evidence\n1,guess\n").contains("minor_fault, major_fault"));
        let comment = error(&FORMAT, b"# page trace: page_shift=64\npage\n1\n");
        assert!(
            comment.contains("\"page_shift=64\"") && comment.contains("line 1"),
            "{comment}"
        );
        assert!(error(&FORMAT, b"page,count\n1,99999999999\n").contains("at most"));
        assert!(error(&FORMAT, b"page,time\n1,-5\n").contains("out of range"));
        let in_us = error(&FORMAT, b"page,timestamp\n1,1700000000000000\n");
        assert!(in_us.contains("--column time_us=NAME"), "{in_us}");
        let twice = error(&FORMAT, b"page,x,x,Page\n1,2,3,4\n");
        assert!(
            twice.contains("two columns of the header are called \"page\""),
            "{twice}"
        );
        assert_eq!(pages(&FORMAT, b"page,x,x\n1,2,3\n"), [1]);
        assert!(error(&FORMAT, b"").contains("no requests"));
        assert_eq!(pages(&FORMAT, b"page\n\n3\n"), [3]);
    }
}
