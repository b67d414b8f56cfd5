// SPDX-License-Identifier: Apache-2.0
//! `agewise bench calibrate`: this machine's prices, as settings of the lab's.

mod memory;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_host::pagecache::PriceOfFile;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{self, ZramDevice, ZramOptions, free_bytes};
use agewise_lab::machine::cost::CostModel;
use anyhow::{Context, bail};
use serde::Serialize;

use crate::PAGE_BYTES;
use crate::statistics::median;

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the file is made whose pages are read and written; not on tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// How often each price is measured; medians count.
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// text: a list that `agewise lab run --set @FILE` reads; json: an object a price; csv: the
    /// same.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A price of this machine.
#[derive(Debug, Serialize)]
struct Record {
    /// Setting of the lab.
    key: &'static str,
    /// Its value: the median, as a whole number; null if it could not be measured here.
    value: Option<u64>,
    /// Lowest of the rounds, in the setting's unit.
    low: Option<f64>,
    /// Highest of the rounds.
    high: Option<f64>,
    /// The operation that was timed.
    source: &'static str,
}

/// What is measured, in the order in which it is printed: the setting, ns of its unit, and how.
const PRICES: [(&str, f64, &str); 12] = [
    ("hit_ns", 1.0, "load from a page of 128 MiB after another"),
    ("fault_ns", 1.0, "first touch of an anonymous page"),
    ("file_io_ns", 1.0, "pread of a page in the page cache"),
    ("pte_check_ns", 1.0, "an entry that MADV_COLD looks at"),
    (
        "list_move_ns",
        1.0,
        "MADV_COLD of an active page, less that of an inactive one",
    ),
    (
        "rmap_visit_ns",
        1.0,
        "writing back a page, for each further mapping of it",
    ),
    (
        "tlb_flush_ns",
        1.0,
        "mprotect of a page that is present, less that of one that is not",
    ),
    (
        "tlb_remote_ns",
        1.0,
        "the same beside a thread on another CPU, less that without",
    ),
    ("process_ns", 1.0, "half of fork, exit and wait"),
    (
        "swap_read_us",
        1e3,
        "touch of a page in swap, less fault_ns",
    ),
    (
        "swap_write_us",
        1e3,
        "MADV_PAGEOUT of a page, less what the lab prices besides",
    ),
    (
        "file_page_us",
        1e3,
        "pread of a page that is not in the page cache, less file_io_ns",
    ),
];

/// Measures and prints all prices.
///
/// # Errors
/// The file cannot be made, or it was interrupted.
pub fn run(args: &Args, stop: &Stop, out: &mut impl Write) -> anyhow::Result<()> {
    let in_directory = || {
        format!(
            "in {}: choose another --directory",
            args.directory.display()
        )
    };
    let file = make_file(&args.directory).with_context(in_directory)?;
    // Without swap there is nothing to time, so a device of our own then lends some.
    let has_swap = free_bytes(&ProcRoot::default())? >= ZRAM_BYTES;
    let device = match has_swap {
        true => None,
        false => ZramDevice::create(&ZramOptions::new(ZRAM_BYTES))
            .inspect_err(|error| agewise_cli::note!("no price of swap: {error}"))
            .ok(),
    };
    let mut disk = PriceOfFile::new(&args.directory).ok();
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        if stop.requested().is_some() {
            bail!("interrupted");
        }
        rounds.push(round(&file, disk.as_mut()).with_context(in_directory)?);
    }
    let records: Vec<Record> = (0..PRICES.len()).map(|at| record(at, &rounds)).collect();
    match args.format {
        Format::Text => print(out, &records)?,
        format => output::rows(out, format, &records)?,
    }
    device.map_or(Ok(()), ZramDevice::remove)?;
    Ok(())
}

/// Swap of our own, if the machine has none.
const ZRAM_BYTES: u64 = 64 << 20;

/// A file without a name, of as many pages as are measured. Each page is written alone, so that no
/// large folio holds several.
fn make_file(directory: &std::path::Path) -> io::Result<File> {
    let file = tempfile::tempfile_in(directory)?;
    for page in 0..memory::PAGES as u64 {
        file.write_all_at(&[page as u8; PAGE_BYTES as usize], page * PAGE_BYTES)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// All prices in ns, measured once; None for what this machine does not have.
fn round(file: &File, disk: Option<&mut PriceOfFile>) -> io::Result<[Option<f64>; PRICES.len()]> {
    let fault_ns = memory::fault_ns()?;
    let walked = memory::walk_and_move_ns(file)?;
    let [walk_ns, move_ns] = walked.map_or([None; 2], |both| both.map(Some));
    let file_io_ns = memory::file_io_ns(file)?;
    let page_ns = disk.and_then(|disk| disk.measure().ok().and(disk.refault_ns()));
    let flush_ns = memory::tlb_flush_ns()?;
    let cpus = std::thread::available_parallelism()?.get();
    let remote_ns = match cpus {
        1 => None,
        _ => Some(memory::tlb_remote_ns(flush_ns)?),
    };
    let swap = swap::price().ok().flatten();
    let priced = CostModel::default();
    let priced_ns = (priced.unmap_ns + priced.rmap_visit_ns + priced.tlb_flush_ns) as f64;
    Ok([
        Some(memory::hit_ns()?),
        Some(fault_ns),
        Some(file_io_ns),
        walk_ns,
        move_ns,
        Some(memory::rmap_visit_ns(file)?),
        Some(flush_ns),
        remote_ns,
        Some(memory::process_ns()?),
        swap.map(|price| price.refault_ns as f64 - fault_ns),
        swap.map(|price| price.evict_ns as f64 - priced_ns),
        page_ns.map(|ns| ns as f64 - file_io_ns),
    ])
}

/// The price at this place of the list. One that was not above zero in every round was not
/// measured: the operation does not do here what it should, or others disturbed it.
fn record(at: usize, rounds: &[[Option<f64>; PRICES.len()]]) -> Record {
    let (key, unit_ns, source) = PRICES[at];
    let values: Vec<f64> = rounds.iter().filter_map(|round| round[at]).collect();
    let price = median(&values) / unit_ns;
    let is_measured = price >= 0.5 && values.iter().all(|ns| *ns > 0.0);
    let bound = |pick: fn(f64, f64) -> f64| {
        let all = values.iter().map(|ns| ns / unit_ns);
        all.reduce(pick).filter(|_| is_measured)
    };
    Record {
        key,
        value: is_measured.then_some(price.round() as u64),
        low: bound(f64::min),
        high: bound(f64::max),
        source,
    }
}

fn print(out: &mut impl Write, records: &[Record]) -> io::Result<()> {
    writeln!(
        out,
        "# Prices of this machine, for agewise lab run --set @FILE"
    )?;
    for record in records {
        let Record { key, source, .. } = record;
        match (record.value, record.low, record.high) {
            (Some(value), Some(low), Some(high)) => {
                let setting = format!("{key}={value}");
                writeln!(out, "{setting:24} # {low:.0} to {high:.0}: {source}")?;
            }
            _ => writeln!(out, "# {key} was not measured here: {source}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use agewise_lab::experiment::settings;

    use super::*;

    #[test]
    fn prices_are_settings_of_the_lab() {
        let records: Vec<Record> = (0..PRICES.len())
            .map(|at| record(at, &[[Some(2000.0); PRICES.len()], [None; PRICES.len()]]))
            .collect();
        let mut list = Vec::new();
        print(&mut list, &records).unwrap();
        let list = String::from_utf8(list).unwrap();
        let lines = list
            .lines()
            .map(|line| line.split('#').next().unwrap().trim());
        let lines: Vec<String> = lines
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect();
        assert_eq!(lines.len(), PRICES.len());
        assert_eq!(
            (lines[0].as_str(), lines[9].as_str()),
            ("hit_ns=2000", "swap_read_us=2")
        );
        settings::check(&lines).unwrap();
    }

    #[test]
    fn what_does_not_happen_here_has_no_price() {
        let rounds = [[Some(-3.0); PRICES.len()], [Some(0.2); PRICES.len()]];
        let record = record(0, &rounds);
        assert_eq!((record.value, record.low), (None, None));
        let mut list = Vec::new();
        print(&mut list, &[record]).unwrap();
        let list = String::from_utf8(list).unwrap();
        assert!(list.contains("# hit_ns was not measured here"), "{list}");
    }

    #[test]
    fn every_machine_has_prices_of_memory() {
        let directory = tempfile::tempdir().unwrap();
        let prices = round(&make_file(directory.path()).unwrap(), None).unwrap();
        assert_eq!(prices[11], None, "no disk");
        for at in [0, 1, 2, 8] {
            assert!(prices[at].unwrap() > 0.0, "{}: {prices:?}", PRICES[at].0);
        }
    }
}
