// SPDX-License-Identifier: Apache-2.0
//! Tables as Apache Parquet, with the description of the study and a checksum of the file in its
//! metadata.
//!
//! The checksum is the SHA-256 of all bytes of the file, with a `0` in place of each of the
//! checksum's own digits.

use std::ops::Range;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use sha2::{Digest, Sha256};

use super::description::Description;
use super::setup::hex;
use super::table::{Column, Kind, Table, Value};

/// Key of the description in the metadata.
pub const DESCRIPTION_KEY: &str = "agewise";

/// Key of the checksum in the metadata: 64 hexadecimal digits.
pub const CHECKSUM_KEY: &str = "agewise_sha256";

/// The digits of the checksum while it is computed.
const NO_CHECKSUM: [u8; 64] = [b'0'; 64];

/// Encodes a table as a Parquet file with a single row group, since results have few rows.
///
/// # Errors
/// Fails if Parquet cannot represent the table.
pub fn bytes(table: &Table, description: &Description) -> Result<Vec<u8>, ParquetError> {
    let mut out = Vec::new();
    let schema = Arc::new(parse_message_type(&schema(&table.columns))?);
    let metadata = vec![
        KeyValue::new(DESCRIPTION_KEY.to_owned(), description.json()),
        KeyValue::new(CHECKSUM_KEY.to_owned(), "0".repeat(NO_CHECKSUM.len())),
    ];
    let properties = WriterProperties::builder().set_key_value_metadata(Some(metadata));
    let mut file = SerializedFileWriter::new(&mut out, schema, Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    for (at, column) in table.columns.iter().enumerate() {
        let Some(mut writer) = group.next_column()? else {
            break;
        };
        let values = table.rows.iter().map(|row| &row[at]);
        write_column(&mut writer, column, values)?;
        writer.close()?;
    }
    group.close()?;
    file.close()?;
    seal(&mut out)?;
    Ok(out)
}

/// Writes the checksum into a file that has a place for it.
fn seal(file: &mut [u8]) -> Result<(), ParquetError> {
    let place = checksum_place(file).ok_or_else(|| {
        ParquetError::General("the metadata have no place for the checksum".to_owned())
    })?;
    let sha256 = checksum(file, &place);
    file[place].copy_from_slice(sha256.as_bytes());
    Ok(())
}

/// Checks that a file has the bytes that [`bytes`] returned.
///
/// # Errors
/// Says what is wrong.
pub(super) fn check_whole(file: &[u8]) -> Result<(), &'static str> {
    let place = checksum_place(file).ok_or(
        "it has no checksum, so it is a trace, its end is missing or something else wrote it",
    )?;
    match checksum(file, &place).as_bytes() == &file[place] {
        true => Ok(()),
        false => Err("its bytes do not match the checksum in its metadata"),
    }
}

/// Where the digits of the checksum are. The metadata are the end of a file and not compressed: in
/// Thrift's compact protocol, a key is followed by the type of its value (`0x18`, a text) and the
/// length of it. A text of the table may look the same, but comes before.
fn checksum_place(file: &[u8]) -> Option<Range<usize>> {
    let before = [CHECKSUM_KEY.as_bytes(), &[0x18, NO_CHECKSUM.len() as u8]].concat();
    let at = file.windows(before.len()).rposition(|of| of == before)?;
    let start = at + before.len();
    let place = start..start + NO_CHECKSUM.len();
    (place.end <= file.len()).then_some(place)
}

fn checksum(file: &[u8], place: &Range<usize>) -> String {
    let mut hash = Sha256::new();
    hash.update(&file[..place.start]);
    hash.update(NO_CHECKSUM);
    hash.update(&file[place.end..]);
    hex(hash)
}

fn schema(columns: &[Column]) -> String {
    let mut schema = String::from("message result {");
    for column in columns {
        let presence = if column.optional {
            "optional"
        } else {
            "required"
        };
        let (kind, meaning) = match column.kind {
            Kind::Text => ("binary", " (STRING)"),
            Kind::Count => ("int64", ""),
            Kind::Number => ("double", ""),
        };
        schema.push_str(&format!(" {presence} {kind} {}{meaning};", column.name));
    }
    schema + " }"
}

fn write_column<'a>(
    writer: &mut SerializedColumnWriter<'_>,
    column: &Column,
    values: impl Iterator<Item = &'a Value> + Clone,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = values
        .clone()
        .map(|value| i16::from(*value != Value::Null))
        .collect();
    let levels = column.optional.then_some(levels.as_slice());
    match column.kind {
        Kind::Text => {
            let texts = values.filter_map(|value| match value {
                Value::Text(text) => Some(ByteArray::from(&**text)),
                _ => None,
            });
            let texts: Vec<ByteArray> = texts.collect();
            writer
                .typed::<ByteArrayType>()
                .write_batch(&texts, levels, None)?;
        }
        Kind::Count => {
            let counts = values.filter_map(|value| match value {
                Value::Count(count) => Some(count.cast_signed()),
                _ => None,
            });
            let counts: Vec<i64> = counts.collect();
            writer
                .typed::<Int64Type>()
                .write_batch(&counts, levels, None)?;
        }
        Kind::Number => {
            let numbers = values.filter_map(|value| match value {
                Value::Number(number) => Some(*number),
                _ => None,
            });
            let numbers: Vec<f64> = numbers.collect();
            writer
                .typed::<DoubleType>()
                .write_batch(&numbers, levels, None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let table = Table {
            columns: vec![
                Column::new("policy", Kind::Text),
                Column::new("n", Kind::Count),
            ],
            // What is before the checksum, in the data and in their statistics.
            rows: vec![vec!["agewise_sha256\u{18}@".into(), 7.into()]],
        };
        bytes(&table, &Description::Run { cells: Vec::new() }).unwrap()
    }

    #[test]
    fn the_checksum_is_of_the_file_with_zeros_in_its_place() {
        let file = file();
        check_whole(&file).unwrap();
        let place = checksum_place(&file).unwrap();
        let digits = String::from_utf8(file[place].to_vec()).unwrap();
        let text = String::from_utf8_lossy(&file).into_owned();
        assert_eq!(text.matches(&digits).count(), 1);
        let zeros = [&b"0"[..]; 64].concat();
        let at = file.windows(64).position(|of| of == digits.as_bytes());
        let mut zeroed = file.clone();
        zeroed[at.unwrap()..][..64].copy_from_slice(&zeros);
        assert_eq!(hex(Sha256::new_with_prefix(zeroed)), digits);
    }

    #[test]
    fn every_damage_shows() {
        let whole = file();
        for at in 0..whole.len() {
            assert!(check_whole(&whole[..at]).is_err(), "cut at {at}");
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            assert!(check_whole(&damaged).is_err(), "byte {at}");
        }
    }
}
