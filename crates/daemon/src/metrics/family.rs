// SPDX-License-Identifier: Apache-2.0
//! The metrics with one name, before they become text.

/// The unit of a family, with which its name ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Seconds,
    /// A share; 1 means all.
    Ratio,
    /// A number of things, or 1 for yes and 0 for no.
    None,
}

/// How the values of a family behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They only grow, from 0 when their subject began.
    Counter,
    /// They go up and down.
    Gauge,
    /// Gauges, cumulative by the label `le`. Prometheus has no type for these (its histograms are
    /// counters), and `promtool` only expects `le` in histograms and in metrics without a type.
    Buckets,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Real(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Whole(value.into())
    }
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// All values with one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name without prefix, unit and `_total`.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    pub unit: Unit,
    /// How the values behave.
    pub kind: Kind,
    /// Values by labels.
    pub samples: Vec<(Labels, Value)>,
}

pub(super) fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family {
        name,
        help,
        unit,
        kind: Kind::Gauge,
        samples: Vec::new(),
    }
}

pub(crate) fn counter(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family {
        kind: Kind::Counter,
        ..gauge(name, unit, help)
    }
}

pub(crate) fn buckets(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family {
        kind: Kind::Buckets,
        ..gauge(name, unit, help)
    }
}

impl Family {
    pub(crate) fn add(&mut self, labels: Labels, value: impl Into<Value>) {
        self.samples.push((labels, value.into()));
    }

    pub(crate) fn single(mut self, value: impl Into<Value>) -> Self {
        self.add(Vec::new(), value);
        self
    }
}
