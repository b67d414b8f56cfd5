// SPDX-License-Identifier: Apache-2.0
//! A trace laid out on the simulated machine: where each page is, and when it is accessed.
//!
//! What a trace records is kept: processes, anonymous or file, read or write, time. What it does
//! not record is decided here and reported in [`Replay::notes`]:
//!
//! - Neighbouring pages stay neighbours, and empty stretches between them are left out: page tables
//!   and page-cache nodes are as full as in the program, and untouched memory costs nothing.
//! - An access of unknown kind is a read, except the first access to an anonymous page, which must
//!   write: a page that was only read would be the zero page.
//! - Anonymous memory that several processes touch (shared memory) is accessed through the first.
//! - If the order is unknown ([`Order::Interval`]), accesses are spread evenly over their interval,
//!   in an order that the caller chooses ([`Arrangement`]).

use std::collections::HashMap;
use std::path::Path;

use crate::workload::random::XorShift64Star;
use agewise_trace::page_trace::Order;
use agewise_trace::{Access, AccessKind, AccessStream, Evidence, PageClass, PageIndex, TraceError};

/// How pages of files, and pages of unknown type, are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Read and written through a file descriptor: the policies see each access.
    Descriptor,
    /// Mapped: the policies find accessed bits.
    Mapping,
    /// As anonymous memory, except pages that the trace says belong to files: these are mapped.
    Anonymous,
}

/// The order given to the accesses of one interval, whose real order is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// Seed 1 as [`Arrangement::Forward`], seed 2 as [`Arrangement::Reverse`], all others shuffled:
    /// the spread over the seeds shows the effect of the unknown order.
    #[default]
    Each,
    /// Rising addresses, as in the file.
    Forward,
    /// Falling addresses.
    Reverse,
    /// Shuffled, drawn from the seed.
    Shuffle,
}

impl Arrangement {
    fn of_seed(self, seed: u64) -> Arrangement {
        match (self, seed) {
            (Arrangement::Each, 1) => Arrangement::Forward,
            (Arrangement::Each, 2) => Arrangement::Reverse,
            (Arrangement::Each, _) => Arrangement::Shuffle,
            (chosen, _) => chosen,
        }
    }
}

/// Limit on a pause of the program: nothing on the machine changes after that long, and a damaged
/// time stamp must not cause years of timers.
pub const GAP_NS_MAX: u64 = 60_000_000_000;

/// Limit on the pages of a layout: those of one file or one address space here (1 TiB).
const LAYOUT_PAGES_MAX: u64 = 1 << 28;

/// Chunk sizes of a layout (log2 of pages): page table, page-cache node, single page. The largest
/// is used whose places are at most [`SPARSE_MAX`] times the pages.
const CHUNK_SHIFTS: [u32; 3] = [9, 6, 0];
/// Limit on the places per page.
const SPARSE_MAX: u64 = 8;

/// Number of processes of a trace that are distinguished; further ones share the last.
const PROCESSES_MAX: usize = 4096;

/// One access: 8 bytes.
#[derive(Clone, Copy, Debug)]
struct Item {
    page: u32,
    /// Process in the upper bits; bit 0 is set for a write.
    who: u32,
}

/// Accesses with the same time.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// One past its last access.
    end: usize,
    time_ns: u64,
    /// Whether all are page faults, which happened at this time and not at some time before it.
    exact: bool,
}

/// Where a page is on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In the anonymous memory of a process, this many pages from its start.
    Anon { process: u32, page: u32 },
    /// In the file.
    File { page: u32 },
}

/// A trace ready to run.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Name in tables.
    pub name: String,
    /// Whether the order within a moment is unknown.
    pub order_unknown: bool,
    /// Time between two scans of the recorder; 0 if it did not scan.
    pub interval_ns: u64,
    /// How the file is accessed.
    pub through: Through,
    /// Remarks of the reader, and decisions made here.
    pub notes: Vec<String>,
    homes: Vec<Home>,
    items: Vec<Item>,
    moments: Vec<Moment>,
    first_time_ns: u64,
    anon_pages: u64,
    /// Places of anonymous memory, by process.
    pub(super) anon_places: Vec<u32>,
    /// Places of the file.
    pub(super) file_places: u32,
}

impl Replay {
    /// Reads a whole trace. If `through` is None, the format decides: mapped for a recording of
    /// accessed bits, through a descriptor for all others.
    ///
    /// # Errors
    /// Fails if reading fails; [`TraceError::Limit`] if the trace is too large for a machine.
    pub fn read(
        name: &str,
        path: &Path,
        stream: &mut AccessStream,
        through: Option<Through>,
    ) -> Result<Replay, TraceError> {
        let header = stream.page_trace_header();
        let order = header.map_or(Order::Exact, |header| header.order);
        let interval_ns = header.map_or(0, |header| header.interval_ns);
        let order_unknown = order == Order::Interval;
        let through = through.unwrap_or(if order_unknown {
            Through::Mapping
        } else {
            Through::Descriptor
        });
        let mut reading = Reading::new(through);
        let mut batch = Vec::new();
        while stream.next_batch(&mut batch)? {
            for access in &batch {
                reading.add(access).map_err(|what| TraceError::Limit {
                    path: path.to_path_buf(),
                    what,
                })?;
            }
            stream.check_memory(reading.memory_bytes())?;
        }
        let mut replay = reading.lay_out().map_err(|what| TraceError::Limit {
            path: path.to_path_buf(),
            what,
        })?;
        name.clone_into(&mut replay.name);
        replay.order_unknown = order_unknown;
        replay.interval_ns = interval_ns;
        replay.notes.extend(stream.note().map(str::to_owned));
        Ok(replay)
    }

    /// Number of different pages.
    #[must_use]
    pub fn footprint_pages(&self) -> u64 {
        self.homes.len() as u64
    }

    /// Number of different anonymous pages; the others belong to the file.
    #[must_use]
    pub fn anon_pages(&self) -> u64 {
        self.anon_pages
    }

    /// Number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.anon_places.len()
    }

    /// Description in a line or two.
    #[must_use]
    pub fn description(&self) -> String {
        let file_pages = self.footprint_pages() - self.anon_pages;
        let by = match self.through {
            Through::Descriptor => "by file descriptor",
            Through::Mapping | Through::Anonymous => "mapped",
        };
        let mut parts = Vec::new();
        if self.anon_pages > 0 {
            parts.push(format!("{} anonymous", self.anon_pages));
        }
        if file_pages > 0 {
            parts.push(format!("{file_pages} of files, {by}"));
        }
        format!(
            "{} accesses of {} pages ({}) by {} process{}",
            self.items.len(),
            self.footprint_pages(),
            parts.join("; "),
            self.processes(),
            if self.processes() == 1 { "" } else { "es" },
        )
    }

    pub(super) fn home(&self, page: u32) -> Home {
        self.homes[page as usize]
    }
}

/// A trace being read.
struct Reading {
    through: Through,
    index: PageIndex,
    /// The process that owns each page; None for a page of the file.
    owners: Vec<Option<u32>>,
    processes: HashMap<u32, u32>,
    items: Vec<Item>,
    moments: Vec<Moment>,
    shared_anon: u64,
    inferred: u64,
    processes_merged: bool,
}

impl Reading {
    fn new(through: Through) -> Reading {
        Reading {
            through,
            index: PageIndex::new(),
            owners: Vec::new(),
            processes: HashMap::new(),
            items: Vec::new(),
            moments: Vec::new(),
            shared_anon: 0,
            inferred: 0,
            processes_merged: false,
        }
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + size_of_val(&*self.owners)
            + size_of_val(&*self.items)
            + size_of_val(&*self.moments)
    }

    fn add(&mut self, access: &Access) -> Result<(), String> {
        let too_long = || {
            "more accesses or pages than a run can hold (2^32 - 2); sample it first (agewise trace \
             sample)"
                .to_owned()
        };
        let page = self.index.number(access.page).ok_or_else(too_long)?;
        if self.items.len() >= agewise_trace::ACCESSES_MAX {
            return Err(too_long());
        }
        let next = self.processes.len();
        let process = match self.processes.get(&access.process) {
            Some(&known) => known,
            None => {
                self.processes_merged |= next >= PROCESSES_MAX;
                let process = next.min(PROCESSES_MAX - 1) as u32;
                self.processes.insert(access.process, process);
                process
            }
        };
        let anon = match access.class {
            PageClass::Anon => true,
            PageClass::File => false,
            PageClass::Unknown => self.through == Through::Anonymous,
        };
        let first = page as usize == self.owners.len();
        if first {
            self.owners.push(anon.then_some(process));
        }
        let owner = self.owners[page as usize];
        self.shared_anon += u64::from(owner.is_some_and(|owner| owner != process));
        self.inferred += u64::from(access.evidence == Evidence::Inferred);
        let write = access.kind == AccessKind::Write || (first && owner.is_some());
        self.items.push(Item {
            page,
            who: owner.unwrap_or(process) << 1 | u32::from(write),
        });
        let end = self.items.len();
        let exact = access.evidence.is_fault();
        match self.moments.last_mut() {
            // A time before the last one counts as the last one.
            Some(last) if access.time_ns <= last.time_ns => {
                (last.end, last.exact) = (end, last.exact && exact);
            }
            _ => self.moments.push(Moment {
                end,
                time_ns: access.time_ns,
                exact,
            }),
        }
        Ok(())
    }

    fn lay_out(self) -> Result<Replay, String> {
        let processes = self.processes.len().clamp(1, PROCESSES_MAX);
        let mut of_space: Vec<Vec<u32>> = vec![Vec::new(); processes + 1];
        for (page, owner) in self.owners.iter().enumerate() {
            of_space[owner.map_or(processes, |owner| owner as usize)].push(page as u32);
        }
        let pages = self.index.pages();
        let mut homes = vec![Home::File { page: 0 }; pages.len()];
        let mut places = Vec::new();
        for (space, mut members) in of_space.into_iter().enumerate() {
            members.sort_unstable_by_key(|&page| pages[page as usize]);
            let count = place(&members, pages, |page, at| {
                homes[page as usize] = if space < processes {
                    Home::Anon {
                        process: space as u32,
                        page: at,
                    }
                } else {
                    Home::File { page: at }
                };
            });
            if count > LAYOUT_PAGES_MAX {
                return Err(format!(
                    "{count} pages in one place, over {LAYOUT_PAGES_MAX}; sample it first (agewise \
                     trace sample)"
                ));
            }
            places.push(count as u32);
        }
        let file_places = places.pop().unwrap_or(0);
        let mut notes = Vec::new();
        if self.shared_anon > 0 {
            notes.push(format!(
                "{} accesses of anonymous memory shared by processes are made by the first of them",
                self.shared_anon
            ));
        }
        if self.inferred > 0 {
            notes.push(format!(
                "{} of the accesses were not seen but inferred by the recorder, to spare the program",
                self.inferred
            ));
        }
        if self.processes_merged {
            notes.push(format!(
                "processes beyond the first {PROCESSES_MAX} are taken for one"
            ));
        }
        Ok(Replay {
            name: String::new(),
            order_unknown: false,
            interval_ns: 0,
            through: self.through,
            notes,
            anon_pages: self.owners.iter().flatten().count() as u64,
            homes,
            first_time_ns: self.moments.first().map_or(0, |first| first.time_ns),
            items: self.items,
            moments: self.moments,
            anon_places: places,
            file_places,
        })
    }
}

/// Assigns places to pages in rising order; returns how many places there are.
fn place(members: &[u32], pages: &[u64], mut put: impl FnMut(u32, u32)) -> u64 {
    let number = |page: u32| pages[page as usize];
    let chunks = |shift: u32| {
        let mut chunks = u64::from(!members.is_empty());
        for two in members.windows(2) {
            chunks += u64::from(number(two[0]) >> shift != number(two[1]) >> shift);
        }
        chunks
    };
    let room = members.len() as u64 * SPARSE_MAX;
    let shift = CHUNK_SHIFTS
        .into_iter()
        .find(|&shift| chunks(shift) << shift <= room.max(1 << CHUNK_SHIFTS[0]))
        .unwrap_or(0);
    let (mut chunk, mut last) = (0u64, None);
    for &page in members {
        let number = number(page);
        if last.is_some_and(|last| last != number >> shift) {
            chunk += 1;
        }
        last = Some(number >> shift);
        put(
            page,
            ((chunk << shift) + (number & ((1 << shift) - 1))) as u32,
        );
    }
    last.map_or(0, |_| (chunk + 1) << shift)
}

/// One access to be made on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Index of the process.
    pub process: u32,
    pub page: u32,
    pub write: bool,
    /// When it is due, in ns since the start.
    pub due_ns: u64,
}

/// Position of a replay in its trace.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    arrangement: Arrangement,
    random: XorShift64Star,
    moment: usize,
    /// Position within the moment.
    at: usize,
    /// Order of the moment's accesses; empty for the stored order.
    shuffled: Vec<u32>,
    /// Time of the moment before, as replayed.
    begin_ns: u64,
    end_ns: u64,
    /// Recorded time of the moment entered last.
    stamp_ns: u64,
}

impl Cursor {
    pub fn new(replay: &Replay, arrangement: Arrangement, seed: u64) -> Cursor {
        let mut cursor = Cursor {
            arrangement: if replay.order_unknown {
                arrangement.of_seed(seed)
            } else {
                Arrangement::Forward
            },
            random: XorShift64Star::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            moment: 0,
            at: 0,
            shuffled: Vec::new(),
            begin_ns: 0,
            end_ns: 0,
            // Accesses found by the first scan happened in the interval before it.
            stamp_ns: if replay.order_unknown {
                replay.first_time_ns.saturating_sub(replay.interval_ns)
            } else {
                replay.first_time_ns
            },
        };
        cursor.enter(replay);
        cursor
    }

    fn bounds(&self, replay: &Replay) -> Option<(usize, usize)> {
        let end = replay.moments.get(self.moment)?.end;
        let start = self
            .moment
            .checked_sub(1)
            .map_or(0, |before| replay.moments[before].end);
        Some((start, end))
    }

    fn enter(&mut self, replay: &Replay) {
        let Some((start, end)) = self.bounds(replay) else {
            return;
        };
        let time_ns = replay.moments[self.moment].time_ns;
        let gap_ns = time_ns.saturating_sub(self.stamp_ns).min(GAP_NS_MAX);
        self.stamp_ns = time_ns;
        self.begin_ns = self.end_ns;
        self.end_ns = self.begin_ns.saturating_add(gap_ns);
        self.at = 0;
        self.shuffled.clear();
        if self.arrangement == Arrangement::Shuffle {
            // The number of accesses in a moment fits into 32 bits.
            self.shuffled.extend(0..(end - start) as u32);
            for last in (1..self.shuffled.len()).rev() {
                let other = self.random.below(last as u32 + 1) as usize;
                self.shuffled.swap(last, other);
            }
        }
    }

    /// The next access; None at the end.
    pub fn next(&mut self, replay: &Replay) -> Option<Step> {
        let (mut start, mut end) = self.bounds(replay)?;
        if start + self.at == end {
            self.moment += 1;
            self.enter(replay);
            (start, end) = self.bounds(replay)?;
        }
        let count = end - start;
        let chosen = match self.arrangement {
            Arrangement::Shuffle => self.shuffled[self.at] as usize,
            Arrangement::Reverse => count - 1 - self.at,
            Arrangement::Forward | Arrangement::Each => self.at,
        };
        let due_ns = if replay.order_unknown && !replay.moments[self.moment].exact {
            let span = u128::from(self.end_ns - self.begin_ns);
            self.begin_ns + (span * self.at as u128 / count as u128) as u64
        } else {
            self.end_ns
        };
        self.at += 1;
        let item = replay.items[start + chosen];
        Some(Step {
            process: item.who >> 1,
            page: item.page,
            write: item.who & 1 != 0,
            due_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Cursor as Bytes;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use agewise_trace::page_trace::{Header, PageTraceWriter};
    use agewise_trace::{Input, ReadOptions, Request, registry};

    fn recorded(order: Order, requests: &[Request]) -> Vec<u8> {
        let header = Header {
            order,
            interval_ns: if order == Order::Interval { 100 } else { 0 },
            ..Header::default()
        };
        let mut writer = PageTraceWriter::new(Path::new("t"), Vec::new(), &header).unwrap();
        for request in requests {
            writer.push(request).unwrap();
        }
        writer.finish().unwrap()
    }

    fn replay(format: &str, bytes: &[u8], through: Option<Through>) -> Replay {
        let path = Path::new("t");
        let format = registry::by_name(format).unwrap();
        let input = Input::from_reader(path, Bytes::new(bytes.to_vec())).unwrap();
        let reader = (format.open)(input, &ReadOptions::default()).unwrap();
        let mut stream = AccessStream::new(path, format, reader);
        Replay::read("t", path, &mut stream, through).unwrap()
    }

    #[test]
    fn a_trace_has_resident_memory_over_time() {
        use crate::experiment::machine_run::{MEASURES, Plan, Subject, run};
        let requests: Vec<Request> = (0..400).map(|n| at(n * 1_000_000, n % 100, 1)).collect();
        let trace = replay("page", &recorded(Order::Exact, &requests), None);
        let measured = run(&Plan {
            subject: Subject::Trace(Arc::new(trace), Arrangement::Forward),
            memory_pages: Some(4096),
            swap: None,
            settings: Vec::new(),
            damon: None,
            policy: crate::machine::Policy::parse("classic").unwrap(),
            seed: 1,
            proactive: None,
        })
        .unwrap();
        let of = |name: &str| measured[MEASURES.iter().position(|m| m.0 == name).unwrap()];
        let (mean, peak) = (of("resident_mean_kib"), of("resident_peak_kib"));
        assert!(
            peak >= 400.0 && mean > 300.0 && mean <= peak,
            "{mean} {peak}"
        );
    }

    fn steps(replay: &Replay, arrangement: Arrangement, seed: u64) -> Vec<Step> {
        let mut cursor = Cursor::new(replay, arrangement, seed);
        std::iter::from_fn(|| cursor.next(replay)).collect()
    }

    fn at(time_ns: u64, first_page: u64, page_count: u64) -> Request {
        Request {
            first_page,
            page_count,
            time_ns,
            process: 7,
            class: PageClass::Anon,
            ..Request::default()
        }
    }

    #[test]
    fn accesses_stay_in_their_interval_whatever_the_arrangement() {
        let requests = [at(1000, 10, 4), at(1100, 10, 2), at(1300, 5000, 3)];
        let replay = replay("page", &recorded(Order::Interval, &requests), None);
        assert!(replay.order_unknown && replay.through == Through::Mapping);
        let pages = |steps: &[Step]| steps.iter().map(|step| step.page).collect::<Vec<_>>();
        let forward = steps(&replay, Arrangement::Each, 1);
        assert_eq!(pages(&forward), [0, 1, 2, 3, 0, 1, 4, 5, 6]);
        let times: Vec<u64> = forward.iter().map(|step| step.due_ns).collect();
        assert_eq!(times, [0, 25, 50, 75, 100, 150, 200, 266, 333]);
        let writes: Vec<bool> = forward.iter().map(|step| step.write).collect();
        assert_eq!(&writes[..6], [true, true, true, true, false, false]);
        let reverse = steps(&replay, Arrangement::Each, 2);
        assert_eq!(pages(&reverse), [3, 2, 1, 0, 1, 0, 6, 5, 4]);
        let shuffled = steps(&replay, Arrangement::Each, 3);
        assert_eq!(shuffled, steps(&replay, Arrangement::Shuffle, 3));
        for (from, to) in [(0, 4), (4, 6), (6, 9)] {
            let set = |steps: &[Step]| {
                steps[from..to]
                    .iter()
                    .map(|s| s.page)
                    .collect::<HashSet<_>>()
            };
            assert_eq!(set(&shuffled), set(&forward));
        }
    }

    #[test]
    fn faults_keep_their_order_and_time_between_the_looks() {
        let fault = |time_ns, page| Request {
            evidence: Evidence::Fault,
            ..at(time_ns, page, 1)
        };
        let requests = [
            at(1000, 10, 2),
            fault(1030, 50),
            fault(1060, 40),
            at(1100, 10, 2),
        ];
        let header = Header {
            order: Order::Interval,
            evidence: true,
            interval_ns: 100,
            ..Header::default()
        };
        let mut writer = PageTraceWriter::new(Path::new("t"), Vec::new(), &header).unwrap();
        for request in &requests {
            writer.push(request).unwrap();
        }
        let replay = replay("page", &writer.finish().unwrap(), None);
        for seed in 1..9 {
            let steps = steps(&replay, Arrangement::Each, seed);
            // Pages are numbered in the order they appear: 50 is 2 and 40 is 3.
            let faults: Vec<_> = steps[2..4].iter().map(|s| (s.page, s.due_ns)).collect();
            assert_eq!(faults, [(2, 130), (3, 160)], "seed {seed}");
            assert!(
                steps[4..]
                    .iter()
                    .all(|step| step.page < 2 && step.due_ns >= 160)
            );
        }
    }

    #[test]
    fn a_known_order_is_never_changed_and_gaps_are_bounded() {
        let requests = [
            at(5, 9, 1),
            at(5, 3, 1),
            at(u64::MAX / 2, 9, 1),
            at(7, 3, 1),
        ];
        let replay = replay("page", &recorded(Order::Exact, &requests), None);
        for arrangement in [
            Arrangement::Each,
            Arrangement::Reverse,
            Arrangement::Shuffle,
        ] {
            let steps = steps(&replay, arrangement, 2);
            assert_eq!(
                steps.iter().map(|s| s.page).collect::<Vec<_>>(),
                [0, 1, 0, 1]
            );
            assert_eq!(steps[3].due_ns, GAP_NS_MAX);
        }
    }

    #[test]
    fn blocks_are_of_a_file_unless_told_otherwise() {
        let blocks = replay("lirs", b"5\n6\n5\n", None);
        assert_eq!((blocks.anon_pages(), blocks.footprint_pages()), (0, 2));
        assert_eq!(blocks.home(1), Home::File { page: 6 });
        assert!(blocks.description().contains("by file descriptor"));
        let anon = replay("lirs", b"5\n6\n5\n", Some(Through::Anonymous));
        assert_eq!(
            anon.home(0),
            Home::Anon {
                process: 0,
                page: 5
            }
        );
        assert!(steps(&anon, Arrangement::Forward, 1)[0].write);
    }

    #[test]
    fn shared_anonymous_memory_goes_through_its_first_process() {
        let mut other = at(3, 10, 1);
        other.process = 8;
        let requests = [at(1, 10, 1), other];
        let replay = replay("page", &recorded(Order::Exact, &requests), None);
        assert_eq!(replay.processes(), 2);
        assert_eq!(steps(&replay, Arrangement::Forward, 1)[1].process, 0);
        assert!(replay.notes[0].contains("shared"), "{:?}", replay.notes);
    }

    proptest! {
        /// Different pages get different places in rising order, neighbours inside a chunk stay
        /// neighbours, and the number of places is bounded.
        #[test]
        fn places_are_in_order(
            numbers in prop::collection::btree_set(
                prop_oneof![0u64..3000, any::<u64>(), (0u64..40).prop_map(|n| n << 33)], 1..200)
        ) {
            let pages: Vec<u64> = numbers.into_iter().collect();
            let members: Vec<u32> = (0..pages.len() as u32).collect();
            let mut placed = vec![0u32; pages.len()];
            let count = place(&members, &pages, |page, at| placed[page as usize] = at);
            prop_assert!(placed.windows(2).all(|two| two[0] < two[1]));
            prop_assert!(u64::from(*placed.last().unwrap()) < count);
            prop_assert!(count <= (pages.len() as u64 * SPARSE_MAX).max(512));
        }
    }
}
