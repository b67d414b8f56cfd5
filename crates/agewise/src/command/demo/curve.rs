// SPDX-License-Identifier: Apache-2.0
//! The last part of the tour: miss-ratio curves of a recorded program.

use std::io::{Cursor, Write};
use std::path::Path;

use agewise_lab::plot;
use agewise_lab::yardstick;
use agewise_trace::curve::exact;
use agewise_trace::{AccessStream, DenseTrace, Input, ReadOptions, registry};
use anyhow::Context;

use super::{heading, say};

/// `traces/redis.pages`, embedded in the program so that the tour needs no files.
static TRACE: &[u8] = include_bytes!("../../../../../traces/redis.pages");
/// The policies compared: the optimum, the textbook LRU, and the kernel's two LRUs.
const POLICIES: [&str; 4] = ["opt", "lru", "classic-mapped", "mglru-7.2-mapped"];
/// Memory sizes, in percent of the footprint.
const PERCENT: [usize; 10] = [5, 10, 15, 20, 30, 40, 50, 65, 80, 100];

/// Draws the curves.
pub(super) fn show() -> anyhow::Result<()> {
    heading("How much memory a program needs (agewise lab curve traces/redis.pages)")?;
    let path = Path::new("traces/redis.pages");
    let format = registry::by_name("page").context("the page trace is a format")?;
    let input = Input::from_reader(path, Cursor::new(TRACE))?;
    let reader = (format.open)(input, &ReadOptions::default())?;
    let mut stream = AccessStream::new(path, format, reader);
    let trace = DenseTrace::from_stream(path, &mut stream)?;
    say(&format!(
        "redis-server reading keys at random, as `agewise trace record` saw it: {} accesses of {} \
         pages.",
        trace.accesses().len(),
        trace.page_count()
    ))?;
    say("The share of accesses that would miss, by memory size in pages and eviction policy:\n")?;
    let policies = POLICIES
        .iter()
        .map(|name| yardstick::by_name(name).with_context(|| format!("there is no policy {name}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let sizes = PERCENT.map(|percent| trace.page_count() * percent / 100);
    let curves = exact("redis", &trace, &policies, &sizes);
    std::io::stdout().write_all(plot::text(&curves, 72, 17).as_bytes())?;
    Ok(())
}
