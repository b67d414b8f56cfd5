// SPDX-License-Identifier: Apache-2.0
//! Metrics as text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{self, Registry};

use super::family::{Family, Kind, Unit, Value};

/// The prefix of every name.
pub(crate) const PREFIX: &str = "agewise";

/// One of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older format of Prometheus, which browsers display.
    Prometheus,
}

impl Syntax {
    /// The format for a client with this `Accept` header: OpenMetrics if the header names it.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let is_named = accept.split(',').any(|kind| {
            let mut parts = kind.split(';').map(str::trim);
            parts.next() == Some("application/openmetrics-text")
                && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
        });
        if is_named {
            Syntax::OpenMetrics
        } else {
            Syntax::Prometheus
        }
    }

    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Syntax::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Syntax::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

fn unit(unit: Unit) -> Option<registry::Unit> {
    match unit {
        Unit::Bytes => Some(registry::Unit::Bytes),
        Unit::Seconds => Some(registry::Unit::Seconds),
        Unit::Ratio => Some(registry::Unit::Other("ratio".to_owned())),
        Unit::None => None,
    }
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let unit = unit(family.unit);
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Buckets => MetricType::Unknown,
            };
            let is_counter = family.kind == Kind::Counter;
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            for (labels, value) in &family.samples {
                if labels.is_empty() {
                    sample(&mut metric, is_counter, value)?
                } else {
                    sample(&mut metric.encode_family(labels)?, is_counter, value)?;
                }
            }
        }
        Ok(())
    }
}

fn sample(metric: &mut MetricEncoder, is_counter: bool, value: &Value) -> fmt::Result {
    let none: Option<&Exemplar<Vec<(String, String)>, f64>> = None;
    match (is_counter, value) {
        (true, Value::Whole(value)) => metric.encode_counter(value, none),
        (true, Value::Real(value)) => metric.encode_counter(value, none),
        (false, Value::Whole(value)) => metric.encode_gauge(value),
        (false, Value::Real(value)) => metric.encode_gauge(value),
    }
}

/// The text of these metrics.
#[must_use]
pub fn render(families: Vec<Family>, syntax: Syntax) -> String {
    let counters: Vec<String> = families
        .iter()
        .filter(|family| family.kind == Kind::Counter)
        .map(full_name)
        .collect();
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families(families)));
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = text::encode(&mut out, &registry);
    match syntax {
        Syntax::OpenMetrics => out,
        Syntax::Prometheus => older(&out, &counters),
    }
}

/// The name with prefix and unit, without `_total`.
pub(crate) fn full_name(family: &Family) -> String {
    let unit = unit(family.unit).map_or(String::new(), |unit| format!("_{}", unit.as_str()));
    format!("{PREFIX}_{}{unit}", family.name)
}

/// Converts to the older format: no units and no end mark; the name of a counter has its suffix in
/// the description too; metrics without a type are `untyped`.
fn older(text: &str, counters: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            (Some("#"), Some(what), Some(name), Some(rest))
                if counters.iter().any(|counter| counter == name) =>
            {
                out += &format!("# {what} {name}_total {rest}\n");
            }
            (Some("#"), Some("TYPE"), Some(name), Some("unknown")) => {
                out += &format!("# TYPE {name} untyped\n");
            }
            _ => {
                out += line;
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
