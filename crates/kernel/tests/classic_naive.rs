// SPDX-License-Identifier: Apache-2.0
//! Compares the classic LRU with a naive model of it, on random sequences of operations.

mod support;

use agewise_kernel::classic::{self, List, Settings};
use agewise_kernel::lru::Mode;
use proptest::prelude::*;
use support::naive::Naive;
use support::{Kind, LRUVEC, Sim};

const AREA: u64 = 512;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Touches a page of an area.
    Touch(u64, u64),
    /// Touches a run of pages of an area.
    Run(u64, u64, u64),
    Cold(u64, u64),
    Free(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let (area, page) = (0..4_u64, 0..90_u64);
    prop_oneof![
        12 => (area.clone(), page.clone()).prop_map(|(area, page)| Step::Touch(area, page)),
        6 => (area.clone(), page.clone(), 1..60_u64)
            .prop_map(|(area, page, len)| Step::Run(area, page, len)),
        2 => (area.clone(), page.clone()).prop_map(|(area, page)| Step::Cold(area, page)),
        2 => (area, page).prop_map(|(area, page)| Step::Free(area, page)),
        2 => Just(Step::Flush),
    ]
}

struct Pair {
    sim: Sim,
    naive: Naive,
}

impl Pair {
    fn new(limit: u64, exact: bool) -> Pair {
        let kinds = [
            Kind::Anon,
            Kind::Read,
            Kind::Mapped { recency: true },
            Kind::Mapped { recency: false },
        ];
        let settings = Settings {
            exact_stats: exact,
            ..Settings::linux_7_2()
        };
        let pages = kinds
            .iter()
            .flat_map(|&kind| std::iter::repeat_n(kind, AREA as usize));
        Pair {
            sim: Sim::new(
                Mode::Classic,
                settings,
                limit,
                &kinds.map(|kind| (AREA, kind)),
            ),
            naive: Naive::new(pages.collect(), limit, exact),
        }
    }

    /// Applies a step to both; returns whether the process survives.
    fn apply(&mut self, step: Step) -> bool {
        let at = |area: u64, page: u64| area * AREA + page;
        match step {
            Step::Touch(area, page) => return self.touch(at(area, page)),
            Step::Run(area, page, len) => {
                return (page..page + len).all(|page| self.touch(at(area, page)));
            }
            Step::Cold(area, page) => {
                self.sim.deactivate(at(area, page));
                self.naive.deactivate(at(area, page) as usize);
            }
            Step::Free(area, page) => {
                self.sim.free(at(area, page));
                self.naive.free(at(area, page) as usize);
            }
            Step::Flush => {
                classic::flush_stats(&mut self.sim.lru);
                self.naive.flush();
            }
        }
        true
    }

    fn touch(&mut self, page: u64) -> bool {
        let found = self.sim.touch(page);
        assert_eq!(found, self.naive.touch(page as usize));
        found.is_ok()
    }

    fn compare(&self) {
        let Pair { sim, naive } = self;
        let state = &sim.lru.lruvecs[LRUVEC.index()].classic;
        let mut listed = 0;
        for list in List::ALL {
            let (t, active) = (list.folio_type().index(), list.is_active());
            let found: Vec<u64> = state
                .list(list)
                .iter_from_tail(&sim.lru.folios)
                .map(|pfn| sim.page_of(pfn))
                .collect();
            let expected = naive.lists[t][usize::from(active)].iter().rev();
            assert!(expected.map(|&page| page as u64).eq(found.iter().copied()));
            // No page is lost, and sizes equal list lengths.
            assert_eq!(state.total_pages(list), found.len() as u64);
            listed += found.len();
        }
        let waiting = naive.pages.iter().filter(|page| page.resident).count() - listed;
        assert_eq!(sim.resident_pages(), listed + waiting);
        assert!(waiting < 31);
        assert_eq!(state.cost, naive.cost);
        assert_eq!(state.nonresident_age, naive.age);
        assert_eq!(sim.usage(), naive.usage);
        let events = sim.events();
        assert_eq!(events.pgscan, naive.scanned);
        assert_eq!(events.pgsteal, naive.stolen);
        assert_eq!(events.workingset_activate, naive.activations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_naive_model_does(
        limit in 64..220_u64,
        exact: bool,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut pair = Pair::new(limit, exact);
        for step in steps {
            if !pair.apply(step) {
                break;
            }
            pair.compare();
        }
    }
}
