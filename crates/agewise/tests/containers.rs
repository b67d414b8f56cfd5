// SPDX-License-Identifier: Apache-2.0
//! A node full of containers: cgroups with one process each.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::cgroup::Hierarchy;
use agewise_host::root::ProcRoot;

const PODS: usize = 250;
const CONTAINERS: usize = 2;

/// Cgroups as the kubelet and a container runtime create them; each container has a process.
struct Node {
    top: PathBuf,
    children: Vec<Child>,
}

impl Node {
    fn start(top: &Path) -> Option<Self> {
        let mut node = Node {
            top: top.to_owned(),
            children: Vec::new(),
        };
        for number in 0..PODS * CONTAINERS {
            let pod = number / CONTAINERS;
            let uid = format!("{pod:08x}-0000-4000-8000-000000000000");
            let dir = top.join(format!("burstable/pod{uid}/{number:064x}"));
            fs::create_dir_all(&dir).ok()?;
            let mut sleeper = Command::new("sleep");
            let sleeper = sleeper.arg("600").stdin(Stdio::null()).spawn();
            node.children.push(sleeper.ok()?);
            let pid = node.children[number].id().to_string();
            fs::write(dir.join("cgroup.procs"), pid).ok()?;
        }
        Some(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        remove(&self.top);
    }
}

/// Removes cgroups bottom-up; their files go with them.
fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    // The kernel may still be releasing the last process.
    for _ in 0..50 {
        if fs::remove_dir(dir).is_ok() || !dir.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// With the defaults: a busy node must not require raising a limit.
#[test]
fn every_container_of_a_busy_node_has_its_series() {
    let _one = support::one();
    if let Some(why) = support::blind() {
        println!("SKIPPED every_container: {why}");
        return;
    }
    let Ok(hierarchy) = Hierarchy::discover(&ProcRoot::default()) else {
        println!("SKIPPED every_container: no cgroups");
        return;
    };
    let name = format!("kubepods-test-{}", std::process::id());
    let Some(_node) = Node::start(&hierarchy.root.join(&name)) else {
        println!("SKIPPED every_container: no cgroup with processes can be made");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agewise.prom");
    let daemon = support::Daemon::start(&format!(
        "[observe]\ncgroups = ['/{name}/**']\ncpu_percent = 50\n[metrics]\ntextfile = '{}'\n",
        path.display()
    ));
    let began = Instant::now();
    let count = |text: &str, what: &str| text.lines().filter(|l| l.contains(what)).count();
    let text = loop {
        let text = fs::read_to_string(&path).unwrap_or_default();
        // The first look may find some of the many processes before they have memory.
        if count(&text, "agewise_container_info{") == PODS * CONTAINERS {
            break text;
        }
        assert!(
            began.elapsed() < Duration::from_secs(180),
            "{} bytes",
            text.len()
        );
        std::thread::sleep(Duration::from_millis(100));
    };
    let of_containers = |line: &&str| line.contains("/pod") && line.contains(&"0".repeat(60));
    let resident = text
        .lines()
        .filter(|line| line.starts_with("agewise_resident_bytes{"));
    let anon = resident
        .filter(of_containers)
        .filter(|line| line.contains("type=\"anon\""));
    assert!(anon.count() >= PODS * CONTAINERS);
    // Pods get no series of their own beyond the largest, and the output says so.
    assert!(
        text.lines()
            .any(|line| line.starts_with("agewise_targets_cut "))
    );
    assert_eq!(count(&text, "agewise_targets_truncated 0"), 1);
    drop(daemon);
}
