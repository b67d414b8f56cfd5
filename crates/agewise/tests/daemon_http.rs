// SPDX-License-Identifier: Apache-2.0
//! What the daemon serves over HTTP, as seen by its consumers, promtool and a browser. The machine
//! is simulated, so no root is needed.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use prometheus::{DASHBOARDS, demo, get, has, of_panels, of_rules, of_variables, packaging};

mod prometheus;

/// All expressions of rules and dashboards.
fn expressions() -> Vec<String> {
    let mut all = of_rules();
    for dashboard in DASHBOARDS {
        all.extend(of_panels(dashboard));
        all.extend(of_variables(dashboard));
    }
    all
}

/// Our metric names in an expression. Recording rules produce metrics of ages with the same labels.
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

/// The label matchers in an expression, each with its metric: `name{label="x"}`.
fn matched_labels(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices('{') {
        let name = names(&expression[..at]).pop().unwrap_or_default();
        let inside = expression[at + 1..].split('}').next().unwrap_or_default();
        // None of our label values contains a comma or an operator.
        for part in inside.split(',') {
            let label = part.split(['=', '!', '~']).next().unwrap_or_default();
            found.push((name.clone(), label.trim().to_owned()));
        }
    }
    found
}

/// Labels by which an expression aggregates or joins.
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
    /// Labels that Prometheus adds when it scrapes.
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
        println!("SKIPPED the_page_works_in_a_browser: chromium does not start here");
        return;
    }
    // The log has all script errors, blocked loads and missing resources.
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
        "/srv/&lt;b&gt;\\u{1b}[31m &amp; co",
        "The largest of 5321 files",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    assert!(!page.contains("class=\"trouble\""), "{page}");
}
