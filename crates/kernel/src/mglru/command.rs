// SPDX-License-Identifier: Apache-2.0
//! Commands written to the debugfs file: age (`+`) or evict (`-`) one lruvec
//! (`lru_gen_seq_write`, `run_cmd`).

use crate::ids::{LruvecId, NodeId};
use crate::lru::Lru;
use crate::reclaim::{Reclaimer, ScanControl};
use crate::world::World;

use super::aging::evictable_min_seq;
use super::debugfs::MemcgNames;
use super::evict::{evict_batch, evict_round};
use super::profile::{DebugfsSyntax, ReclaimLoop};
use super::scan::{Scanner, parse_u32};
use super::shrink::swappiness;
use super::walk::age;
use super::{MAX_SWAPPINESS, MIN_NR_GENS, SWAPPINESS_ANON_ONLY};

/// An error of a write to one of the kernel's files, with its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// `EINVAL`.
    #[error(
        "invalid argument (EINVAL): expected `+ memcg node max_seq [swappiness [force]]` \
         or `- memcg node min_seq [swappiness [pages]]` with numbers that exist"
    )]
    Invalid,
    /// `EEXIST`: another reclaimer aged the lruvec first.
    #[error("generation exists already (EEXIST): read lru_gen again for the current max_seq")]
    Exists,
    /// `ERANGE`: all generations are in use and the command does not force.
    #[error("all generations are in use (ERANGE): pass 1 as the last argument to force")]
    Range,
}

impl WriteError {
    /// The errno number on Linux.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            WriteError::Invalid => 22,
            WriteError::Exists => 17,
            WriteError::Range => 34,
        }
    }
}

/// One command, not yet checked against the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// `+`, `-`, or anything else, which fails when it runs.
    pub verb: u8,
    /// Number of the cgroup, as [`MemcgNames::by_id`] knows it.
    pub memcg_id: u64,
    /// Node.
    pub node: u32,
    /// `max_seq` for `+`, the youngest generation to evict for `-`.
    pub seq: u64,
    /// Swappiness, if given.
    pub swappiness: Option<u32>,
    /// Force (`+`) or pages to reclaim (`-`), if given.
    pub option: Option<u64>,
}

impl Command {
    /// Parses the text between two separators, without leading blanks.
    ///
    /// # Errors
    /// [`WriteError::Invalid`] for fewer than four fields, a field that is not a number, or
    /// trailing text.
    pub fn parse(text: &[u8], syntax: DebugfsSyntax) -> Result<Command, WriteError> {
        let mut scanner = Scanner::new(text);
        let verb = scanner.character().ok_or(WriteError::Invalid)?;
        let mut number = || scanner.unsigned().ok_or(WriteError::Invalid);
        let (memcg_id, node, seq) = (number()?, number()?, number()?);
        scanner.skip_spaces();
        let words = syntax == DebugfsSyntax::LongIds;
        let swappiness = if words {
            scanner.word(4).map(parse_swappiness).transpose()?
        } else {
            scanner.unsigned().map(|value| value as u32)
        };
        scanner.skip_spaces();
        let option = swappiness.and_then(|_| scanner.unsigned());
        scanner.skip_spaces();
        if !scanner.is_done() {
            return Err(WriteError::Invalid);
        }
        Ok(Command {
            verb,
            memcg_id: if words {
                memcg_id
            } else {
                memcg_id & u64::from(u32::MAX)
            },
            node: node as u32,
            seq,
            // The kernel uses -1 for "not given".
            swappiness: swappiness.filter(|&value| value.cast_signed() >= 0),
            option: option.filter(|&value| value != u64::MAX),
        })
    }
}

/// Parses a number with automatic base, or `max`.
fn parse_swappiness(word: &[u8]) -> Result<u32, WriteError> {
    if word == b"max" {
        Ok(SWAPPINESS_ANON_ONLY)
    } else {
        parse_u32(word, None).ok_or(WriteError::Invalid)
    }
}

/// Runs the commands of one write, separated by commas, semicolons or newlines, up to the first
/// that fails. Returns the number of bytes written, which is all of them.
///
/// # Errors
/// That of the first command that fails; an empty write fails too.
pub fn write<W: World>(
    lru: &mut Lru,
    world: &mut W,
    names: &impl MemcgNames,
    text: &[u8],
) -> Result<usize, WriteError> {
    let end = text.iter().position(|&byte| byte == 0);
    let mut result = Err(WriteError::Invalid);
    for part in text[..end.unwrap_or(text.len())].split(|byte| b",;\n".contains(byte)) {
        let mut scanner = Scanner::new(part);
        scanner.skip_spaces();
        if scanner.is_done() {
            continue;
        }
        let command = Command::parse(scanner.rest(), lru.mglru.profile.debugfs)?;
        run(lru, world, names, command)?;
        result = Ok(text.len());
    }
    result
}

/// Runs one command.
///
/// # Errors
/// [`WriteError::Invalid`] if the cgroup, node, generation, swappiness or verb is invalid;
/// otherwise that of aging.
pub fn run<W: World>(
    lru: &mut Lru,
    world: &mut W,
    names: &impl MemcgNames,
    command: Command,
) -> Result<(), WriteError> {
    if command.node as usize >= lru.node_flags.len() {
        return Err(WriteError::Invalid);
    }
    let memcg = names
        .by_id(command.memcg_id)
        .filter(|memcg| memcg.index() < lru.memcgs.len())
        .ok_or(WriteError::Invalid)?;
    let lruvec = lru.lruvec_id(memcg, NodeId(command.node));
    let mut sc = ScanControl::new(Reclaimer::Proactive, crate::ids::MemcgId::ROOT, u64::MAX);
    let highest = if lru.mglru.profile.has_swappiness_max {
        SWAPPINESS_ANON_ONLY
    } else {
        MAX_SWAPPINESS
    };
    let swappiness = match command.swappiness {
        Some(value) if value > highest => return Err(WriteError::Invalid),
        Some(value) => value,
        None => swappiness(lru, world, lruvec, &sc),
    };
    lru.mglru_machine.walk.present = true;
    let result = match command.verb {
        b'+' => {
            let force = command.option != Some(0);
            run_aging(lru, world, lruvec, command.seq, swappiness, force)
        }
        b'-' => {
            let pages = command.option.unwrap_or(u64::MAX);
            run_eviction(lru, world, lruvec, command.seq, &mut sc, swappiness, pages)
        }
        _ => Err(WriteError::Invalid),
    };
    lru.mglru_machine.walk.present = false;
    result
}

/// Ages a lruvec for its statistics: both types whether there is swap or not, with forced aging
/// (`try_to_inc_max_seq(lruvec, max_seq, true, true)` of "mm: workingset reporting" v4). Returns
/// whether there is a new generation.
pub fn age_for_report<W: World>(lru: &mut Lru, world: &mut W, lruvec: LruvecId) -> bool {
    lru.mglru_machine.walk.present = true;
    let aged = age(lru, world, lruvec, MAX_SWAPPINESS, true);
    lru.mglru_machine.walk.present = false;
    aged
}

fn run_aging<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    seq: u64,
    swappiness: u32,
    force: bool,
) -> Result<(), WriteError> {
    let state = &lru.lruvecs[lruvec.index()].mglru;
    if seq > state.max_seq {
        return Err(WriteError::Invalid);
    }
    if lru.mglru.profile.debugfs == DebugfsSyntax::LongIds {
        return if age(lru, world, lruvec, swappiness, force) {
            Ok(())
        } else {
            Err(WriteError::Exists)
        };
    }
    if seq < state.max_seq {
        return Ok(());
    }
    let leading = state.min_seq[usize::from(swappiness == 0)];
    let full = leading + state.generations - 1 <= state.max_seq;
    if !force && full && lru.mglru.profile.debugfs == DebugfsSyntax::ShortIds {
        return Err(WriteError::Range);
    }
    age(lru, world, lruvec, swappiness, force);
    Ok(())
}

fn run_eviction<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    seq: u64,
    sc: &mut ScanControl,
    swappiness: u32,
    pages: u64,
) -> Result<(), WriteError> {
    let in_rounds = lru.mglru.profile.reclaim_loop == ReclaimLoop::Rounds;
    let max_seq = lru.lruvecs[lruvec.index()].mglru.max_seq;
    if seq.wrapping_add(MIN_NR_GENS as u64) > max_seq {
        return Err(WriteError::Invalid);
    }
    loop {
        let min_seq = lru.lruvecs[lruvec.index()].mglru.min_seq;
        let oldest = if !lru.mglru.profile.file_may_lead {
            min_seq[usize::from(swappiness == 0)]
        } else {
            evictable_min_seq(min_seq, swappiness)
        };
        if oldest > seq || sc.nr_reclaimed >= pages {
            return Ok(());
        }
        let examined = if in_rounds {
            evict_round(lru, world, lruvec, sc, swappiness)
        } else {
            evict_batch(lru, world, lruvec, sc, swappiness, pages - sc.nr_reclaimed)
        };
        if examined == 0 {
            return Ok(());
        }
    }
}
