// SPDX-License-Identifier: Apache-2.0
//! What reclaim did, event by event, as ftrace would print it.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use agewise_kernel::ids::NodeId;
use agewise_kernel::tracepoint::Tracepoint;

use super::{Machine, ProcessId};

/// The most events that are kept: a few hundred MiB.
const EVENTS_MAX: usize = 1 << 21;

/// Process numbers begin here, those of kswapd below.
const PID_FIRST: usize = 1000;

/// Who runs: its name and number.
type Task = (Arc<str>, usize);

/// Events so far.
#[derive(Debug)]
pub struct Tracer {
    task: Task,
    events: Vec<Traced>,
    lost: u64,
}

/// One event.
#[derive(Clone, Debug)]
struct Traced {
    at_ns: u64,
    cpu: usize,
    task: Task,
    tracepoint: Tracepoint,
}

impl Tracer {
    /// Something happened.
    pub(super) fn add(&mut self, at_ns: u64, cpu: usize, tracepoint: &Tracepoint) {
        if self.events.len() == EVENTS_MAX {
            self.lost += 1;
            return;
        }
        self.events.push(Traced {
            at_ns,
            cpu,
            task: self.task.clone(),
            tracepoint: *tracepoint,
        });
    }
}

/// The events of a machine in order of time.
#[derive(Clone, Debug)]
pub struct EventTrace {
    events: Vec<Traced>,
    lost: u64,
}

impl EventTrace {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many more happened than are kept, at the end of the run.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes them as `/sys/kernel/tracing/trace` has them.
    ///
    /// # Errors
    /// What `out` fails with.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (kept, all) = (self.len(), self.len() as u64 + self.lost);
        writeln!(out, "# tracer: nop\n#")?;
        writeln!(out, "# entries-in-buffer/entries-written: {kept}/{all}\n#")?;
        writeln!(
            out,
            "#           TASK-PID     CPU#  FLAGS  TIMESTAMP  FUNCTION"
        )?;
        self.events
            .iter()
            .try_for_each(|event| writeln!(out, "{event}"))
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, pid) = &self.task;
        let (seconds, rest_ns) = (self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000);
        write!(
            f,
            "{name:>16}-{pid:<7} [{:03}] ..... {seconds:5}.{:06}: {}",
            self.cpu,
            rest_ns / 1000,
            self.tracepoint
        )
    }
}

impl Machine {
    /// From now on keeps what reclaim does, event by event.
    pub fn trace_events(&mut self) {
        self.sys.tracer = Some(Box::new(Tracer {
            task: ("swapper".into(), 0),
            events: Vec::new(),
            lost: 0,
        }));
    }

    /// What reclaim did since [`Machine::trace_events`]; nothing is kept from now on.
    pub fn take_event_trace(&mut self) -> EventTrace {
        let (mut events, lost) = match self.sys.tracer.take() {
            Some(tracer) => (tracer.events, tracer.lost),
            None => (Vec::new(), 0),
        };
        // What runs beside a process is simulated separately from it.
        events.sort_by_key(|event| event.at_ns);
        EventTrace { events, lost }
    }

    /// Gives a process the name that events have: 15 letters, digits and `-` of it.
    pub fn name_process(&mut self, process: ProcessId, name: &str) {
        let known = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => letter,
            _ => '-',
        };
        let name: String = name.chars().map(known).take(15).collect();
        self.processes[process.index()].name = name.into();
    }

    /// What is traced next is done by a process.
    pub(super) fn trace_process(&mut self, process: ProcessId) {
        if let Some(tracer) = &mut self.sys.tracer {
            let name = Arc::clone(&self.processes[process.index()].name);
            tracer.task = (name, PID_FIRST + process.index());
        }
    }

    /// What is traced next is done by kswapd. Returns who was traced before.
    pub(super) fn trace_kswapd(&mut self, node: NodeId) -> Option<Task> {
        let tracer = self.sys.tracer.as_mut()?;
        let task = (format!("kswapd{}", node.0).into(), 100 + node.index());
        Some(std::mem::replace(&mut tracer.task, task))
    }

    /// What is traced next is done by somebody outside of the machine: a write to `memory.reclaim`.
    pub(super) fn trace_outside(&mut self) {
        if let Some(tracer) = &mut self.sys.tracer {
            tracer.task = ("agent".into(), 1);
        }
    }

    /// What is traced next is done by `task`.
    pub(super) fn trace_task(&mut self, task: Option<Task>) {
        if let (Some(tracer), Some(task)) = (&mut self.sys.tracer, task) {
            tracer.task = task;
        }
    }
}
