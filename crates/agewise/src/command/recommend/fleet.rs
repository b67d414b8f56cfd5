// SPDX-License-Identifier: Apache-2.0
//! Observations of the cgroups of many machines, from their daemons' metrics in a
//! Prometheus-compatible server.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::resume_unwind;

use agewise_cli::units;
use agewise_host::container::Container;
use agewise_policy::whatif::Estimate;
use agewise_policy::whatif::recommend::{Cost, Time};
use anyhow::bail;

use super::server::{Answer, Key, Point, Server};
use super::{Args, Seen};

/// Labels that name the container or pod of a cgroup, or those of the scraped daemon.
const NAMES: [&str; 3] = ["namespace", "pod", "container"];

/// What is known about one cgroup of one machine. The labels of its series change when its names
/// become known, or when the daemon runs in another pod.
#[derive(Debug, Default)]
struct Found {
    container: Option<Container>,
    /// Whether it has a current value.
    is_current: bool,
    full_bytes: f64,
    beyond_bytes: f64,
    hours: f64,
    /// Share of time spent waiting in the worst period, `[likely, upper bound]`, by memory size in
    /// thousandths of the peak resident size.
    worst: BTreeMap<u64, [f64; 2]>,
}

/// A cgroup is there if it had a curve within this time.
const CURRENT_S: u64 = 3600;

/// Returns all cgroups that the server knows.
pub(super) fn all(url: &str, args: &Args) -> anyhow::Result<Vec<Seen>> {
    let server = Server::new(url)?;
    let labels = args.matching.as_deref().unwrap_or("");
    let over = format!("{}s", args.over.as_secs().max(1));
    let metric = |name: &str| format!("agewise_whatif_{name}{{{labels}}}");
    let most = |name: &str| format!("max_over_time({}[{over}])", metric(name));
    let queries = [
        most("full_bytes"),
        most("beyond_bytes"),
        format!("count_over_time(({})[{over}:1h])", metric("full_bytes")),
        most("wait_ratio"),
        most("wait_high_ratio"),
        // A daemon that was restarted has no curves for some looks.
        format!(
            "last_over_time({}[{}s])",
            metric("full_bytes"),
            args.over.as_secs().clamp(1, CURRENT_S)
        ),
    ];
    // Query in parallel, to use all of the server's processors.
    let answers = std::thread::scope(|scope| {
        let server = &server;
        let asked = queries
            .iter()
            .map(|query| scope.spawn(move || server.ask(query)));
        let asked: Vec<_> = asked.collect();
        let answers = asked.into_iter().map(|asked| asked.join());
        let answers = answers.map(|answer| answer.unwrap_or_else(|panic| resume_unwind(panic)));
        answers.collect::<anyhow::Result<Vec<Answer>>>()
    })?;
    let warnings: BTreeSet<&String> = answers.iter().flat_map(|one| &one.warnings).collect();
    for warning in warnings {
        agewise_cli::note!(
            "{url}: machines or times may be missing from what follows, since the server says: \
             {warning}"
        );
    }
    let mut all = by_cgroup(answers.into_iter().map(|one| one.points).collect());
    all.retain(|_, found| found.full_bytes > 0.0);
    if all.is_empty() {
        bail!(
            "{url} has no agewise_whatif_full_bytes{{{labels}}} within {}: does it scrape the \
             daemons (metrics.enabled)?",
            units::duration_text(args.over),
        );
    }
    Ok(all
        .into_iter()
        .filter_map(|(key, found)| seen(&key, found))
        .collect())
}

/// Merges the answers, given in the order of the queries, by cgroup.
fn by_cgroup(answers: Vec<Vec<Point>>) -> BTreeMap<Key, Found> {
    let keys = answers.iter().flatten().map(|point| &point.key);
    let daemons = keys.filter(|key| is_renamed(key)).map(pod).collect();
    let mut all: BTreeMap<Key, Found> = BTreeMap::new();
    for (number, points) in answers.into_iter().enumerate() {
        for Point {
            mut key,
            size,
            value,
        } in points
        {
            let container = container(&key, &daemons);
            key.retain(|label, _| {
                let bare = label.strip_prefix("exported_").unwrap_or(label);
                !NAMES.contains(&bare)
            });
            let found = all.entry(key).or_default();
            found.name(container);
            let most = |held: &mut f64| *held = held.max(value);
            match (number, size) {
                (0, None) => most(&mut found.full_bytes),
                (1, None) => most(&mut found.beyond_bytes),
                (2, None) => found.hours += value,
                (3, Some(size)) => most(&mut found.worst.entry(size).or_default()[0]),
                (4, Some(size)) => most(&mut found.worst.entry(size).or_default()[1]),
                (5, None) => found.is_current = true,
                _ => {}
            }
        }
    }
    all
}

impl Found {
    /// Replaces the names if the new ones are more complete.
    fn name(&mut self, container: Option<Container>) {
        let known = |of: &Option<Container>| {
            let names = of
                .as_ref()
                .map(|of| [&of.namespace, &of.pod, &of.container]);
            names.map_or(0, |names| {
                names.iter().filter(|name| name.is_some()).count()
            })
        };
        if known(&container) > known(&self.container) {
            self.container = container;
        }
    }
}

fn seen(key: &Key, found: Found) -> Option<Seen> {
    // A process has no limit to set, and series without a cgroup belong to nobody.
    let cgroup = key
        .get("cgroup")
        .filter(|name| name.starts_with('/'))?
        .clone();
    let costs = found.worst.iter().map(|(size, [likely, high])| Cost {
        memory_bytes: (found.full_bytes * *size as f64 / 1000.0) as u64,
        wait: Estimate {
            low: 0.0,
            likely: *likely,
            high: high.max(*likely),
        },
    });
    let time = Time {
        observed_ms: (found.hours * 3_600_000.0) as u64,
        full_bytes: found.full_bytes as u64,
        beyond_bytes: found.beyond_bytes as u64,
        unused_bytes: 0,
        costs: costs.collect(),
    };
    Some(Seen {
        host: key.get("instance").cloned(),
        cgroup,
        container: found.container,
        gone: !found.is_current,
        limit_now_bytes: None,
        recent: Vec::new(),
        longer: vec![time],
        knows_unused: false,
        unseen_processes: None,
    })
}

/// Whether the server added labels of the same names for the daemon's own pod: it renamed ours to
/// `exported_*` then (unless `honor_labels` is set).
fn is_renamed(key: &Key) -> bool {
    ["exported_namespace", "exported_pod"]
        .iter()
        .any(|label| key.contains_key(*label))
}

/// The namespace and pod of the labels that are not renamed.
fn pod(key: &Key) -> [Option<String>; 2] {
    ["namespace", "pod"].map(|label| key.get(label).cloned())
}

/// The container or pod named by the daemon's labels. A series that has none may have those of
/// the pod of one of the `daemons`.
fn container(key: &Key, daemons: &HashSet<[Option<String>; 2]>) -> Option<Container> {
    let prefix = match is_renamed(key) {
        true => "exported_",
        false if daemons.contains(&pod(key)) => return None,
        false => "",
    };
    let label = |name: &str| {
        let value = key.get(&format!("{prefix}{name}"))?;
        (!value.is_empty()).then(|| value.as_str().into())
    };
    let found = Container {
        namespace: label("namespace"),
        pod: label("pod"),
        container: label("container"),
        ..Container::default()
    };
    (found != Container::default()).then_some(found)
}

#[cfg(test)]
mod tests {
    use agewise_policy::whatif::recommend::{Basis, Wanted, recommend};

    use super::*;

    fn labels(of: &[(&str, &str)]) -> Key {
        let of = of.iter();
        of.map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    fn key(cgroup: &str) -> Key {
        labels(&[("cgroup", cgroup), ("instance", "a:9779")])
    }

    /// A value of `cgroup` with more labels.
    fn point(cgroup: &str, more: &[(&str, &str)], size: Option<u64>, value: f64) -> Point {
        Point {
            key: key(cgroup).into_iter().chain(labels(more)).collect(),
            size,
            value,
        }
    }

    #[test]
    fn an_infinite_bound_is_none() {
        let found = |hours| Found {
            container: None,
            is_current: true,
            full_bytes: 1000.0,
            beyond_bytes: 5.0,
            hours,
            worst: BTreeMap::from([
                (500, [0.0, f64::INFINITY]),
                (750, [0.0, 0.001]),
                (1000, [0.0, 0.0]),
            ]),
        };
        let wanted = Wanted {
            wait_max: 0.002,
            history_ms: 86_400_000,
        };
        let of = |found: Found| {
            let seen = seen(&key("/web"), found).unwrap();
            assert_eq!(seen.host.as_deref(), Some("a:9779"));
            let said = recommend(&[], &seen.longer, wanted).unwrap();
            (said.request_bytes, said.basis)
        };
        assert_eq!(of(found(30.0)), (755, Basis::Curve));
        assert_eq!(of(found(23.0)), (1005, Basis::ShortHistory));
        assert_eq!(seen(&key("other"), found(30.0)), None);
    }

    #[test]
    fn a_cgroup_is_one_whenever_its_names_became_known() {
        let point = |names: &[_], size, value| point("/pods/1", names, size, value);
        let pod = [("namespace", "shop"), ("pod", "web-0")];
        let whole = [pod[0], pod[1], ("container", "nginx")];
        let each = |size, values: [f64; 3]| {
            let names: [&[(&str, &str)]; 3] = [&[], &whole, &pod];
            let points = names.into_iter().zip(values);
            points
                .map(|(names, value)| point(names, size, value))
                .collect::<Vec<_>>()
        };
        let answers = vec![
            each(None, [100.0, 300.0, 200.0]),
            each(None, [3.0, 1.0, 2.0]),
            each(None, [1.0, 20.0, 4.0]),
            each(Some(500), [0.1, 0.3, 0.2]),
            each(Some(500), [0.4, f64::INFINITY, 0.2]),
        ];
        let past: Vec<Found> = by_cgroup(answers.clone()).into_values().collect();
        assert!(!past[0].is_current);
        let now = vec![point(&whole, None, 300.0)];
        let answers = [answers, vec![now]].concat();
        let all: Vec<Found> = by_cgroup(answers).into_values().collect();
        let [one] = &all[..] else { panic!("{all:?}") };
        assert!(one.is_current);
        assert_eq!(
            (one.full_bytes, one.beyond_bytes, one.hours),
            (300.0, 3.0, 25.0)
        );
        assert_eq!(one.worst[&500], [0.3, f64::INFINITY]);
        let title = one.container.as_ref().and_then(Container::title);
        assert_eq!(title, Some("shop/web-0/nginx".into()));

        // The daemon was first scraped with its own names, and later ran in another pod.
        let renamed = |of: &'static str| {
            [
                ("pod", of),
                ("exported_namespace", "shop"),
                ("exported_pod", "web-0"),
            ]
        };
        let scraped = [
            point(&renamed("agewise-a"), None, 1.0),
            point(&renamed("agewise-b"), None, 2.0),
        ];
        let all: Vec<Found> = by_cgroup(vec![scraped.into()]).into_values().collect();
        let [one] = &all[..] else { panic!("{all:?}") };
        let title = one.container.as_ref().and_then(Container::title);
        assert_eq!((one.full_bytes, title), (2.0, Some("shop/web-0".into())));
    }

    #[test]
    fn labels_name_containers_and_exported_ones_before_those_of_the_daemon() {
        let scraped = [
            ("namespace", "monitoring"),
            ("pod", "agewise-x7"),
            ("container", "agewise"),
        ];
        let named = [("exported_namespace", "shop"), ("exported_pod", "web-0")];
        let named = [&scraped[..], &named].concat();
        // One server may keep the labels of one daemon and rename those of another.
        let of = |labels: &[_]| {
            let points = [("/x", labels), ("/other", &named)];
            let points = points.map(|(cgroup, labels)| point(cgroup, labels, None, 1.0));
            let mut all = by_cgroup(vec![points.into()]);
            let found = all.remove(&key("/x")).unwrap();
            found.container.and_then(|of| of.title())
        };
        let web = [
            ("namespace", "shop"),
            ("pod", "web-0"),
            ("container", "nginx"),
        ];
        assert_eq!(of(&web), Some("shop/web-0/nginx".into()));
        assert_eq!(of(&[("pod", "")]), None);
        assert_eq!(of(&scraped), None);
        assert_eq!(of(&named), Some("shop/web-0".into()));
    }
}
