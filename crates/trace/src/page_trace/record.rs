// SPDX-License-Identifier: Apache-2.0
//! Encoding of one request: a tag, then the differences from the previous request.

use crate::access::{AccessKind, Evidence, PageClass, Request};

const KIND_MASK: u8 = 0b0000_0011;
const CLASS_SHIFT: u32 = 2;
/// Value of the class field that says that class and evidence follow in a byte of their own.
const CLASS_FOLLOWS: u8 = 3;
const EVIDENCE_SHIFT: u32 = 2;
const HAS_PROCESS: u8 = 1 << 4;
const HAS_TIME: u8 = 1 << 5;
const HAS_COUNT: u8 = 1 << 6;
const HAS_PAGE: u8 = 1 << 7;

/// What the next record is encoded relative to; reset at each frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Previous {
    /// The page after the last request.
    next_page: u64,
    time_ns: u64,
    process: u32,
    /// Whether the file has evidence: version 2 or 3.
    evidence: bool,
}

impl Previous {
    pub(super) fn start(first_time_ns: u64, evidence: bool) -> Self {
        Self {
            next_page: 0,
            time_ns: first_time_ns,
            process: 0,
            evidence,
        }
    }

    pub(super) fn encode(&mut self, request: &Request, out: &mut Vec<u8>) {
        let mut tag = match request.kind {
            AccessKind::Unknown => 0,
            AccessKind::Read => 1,
            AccessKind::Write => 2,
        };
        let class = match request.class {
            PageClass::Unknown => 0,
            PageClass::Anon => 1,
            PageClass::File => 2,
        };
        let evidence = match request.evidence {
            Evidence::Fault if self.evidence => 1,
            Evidence::Inferred if self.evidence => 2,
            Evidence::MinorFault if self.evidence => 3,
            Evidence::MajorFault if self.evidence => 4,
            _ => 0,
        };
        tag |= if evidence == 0 { class } else { CLASS_FOLLOWS } << CLASS_SHIFT;
        let process_differs = request.process != self.process;
        let time_differs = request.time_ns != self.time_ns;
        let page_jumps = request.first_page != self.next_page;
        tag |= if process_differs { HAS_PROCESS } else { 0 };
        tag |= if time_differs { HAS_TIME } else { 0 };
        tag |= if page_jumps { HAS_PAGE } else { 0 };
        tag |= if request.page_count == 1 {
            0
        } else {
            HAS_COUNT
        };
        out.push(tag);
        if evidence != 0 {
            out.push(class | evidence << EVIDENCE_SHIFT);
        }
        if process_differs {
            put_varint(out, u64::from(request.process));
        }
        if time_differs {
            put_varint(out, zigzag(request.time_ns.wrapping_sub(self.time_ns)));
        }
        if page_jumps {
            put_varint(out, zigzag(request.first_page.wrapping_sub(self.next_page)));
        }
        if request.page_count != 1 {
            put_varint(out, request.page_count);
        }
        self.advance(request);
    }

    /// Decodes the next request from the front of `bytes`.
    // A call would copy the request right after it was written in smaller parts, which stalls.
    #[inline(always)]
    pub(super) fn decode(&mut self, bytes: &mut &[u8]) -> Result<Request, String> {
        let (&tag, rest) = bytes
            .split_first()
            .ok_or("the frame ends before its last request")?;
        *bytes = rest;
        let kind = match tag & KIND_MASK {
            0 => AccessKind::Unknown,
            1 => AccessKind::Read,
            2 => AccessKind::Write,
            _ => return Err("a kind of access that does not exist".into()),
        };
        let mut class = (tag >> CLASS_SHIFT) & 3;
        let mut evidence = Evidence::Seen;
        if class == CLASS_FOLLOWS && self.evidence {
            let (&byte, rest) = bytes
                .split_first()
                .ok_or("the frame ends inside a request")?;
            *bytes = rest;
            class = byte & 3;
            evidence = match byte >> EVIDENCE_SHIFT {
                0 => Evidence::Seen,
                1 => Evidence::Fault,
                2 => Evidence::Inferred,
                3 => Evidence::MinorFault,
                4 => Evidence::MajorFault,
                _ => return Err("a kind of evidence that does not exist".into()),
            };
        }
        let class = match class {
            0 => PageClass::Unknown,
            1 => PageClass::Anon,
            2 => PageClass::File,
            _ => return Err("a class of pages that does not exist".into()),
        };
        let process = if tag & HAS_PROCESS != 0 {
            u32::try_from(take_varint(bytes)?).map_err(|_| "a process number of over 32 bits")?
        } else {
            self.process
        };
        let time_ns = if tag & HAS_TIME != 0 {
            self.time_ns.wrapping_add(unzigzag(take_varint(bytes)?))
        } else {
            self.time_ns
        };
        let first_page = if tag & HAS_PAGE != 0 {
            self.next_page.wrapping_add(unzigzag(take_varint(bytes)?))
        } else {
            self.next_page
        };
        let page_count = if tag & HAS_COUNT != 0 {
            take_varint(bytes)?
        } else {
            1
        };
        let request = Request {
            first_page,
            page_count,
            time_ns,
            process,
            kind,
            class,
            evidence,
        };
        request.check()?;
        self.advance(&request);
        Ok(request)
    }

    fn advance(&mut self, request: &Request) {
        self.next_page = request.first_page.wrapping_add(request.page_count);
        self.time_ns = request.time_ns;
        self.process = request.process;
    }
}

fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    (signed << 1 ^ signed >> 63) as u64
}

fn unzigzag(value: u64) -> u64 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

/// LEB128: seven bits per byte, the lowest first.
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number from the front of `bytes`.
// Much of the work of reading a trace: calls would cost a fifth more.
#[inline(always)]
fn take_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let Some((&word, _)) = bytes.split_first_chunk::<8>() else {
        return take_last_varint(bytes);
    };
    // All bytes of the number at once: lengths that vary cannot be predicted.
    let word = u64::from_le_bytes(word);
    let ends = !word & 0x8080_8080_8080_8080;
    let value = packed(word & (ends ^ ends.wrapping_sub(1)));
    if ends == 0 {
        *bytes = &bytes[8..];
        return take_bytewise(bytes, value, 56);
    }
    *bytes = &bytes[ends.trailing_zeros() as usize / 8 + 1..];
    Ok(value)
}

/// The low seven bits of each byte, next to each other.
fn packed(bytes: u64) -> u64 {
    let of = bytes & 0x7f7f_7f7f_7f7f_7f7f;
    let of = of & 0x007f_007f_007f_007f | (of & 0x7f00_7f00_7f00_7f00) >> 1;
    let of = of & 0x0000_3fff_0000_3fff | (of & 0x3fff_0000_3fff_0000) >> 2;
    of & 0x0fff_ffff | (of & 0x0fff_ffff_0000_0000) >> 4
}

/// A number among the last bytes of a frame.
#[cold]
fn take_last_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    take_bytewise(bytes, 0, 0)
}

/// The rest of a number of which `shift` bits are known.
#[inline(always)]
fn take_bytewise(bytes: &mut &[u8], mut value: u64, shift: u32) -> Result<u64, String> {
    for shift in (shift..64).step_by(7) {
        let (&byte, rest) = bytes
            .split_first()
            .ok_or("the frame ends inside a number")?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err("a number of over 64 bits".into());
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number of over 64 bits".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_read_of_the_same_moment_is_one_byte() {
        let mut bytes = Vec::new();
        let mut previous = Previous::start(7, false);
        previous.encode(
            &Request {
                time_ns: 7,
                ..Request::page(0)
            },
            &mut bytes,
        );
        previous.encode(
            &Request {
                time_ns: 7,
                ..Request::page(1)
            },
            &mut bytes,
        );
        assert_eq!(bytes, [0, 0]);
    }

    #[test]
    fn numbers_at_the_limits() {
        // Of one to ten bytes, among them some whose groups of seven bits all differ.
        let mixed = [
            0x2_3456_789a_bcde,
            0xfe_dcba_9876_5432,
            0x0123_4567_89ab_cdef,
        ];
        for value in mixed
            .into_iter()
            .chain([0, 1, 127, 128, u64::MAX >> 1, u64::MAX])
        {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            // At the end of a frame, and with more behind it.
            for behind in [0, 1, 9] {
                let mut rest = &[bytes.as_slice(), &[0xff; 9][..behind]].concat()[..];
                assert_eq!(take_varint(&mut rest), Ok(value));
                assert_eq!(rest.len(), behind);
            }
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        for length in 0..=10 {
            assert!(take_varint(&mut &[0xff; 10][..length]).is_err());
        }
        assert!(take_varint(&mut [0x80].as_slice()).is_err());
    }
}
