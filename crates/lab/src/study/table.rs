// SPDX-License-Identifier: Apache-2.0
//! Results as a table. All output formats are made from it, so they have the same columns.

use std::io::Write;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Type of the values in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// Whole numbers.
    Count,
    Number,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// Whether a row may have no value.
    pub optional: bool,
    /// Whether JSON leaves it out of a row without a value, and CSV out of a table without one.
    pub sparse: bool,
}

impl Column {
    /// A column in which every row has a value.
    #[must_use]
    pub const fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            optional: false,
            sparse: false,
        }
    }

    /// A column in which a row may have no value.
    #[must_use]
    pub const fn optional(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            optional: true,
            sparse: false,
        }
    }

    /// A column in which few rows have a value, so that text without one leaves it out. Parquet
    /// always has it: the files of a sweep are read as one table.
    #[must_use]
    pub const fn sparse(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            optional: true,
            sparse: true,
        }
    }
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// No value.
    Null,
    Text(#[serde(serialize_with = "text")] Arc<str>),
    /// A whole number.
    Count(u64),
    Number(f64),
}

fn text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::Text(text.as_str().into())
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Value::Count(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        match number.is_nan() {
            true => Value::Null,
            false => Value::Number(number),
        }
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<Column>,
    /// Rows, each with one value per column.
    pub rows: Vec<Vec<Value>>,
}

/// A row with its column names; it serializes as a map in their order.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    columns: &'a [Column],
    values: &'a [Value],
}

impl<'a> Row<'a> {
    /// Names and values, without sparse columns that have none.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'a Value)> {
        let is_there =
            |(column, value): &(&Column, &Value)| !column.sparse || **value != Value::Null;
        let fields = self.columns.iter().zip(self.values).filter(is_there);
        fields.map(|(column, value)| (column.name, value))
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Table {
    /// Rows with their column names.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|values| Row {
            columns: &self.columns,
            values,
        })
    }

    /// The same table with every text passed through a function.
    #[must_use]
    pub fn with_texts(&self, change: impl Fn(&str) -> String) -> Table {
        let value = |value: &Value| match value {
            Value::Text(text) => Value::Text(change(text).into()),
            other => other.clone(),
        };
        let row = |row: &Vec<Value>| row.iter().map(value).collect();
        Table {
            columns: self.columns.clone(),
            rows: self.rows.iter().map(row).collect(),
        }
    }

    /// Appends the rows of another table. A column missing in one of the tables is empty in its
    /// rows.
    pub fn append(&mut self, mut other: Table) {
        if self.columns != other.columns && self.rows.is_empty() {
            self.columns.clone_from(&other.columns);
        }
        if self.columns == other.columns {
            self.rows.append(&mut other.rows);
            return;
        }
        for column in &other.columns {
            if !self.columns.iter().any(|known| known.name == column.name) {
                self.columns.push(Column {
                    optional: true,
                    ..column.clone()
                });
                self.rows.iter_mut().for_each(|row| row.push(Value::Null));
            }
        }
        let mut places = Vec::new();
        for column in &mut self.columns {
            let place = other.columns.iter().position(|of| of.name == column.name);
            column.optional |= place.is_none_or(|at| other.columns[at].optional);
            places.push(place);
        }
        let value = |row: &[Value], place: &Option<usize>| match place {
            Some(at) => row[*at].clone(),
            None => Value::Null,
        };
        for row in &other.rows {
            let values = places.iter().map(|place| value(row, place)).collect();
            self.rows.push(values);
        }
    }

    /// Leaves out the column of this name, if there is one.
    pub fn remove(&mut self, name: &str) {
        if let Some(at) = self.columns.iter().position(|column| column.name == name) {
            self.columns.remove(at);
            self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
        }
    }

    /// Writes the table as CSV, with a header if wanted.
    ///
    /// # Errors
    /// Fails if writing to `out` fails.
    pub fn write_csv(&self, out: &mut impl Write, header: bool) -> csv::Result<()> {
        let mut builder = csv::WriterBuilder::new();
        let mut writer = builder.has_headers(false).from_writer(out);
        let has_value = |at: usize| self.rows.iter().any(|row| row[at] != Value::Null);
        let is_shown = |at: &usize| !self.columns[*at].sparse || has_value(*at);
        let shown: Vec<usize> = (0..self.columns.len()).filter(is_shown).collect();
        if header {
            writer.write_record(shown.iter().map(|at| self.columns[*at].name))?;
        }
        for row in &self.rows {
            let values: Vec<&Value> = shown.iter().map(|at| &row[*at]).collect();
            writer.serialize(values)?;
        }
        writer.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[&'static str], value: f64) -> Table {
        Table {
            columns: columns
                .iter()
                .map(|name| Column::new(name, Kind::Number))
                .collect(),
            rows: vec![columns.iter().map(|_| value.into()).collect()],
        }
    }

    #[test]
    fn text_leaves_out_a_sparse_column_without_a_value() {
        let mut all = table(&["a"], 1.0);
        all.columns.push(Column::sparse("s", Kind::Text));
        let csv = |table: &Table| {
            let mut csv = Vec::new();
            table.write_csv(&mut csv, true).unwrap();
            String::from_utf8(csv).unwrap()
        };
        all.rows[0].push(Value::Null);
        assert_eq!(csv(&all), "a\n1.0\n");
        all.rows.push(vec![2.0.into(), "x".into()]);
        assert_eq!(csv(&all), "a,s\n1.0,\n2.0,x\n");
        let json: Vec<_> = all
            .rows()
            .map(|row| serde_json::to_string(&row).unwrap())
            .collect();
        assert_eq!(json, [r#"{"a":1.0}"#, r#"{"a":2.0,"s":"x"}"#]);
        all.remove("s");
        assert_eq!(csv(&all), "a\n1.0\n2.0\n");
    }

    #[test]
    fn tables_with_other_columns_are_put_together() {
        let mut all = Table::default();
        all.append(table(&["a", "b"], 1.0));
        all.append(table(&["b", "c"], 2.5));
        let mut csv = Vec::new();
        all.write_csv(&mut csv, true).unwrap();
        assert_eq!(
            String::from_utf8(csv).unwrap(),
            "a,b,c\n1.0,1.0,\n,2.5,2.5\n"
        );
        let optional: Vec<bool> = all.columns.iter().map(|column| column.optional).collect();
        assert_eq!(optional, [true, false, true]);
    }
}
