// SPDX-License-Identifier: Apache-2.0
//! Completion in shells. The scripts of `agewise completions` ask the program itself, so that also
//! values are completed: cgroups and processes of this machine, policies, workloads, settings.

use std::ffi::OsStr;
use std::path::Path;

use agewise_host::cgroup::{Cgroup, Hierarchy, TreeLimits, name};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_trace::{FORMATS, OutputFormat};
use clap::{Arg, Command, CommandFactory};
use clap_complete::env::{CompleteEnv, EnvCompleter, Shells};
use clap_complete::{ArgValueCompleter, CompletionCandidate, PathCompleter, Shell};

/// The lines of `agewise doctor`, which finds them by trials that a shell should not cause.
const NEEDS: [&str; 24] = [
    "version",
    "arch",
    "privileges",
    "lockdown",
    "btf",
    "bpf",
    "pidfd",
    "process_madvise",
    "pagemap_scan",
    "memory",
    "cgroup",
    "swap",
    "psi",
    "thp",
    "accessed_bits",
    "pagewalk",
    "pagemap",
    "damon",
    "lru_gen",
    "page_faults",
    "page_cache",
    "pageout",
    "cold",
    "memory_reclaim",
];

/// The environment variable with which a script asks; its value is the name of the shell.
const VARIABLE: &str = "AGEWISE_COMPLETE";

/// zsh loads a script from `$fpath` when it first completes for the command, which the script then
/// has to answer as well.
const ZSH_AUTOLOADED: &str = r#"
if [ "$funcstack[1]" = "_agewise" ]; then
    _clap_dynamic_completer_agewise "$@"
fi
"#;

/// Answers a shell that asks for completions, and ends the program. Otherwise does nothing.
pub fn answer() {
    // The library removes it before it asks for values.
    let is_bash = std::env::var_os(VARIABLE).is_some_and(|shell| shell == "bash");
    CompleteEnv::with_factory(|| with_values(crate::cli::Cli::command(), "", is_bash))
        .var(VARIABLE)
        .complete();
}

/// The script that makes a shell ask.
///
/// # Errors
/// The library does not know the shell.
pub fn script(shell: Shell) -> anyhow::Result<Vec<u8>> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let completer: &dyn EnvCompleter = shells
        .completer(&shell.to_string())
        .ok_or_else(|| anyhow::anyhow!("{shell} cannot ask for completions"))?;
    completer.write_registration(VARIABLE, "agewise", "agewise", "agewise", &mut script)?;
    if shell == Shell::Zsh {
        script.extend(ZSH_AUTOLOADED.bytes());
    }
    Ok(script)
}

/// Adds completers to the arguments of a command and of those below it.
fn with_values(command: Command, parent: &str, is_bash: bool) -> Command {
    let this = command.get_name().to_owned();
    let command = command.mut_args(|arg| match completer(&this, parent, &arg, is_bash) {
        Some(completer) => arg.add(completer),
        None => arg,
    });
    command.mut_subcommands(|below| with_values(below, &this, is_bash))
}

/// The completer of an argument, if its values are known only at run time.
fn completer(command: &str, parent: &str, arg: &Arg, is_bash: bool) -> Option<ArgValueCompleter> {
    let is_plain = arg.get_possible_values().is_empty();
    let value = arg.get_value_names().and_then(|names| names.first());
    match (arg.get_id().as_str(), value.map(clap::builder::Str::as_str)) {
        ("cgroup", _) => Some(ArgValueCompleter::new(move |current: &OsStr| {
            cgroups(current, is_bash)
        })),
        ("pid", _) => Some(ArgValueCompleter::new(processes)),
        ("need", _) => Some(of_names(|| texts(NEEDS.iter().copied()))),
        ("to", _) if parent == "trace" => Some(of_names(|| {
            texts(OutputFormat::NAMES.iter().map(|(name, _)| *name))
        })),
        ("trace_format", _) => Some(of_names(|| texts(FORMATS.iter().map(|format| format.name)))),
        (_, Some("TRACE")) => Some(ArgValueCompleter::new(PathCompleter::file())),
        (id, value) if parent == "lab" && is_plain => of_lab(command, id, value),
        _ => None,
    }
}

#[cfg(feature = "lab")]
fn of_lab(command: &str, id: &str, value: Option<&str>) -> Option<ArgValueCompleter> {
    use agewise_lab::experiment::settings::SETTINGS;
    use agewise_lab::machine::Policy;
    use agewise_lab::machine::device::DeviceKind;
    use agewise_lab::reproduce::DOCUMENTS;
    use agewise_lab::workload::library;
    use agewise_lab::yardstick;
    use agewise_policy::proactive::{Controller, POLICIES, Spec};
    use clap_complete::engine::ValueCompleter;

    fn of_colons() -> Vec<String> {
        agewise_lab::experiment::damon::uses()
            .into_iter()
            .flat_map(|(name, _, params)| {
                let own = format!("{name}:");
                let params = params.into_iter();
                let params = params.map(move |(key, _, _)| format!("{own}{key}="));
                std::iter::once(name.to_owned()).chain(params)
            })
            .collect()
    }
    // One that sets limits by the curves of a daemon is not: the lab keeps none.
    fn is_for_lab(policy: &str) -> bool {
        let spec = policy.parse::<Spec>();
        spec.map_or(true, |spec| Controller::new(&spec).shrinks().is_none())
    }
    fn machines() -> Vec<String> {
        let yardsticks = yardstick::beside_kernels().map(|spec| spec.name.to_owned());
        Policy::names().into_iter().chain(yardsticks).collect()
    }
    let names: fn() -> Vec<String> = match (command, id, value) {
        ("curve" | "verify-policies", "policy", _) => || texts(yardstick::all().map(|of| of.name)),
        ("run", "policy", _) => machines,
        (_, "policy", _) => || Policy::names().into_iter().collect(),
        (_, _, Some("KEY=VALUE")) => || SETTINGS.iter().map(|of| format!("{}=", of.key)).collect(),
        (_, "swap", _) => || {
            texts(
                DeviceKind::ALL
                    .map(DeviceKind::name)
                    .into_iter()
                    .chain(["none"]),
            )
        },
        (_, "proactive", _) => || {
            let runs = |name: &&str| is_for_lab(name);
            texts(POLICIES.iter().map(|entry| entry.name).filter(runs))
        },
        (_, "damon", _) => of_colons,
        ("reproduce", "benchmark", _) => || {
            let all = DOCUMENTS
                .iter()
                .flat_map(|document| (document.benchmarks)());
            all.map(|benchmark| benchmark.name).collect()
        },
        ("reproduce", "name", _) => || texts(DOCUMENTS.iter().map(|document| document.name)),
        (_, _, Some("WORKLOAD|TRACE")) => {
            return Some(ArgValueCompleter::new(|current: &OsStr| {
                let mut found = listed(current, texts(library::names()));
                found.extend(PathCompleter::file().complete(current));
                found
            }));
        }
        _ => return None,
    };
    Some(of_names(names))
}

#[cfg(not(feature = "lab"))]
fn of_lab(_command: &str, _id: &str, _value: Option<&str>) -> Option<ArgValueCompleter> {
    None
}

/// A completer of names that are known before the program runs.
fn of_names(names: fn() -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| listed(current, names()))
}

fn texts<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

/// The names that continue the last one of a list, whose elements commas separate.
fn listed(current: &OsStr, names: Vec<String>) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else {
        return Vec::new();
    };
    let (before, last) = current.split_at(current.rfind(',').map_or(0, |at| at + 1));
    let names = names.into_iter().filter(|name| name.starts_with(last));
    names
        .map(|name| CompletionCandidate::new(format!("{before}{name}")))
        .collect()
}

/// The processes with memory of their own whose pid begins like this.
fn processes(current: &OsStr) -> Vec<CompletionCandidate> {
    let proc = ProcRoot::default();
    let Some(current) = current.to_str() else {
        return Vec::new();
    };
    let pids = proc.pids().unwrap_or_default().into_iter();
    let pids = pids.filter(|pid| pid.to_string().starts_with(current));
    let candidate = |pid: u32| {
        let comm = Process::open_user(&proc, pid).ok()?.comm().ok()?;
        let help = comm.terminal().to_string().into();
        Some(CompletionCandidate::new(pid.to_string()).help(Some(help)))
    };
    pids.filter_map(candidate).collect()
}

/// The cgroups whose path begins like this, down to the next level. One that has others below it is
/// offered with a slash as well.
fn cgroups(current: &OsStr, is_bash: bool) -> Vec<CompletionCandidate> {
    let hierarchy = Hierarchy::discover(&ProcRoot::default());
    match (hierarchy, current.to_str()) {
        (Ok(hierarchy), Some(current)) if is_bash => cgroups_in_bash(&hierarchy, current),
        (Ok(hierarchy), Some(current)) => cgroups_in(&hierarchy, current),
        _ => Vec::new(),
    }
}

/// Unlike others, bash passes on a word as it was typed, and takes each answer as if it were typed:
/// a backslash in a name (systemd writes `-` as `\x2d`) is two of them. In single quotes, which
/// bash does not pass on, it is one.
fn cgroups_in_bash(hierarchy: &Hierarchy, current: &str) -> Vec<CompletionCandidate> {
    let meant = current.replace(r"\\", r"\");
    if current.contains('\\') && meant == current {
        return cgroups_in(hierarchy, current);
    }
    let typed = |name: &CompletionCandidate| {
        let name = name.get_value().to_string_lossy().replace('\\', r"\\");
        CompletionCandidate::new(name)
    };
    cgroups_in(hierarchy, &meant).iter().map(typed).collect()
}

fn cgroups_in(hierarchy: &Hierarchy, current: &str) -> Vec<CompletionCandidate> {
    let (dir, _) = current.split_at(current.rfind('/').map_or(0, |at| at + 1));
    let from = if dir.is_empty() { "/" } else { dir };
    let limits = TreeLimits {
        depth_max: 2,
        ..TreeLimits::default()
    };
    let Ok(listing) = Cgroup::open(hierarchy, from).and_then(|top| top.descendants(limits)) else {
        return Vec::new();
    };
    let depth = |path: &Path| path.components().count();
    let top = depth(Path::new(from));
    let mut texts: Vec<String> = Vec::new();
    for cgroup in listing.cgroups.iter().filter(|of| of.has_memory()) {
        let path = cgroup.path();
        if depth(path) == top + 1 {
            texts.push(cgroup.name());
        } else if let Some(parent) = path.parent() {
            // They are sorted, so that this is once for each parent.
            let below = format!("{}/", name::text(parent));
            if texts.last() != Some(&below) {
                texts.push(below);
            }
        }
    }
    let texts = texts.into_iter().filter(|text| text.starts_with(current));
    texts.map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(candidates: &[CompletionCandidate]) -> Vec<&str> {
        let values = candidates.iter().map(CompletionCandidate::get_value);
        values.filter_map(OsStr::to_str).collect()
    }

    #[test]
    fn cgroups_are_offered_level_by_level() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["app/one/deep", "app/two", "apple", "web"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        // No memory is charged to it, so no command takes it.
        std::fs::create_dir(dir.path().join("web/workers")).unwrap();
        std::fs::write(dir.path().join("web/workers/cgroup.controllers"), "cpu\n").unwrap();
        let hierarchy = Hierarchy::at(agewise_host::cgroup::Version::V2, dir.path());
        let of = |current: &str| cgroups_in(&hierarchy, current);
        assert_eq!(values(&of("")), ["/app", "/app/", "/apple", "/web"]);
        assert_eq!(values(&of("/app")), ["/app", "/app/", "/apple"]);
        assert_eq!(values(&of("/app/")), ["/app/one", "/app/one/", "/app/two"]);
        assert_eq!(values(&of("/app/t")), ["/app/two"]);
        assert_eq!(values(&of("/none/")), [""; 0]);
    }

    #[test]
    fn bash_gets_a_backslash_as_it_is_typed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(r"a\x2db.mount")).unwrap();
        let hierarchy = Hierarchy::at(agewise_host::cgroup::Version::V2, dir.path());
        let of = |current: &str| cgroups_in_bash(&hierarchy, current);
        assert_eq!(values(&of("/a")), [r"/a\\x2db.mount"]);
        assert_eq!(values(&of(r"/a\\x")), [r"/a\\x2db.mount"]);
        assert_eq!(values(&of(r"/a\x")), [r"/a\x2db.mount"], "in single quotes");
    }

    #[test]
    fn processes_are_found_by_the_beginning_of_their_pid() {
        let pid = std::process::id().to_string();
        let found = processes(OsStr::new(&pid));
        assert!(values(&found).contains(&pid.as_str()));
        assert!(found[0].get_help().is_some());
        assert_eq!(values(&processes(OsStr::new("x"))), [""; 0]);
    }

    #[test]
    fn every_line_of_doctor_is_offered() {
        let table = agewise_host::capability::Capabilities::of_this_machine();
        for line in table.lines() {
            // Guests are a line only where there are some.
            let is_known = line.name == "guests" || NEEDS.contains(&line.name);
            assert!(is_known, "{}", line.name);
        }
    }

    #[test]
    fn the_last_element_of_a_list_is_completed() {
        let names = || ["lru", "lfu", "opt"].map(str::to_owned).to_vec();
        let of = |current: &str| listed(OsStr::new(current), names());
        assert_eq!(values(&of("l")), ["lru", "lfu"]);
        assert_eq!(values(&of("opt,lr")), ["opt,lru"]);
    }
}
