// SPDX-License-Identifier: Apache-2.0
//! Recognises containers from the path of a cgroup alone.
//!
//! Every run time ends the name of a container's cgroup with the container's id, 64 hexadecimal
//! digits: `cri-containerd-ID.scope`, `crio-ID.scope`, `docker-ID.scope`, `libpod-ID.scope` if
//! systemd creates the cgroups, otherwise `ID`, `crio-ID`, or `SLICE:cri-containerd:ID`. The
//! kubelet puts the uid of the pod into the parent cgroup: `kubepods-burstable-podUID.slice` with
//! `_` for `-`, or `podUID`.

use std::path::Path;

const ID_DIGITS: usize = 64;

/// The cgroup of a container or pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// The container's id; `None` for a pod.
    pub(super) id: Option<&'a str>,
    /// The pod's uid as spelled in the path; `None` for a container without a pod.
    pub(super) pod_uid: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// Parses a path. `None` unless it is the cgroup of a container or pod itself: the cgroups
    /// below are counted in it.
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let mut names = path.iter().rev().map(|name| name.to_str());
        let last = names.next()??;
        // runc's name if it was asked for systemd cgroups but there is no systemd.
        let (slice, last) = match last.split_once(':') {
            Some((slice, rest)) => (Some(slice), rest),
            None => (None, last),
        };
        let Some(id) = id_of(last) else {
            let pod_uid = Some(pod_uid_of(last)?);
            return Some(Place { id: None, pod_uid });
        };
        let above = slice.into_iter().chain(names.flatten());
        Some(Place {
            id: Some(id),
            pod_uid: above.filter_map(pod_uid_of).next(),
        })
    }
}

/// The id at the end of a cgroup name. A monitor's cgroup ends with its container's id too, but is
/// not a container.
fn id_of(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let at = name.len().checked_sub(ID_DIGITS)?;
    let (before, id) = (name.get(..at)?, name.get(at..)?);
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_set_off = before.is_empty() || before.ends_with(['-', ':']);
    let is_monitor = before.ends_with("conmon-");
    (id.bytes().all(is_digit) && is_set_off && !is_monitor).then_some(id)
}

/// The uid of a pod: 36 characters, or 32 digits for pods that the kubelet started from a file.
fn pod_uid_of(name: &str) -> Option<&str> {
    let slice = name.strip_suffix(".slice");
    let uid = match slice {
        Some(slice) => slice.rsplit_once("-pod")?.1,
        None => name.strip_prefix("pod")?,
    };
    let dash = if slice.is_some() { b'_' } else { b'-' };
    let is_of_uid = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f') || byte == dash;
    (matches!(uid.len(), 32 | 36) && uid.bytes().all(is_of_uid)).then_some(uid)
}

/// The uid in Kubernetes' spelling.
pub(super) fn plain_uid(uid: &str) -> String {
    uid.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f7c2f0b8a7e5d1c3b9a60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5";
    const UID: &str = "0b0f6a1e-3c1d-4a52-9f0e-7a5b1c2d3e4f";
    const STATIC: &str = "0123456789abcdef0123456789abcdef";

    fn of(path: &str) -> Option<(Option<&str>, Option<String>)> {
        let place = Place::of(Path::new(path))?;
        Some((place.id, place.pod_uid.map(plain_uid)))
    }

    #[test]
    fn containers_of_every_run_time_are_known_by_their_paths() {
        let under = UID.replace('-', "_");
        let pod =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice");
        let of_pod = |path: &str| of(path) == Some((Some(ID), Some(UID.to_owned())));
        assert!(of_pod(&format!("{pod}/cri-containerd-{ID}.scope")));
        assert!(of_pod(&format!("{pod}/crio-{ID}.scope")));
        assert!(of_pod(&format!(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet{}/cri-containerd-{ID}.scope",
            &pod["/kubepods.slice/kubepods-burstable.slice/".len()..]
                .replace("kubepods", "-kubepods")
        )));
        assert!(of_pod(&format!("/kubepods/besteffort/pod{UID}/{ID}")));
        assert!(of_pod(&format!("/kubepods/pod{UID}/crio-{ID}")));
        assert!(of_pod(&format!(
            "/system.slice/containerd.service/kubepods-pod{under}.slice:cri-containerd:{ID}"
        )));
        for alone in [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/machine.slice/libpod-{ID}.scope"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
            format!("/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope"),
        ] {
            assert_eq!(of(&alone), Some((Some(ID), None)), "{alone}");
        }
        assert_eq!(of(&pod), Some((None, Some(UID.to_owned()))));
        let files = format!("/kubepods/burstable/pod{STATIC}");
        assert_eq!(of(&files), Some((None, Some(STATIC.to_owned()))));
    }

    #[test]
    fn the_rest_is_no_container() {
        for path in [
            "/".to_owned(),
            "/system.slice/postgresql.service".to_owned(),
            "/kubepods.slice/kubepods-burstable.slice".to_owned(),
            "/user.slice/user-1000.slice/session-2.scope".to_owned(),
            "/kubepods/burstable/podracer".to_owned(),
            // Its monitor, a cgroup below it, and ids that are invalid.
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/docker/{}", ID.to_uppercase()),
            format!("/docker/x{ID}"),
            format!("/docker/{}", &ID[1..]),
        ] {
            assert_eq!(of(&path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            use std::os::unix::ffi::OsStrExt;
            let _ = Place::of(Path::new(std::ffi::OsStr::from_bytes(&bytes)));
            let name = [String::from_utf8_lossy(&bytes).as_ref(), ID].concat();
            let _ = Place::of(Path::new(&name));
        }
    }
}
