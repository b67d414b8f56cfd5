// SPDX-License-Identifier: Apache-2.0
//! What the daemon serves over HTTP, as those see it for whom it is: promtool, a Prometheus, a
//! browser. On a made-up machine, so that it needs no root.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// A process that is ended with its guard.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon on a made-up machine, and where it listens.
fn demo() -> (Running, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("agewise.toml");
    std::fs::write(
        &config,
        "metrics.listen = '127.0.0.1:0'\nobserve.tick = '1s'\n",
    )
    .unwrap();
    let child = Command::new(cargo_bin("agewise"))
        .args(["daemon", "--demo", "--config"])
        .arg(&config)
        .stderr(Stdio::piped())
        .spawn()
        .expect("agewise starts");
    let mut running = Running(child);
    let mut line = String::new();
    let stderr = running.0.stderr.take().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    let address = line
        .split_once("http://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let address = address.unwrap_or_else(|| panic!("{line}")).0.to_owned();
    (running, address)
}

/// The head and the body of an answer.
fn get(address: &str, path: &str, accept: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
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

/// Whether this machine has a program; a test that needs it says so and is skipped if not.
fn has(test: &str, program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        println!("SKIP {test}: no {program} here (Debian has a package of it)");
    }
    found
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(file)
}

/// What rules and dashboard ask for: each expression.
fn expressions() -> Vec<String> {
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
    let text = std::fs::read_to_string(packaging("grafana/agewise.json")).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let known = [
                ("$instance", ".+"),
                ("$cgroup", ".+"),
                ("$__rate_interval", "1m"),
            ];
            all.push(
                known
                    .iter()
                    .fold(expression.to_owned(), |e, (k, v)| e.replace(k, v)),
            );
        }
    }
    let variables = board["templating"]["list"].as_array().unwrap();
    all.extend(
        variables
            .iter()
            .filter_map(|variable| variable["definition"].as_str())
            .map(|query| query.replace("$instance", ".+")),
    );
    all
}

/// Names of ours in an expression. What one rule records and another goes by is of ages, with their
/// labels.
fn names(expression: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    expression
        .split(|c| !is_part(c))
        .map(|word| match word.contains(":agewise_") {
            true => "agewise_age_bytes",
            false => word,
        })
        .filter(|word| word.starts_with("agewise_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboard_and_rules_ask_for_what_there_is() {
    let (_daemon, address) = demo();
    let (_, text) = get(&address, "/metrics", "text/plain").unwrap();
    let there: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let expressions = expressions();
    assert!(expressions.len() > 25, "{}", expressions.len());
    for expression in &expressions {
        let names = names(expression);
        assert!(
            !names.is_empty() || expression.starts_with("up"),
            "{expression}"
        );
        for name in names {
            assert!(there.contains(name.as_str()), "{name} of {expression}");
        }
    }
}

/// Labels that an expression asks for, each with the metric it is of: `name{label="x"}`.
fn matched_labels(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices('{') {
        let name = names(&expression[..at]).pop().unwrap_or_default();
        let inside = expression[at + 1..].split('}').next().unwrap_or_default();
        // No value of ours has a comma or an operator in it.
        for part in inside.split(',') {
            let label = part.split(['=', '!', '~']).next().unwrap_or_default();
            found.push((name.clone(), label.trim().to_owned()));
        }
    }
    found
}

/// Labels by which an expression sums or joins.
fn grouping_labels(expression: &str) -> Vec<String> {
    ["by (", "on (", "group_left (", "without ("]
        .iter()
        .flat_map(|word| expression.split(word).skip(1))
        .filter_map(|rest| rest.split(')').next())
        .flat_map(|labels| labels.split(','))
        .map(|label| label.trim().to_owned())
        .filter(|label| !label.is_empty())
        .collect()
}

#[test]
fn dashboard_and_rules_ask_for_labels_that_there_are() {
    /// Those that Prometheus adds when it scrapes.
    const ADDED: [&str; 2] = ["instance", "job"];
    let (_daemon, address) = demo();
    let (_, text) = get(&address, "/metrics", "text/plain").unwrap();
    let mut there: BTreeSet<(&str, &str)> = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };
        let labels = rest.rsplit_once('}').map_or("", |(labels, _)| labels);
        there.extend(labels.split("\",").filter_map(|part| {
            let (label, _) = part.split_once('=')?;
            Some((name, label))
        }));
    }
    let mut checked = 0;
    for expression in expressions() {
        for (name, label) in matched_labels(&expression) {
            let is_known =
                ADDED.contains(&label.as_str()) || there.contains(&(name.as_str(), label.as_str()));
            assert!(is_known, "{name} has no label {label}: {expression}");
            checked += 1;
        }
        for label in grouping_labels(&expression) {
            let names = names(&expression);
            let has = |name: &String| there.contains(&(name.as_str(), label.as_str()));
            let is_known = ADDED.contains(&label.as_str()) || names.iter().any(has);
            assert!(is_known, "nobody has a label {label}: {expression}");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn promtool_has_no_complaint() {
    if !has("promtool_has_no_complaint", "promtool") {
        return;
    }
    let (_daemon, address) = demo();
    let (head, text) = get(&address, "/metrics", "text/plain").unwrap();
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    let rules = Command::new("promtool")
        .args(["check", "rules"])
        .arg(packaging("prometheus/agewise.rules.yml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&rules.stdout).into_owned();
    assert!(rules.status.success() && said.contains("SUCCESS"), "{said}");
    let config = Command::new("promtool")
        .args(["check", "config"])
        .arg(packaging("prometheus/prometheus.yml"))
        .output()
        .unwrap();
    assert!(
        config.status.success(),
        "{}",
        String::from_utf8_lossy(&config.stderr)
    );
}

#[test]
fn every_rule_does_what_it_should_on_made_up_series() {
    let rules = std::fs::read_to_string(packaging("prometheus/agewise.rules.yml")).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prometheus/rules.test.yml");
    let tested = std::fs::read_to_string(&tests).unwrap();
    let mut named = 0;
    for line in rules.lines().map(str::trim_start) {
        let record = line.strip_prefix("- record: ");
        if let Some(name) = record.or_else(|| line.strip_prefix("- alert: ")) {
            assert!(
                tested.contains(&format!(": {name}\n")),
                "{name} has no test"
            );
            named += 1;
        }
    }
    assert!(named > 8, "{named}");
    if !has(
        "every_rule_does_what_it_should_on_made_up_series",
        "promtool",
    ) {
        return;
    }
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(tests)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

/// A Prometheus that scrapes a daemon, and where it answers.
fn prometheus(daemon: &str, dir: &Path) -> (Running, String) {
    let rules = packaging("prometheus/agewise.rules.yml")
        .canonicalize()
        .unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
         scrape_configs: [{{job_name: agewise, static_configs: [{{targets: ['{daemon}']}}]}}]\n",
        rules.display()
    );
    std::fs::write(dir.join("prometheus.yml"), config).unwrap();
    // Free a moment ago: as good as it gets for a program that has to be told its port.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let child = Command::new("prometheus")
        .arg(format!(
            "--config.file={}",
            dir.join("prometheus.yml").display()
        ))
        .arg(format!(
            "--storage.tsdb.path={}",
            dir.join("data").display()
        ))
        .arg(format!("--web.listen-address={free}"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap();
    (Running(child), free.to_string())
}

fn query(prometheus: &str, expression: &str) -> std::io::Result<Value> {
    let encoded: String = expression
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect();
    let path = format!("/api/v1/query?query={encoded}");
    let (_, body) = get(prometheus, &path, "application/json")?;
    Ok(serde_json::from_str(&body).unwrap_or(Value::Null))
}

#[test]
fn a_real_prometheus_scrapes_it() {
    if !has("a_real_prometheus_scrapes_it", "prometheus") {
        return;
    }
    let (_daemon, address) = demo();
    let dir = tempfile::tempdir().unwrap();
    let (_prometheus, server) = prometheus(&address, dir.path());
    let until = Instant::now() + Duration::from_secs(60);
    let recorded = "cgroup:agewise_working_set_bytes:2m{cgroup='/web'}";
    let has_all = || {
        let found = query(&server, recorded).ok()?;
        (!found["data"]["result"].as_array()?.is_empty()).then_some(())
    };
    while has_all().is_none() {
        let log = || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        assert!(Instant::now() < until, "nothing was scraped: {}", log());
        std::thread::sleep(Duration::from_millis(300));
    }
    let (_, body) = get(&server, "/api/v1/targets", "application/json").unwrap();
    let targets: Value = serde_json::from_str(&body).unwrap();
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!(
        (&target["health"], &target["lastError"]),
        (&"up".into(), &"".into())
    );
    // Prometheus knows what each metric is: it read our OpenMetrics, not only numbers.
    let (_, body) = get(
        &server,
        "/api/v1/metadata?metric=agewise_refaulted_bytes",
        "*/*",
    )
    .unwrap();
    let known: Value = serde_json::from_str(&body).unwrap();
    let known = &known["data"]["agewise_refaulted_bytes"][0];
    assert_eq!(
        (&known["type"], &known["unit"]),
        (&"counter".into(), &"bytes".into())
    );
    // Ages add up there as they do here.
    let gap = query(
        &server,
        "max(abs(sum by (cgroup, node, type) (agewise_age_bytes) \
         - on (cgroup, node, type) sum by (cgroup, node, type) (agewise_resident_bytes)))",
    )
    .unwrap();
    assert_eq!(gap["data"]["result"][0]["value"][1], "0", "{gap}");
    for expression in expressions() {
        if expression.starts_with("label_values") {
            continue;
        }
        let found = query(&server, &expression).unwrap();
        assert_eq!(found["status"], "success", "{expression}: {found}");
    }
}

#[test]
fn the_page_works_in_a_browser() {
    if !has("the_page_works_in_a_browser", "chromium") {
        return;
    }
    let (_daemon, address) = demo();
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args([
            "--kill-after=5",
            "90",
            "chromium",
            "--headless=new",
            "--no-sandbox",
        ])
        .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--enable-logging=stderr"])
        .args(["--virtual-time-budget=8000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{address}/"))
        .output()
        .unwrap();
    let (page, log) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if page.is_empty() {
        println!("SKIP the_page_works_in_a_browser: chromium does not start here");
        return;
    }
    // Errors of scripts, blocked loads and missing resources are all logged there.
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert_eq!(told, Vec::<&str>::new());
    for name in ["/", "/batch", "/batch/job-1", "/web", "4711 (redis-server)"] {
        assert!(
            page.contains(&format!("data-target=\"{name}\"")),
            "{name}: {page}"
        );
    }
    for wanted in [
        "looked at",
        "10 min and older",
        "Age over time: /",
        "Heat map of /",
        "Memory in use",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    assert!(!page.contains("class=\"trouble\""), "{page}");
}
