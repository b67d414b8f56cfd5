// SPDX-License-Identifier: Apache-2.0
//! Compares the engine with the naive model after every step.

use agewise_kernel::folio::FolioType;
use agewise_kernel::ids::MemcgId;
use agewise_kernel::mglru::profile::{V6_12, V7_2};
use agewise_kernel::mglru::{self, Profile};
use proptest::prelude::*;

use crate::machine::Machine;
use crate::naive_model::{ANON, FILE, Naive};
use crate::trace::Touch;

const CAPACITY: usize = 500;

#[derive(Clone, Copy, Debug)]
enum Step {
    Anon(u16),
    Read(u16),
    Mapped(u16),
    Sweep(bool, u16, u8),
    Reclaim,
    Age(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let page = 0..ANON.min(FILE) as u16;
    prop_oneof![
        4 => page.clone().prop_map(Step::Anon),
        4 => page.clone().prop_map(Step::Read),
        4 => page.clone().prop_map(Step::Mapped),
        8 => (any::<bool>(), page, any::<u8>())
            .prop_map(|(file, page, n)| Step::Sweep(file, page, n)),
        2 => Just(Step::Reclaim),
        1 => any::<bool>().prop_map(Step::Age),
    ]
}

struct Numbers;

impl mglru::MemcgNames for Numbers {
    fn id(&self, memcg: MemcgId) -> u64 {
        memcg.0.into()
    }

    fn path(&self, _: MemcgId) -> String {
        String::new()
    }

    fn by_id(&self, id: u64) -> Option<MemcgId> {
        u32::try_from(id).ok().map(MemcgId)
    }
}

struct Pair {
    machine: Machine,
    naive: Naive,
}

impl Pair {
    fn new(profile: Profile) -> Pair {
        let mut machine = Machine::of_profile(profile, 0.0, [ANON, FILE], CAPACITY);
        machine.world.shadow_nodes = None;
        Pair {
            machine,
            naive: Naive::new(profile.name == "7.2", profile.generations, profile.tiers),
        }
    }

    fn touch(&mut self, touch: Touch) {
        let before = self.machine.reclaims;
        self.machine.access(touch);
        self.naive.touch(touch, self.machine.reclaims - before);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Anon(page) => self.touch(Touch::Anon(page.into())),
            Step::Read(page) => self.touch(Touch::Read(page.into())),
            Step::Mapped(page) => self.touch(Touch::Mapped(page.into())),
            Step::Sweep(file, page, n) => {
                for i in 0..u32::from(n) {
                    let page = (u32::from(page) + i) % ANON as u32;
                    self.touch(if file {
                        Touch::Mapped(page)
                    } else {
                        Touch::Anon(page)
                    });
                }
            }
            Step::Reclaim => {
                self.machine.reclaim();
                self.naive.reclaim();
            }
            Step::Age(force) => {
                let text = format!("+ 1 0 {} 60 {}", self.naive.max, u8::from(force));
                let Machine { lru, world, .. } = &mut self.machine;
                let result = mglru::write(lru, world, &Numbers, text.as_bytes());
                if result.is_ok() {
                    self.naive.age(force);
                    self.naive.has_walk = false;
                }
            }
        }
    }

    fn compare(&self) {
        let Pair { machine, naive } = self;
        let state = &machine.lru.lruvecs[machine.lruvec().index()].mglru;
        assert_eq!((state.max_seq, state.min_seq), (naive.max, naive.min));
        let counts = [naive.scanned, naive.stolen, naive.sorted];
        assert_eq!(machine.counts(), counts);
        let slots = naive.generations;
        for seq in (naive.max + 1).saturating_sub(slots)..=naive.max {
            for folio_type in FolioType::ALL {
                let listed: Vec<(usize, u64)> = state
                    .listed(&machine.lru.folios, seq, folio_type)
                    .map(|pfn| {
                        let slot = u64::from(machine.lru.folios[pfn].generation().unwrap());
                        let distance = (naive.max + slots - slot) % slots;
                        (machine.page_of(pfn), naive.max - distance)
                    })
                    .collect();
                let file = folio_type == FolioType::File;
                let expected: Vec<(usize, u64)> = naive
                    .lists
                    .get(&(file, seq))
                    .into_iter()
                    .flatten()
                    .map(|&i| (i, naive.pages[i].seq.unwrap()))
                    .collect();
                assert_eq!(listed, expected, "{folio_type:?} of generation {seq}");
            }
        }
    }
}

fn run(profile: Profile, steps: Vec<Step>) {
    let mut pair = Pair::new(profile);
    for step in steps {
        pair.take(step);
        pair.compare();
    }
}

/// As in the kernel half of the time, otherwise with any number of generations and tiers.
fn profiles() -> impl Strategy<Value = Profile> {
    let of_kernel = prop::sample::select(vec![V7_2, V6_12]);
    let sizes = prop_oneof![Just((4, 4)), (4u8..=7, 2u8..=4)];
    (of_kernel, sizes).prop_map(|(profile, (generations, tiers))| Profile {
        generations,
        tiers,
        refault_window: profile.refault_window.map(|_| generations.into()),
        ..profile
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1200))]

    #[test]
    fn the_engine_does_what_the_naive_model_does(
        profile in profiles(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        run(profile, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(16) })]

    /// Long enough for refaults to affect the controller.
    #[test]
    fn the_engine_does_so_for_long(
        profile in profiles(),
        steps in prop::collection::vec(step(), 900..1200),
    ) {
        run(profile, steps);
    }
}
