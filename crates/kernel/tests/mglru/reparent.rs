// SPDX-License-Identifier: Apache-2.0
//! What a removed cgroup leaves to its parent (7.2).

use agewise_kernel::folio::FolioType;
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::State;
use agewise_kernel::mglru::profile::V7_2;

use crate::interfaces::{Names, age_to, machine_with, write};
use crate::machine::Machine;
use crate::trace::{Pattern, Touch};

/// A machine with 602 anon pages in a cgroup below the root.
fn machine() -> (Machine, Names) {
    let (mut machine, names) = machine_with(V7_2, Pattern::AnonUniform);
    machine.lru.drain_all();
    (machine, names)
}

fn root(machine: &Machine) -> &State {
    let root = machine.lru.lruvec_id(MemcgId::ROOT, NodeId(0));
    &machine.lru.lruvecs[root.index()].mglru
}

fn offline(machine: &mut Machine, memcg: MemcgId) {
    machine.lru.memcg_offline(memcg, machine.world.now_ns);
    machine.memcg = MemcgId::ROOT;
    machine.verify();
}

fn age_root(machine: &mut Machine, names: &Names) {
    let command = format!("+ 1 0 {}", root(machine).max_seq);
    assert_eq!(write(machine, names, &command), 0);
    machine.verify();
}

/// Evicts all of the root that can be evicted without another generation.
fn evict_root(machine: &mut Machine, names: &Names) {
    let command = format!("- 1 0 {}", root(machine).max_seq - 2);
    assert_eq!(write(machine, names, &command), 0);
    machine.verify();
}

/// A folio that was promoted in place before its cgroup was removed may be sorted to a slot that is
/// retired in the parent. It is still counted, and evicted when that slot is used again.
#[test]
fn a_promotion_to_a_generation_the_parent_has_retired_is_not_lost() {
    let (mut machine, names) = machine();
    age_to(&mut machine, &names, 6);
    // All pages are on the list of generation 3. Eviction finds the last page accessed, and
    // promotes its neighbours, which stay on that list, to generation 6.
    for page in (540..=550).chain([570]) {
        machine.access(Touch::Anon(page));
    }
    assert_eq!(write(&mut machine, &names, "- 28 0 3 60 40"), 0);
    let memcg = machine.memcg;
    offline(&mut machine, memcg);
    for _ in 0..2 {
        evict_root(&mut machine, &names);
        age_root(&mut machine, &names);
    }
    evict_root(&mut machine, &names);
    // Generation 6 of the child has the slot of generation 2 in the root.
    assert!(root(&machine).min_seq[0] > 2 && root(&machine).max_seq < 6);
    let left = root(&machine).listed(&machine.lru.folios, 2, FolioType::Anon);
    assert_eq!(left.count(), 11);
    let pages = |machine: &Machine| {
        let pages = |active| root(machine).pages(FolioType::Anon, active);
        pages(true) + pages(false)
    };
    assert_eq!(pages(&machine), 11);
    for _ in 0..3 {
        age_root(&mut machine, &names);
        evict_root(&mut machine, &names);
    }
    assert_eq!(pages(&machine), 0);
}

#[test]
fn an_empty_cgroup_ages_its_parent_too() {
    let (mut machine, names) = machine();
    let empty = machine.lru.memcg_online(MemcgId::ROOT, 60, 0);
    evict_root(&mut machine, &names);
    assert_eq!(root(&machine).nr_gens(FolioType::Anon), 2);
    offline(&mut machine, empty);
    assert_eq!(root(&machine).nr_gens(FolioType::Anon), 4);
}
