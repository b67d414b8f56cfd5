// SPDX-License-Identifier: Apache-2.0
//! Streams of touches as workloads describe them.

use serde::Deserialize;

/// The order of touches along a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamOrder {
    /// By a Zipf distribution.
    Zipf,
    /// Each page equally likely.
    Uniform,
    /// From first to last, again and again.
    Scan,
    /// By Gauss's distribution around the middle.
    Gaussian,
    /// By YCSB's exponential distribution, the first page the likeliest.
    Exponential,
}

/// A stream of touches.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// The area.
    pub area: String,
    /// The order.
    pub order: StreamOrder,
    /// Exponent of the Zipf distribution.
    #[serde(default = "default_theta")]
    pub theta: f64,
    /// Standard deviation of Gauss's distribution, as a share of the pages.
    #[serde(default = "default_deviation")]
    pub deviation: f64,
    /// Share of the touches of the phase, relative to the other streams.
    #[serde(default = "one_f64")]
    pub weight: f64,
    /// Share of these touches that write.
    #[serde(default)]
    pub write: f64,
    /// Start of the part of the area it covers, 0 to 1.
    #[serde(default)]
    pub from: f64,
    /// End of that part, 0 to 1.
    #[serde(default = "one_f64")]
    pub to: f64,
    /// How often in the phase the popular pages move on by a quarter of the part.
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
