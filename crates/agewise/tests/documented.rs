// SPDX-License-Identifier: Apache-2.0
//! Every command that a document or a help text shows is one that this build accepts.
//!
//! Commands are parsed, not run. Those in blocks of code have to be complete; those within a
//! sentence may leave out arguments that are required, as a sentence names a command.

use std::fs;
use std::path::{Path, PathBuf};

use agewise::cli::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

/// A command as a text shows it, and where.
struct Shown {
    place: String,
    words: Vec<String>,
    in_sentence: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages below the directories that hold documents, and those at the top.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut directories = ["docs", "crates", "packaging", "templates", "traces"]
        .map(|name| root().join(name))
        .to_vec();
    for name in ["README.md", "CONTRIBUTING.md"] {
        pages.push(root().join(name));
    }
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The words of the commands of agewise in a line for a shell: without prompt, comment, other
/// programs, redirections, and the brackets around what may be left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.trim();
    let line = line
        .strip_prefix("$ ")
        .or(line.strip_prefix("# "))
        .unwrap_or(line);
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let mut found = Vec::new();
    for part in line.split([';', '&', '|']).map(str::trim) {
        if !part.starts_with("agewise ") {
            continue;
        }
        let words = shlex::split(part).unwrap_or_else(|| panic!("an open quote: {line}"));
        let until = |word: &&String| !word.starts_with(['<', '>']) && *word != "2>";
        let bare = |word: &String| word.trim_matches(['[', ']']).to_owned();
        found.push(words.iter().take_while(until).map(bare).collect());
    }
    found
}

/// The blocks of code of a page, each line ended, and the rest of it.
fn parts(page: &str) -> (String, String) {
    let (mut code, mut prose) = (String::new(), String::new());
    let mut in_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else {
            let part = if in_block { &mut code } else { &mut prose };
            part.push_str(line);
            part.push('\n');
        }
    }
    (code.replace("\\\n", " "), prose)
}

/// Commands in lines of code, and those between backticks in sentences.
fn shown(place: &str, code: &str, prose: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut add = |text: &str, in_sentence| {
        let new = |words| Shown {
            place: place.to_owned(),
            words,
            in_sentence,
        };
        found.extend(commands(text).into_iter().map(new));
    };
    code.lines().for_each(|line| add(line, false));
    let prose = prose.split_whitespace().collect::<Vec<_>>().join(" ");
    for span in prose.split('`').skip(1).step_by(2) {
        add(span, true);
    }
    found
}

/// What a command line lacks to be accepted, if anything.
fn complaint(shown: &Shown) -> Option<String> {
    let filled = shown.words.iter().map(|word| match word.as_str() {
        "PID" | "N" => "1",
        "COMMAND" => "report",
        // A file of settings has to exist.
        word if word.starts_with('@') => "swappiness=60",
        word => word,
    });
    let error = Cli::try_parse_from(filled).err()?;
    let is_only_named = match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        // An option without its value.
        ErrorKind::InvalidValue => shown
            .words
            .last()
            .is_some_and(|word| word.starts_with("--")),
        _ => false,
    };
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let is_fine = is_help || (shown.in_sentence && is_only_named);
    (!is_fine).then(|| format!("{}: {}\n{error}", shown.place, shown.words.join(" ")))
}

fn check(all: &[Shown], at_least_in_code: usize) {
    let in_code = all.iter().filter(|shown| !shown.in_sentence).count();
    assert!(
        in_code >= at_least_in_code,
        "only {in_code} commands found in code"
    );
    let complaints: Vec<_> = all.iter().filter_map(complaint).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn documents_show_commands_that_are_accepted() {
    let mut all = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let (code, prose) = parts(&text);
        all.extend(shown(&page.display().to_string(), &code, &prose));
    }
    check(&all, 50);
}

#[test]
fn help_shows_commands_that_are_accepted() {
    let mut left = vec![Cli::command()];
    let mut all = Vec::new();
    while let Some(mut command) = left.pop() {
        let place = format!("help of {}", command.get_name());
        let help = command.render_long_help().to_string();
        let is_code = |line: &&str| line.starts_with("  agewise ");
        let code: Vec<_> = help.lines().filter(is_code).collect();
        all.extend(shown(&place, &code.join("\n"), &help));
        left.extend(command.get_subcommands().cloned());
    }
    check(&all, 3);
}

#[test]
fn the_table_of_the_front_page_has_every_command() {
    let page = fs::read_to_string(root().join("README.md")).expect("a page");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let first_cells = rows.filter_map(|row| row.split('|').nth(1));
    let named: Vec<&str> = first_cells.flat_map(|cell| cell.split('`')).collect();
    let command = Cli::command();
    let shown = command.get_subcommands().filter(|of| !of.is_hide_set());
    for name in shown.map(clap::Command::get_name) {
        // For shells and packages.
        let is_generator = ["completions", "man"].contains(&name);
        assert!(is_generator || named.contains(&name), "{name} has no row");
    }
}
