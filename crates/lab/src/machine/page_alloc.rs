// SPDX-License-Identifier: Apache-2.0
//! Choice of the zone that serves an allocation (`get_page_from_freelist`), with or without the
//! fair zone policy of Linux 3.12 to 4.7.
//!
//! Plain: the highest zone that stays above its watermark and its lowmem reserve. Fair: each zone
//! of the local node provides pages up to its batch, the distance between its low and high
//! watermarks, which is proportional to its size; a zone whose batch is used up is skipped until
//! all are.

use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::NodeId;

use super::frames::Frames;
use super::zone::{BLOCK, Reserve};

impl Frames {
    /// Allocates a frame of a node for a request that can use zones up to `highest`. Returns it
    /// with its zone.
    #[inline]
    pub fn allocate(
        &mut self,
        node: NodeId,
        highest: usize,
        reserve: Reserve,
    ) -> Option<(Pfn, usize)> {
        self.pick(node, highest, reserve, |zone, keep| {
            (zone.free() > keep).then(|| zone.take())
        })
    }

    /// Allocates `2^order` frames of one zone for one request and appends them; the lab does not
    /// require them to be contiguous. Returns false if there are too few.
    pub fn allocate_order(
        &mut self,
        node: NodeId,
        highest: usize,
        order: u32,
        into: &mut Vec<Pfn>,
    ) -> bool {
        let more = (1_u32 << order) - 1;
        let found = self.pick(node, highest, Reserve::Fair, |zone, keep| {
            (zone.free() > keep + u64::from(more)).then(|| zone.take())
        });
        let Some((pfn, index)) = found else {
            return false;
        };
        let zone = &mut self.nodes[node.index()][index];
        into.push(pfn);
        into.extend((0..more).map(|_| Pfn(zone.take())));
        if self.fair {
            zone.use_batch(more);
        }
        true
    }

    /// Allocates an aligned block of 512 frames that were never used. None if there is none: the
    /// lab does not compact memory.
    pub fn allocate_huge(&mut self, node: NodeId, highest: usize) -> Option<(Pfn, usize)> {
        let found = self.pick(node, highest, Reserve::Fair, |zone, keep| {
            zone.take_block(keep)
        })?;
        if self.fair {
            // The first page is already counted.
            self.nodes[node.index()][found.1].use_batch(BLOCK - 1);
        }
        Some(found)
    }

    fn pick(
        &mut self,
        node: NodeId,
        highest: usize,
        reserve: Reserve,
        take: impl Fn(&mut super::zone::Zone, u64) -> Option<u32>,
    ) -> Option<(Pfn, usize)> {
        let fair = self.fair && reserve == Reserve::Fair;
        let mut skipped = false;
        let mut found = self.scan(node, highest, reserve, fair, &mut skipped, &take);
        if found.is_none() && skipped {
            self.reset_batches(node, highest);
            found = self.scan(node, highest, reserve, false, &mut skipped, &take);
        }
        if let Some((_, zone)) = found {
            self.work.allocations += 1;
            if self.fair {
                self.work.batch_updates += 1;
                self.nodes[node.index()][zone].use_batch(1);
            }
        }
        found
    }

    /// One pass over the zones of a node, highest first.
    fn scan(
        &mut self,
        node: NodeId,
        highest: usize,
        reserve: Reserve,
        fair: bool,
        skipped: &mut bool,
        take: impl Fn(&mut super::zone::Zone, u64) -> Option<u32>,
    ) -> Option<(Pfn, usize)> {
        let zones = &mut self.nodes[node.index()];
        let mut checked = 0;
        let mut found = None;
        for (index, zone) in zones[..=highest.min(3)].iter_mut().enumerate().rev() {
            if zone.managed_pages() == 0 {
                continue;
            }
            if fair && zone.is_depleted() {
                self.work.depleted_skips += 1;
                *skipped = true;
                continue;
            }
            checked += 1;
            let keep = zone.keep(reserve, highest);
            if let Some(frame) = take(zone, keep) {
                found = Some((Pfn(frame), index));
                break;
            }
        }
        self.work.zone_checks += checked;
        self.work.further_zone_checks += checked.saturating_sub(1);
        found
    }

    /// Starts a new round for the zones up to the highest usable one, which is the preferred one
    /// (`reset_alloc_batches`).
    fn reset_batches(&mut self, node: NodeId, highest: usize) {
        for zone in &mut self.nodes[node.index()][..=highest.min(3)] {
            if zone.managed_pages() > 0 {
                zone.reset_batch();
                self.work.batch_resets += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: NodeId = NodeId(0);

    fn zoned(fair: bool) -> Frames {
        let mut frames = Frames::new(&[[16, 4096, 12_288, 0]], 0, 10);
        frames.set_fair(fair);
        frames
    }

    #[test]
    fn the_reserve_is_kept_by_who_must_keep_it() {
        let mut frames = Frames::new(&[[0, 0, 100, 0]], 40, 10);
        let mut count = |reserve| std::iter::from_fn(|| frames.allocate(NODE, 3, reserve)).count();
        assert_eq!(count(Reserve::Low), 88);
        assert_eq!(count(Reserve::Min), 2);
        assert_eq!(count(Reserve::None), 10);
    }

    #[test]
    fn one_zone_costs_one_check_whatever_the_policy_is_called() {
        let mut frames = Frames::new(&[[0, 0, 100, 0]], 40, 10);
        while frames.allocate(NODE, 3, Reserve::Fair).is_some() {}
        assert_eq!(frames.work.further_zone_checks, 0);
        assert_eq!(
            (frames.work.batch_updates, frames.work.batch_resets),
            (0, 0)
        );
    }

    #[test]
    fn without_fairness_the_highest_zone_is_used_up_first() {
        let mut frames = zoned(false);
        for _ in 0..8000 {
            assert_eq!(frames.allocate(NODE, 3, Reserve::Fair).unwrap().1, 2);
        }
        assert_eq!(frames.node_zones(NODE)[1].allocated_pages(), 0);
    }

    #[test]
    fn fair_zones_give_in_proportion_to_their_distance() {
        let mut frames = zoned(true);
        // The first batch is the whole zone: use it up so that rounds begin.
        let taken: Vec<_> = (0..14_000)
            .map(|_| frames.allocate(NODE, 3, Reserve::Fair).unwrap())
            .collect();
        for (pfn, _) in taken {
            frames.free(pfn);
        }
        for zone in [1, 2] {
            frames.nodes[0][zone].reset_batch();
        }
        let mut given = [0u64; 4];
        for _ in 0..10_000 {
            given[frames.allocate(NODE, 3, Reserve::Fair).unwrap().1] += 1;
        }
        let share = given[1] as f64 / 10_000.0;
        assert!((share - 0.25).abs() < 0.01, "{given:?}");
        assert_eq!(given[0], 0, "DMA is kept for those who need it");
    }

    #[test]
    fn low_requests_reach_low_zones_only() {
        let mut frames = zoned(true);
        assert_eq!(
            frames
                .allocate(NODE, 0, Reserve::Fair)
                .map(|(_, zone)| zone),
            Some(0)
        );
        assert_eq!(
            frames
                .allocate(NODE, 1, Reserve::Fair)
                .map(|(_, zone)| zone),
            Some(1)
        );
        while frames.allocate(NODE, 1, Reserve::None).is_some() {}
        assert_eq!(frames.node_zones(NODE)[2].free(), 12_288);
    }

    /// The rule again in plain form: zones by size, batches, flags and two passes.
    struct Naive {
        free: [i64; 4],
        low: [i64; 4],
        distance: [i64; 4],
        reserve: [[u64; 4]; 4],
        batch: [i64; 4],
        depleted: [bool; 4],
    }

    impl Naive {
        fn of(frames: &Frames) -> Naive {
            let zones = frames.zones(NODE);
            Naive {
                free: zones.map(|zone| zone.free_pages as i64),
                low: zones.map(|zone| zone.low_pages as i64),
                distance: zones.map(|zone| (zone.high_pages - zone.low_pages) as i64),
                reserve: zones.map(|zone| zone.reserve_pages),
                batch: zones.map(|zone| zone.managed_pages as i64),
                depleted: [false; 4],
            }
        }

        fn allocate(&mut self, highest: usize) -> Option<usize> {
            for fair in [true, false] {
                let mut skipped = false;
                for zone in (0..=highest).rev() {
                    if fair && self.depleted[zone] {
                        skipped = true;
                        continue;
                    }
                    if self.free[zone] > self.low[zone] + self.reserve[zone][highest] as i64 {
                        self.free[zone] -= 1;
                        self.batch[zone] -= 1;
                        self.depleted[zone] |= self.batch[zone] <= 0;
                        return Some(zone);
                    }
                }
                if !skipped {
                    return None;
                }
                for zone in 0..=highest {
                    self.batch[zone] = self.distance[zone];
                    self.depleted[zone] = false;
                }
            }
            None
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_fair_policy_is_its_naive_model(
            steps in prop::collection::vec((0u8..8, 1usize..4, 1u16..400), 1..120)
        ) {
            let mut frames = Frames::new(&[[0, 600, 1500, 300]], 256, 10);
            frames.set_fair(true);
            let mut naive = Naive::of(&frames);
            let mut held: Vec<(Pfn, usize)> = Vec::new();
            for (kind, highest, count) in steps {
                for _ in 0..count {
                    if kind < 6 {
                        let found = frames.allocate(NODE, highest, Reserve::Fair);
                        prop_assert_eq!(found.map(|(_, zone)| zone), naive.allocate(highest));
                        held.extend(found);
                    } else if let Some((pfn, zone)) = held.pop() {
                        frames.free(pfn);
                        naive.free[zone] += 1;
                    }
                }
                for zone in 0..4 {
                    let real = &frames.node_zones(NODE)[zone];
                    prop_assert_eq!(real.free() as i64, naive.free[zone]);
                    prop_assert_eq!(real.batch_pages(), naive.batch[zone]);
                }
            }
        }
    }
}
