// SPDX-License-Identifier: Apache-2.0
//! Output of `agewise files`.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use agewise_host::access::PAGE_BYTES;
use agewise_host::pagecache::{CacheKind, CachedFile, FilesLook, device_text, label};
use agewise_host::untrusted::Untrusted;
use agewise_policy::workingset::{Bin, Histogram, Intervals};
use serde::Serialize;

use agewise_cli::output::{self, Format};
use agewise_cli::units::{bytes_text, count_text, duration_text, unix_ms};

/// A process that has a file open or mapped.
#[derive(Clone, Debug, Serialize)]
pub struct Opener {
    pub pid: u32,
    pub name: Untrusted,
}

/// A file to print.
pub struct Shown {
    pub file: CachedFile,
    /// Device and inode number as reported by `stat`.
    pub stat: (u64, u64),
    /// A path at which the file can be reached.
    pub path: Option<Untrusted>,
    /// Its path below the root of its file system, if it has a name.
    pub name: Option<Untrusted>,
    /// The cgroup that most of its pages are charged to.
    pub cgroup: Option<Untrusted>,
    /// Lower bound of the age of its oldest page.
    pub oldest_ms: u64,
    /// Pages by age.
    pub ages: Histogram,
    /// Whether one block in eight is followed and stands for the others.
    pub is_sampled: bool,
    /// The first processes that have it open or mapped.
    pub open_by: Vec<Opener>,
    /// The number of processes that have it open or mapped.
    pub openers: usize,
}

impl Shown {
    fn are_ages_known(&self, observed_ms: u64) -> bool {
        observed_ms > 0 && self.file.on.kind.has_ages()
    }
}

/// What was asked for.
pub struct Chosen<'a> {
    pub under: Option<&'a Path>,
    pub older_than: Option<Duration>,
}

impl Chosen<'_> {
    /// Describes it; `None` if all files were asked for.
    fn text(&self) -> Option<String> {
        let under = self
            .under
            .map(|dir| format!("under {}", Untrusted::from(dir).terminal()));
        let older = self
            .older_than
            .map(|age| format!("not accessed for {}", duration_text(age)));
        let both: Vec<String> = under.into_iter().chain(older).collect();
        (!both.is_empty()).then(|| both.join(", "))
    }
}

/// A sum over files.
pub struct Sum {
    pub files: u64,
    /// Pages of files, of shared memory, and of block devices.
    pages: [u64; 3],
    dirty_pages: u64,
    /// Of files whose ages are known.
    ages: Histogram,
}

impl Sum {
    fn new(intervals: &Intervals) -> Self {
        Sum {
            files: 0,
            pages: [0; 3],
            dirty_pages: 0,
            ages: Histogram::new(intervals),
        }
    }

    /// Adds a file and its pages by age.
    pub fn add(&mut self, file: &CachedFile, ages: &Histogram) {
        self.files += 1;
        self.pages[file.on.kind as usize] += file.pages;
        self.dirty_pages += file.dirty_pages;
        if file.on.kind.has_ages() {
            self.ages.add(ages);
        }
    }

    fn bytes(&self, kind: CacheKind) -> u64 {
        self.pages[kind as usize] * PAGE_BYTES
    }

    fn row(&self, out: &mut impl Write, observed_ms: u64) -> io::Result<()> {
        let pages = self.pages.iter().sum();
        let ages = (&self.ages, observed_ms > 0);
        row(out, pages, self.dirty_pages, ages)
    }
}

/// The totals of files, printed or not.
pub struct Totals {
    pub all: Sum,
    /// Those that match the arguments.
    pub matching: Sum,
}

impl Totals {
    /// Creates empty totals.
    pub fn new(intervals: &Intervals) -> Self {
        Totals {
            all: Sum::new(intervals),
            matching: Sum::new(intervals),
        }
    }
}

#[derive(Serialize)]
struct BinRecord {
    /// `None` for the last bin.
    upper_ms: Option<u64>,
    bytes: u64,
}

#[derive(Serialize)]
struct FileRecord<'a> {
    record: &'static str,
    unix_ms: u64,
    path: &'a Option<Untrusted>,
    /// The name within its file system, if no path leads to the file.
    name: Option<&'a Untrusted>,
    device: String,
    inode: u64,
    fs_type: &'a str,
    kind: CacheKind,
    deleted: bool,
    cgroup: &'a Option<Untrusted>,
    resident_bytes: u64,
    dirty_bytes: u64,
    /// Null, as are the ages, of shared memory, or if nothing was observed.
    oldest_ms: Option<u64>,
    ages: Option<Vec<BinRecord>>,
    /// Whether the ages are estimated from one block in eight.
    sampled: bool,
    openers: usize,
    open_by: &'a [Opener],
}

#[derive(Serialize)]
struct CostRecord<'a> {
    record: &'static str,
    unix_ms: u64,
    files: u64,
    files_matching: u64,
    files_shown: usize,
    /// Of the files that match.
    matching_bytes: u64,
    file_bytes: u64,
    shmem_bytes: u64,
    device_bytes: u64,
    dirty_bytes: u64,
    observed_ms: u64,
    #[serde(flatten)]
    look: &'a FilesLook,
}

/// Prints the files and totals.
///
/// # Errors
/// Output cannot be written.
pub fn print(
    format: Format,
    shown: &[Shown],
    totals: &Totals,
    chosen: &Chosen<'_>,
    (look, observed_ms): (&FilesLook, u64),
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Text => text(&mut out, shown, totals, chosen, (look, observed_ms))?,
        Format::Json => json(&mut out, shown, totals, look, observed_ms)?,
        Format::Csv => csv(&mut out, shown, observed_ms)?,
    }
    out.flush()
}

fn bins(ages: &Histogram) -> impl Iterator<Item = BinRecord> + '_ {
    ages.bins().iter().map(|bin| BinRecord {
        upper_ms: bin.bound_ms(),
        bytes: bytes_of(bin),
    })
}

fn bytes_of(bin: &Bin) -> u64 {
    bin.amounts.iter().sum::<u64>() * PAGE_BYTES
}

impl<'a> FileRecord<'a> {
    fn new(shown: &'a Shown, unix_ms: u64, observed_ms: u64) -> Self {
        let (file, is_known) = (&shown.file, shown.are_ages_known(observed_ms));
        FileRecord {
            record: "file",
            unix_ms,
            path: &shown.path,
            name: shown.name.as_ref().filter(|_| shown.path.is_none()),
            device: device_text(file.on.device),
            inode: file.inode.number,
            fs_type: &file.on.fs_type,
            kind: file.on.kind,
            deleted: file.inode.links == 0,
            cgroup: &shown.cgroup,
            resident_bytes: file.pages * PAGE_BYTES,
            dirty_bytes: file.dirty_pages * PAGE_BYTES,
            oldest_ms: is_known.then_some(shown.oldest_ms),
            ages: is_known.then(|| bins(&shown.ages).collect()),
            sampled: shown.is_sampled,
            openers: shown.openers,
            open_by: &shown.open_by,
        }
    }
}

fn json(
    out: &mut impl Write,
    shown: &[Shown],
    totals: &Totals,
    look: &FilesLook,
    observed_ms: u64,
) -> io::Result<()> {
    let unix_ms = unix_ms();
    for shown in shown {
        output::json_line(out, &FileRecord::new(shown, unix_ms, observed_ms))?;
    }
    let record = CostRecord {
        record: "cost",
        unix_ms,
        files: totals.all.files,
        files_matching: totals.matching.files,
        files_shown: shown.len(),
        matching_bytes: totals.matching.pages.iter().sum::<u64>() * PAGE_BYTES,
        file_bytes: totals.all.bytes(CacheKind::File),
        shmem_bytes: totals.all.bytes(CacheKind::Shmem),
        device_bytes: totals.all.bytes(CacheKind::Device),
        dirty_bytes: totals.all.dirty_pages * PAGE_BYTES,
        observed_ms,
        look,
    };
    output::json_line(out, &record)
}

/// A bin of a file as CSV. The last one ends at `+Inf`; if ages are not known there is one without
/// an age.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    file: &'a FileRecord<'a>,
    upper_ms: Option<String>,
    bytes: u64,
}

fn csv(out: &mut impl Write, shown: &[Shown], observed_ms: u64) -> io::Result<()> {
    const COLUMNS: &str = "unix_ms,path,device,inode,kind,cgroup,resident_bytes,dirty_bytes,\
        oldest_ms,sampled,upper_ms,bytes";
    writeln!(out, "{COLUMNS}")?;
    let unix_ms = unix_ms();
    for shown in shown {
        let file = &FileRecord::new(shown, unix_ms, observed_ms);
        let bins = match shown.are_ages_known(observed_ms) {
            false => vec![(None, file.resident_bytes)],
            true => {
                let bins = shown.ages.bins().iter();
                bins.map(|bin| (Some(bin.bound_text()), bytes_of(bin)))
                    .collect()
            }
        };
        for (upper_ms, bytes) in bins {
            let row = Row {
                file,
                upper_ms,
                bytes,
            };
            output::csv_row(out, COLUMNS, &row)?;
        }
    }
    Ok(())
}

fn text(
    out: &mut impl Write,
    shown: &[Shown],
    totals: &Totals,
    chosen: &Chosen<'_>,
    (look, observed_ms): (&FilesLook, u64),
) -> io::Result<()> {
    write!(out, "{:>10} {:>10}", "RESIDENT", "DIRTY")?;
    for heading in headings(&totals.all.ages) {
        write!(out, " {heading:>10}")?;
    }
    writeln!(out, "  FILE")?;
    for shown in shown {
        let file = &shown.file;
        let ages = (&shown.ages, shown.are_ages_known(observed_ms));
        row(out, file.pages, file.dirty_pages, ages)?;
        write!(out, "  ")?;
        let label = label(file, shown.path.as_ref(), shown.name.as_ref());
        write!(out, "{}", label.terminal())?;
        if let Some(cgroup) = &shown.cgroup {
            write!(out, "  [{}]", cgroup.terminal())?;
        }
        openers(out, shown)?;
        writeln!(out)?;
    }
    if let Some(chosen) = chosen.text() {
        totals.matching.row(out, observed_ms)?;
        let files = count_text(totals.matching.files, "file", "files");
        writeln!(out, "  {files} {chosen}")?;
    }
    totals.all.row(out, observed_ms)?;
    writeln!(
        out,
        "  all {}",
        count_text(totals.all.files, "file", "files")
    )?;
    let left = totals.matching.files.saturating_sub(shown.len() as u64);
    if left > 0 {
        writeln!(out, "# {left} more files not shown: --top 0 shows all")?;
    }
    writeln!(
        out,
        "# files {}; tmpfs and shared memory {} (only swap can take it; \
         ages unknown); block devices {}",
        bytes_text(totals.all.bytes(CacheKind::File)),
        bytes_text(totals.all.bytes(CacheKind::Shmem)),
        bytes_text(totals.all.bytes(CacheKind::Device)),
    )?;
    match observed_ms {
        0 => writeln!(
            out,
            "# ages are unknown: nothing was observed; give a --duration"
        )?,
        _ => writeln!(
            out,
            "# observed for {}: what was never seen accessed is at least that old; not seen are \
             accesses through mappings (see report)",
            duration_text(Duration::from_millis(observed_ms)),
        )?,
    }
    text_of_losses(out, look)?;
    writeln!(
        out,
        "# cost: {:.1} ms CPU a look ({} inodes, {} with pages)",
        look.cpu_ns as f64 / 1e6,
        look.walk.inodes,
        look.walk.files,
    )
}

/// Prints what the last look could not see.
fn text_of_losses(out: &mut impl Write, look: &FilesLook) -> io::Result<()> {
    for (count, what) in [
        (
            look.dropped,
            "accesses not noted: more blocks than there is room for",
        ),
        (
            look.missed,
            "accesses not noted, at most: came while another was noted on the same CPU",
        ),
        (look.void, "files became others while they were looked at"),
        (look.unfollowed, "files beyond what is followed"),
        (
            look.sampled,
            "files are accessed so often that ages are those of one block in eight",
        ),
        (
            look.walk.unreadable,
            "parts of files changed faster than they were read",
        ),
        (look.walk.incomplete, "file systems not seen to their end"),
    ] {
        if count > 0 {
            writeln!(out, "# {count} {what}")?;
        }
    }
    Ok(())
}

fn headings(ages: &Histogram) -> Vec<String> {
    let bins = ages.bins();
    let finite = bins.len() - 1;
    let mut headings: Vec<String> = bins[..finite]
        .iter()
        .map(|bin| format!("<={}", bound(bin.upper_ms)))
        .collect();
    headings.push("older".to_owned());
    headings
}

/// Formats a bound in the largest unit of which it is a whole multiple.
fn bound(upper_ms: u64) -> String {
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ];
    match units
        .into_iter()
        .find(|(_, ms)| upper_ms.is_multiple_of(*ms))
    {
        Some((unit, ms)) => format!("{}{unit}", upper_ms / ms),
        None => format!("{upper_ms}ms"),
    }
}

/// Writes sizes, and ages if they are known.
fn row(
    out: &mut impl Write,
    pages: u64,
    dirty_pages: u64,
    (ages, are_known): (&Histogram, bool),
) -> io::Result<()> {
    let bytes = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => bytes_text(bytes),
    };
    write!(
        out,
        "{:>10} {:>10}",
        bytes(pages * PAGE_BYTES),
        bytes(dirty_pages * PAGE_BYTES)
    )?;
    for bin in bins(ages) {
        let age = match are_known {
            false => "?".to_owned(),
            true => bytes(bin.bytes),
        };
        write!(out, " {age:>10}")?;
    }
    Ok(())
}

fn openers(out: &mut impl Write, shown: &Shown) -> io::Result<()> {
    let Some(first) = shown.open_by.first() else {
        return Ok(());
    };
    write!(out, "  open by {} ({})", first.name.terminal(), first.pid)?;
    match shown.openers {
        1 => Ok(()),
        several => write!(out, " and {} more", several - 1),
    }
}
