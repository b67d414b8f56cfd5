// SPDX-License-Identifier: Apache-2.0
//! Pods by uid and containers by id, from the names of the kubelet's logs. No file is opened.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::Path;

use super::Container;
use crate::untrusted::Untrusted;

/// Contains one directory per pod, `NAMESPACE_POD_UID`.
pub(super) const PODS: &str = "var/log/pods";
/// Contains one link per container, `POD_NAMESPACE_CONTAINER-ID.log`.
pub(super) const CONTAINERS: &str = "var/log/containers";

/// Most directory entries read: a node has a few thousand at most.
const ENTRIES_MAX: usize = 1 << 16;

/// The names found. If two different names claim one id, neither is trusted.
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

    /// The namespace and name of a pod.
    pub(super) fn pod(&self, uid: &str) -> Option<&Container> {
        self.pods.get(uid)?.as_ref()
    }

    /// The namespace, pod and name of a container.
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

/// The names in a directory; empty if it is missing or unreadable.
fn names(dir: &Path) -> impl Iterator<Item = OsString> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries
        .take(ENTRIES_MAX)
        .filter_map(|entry| Some(entry.ok()?.file_name()))
}

/// Whether Kubernetes allows the name (RFC 1123). Anything else in the directory is not from it.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    !text.is_empty() && text.bytes().all(is_plain)
}

fn known(text: &str) -> Option<&str> {
    is_name(text).then_some(text)
}

/// The three names in `a_b_c`.
fn three(names: &str) -> Option<[&str; 3]> {
    names.split('_').collect::<Vec<_>>().try_into().ok()
}

fn pod(name: &str) -> Option<(String, Container)> {
    let [namespace, pod, uid] = three(name)?;
    let container = Container {
        namespace: Some(Untrusted::from(known(namespace)?)),
        pod: Some(Untrusted::from(known(pod)?)),
        ..Container::default()
    };
    Some((known(uid)?.to_owned(), container))
}

fn container(name: &str) -> Option<(String, Container)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let [pod, namespace, container] = three(names)?;
    let container = Container {
        namespace: Some(Untrusted::from(known(namespace)?)),
        pod: Some(Untrusted::from(known(pod)?)),
        container: Some(Untrusted::from(known(container)?)),
        ..Container::default()
    };
    Some((known(id)?.to_owned(), container))
}
