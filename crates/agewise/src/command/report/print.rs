// SPDX-License-Identifier: Apache-2.0
//! Output of `agewise report`.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use agewise_host::agent::{CostReport, SubjectReport};
use agewise_host::container::{Container, Containers};
use agewise_host::root::ProcRoot;
use agewise_host::untrusted::Untrusted;
use serde::Serialize;

use super::knows::{Knows, kind, known, resident_bytes};
use super::text;
use agewise_cli::output::{self, Format};
use agewise_cli::units::{bytes_text, count_text, duration_text, unix_ms};

/// A report and the names of its container or pod.
type Named<'r> = (&'r SubjectReport, Option<Container>);

/// Prints sets of reports one after the other.
pub struct Printer<W> {
    out: W,
    format: Format,
    containers: Containers,
    /// The wall clock, in ms since 1970.
    now_ms: fn() -> u64,
    printed: bool,
    /// The bound of the last bin in JSON and CSV, in ms, if it is to be a number.
    pub last_bound_ms: Option<u64>,
}

/// One target as JSON.
#[derive(Serialize)]
struct AgesRecord<'a> {
    record: &'static str,
    /// Wall clock, in ms since 1970.
    unix_ms: u64,
    target: &'a Untrusted,
    kind: &'static str,
    #[serde(flatten)]
    container: Option<&'a Container>,
    processes: Option<usize>,
    nodes: Vec<NodeRecord>,
    /// Null, as are the ages, where no process could be looked at.
    resident_bytes: Option<u64>,
    /// The part that is followed, as a sample of the whole.
    followed_bytes: Option<u64>,
    anon_bytes: Option<u64>,
    file_bytes: Option<u64>,
    unseen_anon_bytes: Option<u64>,
    unseen_file_bytes: Option<u64>,
    swapped_bytes: Option<u64>,
    unmapped_cache_bytes: Option<u64>,
    /// The part of anon memory that is shared memory or tmpfs, if all file memory is counted.
    shmem_bytes: Option<u64>,
    refaulted_bytes: Option<u64>,
    observed_ms: u64,
    /// Its processes that run KVM guests: what those access is not seen.
    guest_hosts: &'a [u32],
    troubles: &'a [String],
    gone: Option<&'a str>,
}

#[derive(Serialize)]
struct NodeRecord {
    node: u32,
    bins: Vec<BinRecord>,
}

#[derive(Serialize)]
struct BinRecord {
    /// `None` for the last bin.
    upper_ms: Option<u64>,
    anon_bytes: Option<u64>,
    file_bytes: Option<u64>,
    #[serde(flatten)]
    interval: Option<IntervalRecord>,
}

/// The 95 % interval of each figure of a bin.
#[derive(Serialize)]
struct IntervalRecord {
    anon_low_bytes: Option<u64>,
    anon_high_bytes: Option<u64>,
    file_low_bytes: Option<u64>,
    file_high_bytes: Option<u64>,
}

/// A bin of a node as CSV.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    target: &'a AgesRecord<'a>,
    node: u32,
    /// Its sizes are in place of those of the target.
    #[serde(flatten)]
    bin: BinRecord,
    /// `+Inf` for the last bin.
    upper_ms: String,
    /// Pids in place of the list, with spaces between them.
    guest_hosts: String,
    unseen_processes: Option<usize>,
    unseen_cgroups: Option<usize>,
}

/// The columns of CSV.
const COLUMNS: &str = "unix_ms,target,kind,node,upper_ms,anon_bytes,file_bytes,resident_bytes,\
    swapped_bytes,unmapped_cache_bytes,shmem_bytes,namespace,pod,container,container_id,image,\
    anon_low_bytes,anon_high_bytes,file_low_bytes,file_high_bytes,unseen_anon_bytes,\
    unseen_file_bytes,refaulted_bytes,processes,unseen_processes,unseen_cgroups,guest_hosts";

#[derive(Serialize)]
struct CostRecord<'a> {
    record: &'static str,
    unix_ms: u64,
    #[serde(flatten)]
    cost: &'a CostReport,
    /// Targets left out by `--top`.
    targets_cut: usize,
    /// The machine has more cgroups or processes than were listed.
    targets_truncated: bool,
}

/// What the reports come from, and what they cost.
#[derive(Debug)]
pub enum Look<'a> {
    Agent(AgentLook<'a>),
    Kernel(KernelLook<'a>),
}

/// What to say about an agent, besides its reports.
#[derive(Debug)]
pub struct AgentLook<'a> {
    pub cost: &'a CostReport,
    /// Whether there are more targets than were looked for.
    pub truncated: bool,
}

/// What to say about a kernel source, besides its reports.
#[derive(Debug, Serialize)]
pub struct KernelLook<'a> {
    /// Its name.
    pub source: &'static str,
    /// The fields it knows.
    #[serde(skip)]
    pub knows: Knows,
    /// Sentences that describe how coarse it is.
    pub caveats: &'a [String],
    /// CPU time so far in ms, the kernel's and agewise's.
    pub cpu_ms: f64,
    /// Share of one core so far, in percent.
    pub core_percent: f64,
}

#[derive(Serialize)]
struct KernelCostRecord<'a> {
    record: &'static str,
    unix_ms: u64,
    #[serde(flatten)]
    look: &'a KernelLook<'a>,
    targets_cut: usize,
}

impl<W: Write> Printer<W> {
    /// Creates a printer that writes to `out`.
    pub fn new(out: W, format: Format) -> Self {
        Printer {
            out,
            format,
            containers: Containers::new(&ProcRoot::default()),
            now_ms: unix_ms,
            printed: false,
            last_bound_ms: None,
        }
    }

    /// Prints one set of reports. `cut` is the number of targets that a limit of ours left out.
    ///
    /// # Errors
    /// Output cannot be written.
    pub fn print(
        &mut self,
        reports: &[SubjectReport],
        look: &Look<'_>,
        cut: usize,
    ) -> io::Result<()> {
        let unix_ms = (self.now_ms)();
        let reports = self.with_containers(reports);
        match self.format {
            Format::Text => self.text(&reports, look, cut)?,
            Format::Json => self.json(&reports, look, cut, unix_ms)?,
            Format::Csv => self.csv(&reports, look, unix_ms)?,
        }
        self.printed = true;
        self.out.flush()
    }

    /// Pairs the reports with the names of their containers.
    fn with_containers<'r>(&mut self, reports: &'r [SubjectReport]) -> Vec<Named<'r>> {
        let names = reports
            .iter()
            .map(|report| Path::new(report.name.as_os_str()));
        let containers = self.containers.look(names);
        reports.iter().zip(containers).collect()
    }

    fn text(&mut self, reports: &[Named<'_>], look: &Look<'_>, cut: usize) -> io::Result<()> {
        self.text_of_subjects(reports, look.knows())?;
        match look {
            Look::Agent(look) => {
                self.text_of_limits(cut, look.truncated)?;
                self.text_of_unseen(look.cost)?;
                self.text_of_looks(look.cost)?;
                self.text_of_cost(look.cost)
            }
            Look::Kernel(look) => {
                self.text_of_limits(cut, false)?;
                for caveat in look.caveats {
                    writeln!(self.out, "# {caveat}")?;
                }
                writeln!(
                    self.out,
                    "# cost: {:.2} ms CPU in all, {:.2} % of a core, the kernel's part included",
                    look.cpu_ms, look.core_percent
                )
            }
        }
    }

    fn text_of_cost(&mut self, cost: &CostReport) -> io::Result<()> {
        writeln!(
            self.out,
            "# cost: {} scans, one every {}: {:.2} ms CPU each (walk {:.2}, ages {:.2}, clear \
             {:.2}), {:.2} ms per GiB, {:.2} % of a core; the first took {:.1} ms; age maps {}, \
             {:.2} bytes a page",
            cost.scans,
            duration_text(Duration::from_millis(cost.scan_interval_ms)),
            cost.cpu_ms_per_scan,
            cost.walk_ms_per_scan,
            cost.classify_ms_per_scan,
            cost.clear_ms_per_scan,
            cost.cpu_ms_per_gib,
            cost.core_percent,
            cost.first_scan_cpu_ms,
            bytes_text(cost.agemap_bytes),
            cost.agemap_bytes_per_page,
        )
    }

    fn text_of_subjects(&mut self, reports: &[Named<'_>], knows: Knows) -> io::Result<()> {
        for (report, container) in reports {
            if self.printed {
                writeln!(self.out)?;
            }
            self.printed = true;
            text::subject(&mut self.out, report, container.as_ref(), knows)?;
        }
        Ok(())
    }

    fn text_of_looks(&mut self, cost: &CostReport) -> io::Result<()> {
        if cost.cache_looks > 0 {
            write!(
                self.out,
                "# page cache: {} looks, {:.2} ms CPU each",
                cost.cache_looks, cost.cache_ms_per_look
            )?;
            for (count, what) in [
                (cost.cache_lost_looks, "looks failed or found accesses lost"),
                (cost.cache_dropped, "accesses lost"),
                (cost.cache_missed, "accesses missed at most"),
                (
                    cost.cache_unfollowed,
                    "files too many or too large to follow",
                ),
                (cost.cache_sampled, "files followed by sample"),
            ] {
                if count > 0 {
                    write!(self.out, "; {count} {what}")?;
                }
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn text_of_unseen(&mut self, cost: &CostReport) -> io::Result<()> {
        let (processes, cgroups) = (cost.unseen_processes, cost.unseen_cgroups);
        if processes > 0 || cgroups > 0 {
            writeln!(
                self.out,
                "# not seen: {} that could not be looked at, {} whose processes are not known",
                count_text(processes as u64, "process", "processes"),
                count_text(cgroups as u64, "cgroup", "cgroups"),
            )?;
        }
        Ok(())
    }

    fn text_of_limits(&mut self, cut: usize, truncated: bool) -> io::Result<()> {
        let out = &mut self.out;
        if cut > 0 {
            writeln!(out, "# {cut} more targets not shown: --top 0 shows all")?;
        }
        if truncated {
            writeln!(
                out,
                "# there are more cgroups or processes than shown: they count for those above \
                 them; see --depth"
            )?;
        }
        Ok(())
    }

    fn json(
        &mut self,
        reports: &[Named<'_>],
        look: &Look<'_>,
        cut: usize,
        unix_ms: u64,
    ) -> io::Result<()> {
        let (out, record, knows) = (&mut self.out, "cost", look.knows());
        for named in reports {
            let record = AgesRecord::new(named, knows, unix_ms, self.last_bound_ms);
            output::json_line(out, &record)?;
        }
        match look {
            Look::Agent(look) => output::json_line(
                out,
                &CostRecord {
                    record,
                    unix_ms,
                    cost: look.cost,
                    targets_cut: cut,
                    targets_truncated: look.truncated,
                },
            ),
            Look::Kernel(look) => output::json_line(
                out,
                &KernelCostRecord {
                    record,
                    unix_ms,
                    look,
                    targets_cut: cut,
                },
            ),
        }
    }

    fn csv(&mut self, reports: &[Named<'_>], look: &Look<'_>, unix_ms: u64) -> io::Result<()> {
        // What the look as a whole did not see.
        let [unseen_processes, unseen_cgroups] = match look {
            Look::Agent(AgentLook { cost, .. }) => {
                [cost.unseen_processes, cost.unseen_cgroups].map(Some)
            }
            Look::Kernel(_) => [None; 2],
        };
        if !self.printed {
            writeln!(self.out, "{COLUMNS}")?;
        }
        for named in reports {
            let mut target = AgesRecord::new(named, look.knows(), unix_ms, self.last_bound_ms);
            let hosts: Vec<String> = target.guest_hosts.iter().map(u32::to_string).collect();
            for NodeRecord { node, bins } in std::mem::take(&mut target.nodes) {
                for bin in bins {
                    let upper_ms = bin.upper_ms.map_or("+Inf".to_owned(), |ms| ms.to_string());
                    let row = Row {
                        target: &target,
                        node,
                        bin,
                        upper_ms,
                        guest_hosts: hosts.join(" "),
                        unseen_processes,
                        unseen_cgroups,
                    };
                    output::csv_row(&mut self.out, COLUMNS, &row)?;
                }
            }
        }
        Ok(())
    }
}

impl Look<'_> {
    fn knows(&self) -> Knows {
        match self {
            Look::Agent(_) => Knows::Agent,
            Look::Kernel(look) => look.knows,
        }
    }
}

impl IntervalRecord {
    fn new(report: &SubjectReport, bin: usize, amounts: [u64; 2]) -> Self {
        let of = report.interval(bin, amounts);
        let [anon_low_bytes, file_low_bytes] = known(report, of.map(|interval| interval.low));
        let [anon_high_bytes, file_high_bytes] = known(report, of.map(|interval| interval.high));
        IntervalRecord {
            anon_low_bytes,
            anon_high_bytes,
            file_low_bytes,
            file_high_bytes,
        }
    }
}

impl<'a> AgesRecord<'a> {
    fn new(
        (report, container): &'a Named<'_>,
        knows: Knows,
        unix_ms: u64,
        last_bound_ms: Option<u64>,
    ) -> Self {
        let [anon_bytes, file_bytes] = known(report, report.resident_bytes);
        let [unseen_anon_bytes, unseen_file_bytes] = known(report, report.unseen_bytes);
        let bin = |(number, bin): (usize, &agewise_policy::workingset::Bin)| {
            let [anon_bytes, file_bytes] = known(report, bin.amounts);
            BinRecord {
                upper_ms: bin.bound_ms().or(last_bound_ms),
                anon_bytes,
                file_bytes,
                interval: (knows == Knows::Agent)
                    .then(|| IntervalRecord::new(report, number, bin.amounts)),
            }
        };
        let resident_bytes = resident_bytes(report);
        AgesRecord {
            record: "ages",
            unix_ms,
            target: &report.name,
            kind: kind(report),
            container: container.as_ref(),
            processes: knows.processes(report),
            nodes: report
                .nodes
                .iter()
                .map(|(node, histogram)| NodeRecord {
                    node: *node,
                    bins: histogram.bins().iter().enumerate().map(bin).collect(),
                })
                .collect(),
            resident_bytes,
            followed_bytes: (knows == Knows::Agent && resident_bytes.is_some())
                .then_some(report.followed_bytes),
            anon_bytes,
            file_bytes,
            unseen_anon_bytes,
            unseen_file_bytes,
            swapped_bytes: knows.swapped_bytes(report),
            unmapped_cache_bytes: report.unmapped_cache_bytes,
            shmem_bytes: report.shmem_bytes,
            refaulted_bytes: knows.refaulted_bytes(report),
            observed_ms: report.observed_ms,
            guest_hosts: &report.guest_hosts,
            troubles: &report.troubles,
            gone: report.gone.as_deref(),
        }
    }
}

#[cfg(test)]
#[path = "print_tests.rs"]
mod tests;
