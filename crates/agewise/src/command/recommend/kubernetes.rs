// SPDX-License-Identifier: Apache-2.0
//! Recommendations in the forms of Kubernetes: the status of a VerticalPodAutoscaler
//! (`autoscaling.k8s.io/v1`), and the report of robusta's krr.

use serde_json::{Value, json};

use super::{Args, Record};

/// One object for each cgroup; several as a list.
pub(super) fn vpa(records: &[Record]) -> Value {
    let mut items: Vec<Value> = records.iter().map(vpa_of).collect();
    match items.len() {
        1 => items.remove(0),
        _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}),
    }
}

fn vpa_of(record: &Record) -> Value {
    let memory = |bytes: u64| json!({"memory": bytes.to_string()});
    let name = object_name(&[record.host.as_deref().unwrap_or(""), &record.cgroup].concat());
    let is_sure = record.basis != "short_history";
    let mut conditions = vec![json!({"type": "RecommendationProvided", "status": "True"})];
    if !is_sure {
        conditions.push(json!({
            "type": "LowConfidence",
            "status": "True",
            "reason": "ShortHistory",
            "message": record.reason,
        }));
    }
    json!({
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {
            "name": name,
            "annotations": {"agewise/cgroup": record.cgroup, "agewise/reason": record.reason},
        },
        "spec": {
            "targetRef": {"apiVersion": "v1", "kind": "Pod", "name": name},
            "updatePolicy": {"updateMode": "Off"},
        },
        "status": {
            "conditions": conditions,
            "recommendation": {"containerRecommendations": [{
                "containerName": container(&record.cgroup),
                "lowerBound": memory(record.lower_bytes),
                "target": memory(record.request_bytes),
                "uncappedTarget": memory(record.curve_bytes),
                "upperBound": memory(record.limit_bytes),
            }]},
        },
    })
}

/// Longest name of an object.
const NAME_MAX: usize = 253;

/// A name that Kubernetes takes (a DNS subdomain of RFC 1123), as near to a path as may be; its end
/// tells more than its beginning.
fn object_name(path: &str) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '.') => c,
        _ => '-',
    };
    let name: String = path.chars().map(plain).collect();
    let name = &name[name.len().saturating_sub(NAME_MAX)..];
    // No label between dots may begin or end with a dash, and none be empty.
    let labels = name.split('.').map(|label| label.trim_matches('-'));
    let labels: Vec<&str> = labels.filter(|label| !label.is_empty()).collect();
    match labels[..] {
        [] => "root".to_owned(),
        _ => labels.join("."),
    }
}

/// The container of a cgroup, by the names that container run times give: what comes after their
/// own name, without the ending of a unit.
fn container(path: &str) -> String {
    let last = path
        .rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or("root");
    let last = last.strip_suffix(".scope").unwrap_or(last);
    let prefixes = ["cri-containerd-", "crio-", "docker-", "libpod-"];
    let bare = prefixes.iter().find_map(|prefix| last.strip_prefix(prefix));
    bare.unwrap_or(last).to_owned()
}

/// What a difference between what is held and what is recommended is worth, MiB, as krr has it.
fn severity(record: &Record) -> &'static str {
    match record.saving_bytes.unsigned_abs() >> 20 {
        500.. => "CRITICAL",
        250.. => "WARNING",
        100.. => "OK",
        _ => "GOOD",
    }
}

/// The report of krr: memory only.
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
    json!({
        "object": {
            "cluster": record.host,
            "name": object_name(&record.cgroup),
            "container": container(&record.cgroup),
            "pods": [],
            "hpa": null,
            "namespace": "",
            "kind": "Cgroup",
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
            assert_eq!(container(path), name);
        }
        assert_eq!(object_name("/kubepods.slice/a_B"), "kubepods.slice-a-b");
        assert_eq!(object_name("/"), "root");
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
