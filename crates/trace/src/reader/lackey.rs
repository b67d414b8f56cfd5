// SPDX-License-Identifier: Apache-2.0
//! `valgrind --tool=lackey --trace-mem=yes`: every instruction and data access of a program.
//!
//! Lines are `I  ADDR,SIZE` (instruction), ` L ADDR,SIZE` (load), ` S ADDR,SIZE` (store) and
//! ` M ADDR,SIZE` (modify: one access that writes). Addresses are hexadecimal, without prefix. An
//! access that crosses a page boundary is an access to both pages. Messages of valgrind (`==`,
//! `--`) are ignored.

use super::simple;
use crate::access::{AccessKind, Request};
use crate::format::{Format, ReadOptions, lines_all};
use crate::number;

/// valgrind's lackey.
pub static FORMAT: Format = Format {
    name: "lackey",
    name_hints: &["lackey"],
    description_hints: &[&["lackey"], &["valgrind"]],
    recognise: |head| lines_all(head, |line| is_message(line) || parse(line).is_ok()),
    open: |input, options: &ReadOptions| {
        let page_shift = options.page_shift_or_default(input.path())?;
        Ok(simple::lines(input, &FORMAT, move |line| {
            request(line, page_shift)
        }))
    },
};

/// The largest access of one instruction that lackey reports (an xsave area, with some margin).
const ACCESS_BYTES_MAX: u64 = 1 << 16;

fn request(line: &[u8], page_shift: u32) -> Result<Option<Request>, String> {
    if is_message(line) {
        return Ok(None);
    }
    let (kind, address, bytes) = parse(line)?;
    let first_page = address >> page_shift;
    let last_page = (address + (bytes - 1)) >> page_shift;
    Ok(Some(Request {
        first_page,
        page_count: last_page - first_page + 1,
        kind,
        ..Request::default()
    }))
}

fn is_message(line: &[u8]) -> bool {
    line.starts_with(b"==") || line.starts_with(b"--") || line.starts_with(b"**")
}

fn parse(line: &[u8]) -> Result<(AccessKind, u64, u64), String> {
    let mut words = number::words(line);
    let kind = match words.next() {
        Some(b"I" | b"L") => AccessKind::Read,
        Some(b"S" | b"M") => AccessKind::Write,
        other => {
            let found = number::lossy(other.unwrap_or_default());
            return Err(format!("expected I, L, S or M, found \"{found}\""));
        }
    };
    let place = words.next().ok_or("the address is missing")?;
    let comma = place
        .iter()
        .position(|&byte| byte == b',')
        .ok_or("expected ADDRESS,SIZE")?;
    let address = number::hexadecimal(&place[..comma])?;
    let bytes = number::decimal(&place[comma + 1..])?;
    if !(1..=ACCESS_BYTES_MAX).contains(&bytes) || address.checked_add(bytes).is_none() {
        return Err(format!("an access of {bytes} bytes at {address:#x}"));
    }
    if words.next().is_some() {
        return Err("more than 2 columns".into());
    }
    Ok((kind, address, bytes))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, read};
    use super::*;

    #[test]
    fn accesses_may_cross_pages() {
        let text = b"==7== Lackey, an example\nI  04000ffe,3\n L 1ffeffe7e0,8\n M 2000,4\n";
        let (requests, _) = read(&FORMAT, text);
        assert_eq!(
            (requests[0].first_page, requests[0].page_count),
            (0x4000, 2)
        );
        assert_eq!(
            (requests[1].first_page, requests[1].page_count),
            (0x1ffeffe, 1)
        );
        assert_eq!(requests[2].kind, AccessKind::Write);
    }

    #[test]
    fn errors() {
        assert!(error(&FORMAT, b"Q 1,2\n").contains("expected I, L, S or M"));
        assert!(error(&FORMAT, b"L 1,0\n").contains("access of 0 bytes"));
        assert!(error(&FORMAT, b"L ffffffffffffffff,8\n").contains("access of 8 bytes"));
        assert!(error(&FORMAT, b"L 12\n").contains("ADDRESS,SIZE"));
    }
}
