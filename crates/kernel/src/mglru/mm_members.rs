// SPDX-License-Identifier: Apache-2.0
//! Adding address spaces to the list of their cgroup, and removing them.

use super::mm_list::{Cursor, Mm, MmList};
use crate::ids::{MemcgId, MmId};
use crate::lru::Lru;

/// Appends an address space to the list of its cgroup (`lru_gen_add_mm`).
pub(crate) fn mm_add(lru: &mut Lru, mm: MmId, memcg: MemcgId) {
    if lru.mms.mms.len() <= mm.index() {
        lru.mms.mms.resize(mm.index() + 1, None);
    }
    debug_assert!(lru.mms.get(mm).is_none(), "address space is listed");
    let list = &mut lru.memcgs[memcg.index()].mms;
    let prev = std::mem::replace(&mut list.last, mm);
    if prev == MmId::NONE {
        list.first = mm;
    } else {
        lru.mms.link(prev).next = mm;
    }
    lru.mms.mms[mm.index()] = Some(Mm {
        memcg,
        prev,
        next: MmId::NONE,
        ran: 0,
    });
    for lruvec in &lru.memcgs[memcg.index()].lruvecs {
        let walker = &mut lru.lruvecs[lruvec.index()].mglru.walker;
        if walker.tail == Cursor::Sentinel {
            walker.tail = Cursor::At(mm);
        }
    }
}

/// Takes an address space off its list (`lru_gen_del_mm`).
pub(crate) fn mm_del(lru: &mut Lru, mm: MmId) {
    let Some(Mm {
        memcg, prev, next, ..
    }) = lru.mms.get(mm).copied()
    else {
        return;
    };
    for lruvec in &lru.memcgs[memcg.index()].lruvecs {
        let walker = &mut lru.lruvecs[lruvec.index()].mglru.walker;
        if walker.tail == Cursor::At(mm) {
            walker.tail = MmList::cursor(next);
        }
        if walker.head == Cursor::At(mm) {
            walker.head = MmList::cursor(prev);
        }
    }
    let list = &mut lru.memcgs[memcg.index()].mms;
    if prev == MmId::NONE {
        list.first = next;
    } else {
        lru.mms.link(prev).next = next;
    }
    let list = &mut lru.memcgs[memcg.index()].mms;
    if next == MmId::NONE {
        list.last = prev;
    } else {
        lru.mms.link(next).prev = prev;
    }
    lru.mms.mms[mm.index()] = None;
}
