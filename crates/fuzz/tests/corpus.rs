// SPDX-License-Identifier: Apache-2.0
//! Runs the corpus and mutations of it, without an engine.

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_fuzz::{TARGETS, Target};

/// Mutations of each file of the corpus.
const CHANGES: u64 = 300;
/// Byte strings that are meaningful to some parser.
const TOKENS: &[&[u8]] = &[
    b"",
    b"\0",
    b"\n",
    b"\t",
    b" ",
    b"-1",
    b"0",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"1e400",
    b"NaN",
    b"\xff",
    b"\\x",
    b"\\",
    b"\"",
    b"[",
    b"]",
    b"{",
    b"}",
    b"=",
    b":",
    b",",
    b"/",
    b"%",
    b"max",
    b"\x1b[2J",
    "\u{202e}".as_bytes(),
];

/// SplitMix64: the same mutations in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let (a, b) = (random.below(bytes.len() + 1), random.below(bytes.len() + 1));
        let (from, to) = (a.min(b), a.max(b));
        match random.below(6) {
            0 => bytes.truncate(from),
            1 => drop(bytes.drain(from..to)),
            2 if bytes.len() < 1 << 16 => {
                let part = bytes[from..to].to_vec();
                bytes.splice(to..to, part);
            }
            3 => drop(bytes.splice(
                from..from,
                TOKENS[random.below(TOKENS.len())].iter().copied(),
            )),
            4 => {
                let end = to.min(from + 20);
                bytes.splice(
                    from..end,
                    TOKENS[random.below(TOKENS.len())].iter().copied(),
                );
            }
            _ => {
                if let Some(byte) = bytes.get_mut(from) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let mut paths: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Runs a target's corpus and this many mutations of each file, at most for the given time. Returns
/// the number of calls.
fn run(target: &Target, random: &mut Random, changes: u64, most: Duration) -> u64 {
    let began = Instant::now();
    let files = corpus(target);
    assert!(!files.is_empty(), "{}: an empty corpus", target.name);
    files.iter().for_each(|bytes| (target.run)(bytes));
    let mut calls = 0;
    for _ in 0..changes {
        for bytes in &files {
            let mut changed = bytes.clone();
            change(&mut changed, random);
            let called = std::panic::catch_unwind(|| (target.run)(&changed));
            assert!(
                called.is_ok(),
                "{}: {}",
                target.name,
                changed.escape_ascii()
            );
            calls += 1;
            // A busy machine does fewer.
            if began.elapsed() > most {
                return calls;
            }
        }
    }
    calls
}

#[test]
fn every_target_has_a_corpus_and_survives_it_and_changes_of_it() {
    for (target, seed) in TARGETS.iter().zip(1..) {
        let calls = run(target, &mut Random(seed), CHANGES, Duration::from_secs(5));
        println!("{}: {calls} changes", target.name);
    }
}

/// Runs each target for `TIME` seconds, without an engine.
#[test]
#[ignore = "takes minutes; make fuzz is led by coverage"]
fn every_target_survives_changes_for_long() {
    let seconds = std::env::var("TIME").map_or(60, |text| text.parse().expect("seconds"));
    for (target, seed) in TARGETS.iter().zip(1000..) {
        let most = Duration::from_secs(seconds);
        let calls = run(target, &mut Random(seed), u64::MAX, most);
        println!("{}: {calls} changes in {seconds} s", target.name);
    }
}
