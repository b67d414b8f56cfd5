// SPDX-License-Identifier: Apache-2.0
//! The file that a trace is written to.

use std::io::{BufWriter, Write};
use std::path::Path;

use super::aside::Aside;

/// The destination: a file, with compression depending on its name.
pub(crate) enum Sink {
    Plain(BufWriter<Aside>),
    Gzip(flate2::write::GzEncoder<BufWriter<Aside>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<Aside>>),
}

impl Sink {
    pub fn create(path: &Path) -> std::io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 16, Aside::create(path)?);
        Ok(match path.extension().and_then(|ending| ending.to_str()) {
            Some("gz") => Self::Gzip(flate2::write::GzEncoder::new(file, Default::default())),
            Some("zst") => {
                let mut encoder = zstd::stream::write::Encoder::new(file, 9)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
            _ => Self::Plain(file),
        })
    }

    pub fn finish(self) -> std::io::Result<()> {
        let file = match self {
            Self::Plain(file) => file,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
        };
        file.into_inner()?.finish()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}
