// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::yardstick;

/// Writes a loop over 1000 pages.
fn trace() -> tempfile::NamedTempFile {
    let text: String = (0..20_000).map(|n| format!("{}\n", n % 1000)).collect();
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&trace, text).unwrap();
    trace
}

fn request(
    trace: &Path,
    policies: &str,
    sizes: &[usize],
    sampling: Option<SamplingPlan>,
) -> CurveRequest {
    CurveRequest {
        trace: trace.to_string_lossy().into_owned(),
        reading: Reading::default(),
        policies: yardstick::parse_list(policies).unwrap(),
        sizes: sizes.iter().map(|&pages| SizeSpec::Pages(pages)).collect(),
        points: 1,
        sampling,
        build: "unknown".to_owned(),
    }
}

fn sizes_of(outcome: &CurveOutcome) -> Vec<(&str, Vec<u64>)> {
    let cells = outcome.cells.iter();
    let cells = cells.map(|of| (of.cell.policy.as_str(), of.cell.sizes_pages.clone()));
    cells.collect()
}

#[test]
fn a_workload_is_no_trace() {
    let error = request(Path::new("kv"), "lru", &[10], None).run(&Arc::default());
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("kv is a workload"), "{error}");
}

#[test]
fn nothing_is_estimated_without_a_sampled_page() {
    let trace = trace();
    let plan = SamplingPlan::new(0.000_001, 2).unwrap();
    let error = request(trace.path(), "lru", &[10], Some(plan)).run(&Arc::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no page is in a sample"), "{error}");
    assert!(error.contains("raise --rate"), "{error}");
}

#[test]
fn no_cgroup_is_smaller_than_64_pages() {
    let trace = trace();
    let run = |policies: &str, sizes: &[usize], plan: Option<SamplingPlan>| {
        request(trace.path(), policies, sizes, plan).run(&Arc::default())
    };
    let outcome = run("opt,mglru-7.2", &[10, 63, 64, 500], None).unwrap();
    let sizes = sizes_of(&outcome);
    assert_eq!(
        sizes,
        [("opt", vec![10, 63, 64, 500]), ("mglru-7.2", vec![64, 500])]
    );
    assert!(
        outcome.notes[0].contains("mglru-7.2 below 64 pages"),
        "{:?}",
        outcome.notes
    );
    let outcome = run("lru,classic", &[10], None).unwrap();
    assert_eq!(sizes_of(&outcome), [("lru", vec![10])]);
    let error = run("classic", &[10], None).unwrap_err();
    assert!(error.to_string().contains("below 64 pages"), "{error}");
    let error = run("classic", &[64, 1 << 40], None).unwrap_err();
    assert!(error.to_string().contains("at most 33554432"), "{error}");
    let plan = SamplingPlan::new(0.25, 4).unwrap();
    let outcome = run("lru,classic", &[200, 253, 254], Some(plan)).unwrap();
    let sizes = sizes_of(&outcome);
    assert_eq!(
        sizes,
        [("lru", vec![200, 253, 254]), ("classic", vec![254])]
    );
}

#[test]
fn an_order_that_is_not_known_is_told() {
    let trace = tempfile::NamedTempFile::with_suffix(".csv").unwrap();
    let of = |header: &str| {
        std::fs::write(&trace, format!("{header}time_ns,page\n5,1\n5,2\n9,1\n")).unwrap();
        let outcome = request(trace.path(), "lru", &[1], None).run(&Arc::default());
        outcome.unwrap().notes.join("; ")
    };
    assert_eq!(of(""), "");
    let notes = of("# page trace: order=interval interval_ns=4\n");
    assert!(
        notes.contains("order inside an interval is not known"),
        "{notes}"
    );
}
