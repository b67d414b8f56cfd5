// SPDX-License-Identifier: Apache-2.0
//! What names of the kubelet's logs say: pods by uid, containers by id. Nothing is opened.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::Path;

use super::Container;
use crate::untrusted::Untrusted;

/// A directory for each pod, `NAMESPACE_POD_UID`.
pub(super) const PODS: &str = "var/log/pods";
/// A link for each container, `POD_NAMESPACE_CONTAINER-ID.log`.
pub(super) const CONTAINERS: &str = "var/log/containers";

/// Entries of a directory that are looked at: a node has at most some thousand.
const ENTRIES_MAX: usize = 1 << 16;

/// Who is named. Of two different names for one nothing is believed.
#[derive(Debug, Default)]
pub(super) struct Logs {
    pods: HashMap<String, Option<Container>>,
    containers: HashMap<String, Option<Container>>,
}

impl Logs {
    pub(super) fn read(root: &Path) -> Self {
        let mut logs = Logs::default();
        for name in names(&root.join(PODS)) {
            if let Some((uid, pod)) = name.to_str().and_then(pod) {
                enter(&mut logs.pods, uid, pod);
            }
        }
        for name in names(&root.join(CONTAINERS)) {
            if let Some((id, container)) = name.to_str().and_then(container) {
                enter(&mut logs.containers, id, container);
            }
        }
        logs
    }

    /// Namespace and name of a pod.
    pub(super) fn pod(&self, uid: &str) -> Option<&Container> {
        self.pods.get(uid)?.as_ref()
    }

    /// Namespace, pod and name of a container.
    pub(super) fn container(&self, id: &str) -> Option<&Container> {
        self.containers.get(id)?.as_ref()
    }
}

fn enter(map: &mut HashMap<String, Option<Container>>, key: String, value: Container) {
    match map.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(Some(value));
        }
        Entry::Occupied(mut entry) if entry.get().as_ref() != Some(&value) => {
            entry.insert(None);
        }
        Entry::Occupied(_) => {}
    }
}

/// Names in a directory; none of one that is not there or not ours to read.
fn names(dir: &Path) -> impl Iterator<Item = OsString> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries
        .take(ENTRIES_MAX)
        .filter_map(|entry| Some(entry.ok()?.file_name()))
}

/// A name as Kubernetes allows it (RFC 1123): whatever else lies in the directory is none of its.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    !text.is_empty() && text.bytes().all(is_plain)
}

fn known(text: &str) -> Option<&str> {
    is_name(text).then_some(text)
}

fn pod(name: &str) -> Option<(String, Container)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let container = Container {
        namespace: Some(Untrusted::from(known(namespace)?)),
        pod: Some(Untrusted::from(known(pod)?)),
        ..Container::default()
    };
    Some((known(uid)?.to_owned(), container))
}

fn container(name: &str) -> Option<(String, Container)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut parts = names.split('_');
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let container = Container {
        namespace: Some(Untrusted::from(known(namespace)?)),
        pod: Some(Untrusted::from(known(pod)?)),
        container: Some(Untrusted::from(known(container)?)),
        ..Container::default()
    };
    Some((known(id)?.to_owned(), container))
}
