// SPDX-License-Identifier: Apache-2.0
//! `agewise recommend` from the histories of a daemon, and from a real Prometheus.

mod program;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agewise_cli::children::Killed;
use agewise_policy::whatif::{Curves, Estimate, History};
use program::{json_lines, words};
use serde_json::Value;

const AGEWISE: &str = env!("CARGO_BIN_EXE_agewise");
const GIB: u64 = 1 << 30;
const HOUR_MS: u64 = 3_600_000;

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("before the year 500 million")
}

/// Curves with no faults from `knee` percent upwards, and very many below.
fn curves(knee: u16) -> Curves {
    let faults = |percent| Estimate::exact(if percent < knee { 1e6 } else { 0.0 });
    Curves {
        unused_bytes: 5 << 20,
        ..Curves::of_anon(GIB, HOUR_MS, faults)
    }
}

/// A cgroup seen for 30 hours that needs 61 %, and one seen for three hours.
fn state() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, hours) in [("/nowhere/web", 30), ("/nowhere/new", 3)] {
        let mut history = History::default();
        for hour in (0..hours).rev() {
            history.add(unix_ms() - hour * HOUR_MS, &curves(61));
        }
        agewise_daemon::curves::keep(dir.path(), name, &history).expect("written");
    }
    dir
}

fn recommend(state: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(AGEWISE);
    command
        .arg("recommend")
        .args(words)
        .env("STATE_DIRECTORY", state);
    command.output().expect("agewise runs")
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    json_lines(&text)
}

#[test]
fn kept_curves_become_requests_with_their_reason() {
    let state = state();
    let priced = ["--all", "--format", "json", "--price", "4.0/GiB-month"];
    let lines = lines(&recommend(state.path(), &priced));
    let [new, web] = &lines[..] else {
        panic!("one for each: {lines:?}");
    };
    assert_eq!(
        (&web["cgroup"], &web["basis"]),
        (&"/nowhere/web".into(), &"curve".into())
    );
    let request = web["request_bytes"].as_u64().expect("a number");
    assert_eq!(request, (GIB * 61).div_ceil(100));
    let saving = web["saving_per_month"].as_f64().expect("a number");
    assert!((saving - 0.39 * 4.0).abs() < 1e-6, "{saving}");
    assert_eq!(web["limit_bytes"], GIB + GIB * 15 / 100);
    assert_eq!(web["unused_bytes"], 5 << 20);
    assert_eq!(
        (&new["basis"], &new["request_bytes"]),
        (&"short_history".into(), &GIB.into())
    );
    assert_eq!(new["curve_bytes"], request);
    let said = new["reason"].as_str().expect("text");
    assert!(said.contains("3 h") || said.contains("180 m"), "{said}");
    // The user decides how much history is enough.
    let more = words("--cgroup /nowhere/new --history 2h --format json");
    let lines = self::lines(&recommend(state.path(), &more));
    assert_eq!(lines[0]["basis"], "curve");
    let csv = recommend(state.path(), &["--all", "--format", "csv"]);
    let csv = String::from_utf8_lossy(&csv.stdout).into_owned();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let text = recommend(state.path(), &["--all", "--price", "1"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let total = "all: 0 B less than is resident, 0.00 a month, without the 2 that are gone";
    assert!(text.contains(total), "{text}");
    assert_eq!((&new["gone"], &web["gone"]), (&true.into(), &true.into()));
}

#[test]
fn one_that_is_not_there_does_not_keep_the_others_from_being_told() {
    let state = state();
    let missing = "/nowhere/missing";
    let line = format!("--cgroup {missing} --cgroup /nowhere/web --format json");
    let words = words(&line);
    let output = recommend(state.path(), &words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/nowhere/missing is left out: "), "{said}");
    let line: Value = serde_json::from_slice(&output.stdout).expect("one line");
    assert_eq!(line["cgroup"], "/nowhere/web");
    let alone = recommend(state.path(), &["--cgroup", missing]);
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(
        !alone.status.success() && !said.contains("left out"),
        "{said}"
    );
}

/// An interrupted run does not give a reliable answer, and the exit status says so.
#[test]
fn interrupted_it_prints_what_is_known_and_says_so() {
    let state = tempfile::tempdir().expect("a directory");
    let child = Command::new(AGEWISE)
        .args(["recommend", "--cgroup", "/", "--duration", "5m"])
        .env("STATE_DIRECTORY", state.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("agewise runs");
    // Long enough for two looks.
    std::thread::sleep(Duration::from_secs(6));
    let pid = rustix::process::Pid::from_child(&child);
    let sent = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let output = child.wait_with_output().expect("ours");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_known = String::from_utf8_lossy(&output.stdout).contains("request");
    match output.status.code() {
        Some(1)
            if said.contains("there are no cgroups here")
                || said.contains("no access source works here") =>
        {
            println!("SKIPPED interrupted: {said}");
        }
        code => assert!(sent.is_ok() && is_known && code == Some(143), "{output:?}"),
    }
}

#[test]
fn interrupted_before_anything_is_known_it_says_so() {
    let state = tempfile::tempdir().expect("a directory");
    let child = Command::new(AGEWISE)
        .args(["recommend", "--cgroup", "/", "--cgroup", "/nowhere"])
        .args(["--duration", "60s"])
        .env("STATE_DIRECTORY", state.path())
        .stderr(Stdio::piped())
        .spawn()
        .expect("agewise runs");
    // Prices are measured first, and then it looks once.
    std::thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let output = child.wait_with_output().expect("ours");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_told = output.status.code() == Some(143);
    assert!(is_told || !said.contains("interrupted"), "{output:?}");
}

#[test]
fn damaged_or_missing_histories_are_said() {
    let state = state();
    let dir = state.path().join("whatif");
    for file in std::fs::read_dir(&dir).expect("a directory") {
        let path = file.expect("a file").path();
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[40] ^= 1;
        std::fs::write(&path, bytes).expect("written");
    }
    let output = recommend(state.path(), &["--all"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("damaged") && said.contains("no history"),
        "{said}"
    );
    let one = recommend(state.path(), &["--cgroup", "/nowhere/web"]);
    let said = String::from_utf8_lossy(&one.stderr).into_owned();
    assert!(
        one.status.code() == Some(1) && said.contains("damaged"),
        "{said}"
    );
    // It is named, and the cgroup would be watched if it were there.
    let path = agewise_daemon::curves::history_path(state.path(), "/nowhere/web");
    assert!(
        said.contains(path.to_str().unwrap()) && said.contains("is not used"),
        "{said}"
    );
    assert_eq!(recommend(state.path(), &[]).status.code(), Some(2));
    let far = recommend(state.path(), &["--prometheus", "https://localhost"]);
    assert_eq!(far.status.code(), Some(2));
}

/// Checks what the API server checks, by the schema of `autoscaling.k8s.io/v1`.
fn check_vpa(object: &Value) {
    assert_eq!(object["apiVersion"], "autoscaling.k8s.io/v1");
    assert_eq!(object["kind"], "VerticalPodAutoscaler");
    let target = &object["spec"]["targetRef"];
    assert!(
        target["kind"].is_string() && target["name"].is_string(),
        "required: {object}"
    );
    assert_eq!(object["spec"]["updatePolicy"]["updateMode"], "Off");
    let status = object["status"].as_object().expect("an object");
    assert!(
        status
            .keys()
            .all(|key| ["conditions", "recommendation"].contains(&&**key))
    );
    for condition in status["conditions"].as_array().expect("a list") {
        assert!(condition["type"].is_string() && condition["status"].is_string());
    }
    let containers = object["status"]["recommendation"]["containerRecommendations"].as_array();
    for container in containers.expect("a list") {
        assert!(container["containerName"].is_string());
        let bounds = ["lowerBound", "target", "uncappedTarget", "upperBound"];
        let keys = container.as_object().expect("an object").keys();
        assert!(
            keys.filter(|key| *key != "containerName")
                .all(|key| bounds.contains(&&**key))
        );
        let bytes = bounds.map(|bound| {
            let quantity = container[bound]["memory"].as_str().expect("a quantity");
            quantity
                .parse::<u64>()
                .expect("a whole number is a quantity")
        });
        assert!(bytes[0] <= bytes[1] && bytes[1] <= bytes[3], "{container}");
    }
}

#[test]
fn kubernetes_gets_its_own_forms() {
    let state = state();
    let one = recommend(
        state.path(),
        &["--cgroup", "/nowhere/web", "--format", "vpa"],
    );
    check_vpa(&lines(&one)[0]);
    let list = &lines(&recommend(state.path(), &["--all", "--format", "vpa"]))[0];
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&"List".into(), &"v1".into())
    );
    assert_eq!(list["items"], serde_json::json!([]), "both are gone");
    let both = ["--cgroup", "/nowhere/new", "--cgroup", "/nowhere/web"];
    let list = &lines(&recommend(
        state.path(),
        &[&both[..], &["--format", "vpa"]].concat(),
    ))[0];
    let items = list["items"].as_array().expect("a list");
    assert_eq!(items.len(), 2);
    items.iter().for_each(check_vpa);
    assert!(
        items[0]["status"]["conditions"]
            .to_string()
            .contains("LowConfidence")
    );
    let report = &lines(&recommend(state.path(), &["--all", "--format", "krr"]))[0];
    assert!(report["score"].is_u64() && report["strategy"]["name"].is_string());
    let scans = report["scans"].as_array().expect("a list");
    assert_eq!(scans.len(), 2);
    for scan in scans {
        for key in [
            "cluster",
            "name",
            "container",
            "pods",
            "hpa",
            "namespace",
            "kind",
        ] {
            assert!(scan["object"].get(key).is_some(), "{key}: {scan}");
        }
        for kind in ["requests", "limits"] {
            assert!(
                scan["object"]["allocations"][kind].get("memory").is_some(),
                "{scan}"
            );
            let memory = &scan["recommended"][kind]["memory"];
            assert!(
                memory["value"].is_f64() && memory["severity"].is_string(),
                "{scan}"
            );
        }
        let severities = ["UNKNOWN", "GOOD", "OK", "WARNING", "CRITICAL"];
        assert!(severities.contains(&scan["severity"].as_str().expect("text")));
    }
}

/// A Prometheus server, ended when dropped.
struct Prometheus {
    child: Killed,
    url: String,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a server with these metrics; `Err` says why that is impossible here.
    fn start(metrics: &str) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("metrics"), metrics).map_err(|error| error.to_string())?;
        std::fs::write(path("config"), "{}").map_err(|error| error.to_string())?;
        let made = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics"])
            .args([path("metrics"), path("data")])
            .output()
            .map_err(|error| format!("promtool: {error}"))?;
        assert!(made.status.success(), "{made:?}");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|of| of.local_addr());
        let address = free.map_err(|error| error.to_string())?.to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path("config").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("prometheus: {error}"))?;
        let mut server = Prometheus {
            child: Killed(child),
            url: format!("http://{address}"),
            _dir: dir,
        };
        let began = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            let ended = server.child.try_wait().map_err(|error| error.to_string())?;
            assert!(ended.is_none(), "prometheus ended: {ended:?}");
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "prometheus does not answer"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

/// Two machines with two cgroups each: `/web` needs three quarters, and `/db` has no upper bound.
fn metrics() -> String {
    let now_s = unix_ms() / 1000 / 3600 * 3600;
    let times: Vec<u64> = (0..30).rev().map(|hour| now_s - hour * 3600).collect();
    let mut text = String::new();
    let mut family = |name: &str, sizes: &[&str], value: &dyn Fn(&str, &str) -> f64| {
        text += &format!("# TYPE agewise_whatif_{name} gauge\n");
        for host in ["a:9779", "b:9779"] {
            for cgroup in ["/web", "/db"] {
                for size in sizes {
                    let value = value(cgroup, size);
                    let ratio = match *size {
                        "" => String::new(),
                        size => format!(",size_ratio=\"{size}\""),
                    };
                    for time in &times {
                        let names = match cgroup {
                            "/web" => ",namespace=\"shop\",pod=\"web-0\",container=\"nginx\"",
                            _ => "",
                        };
                        let labels =
                            format!("instance=\"{host}\",cgroup=\"{cgroup}\"{names}{ratio}");
                        text += &format!("agewise_whatif_{name}{{{labels}}} {value} {time}\n");
                    }
                }
            }
        }
    };
    let sizes = ["0.5", "0.6", "0.75", "0.9", "1"];
    let waits = |size: &str| if size < "0.75" { 0.05 } else { 0.0 };
    family("full_bytes", &[""], &|_, _| 1e9);
    family("beyond_bytes", &[""], &|_, _| 1e6);
    family("wait_ratio", &sizes, &|_, size| waits(size));
    family("wait_high_ratio", &sizes, &|cgroup, size| match cgroup {
        "/web" => waits(size),
        _ => f64::INFINITY,
    });

    text += "# EOF\n";
    text
}

#[test]
fn live_a_fleet_is_asked_of_a_prometheus() {
    let server = match Prometheus::start(&metrics()) {
        Ok(server) => server,
        Err(why) => return println!("SKIPPED live_a_fleet_is_asked_of_a_prometheus: {why}"),
    };
    let state = tempfile::tempdir().expect("a directory");
    let asked = |more: &[&str]| {
        let line = format!("--prometheus {} --over 2d --format json", server.url);
        recommend(state.path(), &[&words(&line), more].concat())
    };
    let began = Instant::now();
    let mut output = asked(&[]);
    // It accepts connections before it answers queries.
    while !output.status.success() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(500));
        output = asked(&[]);
    }
    let records = lines(&output);
    assert_eq!(records.len(), 4, "{records:?}");
    for record in &records {
        assert!(
            record["host"]
                .as_str()
                .is_some_and(|host| host.ends_with(":9779"))
        );
        let (request, basis) = match record["cgroup"].as_str() {
            Some("/web") => (751_000_000, "curve"),
            _ => (1_001_000_000, "unbounded"),
        };
        assert_eq!(record["request_bytes"], request, "{record}");
        assert_eq!(record["basis"], basis, "{record}");
        assert_eq!(record["unused_bytes"], Value::Null);
        let names = ["namespace", "pod", "container"].map(|name| record[name].as_str());
        match record["cgroup"].as_str() {
            Some("/web") => assert_eq!(names, [Some("shop"), Some("web-0"), Some("nginx")]),
            _ => assert_eq!(names, [None; 3]),
        }
    }
    let some = lines(&asked(&[
        "--matching",
        "instance=\"a:9779\",cgroup=\"/web\"",
    ]));
    assert_eq!(some.len(), 1);
    let long = lines(&asked(&["--history", "47h"]));
    assert!(long.iter().all(|record| record["basis"] == "short_history"));
    let none = asked(&["--matching", "instance=\"c\""]);
    assert_eq!(none.status.code(), Some(1));
    let bad = asked(&["--matching", "instance="]);
    let said = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(
        bad.status.code() == Some(1) && said.contains("parse error"),
        "{said}"
    );
}
