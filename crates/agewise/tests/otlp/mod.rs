// SPDX-License-Identifier: Apache-2.0
//! A server of OTLP over HTTP, and two decoders that share nothing with the sender: of the binary
//! encoding, field by field, and of JSON. Both return series as `/metrics` names them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

/// Values by name and labels, `NAME{LABEL="VALUE",...}` with labels in order.
pub type Series = BTreeMap<String, f64>;

/// A request that was received.
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

/// Accepts everything.
pub fn server() -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                while let Some(request) = request(&stream) {
                    if sender.send(request).is_err() {
                        return;
                    }
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                        .unwrap();
                }
            });
        }
    });
    (address, requests)
}

fn request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    };
    let mut body = vec![0; header("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    if header("content-encoding").as_deref() == Some("gzip") {
        let packed = std::mem::take(&mut body);
        let mut decoder = flate2::read::GzDecoder::new(&packed[..]);
        decoder.read_to_end(&mut body).unwrap();
    }
    Some(Request { head, body })
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The fields of a message, in order: the wire format of protocol buffers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            taken
        };
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Number(u64::from_le_bytes(take(8).try_into().unwrap())),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (taken, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(taken)
            }
            other => panic!("wire type {other}"),
        };
        all.push((key >> 3, field));
    }
    all
}

/// The submessages, texts or packed arrays with this number.
fn parts(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    let fields = fields(bytes).into_iter();
    let of = fields.filter_map(|(found, field)| match field {
        Field::Bytes(bytes) if found == number => Some(bytes),
        _ => None,
    });
    of.collect()
}

fn number(bytes: &[u8], number: u64) -> Option<u64> {
    fields(bytes)
        .into_iter()
        .find_map(|(found, field)| match field {
            Field::Number(value) if found == number => Some(value),
            _ => None,
        })
}

fn text(bytes: &[u8], number: u64) -> String {
    let part = parts(bytes, number).pop().unwrap_or_default();
    String::from_utf8(part.to_vec()).unwrap()
}

/// What was decoded.
#[derive(Default)]
pub struct Decoded {
    /// Attributes of the resource.
    pub resource: BTreeMap<String, String>,
    pub series: Series,
    /// The time of the values, ns since 1970; all have the same.
    pub taken_ns: u64,
    /// Units by the names of metrics.
    pub units: BTreeMap<String, String>,
}

fn attributes(point: &[u8], number: u64) -> BTreeMap<String, String> {
    let all = parts(point, number).into_iter();
    all.map(|pair| (text(pair, 1), text(parts(pair, 2)[0], 1)))
        .collect()
}

/// Decodes a request in the binary encoding.
pub fn decode(body: &[u8]) -> Decoded {
    let mut decoded = Decoded::default();
    for resource in parts(body, 1) {
        decoded.resource = attributes(parts(resource, 1)[0], 1);
        for metric in parts(resource, 2).iter().flat_map(|scope| parts(scope, 2)) {
            let name = text(metric, 1);
            decoded.units.insert(name.clone(), text(metric, 3));
            // Gauge 5, Sum 7, Histogram 9.
            for (kind, data) in [5, 7, 9].map(|kind| (kind, parts(metric, kind))) {
                let Some(data) = data.first() else { continue };
                assert!(
                    kind != 7 || number(data, 3) == Some(1),
                    "{name} is monotonic"
                );
                assert!(
                    kind == 5 || number(data, 2) == Some(2),
                    "{name} is cumulative"
                );
                for point in parts(data, 1) {
                    decoded.taken_ns = number(point, 3).unwrap();
                    match kind {
                        9 => decoded.histogram(&name, point),
                        _ => decoded.number(&name, point),
                    }
                }
            }
        }
    }
    decoded
}

impl Decoded {
    fn number(&mut self, name: &str, point: &[u8]) {
        let whole = number(point, 6).map(|value| value.cast_signed() as f64);
        let value = whole.or_else(|| number(point, 4).map(f64::from_bits));
        let labels = attributes(point, 7);
        self.series.insert(series(name, labels), value.unwrap());
    }

    fn histogram(&mut self, name: &str, point: &[u8]) {
        let packed = |number| {
            let part = parts(point, number)[0].chunks_exact(8);
            part.map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()))
        };
        let bounds: Vec<f64> = packed(7).map(f64::from_bits).collect();
        let counts: Vec<u64> = packed(6).collect();
        assert_eq!(counts.iter().sum::<u64>(), number(point, 4).unwrap());
        self.buckets(name, &attributes(point, 9), &bounds, &counts);
    }

    /// As the gauges by `le` that `/metrics` has.
    fn buckets(
        &mut self,
        name: &str,
        labels: &BTreeMap<String, String>,
        bounds: &[f64],
        counts: &[u64],
    ) {
        assert_eq!(counts.len(), bounds.len() + 1);
        let bounds = bounds.iter().map(|bound| format!("{bound:?}"));
        let bounds = bounds.chain(["+Inf".to_owned()]);
        let name = name.replace("_seconds", "_bytes");
        let mut below = 0;
        for (bound, count) in bounds.zip(counts) {
            below += count;
            let mut labels = labels.clone();
            labels.insert("le".to_owned(), bound);
            self.series.insert(series(&name, labels), below as f64);
        }
    }

    /// Decodes a request in JSON.
    pub fn of_json(body: &[u8]) -> Self {
        let json: Value = serde_json::from_slice(body).unwrap();
        let mut decoded = Decoded::default();
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let count = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
        let attributes = |value: &Value| -> BTreeMap<String, String> {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            list(value, "attributes")
                .iter()
                .map(|pair| (text(&pair["key"]), text(&pair["value"]["stringValue"])))
                .collect()
        };
        for resource in list(&json, "resourceMetrics") {
            decoded.resource = attributes(&resource["resource"]);
            let scopes = list(&resource, "scopeMetrics");
            for metric in scopes.iter().flat_map(|scope| list(scope, "metrics")) {
                let name = metric["name"].as_str().unwrap();
                for point in ["gauge", "sum"]
                    .iter()
                    .flat_map(|kind| list(&metric[kind], "dataPoints"))
                {
                    decoded.taken_ns = count(&point["timeUnixNano"]);
                    let value = match &point["asDouble"] {
                        Value::Number(value) => value.as_f64().unwrap(),
                        Value::String(infinite) => infinite.parse().unwrap(),
                        _ => count(&point["asInt"]) as f64,
                    };
                    decoded
                        .series
                        .insert(series(name, attributes(&point)), value);
                }
                for point in list(&metric["histogram"], "dataPoints") {
                    let bounds = list(&point, "explicitBounds");
                    let bounds: Vec<f64> = bounds.iter().map(|b| b.as_f64().unwrap()).collect();
                    let counts = list(&point, "bucketCounts");
                    let counts: Vec<u64> = counts.iter().map(count).collect();
                    decoded.buckets(name, &attributes(&point), &bounds, &counts);
                }
            }
        }
        decoded
    }
}

/// A series, with labels as `/metrics` names them.
fn series(name: &str, labels: BTreeMap<String, String>) -> String {
    let named = labels.into_iter().map(|(name, value)| {
        let name = match &*name {
            "k8s.namespace.name" => "namespace",
            "k8s.pod.name" => "pod",
            "k8s.container.name" | "container.name" => "container",
            "container.id" => "container_id",
            "container.image.name" => "image",
            other => other,
        };
        format!("{name}={value:?}")
    });
    let mut named: Vec<String> = named.collect();
    named.sort();
    format!("{name}{{{}}}", named.join(","))
}

/// The series of `/metrics`.
pub fn of_text(text: &str) -> Series {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}').unwrap();
        // No value of the made-up machine contains this.
        let mut labels: Vec<&str> = labels.split_inclusive("\",").collect();
        labels
            .iter_mut()
            .for_each(|label| *label = label.trim_end_matches(','));
        labels.sort_unstable();
        (
            format!("{name}{{{}}}", labels.join(",")),
            value.parse().unwrap(),
        )
    });
    parsed.collect()
}
