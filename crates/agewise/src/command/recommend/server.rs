// SPDX-License-Identifier: Apache-2.0
//! Asks a Prometheus-compatible server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

/// Timeout for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Largest answer accepted: about a million series.
const ANSWER_MAX_BYTES: u64 = 512 << 20;

/// The labels that identify a series without its size, or a cgroup of a machine: then without those
/// that name a container.
pub(super) type Key = BTreeMap<String, String>;

/// A value of a series, with its labels without the size, and its size in thousandths.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub key: Key,
    pub size: Option<u64>,
    pub value: f64,
}

/// The current value of each series of a query.
#[derive(Debug)]
pub(super) struct Answer {
    pub points: Vec<Point>,
    /// Why it may not be whole.
    pub warnings: Vec<String>,
}

pub(super) struct Server {
    agent: ureq::Agent,
    url: String,
}

#[derive(Debug, Deserialize)]
struct Body {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
    /// Of Prometheus and Thanos. Some servers write `null`.
    warnings: Option<Vec<String>>,
    /// Of VictoriaMetrics.
    #[serde(default, rename = "isPartial")]
    is_partial: bool,
}

#[derive(Debug, Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    /// Time, and the value as text.
    value: (f64, String),
}

impl Server {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        if !url.starts_with("http://") {
            agewise_cli::refuse!(
                "{url}: only http:// is supported; for encryption or a password use a proxy \
                 that has both"
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

    pub(super) fn ask(&self, query: &str) -> anyhow::Result<Answer> {
        let request = self.agent.get(&self.url).query("query", query);
        let mut response = request.call().with_context(|| self.url.clone())?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_MAX_BYTES);
        let text = body.read_to_vec().with_context(|| self.url.clone())?;
        let body: Body = serde_json::from_slice(&text).map_err(|error| {
            anyhow::anyhow!(
                "{}: not an answer from Prometheus ({status}): {error}",
                self.url
            )
        })?;
        let Some(data) = body.data.filter(|_| body.status == "success") else {
            bail!(
                "{}: the server refuses the query: {}; check --matching, or shorten --over",
                self.url,
                body.error
            );
        };
        let mut warnings = body.warnings.unwrap_or_default();
        if body.is_partial {
            warnings.push("the answer is partial".to_owned());
        }
        Ok(Answer {
            points: data.result.into_iter().filter_map(point).collect(),
            warnings,
        })
    }
}

fn point(mut series: Series) -> Option<Point> {
    series.metric.remove("__name__");
    let size = series.metric.remove("size_ratio");
    let size = size.and_then(|size| size.parse::<f64>().ok());
    let value: f64 = series.value.1.parse().ok()?;
    let point = Point {
        key: series.metric,
        size: size.map(|size| (size * 1000.0).round() as u64),
        value,
    };
    (!value.is_nan()).then_some(point)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with `answer`; the thread returns the request.
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
            r#"{"status":"success","warnings":null,"data":{"resultType":"vector","result":[
            {"metric":{"__name__":"x","cgroup":"/a","size_ratio":"0.75"},"value":[1.5,"2e3"]},
            {"metric":{"cgroup":"/b"},"value":[1.5,"NaN"]}]}}"#,
        );
        let taken = Server::new(&url).unwrap().ask("x[1s]").unwrap();
        let point = Point {
            key: BTreeMap::from([("cgroup".to_owned(), "/a".to_owned())]),
            size: Some(750),
            value: 2000.0,
        };
        assert_eq!(taken.points, [point]);
        assert!(taken.warnings.is_empty());
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
            ("<html>", "not an answer from Prometheus"),
            (
                r#"{"status":"success","data":{"resultType":"vector","result":[{"metr"#,
                "not an answer from Prometheus",
            ),
        ] {
            let (url, served) = serve(answer);
            let query = "max_over_time(x)";
            let error = Server::new(&url).unwrap().ask(query).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(said) && !error.contains(query), "{error}");
            served.join().unwrap();
        }
        assert!(Server::new("https://x").is_err());
    }

    #[test]
    fn an_answer_that_is_not_whole_says_so() {
        for (answer, said) in [
            (
                r#"{"status":"success","warnings":["store-2 does not answer"],
                "data":{"resultType":"vector","result":[]}}"#,
                "store-2 does not answer",
            ),
            (
                r#"{"status":"success","isPartial":true,
                "data":{"resultType":"vector","result":[]}}"#,
                "the answer is partial",
            ),
        ] {
            let (url, served) = serve(answer);
            let answer = Server::new(&url).unwrap().ask("x").unwrap();
            assert_eq!(answer.warnings, [said]);
            served.join().unwrap();
        }
    }
}
