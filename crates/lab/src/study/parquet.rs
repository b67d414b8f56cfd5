// SPDX-License-Identifier: Apache-2.0
//! Tables as Apache Parquet, with the description of the study in the file's metadata.

use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use super::description::Description;
use super::table::{Column, Kind, Table, Value};

/// Key of the description in the metadata.
pub const DESCRIPTION_KEY: &str = "agewise";

/// Encodes a table as a Parquet file with a single row group, since results have few rows.
///
/// # Errors
/// Fails if Parquet cannot represent the table.
pub fn bytes(table: &Table, description: &Description) -> Result<Vec<u8>, ParquetError> {
    let mut out = Vec::new();
    let schema = Arc::new(parse_message_type(&schema(&table.columns))?);
    let metadata = KeyValue::new(DESCRIPTION_KEY.to_owned(), description.json());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![metadata]));
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
    Ok(out)
}

/// Whether these are all bytes of such a file.
pub(super) fn is_whole(bytes: Vec<u8>) -> bool {
    let whole = || -> Result<bool, ParquetError> {
        let file = SerializedFileReader::new(bytes::Bytes::from(bytes))?;
        file.get_row_iter(None)?.try_for_each(|row| row.map(drop))?;
        let metadata = file.metadata().file_metadata().key_value_metadata();
        let mut keys = metadata.into_iter().flatten().map(|entry| &entry.key);
        Ok(keys.any(|key| key == DESCRIPTION_KEY))
    };
    whole().unwrap_or(false)
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
