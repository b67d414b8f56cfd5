// SPDX-License-Identifier: Apache-2.0
//! Metrics of one name, before they are text.

/// What a family counts in: its name ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A share: 1 is all.
    Ratio,
    /// A number of things, or yes and no as 1 and 0.
    None,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any other.
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

/// All values of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Without prefix, unit and `_total`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// What it counts in.
    pub unit: Unit,
    /// It only grows, from 0 when what it is about began.
    pub is_counter: bool,
    /// Values by labels.
    pub samples: Vec<(Labels, Value)>,
}

pub(super) fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family {
        name,
        help,
        unit,
        is_counter: false,
        samples: Vec::new(),
    }
}

pub(super) fn counter(name: &'static str, unit: Unit, help: &'static str) -> Family {
    Family {
        is_counter: true,
        ..gauge(name, unit, help)
    }
}

impl Family {
    pub(super) fn add(&mut self, labels: Labels, value: impl Into<Value>) {
        self.samples.push((labels, value.into()));
    }

    pub(super) fn single(mut self, value: impl Into<Value>) -> Self {
        self.add(Vec::new(), value);
        self
    }
}
