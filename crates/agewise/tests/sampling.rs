// SPDX-License-Identifier: Apache-2.0
//! Ages estimated from a sample, compared with a program that records when it touched each of its
//! pages. Needs root and BPF; skipped with a message otherwise.

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
use agewise_policy::sample::Bounds;
use support::{AGEWISE, blind, one};

const INTERVAL: Duration = Duration::from_millis(300);
const JUDGED: usize = 10;
const SIZE: &str = "128M";
/// At most a quarter of the memory, in blocks; small mappings come on top.
const BOUNDS: Bounds = Bounds {
    blocks: 1 << 9,
    block_pages: 16,
    whole_pages: 1 << 10,
};
/// The share of pages in a wrong bin may exceed that of a full observation plus the half-width of
/// the interval by at most this: time passes between the two.
const MORE_WRONG: f64 = 0.01;

fn agent(exerciser: &Spawned, sample: Option<Bounds>) -> Agent {
    let subject = Subject::process(&ProcRoot::default(), exerciser.pid()).unwrap();
    let mut config = AgentConfig::new("300ms,1200ms,3s".parse().unwrap());
    config.clear = ClearPolicy::exact();
    config.sample = sample;
    let (mut agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config).unwrap();
    agent.tick().unwrap();
    agent
}

#[test]
fn a_sample_tells_what_following_every_page_does() {
    if let Some(why) = blind() {
        println!("SKIPPED a_sample_tells_what_following_every_page_does: {why}");
        return;
    }
    let _one = one();
    let stop = Stop::install().unwrap();
    let arguments = ["--size", SIZE, "--pattern", "zipf:0.99", "--rate", "40000"];
    let exerciser = Spawned::start(Path::new(AGEWISE), arguments, None).unwrap();
    let error_of = |sample: Option<Bounds>| {
        let mut agent = agent(&exerciser, sample);
        ages::scans(&mut agent, INTERVAL, 8, &stop, |_, _| Ok(())).unwrap();
        let error = ages::mean_error_ratio(&mut agent, &exerciser, INTERVAL, JUDGED, &stop);
        (error.unwrap(), agent.report().remove(0))
    };
    let (exact, of_all) = error_of(None);
    let (sampled, of_sample) = error_of(Some(BOUNDS));
    let resident: u64 = of_sample.resident_bytes.iter().sum();
    println!(
        "in a wrong bin: {:.2} % of all followed, {:.2} % of 1/{:.1}, half width {:.2} %",
        exact * 100.0,
        sampled * 100.0,
        resident as f64 / of_sample.followed_bytes as f64,
        of_sample.half_width_ratio() * 100.0
    );
    assert!(of_sample.followed_bytes * 2 < resident, "{of_sample:?}");
    let may_be_off = of_sample.half_width_ratio();
    assert!(may_be_off > 0.0 && may_be_off < 0.1, "{may_be_off}");
    assert!(
        sampled < exact + may_be_off + MORE_WRONG,
        "{sampled}, {exact}"
    );
    // A full observation has no uncertainty, and both agree on the total.
    assert_eq!(of_all.half_width_ratio(), 0.0);
    assert_eq!(
        of_all.followed_bytes,
        of_all.resident_bytes.iter().sum::<u64>()
    );
    let difference = resident.abs_diff(of_all.followed_bytes) as f64 / resident as f64;
    assert!(difference < 0.02, "{difference}");
    assert_eq!(of_sample.histogram().total(), of_sample.resident_bytes);
    exerciser.finish().unwrap();
}
