// SPDX-License-Identifier: Apache-2.0
//! Identifies the container or pod of a cgroup.
//!
//! The path of a container's cgroup contains the container's id. The names for that id are in files
//! of the run time (the bundles of containerd and CRI-O, Docker's and Podman's own files), or in
//! the names of the kubelet's logs. No run time's socket is used: access to one means full control
//! of the machine, and it would add nothing to what the files say.

mod logs;
mod path;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::root::ProcRoot;
use crate::untrusted::Untrusted;
use path::{Place, plain_uid};
use sources::Sources;

/// A container, or a pod, which has no container name or id. A field is `None` if it does not apply
/// or is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The namespace of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Untrusted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Untrusted>,
    /// The name of the container, within its pod or in Docker or Podman. The sandbox of a pod has
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Untrusted>,
    /// The id assigned by its run time, which changes with each restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<Untrusted>,
    /// The image as requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Untrusted>,
}

impl Container {
    /// The output names of the fields, in the order of [`fields`](Self::fields).
    pub const NAMES: [&'static str; 5] = ["namespace", "pod", "container", "container_id", "image"];

    pub fn fields(&self) -> [Option<&Untrusted>; 5] {
        let Container {
            namespace,
            pod,
            container,
            container_id,
            image,
        } = self;
        [namespace, pod, container, container_id, image].map(Option::as_ref)
    }

    /// A display name: `NAMESPACE/POD/CONTAINER`, as far as known; `None` if nothing is.
    pub fn title(&self) -> Option<Untrusted> {
        let parts = [&self.namespace, &self.pod, &self.container];
        let parts: Vec<&[u8]> = parts
            .into_iter()
            .flatten()
            .map(Untrusted::as_bytes)
            .collect();
        (!parts.is_empty()).then(|| Untrusted::from(&*parts.join(&b'/')))
    }

    /// Fills unknown fields from `other`.
    fn or(self, other: Container) -> Container {
        Container {
            namespace: self.namespace.or(other.namespace),
            pod: self.pod.or(other.pod),
            container: self.container.or(other.container),
            container_id: self.container_id.or(other.container_id),
            image: self.image.or(other.image),
        }
    }

    fn is_of(&self, pod: &Container) -> bool {
        (&self.namespace, &self.pod) == (&pod.namespace, &pod.pod)
    }

    /// Only the pod of this container.
    fn pod_of_it(&self) -> Container {
        Container {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            ..Container::default()
        }
    }
}

/// The containers of a machine. What was found about a cgroup is kept for as long as callers ask
/// for it.
#[derive(Debug)]
pub struct Containers {
    root: PathBuf,
    looks: u64,
    known: HashMap<PathBuf, Known>,
}

#[derive(Debug)]
struct Known {
    container: Container,
    /// The last look that asked for it.
    seen: u64,
    /// The look at which to search again; `None` if nothing is missing.
    again: Option<u64>,
    /// Looks until then.
    wait: u64,
}

/// A missing name is searched for at the next look, then less and less often, up to this many looks
/// apart.
const WAIT_MAX: u64 = 64;

impl Containers {
    /// Creates it for the machine with this `/proc`.
    pub fn new(proc: &ProcRoot) -> Self {
        Containers {
            root: host_root(proc),
            looks: 0,
            known: HashMap::new(),
        }
    }

    /// Returns the container or pod of each of these cgroups, given by path below the hierarchy;
    /// `None` for any other cgroup. Forgets the cgroups that are not among them.
    pub fn look<'a>(
        &mut self,
        cgroups: impl IntoIterator<Item = &'a Path>,
    ) -> Vec<Option<Container>> {
        self.looks += 1;
        let root = self.root.clone();
        let sources = Sources::new(&root);
        let places = cgroups.into_iter().map(|path| (path, Place::of(path)));
        let places: Vec<_> = places.collect();
        let find = |(path, place): &(&Path, Option<Place<'_>>)| {
            place.map(|place| self.find(path, place, &sources))
        };
        let mut found: Vec<Option<Container>> = places.iter().map(find).collect();
        self.known.retain(|_, known| known.seen == self.looks);
        name_pods(&places, &mut found);
        found
    }

    fn find(&mut self, path: &Path, place: Place<'_>, sources: &Sources<'_>) -> Container {
        let looks = self.looks;
        let mut wait = 1;
        if let Some(known) = self.known.get_mut(path) {
            known.seen = looks;
            if known.again.is_none_or(|again| again > looks) {
                return known.container.clone();
            }
            wait = (known.wait * 2).min(WAIT_MAX);
        }
        let (container, is_whole) = find(place, sources);
        let known = Known {
            container: container.clone(),
            seen: looks,
            again: (!is_whole).then_some(looks + wait),
            wait,
        };
        self.known.insert(path.to_owned(), known);
        container
    }
}

/// Returns what the files say, and whether nothing is missing.
fn find(place: Place<'_>, sources: &Sources<'_>) -> (Container, bool) {
    let uid = place.pod_uid.map(plain_uid);
    let Some(id) = place.id else {
        let pod = uid.and_then(|uid| sources.logs().pod(&uid).cloned());
        return (pod.clone().unwrap_or_default(), pod.is_some());
    };
    let by_id = Container {
        container_id: Some(id.into()),
        ..Container::default()
    };
    if let Some(found) = sources.container(id) {
        return (by_id.or(found), true);
    }
    let logs = sources.logs();
    match (
        logs.container(id),
        uid.and_then(|uid| logs.pod(&uid).cloned()),
    ) {
        // If the link and the path disagree on the pod, neither is trusted.
        (Some(container), Some(pod)) if container.is_of(&pod) => {
            (by_id.or(container.clone()), true)
        }
        (Some(_), Some(_)) => (by_id, false),
        (Some(container), None) => (by_id.or(container.clone()), true),
        (None, Some(pod)) => (by_id.or(pod), false),
        (None, None) => (by_id, false),
    }
}

/// Pods without a log get the names that their containers know.
fn name_pods(places: &[(&Path, Option<Place<'_>>)], found: &mut [Option<Container>]) {
    let uids = || {
        places
            .iter()
            .map(|(_, place)| place.and_then(|place| place.pod_uid))
    };
    let mut pods: HashMap<&str, Container> = HashMap::new();
    for (uid, container) in uids().zip(&*found) {
        if let (Some(uid), Some(container)) = (uid, container)
            && container.pod.is_some()
        {
            pods.insert(uid, container.pod_of_it());
        }
    }
    for (uid, container) in uids().zip(found) {
        let pod = uid.and_then(|uid| pods.get(uid));
        if let (Some(pod), Some(unnamed)) = (pod, container)
            && unnamed.pod.is_none()
        {
            *unnamed = std::mem::take(unnamed).or(pod.clone());
        }
    }
}

/// The root of the machine's own files, as init sees them: ours may be a container's.
fn host_root(proc: &ProcRoot) -> PathBuf {
    let of_init = proc.join("1/root");
    match std::fs::read_dir(&of_init) {
        Ok(_) => of_init,
        Err(_) => PathBuf::from("/"),
    }
}
