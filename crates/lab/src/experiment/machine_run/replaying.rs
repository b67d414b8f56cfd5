// SPDX-License-Identifier: Apache-2.0
//! Replaying a trace on the machine: its processes, and its accesses one after another.

use std::sync::Arc;

use super::super::replay::{Arrangement, Cursor, Home, Replay, Through};
use super::super::task::Operation;
use super::{Run, RunError};
use crate::machine::address_space::{Advice, MapOptions};
use crate::machine::{FileId, ProcessId};

/// A replay in progress.
pub(super) struct Replaying {
    replay: Arc<Replay>,
    cursor: Cursor,
    spaces: Vec<ReplaySpace>,
    file: FileId,
    last_process: usize,
}

impl Replaying {
    pub(super) fn is_done(&self) -> bool {
        self.cursor.is_done(&self.replay)
    }
}

/// Where the memory of a process lies in the replay.
#[derive(Clone, Copy)]
struct ReplaySpace {
    process: ProcessId,
    anon_vpn: u64,
    file_vpn: u64,
}

impl Run {
    /// Starts the processes of a trace, each with its anonymous memory and, if it is mapped, the
    /// file.
    pub(super) fn start_replay(
        &mut self,
        replay: &Arc<Replay>,
        arrangement: Arrangement,
    ) -> Result<(), RunError> {
        let no_room = || RunError::AddressSpace(replay.name.clone());
        // Without read-ahead, every page that is read was asked for.
        let file = self
            .machine
            .add_file(replay.file_places, self.memcg, Advice::Random);
        let mut spaces = Vec::new();
        for &anon_places in &replay.anon_places {
            let process = self.machine.add_process(self.memcg);
            self.processes.push(process);
            let mut map = |options: &MapOptions| self.machine.map(process, options);
            let anon_vpn = map(&MapOptions::anon(anon_places.into())).ok_or_else(no_room)?;
            let options = MapOptions::file(file.number(), replay.file_places.into());
            let file_vpn = map(&options).ok_or_else(no_room)?;
            spaces.push(ReplaySpace {
                process,
                anon_vpn,
                file_vpn,
            });
        }
        self.replay = Some(Box::new(Replaying {
            cursor: Cursor::new(replay, arrangement, self.seed),
            replay: Arc::clone(replay),
            spaces,
            file,
            last_process: usize::MAX,
        }));
        Ok(())
    }

    /// Replays accesses, each at its time or as soon as the one before is done.
    pub(super) fn replay_until(&mut self, replaying: &mut Replaying, stop_ns: u64) {
        while self.machine.now_ns() < stop_ns && !self.is_stopped() {
            let Some(step) = replaying.cursor.next(&replaying.replay) else {
                break;
            };
            let now_ns = self.machine.now_ns();
            self.run_agent_until(now_ns.max(step.due_ns));
            let now_ns = self.machine.now_ns();
            self.machine.wait_ns(step.due_ns.saturating_sub(now_ns));
            let at = step.process as usize;
            let space = replaying.spaces[at];
            if replaying.last_process != at {
                self.machine.schedule(space.process);
                replaying.last_process = at;
            }
            self.usage
                .sample(self.machine.now_ns(), self.machine.usage_pages(self.memcg));
            if !self.machine.is_alive(space.process) {
                continue;
            }
            let write = step.write;
            let operation = match replaying.replay.home(step.page) {
                Home::Anon { page, .. } => Operation::Touch {
                    vpn: space.anon_vpn + u64::from(page),
                    write,
                },
                Home::File { page } if replaying.replay.through == Through::Descriptor => {
                    Operation::Io {
                        file: replaying.file,
                        index: page,
                        write,
                    }
                }
                Home::File { page } => Operation::Touch {
                    vpn: space.file_vpn + u64::from(page),
                    write,
                },
            };
            self.access(space.process, operation);
            let pages = self.machine.usage_pages(self.memcg);
            self.usage.sample(self.machine.now_ns(), pages);
        }
        self.end_ns = self.end_ns.max(self.machine.now_ns());
    }

    /// Runs the agent's turns that are due by `until_ns`, before an access. A trace has one CPU, so
    /// the access waits for these turns. It does not wait for turns that become due meanwhile: an
    /// agent that is never done would leave no time to the program.
    fn run_agent_until(&mut self, until_ns: u64) {
        let Some(agent) = &mut self.agent else { return };
        let mut free_ns = self.machine.now_ns();
        while agent.due_ns() <= until_ns {
            let due_ns = agent.due_ns();
            let busy_ns = agent.run(&mut self.machine, self.truth.as_ref());
            free_ns = free_ns.max(due_ns) + busy_ns;
        }
        self.machine.set_now_ns(free_ns.max(self.machine.now_ns()));
    }
}
