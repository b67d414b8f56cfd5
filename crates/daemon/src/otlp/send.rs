// SPDX-License-Identifier: Apache-2.0
//! The process that sends metrics: it looks up where to, gives up everything but connections, and
//! sends each snapshot that it receives. What cannot be delivered before the next one is dropped
//! and counted.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::encode::{Request, Requests, attribute};
use super::sending::Sending;
use crate::metrics::families::families;
use crate::metrics::family::{Unit, counter};
use crate::metrics::shown::Chooser;
use crate::serve::{Calls, lock_in};
use crate::state::{Hub, Snapshot};

/// How often a request is made before its data is dropped.
const ATTEMPTS: u32 = 4;
/// The wait after the first attempt; each later one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait that a server can ask for, and longest between attempts to resolve a name.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// If nobody has answered for this long, the name may belong to another address by now.
const RESOLVED_FOR: Duration = Duration::from_secs(600);
const ADDRESSES_MAX: usize = 16;
/// The answer to a request is small.
const ANSWER_MAX_BYTES: u64 = 64 << 10;
/// Of a server's explanation.
const REASON_MAX_CHARS: usize = 200;

/// Starts to send what is published in the hub. The thread ends if the name of the endpoint has to
/// be resolved again, which only another process can do.
pub(crate) fn start(sending: Sending, hub: Hub) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("otlp".to_owned());
    thread.spawn(move || {
        let addresses = resolved(&sending);
        let mut collector = Collector::new(sending, addresses);
        lock_in(Calls::Connect);
        let mut sequence = 0;
        while !collector.has_moved() {
            if let Some(snapshot) = hub.wait_newer(sequence, RESOLVED_FOR) {
                sequence = snapshot.sequence;
                collector.send(&snapshot);
            }
        }
    })
}

/// Resolves the name of the endpoint, however long that takes.
fn resolved(sending: &Sending) -> Addresses {
    let authority = sending.endpoint.authority();
    let mut pause = PAUSE;
    let mut is_said = false;
    loop {
        let why = match authority.to_socket_addrs() {
            Ok(found) => {
                let found: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
                if !found.is_empty() {
                    return Addresses(found);
                }
                "it has no address".to_owned()
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut is_said, true) {
            agewise_cli::note!(
                "metrics.otlp: no metrics are sent while {authority} cannot be resolved ({why}); \
                 it is tried again"
            );
        }
        std::thread::sleep(pause);
        pause = pause.saturating_mul(2).min(PAUSE_MAX);
    }
}

/// The addresses that were found while files could still be opened.
#[derive(Clone, Debug)]
struct Addresses(Vec<SocketAddr>);

impl Resolver for Addresses {
    fn resolve(
        &self,
        _: &ureq::http::Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        self.0.iter().for_each(|address| found.push(*address));
        Ok(found)
    }
}

/// Who receives the metrics.
struct Collector {
    sending: Sending,
    agent: ureq::Agent,
    chooser: Chooser,
    resource: Resource,
    /// Points that were not delivered.
    lost: u64,
    /// Whether the last transmission failed, which has been reported.
    is_broken: bool,
    /// A server asked to be left alone until then.
    not_before: Instant,
    /// When it answered last.
    answered: Instant,
    is_name: bool,
}

impl Collector {
    fn new(sending: Sending, addresses: Addresses) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("agewise/", env!("CARGO_PKG_VERSION")));
        let is_name = sending.endpoint.authority().parse::<SocketAddr>().is_err();
        let connector = DefaultConnector::default();
        Collector {
            agent: ureq::Agent::with_parts(config.build(), connector, addresses),
            chooser: Chooser::new(sending.limits),
            resource: resource(&sending.attributes),
            lost: 0,
            is_broken: false,
            not_before: Instant::now(),
            answered: Instant::now(),
            is_name,
            sending,
        }
    }

    fn has_moved(&self) -> bool {
        self.is_name && self.is_broken && self.answered.elapsed() > RESOLVED_FOR
    }

    /// Sends a snapshot, until the next one is due.
    fn send(&mut self, snapshot: &Snapshot) {
        let deadline = Instant::now() + self.sending.interval;
        let shown = self.chooser.choose(snapshot);
        let mut families = VecDeque::from(families(snapshot, &shown));
        let lost = counter(
            "otlp_lost_points",
            Unit::None,
            "Values that could not be sent by OTLP since the process that sends them started",
        );
        families.push_front(lost.single(self.lost));
        let requests = Requests {
            families,
            resource: self.resource.clone(),
            since_unix_ms: self.sending.since_unix_ms,
            unix_ms: snapshot.unix_ms,
        };
        let mut trouble = None;
        let mut goes_on = self.not_before <= Instant::now();
        for request in requests {
            let delivered = match goes_on {
                true => self.deliver(&request, deadline),
                false => Err(Lost {
                    points: request.points,
                    why: None,
                    goes_on,
                }),
            };
            if let Err(lost) = delivered {
                goes_on = lost.goes_on;
                self.lost = self.lost.saturating_add(lost.points);
                trouble = trouble.or(lost.why);
            }
        }
        self.report(trouble, goes_on);
    }

    /// Says once that something is lost, and once that nothing is any more.
    fn report(&mut self, trouble: Option<String>, goes_on: bool) {
        let endpoint = &self.sending.endpoint;
        match (trouble, self.is_broken) {
            (Some(why), false) => {
                agewise_cli::note!(
                    "metrics.otlp: {endpoint} does not take all metrics: {why}; what cannot be \
                     delivered is dropped (agewise_otlp_lost_points_total)"
                );
                self.is_broken = true;
            }
            (None, true) if goes_on => {
                let lost = self.lost;
                agewise_cli::note!(
                    "metrics.otlp: {endpoint} takes all metrics again; {lost} values were dropped"
                );
                self.is_broken = false;
            }
            _ => {}
        }
    }

    fn deliver(&mut self, request: &Request, deadline: Instant) -> Result<(), Lost> {
        let mut pause = PAUSE;
        let mut attempt = 1;
        let points = request.points;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = match self.post(&request.body, left.min(self.sending.timeout)) {
                Ok(answer) => {
                    self.answered = Instant::now();
                    answer
                }
                Err(error) => Answer::Later(error.to_string(), None),
            };
            match answer {
                Answer::Taken => return Ok(()),
                Answer::Partly(rejected, why) => {
                    let points = rejected.min(points);
                    return Err(Lost {
                        points,
                        why: Some(why),
                        goes_on: true,
                    });
                }
                Answer::Refused(why, goes_on) => {
                    return Err(Lost {
                        points,
                        why: Some(why),
                        goes_on,
                    });
                }
                Answer::Later(why, asked) => {
                    let again = Instant::now() + asked.unwrap_or(pause);
                    if asked.is_some() {
                        self.not_before = again;
                    }
                    if attempt == ATTEMPTS || again >= deadline {
                        return Err(Lost {
                            points,
                            why: Some(why),
                            goes_on: false,
                        });
                    }
                    std::thread::sleep(again.saturating_duration_since(Instant::now()));
                    pause = pause.saturating_mul(2);
                    attempt += 1;
                }
            }
        }
    }

    fn post(&self, body: &[u8], within: Duration) -> Result<Answer, ureq::Error> {
        let mut request = self
            .agent
            .post(self.sending.endpoint.to_string())
            .header("content-type", "application/x-protobuf")
            .header("content-encoding", "gzip");
        for (name, value) in &self.sending.headers {
            request = request.header(name, value);
        }
        let within = within.max(Duration::from_millis(1));
        let request = request.config().timeout_global(Some(within)).build();
        let mut response = request.send(body)?;
        let header = |name: &str| {
            response
                .headers()
                .get(name)?
                .to_str()
                .ok()
                .map(str::to_owned)
        };
        let (kind, asked) = (header("content-type"), header("retry-after"));
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_MAX_BYTES);
        let body = body.read_to_vec().ok();
        Ok(Answer::of(
            status,
            kind.as_deref(),
            asked.as_deref(),
            body.as_deref(),
        ))
    }
}

/// What was not delivered.
struct Lost {
    points: u64,
    why: Option<String>,
    /// Whether the other requests of the snapshot may fare better.
    goes_on: bool,
}

/// What a server says.
enum Answer {
    Taken,
    /// All but so many points, and why.
    Partly(u64, String),
    /// Why, and whether only this request is refused.
    Refused(String, bool),
    /// Why not now, and after what time.
    Later(String, Option<Duration>),
}

/// An error as servers of OTLP explain it (`google.rpc.Status`).
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

impl Answer {
    /// `body` is `None` if it is too long or not complete.
    fn of(status: u16, kind: Option<&str>, asked: Option<&str>, body: Option<&[u8]>) -> Self {
        let is_json = kind.is_some_and(|kind| kind.starts_with("application/json"));
        let explained = |kind: &str| {
            let body = body.unwrap_or_default();
            let message = Status::decode(body).map(|status| status.message);
            let message = message.unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned());
            format!("{kind} {status}: {}", reason(&message))
                .trim_end_matches([':', ' '])
                .to_owned()
        };
        match (status, body) {
            (200..=299, None) => Answer::Later("its answer is not complete".to_owned(), None),
            (200..=299, Some(_)) if is_json => Answer::Taken,
            (200..=299, Some(body)) => match ExportMetricsServiceResponse::decode(body) {
                Ok(answer) => match answer.partial_success {
                    Some(partly) if partly.rejected_data_points > 0 => Answer::Partly(
                        partly.rejected_data_points.unsigned_abs(),
                        format!("it rejects some: {}", reason(&partly.error_message)),
                    ),
                    _ => Answer::Taken,
                },
                Err(_) => Answer::Refused("it does not answer as OTLP does".to_owned(), false),
            },
            (300..=399, _) => Answer::Refused(explained("it moved, status"), false),
            (429 | 502 | 503 | 504, _) => {
                let asked = asked.and_then(|asked| asked.trim().parse().ok());
                let asked = asked.map(|seconds| Duration::from_secs(seconds).min(PAUSE_MAX));
                Answer::Later(explained("it answers"), asked)
            }
            _ => Answer::Refused(explained("it answers"), status == 400),
        }
    }
}

/// A server's explanation as one line.
fn reason(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").chars().take(REASON_MAX_CHARS).collect()
}

/// What all metrics have in common.
fn resource(attributes: &str) -> Resource {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let given = attributes.split(',').filter_map(|pair| {
        // Percent-encoded, but a plus sign means itself.
        let (name, value) = pair.split_once('=')?;
        let text = format!("v={}", value.trim().replace('+', "%2B").replace('&', "%26"));
        let (_, value) = form_urlencoded::parse(text.as_bytes()).next()?;
        Some((name.trim().to_owned(), value.into_owned()))
    });
    let given: Vec<(String, String)> = given.collect();
    let host = given
        .iter()
        .find(|(name, _)| name == "host.name")
        .map_or_else(|| host.to_string(), |(_, value)| value.clone());
    let own = [
        ("service.name", "agewise"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        // Prometheus makes the label `instance` of this.
        ("service.instance.id", &host),
        ("host.name", &host),
    ];
    let own = own.iter().map(|(name, value)| (*name, *value));
    let own = own.filter(|(name, _)| !given.iter().any(|(given, _)| given == name));
    let given = given.iter().map(|(name, value)| (&**name, &**value));
    Resource {
        attributes: own
            .chain(given)
            .map(|(name, value)| attribute(name, value))
            .collect(),
        ..Resource::default()
    }
}

/// Reads an answer: its first byte selects the status, the rest is the body.
#[cfg(feature = "testing")]
pub(crate) fn fuzzed_answer(bytes: &[u8]) {
    const STATUS: [u16; 6] = [200, 204, 307, 400, 429, 503];
    let Some((&which, body)) = bytes.split_first() else {
        return;
    };
    let status = STATUS[usize::from(which) % STATUS.len()];
    let asked = String::from_utf8_lossy(body);
    match Answer::of(status, None, Some(&asked), Some(body)) {
        Answer::Later(_, Some(pause)) => assert!(pause <= PAUSE_MAX),
        Answer::Refused(why, _) | Answer::Partly(_, why) => {
            assert!(why.chars().count() < REASON_MAX_CHARS + 40)
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
