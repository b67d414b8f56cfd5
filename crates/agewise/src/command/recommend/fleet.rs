// SPDX-License-Identifier: Apache-2.0
//! What was seen of the cgroups of many machines, from the metrics of their daemons in a
//! Prometheus-compatible server.

use std::collections::BTreeMap;
use std::time::Duration;

use agewise_policy::whatif::Estimate;
use agewise_policy::whatif::recommend::{Cost, Time};
use anyhow::{Context, bail};
use serde::Deserialize;

use super::{Args, Seen};

/// An answer takes no longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// No answer is larger: a million series.
const ANSWER_MAX_BYTES: u64 = 512 << 20;

#[derive(Debug, Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    /// Time and value, the value as text.
    value: (f64, String),
}

/// One cgroup of one machine: all labels but the size.
type Key = BTreeMap<String, String>;

/// Waiting at one size, in the worst of the times.
#[derive(Debug, Default)]
struct Worst {
    likely: f64,
    /// `None`: in no time a bound was known.
    high: Option<f64>,
    bounded: f64,
    samples: f64,
}

#[derive(Debug, Default)]
struct Found {
    full_bytes: f64,
    beyond_bytes: f64,
    hours: f64,
    /// By size in thousandths of what was resident at most.
    worst: BTreeMap<u64, Worst>,
}

/// All cgroups that the server knows.
pub(super) fn all(url: &str, args: &Args) -> anyhow::Result<Vec<Seen>> {
    let server = Server::new(url)?;
    let labels = args.matching.as_deref().unwrap_or("");
    let over = format!("{}s", args.over.as_secs().max(1));
    let metric = |name: &str| format!("agewise_whatif_{name}{{{labels}}}");
    let range = |function: &str, name: &str| format!("{function}({}[{over}])", metric(name));
    let mut all: BTreeMap<Key, Found> = BTreeMap::new();
    server.each(&range("max_over_time", "full_bytes"), |key, _, value| {
        all.entry(key).or_default().full_bytes = value;
    })?;
    if all.is_empty() {
        bail!(
            "{url} has no agewise_whatif_full_bytes{{{labels}}} within {over}: does it scrape the \
             daemons (metrics.enabled)?"
        );
    }
    server.each(&range("max_over_time", "beyond_bytes"), |key, _, value| {
        all.entry(key).or_default().beyond_bytes = value;
    })?;
    let hours = format!("count_over_time(({})[{over}:1h])", metric("full_bytes"));
    server.each(&hours, |key, _, value| {
        all.entry(key).or_default().hours = value;
    })?;
    let mut sized = |query: &str, set: &mut dyn FnMut(&mut Worst, f64)| {
        server.each(query, |key, size, value| {
            if let Some(size) = size {
                let found = all.entry(key).or_default();
                set(found.worst.entry(size).or_default(), value);
            }
        })
    };
    sized(
        &range("max_over_time", "wait_ratio"),
        &mut |worst, value| worst.likely = value,
    )?;
    sized(
        &range("max_over_time", "wait_high_ratio"),
        &mut |worst, value| {
            worst.high = Some(value);
        },
    )?;
    // A bound is left out where there is none: it has to be there as often as what it bounds.
    sized(
        &range("count_over_time", "wait_ratio"),
        &mut |worst, value| worst.samples = value,
    )?;
    sized(
        &range("count_over_time", "wait_high_ratio"),
        &mut |worst, value| {
            worst.bounded = value;
        },
    )?;
    Ok(all
        .into_iter()
        .filter_map(|(key, found)| seen(key, &found))
        .collect())
}

fn seen(key: Key, found: &Found) -> Option<Seen> {
    // Of processes there is no limit to set, and the rest is nobody's.
    let cgroup = key
        .get("cgroup")
        .filter(|name| name.starts_with('/'))?
        .clone();
    let costs = found.worst.iter().map(|(size, worst)| Cost {
        memory_bytes: (found.full_bytes * *size as f64 / 1000.0) as u64,
        wait: Estimate {
            low: 0.0,
            likely: worst.likely,
            high: match worst.high {
                Some(high) if worst.bounded >= worst.samples => high.max(worst.likely),
                _ => f64::INFINITY,
            },
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
        limit_now_bytes: None,
        recent: Vec::new(),
        longer: vec![time],
        knows_unused: false,
    })
}

struct Server {
    agent: ureq::Agent,
    url: String,
}

impl Server {
    fn new(url: &str) -> anyhow::Result<Self> {
        if !url.starts_with("http://") {
            bail!(
                "{url}: only http:// is spoken here; what needs encryption or a password goes \
                 through a proxy that has both"
            );
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0);
        Ok(Server {
            agent: config.build().into(),
            url: format!("{}/api/v1/query", url.trim_end_matches('/')),
        })
    }

    /// Asks, and hands over each series: its labels without the size, its size in thousandths, and
    /// its value now.
    fn each(&self, query: &str, mut take: impl FnMut(Key, Option<u64>, f64)) -> anyhow::Result<()> {
        let asked = || format!("{}: {query}", self.url);
        let mut response = self
            .agent
            .get(&self.url)
            .query("query", query)
            .call()
            .with_context(asked)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_MAX_BYTES);
        let text = body.read_to_vec().with_context(asked)?;
        let answer: Answer = serde_json::from_slice(&text).map_err(|error| {
            anyhow::anyhow!("{}: no answer of a Prometheus ({status}): {error}", asked())
        })?;
        let Some(data) = answer.data.filter(|_| answer.status == "success") else {
            bail!("{}: {}", asked(), answer.error);
        };
        for mut series in data.result {
            series.metric.remove("__name__");
            let size = series.metric.remove("size_ratio");
            let size = size.and_then(|size| size.parse::<f64>().ok());
            let size = size.map(|size| (size * 1000.0).round() as u64);
            if let Some(value) = series
                .value
                .1
                .parse()
                .ok()
                .filter(|value: &f64| value.is_finite())
            {
                take(series.metric, size, value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use agewise_policy::whatif::recommend::{Basis, Wanted, recommend};

    use super::*;

    fn key(cgroup: &str) -> Key {
        let labels = [("cgroup", cgroup), ("instance", "a:9779")];
        labels
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    fn worst(likely: f64, high: Option<f64>, bounded: f64) -> Worst {
        Worst {
            likely,
            high,
            bounded,
            samples: 10.0,
        }
    }

    #[test]
    fn a_bound_that_was_missing_once_is_none() {
        let mut found = Found {
            full_bytes: 1000.0,
            beyond_bytes: 5.0,
            hours: 30.0,
            worst: BTreeMap::from([
                (500, worst(0.0, Some(0.001), 9.0)),
                (750, worst(0.0, Some(0.001), 10.0)),
                (1000, worst(0.0, Some(0.0), 10.0)),
            ]),
        };
        let wanted = Wanted {
            wait_max: 0.002,
            history_ms: 86_400_000,
        };
        let of = |found: &Found| {
            let seen = seen(key("/web"), found).unwrap();
            assert_eq!(seen.host.as_deref(), Some("a:9779"));
            let said = recommend(&[], &seen.longer, wanted).unwrap();
            (said.request_bytes, said.basis)
        };
        assert_eq!(of(&found), (755, Basis::Curve));
        found.hours = 23.0;
        assert_eq!(of(&found), (1005, Basis::ShortHistory));
        assert_eq!(seen(key("other"), &found), None);
    }

    /// Answers one request with this, and hands back what it was.
    fn serve(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (url, served)
    }

    #[test]
    fn answers_are_read_and_errors_said() {
        let (url, served) = serve(
            r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"__name__":"x","cgroup":"/a","size_ratio":"0.75"},"value":[1.5,"2e3"]},
            {"metric":{"cgroup":"/b"},"value":[1.5,"NaN"]}]}}"#,
        );
        let mut taken = Vec::new();
        let server = Server::new(&url).unwrap();
        server
            .each("x[1s]", |key, size, value| taken.push((key, size, value)))
            .unwrap();
        let labels = Key::from([("cgroup".to_owned(), "/a".to_owned())]);
        assert_eq!(taken, [(labels, Some(750), 2000.0)]);
        let request = served.join().unwrap();
        assert!(
            request.starts_with("GET /api/v1/query?query=x%5B1s%5D "),
            "{request}"
        );
        for (answer, said) in [
            (
                r#"{"status":"error","error":"too many samples"}"#,
                "too many samples",
            ),
            ("<html>", "no answer of a Prometheus"),
        ] {
            let (url, served) = serve(answer);
            let error = Server::new(&url)
                .unwrap()
                .each("x", |_, _, _| {})
                .unwrap_err();
            assert!(format!("{error:#}").contains(said), "{error:#}");
            served.join().unwrap();
        }
        assert!(Server::new("https://x").is_err());
    }
}
