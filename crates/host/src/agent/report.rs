// SPDX-License-Identifier: Apache-2.0
//! The state of an agent after a tick, in terms of the working-set report.

use agewise_policy::agemap::PartSizes;
use agewise_policy::generations::{ByType, Generations, LABEL_UNSEEN, LABELS, PageType, Sizes};
use agewise_policy::sample::{Interval, Margin};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};
use serde::Serialize;

use super::classify::WHOLE_PARTS;
use super::followed::{FollowedSizes, subtract};
use super::share::Keepers;
use super::space::Space;
use crate::access::PAGE_BYTES;
use crate::untrusted::Untrusted;

/// The pages of a process that count elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) enum Elsewhere<'a> {
    Nothing,
    /// Those of this part, and of the next one for each further NUMA node.
    Part(usize),
    /// All of the files that others keep.
    Files(&'a Keepers),
}

/// The ages of one subject.
#[derive(Clone, Debug)]
pub struct SubjectReport {
    /// Pid and name, or the cgroup path.
    pub name: Untrusted,
    pub is_cgroup: bool,
    /// Number of processes counted.
    pub processes: usize,
    /// How many of them could be looked at at the last tick.
    pub seen_processes: usize,
    /// How many processes could not be: at the last tick, or at all.
    pub refused_processes: usize,
    /// One histogram in bytes per NUMA node id.
    pub nodes: Vec<(u32, Histogram)>,
    /// Resident memory: the sum of the histograms.
    pub resident_bytes: ByType<u64>,
    /// The part of it never seen accessed. Its age is at least `observed_ms`, or the time its
    /// process has been observed if that is less.
    pub unseen_bytes: ByType<u64>,
    /// Memory in swap: what is charged to a cgroup, where the kernel accounts for it; otherwise the
    /// entries in the page tables of its processes, which have none for shared memory.
    pub swapped_bytes: u64,
    /// Page cache charged to the cgroup that no process maps. It has no accessed bits and so no
    /// age, and is in no histogram. `None` if unknown (for single processes), and if the page cache
    /// is followed ([`Agent::follow_files`](super::Agent::follow_files)).
    pub unmapped_cache_bytes: Option<u64>,
    /// Shared memory and tmpfs, a part of anon memory: it has an inode but goes to swap. Known if
    /// the page cache is followed; file memory plus this is then all that is charged to the cgroup.
    pub shmem_bytes: Option<u64>,
    /// Bytes that looks found back from swap since observation began. What leaves and comes back
    /// between two looks is not among them.
    pub refaulted_bytes: u64,
    /// Bytes that came back to a cgroup since it was created, as the kernel counts them (since
    /// 5.9): `workingset_refault_anon` of `memory.stat`.
    pub counted_refaulted_bytes: Option<u64>,
    /// Resident memory that is followed: all of it, or the sample that represents it.
    pub followed_bytes: u64,
    /// How far each bin of the histogram may be off with 95 % probability, in bytes. Empty if
    /// everything is followed.
    pub margins_bytes: Vec<ByType<Margin>>,
    /// How long it has been observed: the maximum over its processes.
    pub observed_ms: u64,
    /// Its processes that run KVM guests, by pid: what guests access is not seen, so the ages of
    /// their memory are upper bounds.
    pub guest_hosts: Vec<u32>,
    /// Processes that could not be looked at, and the reasons.
    pub troubles: Vec<String>,
    /// Why it is no longer observed.
    pub gone: Option<String>,
    /// Resident memory of its processes, in which shared pages count once for each.
    pub mapped_bytes: ByType<u64>,
    /// Resident memory of the largest process, without what counts elsewhere.
    pub largest_bytes: ByType<u64>,
}

/// What a policy needs to know about a subject after a tick ([`Agent::ages`](super::Agent::ages)).
#[derive(Clone, Debug)]
pub struct SubjectAges {
    /// The time of the tick.
    pub looked_ms: u64,
    /// How long ages have been kept, in ms.
    pub watched_ms: u64,
    /// Resident bytes by age.
    pub resident: Histogram,
    /// Bytes found accessed or back from swap, by their idle time until then.
    pub returned: Histogram,
    /// Bytes in swap.
    pub out_bytes: u64,
    /// Bytes that came back since observation began: from swap (anon), and dropped and read again
    /// (file).
    pub refaulted_bytes: ByType<u64>,
}

/// The cost of the scans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostReport {
    /// Number of scans of all targets.
    pub scans: u64,
    /// CPU time of the first scan, which finds the accessed bits of all memory set and clears them.
    /// The figures below exclude it as soon as there is another scan.
    pub first_scan_cpu_ms: f64,
    /// CPU time per scan: finding processes, mappings, walking, classification, clearing.
    pub cpu_ms_per_scan: f64,
    /// CPU time spent reading page tables.
    pub walk_ms_per_scan: f64,
    /// CPU time spent keeping ages.
    pub classify_ms_per_scan: f64,
    /// CPU time spent clearing accessed bits.
    pub clear_ms_per_scan: f64,
    /// CPU time per scan and GiB of resident memory.
    pub cpu_ms_per_gib: f64,
    /// Reading page tables and classifying, per GiB.
    pub walk_ms_per_gib: f64,
    /// Keeping ages, per GiB.
    pub classify_ms_per_gib: f64,
    /// Clearing, per GiB.
    pub clear_ms_per_gib: f64,
    pub core_percent: f64,
    /// Time from one scan to the next.
    pub scan_interval_ms: u64,
    /// Looks at the page cache, if it is followed. They are less frequent if they are expensive.
    pub cache_looks: u64,
    /// CPU time per look.
    pub cache_ms_per_look: f64,
    /// Looks that failed, or found accesses lost: whether a page is idle is not known then.
    pub cache_lost_looks: u64,
    /// File accesses lost before the last look: some pages seem older than they are.
    pub cache_dropped: u64,
    /// Times that a program which records accesses did not run before the last look, because it was
    /// running on that CPU already: at most as many more were lost.
    pub cache_missed: u64,
    /// Files skipped by the last look because there were too many. No figure includes them.
    pub cache_unfollowed: u64,
    /// Large files accessed so often that one block in eight is followed: their ages are estimates.
    pub cache_sampled: u64,
    /// Size of the age maps: one byte per page slot, plus overhead.
    pub agemap_bytes: u64,
    /// The same per page slot of the tables they mirror.
    pub agemap_bytes_per_page: f64,
    /// Processes that the last scan could not look at or clear.
    pub unseen_processes: usize,
    /// Cgroups whose processes cannot be listed.
    pub unseen_cgroups: usize,
}

impl SubjectReport {
    /// Creates an empty report. `bounds` has one entry per node.
    pub fn new(name: Untrusted, is_cgroup: bool, nodes: &[u32], bounds: &[Intervals]) -> Self {
        SubjectReport {
            name,
            is_cgroup,
            processes: 0,
            seen_processes: 0,
            refused_processes: 0,
            nodes: nodes
                .iter()
                .zip(bounds)
                .map(|(id, bounds)| (*id, Histogram::new(bounds)))
                .collect(),
            resident_bytes: [0; 2],
            unseen_bytes: [0; 2],
            swapped_bytes: 0,
            unmapped_cache_bytes: None,
            shmem_bytes: None,
            refaulted_bytes: 0,
            counted_refaulted_bytes: None,
            followed_bytes: 0,
            margins_bytes: Vec::new(),
            observed_ms: 0,
            guest_hosts: Vec::new(),
            troubles: Vec::new(),
            gone: None,
            mapped_bytes: [0; 2],
            largest_bytes: [0; 2],
        }
    }

    /// Adds the pages of a process. With `without_files`, file pages are left to the page cache.
    pub(super) fn add(
        &mut self,
        space: &Space,
        elsewhere: Elsewhere<'_>,
        without_files: bool,
        now_ms: u64,
        oldest: OldestPages,
        same_bounds: Option<&Intervals>,
    ) {
        let window = space.map.generations();
        let nodes = self.nodes.len();
        let estimate = space.estimate(now_ms, same_bounds);
        let counted: Vec<FollowedSizes> = match elsewhere {
            Elsewhere::Nothing => Vec::new(),
            Elsewhere::Part(first) => (first..first + nodes).map(|at| parts(space, at)).collect(),
            Elsewhere::Files(keepers) => vec![space.sizes_kept(keepers, without_files)],
        };
        let pages: u64 = counted.iter().map(FollowedSizes::pages).sum();
        self.followed_bytes += space.followed_pages().saturating_sub(pages) * PAGE_BYTES;
        if let Some(estimate) = &estimate {
            self.add_margins(&estimate.margins);
        }
        let all = estimate.as_ref().map_or(*window.sizes(), |all| all.scaled);
        let scaled = |counted: &FollowedSizes| match &estimate {
            None => counted.sampled,
            Some(estimate) => estimate.scaled_up(counted),
        };
        let of_node = |node: usize| scaled(&parts(space, node));
        let mut own_bytes = [0; 2];
        for (ordinal, (_, histogram)) in self.nodes.iter_mut().enumerate() {
            let mut sizes = match ordinal {
                0 => (1..nodes).fold(all, |left, node| subtract(&left, &of_node(node))),
                node => of_node(node),
            };
            sizes = match elsewhere {
                Elsewhere::Nothing => sizes,
                Elsewhere::Part(_) => subtract(&sizes, &scaled(&counted[ordinal])),
                // The node of each is not known: all nodes have the same share of them.
                Elsewhere::Files(_) => without_share(&sizes, &scaled(&counted[0]), &all),
            };
            if without_files {
                sizes
                    .iter_mut()
                    .for_each(|by_type| by_type[PageType::File as usize] = 0);
            }
            histogram.add_window(window, &sizes, now_ms, oldest);
            for page_type in 0..2 {
                let pages: u64 = sizes.iter().map(|by_type| by_type[page_type]).sum();
                own_bytes[page_type] += pages * PAGE_BYTES;
                self.unseen_bytes[page_type] +=
                    sizes[usize::from(LABEL_UNSEEN)][page_type] * PAGE_BYTES;
            }
        }
        self.add_resident(&all, own_bytes);
        self.processes += 1;
        if space.runs_guests() {
            self.guest_hosts.push(space.process.pid());
        }
        self.swapped_bytes += space.swapped_pages() * PAGE_BYTES;
        self.refaulted_bytes += space.refaulted_pages * PAGE_BYTES;
        let since_ms = window.unseen_since_ms().unwrap_or(now_ms);
        self.observed_ms = self.observed_ms.max(now_ms.saturating_sub(since_ms));
        match &space.trouble {
            None => self.seen_processes += 1,
            Some(trouble) => {
                let (pid, name) = (space.process.pid(), space.comm.terminal());
                self.refuse(format!("{pid} ({name}): {trouble}"));
            }
        }
    }

    /// Adds all pages of a process, and what of them counts here.
    fn add_resident(&mut self, all: &Sizes, own_bytes: ByType<u64>) {
        for (of, own_bytes) in own_bytes.into_iter().enumerate() {
            let pages: u64 = all.iter().map(|by_type| by_type[of]).sum();
            self.mapped_bytes[of] += pages * PAGE_BYTES;
            self.resident_bytes[of] += own_bytes;
            self.largest_bytes[of] = self.largest_bytes[of].max(own_bytes);
        }
    }

    /// Counts a process that could not be looked at, and says why.
    pub(crate) fn refuse(&mut self, why: String) {
        self.refused_processes += 1;
        self.troubles.push(why);
    }

    /// Adds pages of the page cache on the node at `ordinal`, given by generation.
    pub(super) fn add_cached(
        &mut self,
        ordinal: usize,
        sizes: &Sizes,
        (window, now_ms): (&Generations, u64),
        oldest: OldestPages,
    ) {
        if let Some((_, histogram)) = self.nodes.get_mut(ordinal) {
            histogram.add_window(window, sizes, now_ms, oldest);
        }
        let unseen = sizes[usize::from(LABEL_UNSEEN)];
        for (page_type, unseen) in unseen.into_iter().enumerate() {
            let pages: u64 = sizes.iter().map(|by_type| by_type[page_type]).sum();
            self.resident_bytes[page_type] += pages * PAGE_BYTES;
            self.unseen_bytes[page_type] += unseen * PAGE_BYTES;
            self.followed_bytes += pages * PAGE_BYTES;
            if page_type == PageType::Anon as usize {
                *self.shmem_bytes.get_or_insert(0) += pages * PAGE_BYTES;
            }
        }
    }

    /// Notes that the ages of some cached pages, which were added, are those of a sample: how many
    /// are not followed, and the margin of each bin in pages.
    pub(super) fn add_unseen(&mut self, pages: u64, margins: &[ByType<Margin>]) {
        let bytes = pages.saturating_mul(PAGE_BYTES);
        self.followed_bytes = self.followed_bytes.saturating_sub(bytes);
        self.add_margins(margins);
    }

    /// Adds the margins of error of a sample.
    fn add_margins(&mut self, margins: &[ByType<Margin>]) {
        if self.margins_bytes.len() < margins.len() {
            self.margins_bytes
                .resize(margins.len(), [Margin::default(); 2]);
        }
        for (sum, margins) in self.margins_bytes.iter_mut().zip(margins) {
            for (sum, margin) in sum.iter_mut().zip(margins) {
                *sum = sum.plus(margin.scaled(PAGE_BYTES as f64));
            }
        }
    }

    /// Whether it is estimated from a sample of several processes, all of which were looked at.
    pub(super) fn may_need_fit(&self) -> bool {
        !self.margins_bytes.is_empty() && self.processes > 1 && self.refused_processes == 0
    }

    /// Fits estimates of memory that processes share to what else is known, once all processes have
    /// been added: how many bytes a cgroup is `charged` for, in which each page counts once, and
    /// the most that there can be. Forked processes have the same addresses, so a sample follows
    /// the same few blocks in all of them, and says little about how much they share.
    ///
    /// Memory of processes that were moved into a cgroup is charged elsewhere: it counts at least
    /// as that of the largest.
    pub(super) fn fit(&mut self, page_type: PageType, charged: Option<u64>, most_bytes: u64) {
        let of = page_type as usize;
        let [estimate, mapped] = [self.resident_bytes[of], self.mapped_bytes[of]];
        if estimate == 0 {
            return;
        }
        let charged = charged.filter(|_| estimate < mapped).unwrap_or(estimate);
        // Parts are scaled one by one, so a process may have a little more than its sum.
        let bytes = charged.min(most_bytes).min(mapped);
        let bytes = bytes.max(self.largest_bytes[of]);
        let factor = bytes as f64 / estimate as f64;
        self.unseen_bytes[of] = (self.unseen_bytes[of] as f64 * factor) as u64;
        for (_, histogram) in &mut self.nodes {
            let other = [PageType::File, PageType::Anon][of];
            let fitted = histogram.clone().without(other).part_of(bytes, estimate);
            *histogram = histogram.clone().without(page_type);
            histogram.add(&fitted);
        }
        let histograms = self.nodes.iter().map(|(_, histogram)| histogram);
        let pages = histograms.map(|histogram| histogram.total()[of]);
        self.resident_bytes[of] = pages.sum::<u64>() * PAGE_BYTES;
        // A sample that is off in its sum may be off as much in each bin.
        let off = bytes.abs_diff(estimate) as f64 / bytes.max(estimate) as f64 * bytes as f64;
        let off = Margin {
            below: off,
            above: off,
        };
        for margins in &mut self.margins_bytes {
            margins[of] = margins[of].scaled(factor).plus(off);
        }
    }

    /// The 95 % interval of a bin, given its `amounts` in bytes in the histogram or in that of one
    /// node.
    pub fn interval(&self, bin: usize, amounts: ByType<u64>) -> ByType<Interval> {
        let margins = self.margins_bytes.get(bin).copied().unwrap_or_default();
        std::array::from_fn(|page_type| {
            let amount = amounts[page_type];
            let Interval { low, high } = margins[page_type].around(amount);
            let high = high.min(self.resident_bytes[page_type].max(amount));
            Interval { low, high }
        })
    }

    /// Whether resident memory and its ages are known, by type: they are not if none of its
    /// processes could be looked at, except for what the page cache shows.
    pub fn is_known(&self) -> ByType<bool> {
        let is_looked_at = self.seen_processes > 0 || self.refused_processes == 0;
        let [anon, file] = self.resident_bytes;
        [
            is_looked_at || anon > self.shmem_bytes.unwrap_or(0),
            is_looked_at || file > 0 || self.shmem_bytes.is_some(),
        ]
    }

    /// The largest error of any bin, anon and file together, as a fraction of resident memory.
    pub fn half_width_ratio(&self) -> f64 {
        let margins = self.margins_bytes.iter();
        let widest = margins
            .map(|[anon, file]| anon.plus(*file).widest())
            .fold(0.0, f64::max);
        let resident: u64 = self.resident_bytes.iter().sum();
        (widest / resident.max(1) as f64).min(1.0)
    }

    /// Converts pages into bytes once all processes have been added.
    pub(super) fn finish(&mut self) {
        for (_, histogram) in &mut self.nodes {
            *histogram = histogram.scaled(PAGE_BYTES);
        }
    }

    /// The sum of the histograms of all nodes.
    pub fn histogram(&self) -> Histogram {
        let mut nodes = self.nodes.iter().map(|(_, histogram)| histogram);
        let first = nodes.next().cloned().expect("a machine has a node");
        nodes.fold(first, |mut sum, histogram| {
            sum.add(histogram);
            sum
        })
    }
}

/// `sizes`, which are part of `all`, without the same fraction of each as `shared` is of all.
fn without_share(sizes: &Sizes, shared: &Sizes, all: &Sizes) -> Sizes {
    std::array::from_fn(|label| {
        std::array::from_fn(|page_type| {
            let pages = |of: &Sizes| u128::from(of[label][page_type]);
            let kept = pages(all).saturating_sub(pages(shared));
            (pages(sizes) * kept).div_ceil(pages(all).max(1)) as u64
        })
    })
}

/// Pages of a part.
fn parts(space: &Space, number: usize) -> FollowedSizes {
    FollowedSizes {
        sampled: part(space, number),
        whole: part(space, WHOLE_PARTS + number),
    }
}

/// Pages of a part by label; zero if the map has no such part.
fn part(space: &Space, part: usize) -> Sizes {
    let sizes = u8::try_from(part)
        .ok()
        .and_then(|part| space.map.part_sizes(part));
    sizes.map_or([[0; 2]; LABELS], PartSizes::to_sizes)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
