// SPDX-License-Identifier: Apache-2.0
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agewise_host::cgroup;
use agewise_host::container::Container;
use agewise_policy::budget::{Gain, KernelFirst, Verdict};
use agewise_policy::statistics::Change;
use proptest::prelude::*;

use super::super::families::families;
use super::super::shown::{Chooser, Limits, OTHER};
use super::*;
use crate::demo;
use crate::state::Snapshot;

const ALL: Limits = Limits {
    subjects_max: 50,
    containers_max: 50,
    depth_max: 3,
};

fn text_of(snapshot: &Snapshot, limits: Limits, syntax: Syntax) -> String {
    let shown = Chooser::new(limits).choose(snapshot);
    render(families(snapshot, &shown), syntax)
}

type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Parses labels between braces: `name="value"` with `\\`, `\"` and `\n` in values.
fn labels(mut text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").expect("a label has a value");
        let mut value = String::new();
        let mut letters = rest.char_indices();
        let end = loop {
            match letters.next().expect("a value ends with a quote") {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next().map(|(_, letter)| letter) {
                    Some('n') => '\n',
                    Some(letter @ ('"' | '\\')) => letter,
                    other => panic!("no such escape: {other:?}"),
                }),
                (_, '\n') => panic!("a line ends within a value"),
                (_, letter) => value.push(letter),
            }
        };
        assert!(
            labels.insert(name.to_owned(), value).is_none(),
            "{name} twice"
        );
        text = &rest[end + 1..];
        assert!(text.is_empty() || text.len() > 1 && text.starts_with(','));
        text = text.strip_prefix(',').unwrap_or(text);
    }
    labels
}

/// Parses the format strictly, and panics if a rule is broken.
fn parse(text: &str, syntax: Syntax) -> Series {
    let mut series = Series::new();
    let mut families = BTreeSet::new();
    let mut family = (String::new(), String::new());
    let mut ended = false;
    for line in text.split_terminator('\n') {
        assert!(!ended, "nothing follows the end");
        if line == "# EOF" {
            assert_eq!(syntax, Syntax::OpenMetrics);
            ended = true;
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("help");
            assert!(
                families.insert(name.to_owned()),
                "{name}: families are of one piece"
            );
            assert!(!help.is_empty());
            family = (name.to_owned(), String::new());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, family.0);
            assert_eq!(
                syntax == Syntax::Prometheus && kind == "counter",
                name.ends_with("_total")
            );
            family.1 = kind.to_owned();
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').expect("a unit");
            assert_eq!(name, family.0);
            assert!(name.ends_with(&format!("_{unit}")));
        } else {
            // A label may contain anything, even braces and spaces; a number contains neither.
            let (head, value) = line.rsplit_once(' ').expect("a sample");
            let (name, inside) = match head.split_once('{') {
                Some((name, rest)) => (name, rest.strip_suffix('}').expect("a brace")),
                None => (head, ""),
            };
            let wanted = match (family.1.as_str(), syntax) {
                ("counter", Syntax::OpenMetrics) => format!("{}_total", family.0),
                _ => family.0.clone(),
            };
            assert_eq!(name, wanted);
            assert!(
                name.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let old = series.insert((name.to_owned(), labels(inside)), value);
            assert_eq!(old, None, "{line}: twice");
        }
    }
    assert_eq!(ended, syntax == Syntax::OpenMetrics);
    series
}

fn sum(series: &Series, name: &str, wanted: &[(&str, &str)]) -> f64 {
    let fits = |labels: &BTreeMap<String, String>| {
        wanted
            .iter()
            .all(|(key, value)| labels.get(*key).is_some_and(|v| v == value))
    };
    let values = series
        .iter()
        .filter(|((n, labels), _)| n == name && fits(labels));
    values.map(|(_, value)| value).sum()
}

#[test]
fn both_formats_are_well_formed_and_say_the_same() {
    let snapshot = demo::snapshot(9, 100_000);
    let new = parse(
        &text_of(&snapshot, ALL, Syntax::OpenMetrics),
        Syntax::OpenMetrics,
    );
    let old = parse(
        &text_of(&snapshot, ALL, Syntax::Prometheus),
        Syntax::Prometheus,
    );
    assert_eq!(new, old);
    let text = text_of(&snapshot, ALL, Syntax::OpenMetrics);
    assert!(text.contains("\nagewise_own_ticks_total 9\n"));
    assert!(new.len() > 200, "{}", new.len());
}

#[test]
fn what_is_followed_by_sample_is_told() {
    let mut snapshot = demo::snapshot(9, 100_000);
    snapshot.subjects[1].sampled_bytes = 7 << 20;
    let name = snapshot.subjects[1].name.to_string();
    let text = text_of(&snapshot, ALL, Syntax::Prometheus);
    let series = parse(&text, Syntax::Prometheus);
    let of = |name: &str| sum(&series, "agewise_sampled_bytes", &[("cgroup", name)]);
    assert_eq!(of(&name), f64::from(7 << 20));
    assert_eq!(of("/"), 0.0);
}

#[test]
fn containers_have_names_that_stay_and_one_series_with_those_that_do_not() {
    let mut snapshot = demo::snapshot(9, 100_000);
    let container = Container {
        namespace: Some("shop".into()),
        pod: Some("web-0".into()),
        container: Some("a\"\n\u{202e},}\\".into()),
        container_id: Some("0123".into()),
        image: Some("web:1".into()),
    };
    let shown = container.container.clone().unwrap().terminal().to_string();
    snapshot.subjects[2].container = Some(container);
    let series = parse(
        &text_of(&snapshot, ALL, Syntax::OpenMetrics),
        Syntax::OpenMetrics,
    );
    let stay = [
        ("namespace", "shop"),
        ("pod", "web-0"),
        ("container", &shown),
    ];
    let named = sum(&series, "agewise_resident_bytes", &stay);
    let whole = snapshot.subjects[2].resident_bytes().iter().sum::<u64>();
    assert_eq!(named, whole as f64);
    let all = [&stay[..], &[("container_id", "0123"), ("image", "web:1")]].concat();
    assert_eq!(sum(&series, "agewise_container_info", &all), 1.0);
    let with_id = |((_, labels), _): &(&(String, BTreeMap<_, _>), _)| labels.contains_key("image");
    assert_eq!(series.iter().filter(with_id).count(), 1);
}

#[test]
fn the_bins_are_resident_memory_and_values_those_of_the_snapshot() {
    let snapshot = demo::snapshot(9, 100_000);
    let series = parse(
        &text_of(&snapshot, ALL, Syntax::OpenMetrics),
        Syntax::OpenMetrics,
    );
    for subject in &snapshot.subjects {
        let key = if subject.is_cgroup {
            "cgroup"
        } else {
            "process"
        };
        let label = (key, &*subject.name);
        let [anon, file] = subject.resident_bytes();
        assert!(anon > 0 && file > 0);
        for name in ["agewise_age_bytes", "agewise_resident_bytes"] {
            assert_eq!(sum(&series, name, &[label, ("type", "anon")]), anon as f64);
            assert_eq!(sum(&series, name, &[label]), (anon + file) as f64);
        }
        let moved = sum(&series, "agewise_reclaimed_bytes_total", &[label]);
        assert_eq!(moved, subject.reclaimed.total_bytes() as f64);
        let back = sum(&series, "agewise_refaulted_bytes_total", &[label]);
        assert_eq!(back, subject.refaulted_bytes as f64);
    }
    let bin = [
        ("cgroup", "/web"),
        ("node", "1"),
        ("type", "file"),
        ("upper_ms", "+Inf"),
    ];
    let web = snapshot.subject("/web").unwrap().node(1).unwrap();
    let last = web.ages.bins().last().unwrap().amounts[1];
    assert_eq!(sum(&series, "agewise_age_bytes", &bin), last as f64);
    assert_eq!(sum(&series, "agewise_budget_ratio", &[]), 0.01);
    assert_eq!(sum(&series, "agewise_own_cpu_seconds_total", &[]), 0.4);
    let psi = sum(
        &series,
        "agewise_psi_avg10_ratio",
        &[("cgroup", "/web"), ("stall", "some")],
    );
    assert!((psi - snapshot.machine.psi.unwrap().some.avg10_percent / 100.0).abs() < 1e-12);
}

#[test]
fn the_rest_is_summed_once() {
    let snapshot = demo::snapshot(9, 100_000);
    let limits = Limits {
        subjects_max: 2,
        ..ALL
    };
    let series = parse(
        &text_of(&snapshot, limits, Syntax::OpenMetrics),
        Syntax::OpenMetrics,
    );
    let size = |name: &str| {
        let [anon, file] = snapshot.subject(name).unwrap().resident_bytes();
        (anon + file) as f64
    };
    let rest = size("/batch") + size("4711 (redis-server)");
    assert_eq!(
        sum(&series, "agewise_age_bytes", &[("cgroup", OTHER)]),
        rest
    );
    assert_eq!(
        sum(&series, "agewise_age_bytes", &[("cgroup", "/batch")]),
        0.0
    );
    assert_eq!(sum(&series, "agewise_targets_cut", &[]), 4.0);
}

/// The worth of a budget has series once it is known, and no series for what is not known.
#[test]
fn the_gain_of_a_budget_is_shown() {
    let mut snapshot = demo::snapshot(9, 100_000);
    let at = snapshot.subjects.iter().position(|s| &*s.name == "/web");
    let subject = &mut snapshot.subjects[at.unwrap()];
    subject.kernel_first = Some(KernelFirst {
        came_in_pages: 1,
        until_pages: 4,
    });
    subject.budget_gain = Some(Gain {
        verdict: Verdict::Back,
        pairs: 4,
        faults_change: Some(Change {
            mean: -0.18,
            half: 0.03,
        }),
        cpu_change: None,
        time_change: None,
    });
    let text = text_of(&snapshot, ALL, Syntax::OpenMetrics);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("agewise_budget_") && line.contains("cgroup="))
        .collect();
    assert_eq!(
        lines,
        [
            "agewise_budget_kernel_first_ratio{cgroup=\"/web\"} 0.25",
            "agewise_budget_stepped_back{cgroup=\"/web\"} 1",
            "agewise_budget_pairs{cgroup=\"/web\"} 4",
            "agewise_budget_faults_change_ratio{cgroup=\"/web\"} -0.18",
            "agewise_budget_faults_change_half_ratio{cgroup=\"/web\"} 0.03",
        ]
    );
    let mut bytes = Vec::new();
    agewise_cli::output::json(&mut bytes, &snapshot).unwrap();
    assert_eq!(
        serde_json::from_slice::<Snapshot>(&bytes).unwrap(),
        snapshot
    );
}

#[test]
fn who_names_openmetrics_gets_it() {
    for (accept, wanted) in [
        (
            "application/openmetrics-text; version=1.0.0,text/plain;q=0.5",
            Syntax::OpenMetrics,
        ),
        (
            "text/plain, application/openmetrics-text;q=0.1",
            Syntax::OpenMetrics,
        ),
        ("application/openmetrics-text;q=0", Syntax::Prometheus),
        ("*/*", Syntax::Prometheus),
        ("", Syntax::Prometheus),
        (
            "text/html,application/xhtml+xml,*/*;q=0.8",
            Syntax::Prometheus,
        ),
    ] {
        assert_eq!(Syntax::accepted(accept), wanted, "{accept}");
    }
}

/// `report`, the metrics and the page use the same name for a cgroup: what is not UTF-8 is escaped
/// once.
#[test]
fn a_name_that_is_not_utf8_is_escaped_once() {
    let mut snapshot = demo::snapshot(3, 50_000);
    snapshot.subjects.truncate(1);
    snapshot.subjects[0].name = Arc::from(r"/hog\xff");
    let text = text_of(&snapshot, ALL, Syntax::OpenMetrics);
    assert!(text.contains(r#"cgroup="/hog\\xff""#), "{text}");
    assert!(!text.contains("x5c"), "{text}");
}

proptest! {
    /// Cgroups may have any name: each is shown as on a terminal, with nothing hidden.
    #[test]
    fn any_name_survives(name in "(?s).{0,40}", tail in "[\\\\\"\n{}, =#\r]{0,12}") {
        let mut snapshot = demo::snapshot(3, 50_000);
        let name = format!("/x{name}{tail}");
        snapshot.subjects.truncate(2);
        snapshot.subjects[1].name = Arc::from(name.as_str());
        for syntax in [Syntax::OpenMetrics, Syntax::Prometheus] {
            let text = text_of(&snapshot, ALL, syntax);
            let series = parse(&text, syntax);
            let hidden = |c: char| c != '\n' && agewise_host::untrusted::is_hidden(c);
            prop_assert!(!text.contains(hidden));
            let shown = cgroup::name::shown(&name).terminal().to_string();
            let found = sum(&series, "agewise_resident_bytes", &[("cgroup", &shown)]);
            let [anon, file] = snapshot.subjects[1].resident_bytes();
            prop_assert_eq!(found, (anon + file) as f64);
        }
    }

    #[test]
    fn any_accept_is_read(accept in "[ -~]{0,80}") {
        let _ = Syntax::accepted(&accept);
    }
}
