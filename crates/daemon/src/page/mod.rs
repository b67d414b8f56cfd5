// SPDX-License-Identifier: Apache-2.0
//! The answers at the port: metrics, the page, and the JSON that the page displays.
//!
//! The page consists of three files that are part of the program, and loads nothing else.

mod json;

use std::sync::Arc;
use std::time::Duration;

use super::http::{Answer, Request, Response};
use super::metrics::families::families;
use super::metrics::shown::{Chooser, Limits, Shown};
use super::metrics::text::{self, Syntax};
use super::state::{Budget, Hub, Snapshot};

const HTML: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");
const ICON: &str = include_str!("icon.svg");

/// A daemon that publishes nothing for this long, and for this many of its ticks, hangs. The first
/// look, and one of a machine without memory, may take minutes.
const SILENT: Duration = Duration::from_secs(300);
const SILENT_TICKS: u64 = 5;

const JSON: &str = "application/json";

/// Answers from the latest snapshot. What was rendered is kept until the next snapshot, so that
/// frequent requests cost little.
pub struct Pages {
    hub: Hub,
    chooser: Chooser,
    made: Made,
}

/// What has been rendered from one snapshot so far.
#[derive(Default)]
struct Made {
    sequence: Option<u64>,
    open_metrics: Option<Arc<[u8]>>,
    prometheus: Option<Arc<[u8]>>,
    snapshot: Option<Arc<[u8]>>,
}

impl Pages {
    /// Answers for this hub, within these limits. The time line begins now.
    pub fn new(hub: Hub, limits: Limits) -> Self {
        hub.keep_timeline();
        Pages {
            hub,
            chooser: Chooser::new(limits),
            made: Made::default(),
        }
    }

    fn current(&mut self) -> (Arc<Snapshot>, Arc<Shown>) {
        let snapshot = self.hub.snapshot();
        if self.made.sequence != Some(snapshot.sequence) {
            self.made = Made {
                sequence: Some(snapshot.sequence),
                ..Made::default()
            };
        }
        let shown = self.chooser.choose(&snapshot);
        (snapshot, shown)
    }

    fn metrics(&mut self, syntax: Syntax) -> Response {
        let (snapshot, shown) = self.current();
        let made = match syntax {
            Syntax::OpenMetrics => &mut self.made.open_metrics,
            Syntax::Prometheus => &mut self.made.prometheus,
        };
        let body = made.get_or_insert_with(|| {
            text::render(families(&snapshot, &shown), syntax)
                .into_bytes()
                .into()
        });
        Response::ok(syntax.media_type(), Arc::clone(body))
    }

    fn snapshot(&mut self) -> Response {
        let (snapshot, shown) = self.current();
        let made = &mut self.made.snapshot;
        let body = made.get_or_insert_with(|| json::snapshot(&snapshot, &shown).into());
        Response::ok(JSON, Arc::clone(body))
    }

    /// 200 if the daemon is able to do its job, otherwise 503 with one line per reason.
    fn health(&self) -> Response {
        let reasons = self.hub.health().reasons();
        match reasons.is_empty() {
            true => Response::plain(200, "ok"),
            false => Response::plain(503, &reasons.join("\n")),
        }
    }

    /// 200 as long as the daemon looks: whatever [`health`](Self::health) complains about, killing
    /// it would not help. Another process answers, which notices a daemon that hangs by its
    /// silence.
    fn life(&self) -> Response {
        let silent = self.hub.silent_for();
        match silent <= patience(self.hub.snapshot().budget) {
            true => Response::plain(200, "ok"),
            false => Response::plain(503, &format!("no look for {} s", silent.as_secs())),
        }
    }

    fn timeline(&self, request: &Request) -> Response {
        let since = match request.parameter("since").map(|since| since.parse()) {
            None => 0,
            Some(Ok(sequence)) => sequence,
            Some(Err(_)) => return Response::plain(400, "since: the number of a snapshot"),
        };
        let moments = self.hub.timeline();
        let target = request.parameter("target");
        if let Some(target) = target.as_deref()
            && self.hub.snapshot().subject(target).is_none()
            && !moments.iter().any(|moment| moment.has(target))
        {
            return Response::plain(404, "target: no cgroup or process of this name is observed");
        }
        Response::ok(JSON, json::timeline(&moments, target.as_deref(), since))
    }
}

/// How long a daemon that looks at this pace may be silent.
fn patience(pace: Budget) -> Duration {
    let tick_ms = pace.tick_ms.max(pace.actual_ms);
    SILENT.max(Duration::from_millis(tick_ms.saturating_mul(SILENT_TICKS)))
}

impl Answer for Pages {
    fn answer(&mut self, request: &Request) -> Response {
        let fixed = |kind, text: &'static str| Response::ok(kind, text.as_bytes());
        match request.path.as_str() {
            "/" => fixed("text/html; charset=utf-8", HTML),
            "/page.js" => fixed("text/javascript; charset=utf-8", SCRIPT),
            "/page.css" => fixed("text/css; charset=utf-8", STYLE),
            "/icon.svg" => fixed("image/svg+xml", ICON),
            // Before the first look, an empty answer would look like an empty machine.
            "/metrics" | "/api/snapshot" | "/api/timeline" | "/readyz"
                if self.hub.snapshot().sequence == 0 =>
            {
                Response::plain(503, "the first look is not complete yet")
            }
            "/healthz" => self.health(),
            "/livez" => self.life(),
            "/readyz" => Response::plain(200, "ok"),
            "/metrics" => self.metrics(Syntax::accepted(&request.accept)),
            "/api/snapshot" => self.snapshot(),
            "/api/timeline" => self.timeline(request),
            _ => Response::plain(
                404,
                "not found; there are /, /healthz, /livez, /readyz, /metrics, /api/snapshot and \
                 /api/timeline?target=NAME&since=SEQUENCE",
            ),
        }
    }
}

#[cfg(test)]
mod tests;
