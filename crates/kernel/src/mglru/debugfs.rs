// SPDX-License-Identifier: Apache-2.0
//! The text of `/sys/kernel/debug/lru_gen` and `lru_gen_full` (`lru_gen_seq_show`).

use std::fmt::Write;

use crate::folio::FolioType;
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::lru::Lru;

use super::aging::evictable_min_seq;
use super::profile::DebugfsSyntax;
use super::{DEFAULT_SWAPPINESS, jiffies, jiffies_to_msecs};

/// The names of cgroups in the debugfs files.
pub trait MemcgNames {
    /// The id: 16 bits before 7.x, 64 bits since.
    fn id(&self, memcg: MemcgId) -> u64;

    /// The path from the root of the hierarchy, `/` for the root.
    fn path(&self, memcg: MemcgId) -> String;

    /// Looks up a cgroup by id.
    fn by_id(&self, id: u64) -> Option<MemcgId>;
}

/// Renders `lru_gen`, or with `full` `lru_gen_full` with the counters of tiers and walks.
#[must_use]
pub fn render(lru: &Lru, names: &impl MemcgNames, now_ns: u64, full: bool) -> String {
    let mut text = String::new();
    for memcg in lru.tree_order(MemcgId::ROOT) {
        let (id, path) = (names.id(memcg), names.path(memcg));
        match lru.mglru.profile.debugfs {
            DebugfsSyntax::LongIds => writeln!(text, "memcg {id} {path}"),
            DebugfsSyntax::Patches | DebugfsSyntax::ShortIds => {
                writeln!(text, "memcg {:5} {path}", id & 0xffff)
            }
        }
        .expect("strings take all text");
        for node in 0..lru.node_flags.len() {
            let node = NodeId(u32::try_from(node).expect("fewer than 2^32 nodes"));
            writeln!(text, " node {:5}", node.0).expect("strings take all text");
            let lruvec = lru.lruvec_id(memcg, node);
            render_lruvec(&mut text, lru, lruvec, now_ns, full).expect("strings take all text");
        }
    }
    text
}

fn render_lruvec(
    text: &mut String,
    lru: &Lru,
    lruvec: LruvecId,
    now_ns: u64,
    full: bool,
) -> std::fmt::Result {
    let state = &lru.lruvecs[lruvec.index()].mglru;
    let syntax = lru.mglru.profile.debugfs;
    let first = if full {
        (state.max_seq + 1).saturating_sub(state.generations)
    } else if syntax == DebugfsSyntax::LongIds {
        evictable_min_seq(state.min_seq, DEFAULT_SWAPPINESS)
    } else {
        state.min_seq[FolioType::Anon.index()]
    };
    for seq in first..=state.max_seq {
        let age = jiffies(now_ns).saturating_sub(jiffies(state.birth_ns(seq)));
        write!(text, " {seq:10} {:10}", jiffies_to_msecs(age))?;
        for folio_type in FolioType::ALL {
            let below = seq < state.min_seq[folio_type.index()];
            if below && syntax == DebugfsSyntax::Patches {
                write!(text, " {:>10} ", "-0")?;
                continue;
            }
            let mark = if full && below { 'x' } else { ' ' };
            write!(text, " {:10}{mark}", state.pages_of(seq, folio_type))?;
        }
        text.push('\n');
        if full {
            render_counters(text, lru, lruvec, seq)?;
        }
    }
    Ok(())
}

/// Renders the tiers and walk statistics of one generation (`lru_gen_seq_show_full`).
fn render_counters(text: &mut String, lru: &Lru, lruvec: LruvecId, seq: u64) -> std::fmt::Result {
    let state = &lru.lruvecs[lruvec.index()].mglru;
    let history = lru.mglru.history;
    let slot = state.history_slot(seq, history);
    let youngest = seq == state.max_seq;
    for tier in 0..usize::from(lru.mglru.profile.tiers) {
        write!(text, "            {tier:10}")?;
        for folio_type in FolioType::ALL {
            let t = folio_type.index();
            let control = &state.control;
            let columns = if youngest {
                [
                    (control.avg_refaulted[t][tier], 'R'),
                    (control.avg_total[t][tier], 'T'),
                    (0, 'x'),
                ]
            } else if seq == state.min_seq[t] || history {
                let counters = &control.current[slot][t];
                [
                    (counters.refaulted[tier], 'r'),
                    (counters.evicted[tier], 'e'),
                    (counters.protected[tier], 'p'),
                ]
            } else {
                [(0, 'x'); 3]
            };
            for (count, mark) in columns {
                write!(text, " {count:10}{mark}")?;
            }
        }
        text.push('\n');
    }
    let (counts, marks) = match (youngest, history) {
        (true, false) => (state.walker.stats[slot], ['T', 'Y', 'F', 'A']),
        (false, true) => (state.walker.stats[slot], ['t', 'y', 'f', 'a']),
        _ => ([0; 4], ['x'; 4]),
    };
    text.push_str("                      ");
    for (count, mark) in counts.into_iter().zip(marks) {
        write!(text, " {count:10}{mark}")?;
    }
    text.push('\n');
    Ok(())
}
