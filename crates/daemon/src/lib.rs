// SPDX-License-Identifier: Apache-2.0
//! The daemon: observes at a fixed pace, keeps what it knows where files, metrics and a page can
//! read it, and moves memory out by the policies it was configured with.

pub mod actor;
pub mod ahead;
pub mod config;
pub mod demo;
pub mod files;
pub mod hand;
pub mod health;
pub mod http;
pub mod journal;
pub mod metrics;
pub mod noted;
pub mod observer;
pub mod options;
pub mod outlet;
pub mod pace;
pub mod page;
pub mod privileges;
pub mod protect;
mod record;
pub mod service;
pub mod showcase;
pub mod state;
pub mod timeline;
pub mod world;
