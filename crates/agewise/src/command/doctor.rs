// SPDX-License-Identifier: Apache-2.0
//! `agewise doctor`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use agewise_host::capability::{Capabilities, Capability, Group, State};
use agewise_trace::suggest::nearest;

use agewise_cli::note;
use agewise_cli::output::{self, Format};

/// Report what agewise can do on this machine, and how to fix what it cannot.
///
/// Each line names something that agewise builds on: whether it works here (yes, partly, no), what
/// was found, which kernel version introduced it, and, if something is missing, what helps. A star
/// marks the access source (how accesses are detected) and the mover (how memory is moved) that are
/// used by default. Some features have to be tried, and each trial is undone: the page-table walker
/// is loaded, and if nobody uses DAMON a monitor is set up that is never started.
///
/// The exit status is 0 if observing works, at least in part; 3 if no access source works here, so
/// that nothing can be observed; 4 if something fails that `--need` or `--strict` requires; 1 for
/// an error and 2 for an invalid command line. A probe can use it, or whatever runs before the
/// daemon on a node.
///
/// JSON is one object per line, with the fields group (kernel, machine, source, mover), name, state
/// (available, limited, missing), chosen, since, found and advice; CSV has the same columns.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Names of lines that have to say "yes", separated by commas.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub need: Vec<String>,
    /// The same as `--need btf,cgroup,swap,pagewalk,pageout`: what rules of the daemon need to move
    /// memory. If they also use page cache (`files`) or pressure, add `--need page_cache,psi`.
    #[arg(long)]
    pub strict: bool,
}

/// The columns of CSV.
const COLUMNS: &str = "group,name,state,chosen,since,found,advice";
/// Exit status when nothing can be observed.
const NO_SOURCE: u8 = 3;
/// Exit status when something required fails.
const UNMET: u8 = 4;
/// What `--strict` requires.
const STRICT: [&str; 5] = ["btf", "cgroup", "swap", "pagewalk", "pageout"];

impl Args {
    /// The names of the required lines, without duplicates, in the order given.
    fn needs(&self) -> Vec<&str> {
        let mut needs: Vec<&str> = Vec::new();
        let strict = STRICT.iter().copied().filter(|_| self.strict);
        for need in self.need.iter().map(String::as_str).chain(strict) {
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
        needs
    }
}

/// Returns one line for each unmet need.
///
/// # Errors
/// A need does not name a line of the table.
fn unmet(table: &Capabilities, needs: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for need in needs {
        let named = |line: &&Capability| line.name == *need;
        let mut found = table.lines().iter().filter(named).peekable();
        if found.peek().is_none() {
            agewise_cli::refuse!("--need \"{need}\": no such line; {}", hint(table, need));
        }
        lines.extend(
            found
                .filter(|line| line.state != State::Available)
                .map(|line| {
                    let advice = line.advice.as_ref().map(|advice| format!(" -> {advice}"));
                    let advice = advice.unwrap_or_default();
                    format!(
                        "needed: {need} is {}: {}{advice}",
                        line.state.name(),
                        line.found
                    )
                }),
        );
    }
    Ok(lines)
}

/// The name most similar to one that is not in the table, or else all names.
fn hint(table: &Capabilities, wrong: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for line in table.lines() {
        // Some are both an access source and a mover.
        if !names.contains(&line.name) {
            names.push(line.name);
        }
    }
    match nearest(wrong, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    }
}

/// Prints the table.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let table = Capabilities::of_this_machine();
    let unmet = unmet(&table, &args.needs())?;
    let written = print(args.format, &table);
    for line in &unmet {
        note!("{line}");
    }
    let status = match (table.source(), unmet.is_empty()) {
        (None, _) => ExitCode::from(NO_SOURCE),
        (Some(_), false) => ExitCode::from(UNMET),
        (Some(_), true) => ExitCode::SUCCESS,
    };
    output::status(written, status)
}

fn print(format: Format, table: &Capabilities) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Text => out.write_all(text(table, &Style::of_stdout()).as_bytes())?,
        Format::Json => {
            for line in table.lines() {
                output::json_line(&mut out, line)?;
            }
        }
        Format::Csv => output::csv(&mut out, COLUMNS, table.lines())?,
    }
    Ok(out.flush()?)
}

/// How text is laid out.
struct Style {
    columns: usize,
    colour: bool,
}

impl Style {
    /// Lines fit the terminal; colour only on a terminal without NO_COLOR.
    fn of_stdout() -> Self {
        const COLUMNS: std::ops::RangeInclusive<usize> = 60..=110;
        let is_terminal = io::stdout().is_terminal();
        let width = crossterm::terminal::size().ok().filter(|_| is_terminal);
        let columns = width.map_or(100, |(columns, _)| usize::from(columns));
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            columns: columns.clamp(*COLUMNS.start(), *COLUMNS.end()),
            colour: is_terminal && !no_colour,
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

fn heading(group: Group) -> &'static str {
    match group {
        Group::Kernel => "Kernel",
        Group::Machine => "Machine",
        Group::Source => "Access sources: how accesses become known",
        Group::Mover => "Movers: how memory is moved",
    }
}

fn text(table: &Capabilities, style: &Style) -> String {
    let name_width = table
        .lines()
        .iter()
        .map(|line| line.name.len())
        .max()
        .unwrap_or(0);
    let head = format!("   {:name_width$}  works   since   what was found\n", "");
    let mut text = style.paint("2", &head);
    for group in Group::ALL {
        text += &style.paint("1", heading(group));
        text.push('\n');
        for line in table.lines().iter().filter(|line| line.group == group) {
            text += &text_line(line, name_width, style);
        }
        text.push('\n');
    }
    for sentence in verdict(table) {
        text += &fill(&sentence, style.columns, 0);
    }
    text
}

/// Formats ` * name  yes  6.1  what was found`, followed by the advice on lines of its own.
fn text_line(line: &Capability, name_width: usize, style: &Style) -> String {
    let mark = if line.chosen { "*" } else { " " };
    let (word, colour) = match line.state {
        State::Available => ("yes", "32"),
        State::Limited => ("partly", "33"),
        State::Missing => ("no", "31"),
    };
    let since = line.since.unwrap_or("");
    // Pad before painting: escape sequences have no width.
    let state = style.paint(colour, &format!("{word:6}"));
    let indent = 3 + name_width + 2 + 6 + 2 + 6 + 2;
    let found = fill(&line.found, style.columns, indent);
    let mut text = format!(
        " {mark} {:name_width$}  {state}  {since:6}  {}",
        line.name,
        found.trim_start()
    );
    if let Some(advice) = &line.advice {
        text += &fill(&format!("-> {advice}"), style.columns, indent);
    }
    text
}

/// Summarises the table in a sentence or two.
fn verdict(table: &Capabilities) -> Vec<String> {
    let observing = match table.source() {
        Some(source) if source.state == State::Available => {
            format!(
                "Observing works: {} sees {}.",
                source.name,
                first_clause(&source.found)
            )
        }
        Some(source) => format!(
            "Observing works in part: {} sees {}. See pagewalk above for more.",
            source.name,
            first_clause(&source.found)
        ),
        None => "Observing does not work here: no access source can be used.".to_owned(),
    };
    let moving = match table.mover() {
        Some(mover) if mover.state == State::Available => {
            format!(
                "Moving works: {} moves {}.",
                mover.name,
                first_clause(&mover.found)
            )
        }
        Some(mover) => {
            format!(
                "Moving works in part: {} moves {}.",
                mover.name, mover.found
            )
        }
        None => "Moving memory does not work here: agewise can only observe.".to_owned(),
    };
    vec![observing, moving]
}

fn first_clause(text: &str) -> &str {
    text.split([';', ':']).next().unwrap_or(text)
}

/// Wraps `text` at `columns`, indenting each line. A word that is too long stays whole, so that
/// paths and commands can be copied.
fn fill(text: &str, columns: usize, indent: usize) -> String {
    let mut filled = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > columns {
            filled.push('\n');
            column = 0;
        }
        if column == 0 {
            filled.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else {
            filled.push(' ');
            column += 1;
        }
        filled += word;
        column += length;
    }
    filled.push('\n');
    filled
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use agewise_host::access::AccessError;
    use agewise_host::capability::{Calls, Syscall, System, WalkerFacts};
    use agewise_host::pagecache::hooks::Hook;
    use agewise_host::root::Roots;

    use super::*;

    /// A container on an old kernel: it sees little and can change nothing.
    struct Little;

    impl Calls for Little {
        fn arch(&self) -> &'static str {
            "x86_64"
        }

        fn page_bytes(&self) -> u64 {
            4096
        }

        fn has(&self, call: Syscall) -> bool {
            matches!(call, Syscall::Bpf | Syscall::PidfdOpen)
        }

        fn load_walker(&self) -> Result<WalkerFacts, AccessError> {
            let what = "loading a BPF program".to_owned();
            Err(AccessError::NoPrivilege {
                what,
                hint: "run as root",
            })
        }

        fn load_faults(&self) -> Result<(), AccessError> {
            self.load_walker().map(drop)
        }

        fn load_page_cache(&self) -> Result<Vec<&'static Hook>, AccessError> {
            self.load_walker().map(|_| Vec::new())
        }
    }

    fn little() -> Capabilities {
        let top = tempfile::tempdir().unwrap();
        for (path, content) in [
            ("proc/sys/kernel/osrelease", "5.4.0-42-generic\n"),
            (
                "proc/self/status",
                "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
            ),
            (
                "proc/self/mountinfo",
                "30 22 0:26 / /nowhere/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            (
                "proc/meminfo",
                "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n",
            ),
        ] {
            let path = top.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let roots = Roots::below(top.path());
        Capabilities::probe(&System {
            roots,
            calls: Box::new(Little),
        })
    }

    #[test]
    fn text_is_a_table_that_says_what_to_do() {
        let style = Style {
            columns: 80,
            colour: false,
        };
        insta::assert_snapshot!(text(&little(), &style));
    }

    #[test]
    fn lines_fit_and_colour_changes_nothing_else() {
        let table = little();
        for columns in [60, 80, 110] {
            let plain = text(
                &table,
                &Style {
                    columns,
                    colour: false,
                },
            );
            for line in plain.lines() {
                let is_one_word = line.trim_start().split(' ').count() <= 2;
                assert!(line.chars().count() <= columns || is_one_word, "{line:?}");
                assert_eq!(line.trim_end(), line);
            }
            let painted = text(
                &table,
                &Style {
                    columns,
                    colour: true,
                },
            );
            let mut stripped = painted.clone();
            for code in ["0", "1", "2", "31", "32", "33"] {
                stripped = stripped.replace(&format!("\x1b[{code}m"), "");
            }
            assert_ne!(painted, plain);
            assert_eq!(stripped, plain);
        }
    }

    #[test]
    fn what_is_needed_and_missing_is_named_with_what_helps() {
        let table = little();
        let missing = unmet(&table, &["arch", "swap", "pagewalk"]).unwrap();
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(
            missing[0].starts_with("needed: swap is missing: "),
            "{missing:?}"
        );
        assert!(missing[1].contains(" -> "), "{missing:?}");
        let error = unmet(&table, &["swop"]).unwrap_err().to_string();
        assert!(error.contains("swop") && error.contains("swap"), "{error}");
        let args = Args {
            format: Format::Text,
            need: vec!["swap".to_owned(), "arch".to_owned()],
            strict: true,
        };
        let needs = ["swap", "arch", "btf", "cgroup", "pagewalk", "pageout"];
        assert_eq!(args.needs(), needs);
        for name in STRICT {
            assert!(table.lines().iter().any(|line| line.name == name), "{name}");
        }
    }

    #[test]
    fn csv_has_the_fields_of_json() {
        let table = little();
        let names = table.lines().iter().flat_map(|line| {
            let json = serde_json::to_value(line).unwrap();
            let names = json.as_object().unwrap().keys().cloned();
            names.collect::<Vec<String>>()
        });
        let names: BTreeSet<String> = names.collect();
        assert_eq!(names, COLUMNS.split(',').map(str::to_owned).collect());
    }
}
