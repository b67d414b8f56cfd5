// SPDX-License-Identifier: Apache-2.0
//! Turns: which task runs next on which CPU, and the effects of an operation.

use std::cmp::Reverse;

use super::super::task::{Driver, Operation, Task};
use super::{Lap, Run, RunError};
use crate::machine::{Access, ProcessId};
use crate::proactive::Space;

/// Time a process runs before another process that is ready on its CPU gets its turn.
const QUANTUM_NS: u64 = 100_000;

/// Polling period of a process that waits for its writes or for other processes.
const SYNC_POLL_NS: u64 = 2_000_000;

impl Run {
    /// Runs until all processes have ended, or until the first turn that starts at `stop_ns` or
    /// later.
    ///
    /// # Errors
    /// [`RunError`] if a process cannot be restarted.
    pub fn run_until(&mut self, stop_ns: u64) -> Result<(), RunError> {
        if let Some(mut replaying) = self.replay.take() {
            self.replay_until(&mut replaying, stop_ns);
            self.replay = Some(replaying);
            return Ok(());
        }
        while let Some(&Reverse((at_ns, _, index))) = self.ready.peek() {
            let cpu = self.tasks[index].cpu;
            let start_ns = at_ns.max(self.cpu_free_ns[cpu]);
            if start_ns >= stop_ns || self.is_stopped() {
                return Ok(());
            }
            if let Some(agent) = self
                .agent
                .as_mut()
                .filter(|agent| agent.due_ns() <= start_ns)
            {
                let due_ns = agent.due_ns();
                let busy_ns = agent.run(&mut self.machine, self.truth.as_ref());
                // The agent takes the CPU that is free first; tasks that need this CPU wait.
                let free_first = self.cpu_free_ns.iter_mut().min_by_key(|at| **at);
                if let Some(free_ns) = free_first {
                    *free_ns = due_ns.max(*free_ns) + busy_ns;
                }
                continue;
            }
            self.ready.pop();
            self.usage
                .sample(start_ns, self.machine.usage_pages(self.memcg));
            self.take_turn(index, start_ns)?;
        }
        Ok(())
    }

    fn take_turn(&mut self, index: usize, start_ns: u64) -> Result<(), RunError> {
        let Task { process, cpu, .. } = self.tasks[index];
        self.machine.set_now_ns(start_ns);
        self.machine.set_cpu(cpu);
        if self.last_on_cpu[cpu] != index {
            self.machine.schedule(process);
            self.last_on_cpu[cpu] = index;
        }
        let waited_ns = self.machine.waited_ns();
        let mut goes_on = self.machine.is_alive(process);
        while goes_on
            && self.machine.waited_ns() == waited_ns
            && self.machine.now_ns() < start_ns + QUANTUM_NS
        {
            let operation = self.tasks[index].driver.next();
            let Some(still_runs) = self.perform(index, process, operation) else {
                continue;
            };
            goes_on = still_runs;
            let think_ns = self.tasks[index].driver.think_ns();
            if think_ns > 0 && goes_on {
                self.machine.wait_ns(think_ns);
            }
        }
        let end_ns = self.machine.now_ns();
        let waited_ns = self.machine.waited_ns() - waited_ns;
        self.cpu_free_ns[cpu] = end_ns.saturating_sub(waited_ns).max(start_ns);
        self.end_ns = self.end_ns.max(end_ns);
        if goes_on {
            self.enqueue(end_ns, index);
        } else {
            self.start_anew(index, end_ns)?;
        }
        Ok(())
    }

    /// Carries out an operation. Returns whether the process goes on; `None` if the operation
    /// belongs to the run rather than to the program, which does not think then.
    fn perform(&mut self, index: usize, process: ProcessId, operation: Operation) -> Option<bool> {
        match operation {
            Operation::Meet { phase } => {
                let is_met = self.others_are_done(index, phase);
                self.wait_unless(is_met, index);
                None
            }
            Operation::Begin { phase } => {
                self.phase_start_ns[index] = (phase, self.machine.now_ns());
                None
            }
            Operation::End { phase, period_ns } => {
                self.end_phase(index, phase, period_ns);
                None
            }
            Operation::Sync => {
                let is_synced = self.machine.sync();
                self.wait_unless(is_synced, index);
                None
            }
            Operation::Release { start_vpn } => {
                self.release(process, start_vpn);
                None
            }
            Operation::Fork => {
                self.end_phase(index, 0, 0);
                self.fork(index);
                Some(self.machine.is_alive(process))
            }
            Operation::Exit => {
                self.machine.exit(process);
                Some(false)
            }
            _ => Some(self.access(process, operation)),
        }
    }

    /// Lets a task that waits for something go on if it `is_over`, and ask again later otherwise.
    fn wait_unless(&mut self, is_over: bool, index: usize) {
        if is_over {
            self.tasks[index].driver.set_waited();
        } else {
            self.machine.wait_ns(SYNC_POLL_NS);
        }
    }

    /// Whether all processes of the task's kind have ended the phase before `phase`, or have
    /// exited.
    fn others_are_done(&self, index: usize, phase: usize) -> bool {
        let kind = self.tasks[index].kind;
        self.tasks.iter().enumerate().all(|(other, task)| {
            task.kind != kind
                || !self.machine.is_alive(task.process)
                || self.phases_ended[other] >= phase
        })
    }

    /// Ends a phase of a task. It is repeated `period_ns` after its start, or at once if that has
    /// passed.
    fn end_phase(&mut self, index: usize, phase: usize, period_ns: u64) {
        let (begun, start_ns) = self.phase_start_ns[index];
        let end_ns = self.machine.now_ns();
        if let (Some(process), true) = (self.tasks[index].kind, begun == phase) {
            self.laps.push(Lap {
                process,
                task: index,
                phase,
                start_ns,
                end_ns,
            });
        }
        self.phases_ended[index] = phase + 1;
        let next_ns = start_ns.saturating_add(period_ns);
        self.machine.wait_ns(next_ns.saturating_sub(end_ns));
    }

    /// Performs one access; false if it ended the process.
    #[inline]
    pub(super) fn access(&mut self, process: ProcessId, operation: Operation) -> bool {
        let before_ns = self.machine.now_ns();
        let access = match operation {
            Operation::Touch { vpn, write } => self.machine.access(process, vpn, write),
            Operation::Io { file, index, write } if write => {
                self.machine.write(process, file, index, 1)
            }
            Operation::Io { file, index, .. } => self.machine.read(process, file, index, 1),
            Operation::Meet { .. }
            | Operation::Begin { .. }
            | Operation::End { .. }
            | Operation::Sync
            | Operation::Release { .. }
            | Operation::Fork
            | Operation::Exit => return true,
        };
        if let Some(heat) = &mut self.heat {
            match operation {
                Operation::Touch { vpn, .. } => heat.touch(&mut self.machine, process, vpn),
                Operation::Io { file, index, .. } => heat.io(&mut self.machine, file, index),
                _ => {}
            }
        }
        if let Some(recording) = &mut self.recording {
            recording.note(&self.machine, process, operation);
        }
        self.accesses += 1;
        if let Some(truth) = &mut self.truth {
            match operation {
                Operation::Touch { vpn, .. } => {
                    truth.note(Space::Process(process), vpn, before_ns);
                    if let Some((file, page)) = self.machine.file_at(process, vpn) {
                        truth.note(Space::File(file), page, before_ns);
                    }
                }
                Operation::Io { file, index, .. } => {
                    truth.note(Space::File(file), index.into(), before_ns);
                }
                _ => {}
            }
        }
        self.latency.add(self.machine.now_ns() - before_ns);
        access != Access::Killed && self.machine.is_alive(process)
    }

    fn fork(&mut self, index: usize) {
        let Driver::Script(script) = &self.tasks[index].driver else {
            return;
        };
        let script = script.clone();
        let parent = self.tasks[index].process;
        for _ in 0..script.forks {
            let Some(child) = self.machine.fork(parent) else {
                return;
            };
            let child_script = Box::new(script.child(self.random.draw()));
            let now_ns = self.machine.now_ns();
            self.add_task(now_ns, child, Driver::Script(child_script), None, 0);
        }
    }

    /// Restarts a process that exited or was killed, if its workload says so.
    fn start_anew(&mut self, index: usize, at_ns: u64) -> Result<(), RunError> {
        let (kind, left) = (self.tasks[index].kind, self.tasks[index].repeats_left);
        if let (Some(kind), Some(left), Some(workload)) =
            (kind, left.checked_sub(1), self.workload.clone())
        {
            let (process, script) = self.make_process(&workload, kind)?;
            self.processes.push(process);
            self.phases_ended[index] = 0;
            let task = &mut self.tasks[index];
            task.process = process;
            task.driver = Driver::Script(Box::new(script));
            task.repeats_left = left;
            self.enqueue(at_ns, index);
        }
        Ok(())
    }
}
