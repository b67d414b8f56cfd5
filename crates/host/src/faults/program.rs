// SPDX-License-Identifier: Apache-2.0
//! The loaded BPF object, its links and its ring.

use std::cell::RefCell;
use std::rc::Rc;

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};

use super::major::{self, Event};
use super::{Fault, FaultKind};
use crate::access::AccessError;
use crate::bpf;

/// `make bpf` builds it, `make bpf-check` proves that it matches its source.
static OBJECT: &[u8] = include_bytes!("../../bpf/faults.bpf.o");

/// Bytes of `struct fault_event`.
const EVENT_BYTES: usize = 24;
/// Bytes of a place in the ring: an event and the kernel's header of it.
const PLACE_BYTES: u32 = 32;
/// Bits of the hardware's error code (Intel SDM volume 3, 4.7).
const CODE_PRESENT: u64 = 1;
const CODE_WRITE: u64 = 2;
/// Not set by hardware: a fault reported earlier was major.
const CODE_MAJOR: u64 = 0x20;

/// Programs in the kernel and the reader's end of the ring.
pub(super) struct Program {
    // Field order: links go first, so that nothing is written to what goes after them.
    _links: Vec<Link>,
    /// Of the events of major faults: none where these are not to be had.
    majors: Vec<Link>,
    ring: RingBuffer<'static>,
    events: Rc<RefCell<Vec<Event>>>,
    watched: MapHandle,
    dropped: MapHandle,
    /// Most events that fit the ring.
    places: usize,
    _object: Object,
}

impl Program {
    pub fn load(ring_bytes: u32) -> Result<Self, AccessError> {
        bpf::load(
            "page faults by tracepoint",
            "the BPF programs on page faults",
            || Self::attach(ring_bytes),
        )
    }

    fn attach(ring_bytes: u32) -> libbpf_rs::Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut map in open.maps_mut() {
            if map.name().to_str() == Some("ring") {
                map.set_max_entries(ring_bytes)?;
            }
        }
        let object = open.load()?;
        let map = |name: &str| bpf::map_named(&object, name);
        let events = Rc::new(RefCell::new(Vec::new()));
        let ring_map = map("ring")?;
        let mut builder = RingBufferBuilder::new();
        let sink = Rc::clone(&events);
        builder.add(&ring_map, move |bytes| {
            sink.borrow_mut().extend(event(bytes));
            0
        })?;
        let ring = builder.build()?;
        let (watched, dropped) = (map("watched")?, map("dropped")?);
        let (mut links, mut majors) = (Vec::new(), Vec::new());
        for program in object.progs_mut() {
            if program.name() == "fault_major" {
                // Faults are worth having without their kinds.
                majors = major::attach(&program).unwrap_or_default();
            } else {
                links.push(program.attach_trace()?);
            }
        }
        Ok(Program {
            _links: links,
            majors,
            ring,
            events,
            watched,
            dropped,
            places: (ring_bytes / PLACE_BYTES) as usize,
            _object: object,
        })
    }

    pub fn watch(&mut self, pid: u32) -> Result<(), AccessError> {
        self.watched
            .update(&pid.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| AccessError::Unsupported {
                what: "page faults of one more process",
                why: error.to_string(),
            })
    }

    pub fn forget(&mut self, pid: u32) {
        // Not there any more is as well.
        let _ = self.watched.delete(&pid.to_ne_bytes());
    }

    pub fn tells_majors(&self) -> bool {
        !self.majors.is_empty()
    }

    pub fn drain(&mut self) -> Result<Vec<Event>, AccessError> {
        // A ring full and no more, or a program that faults all the time would keep us here.
        let got = self.ring.consume_raw_n(self.places);
        let events = std::mem::take(&mut *self.events.borrow_mut());
        if got < 0 {
            let source = std::io::Error::from_raw_os_error(-got);
            return Err(AccessError::io("BPF ring buffer of page faults", source));
        }
        Ok(events)
    }

    pub fn dropped(&self) -> u64 {
        let value = self.dropped.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let bytes = value.ok().flatten().and_then(|value| value.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }
}

/// `struct fault_event` of faults.bpf.c; nothing for what is too short to be one.
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
        protection: address & CODE_PRESENT != 0,
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
            protection: false,
            kind: FaultKind::Unknown,
        };
        let expected = |was_major| Some(Event { fault, was_major });
        assert_eq!(event(&bytes), expected(false));
        bytes[8] |= CODE_MAJOR as u8;
        assert_eq!(event(&bytes), expected(true));
        assert_eq!(event(&bytes[..23]), None);
    }
}
