// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets for everything that parses bytes from outside. A target panics if it finds an
//! error.
//!
//! `make fuzz TIME=60` runs each target for that many seconds under libFuzzer, guided by coverage,
//! on a stable compiler. The tests run the corpus and a few thousand mutations of it, without an
//! engine.

use std::io::Cursor;
use std::path::Path;

use agewise_lab::fuzz::{draw, play};
use agewise_lab::machine::Policy;
use agewise_policy::proactive::Spec;
use agewise_policy::workingset::{Histogram, Intervals};
use agewise_trace::{FORMATS, Input, ReadOptions, format, registry};

/// A function under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is also the name of the directory with its corpus.
    pub name: &'static str,
    /// Parses the bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "config",
        run: agewise_daemon::fuzz::config,
    },
    Target {
        name: "files",
        run: agewise_daemon::fuzz::files,
    },
    Target {
        name: "http",
        run: agewise_daemon::fuzz::http,
    },
    Target {
        name: "ledger",
        run: agewise_host::fuzz::ledger,
    },
    Target {
        name: "machine",
        run: machine,
    },
    Target {
        name: "names",
        run: agewise_host::fuzz::names,
    },
    Target {
        name: "otlp",
        run: agewise_daemon::fuzz::otlp,
    },
    Target {
        name: "pages",
        run: agewise_host::fuzz::pages,
    },
    Target {
        name: "proc",
        run: agewise_host::fuzz::proc,
    },
    Target {
        name: "snapshots",
        run: agewise_daemon::fuzz::snapshots,
    },
    Target {
        name: "text",
        run: text,
    },
    Target {
        name: "trace",
        run: trace,
    },
    Target {
        name: "wishes",
        run: agewise_daemon::fuzz::wishes,
    },
];

/// Looks up a target by name.
pub fn by_name(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// The most requests read from a trace: damaged compressed data may expand enormously.
const REQUESTS_MAX: usize = 5_000;

/// A trace: the first byte selects its format, or automatic detection.
fn trace(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else {
        return;
    };
    let path = Path::new("some.trace");
    let Ok(mut input) = Input::from_reader(path, Cursor::new(bytes.to_vec())) else {
        return;
    };
    let known = FORMATS.get(usize::from(which)).copied();
    let Some(format) = known.or_else(|| registry::detect(&mut input).ok()) else {
        return;
    };
    let Ok(mut reader) = (format.open)(input, &ReadOptions::default()) else {
        return;
    };
    for _ in 0..REQUESTS_MAX {
        let Ok(Some(request)) = reader.next_request() else {
            return;
        };
        assert!(request.page_count <= format::PAGES_PER_REQUEST_MAX);
        let is_one = request.page_count == 1;
        assert!(is_one || request.first_page.checked_add(request.page_count).is_some());
    }
}

/// The most steps of a simulated machine.
const STEPS_MAX: usize = 200;

/// A simulated machine and a sequence of steps, both derived from the bytes.
fn machine(bytes: &[u8]) {
    let mut rest = bytes.iter();
    let mut byte = || u32::from(rest.next().copied().unwrap_or_default());
    let mut below = |n: u32| match n {
        ..=256 => byte() % n,
        _ => (byte() << 8 | byte()) % n,
    };
    let steps = (bytes.len() / 4).min(STEPS_MAX);
    let case = draw(&Policy::names(), steps, &mut below);
    if let Err(failure) = play(&case) {
        panic!("{failure}\n{case}");
    }
}

/// Text that people write: sizes, times, policies, bins.
fn text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(bytes) = agewise_cli::units::size(&text) {
        let _ = agewise_policy::units::bytes_text(bytes);
    }
    let _ = agewise_cli::units::byte_rate(&text);
    let _ = agewise_cli::units::slowdown(&text);
    if let Ok(time) = agewise_cli::units::duration(&text) {
        let _ = agewise_cli::units::duration_text(time);
    }
    if let Ok(spec) = text.parse::<Spec>() {
        let again = spec.to_string();
        assert_eq!(again.parse::<Spec>().expect("what was written"), spec);
    }
    if let Ok(histogram) = text.parse::<Histogram>() {
        let again = histogram.to_string();
        assert_eq!(again.parse::<Histogram>().as_ref(), Ok(&histogram));
    }
    if let Ok(intervals) = text.parse::<Intervals>() {
        assert_eq!(
            Intervals::new(intervals.bounds_ms().to_vec()),
            Ok(intervals)
        );
    }
}
