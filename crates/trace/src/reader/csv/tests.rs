// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::reader::testing::{error, pages, read, read_with};

/// What is to be said at the end.
fn note_of(text: &[u8]) -> Option<String> {
    let input = std::io::Cursor::new(text.to_vec());
    let input = Input::from_reader(std::path::Path::new("test"), input).unwrap();
    let mut reader = (FORMAT.open)(input, &ReadOptions::default()).unwrap();
    while reader.next_request().unwrap().is_some() {}
    reader.note().map(str::to_owned)
}

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
fn what_is_not_known_may_be_called_unknown() {
    let text = b"page,kind,class\n1,unknown,unknown\n2,,\n";
    let (requests, error) = read(&FORMAT, text);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(requests, [Request::page(1), Request::page(2)]);
}

#[test]
fn the_first_time_that_goes_back_is_noted() {
    let note = note_of(b"page,time_ns\n1,5\n2,5\n3,4\n4,3\n").unwrap();
    assert!(note.contains("line 4 is earlier than"), "{note}");
    assert_eq!(note_of(b"page,time_ns\n1,5\n2,5\n3,6\n"), None);
    assert_eq!(note_of(b"page\n2\n1\n"), None);
    let both = note_of(b"time,lba,size\n5,8,1\n4,8,1\n").unwrap();
    assert!(
        both.contains("not used") && both.contains("line 3"),
        "{both}"
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
    let said = note_of(b"time,lba,size\n0,8,4096\n").unwrap();
    assert!(said.contains("\"size\" is not used"), "{said}");
    assert!(said.contains("--column address=lba"), "{said}");
    assert_eq!(note_of(b"time,offset,size\n0,8,4096\n"), None);
}

#[test]
fn a_line_says_once_which_page() {
    let rows = b"id,address,op\n1,4096,r\n2,4096,r\n";
    let both = error(&FORMAT, rows);
    assert!(
        both.contains("both say which page: choose one, as in --column address=address"),
        "{both}"
    );
    for (column, name, expected) in [
        (Column::Address, "address", [1, 1]),
        (Column::Page, "id", [1, 2]),
    ] {
        let options = ReadOptions {
            columns: vec![(column, name.to_owned())],
            ..ReadOptions::default()
        };
        let (requests, error) = read_with(&FORMAT, rows, &options);
        assert!(error.is_none(), "{error:?}");
        let pages: Vec<u64> = requests.iter().map(|request| request.first_page).collect();
        assert_eq!(pages, expected);
    }
}

#[test]
fn an_address_has_a_length_in_bytes_or_in_pages() {
    let (requests, _) = read(&FORMAT, b"address,count\n4096,3\n");
    assert_eq!((requests[0].first_page, requests[0].page_count), (1, 3));
    let both = b"address,bytes,count\n4096,4096,3\n";
    assert_eq!(read(&FORMAT, both).0[0].page_count, 1);
    let said = note_of(both).unwrap();
    assert!(said.contains("\"count\" is not used"), "{said}");
}

#[test]
fn a_page_shift_has_a_limit() {
    let options = ReadOptions {
        page_shift: Some(64),
        ..ReadOptions::default()
    };
    for (name, text) in [
        ("csv", "address\n1\n"),
        ("ucsd", "s 0x1fffff50 1\n"),
        ("lackey", " L 1ffeffe7e0,8\n"),
        (
            "damon",
            "k 1.5: damon_aggregated: target_id=0 nr_regions=1 0-4096: 5 0\n",
        ),
    ] {
        let format = crate::registry::by_name(name).unwrap();
        let (requests, error) = read_with(format, text.as_bytes(), &options);
        let error = error.expect(name).to_string();
        assert!(
            requests.is_empty() && error.contains("at most 63"),
            "{error}"
        );
    }
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
    let same = error(&FORMAT, b"page,time_us,time_ms\n1,3,2\n");
    assert!(
        same.contains("choose one, as in --column time_us=time_us"),
        "{same}"
    );
    let file = |columns: &[(Column, &str)]| {
        let columns = columns.iter().map(|(of, name)| (*of, (*name).to_owned()));
        let layout = Layout::of_header(b"page,time_us,time_ms,block", &columns.collect::<Vec<_>>());
        layout
            .and_then(Layout::certain)
            .map(|layout| layout.columns)
    };
    let chosen = [
        (Column::Time(1_000_000), "time_ms"),
        (Column::Page, "block"),
    ];
    assert_eq!(file(&chosen), Ok(vec![(2, chosen[0].0), (3, chosen[1].0)]));
    assert!(file(&chosen[..1]).is_err());
    let again = [chosen[0], chosen[1], (Column::Page, "page")];
    assert!(file(&again).unwrap_err().contains("says twice the same"));
    assert!(error(&FORMAT, b"").contains("no requests"));
    assert_eq!(pages(&FORMAT, b"page\n\n3\n"), [3]);
}
