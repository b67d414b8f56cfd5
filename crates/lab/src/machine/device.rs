// SPDX-License-Identifier: Apache-2.0
//! Swap and file devices as cost models: a service time, a number of channels that serve requests
//! in parallel, and a queue in front of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::str::FromStr;

use thiserror::Error;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// Compressed memory; served by the CPU that asks.
    Zram,
    /// Persistent memory (a DAX-less block device on it).
    Pmem,
    /// NVMe flash.
    Nvme,
    /// SATA flash.
    Ssd,
    /// A rotating disk.
    Hdd,
}

/// An unknown device name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("unknown device `{0}`")]
pub struct UnknownDevice(pub String);

impl DeviceKind {
    pub const ALL: [DeviceKind; 5] = [
        DeviceKind::Zram,
        DeviceKind::Pmem,
        DeviceKind::Nvme,
        DeviceKind::Ssd,
        DeviceKind::Hdd,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Zram => "zram",
            DeviceKind::Pmem => "pmem",
            DeviceKind::Nvme => "nvme",
            DeviceKind::Ssd => "ssd",
            DeviceKind::Hdd => "hdd",
        }
    }

    /// Description in one line.
    pub fn description(self) -> &'static str {
        match self {
            DeviceKind::Zram => {
                "compressed memory: 6 us a page on the asking CPU, takes memory itself"
            }
            DeviceKind::Pmem => "persistent memory: 2.5 us a page, copied by the asking CPU",
            DeviceKind::Nvme => "NVMe flash: 80 us a read, 20 us a write, 32 channels",
            DeviceKind::Ssd => "SATA flash: 150 us a read, 60 us a write, 4 channels",
            DeviceKind::Hdd => "rotating disk: 8 ms a random page, 30 us a sequential one",
        }
    }

    /// The cost model of this kind.
    ///
    /// Sources: the latencies per 4 KiB are the defaults of the project's emulation rules (DRAM
    /// 0.3 us, pmem 2.5 us, zram 6 us, NVMe 80 us, SATA SSD 150 us, HDD 8 ms random and 30 us
    /// sequential); flash writes return from the drive's cache and are shorter than reads. Queue
    /// depths are the kernel's usual `nr_requests`.
    pub fn model(self) -> DeviceModel {
        let synchronous = |page_ns| DeviceModel {
            read_ns: page_ns,
            write_ns: page_ns,
            sequential_ns: page_ns,
            transfer_ns: 0,
            channels: 1,
            queue_depth: 1,
            synchronous: true,
        };
        let queued =
            |[read_ns, write_ns, sequential_ns]: [u64; 3], channels, queue_depth| DeviceModel {
                read_ns,
                write_ns,
                sequential_ns,
                transfer_ns: 0,
                channels,
                queue_depth,
                synchronous: false,
            };
        match self {
            DeviceKind::Zram => synchronous(6_000),
            DeviceKind::Pmem => synchronous(2_500),
            DeviceKind::Nvme => queued([80_000, 20_000, 10_000], 32, 1024),
            DeviceKind::Ssd => queued([150_000, 60_000, 20_000], 4, 64),
            DeviceKind::Hdd => queued([8_000_000, 8_000_000, 30_000], 1, 64),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<DeviceKind, UnknownDevice> {
        DeviceKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}

/// Service times of one 4 KiB page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// A page read anywhere, in ns.
    pub read_ns: u64,
    /// A page written anywhere, in ns.
    pub write_ns: u64,
    /// A page right after the one before, in ns.
    pub sequential_ns: u64,
    /// Time a page occupies the bandwidth that all channels share, in ns; 0 for none.
    pub transfer_ns: u64,
    /// Requests served in parallel.
    pub channels: usize,
    /// Requests that can wait or be served; a task that submits one more sleeps.
    pub queue_depth: usize,
    /// Whether the calling CPU does the work before the call returns (`SWP_SYNCHRONOUS_IO`).
    pub synchronous: bool,
}

/// A device in use: when each channel is free, and its statistics.
#[derive(Clone, Debug)]
pub struct Device {
    /// The cost model.
    pub model: DeviceModel,
    free_at_ns: Vec<u64>,
    /// When the shared bandwidth is free for another page.
    bus_free_ns: u64,
    /// When the requests in progress are done.
    under_way: BinaryHeap<Reverse<u64>>,
    next_sequential: u64,
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
    /// Time requests waited for a channel, in ns.
    pub queued_ns: u64,
}

/// Direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device into memory.
    Read,
    /// From memory to the device.
    Write,
}

impl Device {
    /// An idle device.
    pub fn new(model: DeviceModel) -> Device {
        Device {
            model,
            free_at_ns: vec![0; model.channels.max(1)],
            bus_free_ns: 0,
            under_way: BinaryHeap::new(),
            next_sequential: u64::MAX,
            reads: 0,
            writes: 0,
            queued_ns: 0,
        }
    }

    /// When the queue has room for another request: `now_ns` unless it is full.
    pub fn has_room_at(&mut self, now_ns: u64) -> u64 {
        while self
            .under_way
            .peek()
            .is_some_and(|Reverse(done_ns)| *done_ns <= now_ns)
        {
            self.under_way.pop();
        }
        if self.model.synchronous || self.under_way.len() < self.model.queue_depth {
            return now_ns;
        }
        self.under_way
            .peek()
            .map_or(now_ns, |Reverse(done_ns)| *done_ns)
    }

    /// Serves a request made at `now_ns` for page `place` of the device; returns when it is done.
    pub fn submit(&mut self, now_ns: u64, direction: Direction, place: u64) -> u64 {
        let service_ns = if place == self.next_sequential {
            self.model.sequential_ns
        } else {
            match direction {
                Direction::Read => self.model.read_ns,
                Direction::Write => self.model.write_ns,
            }
        };
        self.next_sequential = place + 1;
        match direction {
            Direction::Read => self.reads += 1,
            Direction::Write => self.writes += 1,
        }
        let now_ns = now_ns.max(self.bus_free_ns);
        if self.model.transfer_ns > 0 {
            self.bus_free_ns = now_ns + self.model.transfer_ns;
        }
        if self.model.synchronous {
            return now_ns + service_ns;
        }
        // The channel that is free first; the first of equals, so that runs are reproducible.
        let Some(free_at_ns) = self.free_at_ns.iter_mut().min_by_key(|at| **at) else {
            return now_ns + service_ns;
        };
        let start_ns = now_ns.max(*free_at_ns);
        self.queued_ns += start_ns - now_ns;
        *free_at_ns = start_ns + service_ns;
        let done_ns = *free_at_ns;
        self.under_way.push(Reverse(done_ns));
        done_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in DeviceKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!(
            "tape".parse::<DeviceKind>(),
            Err(UnknownDevice("tape".to_owned()))
        );
    }

    #[test]
    fn channels_serve_together_and_then_queue() {
        let mut device = Device::new(DeviceModel {
            read_ns: 100,
            write_ns: 100,
            sequential_ns: 100,
            transfer_ns: 0,
            channels: 2,
            queue_depth: 3,
            synchronous: false,
        });
        let done: Vec<u64> = [7, 3, 9]
            .into_iter()
            .map(|place| device.submit(0, Direction::Read, place))
            .collect();
        assert_eq!(done, [100, 100, 200]);
        assert_eq!(device.queued_ns, 100);
        assert_eq!(device.has_room_at(0), 100, "three are under way");
        assert_eq!(device.has_room_at(150), 150);
    }

    #[test]
    fn bandwidth_is_shared() {
        let mut device = Device::new(DeviceModel {
            transfer_ns: 1_000,
            ..DeviceKind::Pmem.model()
        });
        let done: Vec<u64> = (0..3)
            .map(|place| device.submit(0, Direction::Read, place * 2))
            .collect();
        assert_eq!(done, [2_500, 3_500, 4_500]);
    }

    #[test]
    fn a_disk_is_fast_only_in_sequence() {
        let mut disk = Device::new(DeviceKind::Hdd.model());
        let first = disk.submit(0, Direction::Read, 10);
        let second = disk.submit(first, Direction::Read, 11);
        let third = disk.submit(second, Direction::Read, 5);
        assert_eq!(
            (first, second - first, third - second),
            (8_000_000, 30_000, 8_000_000)
        );
    }
}
