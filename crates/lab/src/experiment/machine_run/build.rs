// SPDX-License-Identifier: Apache-2.0
//! Building the processes of a workload.

use std::cmp::Reverse;
use std::sync::Arc;

use agewise_kernel::ids::MemcgId;

use super::super::task::{Area, Driver, Phase, Place, Script, Stream, Task, TraceScript};
use super::{Run, RunError};
use crate::machine::address_space::{Advice, MapOptions};
use crate::machine::{FileId, Limits, Machine, ProcessId, UNLIMITED};
use crate::workload::kernel_trace::{Medium, TraceGenerator};
use crate::workload::random::Zipf;
use crate::workload::spec::{
    AdviceSpec, AreaSpec, FileSpec, ProcessSpec, StreamOrder, StreamSpec, TraceTable, Workload,
    WorkloadError, zone_index,
};

impl Run {
    pub(super) fn start_workload(&mut self, workload: &Arc<Workload>) -> Result<(), RunError> {
        self.workload = Some(Arc::clone(workload));
        for group in &workload.cgroup {
            let pages = |size: &Option<String>, default| match size {
                Some(size) => workload.pages("cgroup limit", size),
                None => Ok(default),
            };
            let limits = Limits {
                min_pages: pages(&group.min, 0)?,
                low_pages: pages(&group.low, 0)?,
                high_pages: pages(&group.high, UNLIMITED)?,
                max_pages: pages(&group.max, UNLIMITED)?,
                swap_max_pages: pages(&group.swap_max, UNLIMITED)?,
            };
            let id = self.machine.add_memcg(self.memcg, &group.name, limits);
            self.groups.insert(group.name.clone(), id);
        }
        for file in &workload.file {
            let file = add_file(&mut self.machine, workload, file, self.memcg)?;
            self.files.push(file);
        }
        if let Some(trace) = &workload.trace {
            self.start_trace(trace)?;
        }
        for (kind, process) in workload.process.iter().enumerate() {
            for _ in 0..process.count {
                let start_ns = process.start_ms.saturating_mul(1_000_000);
                let repeats = process.repeat.saturating_sub(1);
                self.start_process(workload, kind, start_ns, repeats)?;
            }
        }
        Ok(())
    }

    pub(super) fn enqueue(&mut self, at_ns: u64, task: usize) {
        self.ready.push(Reverse((at_ns, self.queued, task)));
        self.queued += 1;
    }

    pub(super) fn add_task(
        &mut self,
        at_ns: u64,
        process: ProcessId,
        driver: Driver,
        kind: Option<usize>,
        repeats_left: u32,
    ) {
        let cpu = self.tasks.len() % self.cpu_free_ns.len();
        if self.processes.last() != Some(&process) {
            self.processes.push(process);
        }
        self.phase_start_ns.push((usize::MAX, 0));
        self.phases_ended.push(0);
        self.tasks.push(Task {
            process,
            driver,
            cpu,
            kind,
            repeats_left,
        });
        self.enqueue(at_ns, self.tasks.len() - 1);
    }

    fn start_process(
        &mut self,
        workload: &Workload,
        kind: usize,
        at_ns: u64,
        repeats: u32,
    ) -> Result<(), RunError> {
        let (process, script) = self.make_process(workload, kind)?;
        for _ in 1..workload.process[kind].threads {
            let thread = Driver::Script(Box::new(script.child(self.random.draw())));
            self.add_task(at_ns, process, thread, Some(kind), 0);
        }
        let driver = Driver::Script(Box::new(script));
        self.add_task(at_ns, process, driver, Some(kind), repeats);
        Ok(())
    }

    pub(super) fn make_process(
        &mut self,
        workload: &Workload,
        kind: usize,
    ) -> Result<(ProcessId, Script), RunError> {
        let spec = &workload.process[kind];
        let memcg = spec
            .cgroup
            .as_ref()
            .and_then(|name| self.groups.get(name).copied())
            .unwrap_or(self.memcg);
        let process = self.machine.add_process(memcg);
        self.machine.name_process(process, &spec.name);
        if let Some(zone) = spec.highest_zone.as_deref().and_then(zone_index) {
            self.machine.restrict_zone(process, zone);
        }
        let areas = spec
            .area
            .iter()
            .map(|area| self.make_area(workload, process, spec, area))
            .collect::<Result<Vec<Area>, RunError>>()?;
        let mut phases = Vec::new();
        for phase in &spec.phase {
            let populate = phase
                .populate
                .iter()
                .map(|name| workload.area_index(spec, name))
                .collect::<Result<Vec<usize>, WorkloadError>>()?;
            let streams = phase
                .stream
                .iter()
                .map(|stream| self.make_stream(workload, spec, &areas, stream))
                .collect::<Result<Vec<Stream>, RunError>>()?;
            let release = phase
                .release
                .iter()
                .map(|name| workload.area_index(spec, name))
                .collect::<Result<Vec<usize>, WorkloadError>>()?;
            phases.push(Phase::new(phase, populate, streams, release));
        }
        let seed = self.random.draw();
        Ok((process, Script::new(areas, phases, seed, spec.forks)))
    }

    fn make_area(
        &mut self,
        workload: &Workload,
        process: ProcessId,
        spec: &ProcessSpec,
        area: &AreaSpec,
    ) -> Result<Area, RunError> {
        let pages = workload.area_pages(area)?;
        let file = match &area.file {
            Some(name) => {
                let (index, file) = workload.find_file(name)?;
                if area.own {
                    Some(add_file(&mut self.machine, workload, file, self.memcg)?)
                } else {
                    Some(self.files[index])
                }
            }
            None => None,
        };
        let place = match file {
            Some(file) if !area.mmap => Place::Read(file),
            _ => {
                let options = MapOptions {
                    advice: match area.advice {
                        AdviceSpec::Normal => Advice::Normal,
                        AdviceSpec::Random => Advice::Random,
                        AdviceSpec::Sequential => Advice::Sequential,
                    },
                    locked: area.locked,
                    huge: area.huge,
                    ..match file {
                        Some(file) => MapOptions::file(file.number(), pages),
                        None => MapOptions::anon(pages),
                    }
                };
                Place::Mapped {
                    start_vpn: self
                        .machine
                        .map(process, &options)
                        .ok_or_else(|| RunError::AddressSpace(spec.name.clone()))?,
                    anon: file.is_none(),
                }
            }
        };
        Ok(Area {
            place,
            pages: pages as u32,
        })
    }

    fn make_stream(
        &mut self,
        workload: &Workload,
        process: &ProcessSpec,
        areas: &[Area],
        spec: &StreamSpec,
    ) -> Result<Stream, RunError> {
        let area = workload.area_index(process, &spec.area)?;
        let all = f64::from(areas[area].pages);
        let first = (all * spec.from) as u32;
        let end = ((all * spec.to) as u32)
            .max(first + 1)
            .min(areas[area].pages);
        let pages = end.saturating_sub(first).max(1);
        let parameter = match spec.order {
            StreamOrder::Zipf => Some(spec.theta),
            StreamOrder::Gaussian => Some(spec.deviation),
            StreamOrder::Exponential => Some(0.0),
            StreamOrder::Uniform | StreamOrder::Scan => None,
        };
        let zipf = match parameter {
            Some(parameter) => {
                let key = (spec.order, pages, parameter.to_bits());
                let zipf = match (self.zipfs.get(&key), spec.order) {
                    (Some(zipf), _) => Arc::clone(zipf),
                    (None, StreamOrder::Gaussian) => Arc::new(Zipf::gaussian(pages, parameter)?),
                    (None, StreamOrder::Exponential) => Arc::new(Zipf::exponential(pages)?),
                    (None, _) => Arc::new(Zipf::new(pages, parameter, self.seed)?),
                };
                self.zipfs.insert(key, Arc::clone(&zipf));
                Some(zipf)
            }
            None => None,
        };
        Ok(Stream {
            area,
            order: spec.order,
            zipf,
            write: spec.write,
            first: first.min(areas[area].pages - pages),
            pages,
            shifts: spec.shifts,
            until: 1.0,
            cursor: 0,
        })
    }

    fn start_trace(&mut self, trace: &TraceTable) -> Result<(), RunError> {
        let generator = TraceGenerator::new(&trace.spec(self.seed))?;
        let medium = generator.pattern().medium;
        let process = self.machine.add_process(self.memcg);
        self.machine.charge_process_objects(process);
        let (anon_pages, file_pages) = match medium {
            Medium::Anon => (trace.pages, 0),
            Medium::Mixed => (trace.hot, trace.pages),
            Medium::File | Medium::Mmap => (0, trace.pages),
        };
        let no_room = || RunError::AddressSpace(trace.pattern.clone());
        let start_vpn = self
            .machine
            .map(process, &MapOptions::anon(anon_pages.into()))
            .ok_or_else(no_room)?;
        let anon = Area {
            place: Place::Mapped {
                start_vpn,
                anon: true,
            },
            pages: anon_pages,
        };
        let file = self
            .machine
            .add_file(file_pages, self.memcg, Advice::Random);
        let place = if medium == Medium::Mmap {
            let options = MapOptions::file(file.number(), file_pages.into());
            Place::Mapped {
                start_vpn: self.machine.map(process, &options).ok_or_else(no_room)?,
                anon: false,
            }
        } else {
            Place::Read(file)
        };
        let file = Area {
            place,
            pages: file_pages,
        };
        let populate = if medium == Medium::Mixed {
            anon_pages
        } else {
            trace.pages
        };
        let script = TraceScript::new(generator, anon, file, populate, trace.touches);
        self.add_task(0, process, Driver::Trace(Box::new(script)), None, 0);
        Ok(())
    }
}

fn add_file(
    machine: &mut Machine,
    workload: &Workload,
    file: &FileSpec,
    memcg: MemcgId,
) -> Result<FileId, RunError> {
    let pages = workload.pages("size", &file.size)? as u32;
    let advice = if file.readahead {
        Advice::Normal
    } else {
        Advice::Random
    };
    Ok(machine.add_file(pages, memcg, advice))
}
