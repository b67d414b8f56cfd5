// SPDX-License-Identifier: Apache-2.0
//! What reclaim did, event by event, in the format of ftrace.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use agewise_kernel::ids::NodeId;
use agewise_kernel::tracepoint::Tracepoint;

use super::{Machine, ProcessId};

/// Limit on events kept: a few hundred MiB.
const EVENTS_MAX: usize = 1 << 21;

/// First process number; those of kswapd are lower.
const PID_FIRST: usize = 1000;

/// The running task: name and number.
type Task = (Arc<str>, usize);

/// Events recorded so far.
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
    /// Records an event.
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
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Number of events at the end of the run that were not kept.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes the events in the format of `/sys/kernel/tracing/trace`.
    ///
    /// # Errors
    /// Fails if writing to `out` fails.
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
    /// Starts recording what reclaim does, event by event.
    pub fn trace_events(&mut self) {
        self.sys.tracer = Some(Box::new(Tracer {
            task: ("swapper".into(), 0),
            events: Vec::new(),
            lost: 0,
        }));
    }

    /// Stops recording and returns the events since [`Machine::trace_events`].
    pub fn take_event_trace(&mut self) -> EventTrace {
        let (mut events, lost) = match self.sys.tracer.take() {
            Some(tracer) => (tracer.events, tracer.lost),
            None => (Vec::new(), 0),
        };
        // Work beside a process is simulated separately, so its events are out of order.
        events.sort_by_key(|event| event.at_ns);
        EventTrace { events, lost }
    }

    /// Names a process in events: the first 15 characters, with `-` for all but letters and digits.
    pub fn name_process(&mut self, process: ProcessId, name: &str) {
        let known = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => letter,
            _ => '-',
        };
        let name: String = name.chars().map(known).take(15).collect();
        self.processes[process.index()].name = name.into();
    }

    /// Attributes the next events to a process.
    pub(super) fn trace_process(&mut self, process: ProcessId) {
        if let Some(tracer) = &mut self.sys.tracer {
            let name = Arc::clone(&self.processes[process.index()].name);
            tracer.task = (name, PID_FIRST + process.index());
        }
    }

    /// Attributes the next events to kswapd. Returns the previous task.
    pub(super) fn trace_kswapd(&mut self, node: NodeId) -> Option<Task> {
        let tracer = self.sys.tracer.as_mut()?;
        let task = (format!("kswapd{}", node.0).into(), 100 + node.index());
        Some(std::mem::replace(&mut tracer.task, task))
    }

    /// Attributes the next events to a task outside the machine: a write to `memory.reclaim`.
    pub(super) fn trace_outside(&mut self) {
        if let Some(tracer) = &mut self.sys.tracer {
            tracer.task = ("agent".into(), 1);
        }
    }

    /// Attributes the next events to `task`.
    pub(super) fn trace_task(&mut self, task: Option<Task>) {
        if let (Some(tracer), Some(task)) = (&mut self.sys.tracer, task) {
            tracer.task = task;
        }
    }
}
