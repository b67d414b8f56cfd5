// SPDX-License-Identifier: Apache-2.0
use agewise_host::container::Container;
use agewise_policy::budget::{Gain, KernelFirst, Verdict};
use agewise_policy::statistics::Change;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::demo;
use crate::health::Part;

const LIMITS: Limits = Limits {
    subjects_max: 50,
    containers_max: 50,
    depth_max: 3,
};

fn hub() -> Hub {
    let hub = Hub::new(demo::settings());
    hub.keep_timeline();
    for sequence in 1..=20 {
        hub.publish(demo::snapshot(sequence, sequence * 5000));
    }
    hub
}

fn ask(pages: &mut Pages, path: &str, query: &str) -> Response {
    pages.answer(&Request {
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    })
}

fn json(response: &Response) -> Value {
    assert_eq!((response.status, response.media_type), (200, JSON));
    serde_json::from_slice(&response.body).unwrap()
}

#[test]
fn the_page_fetches_nothing_from_elsewhere_and_needs_nothing_the_policy_forbids() {
    let mut pages = Pages::new(hub(), LIMITS);
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let response = ask(&mut pages, path, "");
        assert_eq!(response.status, 200);
        assert!(response.media_type.starts_with(kind));
        let text = String::from_utf8(response.body.to_vec()).unwrap();
        let text = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for foreign in ["http:", "https:", "//cdn", "@import", "innerHTML", "eval("] {
            assert!(!text.contains(foreign), "{path}: {foreign}");
        }
        if path == "/" {
            for inline in ["style=", "onclick", "<style", "<script>"] {
                assert!(!text.contains(inline), "{inline}");
            }
        }
    }
    assert_eq!(ask(&mut pages, "/page.html", "").status, 404);
    assert_eq!(ask(&mut pages, "/../etc/passwd", "").status, 404);
}

/// A width in units of the window includes the scroll bar, so the page could be scrolled sideways.
#[test]
fn nothing_is_as_wide_as_the_window() {
    assert!(!super::STYLE.contains("vw"));
}

#[test]
fn a_snapshot_has_the_field_names_of_reports() {
    let hub = hub();
    let record = json(&ask(
        &mut Pages::new(hub.clone(), LIMITS),
        "/api/snapshot",
        "",
    ));
    assert_eq!(record["record"], "snapshot");
    assert_eq!(record["sequence"], 20);
    let web = &record["targets"][4];
    assert_eq!(
        (&web["target"], &web["kind"]),
        (&"/web".into(), &"cgroup".into())
    );
    assert_eq!((web.get("pod"), web.get("image")), (None, None));
    let bins = web["nodes"][0]["bins"].as_array().unwrap();
    assert_eq!((bins.len(), &bins[0]["upper_ms"]), (6, &1000.into()));
    assert!(bins[5]["upper_ms"].is_null());
    let sum: u64 = web["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|node| node["bins"].as_array().unwrap())
        .map(|bin| bin["anon_bytes"].as_u64().unwrap() + bin["file_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(web["resident_bytes"], sum);
    // With few rows, the last one is the rest.
    let few = Limits {
        subjects_max: 2,
        ..LIMITS
    };
    let record = json(&ask(&mut Pages::new(hub.clone(), few), "/api/snapshot", ""));
    let targets = record["targets"].as_array().unwrap();
    assert_eq!((targets.len(), &record["targets_cut"]), (3, &4.into()));
    assert_eq!(targets[2]["kind"], "other");
    let snapshot = hub.snapshot();
    let size = |name: &str| {
        snapshot
            .subject(name)
            .unwrap()
            .resident_bytes()
            .iter()
            .sum::<u64>()
    };
    let rest = size("/batch") + size("4711 (redis-server)");
    assert_eq!(targets[2]["resident_bytes"], rest);
}

#[test]
fn the_largest_files_are_shown_where_they_are_known() {
    let hub = hub();
    let ask_files = |hub: &Hub| {
        let mut pages = Pages::new(hub.clone(), LIMITS);
        json(&ask(&mut pages, "/api/snapshot", ""))["files"].clone()
    };
    let files = ask_files(&hub);
    assert_eq!(files["count"], 5321);
    let largest = files["largest"].as_array().unwrap();
    assert_eq!(largest[0]["file"], "/var/lib/db/data");
    assert_eq!(largest[0]["cgroup"], "/web");
    let ages = largest[0]["ages"].as_array().unwrap().iter();
    let sum: u64 = ages.map(|age| age["bytes"].as_u64().unwrap()).sum();
    assert_eq!(largest[0]["resident_bytes"], sum);
    // A name is whatever its owner likes; the page only ever makes text of it.
    assert_eq!(largest[2]["file"], "/srv/<b>\u{1b}[31m & co");
    assert!(largest[3]["cgroup"].is_null());
    let snapshot = Snapshot {
        files: None,
        ..demo::snapshot(21, 105_000)
    };
    hub.publish(snapshot);
    assert!(ask_files(&hub).is_null());
}

#[test]
fn the_worth_of_a_budget_is_shown() {
    let hub = hub();
    let mut snapshot = demo::snapshot(21, 105_000);
    snapshot.subjects[2].budget_gain = Some(Gain {
        verdict: Verdict::Pays,
        pairs: 12,
        faults_change: Some(Change {
            mean: -0.18,
            half: 0.03,
        }),
        cpu_change: None,
        time_change: None,
    });
    snapshot.subjects[2].kernel_first = Some(KernelFirst {
        came_in_pages: 1,
        until_pages: 4,
    });
    let name = snapshot.subjects[2].name.clone();
    hub.publish(snapshot);
    let record = json(&ask(&mut Pages::new(hub, LIMITS), "/api/snapshot", ""));
    let mut targets = record["targets"].as_array().unwrap().iter();
    let of = targets.find(|target| target["target"] == *name).unwrap();
    assert_eq!(of["budget_gain"]["faults_change"]["mean"], -0.18);
    assert_eq!(of["kernel_first"]["until_pages"], 4);
}

#[test]
fn a_container_has_its_names_beside_the_path() {
    let hub = hub();
    let mut snapshot = demo::snapshot(21, 105_000);
    snapshot.subjects[2].container = Some(Container {
        pod: Some("web-0".into()),
        container: Some("web".into()),
        ..Container::default()
    });
    hub.publish(snapshot);
    let record = json(&ask(&mut Pages::new(hub, LIMITS), "/api/snapshot", ""));
    let job = &record["targets"][2];
    let said = ["target", "pod", "container"].map(|field| job[field].as_str().unwrap());
    assert_eq!(said, ["/batch/job-1", "web-0", "web"]);
    assert_eq!(job.get("namespace"), None);
}

#[test]
fn what_was_made_is_kept_until_the_next_look() {
    let hub = hub();
    let mut pages = Pages::new(hub.clone(), LIMITS);
    let first = ask(&mut pages, "/metrics", "");
    assert!(Arc::ptr_eq(
        &first.body,
        &ask(&mut pages, "/metrics", "").body
    ));
    hub.publish(demo::snapshot(21, 105_000));
    assert_ne!(first, ask(&mut pages, "/metrics", ""));
    let text = String::from_utf8(first.body.to_vec()).unwrap();
    assert!(text.contains("# TYPE agewise_refaulted_bytes_total counter"));
    let open = pages.answer(&Request {
        path: "/metrics".to_owned(),
        accept: "application/openmetrics-text".to_owned(),
        ..Request::default()
    });
    assert!(open.body.ends_with(b"# EOF\n") && open.media_type.contains("openmetrics"));
}

#[test]
fn before_the_first_look_nothing_is_claimed() {
    let mut pages = Pages::new(Hub::new(demo::settings()), LIMITS);
    for path in ["/metrics", "/api/snapshot", "/api/timeline"] {
        assert_eq!(ask(&mut pages, path, "").status, 503);
    }
}

#[test]
fn the_time_line_is_of_one_target_and_what_is_new() {
    let mut pages = Pages::new(hub(), LIMITS);
    let all = json(&ask(&mut pages, "/api/timeline", ""));
    assert_eq!(
        (&all["target"], all["moments"].as_array().unwrap().len()),
        (&"/".into(), 20)
    );
    let new = json(&ask(&mut pages, "/api/timeline", "target=%2Fweb&since=18"));
    let moments = new["moments"].as_array().unwrap();
    assert_eq!((&new["target"], moments.len()), (&"/web".into(), 2));
    let bounds = moments[0]["bounds_ms"].as_array().unwrap().len();
    assert_eq!(
        moments[0]["ages_bytes"].as_array().unwrap().len(),
        bounds + 1
    );
    let process = json(&ask(
        &mut pages,
        "/api/timeline",
        "target=4711+(redis-server)",
    ));
    assert_eq!(process["moments"].as_array().unwrap().len(), 20);
    let nobody = ask(&mut pages, "/api/timeline", "target=nobody");
    assert_eq!(nobody.status, 404);
    for wrong in [
        "since=",
        "since=-1",
        "since=99999999999999999999",
        "since=x",
    ] {
        assert_eq!(
            ask(&mut pages, "/api/timeline", wrong).status,
            400,
            "{wrong}"
        );
    }
}

proptest! {
    #[test]
    fn any_address_has_an_answer(
        path in "/[ -~]{0,20}|/api/timeline|/metrics",
        query in "[ -~]{0,60}",
    ) {
        let mut pages = Pages::new(hub(), LIMITS);
        let response = ask(&mut pages, &path, &query);
        prop_assert!([200, 400, 404].contains(&response.status));
        if response.media_type == JSON {
            prop_assert!(serde_json::from_slice::<Value>(&response.body).is_ok());
        }
    }
}

#[test]
fn health_is_told_by_the_status_with_the_reasons() {
    let hub = hub();
    let mut pages = Pages::new(hub.clone(), LIMITS);
    let well = ask(&mut pages, "/healthz", "");
    assert_eq!((well.status, &*well.body), (200, &b"ok\n"[..]));
    hub.health().fails(Part::Journal, "no space".to_owned());
    hub.health().fails(Part::Ledger, "unreadable".to_owned());
    let ill = ask(&mut pages, "/healthz", "");
    assert_eq!(ill.status, 503);
    assert_eq!(&*ill.body, b"journal: no space\nledger: unreadable\n");
}

#[test]
fn it_is_ready_after_the_first_look() {
    let hub = Hub::new(demo::settings());
    let mut pages = Pages::new(hub.clone(), LIMITS);
    assert_eq!(ask(&mut pages, "/healthz", "").status, 200);
    assert_eq!(ask(&mut pages, "/readyz", "").status, 503);
    hub.publish(demo::snapshot(1, 10_000));
    assert_eq!(ask(&mut pages, "/readyz", "").status, 200);
}

/// Kubernetes would otherwise kill it again and again, or take its metrics out of service.
#[test]
fn what_no_restart_cures_leaves_it_alive_and_ready() {
    let hub = hub();
    let mut pages = Pages::new(hub.clone(), LIMITS);
    hub.health().fails(Part::Start, "a damaged line".to_owned());
    let status = ["/healthz", "/livez", "/readyz"].map(|path| ask(&mut pages, path, "").status);
    assert_eq!(status, [503, 200, 200]);
}

#[test]
fn a_daemon_that_is_silent_for_several_ticks_hangs() {
    let pace = |tick_ms, actual_ms| Budget {
        percent: 1.0,
        tick_ms,
        actual_ms,
    };
    assert_eq!(patience(Budget::default()), SILENT);
    assert_eq!(patience(pace(15_000, 15_000)), SILENT);
    assert_eq!(patience(pace(15_000, 600_000)), Duration::from_secs(3000));
    let hub = hub();
    hub.published_before(2 * SILENT);
    let mut pages = Pages::new(hub.clone(), LIMITS);
    let hung = ask(&mut pages, "/livez", "");
    assert_eq!(
        (hung.status, &*hung.body),
        (503, &b"no look for 600 s\n"[..])
    );
    hub.publish(demo::snapshot(21, 105_000));
    assert_eq!(ask(&mut pages, "/livez", "").status, 200);
}
