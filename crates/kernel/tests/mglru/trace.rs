// SPDX-License-Identifier: Apache-2.0
//! The access patterns of the kernel measurements.

use super::random::{Random, Zipf};

/// The access pattern of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    AnonZipf,
    AnonUniform,
    AnonScan,
    AnonZscan,
    FileZipf,
    FileUniform,
    MmapZipf,
    Mixed,
}

/// One cell of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub pattern: Pattern,
    /// Number of pages; for `Mixed`, of the file.
    pub pages: u32,
    /// Touches in the main phase.
    pub touches: u64,
    pub theta: f64,
    /// Hot pages of `AnonZscan`, anon pages of `Mixed`.
    pub hot: u32,
    pub seed: u64,
}

/// A touch of an anon page, or of a file page by descriptor or by mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    Anon(u32),
    Read(u32),
    Mapped(u32),
}

/// Generates the touches of the warm and main phases; random numbers and cursors continue across
/// them.
pub struct Trace {
    workload: Workload,
    random: Random,
    zipf: Option<Zipf>,
    cursor: u32,
    pub hash: u64,
}

impl Trace {
    pub fn new(workload: Workload) -> Trace {
        let Workload {
            pattern,
            pages,
            theta,
            hot,
            seed,
            ..
        } = workload;
        let ranks = match pattern {
            Pattern::Mixed | Pattern::AnonZscan => Some(hot),
            Pattern::AnonZipf | Pattern::FileZipf | Pattern::MmapZipf => Some(pages),
            Pattern::AnonUniform | Pattern::AnonScan | Pattern::FileUniform => None,
        };
        Trace {
            workload,
            random: Random(seed),
            zipf: ranks.map(|n| Zipf::new(u64::from(n), theta, seed)),
            cursor: 0,
            hash: 1_469_598_103_934_665_603,
        }
    }

    /// The touches that populate memory before the measured phases.
    pub fn populate(&self) -> impl Iterator<Item = Touch> + use<> {
        let Workload {
            pattern,
            pages,
            hot,
            ..
        } = self.workload;
        let n = if pattern == Pattern::Mixed {
            hot
        } else {
            pages
        };
        (0..n).map(move |page| match pattern {
            Pattern::FileZipf | Pattern::FileUniform => Touch::Read(page),
            Pattern::MmapZipf => Touch::Mapped(page),
            _ => Touch::Anon(page),
        })
    }

    /// The `t`-th touch of a phase.
    pub fn touch(&mut self, t: u64) -> Touch {
        let Workload {
            pattern,
            pages,
            hot,
            ..
        } = self.workload;
        let touch = match pattern {
            Pattern::Mixed if t % 2 == 1 => Touch::Read(self.advance(pages)),
            Pattern::Mixed => Touch::Anon(self.zipf()),
            Pattern::AnonZscan if t % 4 == 3 => Touch::Anon(hot + self.advance(pages - hot)),
            Pattern::AnonZscan | Pattern::AnonZipf => Touch::Anon(self.zipf()),
            Pattern::AnonScan => Touch::Anon(self.advance(pages)),
            Pattern::AnonUniform => Touch::Anon(self.uniform(pages)),
            Pattern::FileZipf => Touch::Read(self.zipf()),
            Pattern::FileUniform => Touch::Read(self.uniform(pages)),
            Pattern::MmapZipf => Touch::Mapped(self.zipf()),
        };
        let code = match touch {
            Touch::Read(page) if pattern == Pattern::Mixed => u64::from(page) | 0x8000_0000,
            Touch::Anon(page) | Touch::Read(page) | Touch::Mapped(page) => u64::from(page),
        };
        self.hash = (self.hash ^ code).wrapping_mul(1_099_511_628_211);
        touch
    }

    fn zipf(&mut self) -> u32 {
        let zipf = self.zipf.as_ref().expect("pattern has ranks");
        zipf.draw(&mut self.random) as u32
    }

    fn uniform(&mut self, n: u32) -> u32 {
        (self.random.next() % u64::from(n)) as u32
    }

    fn advance(&mut self, n: u32) -> u32 {
        let page = self.cursor;
        self.cursor = (self.cursor + 1) % n;
        page
    }
}
