// SPDX-License-Identifier: Apache-2.0
//! Events of chosen processes, in order, through a ring buffer: the maps of bpf/watched.h.

use std::cell::RefCell;
use std::rc::Rc;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, OpenObject, RingBuffer, RingBufferBuilder};

use super::map_named;
use crate::access::AccessError;

/// Header bytes that the kernel adds to each event in the ring.
const HEADER_BYTES: usize = 8;

/// Sets the size of the ring: a power of two, in whole pages.
///
/// # Errors
/// The kernel rejects the size.
pub(crate) fn set_ring_bytes(open: &mut OpenObject, ring_bytes: u32) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        if map.name().to_str() == Some("ring") {
            map.set_max_entries(ring_bytes)?;
        }
    }
    Ok(())
}

/// The reader's end of the ring, and the processes whose events it receives.
pub(crate) struct Watched<T> {
    ring: RingBuffer<'static>,
    events: Rc<RefCell<Vec<T>>>,
    pids: MapHandle,
    dropped: MapHandle,
    /// Most events that fit in the ring.
    places: usize,
    /// The kind of events, for messages.
    what: &'static str,
}

impl<T: 'static> Watched<T> {
    /// Opens the maps of a loaded object. An event has `event_bytes`; `read` returns `None` for
    /// bytes that are not an event.
    ///
    /// # Errors
    /// The object lacks one of the maps.
    pub fn of(
        object: &Object,
        what: &'static str,
        event_bytes: usize,
        read: fn(&[u8]) -> Option<T>,
    ) -> libbpf_rs::Result<Self> {
        let events = Rc::new(RefCell::new(Vec::new()));
        let ring_map = map_named(object, "ring")?;
        let mut builder = RingBufferBuilder::new();
        let sink = Rc::clone(&events);
        builder.add(&ring_map, move |bytes| {
            sink.borrow_mut().extend(read(bytes));
            0
        })?;
        Ok(Watched {
            ring: builder.build()?,
            events,
            pids: map_named(object, "watched")?,
            dropped: map_named(object, "dropped")?,
            places: ring_map.max_entries() as usize / (event_bytes + HEADER_BYTES),
            what,
        })
    }

    /// Starts watching a process. The meaning of `value` is up to the BPF program.
    ///
    /// # Errors
    /// Too many processes are watched.
    pub fn watch(&mut self, pid: u32, value: u32) -> Result<(), AccessError> {
        self.pids
            .update(&pid.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| AccessError::Unsupported {
                what: self.what,
                why: format!("one more process cannot be watched: {error}"),
            })
    }

    /// Stops watching a process.
    pub fn forget(&mut self, pid: u32) {
        // An entry that is already gone is fine.
        let _ = self.pids.delete(&pid.to_ne_bytes());
    }

    /// Whether any process is watched.
    pub fn has_any(&self) -> bool {
        self.pids.keys().next().is_some()
    }

    /// Returns the events since the last call, in ring order.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn drain(&mut self) -> Result<Vec<T>, AccessError> {
        // At most one full ring: a process that never pauses would keep us here.
        let got = self.ring.consume_raw_n(self.places);
        let events = std::mem::take(&mut *self.events.borrow_mut());
        if got < 0 {
            let source = std::io::Error::from_raw_os_error(-got);
            return Err(AccessError::io(
                format!("BPF ring buffer: {}", self.what),
                source,
            ));
        }
        Ok(events)
    }

    /// Events lost because the ring was full, since it was opened.
    pub fn dropped(&self) -> u64 {
        let value = self.dropped.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let bytes = value.ok().flatten().and_then(|value| value.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }
}
