// SPDX-License-Identifier: Apache-2.0
//! Tracepoints of reclaim with their kernel names (`trace/events/vmscan.h`), in the format of
//! ftrace.

use std::fmt;

use crate::folio::FolioType;
use crate::ids::NodeId;
use crate::reclaim::{BatchOutcome, Reclaimer, ScanControl, Throttle};

/// A tracepoint and its fields. Counts are in pages.
#[derive(Clone, Copy, Debug)]
pub enum Tracepoint {
    /// kswapd begins a run.
    KswapdWake {
        /// Its node.
        node: NodeId,
        /// log2 of the pages requested.
        order: u32,
    },
    /// kswapd goes to sleep.
    KswapdSleep {
        /// Its node.
        node: NodeId,
    },
    /// An allocation wakes kswapd.
    WakeupKswapd {
        /// The node of that kswapd.
        node: NodeId,
        /// log2 of the pages requested.
        order: u32,
    },
    /// Reclaim for an allocation or a cgroup begins.
    ReclaimBegin {
        /// The origin of the call.
        reclaimer: Reclaimer,
        /// log2 of the pages requested.
        order: u32,
        /// Whether I/O is allowed.
        io_allowed: bool,
    },
    /// Reclaim for an allocation or a cgroup ends.
    ReclaimEnd {
        /// The origin of the call.
        reclaimer: Reclaimer,
        /// Pages reclaimed.
        nr_reclaimed: u64,
    },
    /// Folios were isolated from a list.
    Isolate {
        /// Highest usable zone.
        highest_zone: usize,
        /// log2 of the pages requested.
        order: u32,
        /// Pages to scan.
        nr_requested: u64,
        /// Pages scanned.
        nr_scanned: u64,
        /// Pages skipped.
        nr_skipped: u64,
        /// Pages isolated.
        nr_taken: u64,
        /// Type of the list.
        folio_type: FolioType,
        /// Whether it is an active list.
        active: bool,
    },
    /// Result of reclaiming folios isolated from an inactive list or the oldest generation.
    ShrinkInactive {
        /// Node of the list.
        node: NodeId,
        /// Pages scanned.
        nr_scanned: u64,
        /// The result.
        outcome: BatchOutcome,
        /// Priority of the pass.
        priority: u32,
        /// Type of the list.
        folio_type: FolioType,
    },
    /// Part of an active list was deactivated.
    ShrinkActive {
        /// Node of the list.
        node: NodeId,
        /// Pages isolated.
        nr_taken: u64,
        /// Pages kept active: executable pages that were used.
        nr_rotated: u64,
        /// Pages moved to the inactive list.
        nr_deactivated: u64,
        /// Priority of the pass.
        priority: u32,
        /// Type of the list.
        folio_type: FolioType,
    },
    /// A reclaimer slept.
    Throttled {
        /// The node it reclaims from.
        node: NodeId,
        /// The timeout in ns.
        timeout_ns: u64,
        /// The actual sleep in ns.
        delayed_ns: u64,
        /// The reason.
        reason: Throttle,
    },
}

impl Tracepoint {
    /// The start of a reclaim call.
    pub(crate) fn begin(sc: &ScanControl) -> Tracepoint {
        Tracepoint::ReclaimBegin {
            reclaimer: sc.reclaimer,
            order: sc.order,
            io_allowed: sc.io_allowed,
        }
    }

    /// The end of a reclaim call.
    pub(crate) fn end(sc: &ScanControl, nr_reclaimed: u64) -> Tracepoint {
        Tracepoint::ReclaimEnd {
            reclaimer: sc.reclaimer,
            nr_reclaimed,
        }
    }

    /// Its name without `mm_vmscan_`.
    fn name(&self) -> &'static str {
        match self {
            Tracepoint::KswapdWake { .. } => "kswapd_wake",
            Tracepoint::KswapdSleep { .. } => "kswapd_sleep",
            Tracepoint::WakeupKswapd { .. } => "wakeup_kswapd",
            Tracepoint::ReclaimBegin { reclaimer, .. } => match reclaimer {
                Reclaimer::Kswapd | Reclaimer::Direct => "direct_reclaim_begin",
                Reclaimer::MemcgLimit | Reclaimer::Proactive => "memcg_reclaim_begin",
            },
            Tracepoint::ReclaimEnd { reclaimer, .. } => match reclaimer {
                Reclaimer::Kswapd | Reclaimer::Direct => "direct_reclaim_end",
                Reclaimer::MemcgLimit | Reclaimer::Proactive => "memcg_reclaim_end",
            },
            Tracepoint::Isolate { .. } => "lru_isolate",
            Tracepoint::ShrinkInactive { .. } => "lru_shrink_inactive",
            Tracepoint::ShrinkActive { .. } => "lru_shrink_active",
            Tracepoint::Throttled { .. } => "throttled",
        }
    }
}

impl fmt::Display for Tracepoint {
    /// Formats as `NAME: FIELD=VALUE ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mm_vmscan_{}: ", self.name())?;
        match *self {
            Tracepoint::KswapdWake { node, order } => {
                write!(f, "nid={} order={order}", node.0)
            }
            Tracepoint::KswapdSleep { node } => write!(f, "nid={}", node.0),
            Tracepoint::WakeupKswapd { node, order } => {
                write!(f, "nid={} order={order} gfp_flags={}", node.0, gfp(true))
            }
            Tracepoint::ReclaimBegin {
                order, io_allowed, ..
            } => write!(f, "order={order} gfp_flags={}", gfp(io_allowed)),
            Tracepoint::ReclaimEnd { nr_reclaimed, .. } => write!(f, "nr_reclaimed={nr_reclaimed}"),
            Tracepoint::Isolate { .. } => self.isolate(f),
            Tracepoint::ShrinkInactive { .. } => self.shrink_inactive(f),
            Tracepoint::ShrinkActive {
                node,
                nr_taken,
                nr_rotated,
                nr_deactivated,
                priority,
                folio_type,
            } => write!(
                f,
                "nid={} nr_taken={nr_taken} nr_active={nr_rotated} \
                 nr_deactivated={nr_deactivated} nr_referenced={nr_rotated} priority={priority} \
                 flags={}",
                node.0,
                flags(folio_type)
            ),
            Tracepoint::Throttled {
                node,
                timeout_ns,
                delayed_ns,
                reason,
            } => write!(
                f,
                // The kernel's own spelling.
                "nid={} usec_timeout={} usect_delayed={} reason={}",
                node.0,
                timeout_ns / 1000,
                delayed_ns / 1000,
                match reason {
                    Throttle::Writeback => "VMSCAN_THROTTLE_WRITEBACK",
                    Throttle::NoProgress => "VMSCAN_THROTTLE_NOPROGRESS",
                    Throttle::Congested => "VMSCAN_THROTTLE_CONGESTED",
                }
            ),
        }
    }
}

impl Tracepoint {
    fn isolate(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tracepoint::Isolate {
            highest_zone,
            order,
            nr_requested,
            nr_scanned,
            nr_skipped,
            nr_taken,
            folio_type,
            active,
        } = *self
        else {
            return Ok(());
        };
        let list = match (folio_type, active) {
            (FolioType::Anon, false) => "inactive_anon",
            (FolioType::Anon, true) => "active_anon",
            (FolioType::File, false) => "inactive_file",
            (FolioType::File, true) => "active_file",
        };
        write!(
            f,
            "classzone={highest_zone} order={order} nr_requested={nr_requested} \
             nr_scanned={nr_scanned} nr_skipped={nr_skipped} nr_taken={nr_taken} lru={list}"
        )
    }

    fn shrink_inactive(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tracepoint::ShrinkInactive {
            node,
            nr_scanned,
            outcome,
            priority,
            folio_type,
        } = self
        else {
            return Ok(());
        };
        let [anon, file] = outcome.activated;
        write!(
            f,
            "nid={} nr_scanned={nr_scanned} nr_reclaimed={} nr_dirty={} nr_writeback={} \
             nr_congested={} nr_immediate={} nr_activate_anon={anon} nr_activate_file={file} \
             nr_ref_keep={} nr_unmap_fail={} priority={priority} flags={}",
            node.0,
            outcome.reclaimed,
            outcome.seen.dirty,
            outcome.seen.writeback,
            outcome.seen.congested,
            outcome.seen.immediate,
            outcome.ref_keep,
            outcome.unmap_fail,
            flags(*folio_type)
        )
    }
}

/// The flags of an allocation for user space, the only kind simulated.
fn gfp(io_allowed: bool) -> &'static str {
    match io_allowed {
        true => "GFP_HIGHUSER_MOVABLE",
        false => "GFP_NOIO",
    }
}

fn flags(folio_type: FolioType) -> &'static str {
    match folio_type {
        FolioType::Anon => "RECLAIM_WB_ANON|RECLAIM_WB_ASYNC",
        FolioType::File => "RECLAIM_WB_FILE|RECLAIM_WB_ASYNC",
    }
}
