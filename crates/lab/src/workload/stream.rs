// SPDX-License-Identifier: Apache-2.0
//! Streams of touches as described by workloads.

use serde::Deserialize;

/// The order of touches in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamOrder {
    /// By a Zipf distribution.
    Zipf,
    /// Each page equally likely.
    Uniform,
    /// From first to last, again and again.
    Scan,
    /// By a Gaussian distribution around the middle.
    Gaussian,
    /// By YCSB's exponential distribution; the first page is the most likely.
    Exponential,
}

/// A stream of touches.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    pub area: String,
    pub order: StreamOrder,
    /// Exponent of the Zipf distribution.
    #[serde(default = "default_theta")]
    pub theta: f64,
    /// Standard deviation of the Gaussian distribution, relative to the number of pages.
    #[serde(default = "default_deviation")]
    pub deviation: f64,
    /// Share of the phase's touches, relative to the other streams.
    #[serde(default = "one_f64")]
    pub weight: f64,
    /// Share of these touches that are writes.
    #[serde(default)]
    pub write: f64,
    /// Start of the covered part of the area, 0 to 1.
    #[serde(default)]
    pub from: f64,
    /// End of the covered part, 0 to 1.
    #[serde(default = "one_f64")]
    pub to: f64,
    /// How often in the phase the popular pages move on by a quarter of the covered part.
    #[serde(default)]
    pub shifts: u32,
}

fn default_theta() -> f64 {
    0.99
}

fn default_deviation() -> f64 {
    0.2
}

fn one_f64() -> f64 {
    1.0
}
