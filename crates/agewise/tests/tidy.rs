// SPDX-License-Identifier: Apache-2.0
//! House rules that no compiler checks: short functions and files, narrow lines, licence headers,
//! no unfinished work, valid links, and crates that only depend downwards.
//!
//! Violations older than a rule are listed in `tidy.toml` with their size. An entry may shrink or
//! disappear, but never grow: the test also fails if the list allows more than needed.
//! `TIDY_BLESS=1` rewrites the list; only someone who merges branches should need that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Longest function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest source file.
const FILE_LINES_MAX: usize = 500;
/// Longest line of code.
const COLUMNS_MAX: usize = 100;
/// Names of the kernel model's profiles in code: only profile modules may depend on a version.
const VERSION_NAMES: [&str; 7] = [
    "\"6.12\"", "\"6.14\"", "\"7.2\"", "\"v6\"", "::V6_12", "::V6_14", "::V7_2",
];
/// Crates by layer: each may only use crates of lower layers, which come first.
const LAYERS: [&[&str]; 5] = [
    &["damon", "kernel", "policy", "trace"],
    &["host", "lab"],
    &["cli"],
    &["bench", "daemon"],
    &["agewise", "fuzz", "python"],
];
/// Crates that must not depend on the simulated machine.
const WITHOUT_LAB: [&str; 3] = ["host", "cli", "daemon"];

/// Violations and their sizes, by rule and place.
type Excess = BTreeMap<String, BTreeMap<String, usize>>;

fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/");
    crates.parent().expect("the workspace").to_owned()
}

/// A file of the repository, with its path relative to the root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn has_extension(&self, extensions: &[&str]) -> bool {
        let extension = Path::new(&self.path)
            .extension()
            .unwrap_or_default()
            .to_string_lossy();
        extensions.contains(&extension.as_ref())
    }

    fn is_rust(&self) -> bool {
        self.has_extension(&["rs"])
    }

    fn is_code(&self) -> bool {
        self.has_extension(&["rs", "c", "h"]) || self.text.starts_with("#!")
    }

    /// Whether the file contains only tests.
    fn is_test(&self) -> bool {
        let path = &self.path;
        path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("testing.rs")
    }

    /// The lines before the unit tests at the end of the file.
    fn product_lines(&self) -> impl Iterator<Item = &str> {
        let end = self.text.find("#[cfg(test)]\nmod ");
        self.text[..end.unwrap_or(self.text.len())].lines()
    }
}

/// All text files except generated ones.
fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory of the repository") {
            let path = entry.expect("its entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_hidden = name.starts_with('.') && !matches!(&*name, ".ci" | ".github");
            if is_hidden || matches!(&*name, "target" | "Cargo.lock") {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let path = path.strip_prefix(&root).expect("below the root");
                let path = path.to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 300, "the repository is at {}", root.display());
    found
}

/// Name and length of each function, as formatted by rustfmt.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let signature_ends = |line: &&str| line.ends_with(['{', '}', ';']);
        let Some(opens) = lines[start..].iter().position(signature_ends) else {
            continue;
        };
        if !lines[start + opens].ends_with('{') {
            continue;
        }
        let close = format!("{indent}}}");
        let body = lines[start..].iter().position(|line| *line == close);
        found.push((name, body.map_or(0, |end| end + 1)));
    }
    found
}

/// The function's name, if the line begins a function.
fn function_name(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    loop {
        match words.next()? {
            "fn" => break,
            "pub" | "async" | "const" | "unsafe" | "extern" | "\"C\"" => {}
            word if word.starts_with("pub(") => {}
            _ => return None,
        }
    }
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    Some(words.next()?.chars().take_while(is_name).collect())
}

/// All violations, with their sizes.
fn excess(sources: &[Source]) -> Excess {
    let mut excess = Excess::new();
    let mut note = |rule: &str, place: String, size: usize, most: usize| {
        if size > most {
            let rule = excess.entry(rule.to_owned()).or_default();
            let known = rule.entry(place).or_default();
            *known = size.max(*known);
        }
    };
    for source in sources.iter().filter(|source| source.is_code()) {
        let path = &source.path;
        let lines = source.text.lines().count();
        note("file_lines", path.clone(), lines, FILE_LINES_MAX);
        let is_wide = |line: &&str| line.chars().count() > COLUMNS_MAX;
        let wide = source.text.lines().filter(is_wide).count();
        note("wide_lines", path.clone(), wide, 0);
        if !source.is_rust() {
            continue;
        }
        for (name, lines) in functions(&source.text) {
            let place = format!("{path}::{name}");
            note("function_lines", place, lines, FUNCTION_LINES_MAX);
        }
        if !source.is_test() && path.contains("/src/") && !path.contains("profile") {
            let names_version = |line: &&str| {
                let is_comment = line.trim_start().starts_with("//");
                !is_comment && VERSION_NAMES.iter().any(|name| line.contains(name))
            };
            let named = source.product_lines().filter(names_version).count();
            note("version_names", path.clone(), named, 0);
        }
    }
    excess
}

fn list_path() -> PathBuf {
    root().join("tidy.toml")
}

/// The listed exceptions. The file contains only tables of integers.
fn listed() -> Excess {
    let text = std::fs::read_to_string(list_path()).expect("tidy.toml");
    let mut listed = Excess::new();
    let mut rule = String::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            rule = name.to_owned();
            continue;
        }
        let (place, size) = line.split_once(" = ").expect("PLACE = SIZE");
        let size = size.parse().expect("a whole number");
        let sizes = listed.entry(rule.clone()).or_default();
        let before = sizes.insert(place.trim_matches('"').to_owned(), size);
        assert_eq!(before, None, "{place} is listed twice");
    }
    listed
}

fn bless(excess: &Excess) {
    let mut text = "# Exceptions from the rules in crates/agewise/tests/tidy.rs. They may only \
                    shrink.\n"
        .to_owned();
    for (rule, places) in excess {
        let _ = write!(text, "\n[{rule}]\n");
        for (place, size) in places {
            let _ = writeln!(text, "\"{place}\" = {size}");
        }
    }
    std::fs::write(list_path(), text).expect("write tidy.toml");
}

#[test]
fn code_is_within_the_limits_or_a_listed_exception() {
    let found = excess(&sources());
    if std::env::var_os("TIDY_BLESS").is_some() {
        return bless(&found);
    }
    let listed = listed();
    let mut wrong = String::new();
    let rules: BTreeSet<&String> = found.keys().chain(listed.keys()).collect();
    for rule in rules {
        let empty = BTreeMap::new();
        let found = found.get(rule).unwrap_or(&empty);
        let listed = listed.get(rule).unwrap_or(&empty);
        let places: BTreeSet<&String> = found.keys().chain(listed.keys()).collect();
        for place in places {
            let is = found.get(place).copied().unwrap_or(0);
            let may = listed.get(place).copied().unwrap_or(0);
            let advice = match is.cmp(&may) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Greater => "make it smaller",
                std::cmp::Ordering::Less if is == 0 => "take it off the list",
                std::cmp::Ordering::Less => "lower the entry",
            };
            let _ = writeln!(
                wrong,
                "{rule}: {place}: {is}, tidy.toml says {may}: {advice}"
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn functions_are_measured_as_rustfmt_lays_them_out() {
    let text = "\
fn short() {
    1;
}
trait Shape {
    fn declared(
        &self,
    ) -> [u8; 4];
    pub(crate) const unsafe fn long(
        &self,
    ) -> u8
    where
        Self: Sized,
    {
        if true {
        }
    }
}
fn one() {}
";
    let found = functions(text);
    assert_eq!(found, [("short".to_owned(), 3), ("long".to_owned(), 9)]);
}

#[test]
fn every_file_of_code_names_its_licence() {
    let has_header = |source: &Source| {
        let mut first = source.text.lines().take(3);
        first.any(|line| line.contains("SPDX-License-Identifier: "))
    };
    for source in sources().iter().filter(|source| source.is_code()) {
        assert!(has_header(source), "{} has no SPDX header", source.path);
    }
}

#[test]
fn nothing_is_left_for_later() {
    // Assembled here so that this file does not violate the rule.
    let words = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|parts| parts.concat());
    for source in sources() {
        for (number, line) in source.text.lines().enumerate() {
            let mut in_line = line.split(|c: char| !c.is_alphanumeric());
            let found = in_line.find(|word| words.iter().any(|banned| banned == word));
            assert_eq!(found, None, "{}:{}: {line}", source.path, number + 1);
        }
    }
}

/// `scripts/test` counts these lines, and shows them at the end.
#[test]
fn tests_that_skip_themselves_say_so_in_one_form() {
    // Assembled here so that this file does not violate the rule.
    let begin = ["\"SKI", "P"].concat();
    for source in sources().iter().filter(|source| source.is_rust()) {
        for (number, line) in source.text.lines().enumerate() {
            let Some((_, rest)) = line.split_once(&begin) else {
                continue;
            };
            let is_named = rest
                .strip_prefix("PED ")
                .is_some_and(|of| of.contains(": "));
            let place = format!("{}:{}", source.path, number + 1);
            assert!(is_named, "{place}: begin with SKIPPED NAME: {line}");
        }
    }
}

/// The workspace crates that a manifest names as dependencies.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut is_dependencies = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependencies = line == "[dependencies]";
        } else if let Some(name) = line.strip_prefix("agewise-").filter(|_| is_dependencies) {
            let is_name = |c: &char| c.is_alphanumeric() || *c == '-';
            found.insert(name.chars().take_while(is_name).collect());
        }
    }
    found
}

#[test]
fn crates_depend_downwards_only() {
    let layer_of = |name: &str| {
        let layer = LAYERS.iter().position(|layer| layer.contains(&name));
        layer.unwrap_or_else(|| panic!("{name} has no layer: give it one in this test"))
    };
    let mut seen = 0;
    for source in sources() {
        let Some(name) = source
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        seen += 1;
        for dependency in dependencies(&source.text) {
            let is_downwards = layer_of(&dependency) < layer_of(name);
            assert!(is_downwards, "{name} depends on {dependency}");
            let is_lab = matches!(dependency.as_str(), "lab" | "kernel");
            let is_free = !is_lab || !WITHOUT_LAB.contains(&name);
            assert!(
                is_free,
                "{name} ships without the lab, yet uses {dependency}"
            );
        }
    }
    assert_eq!(seen, LAYERS.concat().len(), "crates without a manifest");
}

/// Targets of Markdown links that are paths.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_literal = false;
    for line in text.lines() {
        is_literal ^= line.trim_start().starts_with("```");
        if is_literal {
            continue;
        }
        for part in line.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with('#') {
                found.push(target);
            }
        }
    }
    found
}

/// Paths below `docs/` that a text mentions.
fn pages(text: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    let words = text.split(|c| !is_path(c));
    let is_page = |word: &&str| word.starts_with("docs/") && word.ends_with(".md");
    words.filter(is_page).collect()
}

/// The anchors that GitHub generates for the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_and_mentioned_pages_exist() {
    let root = root();
    for source in sources() {
        for page in pages(&source.text) {
            assert!(root.join(page).is_file(), "{}: no {page}", source.path);
        }
        if !source.has_extension(&["md"]) {
            continue;
        }
        let directory = root.join(&source.path).with_file_name("");
        for link in links(&source.text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = directory.join(path);
            assert!(target.exists(), "{}: {link} leads nowhere", source.path);
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a page");
                let has_anchor = anchors(&text).contains(anchor);
                assert!(has_anchor, "{}: {link}: no such heading", source.path);
            }
        }
    }
}
