// SPDX-License-Identifier: Apache-2.0
//! Running a case.

use std::panic::{AssertUnwindSafe, catch_unwind};

use agewise_kernel::ids::MemcgId;
use thiserror::Error;

use super::case::{Case, Step};
use crate::machine::address_space::{Advice, Backing, MapOptions};
use crate::machine::{Access, FileId, Machine, ProcessId};

/// A disagreement after a step of a case.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("step {step}: {what}")]
pub struct Failure {
    /// Number of the step, from 1.
    pub step: usize,
    /// What does not agree, or the message of a panic.
    pub what: String,
}

/// Runs every step and checks the machine after each.
///
/// # Errors
/// Describes the first disagreement, and the step before it.
///
/// # Panics
/// If the machine of the case cannot be built, which does not happen with cases of [`Case::parse`]
/// and [`draw`](super::draw).
pub fn play(case: &Case) -> Result<(), Failure> {
    let config = case.shape.config().expect("a machine that can be built");
    let mut world = World {
        machine: Machine::new(config),
        groups: vec![MemcgId::ROOT],
        processes: Vec::new(),
        files: Vec::new(),
    };
    for (step, number) in case.steps.iter().zip(1..) {
        let begun_ns = world.machine.now_ns();
        let played = catch_unwind(AssertUnwindSafe(|| {
            world.step(step);
            if world.machine.now_ns() < begun_ns {
                return Err(format!("the clock went back, from {begun_ns} ns"));
            }
            world.machine.check()
        }));
        let what = match played {
            Ok(Ok(())) => continue,
            Ok(Err(what)) => what,
            Err(panic) => said(panic.as_ref()),
        };
        return Err(Failure { step: number, what });
    }
    Ok(())
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the engine gave up: {}", text.unwrap_or("without a word"))
}

struct Running {
    id: ProcessId,
    /// First page and number of pages of each range.
    ranges: Vec<(u64, u64)>,
}

/// A machine, and the objects that the numbers of a case refer to.
struct World {
    machine: Machine,
    groups: Vec<MemcgId>,
    processes: Vec<Running>,
    files: Vec<(FileId, u32)>,
}

/// The index of a number that wraps around; None if there are no objects.
fn round(number: u32, len: usize) -> Option<usize> {
    (len > 0).then(|| number as usize % len)
}

impl World {
    fn group(&self, number: u32) -> MemcgId {
        self.groups[number as usize % self.groups.len()]
    }

    fn process(&self, number: u32) -> Option<&Running> {
        Some(&self.processes[round(number, self.processes.len())?])
    }

    fn file(&self, number: u32) -> Option<(FileId, u32)> {
        Some(self.files[round(number, self.files.len())?])
    }

    /// A step without an object to act on does nothing.
    fn step(&mut self, step: &Step) {
        self.cgroups(step);
        self.memory(step);
        let machine = &mut self.machine;
        self.processes.retain(|of| machine.is_alive(of.id));
    }

    fn cgroups(&mut self, step: &Step) {
        match *step {
            Step::Group { under, bounds } => {
                let (name, under) = (format!("g{}", self.groups.len()), self.group(under));
                let group = self.machine.add_memcg(under, &name, bounds.limits());
                self.groups.push(group);
            }
            Step::Limit { group, bounds } => {
                let group = self.group(group);
                if group != MemcgId::ROOT {
                    self.machine.set_limits(group, bounds.limits());
                }
            }
            Step::RemoveGroup { group } => {
                let group = self.group(group);
                for process in &self.processes {
                    if self.machine.memcg_of_process(process.id) == group {
                        self.machine.exit(process.id);
                    }
                }
                if self.machine.remove_memcg(group).is_ok() {
                    self.groups.retain(|other| *other != group);
                }
            }
            Step::Swappiness { group, value } => {
                let group = self.group(group);
                self.machine.set_swappiness(group, value);
            }
            Step::Reclaim {
                group,
                pages,
                swappiness,
            } => {
                let group = self.group(group);
                // Reclaiming less than asked for is not an error.
                let _ = self.machine.reclaim_memcg(group, pages, swappiness);
            }
            Step::File { group, pages } => {
                let group = self.group(group);
                let file = self.machine.add_file(pages.max(1), group, Advice::Normal);
                self.files.push((file, pages.max(1)));
            }
            Step::Process { group } => {
                let id = self.machine.add_process(self.group(group));
                self.processes.push(Running {
                    id,
                    ranges: Vec::new(),
                });
            }
            Step::Set { ref path, ref text } => {
                let _ = self.machine.write_file(path, text.as_bytes());
            }
            Step::Wait { us } => self.machine.wait_ns(us.saturating_mul(1000)),
            _ => {}
        }
    }

    fn memory(&mut self, step: &Step) -> Option<()> {
        match *step {
            Step::Fork { process } => {
                let parent = self.process(process)?;
                let ranges = parent.ranges.clone();
                let id = self.machine.fork(parent.id)?;
                self.processes.push(Running { id, ranges });
            }
            Step::Exit { process } => {
                let id = self.process(process)?.id;
                self.machine.exit(id);
            }
            Step::Run { process, cpu } => {
                let id = self.process(process)?.id;
                let cpus = self.machine.config().cpus;
                self.machine.set_cpu(cpu as usize % cpus);
                self.machine.schedule(id);
            }
            Step::Map {
                process,
                pages,
                huge,
                locked,
            } => {
                let options = MapOptions {
                    huge,
                    locked,
                    ..MapOptions::anon(pages.max(1))
                };
                self.map(process, &options)?;
            }
            Step::MapFile {
                process,
                file,
                exec,
                shared,
            } => {
                let (file, pages) = self.file(file)?;
                let options = MapOptions {
                    backing: Backing::File {
                        file: file.number(),
                        first_page: 0,
                    },
                    exec,
                    shared,
                    ..MapOptions::anon(u64::from(pages))
                };
                self.map(process, &options)?;
            }
            Step::Unmap { process, range } => {
                let at = round(process, self.processes.len())?;
                let of = &mut self.processes[at];
                let (start_vpn, _) = of.ranges.remove(round(range, of.ranges.len())?);
                self.machine.unmap(of.id, start_vpn);
            }
            _ => self.accesses(step)?,
        }
        Some(())
    }

    fn map(&mut self, process: u32, options: &MapOptions) -> Option<()> {
        let at = round(process, self.processes.len())?;
        let start_vpn = self.machine.map(self.processes[at].id, options)?;
        self.processes[at].ranges.push((start_vpn, options.pages));
        Some(())
    }

    fn accesses(&mut self, step: &Step) -> Option<()> {
        match *step {
            Step::Discard { process, range } => {
                let of = self.process(process)?;
                let (id, (start_vpn, _)) = (of.id, of.ranges[round(range, of.ranges.len())?]);
                self.machine.discard(id, start_vpn);
            }
            Step::Touch {
                process,
                range,
                from,
                pages,
                write,
            } => {
                let of = self.process(process)?;
                let (id, (start_vpn, len)) = (of.id, of.ranges[round(range, of.ranges.len())?]);
                for page in 0..pages.min(len) {
                    let vpn = start_vpn + from.wrapping_add(page) % len;
                    if self.machine.access(id, vpn, write) == Access::Killed {
                        break;
                    }
                }
            }
            Step::Io {
                process,
                file,
                from,
                pages,
                write,
            } => {
                let (id, (file, len)) = (self.process(process)?.id, self.file(file)?);
                match write {
                    true => self.machine.write(id, file, from % len, pages),
                    false => self.machine.read(id, file, from % len, pages),
                };
            }
            _ => {}
        }
        Some(())
    }
}
