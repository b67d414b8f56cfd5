// SPDX-License-Identifier: Apache-2.0
//! `agewise lab damon`, and `agewise lab run --damon`, as a program.

mod program;

use program::{agewise_code, json_lines};

/// A monitor that samples often enough to see something within a third of a second.
const BUSY: &str = "scheme:sample_interval=1000:aggr_interval=20000";

fn watch(more: &[&str]) -> (Option<i32>, String, String) {
    let args = ["lab", "damon", "kv", "--damon", BUSY, "--until", "300ms"];
    agewise_code(&[&args, more].concat())
}

#[test]
fn a_monitor_is_held_against_the_truth_in_every_format() {
    let (code, json, _) = watch(&["--format", "json"]);
    assert_eq!(code, Some(0));
    assert_eq!(watch(&["--format", "json"]).1, json, "the same bytes twice");
    let records = json_lines(&json);
    let (summary, windows) = records.split_last().unwrap();
    assert_eq!(summary["record"], "summary");
    assert_eq!(summary["windows"], windows.len());
    for record in &records {
        assert_eq!(record["workload"], "kv");
        assert_eq!(record["policy"], "mglru:7.2");
        assert_eq!(record["damon"], BUSY);
        assert_eq!(
            (&record["seed"], &record["until_ns"]),
            (&1.into(), &300_000_000.into())
        );
        assert!(record["memory_bytes"].as_u64() > Some(0), "{record}");
        assert_eq!(record["source_sha256"].as_str().map(str::len), Some(64));
        for name in ["swap", "settings", "options", "source", "version", "build"] {
            assert!(record[name].is_string(), "{name} of {record}");
        }
    }
    let share = |name: &str| summary[name].as_f64().unwrap();
    assert!(share("distance") < share("distance_blind"), "{summary}");
    assert!(share("kdamond_cpu_percent") > 0.0);
    for window in windows {
        assert_eq!(window["record"], "window");
        let regions = window["regions"].as_u64().unwrap();
        assert!((10..=1000).contains(&regions), "{window}");
    }

    let (code, csv, _) = watch(&["--format", "csv"]);
    assert_eq!(code, Some(0));
    assert!(csv.starts_with("at_ms,regions,bytes,true_heat,seen_heat,distance,workload,policy,"));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, &csv).expect("written");
    let shown = agewise_code(&["lab", "show", &file.path().to_string_lossy()]);
    assert!(
        shown.0 == Some(1) && shown.2.contains("of `lab damon`"),
        "{}",
        shown.2
    );
    assert_eq!(csv.lines().count(), 1 + windows.len());

    let (code, text, _) = watch(&[]);
    assert_eq!(code, Some(0));
    insta::assert_snapshot!(text);
    for part in [
        "kv under mglru:7.2 with scheme:",
        "a monitor that knows nothing",
        "kdamond used",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn heat_is_drawn_as_svg_and_as_a_page_that_needs_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, begins) in [("heat.svg", "<svg"), ("heat.html", "<!doctype html>")] {
        let path = directory.path().join(name);
        let path = path.to_str().expect("a path of text");
        assert_eq!(watch(&["--plot", path]).0, Some(0));
        let drawn = std::fs::read_to_string(path).expect("drawn");
        let start = drawn[..begins.len()].to_ascii_lowercase();
        assert_eq!(start, begins, "{name}");
        assert!(drawn.contains("distance 0."), "{name} has its title");
        assert!(
            !drawn.contains("src=\"http") && !drawn.contains("href=\"http"),
            "{name}"
        );
        watch(&["--plot", path]);
        assert_eq!(
            std::fs::read_to_string(path).expect("drawn"),
            drawn,
            "{name}"
        );
    }
    let (code, _, error) = watch(&["--plot", "heat.png"]);
    assert!(
        code == Some(2) && error.contains(".svg or .html"),
        "{error}"
    );
    let (code, _, error) = watch(&["--plot", "/nonexistent/heat.svg"]);
    assert!(
        code == Some(1) && error.contains("/nonexistent/heat.svg"),
        "{error}"
    );
}

#[test]
fn a_monitor_that_sleeps_says_what_keeps_it_asleep() {
    // Most of the machine's memory is free: above the module's high watermark.
    let (code, _, error) = agewise_code(&["lab", "damon", "kv", "--damon", "lru_sort"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("watermarks"), "{error}");
}

/// Always active, and fast enough to act within the workload.
const AWAKE: &str =
    "wmarks_high=1000:wmarks_mid=1001:wmarks_low=0:sample_interval=1000:aggr_interval=20000";

fn measured(damon: &str, policy: &str) -> impl Fn(&str) -> f64 + use<> {
    let args = ["lab", "run", "kv", "--policy", policy, "--seeds", "1"];
    let with = ["--format", "json", "--damon", damon];
    let (code, json, error) = agewise_code(&[&args[..], &with].concat());
    assert_eq!(code, Some(0), "{error}");
    let records = json_lines(&json);
    move |name| {
        let record = records.iter().find(|record| record["measure"] == name);
        record.unwrap_or_else(|| panic!("no measure {name}"))["mean"]
            .as_f64()
            .unwrap()
    }
}

#[test]
fn the_two_modules_run_beside_any_policy_and_count_as_theirs_do() {
    for policy in ["classic", "mglru:7.2", "mglru:6.12"] {
        // Without a quota: its default window is longer than the run. Free memory is cold too.
        let sort = format!("lru_sort:{AWAKE}:cold_min_age=20000:quota_ms=0");
        let sort = measured(&sort, policy);
        assert!(sort("damon_samples") > 100.0);
        assert!(sort("nr_lru_sort_tried_hot_regions") > 0.0, "{policy}");
        assert!(sort("bytes_lru_sorted_cold_regions") > 0.0, "{policy}");
        assert!(sort("bytes_lru_sorted_hot_regions") <= sort("bytes_lru_sort_tried_hot_regions"));
        let reclaim = format!("reclaim:{AWAKE}:min_age=20000:quota_ms=0:quota_sz=0");
        let reclaim = measured(&reclaim, policy);
        assert!(reclaim("bytes_reclaimed_regions") > 0.0, "{policy}");
        assert!(reclaim("bytes_reclaimed_regions") <= reclaim("bytes_reclaim_tried_regions"));
    }
}

/// The limit on kdamond's CPU time is kept; even a single millisecond is not treated as unlimited.
#[test]
fn a_quota_bounds_what_is_tried() {
    let bytes = |quota: &str| {
        let reclaim = measured(&format!("reclaim:{AWAKE}:min_age=40000:{quota}"), "classic");
        reclaim("bytes_reclaim_tried_regions")
    };
    let free = bytes("quota_ms=0:quota_sz=0");
    let little = bytes("quota_ms=0:quota_sz=65536:quota_reset_interval_ms=100");
    // A quota window is at least 100 ms long, and a run takes less than a second.
    assert!(
        little <= 10.0 * 65536.0 && free > 2.0 * little,
        "{little} of {free}"
    );
    let tried = |quota: &str| {
        let sort = measured(
            &format!("lru_sort:{AWAKE}:cold_min_age=40000:{quota}"),
            "classic",
        );
        sort("bytes_lru_sort_tried_cold_regions")
    };
    assert!(tried("quota_ms=1:quota_reset_interval_ms=100") < tried("quota_ms=0"));
}

/// Values that both modules refuse with EINVAL.
const INVALID: &[&str] = &[
    "enabled=maybe",
    "quota_ms=x",
    "quota_ms=-1",
    "quota_reset_interval_ms=1s",
    "wmarks_interval=",
    "wmarks_high=x",
    "wmarks_mid=1.5",
    "wmarks_low=-1",
    "sample_interval=x",
    "sample_interval=200000",
    "aggr_interval=4000",
    "min_nr_regions=2",
    "min_nr_regions=0",
    "min_nr_regions=20:max_nr_regions=10",
    "max_nr_regions=9",
    "monitor_region_start=8192:monitor_region_end=4096",
    "monitor_region_start=4096:monitor_region_end=4096",
    "monitor_region_start=here",
    "autotune_monitoring_intervals=2",
    "addr_unit=0",
    "addr_unit=3",
    "commit_inputs=Y",
];

/// Those of lru_sort alone.
const INVALID_FOR_LRU_SORT: &[&str] = &[
    "sample_interval=0",
    "hot_thres_access_freq=-5",
    "cold_min_age=old",
    "active_mem_bp=10001",
    "filter_young_pages=perhaps",
];

/// Those of reclaim alone.
const INVALID_FOR_RECLAIM: &[&str] = &[
    "aggr_interval=0",
    "min_age=old",
    "quota_sz=4M",
    "quota_mem_pressure_us=x",
    "quota_autotune_feedback=-1",
    "skip_anon=2",
];

/// Every parameter in the modules' tables that can be invalid, alone or combined with another.
#[test]
fn what_the_kernel_refuses_is_refused_with_its_error() {
    let mut refused: Vec<(String, &str)> = Vec::new();
    let own = [
        ("lru_sort", INVALID_FOR_LRU_SORT),
        ("reclaim", INVALID_FOR_RECLAIM),
    ];
    for (module, own) in own {
        let invalid = INVALID.iter().chain(own);
        refused.extend(invalid.map(|part| (format!("{module}:{part}"), "EINVAL")));
        for (part, errno) in [
            ("quota_ms=99999999999999999999", "ERANGE"),
            ("max_nr_regions=18446744073709551616", "ERANGE"),
            ("kdamond_pid=1", "EACCES"),
            ("nr_of_nothing=1", "ENOENT"),
        ] {
            refused.push((format!("{module}:{part}"), errno));
        }
    }
    for part in [
        "lru_sort:nr_lru_sort_tried_hot_regions=0",
        "lru_sort:bytes_lru_sorted_cold_regions=0",
        "lru_sort:nr_cold_quota_exceeds=0",
        "reclaim:bytes_reclaimed_regions=0",
        "reclaim:nr_quota_exceeds=0",
    ] {
        refused.push((part.to_owned(), "EACCES"));
    }
    for (damon, errno) in &refused {
        let args = ["lab", "run", "kv", "--policy", "mglru:7.2", "--seeds", "1"];
        let (code, out, error) = agewise_code(&[&args[..], &["--damon", damon]].concat());
        assert_eq!(code, Some(1), "{damon}: {error}");
        assert!(
            out.is_empty(),
            "{damon}: nothing is printed of a run that cannot be made"
        );
        let (module, part) = damon.split_once(':').unwrap();
        let key = part.split('=').next().unwrap();
        for expected in [*errno, key, &format!("--damon {module} of Linux 7.2")] {
            assert!(error.contains(expected), "{damon}: {expected} in {error}");
        }
    }
}

#[test]
fn parameters_of_later_kernels_do_not_exist_in_earlier_ones() {
    for damon in [
        "lru_sort:active_mem_bp=5000",
        "lru_sort:autotune_monitoring_intervals=Y",
        "lru_sort:filter_young_pages=Y",
        "lru_sort:addr_unit=2",
        "reclaim:autotune_monitoring_intervals=Y",
        "reclaim:addr_unit=2",
    ] {
        for (policy, taken) in [("classic:6.12", false), ("classic", true)] {
            let args = ["lab", "run", "kv", "--seeds", "1", "--policy", policy];
            let (code, _, error) = agewise_code(&[&args[..], &["--damon", damon]].concat());
            assert_eq!(code == Some(0), taken, "{policy} {damon}: {error}");
            assert!(
                taken || error.contains("ENOENT") && error.contains("6.12"),
                "{error}"
            );
        }
    }
}
