// SPDX-License-Identifier: Apache-2.0
//! Ages in looks, divided into buckets: 1, 2 and 3 looks, then four buckets per octave.

/// More buckets than ages in histories, since a horizon may be beyond what has been seen. The last
/// one takes everything older.
pub(super) const AGE_BUCKETS: usize = 40;

/// The bucket of an age.
pub(super) fn age_bucket(looks: u32) -> usize {
    if looks < 4 {
        return looks as usize;
    }
    let octave = looks.ilog2();
    let quarter = looks >> (octave - 2) & 3;
    ((4 * (octave - 1) + quarter) as usize).min(AGE_BUCKETS - 1)
}

/// The youngest age of a bucket, in looks.
pub(super) fn bucket_start(bucket: usize) -> u32 {
    match bucket as u32 {
        small @ 0..4 => small,
        bucket => (4 + (bucket & 3)) << (bucket / 4 - 1),
    }
}

/// Looks that a bucket spans.
pub(super) fn bucket_looks(bucket: usize) -> f64 {
    f64::from((bucket_start(bucket + 1) - bucket_start(bucket)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_start_where_ages_fall_into_them() {
        for bucket in 0..AGE_BUCKETS {
            assert_eq!(age_bucket(bucket_start(bucket)), bucket);
            if bucket > 0 {
                assert_eq!(age_bucket(bucket_start(bucket) - 1), bucket - 1);
            }
        }
        // Every age that fits in a history is below the last bucket.
        assert!(bucket_start(AGE_BUCKETS - 1) > 250);
        assert_eq!(age_bucket(u32::MAX), AGE_BUCKETS - 1);
    }
}
