// SPDX-License-Identifier: Apache-2.0
//! Every run of an experiment as Apache Parquet: one row a run, one column a measure.

use std::io::Write;
use std::sync::Arc;

use agewise_lab::experiment::matrix::PolicyResult;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Writes `workload`, `policy`, `seed` and the measures of every run; results go by workload or trace.
pub fn write(
    out: &mut (impl Write + Send),
    results: &[(&str, &[PolicyResult])],
) -> anyhow::Result<()> {
    let mut schema = String::from(
        "message runs { required binary workload (STRING); required binary policy (STRING); \
         required int64 seed;",
    );
    for (measure, _) in results
        .first()
        .and_then(|(_, of)| of.first())
        .map_or(&[][..], |first| &first.measures)
    {
        schema.push_str(&format!(" required double {measure};"));
    }
    schema.push_str(" }");
    let schema = Arc::new(parse_message_type(&schema)?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(out, schema, properties)?;
    let mut group = file.next_row_group()?;
    let runs = || {
        results.iter().flat_map(|&(workload, results)| {
            results.iter().flat_map(move |result| {
                let policy = result.policy.as_str();
                result.runs.iter().map(move |run| (workload, policy, run))
            })
        })
    };
    let text = |of: &str| ByteArray::from(of);
    let mut column = 0;
    while let Some(mut writer) = group.next_column()? {
        match column {
            0 | 1 => {
                let values: Vec<ByteArray> = runs()
                    .map(|(workload, policy, _)| text(if column == 0 { workload } else { policy }))
                    .collect();
                writer
                    .typed::<ByteArrayType>()
                    .write_batch(&values, None, None)?;
            }
            2 => {
                let values: Vec<i64> = runs().map(|(_, _, (seed, _))| seed.cast_signed()).collect();
                writer
                    .typed::<Int64Type>()
                    .write_batch(&values, None, None)?;
            }
            _ => {
                let values: Vec<f64> = runs()
                    .map(|(_, _, (_, values))| values[column - 3])
                    .collect();
                writer
                    .typed::<DoubleType>()
                    .write_batch(&values, None, None)?;
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
    use agewise_lab::experiment::machine_run::MEASURES;

    #[test]
    fn what_is_written_is_read_back() {
        let run = |seed: u64| (seed, (0..MEASURES.len()).map(|m| m as f64).collect());
        let results = [PolicyResult {
            policy: "classic".to_owned(),
            measures: MEASURES.to_vec(),
            runs: vec![run(1), run(2)],
        }];
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file, &[("kv", &results[..])]).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        assert_eq!(reader.metadata().file_metadata().num_rows(), 2);
        let row = reader.get_row_iter(None).unwrap().nth(1).unwrap().unwrap();
        let text = row.to_string();
        assert!(
            text.contains("policy: \"classic\"") && text.contains("seed: 2"),
            "{text}"
        );
    }
}
