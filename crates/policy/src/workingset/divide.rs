// SPDX-License-Identifier: Apache-2.0
//! Divides the memory of a host among guests by their working-set reports.

use super::Histogram;

/// The memory of a guest, and its report.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Memory it may use now.
    pub allowance_bytes: u64,
    /// Its report, in bytes; `None` if it sent none: then it keeps what it has.
    pub report: Option<Histogram>,
}

/// How memory is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Division {
    /// No guest gets less than this.
    pub floor_bytes: u64,
    /// The most a guest may lose or gain at a time, as a share of what it has: a report is only a
    /// snapshot, and inflating a balloon costs.
    pub step: f64,
    /// The age from which memory is cold: it is taken as soon as some guest is short.
    pub keep_ms: u64,
    /// A guest with less cold memory than this share of its allowance is short: its working set may
    /// be larger than it can show.
    pub short: f64,
}

impl Default for Division {
    fn default() -> Self {
        Division {
            floor_bytes: 1 << 20,
            step: 0.25,
            keep_ms: 10_000,
            short: 0.1,
        }
    }
}

impl Division {
    /// New allowances, in the order of the claims; their sum is `host_bytes` unless floors prevent
    /// it.
    ///
    /// A guest cannot report what it would use if it had more; it only shows that it has almost no
    /// cold memory. While there is such a guest, all others keep what they used within `keep_ms`,
    /// and the rest goes to those that are short, in proportion to what they use. If none is short,
    /// all keep what they use, and the rest is divided evenly.
    pub fn divide(&self, host_bytes: u64, claims: &[Claim]) -> Vec<u64> {
        let wanted = self.wanted(host_bytes, claims);
        let stepped: Vec<u64> = claims
            .iter()
            .zip(wanted)
            .map(|(claim, wanted)| {
                let now = claim.allowance_bytes;
                let most = (now as f64 * self.step) as u64;
                wanted
                    .clamp(now.saturating_sub(most), now.saturating_add(most))
                    .max(self.floor_bytes)
            })
            .collect();
        fit(host_bytes, self.floor_bytes, stepped)
    }

    fn wanted(&self, host_bytes: u64, claims: &[Claim]) -> Vec<u64> {
        let used_recently: Vec<u64> = claims
            .iter()
            .map(|claim| claim.younger_bytes(self.keep_ms))
            .collect();
        let short: Vec<u64> = claims
            .iter()
            .zip(&used_recently)
            .map(|(claim, used)| {
                let cold = claim.allowance_bytes.saturating_sub(*used) as f64;
                let is_short = cold < claim.allowance_bytes as f64 * self.short;
                if is_short && claim.report.is_some() {
                    (*used).max(1)
                } else {
                    0
                }
            })
            .collect();
        let is_any_short = short.iter().any(|weight| *weight > 0);
        let used = if is_any_short {
            used_recently
        } else {
            claims
                .iter()
                .map(|claim| claim.younger_bytes(u64::MAX))
                .collect()
        };
        let total = used.iter().copied().fold(0, u64::saturating_add);
        let left = host_bytes.saturating_sub(total);
        let weights = if short.iter().any(|weight| *weight > 0) {
            short
        } else {
            vec![1; used.len()]
        };
        let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        used.iter()
            .zip(weights)
            .map(|(used, weight)| {
                let part = u128::from(left) * u128::from(weight) / sum.max(1);
                used.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
            })
            .collect()
    }
}

impl Claim {
    /// Bytes used within the last `age_ms`.
    fn younger_bytes(&self, age_ms: u64) -> u64 {
        let Some(report) = &self.report else {
            return self.allowance_bytes;
        };
        let younger = report.bins().iter().filter(|bin| bin.upper_ms <= age_ms);
        younger.fold(0, |sum: u64, bin| {
            sum.saturating_add(bin.amounts[0])
                .saturating_add(bin.amounts[1])
        })
    }
}

/// Scales the part above the floors so that the sum is exact.
fn fit(host_bytes: u64, floor_bytes: u64, wanted: Vec<u64>) -> Vec<u64> {
    let floors = u128::from(floor_bytes) * wanted.len() as u128;
    let spare = u128::from(host_bytes).saturating_sub(floors);
    let above: Vec<u128> = wanted
        .iter()
        .map(|bytes| u128::from(bytes.saturating_sub(floor_bytes)))
        .collect();
    let total: u128 = above.iter().sum();
    let mut allowances: Vec<u64> = above
        .iter()
        .map(|above| match total {
            0 => floor_bytes,
            total => {
                floor_bytes.saturating_add(u64::try_from(spare * above / total).unwrap_or(u64::MAX))
            }
        })
        .collect();
    // What rounding left over, or everything if no guest wants more than the floor.
    let given: u128 = allowances.iter().map(|bytes| u128::from(*bytes)).sum();
    let rest = u64::try_from(u128::from(host_bytes).saturating_sub(given)).unwrap_or(u64::MAX);
    if let Some(first) = allowances.first_mut() {
        *first = first.saturating_add(rest);
    }
    allowances
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn claim(allowance_mib: u64, bins: [u64; 3]) -> Claim {
        let text = format!(
            "1000 anon={} file=0\n10000 anon=0 file={}\n18446744073709551615 anon={} file=0\n",
            bins[0] * MIB,
            bins[1] * MIB,
            bins[2] * MIB
        );
        Claim {
            allowance_bytes: allowance_mib * MIB,
            report: Some(text.parse().unwrap()),
        }
    }

    fn mib(allowances: &[u64]) -> Vec<u64> {
        allowances.iter().map(|bytes| bytes / MIB).collect()
    }

    #[test]
    fn cold_memory_goes_to_who_is_short() {
        // The first uses all it has, the second half, the third a quarter.
        let claims = [
            claim(16, [14, 2, 0]),
            claim(16, [2, 6, 8]),
            claim(16, [1, 3, 12]),
        ];
        let free = Division {
            step: 100.0,
            ..Division::default()
        };
        // 28 MiB are younger than 10 s; the other 20 go to the first guest.
        assert_eq!(mib(&free.divide(48 * MIB, &claims)), [36, 8, 4]);
        // At most a quarter at a time: 20, 12 and 12, scaled up to all there is.
        let stepped = Division::default().divide(48 * MIB, &claims);
        assert_eq!(stepped.iter().sum::<u64>(), 48 * MIB);
        assert_eq!(mib(&stepped), [21, 13, 13]);
    }

    #[test]
    fn nobody_short_means_all_alike_and_no_report_means_as_before() {
        let claims = [claim(16, [2, 2, 4]), claim(16, [2, 2, 4])];
        assert_eq!(
            mib(&Division::default().divide(32 * MIB, &claims)),
            [16, 16]
        );
        let mut silent = claims.to_vec();
        silent[1].report = None;
        let allowances = Division::default().divide(32 * MIB, &silent);
        assert!(allowances[1] >= 15 * MIB, "{allowances:?}");
        assert_eq!(allowances.iter().sum::<u64>(), 32 * MIB);
    }

    proptest! {
        /// All memory is given out, no guest gets less than the floor, and nothing panics.
        #[test]
        fn everything_is_given_out(
            host_mib in 64u64..1 << 20,
            guests in prop::collection::vec(
                (0u64..1 << 20, 0u64..1 << 20, 0u64..1 << 20, 0u64..1 << 20),
                1..20,
            ),
            step in 0.0f64..2.0,
        ) {
            let claims: Vec<Claim> = guests
                .iter()
                .map(|(allowance, a, b, c)| claim(*allowance, [*a, *b, *c]))
                .collect();
            let division = Division { step, ..Division::default() };
            let allowances = division.divide(host_mib * MIB, &claims);
            prop_assert_eq!(allowances.len(), claims.len());
            prop_assert_eq!(allowances.iter().sum::<u64>(), host_mib * MIB);
            prop_assert!(allowances.iter().all(|bytes| *bytes >= MIB));
        }
    }
}
