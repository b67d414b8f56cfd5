// SPDX-License-Identifier: Apache-2.0
//! What each process of a workload does next.

use std::sync::Arc;

use crate::machine::{FileId, ProcessId};
use crate::workload::kernel_trace::{FILE_BIT, Medium, TraceGenerator};
use crate::workload::random::{XorShift64Star, Zipf};
use crate::workload::spec::{PhaseSpec, StreamOrder};

/// An operation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Touches a page of its address space.
    Touch {
        /// The page.
        vpn: u64,
        write: bool,
    },
    /// Reads or writes a page of a file.
    Io {
        file: FileId,
        /// Its page.
        index: u32,
        write: bool,
    },
    /// Waits until all processes of its kind have ended the phase before; returned again until
    /// [`Driver::set_waited`].
    Meet {
        /// The phase about to begin.
        phase: usize,
    },
    /// Begins a phase, or a repetition of one.
    Begin {
        /// Index of the phase.
        phase: usize,
    },
    /// Ends a phase. The next repetition starts `period_ns` after the start of this one.
    End {
        /// Index of the phase.
        phase: usize,
        /// Period, in ns; 0 to go on at once.
        period_ns: u64,
    },
    /// Waits until no file page is dirty; returned again until [`Driver::set_waited`].
    Sync,
    /// Frees the pages mapped in an area.
    Release {
        /// Its first page.
        start_vpn: u64,
    },
    /// Forks its children.
    Fork,
    Exit,
}

/// Where an area is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Mapped, starting at a page.
    Mapped {
        /// First page.
        start_vpn: u64,
        /// Whether it is anonymous memory, which is written when populated.
        anon: bool,
    },
    /// Read through a descriptor.
    Read(FileId),
}

/// An area of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub place: Place,
    pub pages: u32,
}

impl Area {
    fn operation(&self, page: u32, write: bool) -> Operation {
        match self.place {
            Place::Mapped { start_vpn, .. } => Operation::Touch {
                vpn: start_vpn + u64::from(page),
                write,
            },
            Place::Read(file) => Operation::Io {
                file,
                index: page,
                write,
            },
        }
    }

    fn populate(&self, page: u32) -> Operation {
        let anon = matches!(self.place, Place::Mapped { anon: true, .. });
        self.operation(page, anon)
    }
}

/// A stream, ready to draw from.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub area: usize,
    pub order: StreamOrder,
    pub zipf: Option<Arc<Zipf>>,
    pub write: f64,
    pub first: u32,
    pub pages: u32,
    pub shifts: u32,
    /// Upper end of its share of the unit interval.
    pub until: f64,
    /// Position of its scan.
    pub cursor: u32,
}

impl Stream {
    fn draw(&mut self, random: &mut XorShift64Star, t: u64, touches: u64) -> u32 {
        let page = match (self.order, &self.zipf) {
            (_, Some(zipf)) => {
                let moved = t.saturating_mul(u64::from(self.shifts)) / touches.max(1);
                let by = moved * u64::from(self.pages / 4);
                ((u64::from(zipf.draw(random)) + by) % u64::from(self.pages)) as u32
            }
            (StreamOrder::Scan, _) => {
                let at = self.cursor;
                self.cursor = if at + 1 == self.pages { 0 } else { at + 1 };
                at
            }
            (_, None) => random.below(self.pages),
        };
        self.first + page
    }
}

/// A phase, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    populate: Vec<usize>,
    touches: u64,
    think_ns: u64,
    streams: Vec<Stream>,
    release: Vec<usize>,
    sync: bool,
    together: bool,
    repeat: u32,
    period_ns: u64,
}

impl Phase {
    /// Makes a phase; `populate`, `streams` and `release` are those of `spec`, resolved.
    pub fn new(
        spec: &PhaseSpec,
        populate: Vec<usize>,
        mut streams: Vec<Stream>,
        release: Vec<usize>,
    ) -> Phase {
        let total: f64 = spec.stream.iter().map(|stream| stream.weight).sum();
        let mut sum = 0.0;
        for (stream, spec) in streams.iter_mut().zip(&spec.stream) {
            sum += spec.weight;
            stream.until = sum / total;
        }
        Phase {
            populate,
            touches: spec.touches,
            think_ns: spec.think_ns,
            streams,
            release,
            sync: spec.sync,
            together: spec.together,
            repeat: spec.repeat.max(1),
            period_ns: spec.every_ms.saturating_mul(1_000_000),
        }
    }
}

/// What a process does, and its progress.
#[derive(Clone, Debug)]
pub(super) struct Script {
    areas: Vec<Area>,
    phases: Vec<Phase>,
    random: XorShift64Star,
    pub forks: u32,
    phase: usize,
    populated: usize,
    page: u32,
    t: u64,
    begun: bool,
    released: usize,
    /// Whether the wait for the current condition is over.
    waited: bool,
    repetition: u32,
}

impl Script {
    pub fn new(areas: Vec<Area>, phases: Vec<Phase>, seed: u64, forks: u32) -> Script {
        Script {
            areas,
            phases,
            // With a state of 0, the generator would return only 0.
            random: XorShift64Star::new(seed | 1),
            forks,
            phase: 0,
            populated: 0,
            page: 0,
            t: 0,
            begun: false,
            released: 0,
            waited: false,
            repetition: 0,
        }
    }

    /// The script of a child that was just forked, or of another thread.
    pub fn child(&self, seed: u64) -> Script {
        Script {
            random: XorShift64Star::new(seed | 1),
            forks: 0,
            ..self.clone()
        }
    }

    fn think_ns(&self) -> u64 {
        self.phases
            .get(self.phase)
            .map_or(0, |phase| phase.think_ns)
    }

    fn next(&mut self) -> Operation {
        loop {
            let Some(phase) = self.phases.get_mut(self.phase) else {
                return Operation::Exit;
            };
            if !self.begun {
                let first = self.phase == 0 || self.repetition > 0;
                if phase.together && !first && !self.waited {
                    return Operation::Meet { phase: self.phase };
                }
                (self.begun, self.waited) = (true, false);
                return Operation::Begin { phase: self.phase };
            }
            if let Some(&index) = phase.populate.get(self.populated) {
                let area = &self.areas[index];
                if self.page < area.pages {
                    self.page += 1;
                    return area.populate(self.page - 1);
                }
                self.populated += 1;
                self.page = 0;
                continue;
            }
            if self.t < phase.touches {
                let unit = self.random.unit();
                let last = phase.streams.len() - 1;
                let chosen = phase.streams.iter().position(|stream| unit < stream.until);
                let stream = &mut phase.streams[chosen.unwrap_or(last)];
                let page = stream.draw(&mut self.random, self.t, phase.touches);
                let write = stream.write > 0.0 && self.random.unit() < stream.write;
                self.t += 1;
                return self.areas[stream.area].operation(page, write);
            }
            if phase.sync && !self.waited {
                return Operation::Sync;
            }
            if let Some(&index) = phase.release.get(self.released) {
                self.released += 1;
                if let Place::Mapped { start_vpn, .. } = self.areas[index].place {
                    return Operation::Release { start_vpn };
                }
                continue;
            }
            return self.end_phase();
        }
    }

    /// Ends a phase, which is then repeated or followed by the next.
    fn end_phase(&mut self) -> Operation {
        let phase = self.phase;
        let Phase {
            repeat, period_ns, ..
        } = self.phases[phase];
        (self.populated, self.page, self.t) = (0, 0, 0);
        (self.begun, self.released, self.waited) = (false, 0, false);
        self.repetition += 1;
        if self.repetition < repeat {
            return Operation::End { phase, period_ns };
        }
        self.repetition = 0;
        self.phase += 1;
        if self.phase == 1 && self.forks > 0 {
            // Children begin with the next phase.
            return Operation::Fork;
        }
        Operation::End {
            phase,
            period_ns: 0,
        }
    }
}

/// A trace of the kernel reference, and its progress.
#[derive(Clone, Debug)]
pub(super) struct TraceScript {
    generator: TraceGenerator,
    anon: Area,
    file: Area,
    populate_pages: u32,
    touches: u64,
    page: u32,
    t: u64,
    warm: bool,
}

impl TraceScript {
    pub fn new(
        generator: TraceGenerator,
        anon: Area,
        file: Area,
        populate_pages: u32,
        touches: u64,
    ) -> TraceScript {
        TraceScript {
            generator,
            anon,
            file,
            populate_pages,
            touches,
            page: 0,
            t: 0,
            warm: true,
        }
    }

    fn area(&self, code: u32) -> &Area {
        match self.generator.pattern().medium {
            Medium::Anon => &self.anon,
            Medium::Mixed if code & FILE_BIT == 0 => &self.anon,
            Medium::File | Medium::Mmap | Medium::Mixed => &self.file,
        }
    }

    fn next(&mut self) -> Operation {
        if self.page < self.populate_pages {
            self.page += 1;
            return self.area(0).populate(self.page - 1);
        }
        if self.warm && self.t >= self.touches / 4 {
            (self.warm, self.t) = (false, 0);
        }
        let touches = if self.warm {
            self.touches / 4
        } else {
            self.touches
        };
        if self.t >= touches {
            return Operation::Exit;
        }
        let code = self.generator.next(self.t, touches);
        self.t += 1;
        self.area(code).operation(code & !FILE_BIT, false)
    }
}

/// The source of a process's operations.
#[derive(Clone, Debug)]
pub(super) enum Driver {
    /// A workload's process.
    Script(Box<Script>),
    Trace(Box<TraceScript>),
}

impl Driver {
    #[inline]
    pub fn next(&mut self) -> Operation {
        match self {
            Driver::Script(script) => script.next(),
            Driver::Trace(script) => script.next(),
        }
    }

    /// Ends the wait for the current condition.
    pub fn set_waited(&mut self) {
        if let Driver::Script(script) = self {
            script.waited = true;
        }
    }

    /// Think time before the next operation, in ns.
    #[inline]
    pub fn think_ns(&self) -> u64 {
        match self {
            Driver::Script(script) => script.think_ns(),
            Driver::Trace(_) => 0,
        }
    }
}

/// A running process.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub process: ProcessId,
    pub driver: Driver,
    pub cpu: usize,
    /// Kind of process in the workload, for restarts; None for a child or a trace.
    pub kind: Option<usize>,
    /// Number of restarts left.
    pub repeats_left: u32,
}
