// SPDX-License-Identifier: Apache-2.0
//! The fixed parts of a page trace: file header, frame header, index and trailer.

/// First bytes of the file. They are not text, so that a transfer in text mode is noticed.
pub(super) const MAGIC: [u8; 8] = *b"\x89AGEWPT\n";
/// Newest version that this code reads. It writes version 1 if that suffices.
pub(super) const VERSION: u16 = 3;
/// The version without evidence.
const VERSION_PLAIN: u16 = 1;
/// Size of the header before the metadata.
pub(super) const HEADER_BYTES: usize = 32;
/// Maximum size of the metadata.
pub(super) const METADATA_BYTES_MAX: usize = 1 << 16;
/// Largest page shift: a larger one would leave no page numbers.
pub(crate) const PAGE_SHIFT_MAX: u8 = 63;
/// First bytes of a frame.
pub(super) const FRAME_MAGIC: [u8; 4] = *b"FRAM";
/// First bytes of the index.
pub(super) const INDEX_MAGIC: [u8; 4] = *b"INDX";
/// Size of a frame header.
pub(super) const FRAME_HEADER_BYTES: usize = 40;
/// Size of an index entry.
pub(super) const INDEX_ENTRY_BYTES: usize = 24;
/// Size of the trailer.
pub(super) const TRAILER_BYTES: usize = 32;
/// Last bytes of a complete file.
pub(super) const TRAILER_MAGIC: [u8; 8] = *b"AGEWPTIX";
/// Requests in a full frame.
pub(super) const FRAME_REQUESTS_MAX: u32 = 1 << 15;
/// Largest payload, packed or not, that a reader accepts.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 4 << 20;

/// Whether requests are in the order of the accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Requests are in the order they happened.
    #[default]
    Exact,
    /// Requests with the same time stamp happened in one interval, in unknown order.
    Interval,
}

/// The header of a page trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// A page is `1 << page_shift` bytes.
    pub page_shift: u8,
    /// Whether the order inside a time stamp is meaningful.
    pub order: Order,
    /// Nanoseconds between observations; 0 when the order is exact.
    pub interval_ns: u64,
    /// Whether requests record how they are known ([`crate::Evidence`]): version 2, or version 3,
    /// which also distinguishes kinds of page faults and is the one written. Otherwise all accesses
    /// were seen.
    pub evidence: bool,
    /// Lines of `key=value`, at most 64 KiB: what was recorded, where and how.
    pub metadata: String,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            page_shift: 12,
            order: Order::Exact,
            interval_ns: 0,
            evidence: false,
            metadata: String::new(),
        }
    }
}

impl Header {
    /// Checks that readers accept it.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.metadata.len() > METADATA_BYTES_MAX {
            return Err(format!("more than {METADATA_BYTES_MAX} bytes of metadata"));
        }
        if self.page_shift > PAGE_SHIFT_MAX {
            return Err(format!(
                "a page shift of {}; at most {PAGE_SHIFT_MAX}",
                self.page_shift
            ));
        }
        Ok(())
    }

    /// Encodes the header and metadata.
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.metadata.len());
        bytes.extend(MAGIC);
        let version = if self.evidence {
            VERSION
        } else {
            VERSION_PLAIN
        };
        bytes.extend(version.to_le_bytes());
        bytes.extend((HEADER_BYTES as u16).to_le_bytes());
        bytes.push(self.page_shift);
        bytes.push(match self.order {
            Order::Exact => 0,
            Order::Interval => 1,
        });
        bytes.extend([0, 0]);
        bytes.extend(self.interval_ns.to_le_bytes());
        bytes.extend((self.metadata.len() as u32).to_le_bytes());
        let crc = crc32(&[&bytes, self.metadata.as_bytes()]);
        bytes.extend(crc.to_le_bytes());
        bytes.extend(self.metadata.as_bytes());
        Ok(bytes)
    }

    /// Decodes the fixed part; returns the header without metadata, and the length of the metadata.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, usize), String> {
        if bytes[..8] != MAGIC {
            return Err("it does not begin as a page trace".into());
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version == 0 || version > VERSION {
            return Err(format!(
                "version {version}; this build reads up to {VERSION}"
            ));
        }
        if u16::from_le_bytes([bytes[10], bytes[11]]) as usize != HEADER_BYTES {
            return Err(format!("a header that is not {HEADER_BYTES} bytes long"));
        }
        let order = match bytes[13] {
            0 => Order::Exact,
            1 => Order::Interval,
            other => return Err(format!("order {other}; expected 0 or 1")),
        };
        let page_shift = bytes[12];
        if page_shift > PAGE_SHIFT_MAX {
            return Err(format!("a page shift of {page_shift}"));
        }
        let interval_ns = u64_at(bytes, 16);
        let metadata_bytes = u32_at(bytes, 24) as usize;
        if metadata_bytes > METADATA_BYTES_MAX {
            return Err(format!("{metadata_bytes} bytes of metadata"));
        }
        Ok((
            Self {
                page_shift,
                order,
                interval_ns,
                evidence: version > VERSION_PLAIN,
                metadata: String::new(),
            },
            metadata_bytes,
        ))
    }
}

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub packed_bytes: u32,
    pub raw_bytes: u32,
    pub requests: u32,
    pub accesses: u64,
    pub first_time_ns: u64,
    pub payload_crc: u32,
}

impl FrameHeader {
    pub(super) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4..8].copy_from_slice(&self.packed_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.requests.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.accesses.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_time_ns.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32(&[&bytes[..36]]);
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, String> {
        if u32_at(bytes, 36) != crc32(&[&bytes[..36]]) {
            return Err("the frame header is damaged".into());
        }
        let header = Self {
            packed_bytes: u32_at(bytes, 4),
            raw_bytes: u32_at(bytes, 8),
            requests: u32_at(bytes, 12),
            accesses: u64_at(bytes, 16),
            first_time_ns: u64_at(bytes, 24),
            payload_crc: u32_at(bytes, 32),
        };
        if header.packed_bytes > PAYLOAD_BYTES_MAX || header.raw_bytes > PAYLOAD_BYTES_MAX {
            return Err(format!("a frame of more than {PAYLOAD_BYTES_MAX} bytes"));
        }
        Ok(header)
    }
}

/// The CRC-32 (IEEE, as in gzip) of the concatenated pieces.
pub(super) fn crc32(pieces: &[&[u8]]) -> u32 {
    let mut crc = flate2::Crc::new();
    for piece in pieces {
        crc.update(piece);
    }
    crc.sum()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
