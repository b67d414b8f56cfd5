// SPDX-License-Identifier: Apache-2.0
//! What it costs on this machine to bring a page back.

use std::path::Path;
use std::time::Duration;

use agewise_host::moments::Moments;
use agewise_host::pagecache::PriceOfFile;
use agewise_host::root::Roots;
use agewise_host::swap::{self, SwapArea};
use agewise_policy::whatif::{Estimate, Prices};
use agewise_trace::sizing;

/// The cost of bringing a page back on this machine, and where the figures come from.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub prices: Prices,
    /// The origin of the price of swap.
    pub anon_source: &'static str,
    /// The origin of the price of files.
    pub file_source: &'static str,
}

impl Costs {
    /// Formats both prices on one line, with the bounds of what was measured.
    pub fn text(&self) -> String {
        let us = |price: Estimate| {
            let [low, likely, high] = [price.low, price.likely, price.high].map(|ns| ns / 1e3);
            match low == high {
                true => format!("{likely:.1} us"),
                false => format!("{likely:.1} us ({low:.1} to {high:.1})"),
            }
        };
        format!(
            "a page from swap {}, {}; from a file {}, {}",
            us(self.prices.anon_ns),
            self.anon_source,
            us(self.prices.file_ns),
            self.file_source
        )
    }
}

/// A directory on disk: by the Filesystem Hierarchy Standard its files survive a reboot.
pub const DISK: &str = "/var/tmp";

/// Times at which the price of a file page is measured.
const MOMENTS: u32 = 9;
/// Time between two of them, if nothing is watched meanwhile.
const MOMENT: Duration = Duration::from_millis(20);

/// Measures the cost of a page from swap at a limit, where another page has to leave for it, using
/// our own pages, and that of a page from disk, using a file of our own. What cannot be measured
/// (swap on a disk, to which pages are written later) has a typical value. Takes a fifth of a
/// second, and longer if swap is slow; [`watch`](crate::whatif::watch) measures while it watches.
pub fn costs() -> Costs {
    Meter::at_once().costs()
}

/// Measures prices at several moments. The last nine count.
pub struct Meter {
    /// Bringing back a page from swap at a limit; none if there is no swap, or it is on a disk.
    swap: Moments,
    /// `None` if there is no disk, or it cannot be read.
    file: Option<PriceOfFile>,
    measured: u32,
}

impl Meter {
    /// Without a measurement so far.
    pub(crate) fn new() -> Self {
        Meter {
            swap: Moments::default(),
            file: PriceOfFile::new(Path::new(DISK)).ok(),
            measured: 0,
        }
    }

    /// With nine moments, one shortly after the other.
    pub fn at_once() -> Self {
        let mut meter = Meter::new();
        for _ in 1..MOMENTS {
            meter.measure();
            std::thread::sleep(MOMENT);
        }
        meter.measure();
        meter
    }

    /// Measures both prices, unless that was done often enough for this part of the time.
    pub(crate) fn measure_if_due(&mut self, elapsed: Duration, of: Duration) {
        if elapsed >= of * self.measured / MOMENTS && self.measured < MOMENTS {
            self.measure();
        }
    }

    /// Measures once more.
    pub fn measure(&mut self) {
        self.measured = self.measured.saturating_add(1);
        match swap::price() {
            Ok(Some(price)) => self.swap.add(price.at_limit_ns()),
            // Pages no longer go where earlier prices were measured, or that is full.
            Ok(None) => self.swap = Moments::default(),
            Err(_) => {}
        }
        let file = self.file.take();
        self.file = file.and_then(|mut file| file.measure().ok().map(|()| file));
    }

    /// What was found.
    pub fn costs(&self) -> Costs {
        const SSD_NS: f64 = 150_000.0;
        // Compressing the page that makes room takes nearly as long as bringing one back.
        const ZRAM_EVICT_NS: f64 = 4_000.0;
        let refault_ns = sizing::cost_model("zram").map_or(SSD_NS, |model| model.refault_us * 1e3);
        let zram_ns = refault_ns + ZRAM_EVICT_NS;
        let areas = SwapArea::all(&Roots::default().proc).unwrap_or_default();
        // Pages go to the area with the highest priority that has room.
        let next = areas
            .iter()
            .max_by_key(|area| (area.free_bytes() > 0, area.priority));
        let ssd = (Estimate::exact(SSD_NS), "usual for an SSD");
        let (anon_ns, anon_source) = match estimate(&self.swap) {
            Some(price) => (price, "measured"),
            None if areas.is_empty() => {
                (Estimate::exact(zram_ns), "no swap here: as zram usually is")
            }
            None if next.is_some_and(|area| area.zram_id().is_some()) => {
                (Estimate::exact(zram_ns), "usual for zram")
            }
            None => ssd,
        };
        let from_disk = self.file.as_ref().and_then(|file| estimate(file.moments()));
        let (file_ns, file_source) = match from_disk {
            Some(price) => (price, "measured in /var/tmp"),
            None => ssd,
        };
        Costs {
            prices: Prices { anon_ns, file_ns },
            anon_source,
            file_source,
        }
    }
}

fn estimate(moments: &Moments) -> Option<Estimate> {
    let [low, high] = moments.bounds_ns()?.map(|ns| ns as f64);
    let likely = moments.median_ns()? as f64;
    Some(Estimate { low, likely, high })
}
