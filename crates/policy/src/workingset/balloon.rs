// SPDX-License-Identifier: Apache-2.0
//! Working-set reports across a virtual machine's balloon: the messages, and the guest's answers.
//!
//! Source: "mm: workingset reporting" v4, patch 9 (virtio-balloon): feature bit 6, a virtqueue for
//! reports (driver to device) and one for notifications (device to driver). All numbers are little
//! endian. It differs from the posted driver where that is wrong: errors are positive errno values
//! of 32 bits, every terminator has the right byte order, an error of a CONFIG is answered and not
//! only logged, each receiver has bins of its own, and a receiver without an interval still gets the
//! reports it asks for.

use super::report::{Lruvecs, ReceiverId, ReportError, Reports};
use super::{BINS_MAX, Bin, Histogram, Intervals, NO_UPPER_BOUND_MS};

/// `VIRTIO_BALLOON_F_WS_REPORTING`.
pub const FEATURE_BIT: u32 = 6;
/// Bytes of a notification.
pub const NOTIFY_BYTES: usize = 140;
/// Bytes of a report.
pub const REPORT_BYTES: usize = 776;
/// Ends a list of bounds.
const END_OF_BOUNDS: u32 = u32::MAX;

const OP_REQUEST: u16 = 1;
const OP_CONFIG: u16 = 2;

/// What the host asks of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Send a report. The node is that of the last CONFIG, whatever is said here.
    Request {
        /// Not used.
        node: u16,
    },
    /// Report by these bounds from now on.
    Config {
        /// The node.
        node: u16,
        /// How old a report must be for pressure to be told, ms; 0: never.
        report_threshold_ms: u32,
        /// How old a report may become, ms; 0: reports on request and under pressure only.
        refresh_interval_ms: u32,
        /// Bounds: at least one.
        intervals: Intervals,
    },
}

/// What a guest sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// 0, or a positive errno: then there are no bins.
    pub error: u32,
    /// The node.
    pub node: u32,
    /// Bytes by age; the last has no upper bound.
    pub bins: Vec<Bin>,
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Too few or too many bytes (`EMSGSIZE`).
    #[error("a message of {length} bytes, {wanted} expected (EMSGSIZE)")]
    Length {
        /// Bytes of the message.
        length: usize,
        /// Bytes it must have.
        wanted: usize,
    },
    /// Neither REQUEST nor CONFIG (`EINVAL`).
    #[error("unknown operation {op} (EINVAL)")]
    Operation {
        /// What it says.
        op: u16,
    },
    /// Bounds that do not increase strictly (`EINVAL`).
    #[error("bound {place} is not above the one before (EINVAL)")]
    NotIncreasing {
        /// Its place, from 0.
        place: usize,
    },
    /// No finite bound at all (`ERANGE`).
    #[error("no finite bound (ERANGE)")]
    NoBounds,
    /// No terminator (`ERANGE`).
    #[error("the list does not end (ERANGE)")]
    NoEnd,
}

impl MessageError {
    /// The error number, as a report carries it.
    pub fn errno(self) -> u32 {
        match self {
            MessageError::Length { .. } => 90,
            MessageError::Operation { .. } | MessageError::NotIncreasing { .. } => 22,
            MessageError::NoBounds | MessageError::NoEnd => 34,
        }
    }
}

/// Reads numbers one after the other; a message's length is checked first.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((number, rest)) => {
                self.0 = rest;
                *number
            }
            None => [0; N],
        }
    }
}

fn check_length(message: &[u8], wanted: usize) -> Result<(), MessageError> {
    match message.len() {
        length if length == wanted => Ok(()),
        length => Err(MessageError::Length { length, wanted }),
    }
}

impl Notify {
    /// Reads a notification.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn decode(message: &[u8]) -> Result<Notify, MessageError> {
        check_length(message, NOTIFY_BYTES)?;
        let mut fields = Fields(message);
        let op = u16::from_le_bytes(fields.take());
        let node = u16::from_le_bytes(fields.take());
        let report_threshold_ms = u32::from_le_bytes(fields.take());
        let refresh_interval_ms = u32::from_le_bytes(fields.take());
        match op {
            OP_REQUEST => Ok(Notify::Request { node }),
            OP_CONFIG => Ok(Notify::Config {
                node,
                report_threshold_ms,
                refresh_interval_ms,
                intervals: decode_bounds(&mut fields)?,
            }),
            op => Err(MessageError::Operation { op }),
        }
    }

    /// Writes a notification. `None` if the bounds do not fit: none, zero, or not of 32 bits.
    pub fn encode(&self) -> Option<[u8; NOTIFY_BYTES]> {
        let mut message = Vec::with_capacity(NOTIFY_BYTES);
        match self {
            Notify::Request { node } => {
                message.extend(OP_REQUEST.to_le_bytes());
                message.extend(node.to_le_bytes());
            }
            Notify::Config {
                node,
                report_threshold_ms,
                refresh_interval_ms,
                intervals,
            } => {
                message.extend(OP_CONFIG.to_le_bytes());
                message.extend(node.to_le_bytes());
                message.extend(report_threshold_ms.to_le_bytes());
                message.extend(refresh_interval_ms.to_le_bytes());
                if intervals.bounds_ms().is_empty() {
                    return None;
                }
                for bound_ms in intervals.bounds_ms() {
                    let bound_ms = u32::try_from(*bound_ms)
                        .ok()
                        .filter(|ms| *ms != END_OF_BOUNDS);
                    message.extend(bound_ms?.to_le_bytes());
                }
                message.extend(END_OF_BOUNDS.to_le_bytes());
            }
        }
        message.resize(NOTIFY_BYTES, 0);
        message.try_into().ok()
    }
}

/// Up to 31 bounds and the terminator; what follows it does not count.
fn decode_bounds(fields: &mut Fields<'_>) -> Result<Intervals, MessageError> {
    let mut bounds_ms: Vec<u64> = Vec::new();
    for place in 0..BINS_MAX {
        let bound = u32::from_le_bytes(fields.take());
        if bound == END_OF_BOUNDS {
            return match bounds_ms.is_empty() {
                true => Err(MessageError::NoBounds),
                false => Ok(Intervals::with_zero(bounds_ms)),
            };
        }
        if bounds_ms.last().is_some_and(|last| *last >= bound.into()) {
            return Err(MessageError::NotIncreasing { place });
        }
        bounds_ms.push(bound.into());
    }
    Err(MessageError::NoEnd)
}

impl Report {
    /// A report without bins that carries an error.
    pub fn failure(error: u32, node: u32) -> Report {
        Report {
            error,
            node,
            bins: Vec::new(),
        }
    }

    /// A report of a histogram of bytes.
    pub fn of(node: u32, histogram: &Histogram) -> Report {
        Report {
            error: 0,
            node,
            bins: histogram.bins().to_vec(),
        }
    }

    /// The histogram; `None` of a failure.
    pub fn histogram(&self) -> Option<Histogram> {
        Histogram::from_bins(self.bins.clone())
    }

    /// Reads a report.
    ///
    /// # Errors
    /// [`MessageError`]: of a report without an error, bins that do not increase or do not end.
    pub fn decode(message: &[u8]) -> Result<Report, MessageError> {
        check_length(message, REPORT_BYTES)?;
        let mut fields = Fields(message);
        let error = u32::from_le_bytes(fields.take());
        let node = u32::from_le_bytes(fields.take());
        if error != 0 {
            return Ok(Report::failure(error, node));
        }
        let mut bins: Vec<Bin> = Vec::new();
        for place in 0..BINS_MAX {
            let bin = Bin {
                upper_ms: u64::from_le_bytes(fields.take()),
                amounts: [(); 2].map(|()| u64::from_le_bytes(fields.take())),
            };
            if bins
                .last()
                .is_some_and(|last| last.upper_ms >= bin.upper_ms)
            {
                return Err(MessageError::NotIncreasing { place });
            }
            bins.push(bin);
            if bin.upper_ms == NO_UPPER_BOUND_MS {
                return Ok(Report { error, node, bins });
            }
        }
        Err(MessageError::NoEnd)
    }

    /// Writes a report; bins beyond the 32nd do not exist.
    pub fn encode(&self) -> [u8; REPORT_BYTES] {
        let mut message = [0; REPORT_BYTES];
        let numbers = self
            .bins
            .iter()
            .flat_map(|bin| [bin.upper_ms, bin.amounts[0], bin.amounts[1]]);
        message[0..4].copy_from_slice(&self.error.to_le_bytes());
        message[4..8].copy_from_slice(&self.node.to_le_bytes());
        for (place, number) in message[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        message
    }
}

/// The guest's side of one balloon: a receiver of reports.
#[derive(Clone, Debug)]
pub struct Balloon {
    receiver: ReceiverId,
    is_configured: bool,
    /// A request is being served.
    is_busy: bool,
}

impl Balloon {
    /// A balloon whose host has said nothing yet.
    pub fn new(receiver: ReceiverId) -> Self {
        Balloon {
            receiver,
            is_configured: false,
            is_busy: false,
        }
    }

    /// Takes a notification in; returns what is to be sent.
    ///
    /// A CONFIG that fails is answered with its error and changes nothing. A REQUEST before any
    /// CONFIG is not answered.
    pub fn receive<L: Lruvecs>(
        &mut self,
        message: &[u8],
        reports: &mut Reports<L::Group>,
        world: &mut L,
    ) -> Option<Report> {
        match Notify::decode(message) {
            Err(error) => Some(Report::failure(error.errno(), claimed_node(message))),
            Ok(Notify::Request { .. }) if !self.is_configured => None,
            Ok(Notify::Request { .. }) => self.report(reports, world),
            Ok(Notify::Config {
                node,
                report_threshold_ms,
                refresh_interval_ms,
                intervals,
            }) => {
                let node = u32::from(node);
                let result = reports.set_receiver(
                    self.receiver,
                    node,
                    intervals,
                    refresh_interval_ms.into(),
                    report_threshold_ms.into(),
                    world.now_ms(),
                );
                match result {
                    Ok(()) => {
                        self.is_configured = true;
                        None
                    }
                    Err(error) => Some(Report::failure(errno_of(&error), node)),
                }
            }
        }
    }

    /// The report to be sent on request or under pressure ([`super::report::Notice::Receiver`]).
    /// `EAGAIN` while another one is being made.
    pub fn report<L: Lruvecs>(
        &mut self,
        reports: &mut Reports<L::Group>,
        world: &mut L,
    ) -> Option<Report> {
        const EAGAIN: u32 = 11;
        if self.is_busy {
            return Some(Report::failure(EAGAIN, 0));
        }
        let (node, histogram) = reports.request(self.receiver, world)?;
        Some(Report::of(node, &histogram))
    }

    /// Says that a report is being made elsewhere, or no longer.
    pub fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }
}

/// The node a message that is not understood says it is about.
fn claimed_node(message: &[u8]) -> u32 {
    message
        .get(2..4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, |bytes| u16::from_le_bytes(bytes).into())
}

fn errno_of(error: &ReportError) -> u32 {
    u32::try_from(error.errno()).unwrap_or(22)
}

#[cfg(test)]
#[path = "balloon_tests.rs"]
mod tests;
