// SPDX-License-Identifier: Apache-2.0
//! How results of `run` and `curve` are written.

use std::io::Write;
use std::path::Path;

use agewise_cli::output;
use agewise_host::untrusted::clean;
use agewise_lab::study::StudyError;
use agewise_lab::study::base::Base;
use agewise_lab::study::description::Description;
use agewise_lab::study::parquet;
use agewise_lab::study::result::{Form, ResultFile};
use agewise_lab::study::table::Table;
use agewise_trace::Aside;
use anyhow::Context;

/// The commit of this build, or `unknown`.
pub const BUILD: &str = env!("AGEWISE_BUILD");

/// Reads a result, and notes which of its profiles have changed since.
pub fn read(path: &Path) -> Result<ResultFile, StudyError> {
    read_in(path, &Base::of(path))
}

/// Reads a result whose profiles are looked for with `base`.
pub fn read_in(path: &Path, base: &Base) -> Result<ResultFile, StudyError> {
    let result = ResultFile::read(path)?;
    for line in base.changed_profiles(&result.description) {
        agewise_cli::note!("{}: {line}", path.display());
    }
    Ok(result)
}

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
        // A name that has to be escaped is no longer that of its file: json and parquet keep it.
        Form::Csv => table.with_texts(clean).write_csv(out, header)?,
        Form::Parquet => out.write_all(&parquet::bytes(table, description)?)?,
    }
    Ok(())
}

/// A file that is written once the results are there.
pub struct OutputFile<'a>(&'a Path, Aside);

/// Creates it, if one is wanted: whether it can be written is known before the results are.
pub fn output_file(path: Option<&Path>) -> anyhow::Result<Option<OutputFile<'_>>> {
    let create = |path| Aside::create(path).map(|file| OutputFile(path, file));
    let file = path.map(create).transpose();
    file.with_context(|| format!("cannot create {}", path.unwrap_or(Path::new("")).display()))
}

impl OutputFile<'_> {
    /// Writes all of it.
    pub fn write(self, bytes: &[u8]) -> anyhow::Result<()> {
        let OutputFile(path, mut file) = self;
        let written = file.write_all(bytes).and_then(|()| file.finish());
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}
