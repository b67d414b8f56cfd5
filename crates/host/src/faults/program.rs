// SPDX-License-Identifier: Apache-2.0
//! The loaded BPF object, its links and its ring.

use libbpf_rs::{Link, Object, ObjectBuilder};

use super::major::{self, Event};
use super::{Fault, FaultKind};
use crate::access::AccessError;
use crate::bpf::{
    self,
    watched::{Watched, set_ring_bytes},
};

/// `make bpf` builds it; `make bpf-check` verifies that it matches its source.
static OBJECT: &[u8] = include_bytes!("../../bpf/faults.bpf.o");

/// Bytes in `struct fault_event`.
const EVENT_BYTES: usize = 24;
/// A bit of the hardware's error code (Intel SDM volume 3, 4.7).
const CODE_WRITE: u64 = 2;
/// Not set by hardware: marks an earlier fault as major.
const CODE_MAJOR: u64 = 0x20;

/// The BPF programs and the reader's end of the ring.
pub(super) struct Program {
    // Field order: the links are dropped first, so that nothing writes to the fields after them.
    _links: Vec<Link>,
    /// Links to the events of major faults; empty if these are not available.
    majors: Vec<Link>,
    pub watched: Watched<Event>,
    _object: Object,
}

impl Program {
    pub fn load(ring_bytes: u32) -> Result<Self, AccessError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(AccessError::Unsupported {
                what: "page faults by tracepoint",
                why: format!(
                    "the tracepoints are those of x86-64, not {}",
                    std::env::consts::ARCH
                ),
            });
        }
        bpf::load(
            "page faults by tracepoint",
            "the BPF programs on page faults",
            || Self::attach(ring_bytes),
        )
    }

    fn attach(ring_bytes: u32) -> libbpf_rs::Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        set_ring_bytes(&mut open, ring_bytes)?;
        let object = open.load()?;
        let watched = Watched::of(&object, "page faults", EVENT_BYTES, event)?;
        let (mut links, mut majors) = (Vec::new(), Vec::new());
        for program in object.progs_mut() {
            if program.name() == "fault_major" {
                // Faults are useful even if their kinds are unknown.
                majors = major::attach(&program).unwrap_or_default();
            } else {
                links.push(program.attach_trace()?);
            }
        }
        Ok(Program {
            _links: links,
            majors,
            watched,
            _object: object,
        })
    }

    pub fn tells_majors(&self) -> bool {
        !self.majors.is_empty()
    }
}

/// Parses `struct fault_event` of faults.bpf.c; `None` if there are too few bytes.
fn event(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; EVENT_BYTES] = bytes.get(..EVENT_BYTES)?.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    let address = word(8);
    let fault = Fault {
        time_ns: word(0),
        address: address & !0xfff,
        pid: half(16),
        tid: half(20),
        write: address & CODE_WRITE != 0,
        kind: FaultKind::Unknown,
    };
    Some(Event {
        fault,
        was_major: address & CODE_MAJOR != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_as_the_kernel_side_writes_them() {
        let mut bytes = Vec::new();
        bytes.extend(77u64.to_ne_bytes());
        bytes.extend((0x7000_1000u64 | CODE_WRITE | 4).to_ne_bytes());
        bytes.extend(12u32.to_ne_bytes());
        bytes.extend(13u32.to_ne_bytes());
        let fault = Fault {
            time_ns: 77,
            address: 0x7000_1000,
            pid: 12,
            tid: 13,
            write: true,
            kind: FaultKind::Unknown,
        };
        let expected = |was_major| Some(Event { fault, was_major });
        assert_eq!(event(&bytes), expected(false));
        bytes[8] |= CODE_MAJOR as u8;
        assert_eq!(event(&bytes), expected(true));
        assert_eq!(event(&bytes[..23]), None);
    }
}
