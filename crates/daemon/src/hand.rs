// SPDX-License-Identifier: Apache-2.0
//! What the daemon moves memory with: pageout page by page, the oldest first; marking as the first
//! to go; and the kernel's own reclaim where it can be asked.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use agewise_host::agent::{Agent, Space};
use agewise_host::clear::hand::{ClearHand, KernelHand, MAX_RANGES};
use agewise_host::clock;
use agewise_host::eye::{AddressRange, PAGE_BYTES, Target};
use agewise_host::pageout::{
    Eviction, NoRecheck, PageoutError, PageoutLimits, Plan, ProcessMover, Step, SystemClock,
};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_policy::generations::{ByType, LABEL_UNSEEN, PageType};
use serde::Serialize;

use agewise_cli::lean::{self, Wanted};

/// Between two looks at accessed bits so much is moved: the look is milliseconds old at most.
const CHUNK_BYTES: u64 = 4 << 20;
/// Troubles told of one action.
const TROUBLES_MAX: usize = 3;
/// Ages between the youngest asked for and the oldest known grow by this factor: how closely "oldest
/// first" is kept.
const AGE_STEP: f64 = 1.25;

/// What an action did, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Done {
    /// Were old enough, and looked at again.
    pub tried_bytes: u64,
    /// Were touched since.
    pub young_again_bytes: u64,
    /// Left, anonymous.
    pub left_anon_bytes: u64,
    /// Left, of files.
    pub left_file_bytes: u64,
    /// Would have been tried, in a rehearsal.
    pub rehearsed_bytes: u64,
    /// Marked as the first to go.
    pub sorted_bytes: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// What stood in the way; a few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

impl Done {
    fn trouble(&mut self, trouble: String) {
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(trouble);
        }
    }

    /// Bytes that left.
    pub fn left_bytes(&self) -> u64 {
        self.left_anon_bytes.saturating_add(self.left_file_bytes)
    }
}

/// Ages by type; `None`: nothing of this type.
pub type Older = ByType<Option<u64>>;

/// Moves what is old out of processes that an agent observes.
pub struct PageOut<'a> {
    /// Knows the ages.
    pub agent: &'a mut Agent,
    /// Becomes true when it is to end.
    pub cancel: &'a AtomicBool,
    /// Look, but do not touch.
    pub rehearse: bool,
}

impl PageOut<'_> {
    /// Moves at most `bytes_max` of what is older out of `pids`, the oldest first.
    pub fn run(&mut self, pids: &[u32], older_than_ms: Older, bytes_max: u64) -> Done {
        let began_ns = clock::thread_cpu_ns();
        let mut done = Done::default();
        let surely = self.oldest_that_fit(pids, older_than_ms, bytes_max);
        for ages in [surely, Some(older_than_ms)].into_iter().flatten() {
            for pid in pids {
                let went = done.tried_bytes;
                if went >= bytes_max || self.cancel.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = self.run_one(*pid, ages, bytes_max - went, &mut done) {
                    done.trouble(format!(
                        "process {pid}: {}",
                        agewise_cli::output::chain(&error)
                    ));
                }
            }
            // In a rehearsal nothing leaves, and the same would be found twice.
            if done.tried_bytes >= bytes_max || self.rehearse || surely == Some(older_than_ms) {
                break;
            }
        }
        done.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        done
    }

    /// The youngest ages at which all that is older fits; `None` if only a part of the oldest does.
    fn oldest_that_fit(&self, pids: &[u32], older_than_ms: Older, bytes_max: u64) -> Option<Older> {
        let youngest_ms = older_than_ms.iter().flatten().min()?;
        let now_ms = Agent::now_ms();
        let spaces: Vec<&Space> = pids
            .iter()
            .filter_map(|pid| self.agent.space(*pid))
            .collect();
        let known = spaces.iter().filter_map(|space| {
            let window = space.map().generations();
            let first = window
                .iter()
                .next()
                .map(|(_, generation)| generation.birth_ms);
            first.or(window.unseen_since_ms())
        });
        let oldest_ms = now_ms.saturating_sub(known.min()?);
        let mut at_ms = *youngest_ms;
        loop {
            let ages = older_than_ms.map(|age| age.map(|age| age.max(at_ms)));
            let bytes: u64 = spaces
                .iter()
                .map(|space| older_bytes(space, now_ms, ages))
                .sum();
            if bytes <= bytes_max {
                return (bytes > 0).then_some(ages);
            }
            if at_ms > oldest_ms {
                return None;
            }
            at_ms = (at_ms as f64 * AGE_STEP) as u64 + 1;
        }
    }

    fn run_one(
        &mut self,
        pid: u32,
        ages: Older,
        bytes_max: u64,
        done: &mut Done,
    ) -> anyhow::Result<()> {
        let Some(space) = self.agent.space(pid) else {
            return Ok(());
        };
        let target = Target::from(space.process());
        let process = match Process::open_user(&ProcRoot::default(), pid) {
            Ok(process) if Some(process.start_ticks()) == target.start_ticks => process,
            _ => return Ok(()),
        };
        let runs = runs_older_than(space, ages, bytes_max);
        if runs.is_empty() {
            return Ok(());
        }
        let mut mover = match ProcessMover::open(&process, false) {
            Ok(mover) => mover,
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut rest = runs.as_slice();
        while !rest.is_empty() && !self.cancel.load(Ordering::Relaxed) {
            let mut bytes = 0;
            let length = rest.iter().take_while(|(range, _)| {
                let fits = bytes == 0 || bytes + range.len() <= CHUNK_BYTES;
                bytes += range.len();
                fits
            });
            let (chunk, later) = rest.split_at(length.count().max(1));
            rest = later;
            match self.move_chunk(target, &mut mover, chunk, done) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn move_chunk(
        &mut self,
        target: Target,
        mover: &mut ProcessMover<'_>,
        chunk: &[(AddressRange, bool)],
        done: &mut Done,
    ) -> anyhow::Result<()> {
        let ranges: Vec<AddressRange> = chunk.iter().map(|(range, _)| *range).collect();
        let is_file = chunk.iter().map(|(_, is_file)| *is_file).collect();
        let started = target.start_ticks.unwrap_or(0);
        let wanted = Wanted::Untouched;
        let idle = lean::see_now(self.agent, target.pid, started, &ranges, is_file, wanted)?;
        let idle_bytes = idle.bytes.iter().sum::<u64>();
        let all_bytes: u64 = ranges.iter().map(AddressRange::len).sum();
        done.tried_bytes += idle_bytes;
        done.young_again_bytes += all_bytes.saturating_sub(idle_bytes);
        let plan = Plan::new(idle.base, idle.huge, false);
        if self.rehearse {
            done.rehearsed_bytes += idle_bytes;
            return Ok(());
        }
        let limits = PageoutLimits::default();
        let mut recheck = NoRecheck;
        let clock = SystemClock;
        let mut eviction = Eviction::new(&plan, limits, mover, &mut recheck, &clock, self.cancel);
        while eviction.step()? != Step::Done {}
        done.left_anon_bytes += eviction.report().left_anon_bytes;
        done.left_file_bytes += eviction.report().left_file_bytes;
        Ok(())
    }

    /// Marks what is older as the first to go (`MADV_COLD`).
    pub fn sort(&mut self, pids: &[u32], older_than_ms: Older, bytes_max: u64) -> Done {
        let began_ns = clock::thread_cpu_ns();
        let mut done = Done::default();
        for pid in pids {
            let room = bytes_max.saturating_sub(done.tried_bytes);
            let Some(space) = self.agent.space(*pid).filter(|_| room > 0) else {
                continue;
            };
            let runs = runs_older_than(space, older_than_ms, room);
            let ranges: Vec<AddressRange> = runs.into_iter().map(|(range, _)| range).collect();
            let bytes: u64 = ranges.iter().map(AddressRange::len).sum();
            done.tried_bytes += bytes;
            if self.rehearse {
                done.rehearsed_bytes += bytes;
                continue;
            }
            let mut hand = KernelHand::new(space.process());
            for batch in ranges.chunks(MAX_RANGES) {
                match hand.cold(batch) {
                    Ok(count) => {
                        done.sorted_bytes +=
                            batch[..count].iter().map(AddressRange::len).sum::<u64>();
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                    Err(error) => {
                        done.trouble(format!("process {pid}: cannot mark: {error}"));
                        break;
                    }
                }
            }
        }
        done.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        done
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<PageoutError>()
        .is_some_and(PageoutError::is_gone)
        || error
            .downcast_ref::<agewise_host::eye::EyeError>()
            .is_some_and(|error| error.is_target_gone())
}

/// Bytes of a process that are older, by the sizes of its generations.
fn older_bytes(space: &Space, now_ms: u64, ages: Older) -> u64 {
    let window = space.map().generations();
    let of = |page_type: PageType| {
        let age_ms = ages[page_type as usize]?;
        let (first, last) = window.labels_older_than(now_ms, age_ms)?;
        debug_assert!(first >= LABEL_UNSEEN);
        let labels = usize::from(first)..=usize::from(last);
        Some(
            window.sizes()[labels]
                .iter()
                .map(|sizes| sizes[page_type as usize])
                .sum::<u64>(),
        )
    };
    PageType::ALL.into_iter().filter_map(of).sum::<u64>() * PAGE_BYTES
}

/// Runs of pages that are older, with whether a file backs them, at most `bytes_max` in all (the
/// last one is cut).
fn runs_older_than(space: &Space, ages: Older, bytes_max: u64) -> Vec<(AddressRange, bool)> {
    /// 24 MiB of memory for them; what lies beyond waits for the next time.
    const RUNS_MAX: usize = 1 << 20;
    let mut runs: Vec<(AddressRange, bool)> = Vec::new();
    let mut room = bytes_max / PAGE_BYTES;
    let now_ms = Agent::now_ms();
    let mut collect = |age_ms: u64, wanted: [bool; 2]| {
        space
            .map()
            .runs_older_than(0..u64::MAX / PAGE_BYTES, now_ms, age_ms, |run| {
                if !wanted[run.page_type as usize] {
                    return ControlFlow::Continue(());
                }
                let pages = (run.pages.end - run.pages.start).min(room);
                room -= pages;
                let start = run.pages.start * PAGE_BYTES;
                let end = start + pages * PAGE_BYTES;
                if pages > 0 {
                    runs.push((AddressRange { start, end }, run.page_type == PageType::File));
                }
                match room == 0 || runs.len() >= RUNS_MAX {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
    };
    match ages {
        [Some(anon_ms), Some(file_ms)] if anon_ms == file_ms => collect(anon_ms, [true, true]),
        [anon_ms, file_ms] => {
            if let Some(age_ms) = anon_ms {
                collect(age_ms, [true, false]);
            }
            if let Some(age_ms) = file_ms {
                collect(age_ms, [false, true]);
            }
        }
    }
    runs.sort_unstable_by_key(|(range, _)| range.start);
    runs
}
