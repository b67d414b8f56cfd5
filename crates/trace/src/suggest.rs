// SPDX-License-Identifier: Apache-2.0
//! Suggests the nearest name, for messages about unknown names.

/// The name nearest to the input, if at most a third of its letters differ.
pub fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names
        .into_iter()
        .map(|name| (strsim::osa_distance(written, name), name))
        .filter(|&(edits, name)| edits <= name.chars().count().max(3) / 3)
        .min()
        .map(|(_, name)| name)
}

/// `; did you mean ...?` to end a message with; empty if there is no near name.
#[must_use]
pub fn question(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_offered() {
        let names = ["classic", "mglru:7.2", "mglru:6.12"];
        assert_eq!(nearest("clasic", names), Some("classic"));
        assert_eq!(nearest("mglru:7.3", names), Some("mglru:7.2"));
        assert_eq!(
            nearest("nmve", ["zram", "nvme"]),
            Some("nvme"),
            "two letters swapped are one slip"
        );
        assert_eq!(nearest("banana", names), None);
    }
}
