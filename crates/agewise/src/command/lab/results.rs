// SPDX-License-Identifier: Apache-2.0
//! How results of `run` and `curve` are written.

use std::io::Write;

use agewise_cli::output;
use agewise_lab::study::description::Description;
use agewise_lab::study::parquet;
use agewise_lab::study::result::Form;
use agewise_lab::study::table::Table;

/// The commit of this build, or `unknown`.
pub const BUILD: &str = env!("AGEWISE_BUILD");

/// Writes a table; for CSV with a header, if wanted.
pub fn write(
    out: &mut impl Write,
    form: Form,
    table: &Table,
    description: &Description,
    header: bool,
) -> anyhow::Result<()> {
    match form {
        Form::Json => {
            for row in table.rows() {
                output::json_line(out, &row)?;
            }
        }
        Form::Csv => table.write_csv(out, header)?,
        Form::Parquet => out.write_all(&parquet::bytes(table, description)?)?,
    }
    Ok(())
}
