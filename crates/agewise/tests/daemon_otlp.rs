// SPDX-License-Identifier: Apache-2.0
//! Metrics sent by OTLP are those of `/metrics`, also after a real Collector passed them on; the
//! process that sends them has no rights.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use agewise_cli::children::Killed;
use assert_cmd::cargo::cargo_bin;
use otlp::{Decoded, Request, Series, decode, of_text, server};
use prometheus::{get, has, start};

mod otlp;
mod prometheus;

const PATIENCE: Duration = Duration::from_secs(180);

/// A made-up machine whose metrics are served and sent, and where they are served.
fn sending(endpoint: &str, more: &str) -> (Killed, String) {
    let config = format!(
        "observe.tick = '1s'\n[metrics]\nlisten = '127.0.0.1:0'\n\
         [metrics.otlp]\nendpoint = 'http://{endpoint}'\ninterval = '1s'\n{more}"
    );
    let (running, line) = start(&config, &[]);
    let address = line
        .split_once("http://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let address = address.unwrap_or_else(|| panic!("{line}")).0.to_owned();
    (running, address)
}

/// Only the sender itself knows this one.
const LOST: &str = "agewise_otlp_lost_points_total{}";
const TICKS: &str = "agewise_own_ticks_total{}";

/// Everything served and sent for the same look.
fn same_look(
    address: &str,
    requests: &Receiver<Request>,
    decode: fn(&[u8]) -> Decoded,
) -> (Series, Decoded, Request) {
    let began = Instant::now();
    loop {
        assert!(
            began.elapsed() < PATIENCE,
            "no look was both served and sent"
        );
        let request = requests.recv_timeout(PATIENCE).expect("a request");
        let (_, served) = get(address, "/metrics", "application/openmetrics-text").unwrap();
        let (served, sent) = (of_text(&served), decode(&request.body));
        if sent.series.get(TICKS) == served.get(TICKS) {
            return (served, sent, request);
        }
    }
}

fn assert_same(served: &Series, mut sent: Decoded) {
    assert_eq!(sent.series.remove(LOST), Some(0.0));
    assert!(served.len() > 200, "{}", served.len());
    for (name, value) in served {
        assert_eq!(sent.series.get(name), Some(value), "{name}");
    }
    assert_eq!(served.len(), sent.series.len());
    assert_eq!(sent.resource["service.name"], "agewise");
    assert!(!sent.resource["host.name"].is_empty());
    assert_eq!(
        sent.resource["host.name"],
        sent.resource["service.instance.id"]
    );
    let served_s = served["agewise_snapshot_timestamp_seconds{}"];
    assert!((sent.taken_ns as f64 / 1e9 - served_s).abs() < 1e-3);
}

#[test]
fn every_value_of_the_metrics_is_sent() {
    let (endpoint, requests) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("headers");
    std::fs::write(&file, "X-Token: a b\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).unwrap();
    let more = format!("headers_file = '{}'\n", file.display());
    let (_daemon, address) = sending(&endpoint, &more);
    let (served, sent, request) = same_look(&address, &requests, decode);
    for line in [
        "post /v1/metrics http/1.1",
        &format!("host: {endpoint}"),
        "content-type: application/x-protobuf",
        "content-encoding: gzip",
        "x-token: a b",
    ] {
        assert!(
            request.head.lines().any(|found| found == line),
            "{}",
            request.head
        );
    }
    let units = ["agewise_resident_bytes", "agewise_used_within_seconds"];
    assert_eq!(units.map(|name| &*sent.units[name]), ["By", "s"]);
    assert_same(&served, sent);
}

/// Standard error may be a file, as with `StandardError=append:` of systemd.
#[test]
fn losses_are_reported_in_a_file_too() {
    let dir = tempfile::tempdir().unwrap();
    let [config, errors] = ["agewise.toml", "errors"].map(|name| dir.path().join(name));
    // Nobody listens there: the port is free again.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let text = format!(
        "observe.tick = '1s'\n[metrics]\nlisten = '127.0.0.1:0'\n\
         [metrics.otlp]\nendpoint = 'http://{}'\ninterval = '1s'\n",
        free.unwrap()
    );
    std::fs::write(&config, text).unwrap();
    let daemon = Command::new(cargo_bin("agewise"))
        .args(["daemon", "--demo", "--config"])
        .arg(&config)
        .stderr(std::fs::File::create(&errors).unwrap())
        .spawn();
    let _daemon = Killed(daemon.expect("agewise starts"));
    let began = Instant::now();
    let said = || std::fs::read_to_string(&errors).unwrap();
    while !said().contains("does not take all metrics") {
        assert!(began.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_real_collector_passes_on_every_value() {
    if !has("a_real_collector_passes_on_every_value", "otelcol") {
        return;
    }
    let (address, requests) = server();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let receives = free.unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("collector.yaml");
    let config = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: '{receives}'}}}}}}}}\n\
         exporters: {{otlphttp: {{endpoint: 'http://{address}', encoding: json, \
         compression: none}}}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
         pipelines: {{metrics: {{receivers: [otlp], exporters: [otlphttp]}}}}\n"
    );
    std::fs::write(&path, config).unwrap();
    let mut otelcol = Command::new("otelcol");
    otelcol.arg(format!("--config=file:{}", path.display()));
    let child = otelcol.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _collector = Killed(child.unwrap());
    let began = Instant::now();
    while std::net::TcpStream::connect(&receives).is_err() {
        assert!(began.elapsed() < PATIENCE, "the Collector does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (_daemon, address) = sending(&receives, "");
    let (served, sent, _) = same_look(&address, &requests, Decoded::of_json);
    assert_same(&served, sent);
}
