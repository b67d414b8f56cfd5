// SPDX-License-Identifier: Apache-2.0
//! Random cases.

use super::case::{Bounds, Case, Shape, Step, Swap};
use crate::machine::device::DeviceKind;

/// Draws a number below the given one, which is at least 1.
type Below<'a> = &'a mut dyn FnMut(u32) -> u32;

/// Draws a machine that is short of memory under one of the policies, and this many steps. `below`
/// returns a number below its argument.
///
/// # Panics
/// If there is no policy.
pub fn draw(policies: &[String], steps: usize, below: Below<'_>) -> Case {
    let mut case = Case {
        shape: shape(policies, below),
        steps: Vec::new(),
    };
    case.steps.extend(beginning(&case.shape, below));
    for _ in 0..steps {
        case.steps.push(step(&case.shape, below));
    }
    case
}

fn one_of<'a, T>(of: &'a [T], below: Below<'_>) -> &'a T {
    &of[below(of.len() as u32) as usize]
}

fn shape(policies: &[String], below: Below<'_>) -> Shape {
    let pages = 700 + below(1800);
    let swap = (below(8) > 0).then(|| Swap {
        device: one_of(&DeviceKind::ALL, below).name().to_owned(),
        pages: 1 + below(pages),
    });
    let mut set = vec![
        format!("cpus={}", 1 + below(4)),
        format!("swappiness={}", one_of(&[0, 1, 60, 100, 200], below)),
        format!("readahead_pages={}", one_of(&[0, 8, 32], below)),
        format!("stat_flush_us={}", one_of(&[0, 1000, 2_000_000], below)),
    ];
    match below(3) {
        0 => set.push("nodes=2".to_owned()),
        1 => set.push(format!(
            "zones=dma={}K,normal={}K",
            4 * (16 + below(200)),
            2 * pages
        )),
        _ => {}
    }
    match below(4) {
        0 => set.push(format!("slow_memory={}K", 4 * (64 + below(pages)))),
        1 => set.extend([
            format!("slow_memory={}K", 4 * (64 + below(pages))),
            "demotion=1".to_owned(),
        ]),
        _ => {}
    }
    match below(6) {
        0 => set.push("reschedule_chance=0.1".to_owned()),
        1 => set.push("min_ttl_ms=1".to_owned()),
        2 => set.push("dirty_stays_inactive=1".to_owned()),
        3 => set.push("hw_accessed_bit=0".to_owned()),
        _ => {}
    }
    let policy = one_of(policies, below).clone();
    Shape {
        profile: profile(&policy, below),
        policy,
        pages,
        swap,
        set,
        seed: u64::from(below(1000)),
    }
}

/// Other numbers of generations and tiers for every second multi-gen LRU that is not a file's.
fn profile(policy: &str, below: Below<'_>) -> Vec<String> {
    if !policy.starts_with("mglru") || policy.ends_with(".toml") || below(2) == 0 {
        return Vec::new();
    }
    vec![
        format!("generations = {}", 4 + below(4)),
        format!("tiers = {}", 2 + below(3)),
    ]
}

/// Steps that create two cgroups, with a file and a process in each.
fn beginning(shape: &Shape, below: Below<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for group in [1, 2] {
        let bounds = bounds(shape, below);
        steps.push(Step::Group { under: 0, bounds });
        steps.push(Step::File {
            group,
            pages: 100 + below(shape.pages),
        });
        steps.push(Step::Process { group });
        let process = group - 1;
        let file = process;
        steps.push(Step::Map {
            process,
            pages: u64::from(100 + below(shape.pages)),
            huge: below(3) == 0,
            locked: false,
        });
        steps.push(Step::MapFile {
            process,
            file,
            exec: below(4) == 0,
            shared: below(2) == 0,
        });
    }
    steps
}

fn bounds(shape: &Shape, below: Below<'_>) -> Bounds {
    let some =
        |one_in: u32, below: Below<'_>| (below(one_in) == 0).then(|| u64::from(below(shape.pages)));
    Bounds {
        min: some(8, below),
        low: some(6, below),
        high: some(6, below),
        max: some(2, below),
        swap_max: some(6, below),
    }
}

fn step(shape: &Shape, below: Below<'_>) -> Step {
    let (group, process, range, file) = (below(8), below(8), below(4), below(4));
    let flag = |below: Below<'_>| below(2) == 0;
    match below(40) {
        0 => Step::Group {
            under: group,
            bounds: bounds(shape, below),
        },
        1 | 2 => Step::Limit {
            group,
            bounds: bounds(shape, below),
        },
        3 => Step::RemoveGroup { group },
        4 => Step::Swappiness {
            group,
            value: below(201),
        },
        5 => Step::Reclaim {
            group,
            pages: u64::from(1 + below(300)),
            swappiness: (below(3) == 0).then(|| below(202)),
        },
        6 => Step::File {
            group,
            pages: 1 + below(shape.pages),
        },
        7 => Step::Process { group },
        8 => Step::Fork { process },
        9 => Step::Exit { process },
        10 => Step::Run {
            process,
            cpu: below(4),
        },
        11 => Step::Map {
            process,
            pages: u64::from(1 + below(shape.pages)),
            huge: flag(below),
            locked: below(6) == 0,
        },
        12 => Step::MapFile {
            process,
            file,
            exec: flag(below),
            shared: flag(below),
        },
        13 => Step::Unmap { process, range },
        14 => Step::Discard { process, range },
        15 => Step::Set {
            path: "/sys/kernel/mm/lru_gen/enabled".to_owned(),
            text: one_of(&["y", "n", "1", "3", "5", "7", "0"], below).to_string(),
        },
        16 => command(below),
        17 => Step::Wait { us: 1 << below(22) },
        _ => access(shape, process, range, file, below),
    }
}

/// A step of the kind that programs do most often.
fn access(shape: &Shape, process: u32, range: u32, file: u32, below: Below<'_>) -> Step {
    match below(22) {
        kind @ 0..=7 => Step::Io {
            process,
            file,
            from: below(shape.pages),
            pages: 1 + below(40),
            write: kind >= 5,
        },
        _ => Step::Touch {
            process,
            range,
            from: u64::from(below(shape.pages)),
            pages: u64::from(1 + below(60)),
            write: below(2) == 0,
        },
    }
}

/// A command to `/sys/kernel/debug/lru_gen`: an aging, an eviction, or a command it refuses.
fn command(below: Below<'_>) -> Step {
    let (sign, memcg, node) = (one_of(&["+", "-"], below), below(4), below(2));
    let (seq, swappiness) = (below(9), below(202));
    let last = if *sign == "+" { below(2) } else { below(200) };
    Step::Set {
        path: "/sys/kernel/debug/lru_gen".to_owned(),
        text: format!("{sign} {memcg} {node} {seq} {swappiness} {last}"),
    }
}
