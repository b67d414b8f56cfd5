// SPDX-License-Identifier: Apache-2.0
//! The traces of the kernel reference, bit for bit: the touches of its generator in each phase, and
//! the hash that proves them equal.

use thiserror::Error;

use super::random::{XorShift64Star, Zipf, ZipfError};

/// Bit that distinguishes a page of the file from one of anonymous memory in a mixed trace.
pub const FILE_BIT: u32 = 1 << 31;

/// What a trace touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// Anonymous memory.
    Anon,
    /// A file through read().
    File,
    /// A mapped file.
    Mmap,
    /// Anonymous memory and a file in turn.
    Mixed,
}

/// The order of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// By a Zipf distribution.
    Zipf,
    /// Each page equally likely.
    Uniform,
    /// From first to last, again and again.
    Scan,
    /// Zipf over the hot part; every fourth touch scans the rest.
    ZipfWithScan,
    /// Zipf whose popular pages move on by a quarter, four times in a phase.
    ZipfShifting,
}

/// Invalid parameters of a trace.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum TraceError {
    #[error(
        "unknown pattern `{0}`: anon-, file- or mmap- with zipf or uniform, anon-scan, anon-zscan, \
         anon-zipfshift, or mixed"
    )]
    Pattern(String),
    #[error("pattern `{pattern}` over {pages} pages, {hot} of them hot: {reason}")]
    Size {
        pattern: String,
        pages: u32,
        hot: u32,
        reason: &'static str,
    },
    #[error(transparent)]
    Zipf(#[from] ZipfError),
}

/// A pattern of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern {
    /// What is touched.
    pub medium: Medium,
    /// The order of touches.
    pub order: Order,
}

impl Pattern {
    /// Parses the name of a pattern by the rules of the reference's generator: the start of the
    /// name is the medium, `zipf` anywhere in it selects that distribution, and the rest is
    /// uniform.
    ///
    /// # Errors
    /// Fails if the start of the name is not a medium.
    pub fn parse(name: &str) -> Result<Pattern, TraceError> {
        let medium = if name == "mixed" {
            Medium::Mixed
        } else if name.starts_with("anon") {
            Medium::Anon
        } else if name.starts_with("file") {
            Medium::File
        } else if name.starts_with("mmap") {
            Medium::Mmap
        } else {
            return Err(TraceError::Pattern(name.to_owned()));
        };
        let order = match name {
            "anon-scan" => Order::Scan,
            "anon-zscan" => Order::ZipfWithScan,
            "anon-zipfshift" => Order::ZipfShifting,
            _ if medium == Medium::Mixed || name.contains("zipf") => Order::Zipf,
            _ => Order::Uniform,
        };
        Ok(Pattern { medium, order })
    }
}

/// A trace: the pattern and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpec {
    /// Name of the pattern.
    pub pattern: String,
    /// Number of pages (`mixed`: of the file).
    pub pages: u32,
    /// Hot pages (`anon-zscan`) or anonymous pages (`mixed`); otherwise 0.
    pub hot: u32,
    /// Exponent of the Zipf distribution.
    pub theta: f64,
    pub seed: u64,
    /// Touches in the main phase; the warm phase has a quarter as many.
    pub touches: u64,
}

/// Draws the touches of a trace.
#[derive(Clone, Debug)]
pub struct TraceGenerator {
    pattern: Pattern,
    pages: u32,
    hot: u32,
    zipf: Option<Zipf>,
    random: XorShift64Star,
    cursor: u32,
    hash: u64,
}

impl TraceGenerator {
    /// A generator at the start of the warm phase.
    ///
    /// # Errors
    /// [`TraceError`] if the parameters are invalid.
    pub fn new(spec: &TraceSpec) -> Result<TraceGenerator, TraceError> {
        let pattern = Pattern::parse(&spec.pattern)?;
        let size = |reason| TraceError::Size {
            pattern: spec.pattern.clone(),
            pages: spec.pages,
            hot: spec.hot,
            reason,
        };
        if spec.pages == 0 || spec.pages >= FILE_BIT {
            return Err(size("pages must be 1 to 2^31 - 1"));
        }
        let drawn = match (pattern.medium, pattern.order) {
            (Medium::Mixed, _) => spec.hot,
            (_, Order::ZipfWithScan) if spec.hot >= spec.pages => {
                return Err(size("nothing is left to scan"));
            }
            (_, Order::ZipfWithScan) => spec.hot,
            _ => spec.pages,
        };
        if drawn == 0 || drawn >= FILE_BIT {
            return Err(size("the hot part must have 1 to 2^31 - 1 pages"));
        }
        let zipf = match pattern.order {
            Order::Uniform | Order::Scan => None,
            Order::Zipf | Order::ZipfWithScan | Order::ZipfShifting => {
                Some(Zipf::new(drawn, spec.theta, spec.seed)?)
            }
        };
        Ok(TraceGenerator {
            pattern,
            pages: spec.pages,
            hot: spec.hot,
            zipf,
            random: XorShift64Star::new(spec.seed),
            cursor: 0,
            hash: 1_469_598_103_934_665_603,
        })
    }

    /// What is touched and how.
    pub fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// Returns the page of touch `t` in a phase of `touches`, with [`FILE_BIT`] if a mixed trace
    /// reads its file.
    #[inline]
    pub fn next(&mut self, t: u64, touches: u64) -> u32 {
        let code = self.draw(t, touches);
        self.hash = (self.hash ^ u64::from(code)).wrapping_mul(1_099_511_628_211);
        code
    }

    #[inline]
    fn draw(&mut self, t: u64, touches: u64) -> u32 {
        match (&self.zipf, self.pattern.order) {
            (Some(_), _) if self.pattern.medium == Medium::Mixed && t % 2 == 1 => {
                self.advance(self.pages) | FILE_BIT
            }
            (Some(_), Order::ZipfWithScan) if t % 4 == 3 => {
                self.hot + self.advance(self.pages - self.hot)
            }
            (Some(zipf), Order::ZipfShifting) => {
                let quarter = t.saturating_mul(4) / touches.max(1);
                let moved = (quarter as u32).wrapping_mul(self.pages / 4);
                zipf.draw(&mut self.random).wrapping_add(moved) % self.pages
            }
            (Some(zipf), _) => zipf.draw(&mut self.random),
            (None, Order::Scan) => self.advance(self.pages),
            (None, _) => self.random.below(self.pages),
        }
    }

    #[inline]
    fn advance(&mut self, end: u32) -> u32 {
        let at = self.cursor;
        self.cursor = if at + 1 == end { 0 } else { at + 1 };
        at
    }

    /// Hash of all touches so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Hash of a whole trace, warm and main phase.
///
/// # Errors
/// [`TraceError`] if the parameters are invalid.
pub fn trace_hash(spec: &TraceSpec) -> Result<u64, TraceError> {
    let mut generator = TraceGenerator::new(spec)?;
    for touches in [spec.touches / 4, spec.touches] {
        for t in 0..touches {
            generator.next(t, touches);
        }
    }
    Ok(generator.hash())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(pattern: &str, pages: u32, touches: u64, theta: f64, hot: u32) -> TraceSpec {
        TraceSpec {
            pattern: pattern.to_owned(),
            pages,
            hot,
            theta,
            seed: 12345,
            touches,
        }
    }

    /// Hashes that the kernel reference recorded in its guests.
    #[test]
    fn traces_are_those_of_the_reference() {
        let cases = [
            ("anon-zipf", 16384, 400_000, 0.8, 0, 0x3ce9_8eb2_de72_e497),
            ("anon-zipf", 16384, 400_000, 0.99, 0, 0x9d3b_38d1_d8a7_87d9),
            ("anon-zipf", 16384, 400_000, 1.2, 0, 0x94d4_3cae_d850_1b26),
            (
                "anon-uniform",
                16384,
                100_000,
                0.0,
                0,
                0xa950_450c_dcc6_1a72,
            ),
            ("anon-scan", 10240, 100_000, 0.0, 0, 0x1f2b_4232_4470_8783),
            ("file-uniform", 16384, 60_000, 0.0, 0, 0x4269_39f1_0a3e_1875),
            ("file-zipf", 16384, 200_000, 0.99, 0, 0x255b_a275_b9a4_968d),
            ("mmap-zipf", 16384, 200_000, 0.99, 0, 0x255b_a275_b9a4_968d),
            ("mixed", 16384, 100_000, 0.8, 6144, 0x5224_9f05_b090_a70a),
            ("mixed", 16384, 100_000, 0.8, 12288, 0x7ea4_672e_c82d_6568),
            (
                "anon-zscan",
                16384,
                200_000,
                0.8,
                7168,
                0xe7e8_2335_412a_3a73,
            ),
            (
                "anon-zipfshift",
                16384,
                400_000,
                0.99,
                0,
                0xe8e8_8077_a37f_27d9,
            ),
        ];
        for (pattern, pages, touches, theta, hot, expected) in cases {
            let spec = spec(pattern, pages, touches, theta, hot);
            assert_eq!(trace_hash(&spec), Ok(expected), "{spec:?}");
        }
    }

    #[test]
    fn senseless_traces_are_refused() {
        for (pattern, pages, hot) in [
            ("heap-zipf", 10, 0),
            ("anon-zipf", 0, 0),
            ("mixed", 10, 0),
            ("anon-zscan", 10, 10),
            ("anon-zscan", 10, 0),
        ] {
            assert!(
                TraceGenerator::new(&spec(pattern, pages, 10, 0.8, hot)).is_err(),
                "{pattern} {pages} {hot}"
            );
        }
    }
}
