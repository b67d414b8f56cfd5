// SPDX-License-Identifier: Apache-2.0
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;

use super::*;
use crate::config::Config;
use crate::demo;
use crate::metrics::shown::Limits;

const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const LATER: &[u8] = b"HTTP/1.1 503 No\r\nretry-after: 0\r\ncontent-length: 0\r\n\
    connection: close\r\n\r\n";
/// A partial success: 7 points rejected, because of "old".
const PARTLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n\
    content-length: 9\r\nconnection: close\r\n\r\n\x0a\x07\x08\x07\x12\x03old";

/// A server that gives these replies and then closes connections; it passes on the bodies of
/// requests. An empty reply is silence.
fn server(replies: Vec<&'static [u8]>) -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        let mut replies = replies.into_iter();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if sender.send(body(&stream)).is_err() {
                return;
            }
            match replies.next() {
                Some([]) => silent.push(stream),
                Some(reply) => stream.write_all(reply).unwrap(),
                None => {}
            }
        }
    });
    (address, requests)
}

fn body(stream: &TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    body
}

fn collector(address: SocketAddr, interval: Duration) -> Collector {
    let text = format!("metrics.otlp.endpoint = 'http://{address}'");
    let config = Config::parse(&text).unwrap();
    let sending = Sending {
        endpoint: config.metrics.otlp.unwrap().endpoint,
        headers: vec![("x-token".to_owned(), "secret".to_owned())],
        interval,
        timeout: if interval == SHORT {
            SHORT / 3
        } else {
            interval
        },
        attributes: String::new(),
        since_unix_ms: 1,
        limits: Limits {
            subjects_max: 50,
            containers_max: 50,
            depth_max: 3,
        },
    };
    Collector::new(sending, Addresses(vec![address]))
}

/// Shorter than the wait before another attempt, so that there is none unless the server names a
/// time.
const SHORT: Duration = Duration::from_millis(900);
const LONG: Duration = Duration::from_secs(300);

fn snapshot(sequence: u64) -> Snapshot {
    demo::snapshot(sequence, sequence * 5000)
}

/// What a collector lost after one snapshot, and the number of requests.
fn outcome(replies: Vec<&'static [u8]>, interval: Duration) -> (u64, usize) {
    let (address, requests) = server(replies);
    let mut collector = collector(address, interval);
    collector.send(&snapshot(1));
    assert_eq!(collector.is_broken, collector.lost > 0);
    (collector.lost, requests.try_iter().count())
}

#[test]
fn servers_are_tried_again_if_that_can_help() {
    let (all, _) = outcome(vec![], SHORT);
    assert!(all > 100);
    let close = |head: &str, body: &str| -> &'static [u8] {
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        Box::leak(text.into_boxed_str()).as_bytes()
    };
    for (name, replies, lost, requests) in [
        ("taken", vec![TAKEN], 0, 1),
        ("partly", vec![PARTLY], 7, 1),
        ("later", vec![LATER, LATER, TAKEN], 0, 3),
        ("never", vec![LATER; 9], all, 4),
        ("bad", vec![close("400 Bad Request", "no")], all, 1),
        ("nobody", vec![close("404 Not Found", "")], all, 1),
        (
            "moved",
            vec![close("307 Moved\r\nlocation: http://127.0.0.1:1/", "")],
            all,
            1,
        ),
        (
            "page",
            vec![close("200 OK\r\ncontent-type: text/html", "<html>")],
            all,
            1,
        ),
        (
            "json",
            vec![close("200 OK\r\ncontent-type: application/json", "{}")],
            0,
            1,
        ),
        // Without a time from the server, the wait is ours.
        ("once", vec![close("502 No", ""), TAKEN], 0, 2),
        (
            "half",
            vec![&PARTLY[..PARTLY.len() - 2], &TAKEN[..20], TAKEN],
            0,
            3,
        ),
    ] {
        assert_eq!(outcome(replies, LONG), (lost, requests), "{name}");
    }
    for reply in [b"\0\xff\n\n\0".as_slice(), b""] {
        assert_eq!(outcome(vec![reply], SHORT).0, all, "{reply:?}");
    }
}

#[test]
fn who_asks_for_a_pause_gets_it_and_losses_are_counted_in_the_metrics() {
    let busy = b"HTTP/1.1 429 No\r\nretry-after: 9999\r\ncontent-length: 0\r\n\
        connection: close\r\n\r\n";
    let (address, requests) = server(vec![busy, TAKEN, TAKEN]);
    let mut collector = collector(address, LONG);
    collector.send(&snapshot(1));
    let all = collector.lost;
    collector.send(&snapshot(2));
    assert!(collector.lost > all && collector.is_broken);
    assert_eq!(requests.try_iter().count(), 1, "none during the pause");
    assert!(collector.not_before <= Instant::now() + PAUSE_MAX);
    collector.not_before = Instant::now();
    let lost = collector.lost;
    collector.send(&snapshot(3));
    assert_eq!((collector.lost, collector.is_broken), (lost, false));
    let body = requests.recv().unwrap();
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&body[..])
        .read_to_end(&mut plain)
        .unwrap();
    // The field `as_int`, 8 bytes.
    let value = [&[0x31][..], &lost.to_le_bytes()].concat();
    let name = b"agewise_otlp_lost_points_total".as_slice();
    let is_there = |what: &[u8]| plain.windows(what.len()).any(|part| part == what);
    assert!(is_there(name) && is_there(&value));
}

#[test]
fn what_a_server_explains_becomes_a_short_line() {
    let long = "no\n".repeat(1000);
    let partly = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 7,
            error_message: long.clone(),
        }),
    };
    for (status, body) in [(200, partly.encode_to_vec()), (400, long.into_bytes())] {
        let answer = Answer::of(status, None, None, Some(&body));
        let (Answer::Partly(_, why) | Answer::Refused(why, _)) = answer else {
            panic!("{status}");
        };
        assert!(why.contains(": no no no"), "{why}");
        assert!(why.len() < REASON_MAX_CHARS + 40, "{why}");
    }
}

#[test]
fn attributes_of_the_environment_come_before_our_own() {
    let names = |text: &str| -> Vec<(String, String)> {
        let of = resource(text).attributes.into_iter();
        of.map(|attribute| {
            let value = attribute.value.and_then(|value| value.value);
            (attribute.key, format!("{value:?}"))
        })
        .collect()
    };
    let own = names("");
    let keys: Vec<&str> = own.iter().map(|(key, _)| &**key).collect();
    let expected = [
        "service.name",
        "service.version",
        "service.instance.id",
        "host.name",
    ];
    assert_eq!(keys, expected);
    let given = names("host.name=a%2Cb+c, k8s.node.name = n,,x");
    assert_eq!(given.len(), 5, "{given:?}");
    let host = "Some(StringValue(\"a,b+c\"))";
    for key in ["host.name", "service.instance.id"] {
        assert!(
            given.contains(&(key.to_owned(), host.to_owned())),
            "{given:?}"
        );
    }
}
