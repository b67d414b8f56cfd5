// SPDX-License-Identifier: Apache-2.0
//! A daemon rule that reclaims file memory, and what the page shows of it, tested on a file of
//! which known parts are read. Needs root and BPF; skipped with a message otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use agewise_host::pagecache::cachestat;
use rustix::process::Signal;
use serde_json::Value;
use support::cached::{HALF_BYTES, PAGE, PAGES, cached_by, keep_warm, read_in};
use support::{Daemon, Group, blind, newest, one, write_config};

fn rule(group: &Group, policy: &str, more: &str) -> String {
    format!(
        "[observe]\ncgroups = ['{path}']\ntick = '500ms'\ncpu_percent = 50\n\
         [[act]]\ncgroups = ['{path}']\npolicy = '{policy}'\nfiles = true\n{more}",
        path = group.path
    )
}

fn after(line: &Value, field: &str) -> u64 {
    match line["record"] == "action" && line["phase"] == "after" {
        true => line[field].as_u64().unwrap_or(0),
        false => 0,
    }
}

/// Why the page cache cannot be followed here; `None` if it can.
fn unfollowed(daemon: &Daemon) -> Option<String> {
    let start = daemon.wait_for("start", |_| true);
    let note = start["note"].as_str().unwrap_or_default();
    note.contains("files: ").then(|| note.to_owned())
}

#[test]
fn cold_pages_of_files_leave_by_a_rule_and_hot_ones_stay() {
    skip_if!("cold_pages_of_files_leave_by_a_rule", blind());
    let _one = one();
    let group = match Group::create("files") {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED cold_pages_of_files_leave_by_a_rule: {why}"),
    };
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("file");
    let file = cached_by(&group, &path);
    let cached = |pages| match cachestat(&file, pages) {
        Ok(stat) => stat.pages,
        Err(error) => panic!("cachestat: {error}"),
    };
    let stop = AtomicBool::new(false);
    let policy = "age:3s/1s,backoff=off";
    std::thread::scope(|scope| {
        // However this scope ends, stop the reader.
        let _end = End(&stop);
        scope.spawn(|| keep_warm(&file, &stop));
        let daemon = Daemon::start(&rule(&group, policy, ""));
        skip_if!("cold_pages_of_files_leave_by_a_rule", unfollowed(&daemon));
        // Nearly all of the cold half, apart from what others reclaimed.
        let rehearsed = daemon.wait_for("action", |line| {
            let there = cached(PAGES / 2..PAGES) * PAGE;
            let bytes = after(line, "rehearsed_bytes");
            bytes > 0 && bytes >= there * 9 / 10
        });
        assert_eq!(rehearsed["dry_run"], true);
        let left = |journal: &[Value]| -> u64 {
            let lines = journal.iter();
            lines.map(|line| after(line, "left_file_bytes")).sum()
        };
        assert_eq!(left(&daemon.journal()), 0, "a rehearsal drops nothing");
        assert_eq!(cached(0..PAGES / 2), PAGES / 2, "a rehearsal drops nothing");

        read_in(&group, &path);
        let toml = rule(&group, policy, "dry_run = false\n");
        write_config(daemon.directory.path(), &toml);
        daemon.signal(Signal::HUP);
        // A batch of 64 pages counts for the cgroup of its first page, so some pages may be charged
        // to another. Only what was present right before the first batch left can leave.
        let there = Cell::new(0);
        daemon.wait_for("action", |_| {
            let (left, cold) = (left(&daemon.journal()), cached(PAGES / 2..PAGES));
            if left == 0 {
                there.set(cold * PAGE);
            }
            left > 0 && left >= there.get() * 9 / 10 && cold <= PAGES / 2 / 100
        });
        // A few more looks: none of them reclaims what is being read, also after a reload that
        // makes ages begin anew.
        std::thread::sleep(Duration::from_secs(3));
        let renewed = toml.replace("tick =", "intervals = '2s,10s'\ntick =");
        write_config(daemon.directory.path(), &renewed);
        daemon.signal(Signal::HUP);
        std::thread::sleep(Duration::from_secs(6));
        let journal = daemon.end();
        let (hot, cold) = (cached(0..PAGES / 2), cached(PAGES / 2..PAGES));
        let last = newest(&journal);
        assert!(journal.iter().all(|line| line["record"] != "reload_failed"));
        assert!(hot >= PAGES / 2 * 995 / 1000, "{hot} hot pages: {last}");
        assert!(cold <= PAGES / 2 / 100, "{cold} cold pages: {last}");
        assert!(left(&journal) <= HALF_BYTES * 101 / 100, "{last}");
        for line in journal.iter().filter(|line| line["phase"] == "after") {
            assert!(line["dropped"].is_null() || line["dropped"]["left_bytes"].is_u64());
        }
    });
}

/// Stops the reader when dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What a daemon that follows files says of them at its address.
fn files_at(socket: &Path) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    write!(
        stream,
        "GET /api/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let snapshot: Value = serde_json::from_str(body).ok()?;
    Some(snapshot["files"].clone()).filter(|files| !files.is_null())
}

#[test]
fn the_page_shows_the_largest_files_of_what_is_observed() {
    skip_if!("the_page_shows_the_largest_files", blind());
    let _one = one();
    let group = match Group::create("shown") {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED the_page_shows_the_largest_files: {why}"),
    };
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("large");
    let _file = cached_by(&group, &path);
    let socket = dir.path().join("socket");
    let daemon = Daemon::start(&format!(
        "[observe]\ncgroups = ['{}']\ntick = '500ms'\ncpu_percent = 50\nfiles = true\n\
         [metrics]\nenabled = true\nlisten = 'unix:{}'\n",
        group.path,
        socket.display()
    ));
    skip_if!("the_page_shows_the_largest_files", unfollowed(&daemon));
    let mut files = None;
    for _ in 0..600 {
        files = files_at(&socket);
        if files.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let files = files.expect("files in the snapshot");
    let largest = &files["largest"][0];
    assert_eq!(largest["file"].as_str(), path.to_str(), "{files}");
    assert_eq!(largest["cgroup"].as_str(), Some(&*group.path), "{files}");
    // Others may reclaim some of it meanwhile.
    let bytes = largest["resident_bytes"].as_u64().unwrap();
    assert!(
        bytes > HALF_BYTES && bytes <= 2 * HALF_BYTES,
        "{bytes}: {files}"
    );
}
