// SPDX-License-Identifier: Apache-2.0
//! Recommendations in Kubernetes formats: the status of a VerticalPodAutoscaler
//! (`autoscaling.k8s.io/v1`), and the report of robusta's krr.

use std::collections::{HashMap, HashSet};

use agewise_host::container::Container;
use agewise_host::untrusted::Untrusted;
use agewise_policy::whatif::history::name_hash;
use serde_json::{Value, json};

use super::{Args, Record};

/// One object per pod with all its containers, and one per other cgroup, unless they are gone and
/// were not asked for by name; a list if there are several.
pub(super) fn vpa(records: &[Record], is_named: bool) -> Value {
    let alive = records.iter().filter(|record| !record.gone);
    let alive: HashSet<_> = alive.filter_map(pod_of).collect();
    // A container of a living pod may have ended, or may have needed most before its restart.
    let is_alive =
        |record: &&Record| !record.gone || pod_of(record).is_some_and(|pod| alive.contains(&pod));
    let groups = groups(records);
    let shown = groups
        .iter()
        .filter(|of| is_named || of.iter().any(is_alive));
    let mut taken = HashSet::new();
    let mut items: Vec<Value> = shown.map(|of| vpa_of(of, &mut taken)).collect();
    match items.len() {
        1 => items.remove(0),
        _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}),
    }
}

/// The machine, namespace and name of a pod.
type Pod<'r> = (Option<&'r str>, Option<&'r Untrusted>, &'r Untrusted);

fn pod_of(record: &Record) -> Option<Pod<'_>> {
    let of = named(record)?;
    Some((
        record.host.as_deref(),
        of.namespace.as_ref(),
        of.pod.as_ref()?,
    ))
}

/// Groups the containers of each pod. The cgroups of the pod itself and of its sandbox are left out
/// if one of its containers is present: they have no container to give memory to.
fn groups(records: &[Record]) -> Vec<Vec<&Record>> {
    let with_containers: HashSet<_> = records
        .iter()
        .filter(|record| named(record).is_some_and(|of| of.container.is_some()))
        .filter_map(pod_of)
        .collect();
    let mut at = HashMap::new();
    let mut groups: Vec<Vec<&Record>> = Vec::new();
    for record in records {
        let pod = pod_of(record).filter(|pod| with_containers.contains(pod));
        match pod {
            None => groups.push(vec![record]),
            Some(_) if named(record).is_none_or(|of| of.container.is_none()) => {}
            Some(pod) => {
                let group = *at.entry(pod).or_insert(groups.len());
                match groups.get_mut(group) {
                    Some(group) => add(group, record),
                    None => groups.push(vec![record]),
                }
            }
        }
    }
    groups
}

/// A restarted container has had several cgroups: keep the one that needs most.
fn add<'r>(group: &mut Vec<&'r Record>, record: &'r Record) {
    let is_same = |other: &&mut &Record| container(other) == container(record);
    match group.iter_mut().find(is_same) {
        Some(other) if other.request_bytes < record.request_bytes => *other = record,
        Some(_) => {}
        None => group.push(record),
    }
}

fn named(record: &Record) -> Option<&Container> {
    record.container.as_ref()
}

/// A Kubernetes name as text; `None` if unknown.
fn text(name: Option<&Option<Untrusted>>) -> Option<String> {
    name?.as_ref().map(|name| name.terminal().to_string())
}

const OBJECT: &str = "VerticalPodAutoscaler";

/// `taken` has the namespaces and names of the objects so far.
fn vpa_of(records: &[&Record], taken: &mut HashSet<(Option<String>, String)>) -> Value {
    let first = records[0];
    let of = named(first);
    let namespace = text(of.map(|of| &of.namespace));
    let pod = text(of.map(|of| &of.pod));
    let path = [first.host.as_deref().unwrap_or(""), &first.cgroup].concat();
    let given = pod.as_deref().unwrap_or(&path);
    let target = object_name(given);
    let mut name = target.clone();
    // Of two objects with one name, `kubectl apply` would keep the last. Where more than slashes
    // was replaced, a hash follows whatever else is there: the name stays when the other comes.
    let is_exact = target == given.trim_start_matches('/').replace('/', "-");
    if !is_exact || !taken.insert((namespace.clone(), name.clone())) {
        name = object_name(&format!("{target}-{:08x}", name_hash(&path) as u32));
        taken.insert((namespace.clone(), name.clone()));
    }
    let mut conditions = vec![json!({"type": "RecommendationProvided", "status": "True"})];
    if let Some(short) = records.iter().find(|of| of.basis == "short_history") {
        conditions.push(json!({
            "type": "LowConfidence",
            "status": "True",
            "reason": "ShortHistory",
            "message": short.reason,
        }));
    }
    let join = |of: fn(&Record) -> &str| {
        let all: Vec<&str> = records.iter().map(|record| of(record)).collect();
        all.join("; ")
    };
    let mut metadata = json!({
        "name": name,
        "annotations": {
            "agewise/cgroup": join(|record| &record.cgroup),
            "agewise/reason": join(|record| &record.reason),
        },
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    let containers: Vec<Value> = records.iter().map(|of| container_of(of)).collect();
    json!({
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": OBJECT,
        "metadata": metadata,
        "spec": {
            "targetRef": {"apiVersion": "v1", "kind": "Pod", "name": target},
            "updatePolicy": {"updateMode": "Off"},
        },
        "status": {
            "conditions": conditions,
            "recommendation": {"containerRecommendations": containers},
        },
    })
}

fn container_of(record: &Record) -> Value {
    let memory = |bytes: u64| json!({"memory": bytes.to_string()});
    json!({
        "containerName": container(record),
        "lowerBound": memory(record.lower_bytes),
        "target": memory(record.request_bytes),
        "uncappedTarget": memory(record.curve_bytes),
        "upperBound": memory(record.limit_bytes),
    })
}

/// Longest object name.
const NAME_MAX: usize = 253;

/// Turns a path into a valid Kubernetes name (a DNS subdomain of RFC 1123), changing as little as
/// possible. A long path is cut at the front: its end is more specific.
fn object_name(path: &str) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '.') => c,
        _ => '-',
    };
    let name: String = path.chars().map(plain).collect();
    let name = &name[name.len().saturating_sub(NAME_MAX)..];
    // A label must not be empty, or begin or end with a dash.
    let labels = name.split('.').map(|label| label.trim_matches('-'));
    let labels: Vec<&str> = labels.filter(|label| !label.is_empty()).collect();
    match labels[..] {
        [] => "root".to_owned(),
        _ => labels.join("."),
    }
}

/// The name of the container, or one derived from its cgroup.
fn container(record: &Record) -> String {
    let name = text(named(record).map(|of| &of.container));
    name.unwrap_or_else(|| container_at(&record.cgroup))
}

/// The container id, as runtimes name cgroups: the last component of the path, without the
/// runtime's prefix and the unit suffix.
fn container_at(path: &str) -> String {
    let last = path
        .rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or("root");
    let last = last.strip_suffix(".scope").unwrap_or(last);
    let prefixes = ["cri-containerd-", "crio-", "docker-", "libpod-"];
    let bare = prefixes.iter().find_map(|prefix| last.strip_prefix(prefix));
    bare.unwrap_or(last).to_owned()
}

/// krr's severity of the difference between allocated and recommended memory, in MiB.
fn severity(record: &Record) -> &'static str {
    match record.saving_bytes.unsigned_abs() >> 20 {
        500.. => "CRITICAL",
        250.. => "WARNING",
        100.. => "OK",
        _ => "GOOD",
    }
}

/// The report of krr, for memory only.
pub(super) fn krr(records: &[Record], args: &Args) -> Value {
    let scans: Vec<Value> = records.iter().map(scan).collect();
    let cost = |record: &Record| match severity(record) {
        "CRITICAL" => 1.0,
        "WARNING" => 0.7,
        _ => 0.0,
    };
    let cost: f64 = records.iter().map(cost).sum();
    let count = records.len().max(1) as f64;
    json!({
        "scans": scans,
        "score": ((count - cost) / count * 100.0) as u64,
        "resources": ["cpu", "memory"],
        "description": "memory by what less of it would cost in waiting (agewise recommend)",
        "strategy": {
            "name": "agewise",
            "settings": {
                "target_wait_ratio": args.target_wait,
                "history_seconds": args.history.as_secs_f64(),
            },
        },
        "errors": [],
        "clusterSummary": {},
        "config": null,
    })
}

fn scan(record: &Record) -> Value {
    let severity = severity(record);
    let none = || json!({"value": null, "severity": "UNKNOWN"});
    let resource = |bytes: u64| {
        let memory = json!({"value": bytes as f64, "severity": severity});
        json!({"cpu": none(), "memory": memory})
    };
    let of = named(record);
    let pod = text(of.map(|of| &of.pod));
    let pods = pod
        .iter()
        .map(|pod| json!({"name": pod, "deleted": record.gone}));
    let pods: Vec<Value> = pods.collect();
    json!({
        "object": {
            "cluster": record.host,
            "name": pod.clone().unwrap_or_else(|| object_name(&record.cgroup)),
            "container": container(record),
            "pods": pods,
            "hpa": null,
            "namespace": text(of.map(|of| &of.namespace)).unwrap_or_default(),
            "kind": if pod.is_some() { "Pod" } else { "Cgroup" },
            "allocations": {
                "requests": {"cpu": null, "memory": record.resident_bytes as f64},
                "limits": {"cpu": null, "memory": record.limit_now_bytes.map(|bytes| bytes as f64)},
                "info": {},
            },
            "warnings": [],
            "labels": {},
            "annotations": {"agewise/cgroup": record.cgroup},
        },
        "recommended": {
            "requests": resource(record.request_bytes),
            "limits": resource(record.limit_bytes),
            "info": {"cpu": null, "memory": record.reason},
        },
        "severity": severity,
        "metrics": {},
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn containers_are_named_as_their_run_times_do() {
        for (path, name) in [
            (
                "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab12.scope",
                "ab12",
            ),
            ("/kubepods/burstable/podx/ab12", "ab12"),
            ("/system.slice/postgresql.service", "postgresql.service"),
            ("/", "root"),
        ] {
            assert_eq!(container_at(path), name);
        }
        assert_eq!(object_name("/kubepods.slice/a_B"), "kubepods.slice-a-b");
        assert_eq!(object_name("/"), "root");
    }

    fn record(cgroup: &str, names: Option<[Option<&str>; 4]>) -> Record {
        let name = |name: Option<&str>| name.map(Untrusted::from);
        Record {
            record: "recommendation",
            host: None,
            cgroup: cgroup.to_owned(),
            container: names.map(|[namespace, pod, container, id]| Container {
                namespace: name(namespace),
                pod: name(pod),
                container: name(container),
                container_id: name(id),
                image: None,
            }),
            gone: false,
            request_bytes: 2,
            limit_bytes: 4,
            lower_bytes: 1,
            curve_bytes: 2,
            resident_bytes: 3,
            limit_now_bytes: None,
            saving_bytes: 1,
            saving_per_month: None,
            target_wait_ratio: 0.002,
            wait_ratio: 0.0,
            wait_low: 0.0,
            wait_high: None,
            unused_bytes: None,
            unseen_processes: None,
            observed_seconds: 60.0,
            basis: "curve",
            reason: "because".to_owned(),
        }
    }

    #[test]
    fn containers_of_a_pod_are_one_object_and_it_and_its_sandbox_none() {
        let (shop, web) = (Some("shop"), Some("web-0"));
        let mut records = vec![
            record("/kubepods/p", Some([shop, web, None, None])),
            record("/kubepods/p/1", Some([shop, web, None, Some("1")])),
            record("/kubepods/p/2", Some([shop, web, Some("nginx"), Some("2")])),
            record("/kubepods/p/3", Some([shop, web, Some("log"), Some("3")])),
            record("/kubepods/p/0", Some([shop, web, Some("log"), Some("0")])),
            // A pod without containers, and the same names on another machine.
            record("/kubepods/q", Some([shop, Some("db-0"), None, None])),
            record(
                "/kubepods/r/4",
                Some([Some("test"), web, Some("nginx"), Some("4")]),
            ),
            record("/system.slice/x.service", None),
        ];
        // The container before its restart, and ones that have ended.
        records[4].gone = true;
        records.push(record(
            "/kubepods/r/5",
            Some([Some("test"), web, Some("nginx"), Some("5")]),
        ));
        records[6].gone = true;
        records[6].request_bytes = 3;
        let ended = Record {
            gone: true,
            ..record("/system.slice/y.service", None)
        };
        assert_eq!(vpa(std::slice::from_ref(&ended), true)["kind"], OBJECT);
        records.push(ended);
        let list = vpa(&records, false);
        let items = list["items"].as_array().unwrap();
        let seen = items.iter().map(|item| {
            let containers = &item["status"]["recommendation"]["containerRecommendations"];
            let names = containers.as_array().unwrap().iter();
            let names: Vec<&str> = names
                .filter_map(|of| of["containerName"].as_str())
                .collect();
            (
                item["metadata"]["namespace"].as_str().unwrap_or("-"),
                item["spec"]["targetRef"]["name"].as_str().unwrap_or("-"),
                names.join(","),
            )
        });
        let seen: Vec<_> = seen.collect();
        let expected = [
            ("shop", "web-0", "nginx,log"),
            ("shop", "db-0", "q"),
            ("test", "web-0", "nginx"),
            ("-", "system.slice-x.service", "x.service"),
        ];
        let expected = expected.map(|(space, name, all)| (space, name, all.to_owned()));
        assert_eq!(seen, expected);
        let object = &scan(&records[2])["object"];
        let fields = ["namespace", "name", "container", "kind"].map(|key| &object[key]);
        assert_eq!(fields, ["shop", "web-0", "nginx", "Pod"]);
        assert_eq!(object["pods"][0]["name"], "web-0");
        assert_eq!(scan(&records[7])["object"]["kind"], "Cgroup");
    }

    #[test]
    fn no_two_objects_have_one_name() {
        let names = |paths: &[&str]| {
            let records: Vec<Record> = paths.iter().map(|path| record(path, None)).collect();
            let list = vpa(&records, false);
            let items = list["items"].as_array().unwrap().iter();
            let names = items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
            names.collect::<Vec<String>>()
        };
        let alone = names(&["/a_b", "/c"]);
        let names = names(&["/a-b", "/a_b", "/a/b"]);
        assert_eq!((&*names[0], &names[1]), ("a-b", &alone[0]));
        for name in &names[1..] {
            let hash = name.strip_prefix("a-b-").expect("a hash follows");
            assert!(hash.len() == 8 && *name == object_name(name), "{name}");
        }
        assert_ne!(names[1], names[2]);
    }

    proptest! {
        #[test]
        fn any_name_is_made_one_of_an_object(path in "\\PC{0,400}") {
            let name = object_name(&path);
            prop_assert!(!name.is_empty() && name.len() <= NAME_MAX, "{name}");
            for label in name.split('.') {
                let is_plain = label.chars().all(|c| c.is_ascii_lowercase()
                    || c.is_ascii_digit() || c == '-');
                let ends = [label.chars().next(), label.chars().last()];
                let is_ended = ends.iter().all(|c| c.is_some_and(|c| c != '-'));
                prop_assert!(is_plain && is_ended, "{name}");
            }
        }
    }
}
