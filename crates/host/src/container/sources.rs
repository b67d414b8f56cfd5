// SPDX-License-Identifier: Apache-2.0
//! Reads the names of containers from files of container run times and the kubelet.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
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
/// Where Docker has its data, unless its configuration says otherwise: installed by packages, as a
/// snap.
pub(super) const DOCKER: [&str; 2] = ["var/lib/docker", "var/snap/docker/common/var-lib-docker"];
pub(super) const DOCKER_CONFIG: &str = "etc/docker/daemon.json";
/// Where Podman has its data, unless its configuration says otherwise.
pub(super) const PODMAN: &str = "var/lib/containers/storage";
pub(super) const PODMAN_CONFIG: &str = "etc/containers/storage.conf";
/// Podman's containers: one file for permanent ones and one for those that end with the boot.
pub(super) const OF_PODMAN: [&str; 4] = [
    "overlay-containers/containers.json",
    "overlay-containers/volatile-containers.json",
    "vfs-containers/containers.json",
    "vfs-containers/volatile-containers.json",
];

/// A run time has no larger files. Podman's lists all its containers, about 2 KiB each.
const FILE_MAX_BYTES: u64 = 32 << 20;
/// Longer names are ignored.
const NAME_MAX_BYTES: usize = 1024;

/// The files at one point in time. Those that cover all containers are read at most once.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    root: &'a Path,
    docker: OnceCell<Vec<PathBuf>>,
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
#[serde(rename_all = "kebab-case")]
struct DockerDaemon {
    data_root: String,
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
            docker: OnceCell::new(),
            podman: OnceCell::new(),
            logs: OnceCell::new(),
        }
    }

    /// The container with this id, according to its run time.
    pub(super) fn container(&self, id: &str) -> Option<Container> {
        let bundle = |path: String| {
            let bundle: Bundle = json(self.root, path.as_ref())?;
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
        let dirs = self.docker.get_or_init(|| docker_dirs(self.root));
        let file = Path::new("containers").join(id).join("config.v2.json");
        let docker: OfDocker = dirs
            .iter()
            .find_map(|dir| json(self.root, &dir.join(&file)))?;
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

fn docker_dirs(root: &Path) -> Vec<PathBuf> {
    let configured = configuration(root, DOCKER_CONFIG)
        .and_then(|config| serde_json::from_slice::<DockerDaemon>(&config).ok())
        .map(|daemon| PathBuf::from(daemon.data_root));
    let usual = DOCKER.iter().map(PathBuf::from);
    configured.into_iter().chain(usual).collect()
}

fn podman(root: &Path) -> HashMap<String, Container> {
    let configured = configuration(root, PODMAN_CONFIG).and_then(|config| graph_root(&config));
    let dir = configured.unwrap_or_else(|| PODMAN.to_owned());
    let all = OF_PODMAN
        .iter()
        .filter_map(|path| json::<Vec<OfPodman>>(root, &Path::new(&dir).join(path)));
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

/// The line `graphroot = "DIRECTORY"` of Podman's `storage.conf`. The rest of the format (TOML) is
/// of no use here.
fn graph_root(config: &[u8]) -> Option<String> {
    let lines = std::str::from_utf8(config).ok()?.lines();
    let mut values = lines.filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "graphroot").then(|| value.trim())
    });
    let value = values.next()?.strip_prefix(['"', '\''])?;
    Some(value.split(['"', '\'']).next()?.to_owned())
}

/// A name given by a user; `None` if it is empty or too long.
fn name(text: &str) -> Option<Untrusted> {
    (1..=NAME_MAX_BYTES)
        .contains(&text.len())
        .then(|| text.into())
}

/// Parses a run time's JSON file. `None` if it is missing, unreadable or not in this format: the
/// caller tries the next.
fn json<T: DeserializeOwned>(root: &Path, path: &Path) -> Option<T> {
    serde_json::from_slice(&text(root, path, OFlags::NOFOLLOW)?).ok()
}

/// Reads a file of `/etc`, which is a link on some distributions.
fn configuration(root: &Path, path: &str) -> Option<Vec<u8>> {
    text(root, path.as_ref(), OFlags::empty())
}

/// Reads a file of the machine whose root is `root`. Links on the way (a moved `/var/lib/docker`,
/// say) lead to where they do for its init, also if our own root is a container's.
fn text(root: &Path, path: &Path, last: OFlags) -> Option<Vec<u8>> {
    let root = File::open(root).ok()?;
    // Never waits for a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | last;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).ok()?;
    let file = File::from(file);
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.len() > FILE_MAX_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut text).ok()?;
    Some(text)
}
