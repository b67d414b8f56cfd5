// SPDX-License-Identifier: Apache-2.0
//! Checks whether an isolated folio was used, by the accessed bits of its mappings and its own
//! flags (`folio_referenced`, `folio_check_references`).

use crate::folio::{Flag, Folio, FolioType, Pfn};
use crate::ids::MemcgId;
use crate::lru::Lru;
use crate::mglru;
use crate::mglru::ablation::Part;
use crate::page_table::Pmd;
use crate::reclaim::ScanControl;
use crate::world::World;

/// The verdict on a folio (`enum folio_references`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum References {
    /// Unused.
    Reclaim,
    /// Unused since its referenced flag was set: reclaim if clean.
    ReclaimClean,
    /// Used once.
    Keep,
    /// In use.
    Activate,
}

/// The accessed bits of a folio's mappings, which are now cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accessed {
    /// Mappings through which it was accessed.
    pub young: u32,
    /// A locked VMA maps it.
    pub locked: bool,
    /// One of the young mappings is executable.
    pub exec: bool,
}

/// Reads and clears the accessed bits of a folio's mappings (`folio_referenced`). Mappings without
/// recency do not count, nor do those of other cgroups in cgroup reclaim. Under multi-gen, rmap
/// looks around each young entry.
pub(crate) fn accessed<W: World>(
    lru: &mut Lru,
    world: &mut W,
    pfn: Pfn,
    sc: &ScanControl,
) -> Accessed {
    let mut accessed = Accessed::default();
    if !lru.folios[pfn].has(Flag::Mapped) {
        return accessed;
    }
    let look_around = lru.mode.is_multi_gen() && !lru.mglru.ablation.lacks(Part::LookAround);
    let mut index = 0;
    while let Some(mapping) = world.mapping(pfn, index) {
        index += 1;
        lru.work.rmap_visits += 1;
        let Some(vma) = world
            .vma_from(mapping.mm, mapping.vpn)
            .filter(|vma| vma.contains(mapping.vpn))
        else {
            continue;
        };
        if vma.no_recency || !counts_for(lru, mapping.mm, sc.target) {
            continue;
        }
        if vma.locked {
            accessed.locked = true;
            return accessed;
        }
        let entry = (mapping.vpn % crate::page_table::PAGES_PER_PMD) as usize;
        let young = match world.pmd(mapping.mm, mapping.vpn) {
            Pmd::None => false,
            Pmd::Leaf(pte) => pte.young() && pte.test_clear_young(),
            Pmd::Table(table) if !table[entry].young() => false,
            Pmd::Table(table) => {
                table[entry].test_clear_young();
                if look_around && !vma.special {
                    mglru::look_around(lru, table, &vma, mapping, pfn, sc.cpu);
                }
                true
            }
        };
        if note_watched(&mut lru.folios[pfn], young) {
            accessed.young += 1;
            accessed.exec |= vma.exec;
        }
    }
    mglru::report_dirtied(lru, world);
    accessed
}

/// Whether a folio was accessed through a mapping, given its accessed bit, if an access monitor
/// also clears these bits: the young flag records bits cleared by the monitor, and counts once.
fn note_watched(folio: &mut Folio, young: bool) -> bool {
    if !folio.has_any(Flag::Idle as u32 | Flag::Young as u32) {
        return young;
    }
    if young {
        folio.clear(Flag::Idle);
    }
    folio.test_clear(Flag::Young) || young
}

/// Whether accesses from an address space count when `target` is reclaimed (`mm_match_cgroup`).
fn counts_for(lru: &Lru, mm: crate::ids::MmId, target: MemcgId) -> bool {
    target == MemcgId::ROOT
        || lru
            .mms
            .memcg(mm)
            .is_some_and(|memcg| lru.is_descendant(memcg, target))
}

/// Judges an isolated folio by its references (`folio_check_references`).
pub(crate) fn check<W: World>(
    lru: &mut Lru,
    world: &mut W,
    pfn: Pfn,
    sc: &ScanControl,
) -> References {
    let accessed = accessed(lru, world, pfn, sc);
    let multi_gen = lru.mode.is_multi_gen();
    let profile = &lru.mglru.profile;
    let by_steps = multi_gen && !profile.first_sighting_promotes;
    let folio = &mut lru.folios[pfn];
    if accessed.locked {
        return References::Activate;
    }
    if by_steps {
        return if accessed.young == 0 {
            References::Reclaim
        } else if profile.sighted_by_rmap(folio, false) {
            References::Activate
        } else {
            References::Keep
        };
    }
    let was_referenced = folio.test_clear(Flag::Referenced);
    if accessed.young > 0 {
        folio.set(Flag::Referenced);
        let executable_file = accessed.exec && folio.folio_type() == FolioType::File;
        return if was_referenced || accessed.young > 1 || executable_file {
            References::Activate
        } else {
            References::Keep
        };
    }
    if was_referenced && folio.folio_type() == FolioType::File {
        References::ReclaimClean
    } else {
        References::Reclaim
    }
}
