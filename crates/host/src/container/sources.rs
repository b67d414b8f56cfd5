// SPDX-License-Identifier: Apache-2.0
//! Reads the names of containers from files of container run times and the kubelet.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Container;
use super::logs::Logs;
use crate::untrusted::Untrusted;

/// containerd's directories with one bundle per running Kubernetes container, named by its id:
/// containerd alone, within k3s and RKE2, k0s, MicroK8s.
pub(super) const CONTAINERD: [&str; 4] = [
    "run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io",
    "run/k0s/containerd/io.containerd.runtime.v2.task/k8s.io",
    "var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io",
];
/// The same for CRI-O, which keeps its bundles where Podman does.
pub(super) const CRI_O: &str = "run/containers/storage/overlay-containers";
/// Docker's containers, one directory each.
pub(super) const DOCKER: &str = "var/lib/docker/containers";
/// Podman's containers: one file for permanent ones and one for those that end with the boot.
pub(super) const PODMAN: [&str; 4] = [
    "var/lib/containers/storage/overlay-containers/containers.json",
    "var/lib/containers/storage/overlay-containers/volatile-containers.json",
    "var/lib/containers/storage/vfs-containers/containers.json",
    "var/lib/containers/storage/vfs-containers/volatile-containers.json",
];

/// A run time has no larger files. Podman's lists all its containers, about 2 KiB each.
const FILE_MAX_BYTES: u64 = 32 << 20;
/// Longer names are ignored.
const NAME_MAX_BYTES: usize = 1024;

/// The files at one point in time. Those that cover all containers are read at most once.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    root: &'a Path,
    podman: OnceCell<HashMap<String, Container>>,
    logs: OnceCell<Logs>,
}

/// The part of a bundle's `config.json` (OCI runtime specification) that names its container. The
/// rest, including the environment of its program, is not kept.
#[derive(Deserialize)]
struct Bundle {
    #[serde(default)]
    annotations: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfDocker {
    name: String,
    config: DockerConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerConfig {
    #[serde(default)]
    image: String,
    labels: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
struct OfPodman {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    /// JSON inside a string.
    #[serde(default)]
    metadata: String,
}

#[derive(Default, Deserialize)]
struct PodmanMetadata {
    #[serde(rename = "image-name", default)]
    image: String,
}

impl<'a> Sources<'a> {
    pub(super) fn new(root: &'a Path) -> Self {
        Sources {
            root,
            podman: OnceCell::new(),
            logs: OnceCell::new(),
        }
    }

    /// The container with this id, according to its run time.
    pub(super) fn container(&self, id: &str) -> Option<Container> {
        let bundle = |path: String| {
            let bundle: Bundle = json(&self.root.join(path))?;
            of_annotations(&bundle.annotations)
        };
        let mut of_containerd = CONTAINERD
            .iter()
            .filter_map(|dir| bundle(format!("{dir}/{id}/config.json")));
        of_containerd
            .next()
            .or_else(|| bundle(format!("{CRI_O}/{id}/userdata/config.json")))
            .or_else(|| self.docker(id))
            .or_else(|| {
                self.podman
                    .get_or_init(|| podman(self.root))
                    .get(id)
                    .cloned()
            })
    }

    /// The names found in the kubelet's log directories.
    pub(super) fn logs(&self) -> &Logs {
        self.logs.get_or_init(|| Logs::read(self.root))
    }

    fn docker(&self, id: &str) -> Option<Container> {
        let path = self.root.join(DOCKER).join(id).join("config.v2.json");
        let docker: OfDocker = json(&path)?;
        let image = name(&docker.config.image);
        let of_kubernetes = docker
            .config
            .labels
            .and_then(|labels| of_annotations(&labels));
        Some(match of_kubernetes {
            Some(container) => Container { image, ..container },
            None => Container {
                container: name(docker.name.trim_start_matches('/')),
                image,
                ..Container::default()
            },
        })
    }
}

/// Reads the annotations of a bundle, or labels; `None` if they are not from Kubernetes. A sandbox,
/// which owns the pod's namespaces, is not one of its containers and has no name.
fn of_annotations(all: &HashMap<String, String>) -> Option<Container> {
    let get = |keys: [&str; 2]| {
        keys.iter()
            .find_map(|key| all.get(*key))
            .and_then(|text| name(text))
    };
    let kind = [
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri-o.ContainerType",
        "io.kubernetes.docker.type",
    ];
    let mut kinds = kind.iter().filter_map(|key| all.get(*key));
    let is_sandbox = kinds.any(|kind| kind == "sandbox" || kind == "podsandbox");
    let container = get([
        "io.kubernetes.cri.container-name",
        "io.kubernetes.container.name",
    ]);
    let found = Container {
        namespace: get([
            "io.kubernetes.cri.sandbox-namespace",
            "io.kubernetes.pod.namespace",
        ]),
        pod: get(["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]),
        container: container.filter(|_| !is_sandbox),
        container_id: None,
        image: get([
            "io.kubernetes.cri.image-name",
            "io.kubernetes.cri-o.ImageName",
        ]),
    };
    (found.pod.is_some() || found.container.is_some()).then_some(found)
}

fn podman(root: &Path) -> HashMap<String, Container> {
    let all = PODMAN
        .iter()
        .filter_map(|path| json::<Vec<OfPodman>>(&root.join(path)));
    let named = all.flatten().map(|of| {
        let metadata = serde_json::from_str::<PodmanMetadata>(&of.metadata).unwrap_or_default();
        let container = Container {
            container: of.names.first().and_then(|text| name(text)),
            image: name(&metadata.image),
            ..Container::default()
        };
        (of.id, container)
    });
    named
        .filter(|(_, found)| found.container.is_some())
        .collect()
}

/// A name given by a user; `None` if it is empty or too long.
fn name(text: &str) -> Option<Untrusted> {
    (1..=NAME_MAX_BYTES)
        .contains(&text.len())
        .then(|| text.into())
}

/// Parses a JSON file. `None` if it is missing, unreadable or not in this format: the caller tries
/// the next.
fn json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    // Neither blocks on a FIFO nor follows a link out of the run time's directory.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.len() > FILE_MAX_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
