// SPDX-License-Identifier: Apache-2.0
//! Text output of one target.

use std::io::{self, Write};
use std::time::Duration;

use agewise_host::agent::SubjectReport;
use agewise_host::container::Container;
use agewise_host::untrusted::clean;

use super::knows::{Knows, kind, known, resident_bytes};
use agewise_cli::units::{bytes_text, count_text, duration_text};

/// The most processes listed in text that could not be observed.
const TROUBLES_SHOWN: usize = 5;

/// Prints the ages of one target and remarks about them.
pub(super) fn subject(
    out: &mut impl Write,
    report: &SubjectReport,
    container: Option<&Container>,
    knows: Knows,
) -> io::Result<()> {
    let [anon, file] = report.resident_bytes;
    writeln!(out, "# {} {}", kind(report), report.name.terminal())?;
    text_of_container(out, container)?;
    if let Some(gone) = &report.gone {
        return writeln!(out, "# gone: {}", clean(gone));
    }
    text_of_resident(out, report)?;
    if let Some(bytes) = knows.swapped_bytes(report) {
        write!(out, ", in swap {}", bytes_text(bytes))?;
    }
    if let Some(bytes) = knows.refaulted_bytes(report) {
        write!(out, ", came back from swap {}", bytes_text(bytes))?;
    }
    match knows.processes(report) {
        Some(1) => writeln!(out, "; 1 process")?,
        Some(n) => writeln!(out, "; {n} processes")?,
        None => writeln!(out)?,
    }
    if knows == Knows::Agent && report.followed_bytes < anon + file {
        let rate = (anon + file) as f64 / report.followed_bytes.max(1) as f64;
        writeln!(
            out,
            "# sampled 1/{}, \u{b1}{:.1} %",
            rate.round(),
            report.half_width_ratio() * 100.0
        )?;
    }
    let unseen: u64 = report.unseen_bytes.iter().sum();
    if unseen > 0 {
        writeln!(
            out,
            "# never seen accessed: {}; observed for {}, so at least that old",
            bytes_text(unseen),
            duration_text(Duration::from_millis(report.observed_ms)),
        )?;
    }
    if knows == Knows::Agent {
        text_of_cache(out, report)?;
    }
    for trouble in report.troubles.iter().take(TROUBLES_SHOWN) {
        writeln!(out, "# not looked at: {}", clean(trouble))?;
    }
    if report.troubles.len() > TROUBLES_SHOWN {
        let more = (report.troubles.len() - TROUBLES_SHOWN) as u64;
        let more = count_text(more, "more process", "more processes");
        writeln!(out, "# not looked at: {more}; --format json names them all")?;
    }
    Ok(())
}

/// Prints the histograms and their sums, as far as they are known.
fn text_of_resident(out: &mut impl Write, report: &SubjectReport) -> io::Result<()> {
    if report.is_known() == [false; 2] {
        return write!(
            out,
            "# resident memory and ages are not known: no process could be looked at"
        );
    }
    // A machine has many cgroups without memory, such as systemd's of mounts.
    let is_empty = report.processes == 0 && report.resident_bytes == [0; 2];
    for (node, histogram) in report.nodes.iter().filter(|_| !is_empty) {
        write!(out, "N{node}\n{histogram}")?;
    }
    let text = |bytes: Option<u64>| bytes.map_or("not known".to_owned(), bytes_text);
    let [anon, file] = known(report, report.resident_bytes).map(text);
    let all = text(resident_bytes(report));
    let missing = match report.is_known() {
        [false, _] => " and not in the histogram",
        _ => "",
    };
    write!(out, "# resident {all} (anon {anon}{missing}, file {file})")
}

/// Prints the known names of a container or pod.
fn text_of_container(out: &mut impl Write, container: Option<&Container>) -> io::Result<()> {
    let Some((container, title)) = container.and_then(|of| Some((of, of.title()?))) else {
        return Ok(());
    };
    let kind = match container.container_id {
        Some(_) if container.container.is_none() => "sandbox of pod",
        Some(_) => "container",
        None => "pod",
    };
    write!(out, "# {kind} {}", title.terminal())?;
    match &container.image {
        Some(image) => writeln!(out, ", image {}", image.terminal()),
        None => writeln!(out),
    }
}

/// Says which part of the page cache the lines above include.
fn text_of_cache(out: &mut impl Write, report: &SubjectReport) -> io::Result<()> {
    match (report.shmem_bytes, report.unmapped_cache_bytes) {
        (Some(bytes), _) => {
            write!(
                out,
                "# file memory is all that is charged to this cgroup, mapped or not"
            )?;
            if bytes > 0 {
                let bytes = bytes_text(bytes);
                write!(
                    out,
                    "; {bytes} of anon are shared memory and tmpfs, which only swap takes"
                )?;
            }
            writeln!(out)
        }
        (None, Some(bytes)) => writeln!(
            out,
            "# page cache that no process maps: {}, in no line above: see --files",
            bytes_text(bytes)
        ),
        (None, None) => writeln!(
            out,
            "# page cache that no process maps belongs to cgroups: see --cgroup"
        ),
    }
}
