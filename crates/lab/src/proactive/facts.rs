// SPDX-License-Identifier: Apache-2.0
//! State of a simulated cgroup, as the facts from which policies decide.

use agewise_kernel::ids::MemcgId;
use agewise_policy::proactive::{Backend, Facts, Psi, Refaults, SwapRoom};

use super::bytes;
use super::spaces::Spaces;
use crate::machine::{Machine, UNLIMITED};

/// Counters at the previous decision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    swap_in: u64,
    file_refaults: u64,
    some_ns: u64,
}

impl Counted {
    fn read(machine: &Machine, memcg: MemcgId) -> Counted {
        Counted {
            swap_in: machine.counters().pswpin,
            file_refaults: machine.memcg_events(memcg).workingset_refault[1],
            some_ns: machine.pressure(memcg).some_ns,
        }
    }
}

/// Collects current facts. Counts cover the time since `counted` was taken, which is updated. Left
/// out are the scan, the ways to move memory and the outcome of the previous decision, which agents
/// know themselves.
pub(super) fn gather(
    machine: &Machine,
    spaces: &mut Spaces,
    counted: &mut Counted,
) -> Facts<'static> {
    let memcg = spaces.memcg;
    let now = Counted::read(machine, memcg);
    let before = std::mem::replace(counted, now);
    let refaulted = [
        now.swap_in - before.swap_in,
        now.file_refaults - before.file_refaults + spaces.take_back_pages(),
    ];
    let config = machine.config();
    let fault_ns = config.cost.fault_ns;
    let swap_ns = config.swap.as_ref().map_or(0, |swap| swap.device.read_ns);
    let file_ns = config.file_device.read_ns;
    let latency = |pages: u64, ns: u64| if pages > 0 { ns + fault_ns } else { 0 };
    let backend = match &config.swap {
        None => Backend::None,
        Some(swap) if swap.device.synchronous => Backend::Zram,
        Some(swap) if swap.device.read_ns < 1_000_000 => Backend::Ssd,
        Some(_) => Backend::Hdd,
    };
    let limit = machine.limits(memcg).max_pages;
    let [free, total] = machine.swap_room_pages();
    let swapped: u64 = machine
        .live_processes(memcg)
        .into_iter()
        .map(|process| machine.swapped_pages(process))
        .sum();
    Facts {
        time_ms: machine.now_ns() / 1_000_000,
        resident_bytes: machine.resident_pages(memcg).map(bytes),
        charged_bytes: Some(bytes(machine.usage_pages(memcg))),
        out_bytes: bytes(swapped),
        refaults: Refaults {
            bytes: refaulted.map(bytes),
            latency_ns: [
                latency(refaulted[0], swap_ns),
                latency(refaulted[1], file_ns),
            ],
        },
        psi: Some(Psi {
            some_us: (now.some_ns - before.some_ns) / 1_000,
        }),
        swap: Some(SwapRoom {
            free_bytes: bytes(free),
            total_bytes: bytes(total),
        }),
        backend,
        limit_bytes: (limit != UNLIMITED).then(|| bytes(limit)),
        ..Facts::default()
    }
}
