// SPDX-License-Identifier: Apache-2.0
//! A progress bar on standard error; nothing is drawn if that is not a terminal.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::units::duration_text;

/// A progress bar whose total becomes known along the way.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    done: AtomicU64,
}

impl Progress {
    /// A bar that counts `what` and estimates the remaining time.
    pub fn new(what: &str) -> Progress {
        Progress::with_template(&format!("{{bar:40}} {{pos}}/{{len}} {what}, {{eta}} left"))
    }

    /// A bar whose owner provides the remaining time: see [`Progress::set`].
    pub fn with_estimate(what: &str) -> Progress {
        Progress::with_template(&format!("{{bar:40}} {{pos}}/{{len}} {what}, {{msg}} left"))
    }

    /// A bar for bytes of which `what` was done, such as `read`: see [`Progress::at`].
    pub fn of_bytes(what: &str) -> Progress {
        Progress::with_template(&format!(
            "{{bar:40}} {{bytes}}/{{total_bytes}} {what}, {{eta}} left"
        ))
    }

    fn with_template(template: &str) -> Progress {
        let bar = if io::stderr().is_terminal() {
            ProgressBar::new(1)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress {
            bar,
            done: AtomicU64::new(0),
        }
    }

    /// Advances by one step; there are `total` steps.
    pub fn advance(&self, total: u64) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.at(done, total);
    }

    /// Sets what is done and the total.
    pub fn at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Sets the number of steps done, the total, and the remaining time.
    pub fn set(&self, done: u64, total: u64, left: Duration) {
        self.at(done, total);
        self.bar.set_message(duration_text(left));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
