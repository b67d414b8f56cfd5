// SPDX-License-Identifier: Apache-2.0
//! A progress bar on standard error; nothing is drawn when that is not a terminal.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over steps; their number becomes known as they are made.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    done: AtomicU64,
}

impl Progress {
    /// A bar over things called `what`.
    pub fn new(what: &str) -> Progress {
        let bar = if io::stderr().is_terminal() {
            ProgressBar::new(1)
        } else {
            ProgressBar::hidden()
        };
        let template = format!("{{bar:40}} {{pos}}/{{len}} {what}, {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Progress {
            bar,
            done: AtomicU64::new(0),
        }
    }

    /// One more step of `total` is done.
    pub fn advance(&self, total: u64) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
