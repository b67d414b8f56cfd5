// SPDX-License-Identifier: Apache-2.0
//! Metrics as requests of OTLP.
//!
//! Names are those of `/metrics`, with unit and `_total`: a Prometheus that receives them, directly
//! or from a Collector, stores them under the same names as one that scrapes. The exception is the
//! histogram: its values, the ages, are in seconds, and bytes are what is counted.

use std::collections::VecDeque;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use crate::metrics::family::{Family, Kind, Labels, Unit, Value};
use crate::metrics::text::{PREFIX, full_name};

/// Maximum number of values in a request, and a little more if the last one is of a histogram.
const VALUES_MAX: usize = 2000;

/// The requests for one snapshot.
pub(super) struct Requests {
    pub(super) families: VecDeque<Family>,
    pub(super) resource: Resource,
    /// When the counters began.
    pub(super) since_unix_ms: u64,
    /// When the values were taken.
    pub(super) unix_ms: u64,
}

/// A request, compressed.
pub(super) struct Request {
    pub(super) body: Vec<u8>,
    pub(super) points: u64,
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let families = self.cut_off();
        if families.is_empty() {
            return None;
        }
        let times = Times {
            since_ns: self.since_unix_ms.saturating_mul(1_000_000),
            taken_ns: self.unix_ms.saturating_mul(1_000_000),
        };
        let mut points = 0;
        let metrics = families.into_iter().map(|family| {
            let (metric, count) = metric(family, times);
            points += count as u64;
            metric
        });
        let scope = ScopeMetrics {
            scope: Some(InstrumentationScope {
                name: PREFIX.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            metrics: metrics.collect(),
            ..ScopeMetrics::default()
        };
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![scope],
                ..ResourceMetrics::default()
            }],
        };
        Some(Request {
            body: compressed(&request.encode_to_vec()),
            points,
        })
    }
}

impl Requests {
    /// Takes the families of the next request. A family that does not fit continues in the one
    /// after it.
    fn cut_off(&mut self) -> Vec<Family> {
        let mut taken = Vec::new();
        let mut room = VALUES_MAX;
        while room > 0
            && let Some(mut family) = self.families.pop_front()
        {
            let mut cut = room.min(family.samples.len());
            // A histogram is one point.
            while family.kind == Kind::Buckets
                && cut < family.samples.len()
                && bound(&family.samples[cut - 1].0).is_some_and(f64::is_finite)
            {
                cut += 1;
            }
            let rest = family.samples.split_off(cut);
            if !rest.is_empty() {
                let samples = rest;
                self.families.push_front(Family { samples, ..family });
            }
            room = room.saturating_sub(cut);
            taken.push(family);
        }
        taken
    }
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to a Vec does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Times {
    since_ns: u64,
    taken_ns: u64,
}

/// A metric, and the number of its points.
fn metric(family: Family, times: Times) -> (Metric, usize) {
    let name = full_name(&family);
    let cumulative = AggregationTemporality::Cumulative.into();
    let (name, data, count) = match family.kind {
        Kind::Gauge => {
            let data_points = points(family.samples, 0, times.taken_ns);
            let count = data_points.len();
            (name, metric::Data::Gauge(Gauge { data_points }), count)
        }
        Kind::Counter => {
            let data_points = points(family.samples, times.since_ns, times.taken_ns);
            let count = data_points.len();
            let sum = Sum {
                data_points,
                aggregation_temporality: cumulative,
                is_monotonic: true,
            };
            (name + "_total", metric::Data::Sum(sum), count)
        }
        Kind::Buckets => {
            let data_points = histograms(&family.samples, times.taken_ns);
            let count = data_points.len();
            let histogram = Histogram {
                data_points,
                aggregation_temporality: cumulative,
            };
            let name = format!("{PREFIX}_{}_seconds", family.name);
            (name, metric::Data::Histogram(histogram), count)
        }
    };
    let unit = match (family.kind, family.unit) {
        (Kind::Buckets, _) | (_, Unit::Seconds) => "s",
        (_, Unit::Bytes) => "By",
        (_, Unit::Ratio) => "1",
        // Prometheus would take a gauge of the unit 1 for a ratio.
        (_, Unit::None) => "",
    };
    let metric = Metric {
        name,
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    };
    (metric, count)
}

fn points(samples: Vec<(Labels, Value)>, since_ns: u64, taken_ns: u64) -> Vec<NumberDataPoint> {
    let samples = samples.into_iter();
    let points = samples.map(|(labels, value)| NumberDataPoint {
        attributes: attributes(&labels),
        start_time_unix_nano: since_ns,
        time_unix_nano: taken_ns,
        value: Some(match value {
            Value::Whole(value) => {
                number_data_point::Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX))
            }
            Value::Real(value) => number_data_point::Value::AsDouble(value),
        }),
        ..NumberDataPoint::default()
    });
    points.collect()
}

/// The bound of a bucket, its last label.
fn bound(labels: &Labels) -> Option<f64> {
    labels.last()?.1.parse().ok()
}

/// Each run of buckets up to the infinite one becomes a histogram. It counts what is there, not
/// what happened since some time, so each begins anew when it is taken.
fn histograms(samples: &[(Labels, Value)], taken_ns: u64) -> Vec<HistogramDataPoint> {
    let is_last = |sample: &(Labels, Value)| bound(&sample.0) == Some(f64::INFINITY);
    let runs = samples.split_inclusive(is_last);
    let points = runs.map(|run| {
        let below = run.iter().map(|(_, value)| match value {
            Value::Whole(value) => *value,
            Value::Real(value) => *value as u64,
        });
        let mut before = 0;
        let counts = below.map(|below| {
            let count = below.saturating_sub(before);
            before = below;
            count
        });
        let bucket_counts: Vec<u64> = counts.collect();
        let labels = run.first().map_or(&[][..], |(labels, _)| {
            &labels[..labels.len().saturating_sub(1)]
        });
        let bounds = run.iter().filter_map(|(labels, _)| bound(labels));
        HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: taken_ns,
            time_unix_nano: taken_ns,
            count: before,
            bucket_counts,
            explicit_bounds: bounds.filter(|bound| bound.is_finite()).collect(),
            ..HistogramDataPoint::default()
        }
    });
    points.collect()
}

/// Labels, under the names that OpenTelemetry has for those of containers.
fn attributes(labels: &[(&'static str, String)]) -> Vec<KeyValue> {
    let is_pod = labels.iter().any(|(name, _)| *name == "pod");
    let named = labels.iter().map(|(name, value)| {
        let name = match *name {
            "namespace" => "k8s.namespace.name",
            "pod" => "k8s.pod.name",
            "container" if is_pod => "k8s.container.name",
            "container" => "container.name",
            "container_id" => "container.id",
            "image" => "container.image.name",
            other => other,
        };
        attribute(name, value)
    });
    named.collect()
}

pub(super) fn attribute(name: &str, value: &str) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::family::{buckets, counter};

    #[test]
    fn requests_are_bounded_and_cut_no_histogram() {
        let mut many = counter("many", Unit::Bytes, "");
        let mut ages = buckets("ages", Unit::Bytes, "");
        let label = |name, value: u64| (name, value.to_string());
        for at in 0..3500u64 {
            many.add(vec![label("at", at)], at);
        }
        for at in 0..300u64 {
            for le in ["1.0", "2.0", "+Inf"] {
                ages.add(vec![label("at", at), ("le", le.to_owned())], at);
            }
        }
        let mut requests = Requests {
            families: [many, ages].into(),
            resource: Resource::default(),
            since_unix_ms: u64::MAX,
            unix_ms: 1,
        };
        let mut sizes = Vec::new();
        let mut taken = Vec::new();
        loop {
            let families = requests.cut_off();
            if families.is_empty() {
                break;
            }
            sizes.push(families.iter().map(|f| f.samples.len()).sum::<usize>());
            taken.extend(families);
        }
        assert_eq!(sizes, [2000, 2001, 399]);
        let ages = taken.iter().filter(|family| family.kind == Kind::Buckets);
        assert!(ages.clone().all(|family| family.samples.len() % 3 == 0));
        requests.families = taken.into();
        let points: Vec<u64> = requests.map(|request| request.points).collect();
        assert_eq!(points.iter().sum::<u64>(), 3500 + 300);
    }
}
