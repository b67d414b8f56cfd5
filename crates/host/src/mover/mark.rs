// SPDX-License-Identifier: Apache-2.0
//! Marks pages to be reclaimed first (`MADV_COLD`): they stay in memory, at the cold end of the
//! kernel's lists.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::rate::{Clock, NAP_NS, TokenBucket};
use super::runs::RunSet;
use crate::access::AddressRange;
use crate::clear::hand::{ClearHand, MAX_RANGES};

/// The outcome of marking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Processed by the kernel.
    pub marked_bytes: u64,
    /// Refused by the kernel: locked, hugetlb, or unmapped in the meantime.
    pub refused_bytes: u64,
    /// System calls.
    pub calls: u64,
}

/// Marks `runs`, one vector after another, at the rate of `bucket`. Skips what the kernel refuses,
/// and ends early when `cancel` becomes true.
///
/// The second value is the error that ended it early; what was done until then is in the first. A
/// process that is gone is not an error.
pub fn mark_cold(
    hand: &mut dyn ClearHand,
    runs: &RunSet,
    bucket: Option<&mut TokenBucket>,
    clock: &dyn Clock,
    cancel: &AtomicBool,
) -> (Marked, Option<io::Error>) {
    let mut marked = Marked::default();
    let mut bucket = bucket;
    let mut rest = runs.runs();
    while !rest.is_empty() && !cancel.load(Ordering::Relaxed) {
        if let Some(bucket) = &mut bucket {
            let wait_ns = bucket.wait_ns(clock.now_ns());
            if wait_ns > 0 {
                clock.sleep_ns(wait_ns.min(NAP_NS));
                continue;
            }
        }
        let batch = &rest[..rest.len().min(MAX_RANGES)];
        marked.calls += 1;
        let done = match hand.cold(batch) {
            Ok(done) => done.min(batch.len()),
            // The first range was refused; continue with the others.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM)) => 0,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
            Err(error) => return (marked, Some(error)),
        };
        let refused = usize::from(done < batch.len());
        let bytes = |ranges: &[AddressRange]| ranges.iter().map(AddressRange::len).sum::<u64>();
        let done_bytes = bytes(&batch[..done]);
        if let Some(bucket) = &mut bucket {
            bucket.take(done_bytes);
        }
        marked.marked_bytes += done_bytes;
        marked.refused_bytes += bytes(&batch[done..done + refused]);
        rest = &rest[done + refused..];
    }
    (marked, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clear::hand::RefsScope;
    use crate::mover::SystemClock;

    const PAGE: u64 = 4096;

    /// Refuses the range that starts at `bad`, as the kernel does.
    struct Hand {
        bad: u64,
        calls: u64,
        fails: Option<i32>,
    }

    impl ClearHand for Hand {
        fn cold(&mut self, ranges: &[AddressRange]) -> io::Result<usize> {
            self.calls += 1;
            if let Some(errno) = self.fails {
                return Err(io::Error::from_raw_os_error(errno));
            }
            match ranges.iter().position(|range| range.start == self.bad) {
                Some(0) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
                Some(at) => Ok(at),
                None => Ok(ranges.len()),
            }
        }

        fn refs(&mut self, _: RefsScope) -> io::Result<()> {
            unreachable!("marking clears nothing else")
        }
    }

    fn mark(hand: &mut Hand, runs: &RunSet, cancel: bool) -> (Marked, Option<io::Error>) {
        mark_cold(hand, runs, None, &SystemClock, &AtomicBool::new(cancel))
    }

    #[test]
    fn what_is_refused_is_left_out_and_the_rest_goes_on() {
        let runs: RunSet = (0..1500)
            .map(|n| AddressRange::new(n * 2 * PAGE, PAGE))
            .collect();
        for bad in [0, 700, 1023, 1024, 1499] {
            let mut hand = Hand {
                bad: bad * 2 * PAGE,
                calls: 0,
                fails: None,
            };
            let (marked, error) = mark(&mut hand, &runs, false);
            assert!(error.is_none());
            assert_eq!(marked.marked_bytes, 1499 * PAGE, "{bad}");
            assert_eq!((marked.refused_bytes, marked.calls), (PAGE, hand.calls));
        }
    }

    #[test]
    fn it_ends_with_the_process_and_when_cancelled() {
        let runs: RunSet = [AddressRange::new(PAGE, PAGE)].into_iter().collect();
        let mut hand = Hand {
            bad: 0,
            calls: 0,
            fails: Some(libc::ESRCH),
        };
        assert!(mark(&mut hand, &runs, false).1.is_none());
        hand.fails = Some(libc::EPERM);
        let (marked, error) = mark(&mut hand, &runs, false);
        assert_eq!(marked.marked_bytes, 0);
        assert_eq!(
            error.and_then(|error| error.raw_os_error()),
            Some(libc::EPERM)
        );
        let calls = hand.calls;
        assert_eq!(mark(&mut hand, &runs, true).0, Marked::default());
        assert_eq!(hand.calls, calls);
    }
}
