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
    /// The settings of all values, in the order given, without those that a later one of the same
    /// name replaces.
    pub fn all(values: &[Given]) -> Vec<String> {
        let key = |text: &str| text.split('=').next().unwrap_or(text).to_owned();
        let mut kept: Vec<String> = Vec::new();
        for setting in values.iter().flat_map(|given| &given.0) {
            kept.retain(|earlier| key(earlier) != key(setting));
            kept.push(setting.clone());
        }
        kept
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
    let settings = lines.map(|line| match line.split_once('=') {
        Some((key, value)) => format!("{}={}", key.trim(), value.trim()),
        None => line.trim().to_owned(),
    });
    Ok(Given(settings.filter(|line| !line.is_empty()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_as_good_as_its_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices");
        let list = "# of a machine\nhit_ns=90  # 80 to 95\n\nfault_ns = 1200\n";
        std::fs::write(&path, list).unwrap();
        let given = |value: &str| parse(value).unwrap();
        let all = [given(&format!("@{}", path.display())), given("hit_ns=80")];
        assert_eq!(Given::all(&all), ["fault_ns=1200", "hit_ns=80"]);
        let missing = parse("@/nowhere/prices").unwrap_err();
        assert!(missing.starts_with("/nowhere/prices: "), "{missing}");
    }
}
