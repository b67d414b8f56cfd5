// SPDX-License-Identifier: Apache-2.0
//! The daemon: observes at a fixed pace, publishes what it finds as files, metrics and a page, and
//! pages out memory according to the policies in its configuration.
//!
//! Features, all on by default: `fuse` (the files are a FUSE file system), `web` (metrics and the
//! page over HTTP) and `otlp` (metrics are sent).

pub mod actor;
pub mod ahead;
pub mod config;
pub mod curves;
pub mod demo;
pub mod files;
#[cfg(feature = "testing")]
pub mod fuzz;
pub mod hand;
pub mod health;
#[cfg(feature = "web")]
pub mod http;
pub mod journal;
mod largest;
#[cfg(feature = "web")]
pub mod metrics;
mod news;
pub mod noted;
pub mod observer;
pub mod options;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(all(feature = "web", not(feature = "otlp")))]
#[path = "no_otlp.rs"]
pub mod otlp;
#[cfg(feature = "web")]
pub mod outlet;
#[cfg(not(feature = "web"))]
#[path = "no_outlet.rs"]
pub mod outlet;
pub mod pace;
#[cfg(feature = "web")]
pub mod page;
pub mod privileges;
pub mod protect;
mod record;
#[cfg(any(feature = "fuse", feature = "web"))]
pub mod serve;
pub mod service;
pub mod showcase;
pub mod shrinkers;
pub mod state;
#[cfg(feature = "web")]
pub mod textfile;
pub mod timeline;
mod tracked;
pub mod world;
