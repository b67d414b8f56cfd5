// SPDX-License-Identifier: Apache-2.0
//! Curves as Apache Parquet: a row a point, with the columns of the other forms.

use std::io::Write;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::Record;

const SCHEMA: &str = "message curves {
    required binary trace (STRING);
    required binary policy (STRING);
    required int64 size_pages;
    required int64 footprint_pages;
    required int64 accesses;
    required int64 misses;
    required double miss_ratio;
    required double miss_ratio_error;
    optional double sampling_rate;
}";

/// Writes all records as one row group: there are as many as points on a screen.
pub fn write(out: impl Write + Send, records: &[Record]) -> anyhow::Result<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(out, schema, properties)?;
    let mut group = file.next_row_group()?;
    let mut column = 0;
    while let Some(mut writer) = group.next_column()? {
        match column {
            0 | 1 => {
                let text = |record: &Record| match column {
                    0 => ByteArray::from(record.trace),
                    _ => ByteArray::from(record.policy),
                };
                let values: Vec<ByteArray> = records.iter().map(text).collect();
                writer
                    .typed::<ByteArrayType>()
                    .write_batch(&values, None, None)?;
            }
            2..=5 => {
                let number = |record: &Record| match column {
                    2 => record.size_pages as u64,
                    3 => record.footprint_pages,
                    4 => record.accesses,
                    _ => record.misses,
                };
                let values: Vec<i64> = records
                    .iter()
                    .map(|record| number(record).cast_signed())
                    .collect();
                writer
                    .typed::<Int64Type>()
                    .write_batch(&values, None, None)?;
            }
            6 | 7 => {
                let number = |record: &Record| match column {
                    6 => record.miss_ratio,
                    _ => record.miss_ratio_error,
                };
                let values: Vec<f64> = records.iter().map(number).collect();
                writer
                    .typed::<DoubleType>()
                    .write_batch(&values, None, None)?;
            }
            _ => {
                let values: Vec<f64> = records.iter().filter_map(|r| r.sampling_rate).collect();
                let present: Vec<i16> = records
                    .iter()
                    .map(|r| i16::from(r.sampling_rate.is_some()))
                    .collect();
                writer
                    .typed::<DoubleType>()
                    .write_batch(&values, Some(&present), None)?;
            }
        }
        writer.close()?;
        column += 1;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let record = |policy, sampling_rate| Record {
            trace: "t",
            policy,
            size_pages: 4,
            footprint_pages: 5,
            accesses: 12,
            misses: 9,
            miss_ratio: 0.75,
            miss_ratio_error: 0.0,
            sampling_rate,
        };
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file, &[record("lru", None), record("opt", Some(0.5))]).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let rows: Vec<String> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap().to_string())
            .collect();
        assert!(rows[0].contains("policy: \"lru\"") && rows[0].contains("sampling_rate: null"));
        assert!(rows[1].contains("misses: 9") && rows[1].contains("sampling_rate: 0.5"));
    }
}
