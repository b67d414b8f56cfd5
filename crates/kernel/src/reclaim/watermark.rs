// SPDX-License-Identifier: Apache-2.0
//! Watermarks: when kswapd runs, and when allocations must reclaim directly.

use crate::world::ZoneState;

/// A zone, for computing watermarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneSpan {
    /// Managed pages.
    pub managed_pages: u64,
    /// `ZONE_MOVABLE` or highmem: not used for the kernel's own allocations.
    pub movable: bool,
}

/// Watermarks of one zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it, only reclaimers may allocate.
    pub min_pages: u64,
    /// Below it, kswapd is woken.
    pub low_pages: u64,
    /// kswapd reclaims up to it.
    pub high_pages: u64,
}

/// `vm.min_free_kbytes` of a machine with `lowmem_kb` KiB outside of highmem
/// (`calculate_min_free_kbytes`; up to 5.8 the cap was 65536).
#[must_use]
pub fn min_free_kb(lowmem_kb: u64) -> u64 {
    lowmem_kb.saturating_mul(16).isqrt().clamp(128, 262_144)
}

/// The watermarks of each zone (`__setup_per_zone_wmarks`). `min` is by the zone's share of managed
/// pages; `low` and `high` are one and two distances above, where the distance is a quarter of that
/// share or `scale_factor` ten-thousandths of the zone, whichever is more. A movable zone has a
/// small `min` of its own.
#[must_use]
pub fn watermarks(zones: &[ZoneSpan], min_free_kb: u64, scale_factor: u64) -> Vec<Watermarks> {
    let min_free_pages = min_free_kb >> 2;
    let lowmem: u64 = zones
        .iter()
        .filter(|zone| !zone.movable)
        .map(|zone| zone.managed_pages)
        .sum();
    zones
        .iter()
        .map(|zone| {
            let managed = zone.managed_pages;
            let share = mul_div(min_free_pages, managed, lowmem.max(1));
            let min_pages = if zone.movable {
                (managed / 1024).clamp(32, 128)
            } else {
                share
            };
            let distance = (share >> 2).max(mul_div(managed, scale_factor, 10_000));
            Watermarks {
                min_pages,
                low_pages: min_pages + distance,
                high_pages: min_pages + 2 * distance,
            }
        })
        .collect()
}

fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}

/// Whether an allocation of `2^order` pages from zones up to `highest` leaves this zone above
/// `mark` plus its reserve (`__zone_watermark_ok`, without fragmentation).
#[inline]
#[must_use]
pub fn is_above(zone: &ZoneState, order: u32, mark_pages: u64, highest: usize) -> bool {
    let unusable = (1_u64 << order) - 1;
    zone.free_pages.saturating_sub(unusable) > mark_pages + zone.reserve_pages[highest.min(3)]
}

/// The pages that each zone reserves against requests that could use a higher zone
/// (`setup_per_zone_lowmem_reserve`): the managed pages of the zones above it, up to the highest
/// the request can use, divided by the ratio of the zone. By zone, then by highest usable zone.
#[must_use]
pub fn lowmem_reserves(managed_pages: [u64; 4]) -> [[u64; 4]; 4] {
    std::array::from_fn(|zone| {
        std::array::from_fn(|highest| {
            let above: u64 = managed_pages.iter().take(highest + 1).skip(zone + 1).sum();
            match LOWMEM_RESERVE_RATIO[zone] {
                0 => 0,
                _ if managed_pages[zone] == 0 => 0,
                ratio => above / ratio,
            }
        })
    })
}

/// `vm.lowmem_reserve_ratio` of DMA, DMA32, NORMAL and MOVABLE.
const LOWMEM_RESERVE_RATIO: [u64; 4] = [256, 256, 32, 0];

/// Whether any zone up to `highest` is above its high watermark (`pgdat_balanced`). True if there
/// are no such zones.
#[must_use]
pub fn node_is_balanced(zones: &[ZoneState; 4], order: u32, highest: usize) -> bool {
    let mut managed = zones[..=highest.min(3)]
        .iter()
        .filter(|zone| zone.managed_pages > 0)
        .peekable();
    managed.peek().is_none() || managed.any(|zone| is_above(zone, order, zone.high_pages, highest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default of `vm.watermark_scale_factor`, in 1/10000 of a zone.
    const SCALE_FACTOR: u64 = 10;

    #[test]
    fn min_free_follows_the_square_root() {
        // 16 GiB: sqrt(16 * 16777216) = 16384.
        assert_eq!(min_free_kb(16 << 20), 16_384);
        assert_eq!(min_free_kb(512), 128);
        assert_eq!(min_free_kb(8 << 30), 262_144);
    }

    #[test]
    fn distances_are_the_larger_of_quarter_and_scale() {
        let zones = [ZoneSpan {
            managed_pages: 4 << 20,
            movable: false,
        }];
        // 16 GiB: min 4096 pages; a quarter is 1024, 0.1 % is 4194.
        let marks = watermarks(&zones, 16_384, SCALE_FACTOR)[0];
        assert_eq!(
            (marks.min_pages, marks.low_pages, marks.high_pages),
            (4096, 4096 + 4194, 4096 + 2 * 4194)
        );
        // 1 GiB: min 1024 pages; a quarter is 256, 0.1 % is 262.
        let small = [ZoneSpan {
            managed_pages: 262_144,
            movable: false,
        }];
        let marks = watermarks(&small, min_free_kb(1 << 20), SCALE_FACTOR)[0];
        assert_eq!((marks.min_pages, marks.low_pages), (1024, 1024 + 262));
    }

    #[test]
    fn a_movable_zone_has_a_small_min_but_the_full_distance() {
        let zones = [
            ZoneSpan {
                managed_pages: 1_000_000,
                movable: false,
            },
            ZoneSpan {
                managed_pages: 1_000_000,
                movable: true,
            },
        ];
        let marks = watermarks(&zones, 40_000, 1);
        assert_eq!(marks[0].min_pages, 10_000);
        assert_eq!(marks[1].min_pages, 128);
        assert_eq!(marks[1].low_pages, 128 + 2500);
    }

    #[test]
    fn one_zone_above_high_balances_a_node() {
        let zone = |free_pages| ZoneState {
            managed_pages: 1000,
            free_pages,
            min_pages: 10,
            low_pages: 20,
            high_pages: 30,
            ..ZoneState::default()
        };
        let zones = [zone(10), zone(31), ZoneState::default(), zone(5)];
        assert!(node_is_balanced(&zones, 0, 3));
        assert!(!node_is_balanced(&zones, 0, 0));
        assert!(!node_is_balanced(&zones, 2, 1));
        assert!(node_is_balanced(&[ZoneState::default(); 4], 0, 3));
    }

    #[test]
    fn low_zones_are_kept_for_those_who_need_them() {
        let reserves = lowmem_reserves([1000, 512_000, 1_024_000, 64_000]);
        assert_eq!(reserves[0], [0, 2000, 6000, 6250]);
        assert_eq!(reserves[1], [0, 0, 4000, 4250]);
        assert_eq!(reserves[2], [0, 0, 0, 2000]);
        assert_eq!(reserves[3], [0; 4]);
        let zone = ZoneState {
            managed_pages: 1000,
            free_pages: 1000,
            high_pages: 30,
            reserve_pages: reserves[0],
            ..ZoneState::default()
        };
        assert!(is_above(&zone, 0, zone.high_pages, 0));
        assert!(!is_above(&zone, 0, zone.high_pages, 2));
    }
}
