// SPDX-License-Identifier: Apache-2.0
//! The reference traces: a xorshift generator, a table-driven zipf distribution, and the patterns.

/// xorshift64*.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(2_685_821_657_736_338_717)
    }
}

/// Draws pages with probability `rank^-theta`; ranks are shuffled over the pages.
pub struct Zipf {
    cdf: Vec<u64>,
    pages: Vec<u64>,
}

impl Zipf {
    pub fn new(n: u64, theta: f64, seed: u64) -> Zipf {
        let weights: Vec<f64> = (0..n).map(|i| ((i + 1) as f64).powf(-theta)).collect();
        let total = weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let mut cdf: Vec<u64> = weights
            .iter()
            .map(|weight| {
                sum += weight;
                (sum / total * (1_u64 << 53) as f64) as u64
            })
            .collect();
        *cdf.last_mut().unwrap() = 1 << 53;
        let mut pages: Vec<u64> = (0..n).collect();
        let mut random = Random(seed ^ 0x9E37_79B9_7F4A_7C15);
        for i in (1..n).rev() {
            let j = random.next() % (i + 1);
            pages.swap(i as usize, j as usize);
        }
        Zipf { cdf, pages }
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        let u = random.next() >> 11;
        self.pages[self.cdf.partition_point(|&bound| bound <= u)]
    }
}

/// A reference pattern, in pages of its area.
pub enum Pattern {
    Zipf(Zipf),
    Uniform(u64),
    Scan(u64),
    /// Every fourth touch is of a scan over the `cold` pages that follow the hot ones.
    ZipfScan {
        zipf: Zipf,
        hot: u64,
        cold: u64,
    },
    /// Even touches are in the first area, odd ones scan the second.
    Mixed {
        zipf: Zipf,
        file: u64,
    },
}

/// A touch: the area and the page in it.
pub type Touch = (usize, u64);

/// Draws touches of a pattern; its state continues from warm to main, but the count restarts.
pub struct Trace {
    pattern: Pattern,
    random: Random,
    cursor: u64,
}

impl Trace {
    pub fn new(pattern: Pattern, seed: u64) -> Trace {
        Trace {
            pattern,
            random: Random(seed),
            cursor: 0,
        }
    }

    pub fn touch(&mut self, t: u64) -> Touch {
        let mut scan = |n: u64| {
            let page = self.cursor;
            self.cursor = (self.cursor + 1) % n;
            page
        };
        match &self.pattern {
            Pattern::Zipf(zipf) => (0, zipf.draw(&mut self.random)),
            Pattern::Uniform(n) => (0, self.random.next() % n),
            Pattern::Scan(n) => (0, scan(*n)),
            Pattern::ZipfScan { hot, cold, .. } if t % 4 == 3 => (0, hot + scan(*cold)),
            Pattern::ZipfScan { zipf, .. } => (0, zipf.draw(&mut self.random)),
            Pattern::Mixed { file, .. } if t % 2 == 1 => (1, scan(*file)),
            Pattern::Mixed { zipf, .. } => (0, zipf.draw(&mut self.random)),
        }
    }
}
