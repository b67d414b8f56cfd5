// SPDX-License-Identifier: Apache-2.0
//! What `make install` and the packages install.

use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Installs this build below `root`; returns the output of the script.
fn install(prefix: &str, root: &Path) -> String {
    let output = Command::new(repository().join("scripts/install"))
        .arg(env!("CARGO_BIN_EXE_agewise"))
        .args([prefix, root.to_str().unwrap()])
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaint}");
    said
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The source paths of the assets of both package formats, below the tree that is packed.
fn assets() -> Vec<String> {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let manifest: Table = manifest.unwrap().parse().unwrap();
    let metadata = &manifest["package"]["metadata"];
    let assets = |kind: &str| metadata[kind]["assets"].as_array().unwrap().clone();
    let source = |asset: Value| match &asset {
        Value::Array(columns) => columns[0].as_str().unwrap().to_owned(),
        table => table["source"].as_str().unwrap().to_owned(),
    };
    let both = assets("deb").into_iter().chain(assets("generate-rpm"));
    both.map(source)
        .map(|source| {
            let below = source.strip_prefix("../../target/dist/root/");
            below.unwrap_or_else(|| panic!("{source}")).to_owned()
        })
        .collect()
}

#[test]
fn packages_hold_only_what_is_installed_and_all_of_it() {
    let root = tempfile::tempdir().unwrap();
    install("/usr", root.path());
    let mut packed: Vec<PathBuf> = Vec::new();
    for asset in assets() {
        match asset.strip_suffix("/*") {
            Some(directory) => {
                let mut files = files_in(&root.path().join(directory));
                files.retain(|file| file.is_file());
                assert!(!files.is_empty(), "{directory} is empty");
                packed.extend(files);
            }
            None => packed.push(root.path().join(asset)),
        }
    }
    for file in &packed {
        let meta = file.metadata();
        let meta = meta.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(meta.is_file(), "{}", file.display());
        let modified = meta.modified().unwrap();
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_secs(), 1_700_000_000, "{}", file.display());
    }
    let mut left = vec![root.path().to_owned()];
    while let Some(directory) = left.pop() {
        for path in files_in(&directory) {
            if path.is_dir() {
                left.push(path);
            } else {
                assert!(
                    packed.contains(&path),
                    "{} is in no package",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn what_is_installed_fits_together() {
    let root = tempfile::tempdir().unwrap();
    let said = install("/opt/agewise", root.path());
    let below = |path: &str| root.path().join(path.trim_start_matches('/'));
    let unit = below("/opt/agewise/lib/systemd/system/agewise.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let words: Vec<&str> = start.unwrap().split_whitespace().collect();
    assert_eq!(words[1..3], ["daemon", "--config"], "{words:?}");
    assert!(!unit.contains("/usr/bin/agewise"), "{unit}");
    let program = Command::new(below(words[0])).arg("--version").output();
    assert!(program.unwrap().status.success());
    let config = below(words[3]);
    let check = Command::new(below(words[0]))
        .args(["config", "check"])
        .arg(&config)
        .output();
    assert!(check.unwrap().status.success());
    for manual in ["agewise", "agewise-daemon", "agewise-report"] {
        let path = format!("/opt/agewise/share/man/man1/{manual}.1.gz");
        assert!(below(&path).is_file(), "{path}: {said}");
    }

    std::fs::write(&config, "# mine\n").unwrap();
    let said = install("/opt/agewise", root.path());
    assert!(said.contains("install: kept"), "{said}");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "# mine\n");
}

/// The example with its output paths and listening addresses moved into `directory`.
fn at_home(example: &Path, directory: &Path) -> PathBuf {
    let text = std::fs::read_to_string(example).unwrap();
    let mut config: Table = text.parse().unwrap();
    config.insert("journal".to_owned(), Value::Table(Table::new()));
    if let Some(metrics) = config.get_mut("metrics") {
        let socket = format!("unix:{}/metrics.sock", directory.display());
        let metrics = metrics.as_table_mut().unwrap();
        metrics.insert("listen".to_owned(), Value::String(socket));
    }
    let path = directory.join("agewise.toml");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn every_example_with_metrics_has_the_bounds_of_the_recording_rules() {
    for example in files_in(&repository().join("packaging/examples")) {
        let config: Table = std::fs::read_to_string(&example).unwrap().parse().unwrap();
        if !config.contains_key("metrics") {
            continue;
        }
        let observe = config.get("observe").and_then(Value::as_table);
        let Some(bounds) = observe.and_then(|observe| observe.get("intervals")) else {
            continue;
        };
        let bounds: Vec<&str> = bounds.as_str().unwrap().split(',').collect();
        for bound in ["2m", "10m"] {
            assert!(bounds.contains(&bound), "{}: {bound}", example.display());
        }
    }
}

/// `recommend` reads the daemon's histories, and cannot add to them what was not followed.
#[test]
fn the_example_for_sizing_counts_page_cache() {
    let example = repository().join("packaging/examples/database-server.toml");
    let config: Table = std::fs::read_to_string(example).unwrap().parse().unwrap();
    assert_eq!(config["observe"]["files"], Value::Boolean(true));
}

#[test]
fn every_example_is_good_and_starts() {
    let mut examples = files_in(&repository().join("packaging/examples"));
    examples.sort();
    for example in examples {
        let name = example.display();
        let check = Command::new(env!("CARGO_BIN_EXE_agewise"))
            .args(["config", "check"])
            .arg(&example)
            .output()
            .unwrap();
        assert!(check.status.success(), "{name}: {check:?}");
        let directory = tempfile::tempdir().unwrap();
        let daemon = Command::new(env!("CARGO_BIN_EXE_agewise"))
            .args(["daemon", "--dry-run", "--ticks", "1", "--config"])
            .arg(at_home(&example, directory.path()))
            .env("STATE_DIRECTORY", directory.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&daemon.stderr);
        let journal = String::from_utf8_lossy(&daemon.stdout);
        // An ordinary user can look, but not at single pages, which acting needs.
        if daemon.status.code() == Some(78) && said.contains("the age of single pages") {
            println!("SKIPPED every_example_starts: {name}: {said}");
            continue;
        }
        assert!(daemon.status.success(), "{name}: {said}{journal}");
        assert!(
            journal.contains("\"record\":\"start\""),
            "{name}: {journal}"
        );
    }
}

/// Otherwise `config check` calls a configuration good with which nobody can connect.
#[test]
fn what_opens_the_unit_to_other_machines_is_named_beside_the_key_that_needs_it() {
    let read = |path: &Path| std::fs::read_to_string(repository().join(path)).unwrap();
    let systemd = Path::new("packaging/systemd");
    if !read(&systemd.join("agewise.service")).contains("\nIPAddressDeny=") {
        return;
    }
    let drop_in = read(&systemd.join("agewise.service.d/remote.conf.example"));
    assert!(drop_in.contains("\nIPAddressAllow="), "{drop_in}");
    let mut texts = files_in(&repository().join("packaging/examples"));
    texts.push("packaging/agewise.toml".into());
    texts.push("docs/use/metrics.md".into());
    for path in texts {
        let text = read(&path);
        let paragraphs = text.split("\n\n");
        let is_named = |of: &str| !of.contains("allow_remote =") || of.contains("remote.conf");
        assert!(paragraphs.into_iter().all(is_named), "{}", path.display());
    }
}

/// The profile of container run times denies `/proc/PID/maps` of everything outside of containers,
/// and `/proc/1/root`, where the names of containers are.
#[test]
fn no_profile_of_apparmor_confines_what_looks_at_the_node() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).unwrap();
    let base = read("packaging/kubernetes/agewise.yaml");
    let count = |text: &str| base.matches(text).count();
    let unconfined = "appArmorProfile:\n              type: Unconfined\n";
    assert_eq!(count(unconfined), count("securityContext:"), "{base}");
    for path in ["docs/use/install.md", "scripts/test-containers"] {
        let text = read(path);
        assert!(text.contains("apparmor=unconfined"), "{path}");
    }
}

/// It reports what no restart cures: the pod would be killed again and again.
#[test]
fn no_liveness_probe_asks_for_health() {
    for path in [
        "kubernetes/agewise.yaml",
        "helm/agewise/templates/daemonset.yaml",
    ] {
        let text = std::fs::read_to_string(repository().join("packaging").join(path)).unwrap();
        let (_, probe) = text.split_once("livenessProbe:").unwrap();
        let asked = probe
            .lines()
            .find(|line| line.contains("httpGet:"))
            .unwrap();
        assert!(asked.contains("path: /livez,"), "{path}: {asked}");
    }
}

/// `kubectl apply --kustomize` creates none by itself.
#[test]
fn the_kustomize_base_has_the_namespace_it_names() {
    let base = repository().join("packaging/kubernetes");
    let read = |name: &str| std::fs::read_to_string(base.join(name)).unwrap();
    let base = read("kustomization.yaml");
    let namespace = base
        .lines()
        .find_map(|line| line.strip_prefix("namespace: "));
    assert!(base.contains("\n  - namespace.yaml\n"), "{base}");
    let name = format!(
        "\nkind: Namespace\nmetadata:\n  name: {}\n",
        namespace.unwrap()
    );
    assert!(read("namespace.yaml").contains(&name));
}
