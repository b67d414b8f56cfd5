// SPDX-License-Identifier: Apache-2.0
//! A real Prometheus scrapes daemons and evaluates our rules: every query of a dashboard has data.
//! The machines are simulated, so no root is needed.

use std::time::{Duration, Instant};

use agewise_cli::children::Killed;
use prometheus::{
    DASHBOARDS, Prometheus, demo, fleet, get, has, of_panels, of_rules, of_variables,
};
use serde_json::Value;

mod prometheus;

/// Containers per machine of the fleet.
const CONTAINERS: usize = 50;

/// Waits until an expression returns this many series.
fn wait_for(server: &Prometheus, expression: &str, series: usize, patience: Duration) {
    let began = Instant::now();
    while server.count(expression) < series {
        assert!(
            began.elapsed() < patience,
            "{} of {series} series: {expression}\n{}",
            server.count(expression),
            server.log()
        );
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn a_real_prometheus_scrapes_it() {
    if !has("a_real_prometheus_scrapes_it", "prometheus") {
        return;
    }
    let (_daemon, address) = demo();
    let server = Prometheus::start(&[address], 1);
    let recorded = "cgroup:agewise_working_set_bytes:2m{cgroup='/web'}";
    wait_for(&server, recorded, 1, Duration::from_secs(60));
    let asked = |path: &str| -> Value {
        let (_, body) = get(&server.address, path, "application/json").unwrap();
        serde_json::from_str(&body).unwrap()
    };
    let targets = asked("/api/v1/targets");
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!(
        (&target["health"], &target["lastError"]),
        (&"up".into(), &"".into())
    );
    // Prometheus knows the type of each metric, so it parsed OpenMetrics, not just numbers.
    let known = asked("/api/v1/metadata?metric=agewise_refaulted_bytes");
    let known = &known["data"]["agewise_refaulted_bytes"][0];
    assert_eq!(
        (&known["type"], &known["unit"]),
        (&"counter".into(), &"bytes".into())
    );
    // The bins add up in Prometheus as they do here.
    let gap = server
        .query(
            "max(abs(sum by (cgroup, node, type) (agewise_age_bytes) \
             - on (cgroup, node, type) sum by (cgroup, node, type) (agewise_resident_bytes)))",
        )
        .unwrap();
    assert_eq!(gap["data"]["result"][0]["value"][1], "0", "{gap}");
    for expression in of_rules() {
        let found = server.query(&expression).unwrap();
        assert_eq!(found["status"], "success", "{expression}: {found}");
    }
}

/// Turns `label_values(METRIC, LABEL)` into an expression with one series per value.
fn values(variable: &str) -> String {
    let inside = variable
        .strip_prefix("label_values(")
        .and_then(|rest| rest.strip_suffix(')'));
    let (metric, label) = inside
        .and_then(|inside| inside.rsplit_once(", "))
        .expect("a query for values of a label");
    format!("count by ({label}) ({metric})")
}

/// `HOSTS=200` replaces the small default fleet and prints what it costs.
#[test]
fn every_query_of_every_dashboard_has_data_of_a_fleet() {
    if !has(
        "every_query_of_every_dashboard_has_data_of_a_fleet",
        "prometheus",
    ) {
        return;
    }
    let hosts = std::env::var("HOSTS").map_or(8, |hosts| hosts.parse().expect("a number"));
    let is_large = hosts > 20;
    let interval_s = if is_large { 15 } else { 1 };
    let patience = Duration::from_secs(60 + u64::from(hosts) * 2);
    let (daemon, targets) = fleet(hosts, interval_s);
    let began = Instant::now();
    let server = Prometheus::start(&targets, interval_s);
    let containers = usize::from(hosts) * CONTAINERS;
    let recorded = "cgroup:agewise_cold_bytes:10m{container=\"web\"}";
    wait_for(&server, recorded, containers, patience);
    if is_large {
        // Let rates, rules and memory reach a steady state.
        std::thread::sleep(Duration::from_secs(180).saturating_sub(began.elapsed()));
    }
    for dashboard in DASHBOARDS {
        let variables = of_variables(dashboard).into_iter();
        let variables = variables.map(|variable| values(&variable));
        for expression in of_panels(dashboard).into_iter().chain(variables) {
            wait_for(&server, &expression, 1, patience);
            if is_large {
                let asked = Instant::now();
                let series = server.count(&expression);
                println!("{:.2?} {series} series: {expression}", asked.elapsed());
            }
        }
    }
    if is_large {
        print_costs(&server, &daemon);
    }
}

fn print_costs(server: &Prometheus, daemon: &Killed) {
    let (_, rules) = get(&server.address, "/api/v1/rules", "*/*").unwrap();
    let rules: Value = serde_json::from_str(&rules).unwrap();
    for group in rules["data"]["groups"].as_array().unwrap() {
        println!("{}: {} s", group["name"], group["evaluationTime"]);
        for rule in group["rules"].as_array().unwrap() {
            println!("  {}: {} s", rule["name"], rule["evaluationTime"]);
        }
    }
    for metric in [
        "prometheus_tsdb_head_series",
        "process_resident_memory_bytes",
    ] {
        let (_, text) = get(&server.address, "/metrics", "text/plain").unwrap();
        let line = text.lines().find(|line| line.starts_with(metric));
        println!("{}", line.unwrap_or(metric));
    }
    for (name, pid) in [
        ("prometheus", server.running.0.id()),
        ("daemon", daemon.0.id()),
    ] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let most = status.lines().find(|line| line.starts_with("VmHWM"));
        println!("{name}: {}", most.unwrap_or_default());
    }
}
