// SPDX-License-Identifier: Apache-2.0
//! Values of `--set`.

use std::fs::File;
use std::io::Read;

/// Limit on the size of a list of settings.
const LIST_MAX_BYTES: u64 = 1 << 20;

/// A value of `--set`: a setting, or all those of a list.
#[derive(Clone, Debug)]
pub struct Given(Vec<String>);

impl Given {
    /// The settings of all values, in the order given.
    pub fn all(values: &[Given]) -> Vec<String> {
        values.iter().flat_map(|given| given.0.clone()).collect()
    }
}

/// Parses a value of `--set`. `@FILE` is a list with a setting a line; `#` begins a comment.
///
/// # Errors
/// The list cannot be read. The settings themselves are checked later.
pub fn parse(value: &str) -> Result<Given, String> {
    let Some(path) = value.strip_prefix('@') else {
        return Ok(Given(vec![value.to_owned()]));
    };
    let mut list = String::new();
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let file = File::open(path).map_err(failed)?;
    file.take(LIST_MAX_BYTES + 1)
        .read_to_string(&mut list)
        .map_err(failed)?;
    if list.len() as u64 > LIST_MAX_BYTES {
        return Err(format!("{path} is larger than 1 MiB"));
    }
    let lines = list
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""));
    let settings = lines.map(str::trim).filter(|line| !line.is_empty());
    Ok(Given(settings.map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_as_good_as_its_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices");
        std::fs::write(
            &path,
            "# of a machine\nhit_ns=90  # 80 to 95\n\nfault_ns=1200\n",
        )
        .unwrap();
        let values = [format!("@{}", path.display()), "cpus=2".to_owned()];
        let given: Vec<Given> = values.iter().map(|value| parse(value).unwrap()).collect();
        assert_eq!(Given::all(&given), ["hit_ns=90", "fault_ns=1200", "cpus=2"]);
        let missing = parse("@/nowhere/prices").unwrap_err();
        assert!(missing.starts_with("/nowhere/prices: "), "{missing}");
    }
}
