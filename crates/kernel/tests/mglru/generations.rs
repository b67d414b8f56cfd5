// SPDX-License-Identifier: Apache-2.0
//! Profiles with other numbers of generations and tiers than the kernel's four.

use agewise_kernel::folio::FolioType;
use agewise_kernel::mglru::profile::{V6_12, V7_2};
use agewise_kernel::mglru::{Profile, State};

use crate::interfaces::{Names, age_to, machine_with, write};
use crate::machine::Machine;
use crate::trace::Pattern;

fn state(machine: &Machine) -> &State {
    &machine.lru.lruvecs[machine.lruvec().index()].mglru
}

/// A machine whose 600 anon pages, and two of the program, are on the lists.
fn machine(profile: Profile) -> (Machine, Names) {
    let (mut machine, names) = machine_with(profile, Pattern::AnonUniform);
    machine.lru.drain_all();
    (machine, names)
}

/// Pages that nobody touches stay in their generation while younger ones are opened, until there
/// are as many as there may be; from then on the oldest are drained into the next.
#[test]
fn pages_go_through_all_generations_in_order() {
    for generations in 4..=7u8 {
        for profile in [V7_2, V6_12] {
            let profile = Profile {
                generations,
                ..profile
            };
            let (mut machine, names) = machine(profile);
            // The first walk finds the accessed bits of the faults.
            age_to(&mut machine, &names, 4);
            let at = (0..=4).rfind(|&seq| state(&machine).pages_of(seq, FolioType::Anon) > 0);
            let at = at.expect("pages");
            for max_seq in 5..20 {
                age_to(&mut machine, &names, max_seq);
                machine.verify();
                let state = state(&machine);
                let oldest = (max_seq + 1).saturating_sub(generations.into());
                assert_eq!(state.min_seq, [oldest; 2], "{generations} at {max_seq}");
                let held = state.pages_of(at.max(oldest), FolioType::Anon);
                assert_eq!(held, 602, "{generations} at {max_seq}");
            }
        }
    }
}

#[test]
fn files_show_all_generations_and_tiers() {
    let profile = Profile {
        generations: 6,
        tiers: 3,
        ..V6_12
    };
    let (mut machine, names) = machine(profile);
    age_to(&mut machine, &names, 9);
    let lines = |full| {
        let text = agewise_kernel::mglru::render(&machine.lru, &names, machine.world.now_ns, full);
        let cgroup = text.split("memcg     2 /t\n").nth(1).expect("a cgroup");
        cgroup.lines().count()
    };
    // The node, then six generations; each with three tiers and the walk in the full file.
    assert_eq!(lines(false), 1 + 6);
    assert_eq!(lines(true), 1 + 6 * (1 + 3 + 1));
}

#[test]
fn commands_refuse_only_when_all_generations_are_in_use() {
    const ERANGE: i32 = 34;
    for generations in 4..=7u8 {
        let (mut machine, names) = machine(Profile {
            generations,
            ..V6_12
        });
        // Without force, until none is left.
        for seq in 3..u64::from(generations) - 1 {
            assert_eq!(write(&mut machine, &names, &format!("+ 2 0 {seq} 60 0")), 0);
        }
        let last = u64::from(generations) - 1;
        let again = format!("+ 2 0 {last} 60 0");
        assert_eq!(write(&mut machine, &names, &again), ERANGE, "{generations}");
    }
}
