// SPDX-License-Identifier: Apache-2.0
//! Latencies in buckets, 128 per doubling: quantiles are accurate to within 0.8 %, so that a step
//! from one bucket to the next stays below what `agewise lab check` accepts.

const SUB_BITS: u32 = 7;
const SUBS: usize = 1 << SUB_BITS;

/// A histogram of durations in ns.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: [u64; 64 * SUBS],
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: [0; 64 * SUBS],
            count: 0,
        }
    }
}

fn bucket_of(value: u64) -> usize {
    if value < SUBS as u64 {
        return value as usize;
    }
    let power = 63 - value.leading_zeros();
    let sub = (value >> (power - SUB_BITS)) as usize & (SUBS - 1);
    (power - SUB_BITS + 1) as usize * SUBS + sub
}

fn lower_bound(bucket: usize) -> u64 {
    if bucket < SUBS {
        return bucket as u64;
    }
    let shift = (bucket / SUBS - 1) as u32;
    ((SUBS + bucket % SUBS) as u64) << shift
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.buckets[bucket_of(value)] += 1;
        self.count += 1;
    }

    /// Lower end of the bucket that contains quantile `q`, 0 to 1; 0 if nothing was counted.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = (self.count as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return lower_bound(bucket);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    proptest! {
        #[test]
        fn quantiles_are_near(
            mut values in prop::collection::vec(0u64..1 << 40, 1..200),
            q in 0.01f64..1.0
        ) {
            let mut histogram = Histogram::default();
            for &value in &values {
                histogram.add(value);
            }
            values.sort_unstable();
            let exact = values[((values.len() as f64 * q).ceil() as usize).max(1) - 1];
            let found = histogram.quantile(q);
            prop_assert!(found <= exact);
            prop_assert!(exact as f64 <= found as f64 * 1.008 + 1.0, "{found} {exact}");
        }
    }
}
