// SPDX-License-Identifier: Apache-2.0
//! Containers on made-up machines.

use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const A: &str = "aa00000000000000000000000000000000000000000000000000000000000001";
const B: &str = "bb00000000000000000000000000000000000000000000000000000000000002";
const UID: &str = "0b0f6a1e-3c1d-4a52-9f0e-7a5b1c2d3e4f";
const BUNDLES: &str = sources::CONTAINERD[0];

/// A machine: the files its init process sees.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Machine(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(machine.path("")).unwrap();
        machine
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join("1/root").join(name)
    }

    fn dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn containers(&self) -> Containers {
        Containers::new(&ProcRoot::new(self.0.path()))
    }

    fn bundle(&self, id: &str, annotations: serde_json::Value) {
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"env": ["PASSWORD=secret"], "args": ["/bin/web"]},
            "annotations": annotations,
        });
        self.file(&format!("{BUNDLES}/{id}/config.json"), config.to_string());
    }
}

fn containerd(kind: &str, name: &str) -> serde_json::Value {
    json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.container-name": name,
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-name": "web-7d4b9",
        "io.kubernetes.cri.image-name": "docker.io/library/web:1.2",
    })
}

fn pod() -> String {
    format!("/kubepods/burstable/pod{UID}")
}

fn in_pod(id: &str) -> String {
    format!("{}/{id}", pod())
}

fn look(containers: &mut Containers, paths: &[&str]) -> Vec<Option<Container>> {
    containers.look(paths.iter().map(Path::new))
}

fn of(machine: &Machine, path: &str) -> Container {
    let mut found = look(&mut machine.containers(), &[path]);
    found.remove(0).unwrap()
}

fn container(fields: [&str; 5]) -> Container {
    let [namespace, pod, container, container_id, image] =
        fields.map(|text| (!text.is_empty()).then(|| Untrusted::from(text)));
    Container {
        namespace,
        pod,
        container,
        container_id,
        image,
    }
}

#[test]
fn containerd_names_containers_sandboxes_and_their_pod() {
    let machine = Machine::new();
    machine.bundle(A, containerd("container", "web"));
    machine.bundle(B, containerd("sandbox", ""));
    let (first, second) = (in_pod(A), in_pod(B));
    let found = look(
        &mut machine.containers(),
        &["/", &pod(), &first, &second, "/system.slice/ssh.service"],
    );
    let image = "docker.io/library/web:1.2";
    let web = container(["shop", "web-7d4b9", "web", A, image]);
    let sandbox = container(["shop", "web-7d4b9", "", B, image]);
    let of_pod = container(["shop", "web-7d4b9", "", "", ""]);
    assert_eq!(
        found,
        [None, Some(of_pod), Some(web.clone()), Some(sandbox), None]
    );
    assert_eq!(web.title().unwrap(), "shop/web-7d4b9/web");
    assert_eq!(container(["", "", "", A, ""]).title(), None);
}

#[test]
fn every_run_time_is_read_where_it_keeps_its_names() {
    let machine = Machine::new();
    for dir in sources::CONTAINERD {
        let id = A.replace("aa", &format!("{:02x}", dir.len()));
        let config = json!({"annotations": containerd("container", "web")});
        machine.file(&format!("{dir}/{id}/config.json"), config.to_string());
        assert_eq!(of(&machine, &in_pod(&id)).container.unwrap(), "web");
    }
    let crio = json!({"annotations": {
        "io.kubernetes.container.name": "db",
        "io.kubernetes.pod.name": "db-0",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.cri-o.ImageName": "quay.io/db:9",
        "io.kubernetes.cri-o.ContainerType": "container",
    }});
    machine.file(
        &format!("{}/{B}/userdata/config.json", sources::CRI_O),
        crio.to_string(),
    );
    let db = container(["shop", "db-0", "db", B, "quay.io/db:9"]);
    assert_eq!(of(&machine, &format!("/kubepods/pod{UID}/crio-{B}")), db);

    let docker = json!({"Name": "/cache", "Config": {"Image": "redis:7", "Labels": {}}});
    machine.file(
        &format!("{}/containers/{A}/config.v2.json", sources::DOCKER[0]),
        docker.to_string(),
    );
    let cache = container(["", "", "cache", A, "redis:7"]);
    assert_eq!(
        of(&machine, &format!("/system.slice/docker-{A}.scope")),
        cache
    );
    let labels = json!({
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.name": "a",
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.docker.type": "podsandbox",
    });
    let docker = json!({"Name": "/k8s_POD_a", "Config": {"Image": "pause", "Labels": labels}});
    machine.file(
        &format!("{}/containers/{A}/config.v2.json", sources::DOCKER[0]),
        docker.to_string(),
    );
    assert_eq!(
        of(&machine, &in_pod(A)),
        container(["shop", "a", "", A, "pause"])
    );

    let metadata = "{\"image-name\":\"localhost/job:1\"}";
    let podman = |id: &str| json!([{"id": id, "names": ["job"], "metadata": metadata}]);
    for (at, path) in sources::OF_PODMAN.iter().enumerate() {
        let id = B.replace("bb", &format!("c{at}"));
        machine.file(
            &format!("{}/{path}", sources::PODMAN),
            podman(&id).to_string(),
        );
        let job = container(["", "", "job", &id, "localhost/job:1"]);
        assert_eq!(
            of(&machine, &format!("/machine.slice/libpod-{id}.scope")),
            job
        );
    }
}

#[test]
fn docker_and_podman_are_read_where_they_are_configured_to_be() {
    let machine = Machine::new();
    let docker = json!({"Name": "/cache", "Config": {"Image": "redis:7"}});
    let name = "containers/{A}/config.v2.json".replace("{A}", A);
    let at = |dir: &str| machine.file(&format!("{dir}/{name}"), docker.to_string());
    let alone = container(["", "", "", A, ""]);
    let cache = container(["", "", "cache", A, "redis:7"]);
    let path = format!("/docker/{A}");
    let file = at("data/docker");
    for config in [
        "",
        "{}",
        "{\"data-root\": 7}",
        "{\"data-root\": \"/other\"}",
    ] {
        machine.file(sources::DOCKER_CONFIG, config);
        assert_eq!(of(&machine, &path), alone, "{config}");
    }
    machine.file(
        sources::DOCKER_CONFIG,
        "{\"debug\": true, \"data-root\": \"/data/docker\"}",
    );
    assert_eq!(of(&machine, &path), cache);
    std::fs::remove_file(file).unwrap();
    at(sources::DOCKER[1]);
    assert_eq!(of(&machine, &path), cache, "as a snap");

    let podman = json!([{"id": B, "names": ["job"], "metadata": ""}]);
    machine.file(
        &format!("data/{}", sources::OF_PODMAN[0]),
        podman.to_string(),
    );
    let path = format!("/machine.slice/libpod-{B}.scope");
    for config in [
        &b""[..],
        b"graphroot",
        b"graphroot = 7\n",
        b"#graphroot = \"/data\"\n",
        b"\xff",
    ] {
        machine.file(sources::PODMAN_CONFIG, config);
        assert_eq!(of(&machine, &path), container(["", "", "", B, ""]));
    }
    let config = "[storage]\ndriver = \"overlay\"\n graphroot = \"/data\" # large\n";
    machine.file(sources::PODMAN_CONFIG, config);
    let job = container(["", "", "job", B, ""]);
    assert_eq!(of(&machine, &path), job);
    // Links are the machine's: an absolute one does not lead out of it.
    machine.file("store/storage.conf", config);
    let file = machine.path(sources::PODMAN_CONFIG);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/store/storage.conf", &file).unwrap();
    std::fs::rename(machine.path("data"), machine.path("moved")).unwrap();
    std::os::unix::fs::symlink("/moved", machine.path("data")).unwrap();
    assert_eq!(of(&machine, &path), job, "by links");
}

#[test]
fn without_a_run_time_the_logs_of_the_kubelet_do() {
    let machine = Machine::new();
    machine.dir(format!("{}/shop_web-7d4b9_{UID}/web", logs::PODS));
    machine.file(
        &format!("{}/web-7d4b9_shop_web-{A}.log", logs::CONTAINERS),
        "",
    );
    assert_eq!(
        of(&machine, &in_pod(A)),
        container(["shop", "web-7d4b9", "web", A, ""])
    );
    // For a container without a link, only its pod is known.
    assert_eq!(
        of(&machine, &in_pod(B)),
        container(["shop", "web-7d4b9", "", B, ""])
    );
    assert_eq!(
        of(&machine, &pod()),
        container(["shop", "web-7d4b9", "", "", ""])
    );
    // The run time takes precedence over logs.
    machine.bundle(
        A,
        json!({"io.kubernetes.pod.name": "b", "io.kubernetes.container.name": "c"}),
    );
    assert_eq!(of(&machine, &in_pod(A)), container(["", "b", "c", A, ""]));
}

#[test]
fn logs_that_lie_are_not_believed() {
    let machine = Machine::new();
    machine.dir(format!("{}/shop_web_{UID}", logs::PODS));
    machine.file(&format!("{}/other_shop_web-{A}.log", logs::CONTAINERS), "");
    let alone = container(["", "", "", A, ""]);
    assert_eq!(of(&machine, &in_pod(A)), alone, "a link of another pod");
    machine.dir(format!("{}/shop_twin_{UID}", logs::PODS));
    assert_eq!(
        of(&machine, &pod()),
        Container::default(),
        "two pods of one uid"
    );
    for name in ["a_b", "a_b_c_d", "A_b_c", "_b_c", "a_b_", "a b_c_d"] {
        machine.dir(format!("{}/{name}", logs::PODS));
    }
    let strange = std::ffi::OsStr::from_bytes(b"a_\xff\x1b_c");
    machine.dir(Path::new(logs::PODS).join(strange));
    let logs = logs::Logs::read(&machine.path(""));
    for uid in ["b", "c", "d", "c_d", ""] {
        assert_eq!(logs.pod(uid), None, "{uid}");
    }
}

#[test]
fn files_that_are_none_hold_nobody_up() {
    let machine = Machine::new();
    let alone = container(["", "", "", A, ""]);
    let path = format!("{BUNDLES}/{A}/config.json");
    for content in [
        &b""[..],
        b"{",
        b"[]",
        b"{\"annotations\":7}",
        b"\xff\xfe",
        b"{}",
    ] {
        machine.file(&path, content);
        assert_eq!(of(&machine, &in_pod(A)), alone, "{content:?}");
    }
    let file = machine.path(&path);
    std::fs::remove_file(&file).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(of(&machine, &in_pod(A)), alone, "a FIFO");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert_eq!(of(&machine, &in_pod(A)), alone, "a device");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert_eq!(of(&machine, &in_pod(A)), alone, "a directory");
    // A name longer than the limit.
    std::fs::remove_dir(&file).unwrap();
    machine.bundle(A, containerd("container", &"x".repeat(5000)));
    assert_eq!(of(&machine, &in_pod(A)).container, None);
}

#[test]
fn what_comes_late_is_found_and_what_is_known_stays() {
    let machine = Machine::new();
    let mut containers = machine.containers();
    let path = in_pod(A);
    let mut name = || {
        look(&mut containers, &[&path])[0]
            .clone()
            .unwrap()
            .container
    };
    assert_eq!(name(), None);
    machine.bundle(A, containerd("container", "web"));
    assert_eq!(name().unwrap(), "web");
    std::fs::remove_dir_all(machine.path(BUNDLES)).unwrap();
    for _ in 0..10 {
        assert_eq!(name().unwrap(), "web");
    }
    look(&mut containers, &[]);
    assert_eq!(
        look(&mut containers, &[&path])[0]
            .clone()
            .unwrap()
            .container,
        None
    );
    // Retries after one look, then two, four ... up to 64.
    machine.bundle(A, containerd("container", "web"));
    std::fs::rename(machine.path(BUNDLES), machine.path("away")).unwrap();
    for _ in 0..200 {
        look(&mut containers, &[&path]);
    }
    std::fs::rename(machine.path("away"), machine.path(BUNDLES)).unwrap();
    let is_named = |_: &u64| {
        look(&mut containers, &[&path])[0]
            .clone()
            .unwrap()
            .pod
            .is_some()
    };
    assert!((0..WAIT_MAX).find(is_named).is_some());
}

proptest! {
    #[test]
    fn names_of_any_text_come_through_unchanged(name in ".{1,40}", id in "[0-9a-f]{64}") {
        let machine = Machine::new();
        machine.bundle(&id, containerd("container", &name));
        let found = of(&machine, &in_pod(&id));
        prop_assert_eq!(found.container.clone().unwrap(), name.as_str());
        let value = serde_json::to_value(&found).unwrap();
        prop_assert_eq!(serde_json::from_value::<Container>(value).unwrap(), found);
    }
}
