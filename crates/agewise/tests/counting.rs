// SPDX-License-Identifier: Apache-2.0
//! Counting how much memory is how old, with a quarter of the clears, on a program that knows when it touched
//! each of its pages. Needs root and BPF; says so where one is missing.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::path::Path;
use std::time::Duration;

use agewise_bench::ages;
use agewise_bench::exercise::spawned::Spawned;
use agewise_cli::observe;
use agewise_cli::signal::Stop;
use agewise_host::agent::{Agent, AgentConfig, Subject, Targets};
use agewise_host::clear::ClearPolicy;
use agewise_host::root::ProcRoot;
use support::{AGEWISE, blind, one};

const INTERVAL: Duration = Duration::from_millis(300);
const JUDGED: usize = 10;
const LOOKS_MORE: usize = 60;
const SIZE: &str = "128M";
/// Page tables of that.
const TABLES: u64 = 64;
/// Pages in a wrong bin, of all, at most this much more than where every page is told.
const MORE_WRONG: f64 = 0.01;

fn agent(exerciser: &Spawned, clear: ClearPolicy) -> Agent {
    let subject = Subject::process(&ProcRoot::default(), exerciser.pid()).unwrap();
    let mut config = AgentConfig::new("300ms,1200ms,3s".parse().unwrap());
    config.clear = clear;
    observe::open_agent(Targets::Listed(vec![subject]), config)
        .unwrap()
        .0
}

#[test]
fn counting_clears_less_and_tells_the_same() {
    if let Some(why) = blind() {
        println!("SKIP counting_clears_less_and_tells_the_same: {why}");
        return;
    }
    let _one = one();
    let stop = Stop::install().unwrap();
    let arguments = ["--size", SIZE, "--pattern", "zipf:0.99", "--rate", "40000"];
    let exerciser = Spawned::start(Path::new(AGEWISE), arguments, None).unwrap();
    let mut telling = agent(&exerciser, ClearPolicy::exact());
    telling.tick().unwrap();
    ages::scans(&mut telling, INTERVAL, 8, &stop, |_, _| Ok(())).unwrap();
    let told = ages::mean_error_ratio(&mut telling, &exerciser, INTERVAL, JUDGED, &stop).unwrap();
    drop(telling);
    let mut counting = agent(&exerciser, ClearPolicy::counts());
    counting.tick().unwrap();
    ages::scans(
        &mut counting,
        INTERVAL,
        ages::SETTLING,
        &stop,
        |_, _| Ok(()),
    )
    .unwrap();
    // Looks that come late are no evidence of anything, so that trust may take longer.
    let mut most = 0;
    for _ in 0..LOOKS_MORE {
        if most > TABLES / 2 {
            break;
        }
        ages::scans(&mut counting, INTERVAL, 1, &stop, |_, tick| {
            most = most.max(tick.put_off_tables);
            Ok(())
        })
        .unwrap();
    }
    // Three in four take their turn later, but for the samples.
    assert!(most > TABLES / 2, "{most}");
    let counted =
        ages::mean_error_ratio(&mut counting, &exerciser, INTERVAL, JUDGED, &stop).unwrap();
    println!(
        "in a wrong bin: {:.2} % told, {:.2} % counted; {most} of {TABLES} clears put off",
        told * 100.0,
        counted * 100.0
    );
    assert!(counted < told + MORE_WRONG, "{counted}, told {told}");
    exerciser.finish().unwrap();
}
