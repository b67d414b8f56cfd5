// SPDX-License-Identifier: Apache-2.0
//! Daemons on simulated machines, a Prometheus that scrapes them, and the queries for it.

#![allow(dead_code, reason = "each test program uses its part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use agewise_cli::children::Killed;
use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use tempfile::TempDir;

/// Starts `agewise daemon --demo` with this configuration; also returns its first line of output.
pub fn start(config: &str, more: &[&str]) -> (Killed, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agewise.toml");
    std::fs::write(&path, config).unwrap();
    let child = Command::new(cargo_bin("agewise"))
        .args(["daemon", "--demo", "--config"])
        .arg(&path)
        .args(more)
        .stderr(Stdio::piped())
        .spawn()
        .expect("agewise starts");
    let mut running = Killed(child);
    let mut line = String::new();
    let stderr = running.0.stderr.take().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    (running, line)
}

/// A daemon on a simulated machine, and its address.
pub fn demo() -> (Killed, String) {
    let (running, line) = start("metrics.listen = '127.0.0.1:0'\nobserve.tick = '1s'\n", &[]);
    let address = line
        .split_once("http://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let address = address.unwrap_or_else(|| panic!("{line}")).0.to_owned();
    (running, address)
}

/// A daemon that simulates this many machines with a tick of `tick_s` seconds, and their addresses.
pub fn fleet(hosts: u16, tick_s: u64) -> (Killed, Vec<String>) {
    const FIRST_PORT: u16 = 20_000;
    // All ports of a loopback address that nobody else uses are free.
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = format!("127.79.{high}.{}", low.clamp(1, 254));
    let config = format!("metrics.listen = '{ip}:{FIRST_PORT}'\nobserve.tick = '{tick_s}s'\n");
    let (running, line) = start(&config, &["--hosts", &hosts.to_string()]);
    assert!(line.contains("made-up machines"), "{line}");
    let ports = FIRST_PORT..FIRST_PORT + hosts;
    (running, ports.map(|port| format!("{ip}:{port}")).collect())
}

/// The head and body of an HTTP answer.
pub fn get(address: &str, path: &str, accept: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let body = match head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        true => unchunked(body),
        false => body.to_owned(),
    };
    Ok((head.to_owned(), body))
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        match usize::from_str_radix(size.trim(), 16) {
            Ok(size) if size > 0 && size <= rest.len() => {
                whole += &rest[..size];
                body = rest[size..].trim_start_matches("\r\n");
            }
            _ => break,
        }
    }
    whole
}

/// Whether this machine has a program; otherwise prints that the test is skipped.
pub fn has(test: &str, program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        let from = match program {
            "otelcol" => "`make test-otlp` builds it",
            _ => "Debian has a package of it",
        };
        println!("SKIPPED {test}: no {program} here ({from})");
    }
    found
}

pub fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(file)
}

/// The dashboards in `packaging/grafana`.
pub const DASHBOARDS: [&str; 2] = ["agewise.json", "agewise-fleet.json"];

/// The expressions of all rules.
pub fn of_rules() -> Vec<String> {
    let mut all = Vec::new();
    let rules = std::fs::read_to_string(packaging("prometheus/agewise.rules.yml")).unwrap();
    let mut lines = rules.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(expression) = line.trim().strip_prefix("expr: ") else {
            continue;
        };
        if expression != "|" {
            all.push(expression.to_owned());
            continue;
        }
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut whole = String::new();
        while lines.peek().is_some_and(|next| indent(next) > indent(line)) {
            whole += lines.next().unwrap_or_default();
        }
        all.push(whole);
    }
    all
}

/// The expressions of a dashboard's panels, with everything selected.
pub fn of_panels(dashboard: &str) -> Vec<String> {
    const KNOWN: [(&str, &str); 4] = [
        ("$instance", ".+"),
        ("$cgroup", ".+"),
        ("$namespace", ".*"),
        ("$__rate_interval", "1m"),
    ];
    let board = board(dashboard);
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    expressions
        .map(|expr| KNOWN.iter().fold(expr, |expr, (k, v)| expr.replace(k, v)))
        .collect()
}

/// The queries of a dashboard's variables.
pub fn of_variables(dashboard: &str) -> Vec<String> {
    let board = board(dashboard);
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let definitions = variables.filter_map(|variable| variable["definition"].as_str());
    definitions
        .map(|query| query.replace("$instance", ".+"))
        .collect()
}

fn board(dashboard: &str) -> Value {
    let path = packaging("grafana").join(dashboard);
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A Prometheus with our rules that scrapes daemons.
pub struct Prometheus {
    pub running: Killed,
    pub address: String,
    dir: TempDir,
}

impl Prometheus {
    pub fn start(daemons: &[String], interval_s: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let rules = packaging("prometheus/agewise.rules.yml");
        let rules = rules.canonicalize().unwrap();
        let config = format!(
            "global: {{scrape_interval: {interval_s}s, evaluation_interval: {interval_s}s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: agewise, static_configs: [{{targets: {daemons:?}}}]}}]\n",
            rules.display()
        );
        std::fs::write(path("prometheus.yml"), config).unwrap();
        // Prometheus has to be told a port; one that was free a moment ago is the best we can do.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let address = free.unwrap().to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", path("data")))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        Prometheus {
            running: Killed(child),
            address,
            dir,
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The answer to an expression; an error while the server is not up.
    pub fn query(&self, expression: &str) -> std::io::Result<Value> {
        let encoded: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let path = format!("/api/v1/query?query={encoded}");
        let (_, body) = get(&self.address, &path, "application/json")?;
        Ok(serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    /// The number of series of an expression; 0 while the server is not up.
    pub fn count(&self, expression: &str) -> usize {
        let found = self.query(expression).unwrap_or(Value::Null);
        found["data"]["result"].as_array().map_or(0, Vec::len)
    }
}
