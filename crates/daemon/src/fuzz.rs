// SPDX-License-Identifier: Apache-2.0
//! Code that reads bytes from outside, for fuzzing.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use agewise_policy::workingset::report::{File, GroupFile, NodeFile};

use crate::config::{Config, Matcher};
use crate::demo;
use crate::files::source::Source;
use crate::http::fuzzed_request;
use crate::metrics::shown::Limits;
use crate::page::Pages;
use crate::state::Hub;

/// A configuration: any that is accepted can be used, and means the same when written and read
/// again.
pub fn config(bytes: &[u8]) {
    let Ok(config) = Config::parse(&String::from_utf8_lossy(bytes)) else {
        return;
    };
    assert!(Matcher::new(&config).is_ok());
    let again = toml::to_string(&config).expect("TOML holds it");
    assert_eq!(Config::parse(&again).as_ref(), Ok(&config), "{again}");
}

thread_local! {
    static HUB: Hub = {
        let hub = Hub::new(demo::settings());
        hub.keep_timeline();
        hub.publish(demo::snapshot(1, 10_000));
        hub
    };
    static PAGES: RefCell<Pages> = RefCell::new(Pages::new(
        HUB.with(Hub::clone),
        Limits {
            subjects_max: 10,
            containers_max: 10,
            depth_max: 4,
        },
    ));
}

/// The head of a request, whole and in halves, and the response.
pub fn http(bytes: &[u8]) {
    PAGES.with_borrow_mut(|pages| fuzzed_request(bytes, pages));
}

/// What is written to a report file; the first byte selects the file.
pub fn files(bytes: &[u8]) {
    let Some((&which, text)) = bytes.split_first() else {
        return;
    };
    let hub = Hub::new(demo::settings());
    hub.publish(demo::snapshot(1, 10_000));
    let source = Source::new(hub, || 10_000, Duration::ZERO);
    let mut all: Vec<File<Arc<str>>> = NodeFile::ALL.map(|file| File::Node(1, file)).to_vec();
    let group: Arc<str> = "/web".into();
    all.extend(GroupFile::ALL.map(|file| File::Group(Arc::clone(&group), file)));
    let file = &all[usize::from(which) % all.len()];
    let is_taken = source.write(file, text).is_ok();
    let read = source.read(file);
    assert!(!is_taken || read.is_ok(), "{read:?}");
}

/// Messages to the serving process.
pub fn snapshots(bytes: &[u8]) {
    crate::serve::fuzzed_line(bytes);
}

/// What a server of OTLP answers.
pub fn otlp(bytes: &[u8]) {
    crate::otlp::send::fuzzed_answer(bytes);
}

/// Wishes of the process that serves the report files: settings only concern what exists.
#[cfg(feature = "fuse")]
pub fn wishes(bytes: &[u8]) {
    let hub = Hub::new(demo::settings());
    hub.publish(demo::snapshot(1, 10_000));
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(wish) = serde_json::from_slice(line) {
            crate::serve::wish::grant(wish, &hub);
        }
    }
    let (settings, snapshot) = (hub.settings(), hub.snapshot());
    let scopes = snapshot.nodes.len() * (snapshot.subjects.len() + 1);
    assert!(settings.intervals.len() <= snapshot.nodes.len() + demo::settings().intervals.len());
    assert!(settings.reports.len() <= scopes + demo::settings().reports.len());
    let source = Source::new(hub, || 10_000, Duration::ZERO);
    for node in source.nodes() {
        let read = source.read(&File::Node(node, NodeFile::PageAge));
        assert!(read.is_ok(), "{read:?}");
    }
}
