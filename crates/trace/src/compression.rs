// SPDX-License-Identifier: Apache-2.0
//! Compression, detected from the first bytes of the file, never from its name.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// None.
    Plain,
    /// gzip (RFC 1952), one or more members.
    Gzip,
    /// xz, one or more streams.
    Xz,
    /// Zstandard (RFC 8878), one or more frames.
    Zstd,
}

/// Whether a file begins with a frame of metadata, which decoders of zstd skip: pzstd writes one
/// before each frame.
fn is_skippable_frame(first_bytes: &[u8]) -> bool {
    matches!(first_bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Magic numbers of formats that are only recognised to give advice.
const UNREADABLE: [(&[u8], &str); 4] = [
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
];

/// Advice for Parquet, which is written and not read: its compression is its own, by columns.
const PARQUET: &str = "this is Parquet, which `trace convert` writes for data frames and no \
                       command reads as a trace: give the trace it was made from, or convert it \
                       to csv with polars or DuckDB";

impl Compression {
    /// The compression that these first bytes indicate.
    ///
    /// # Errors
    /// Advice for a compression that is recognised but not supported, and for Parquet.
    pub fn of(first_bytes: &[u8]) -> Result<Self, String> {
        if first_bytes.starts_with(&[0x1f, 0x8b]) {
            return Ok(Self::Gzip);
        }
        if first_bytes.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
            return Ok(Self::Xz);
        }
        let is_zstd = first_bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        if is_zstd || is_skippable_frame(first_bytes) {
            return Ok(Self::Zstd);
        }
        if first_bytes.starts_with(b"PAR1") {
            return Err(PARQUET.to_owned());
        }
        match UNREADABLE
            .iter()
            .find(|(magic, _)| first_bytes.starts_with(magic))
        {
            Some((_, name)) => Err(format!(
                "{name} is not supported: decompress it, or use gzip, xz or zstd"
            )),
            None => Ok(Self::Plain),
        }
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }

    /// A reader of the decompressed bytes. Its memory is bounded by the window of the compression.
    ///
    /// # Errors
    /// The decompressor rejects the header.
    pub fn decompress<R: Read + Send + 'static>(
        self,
        file: BufReader<R>,
    ) -> std::io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Plain => Box::new(file),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
            Self::Xz => Box::new(lzma_rust2::XzReader::new(file, true)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(file)?),
        })
    }
}

/// Counts the bytes read from the file itself.
struct Counted<R> {
    file: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.file.read(buffer)?;
        self.bytes.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// A file being decompressed.
pub struct Opened {
    /// How it is compressed.
    pub compression: Compression,
    /// The decompressed bytes.
    pub content: Box<dyn Read + Send>,
    /// Bytes read from the file itself so far.
    pub file_bytes: Arc<AtomicU64>,
}

/// Opens the decompressed content of `file`.
///
/// # Errors
/// The first bytes cannot be read, or are those of something that is not supported.
pub fn open<R: Read + Send + 'static>(file: R) -> std::io::Result<Opened> {
    let file_bytes = Arc::new(AtomicU64::new(0));
    let counted = Counted {
        file,
        bytes: Arc::clone(&file_bytes),
    };
    let mut file = BufReader::with_capacity(1 << 16, counted);
    let compression = Compression::of(file.fill_buf()?)
        .map_err(|advice| std::io::Error::new(std::io::ErrorKind::Unsupported, advice))?;
    Ok(Opened {
        compression,
        content: compression.decompress(file)?,
        file_bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_back(bytes: Vec<u8>) -> (Compression, Vec<u8>) {
        let length = bytes.len() as u64;
        let mut opened = open(std::io::Cursor::new(bytes)).unwrap();
        let mut content = Vec::new();
        opened.content.read_to_end(&mut content).unwrap();
        assert_eq!(opened.file_bytes.load(Ordering::Relaxed), length);
        (opened.compression, content)
    }

    #[test]
    fn content_tells_the_compression() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"1\n2\n").unwrap();
        let mut two_members = gzip.finish().unwrap();
        two_members.extend_from_within(..);
        assert_eq!(
            read_back(two_members),
            (Compression::Gzip, b"1\n2\n1\n2\n".to_vec())
        );

        let zstd = zstd::encode_all(&b"1\n2\n"[..], 1).unwrap();
        let of_pzstd = [&b"\x50\x2a\x4d\x18\x04\0\0\0size"[..], &zstd].concat();
        for zstd in [zstd, of_pzstd] {
            assert_eq!(read_back(zstd), (Compression::Zstd, b"1\n2\n".to_vec()));
        }
        assert_eq!(
            read_back(b"1\n".to_vec()),
            (Compression::Plain, b"1\n".to_vec())
        );
        assert_eq!(read_back(Vec::new()), (Compression::Plain, Vec::new()));
    }

    #[test]
    fn an_unsupported_compression_is_named() {
        let error = open(std::io::Cursor::new(b"BZh91AY".to_vec()))
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("bzip2 is not supported"),
            "{error}"
        );
    }
}
