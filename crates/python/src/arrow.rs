// SPDX-License-Identifier: Apache-2.0
//! Tables as Arrow, for all users of its Python interface: polars, pandas, pyarrow, DuckDB. The
//! types are those of the Parquet files.

use std::sync::Arc;

use agewise_lab::study::table::{Column, Kind, Table, Value};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// A table as a capsule with a stream of one batch.
pub fn capsule<'py>(py: Python<'py>, table: &Table) -> PyResult<Bound<'py, PyCapsule>> {
    let batch = batch(table).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let schema = batch.schema();
    let batches = RecordBatchIterator::new([Ok(batch)], schema);
    let stream = FFI_ArrowArrayStream::new(Box::new(batches));
    PyCapsule::new(py, stream, Some(c"arrow_array_stream".to_owned()))
}

fn batch(table: &Table) -> Result<RecordBatch, ArrowError> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (at, column) in table.columns.iter().enumerate() {
        let values = table.rows.iter().map(|row| &row[at]);
        let (kind, array) = array(column, values);
        fields.push(Field::new(column.name, kind, column.optional));
        arrays.push(array);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
}

fn array<'a>(column: &Column, values: impl Iterator<Item = &'a Value>) -> (DataType, ArrayRef) {
    match column.kind {
        Kind::Text => {
            let texts = values.map(|value| match value {
                Value::Text(text) => Some(&**text),
                _ => None,
            });
            (DataType::Utf8, Arc::new(texts.collect::<StringArray>()))
        }
        Kind::Count => {
            let counts = values.map(|value| match value {
                Value::Count(count) => Some(count.cast_signed()),
                _ => None,
            });
            (DataType::Int64, Arc::new(counts.collect::<Int64Array>()))
        }
        Kind::Number => {
            let numbers = values.map(|value| match value {
                Value::Number(number) => Some(*number),
                _ => None,
            });
            let numbers = numbers.collect::<Float64Array>();
            (DataType::Float64, Arc::new(numbers))
        }
    }
}
