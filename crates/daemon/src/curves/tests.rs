// SPDX-License-Identifier: Apache-2.0
use std::sync::Arc;
use std::time::SystemTime;

use agewise_host::access::fake::FakeSource;
use agewise_host::agent::{AgentConfig, Targets};
use agewise_host::clear::Means;
use agewise_policy::PageType;
use agewise_policy::whatif::{Estimate, Fact, page_hash};

use super::stored::KEPT;
use super::*;

/// Curves with one subject.
fn with_one() -> (AllCurves, Key) {
    let mut all = AllCurves::new(None);
    let key: Key = (Arc::from("/web"), 7);
    let followed = Followed {
        what_if: WhatIf::new(all.params),
        history: History::default(),
        cgroup: None,
        has_files: true,
        is_cached: false,
        is_counting: true,
        began_ms: 0,
        show_at_ms: 0,
        latest: Vec::new(),
        counted: None,
    };
    all.by_key.insert(key.clone(), followed);
    (all, key)
}

/// Shows pages of a subject every minute for a quarter of an hour, and closes that.
fn count(all: &mut AllCurves, key: &Key, quarter: u64, pages: u64) {
    let followed = all.by_key.get_mut(key).unwrap();
    for minute in quarter * 15..=(quarter + 1) * 15 {
        let mut look = followed.what_if.look(minute * 60_000);
        for page in 0..pages {
            look.page(page_hash(0, page), 0, PageType::Anon, Fact::Used);
        }
        look.finish(pages, true);
    }
    all.close(key);
}

#[test]
fn one_peak_does_not_make_curves_coarse_for_ever() {
    let (mut all, key) = with_one();
    let sampled = |all: &AllCurves| all.by_key[&key].what_if.sampled_pages();
    count(&mut all, &key, 0, 100_000);
    assert_eq!(sampled(&all), all.params.pages);
    count(&mut all, &key, 1, 1000);
    assert_eq!(sampled(&all), 0, "a new simulation");
    assert!(all.counted(&key).is_some() && !all.of(&key).is_empty());
    count(&mut all, &key, 2, 1000);
    assert_eq!(sampled(&all), all.params.pages);
}

#[test]
fn a_cgroup_without_memory_has_no_curve() {
    let points = |full_bytes| {
        let curves = Curves::of_anon(full_bytes, 900_000, |_| Estimate::exact(0.0));
        shown(&curves, AllCurves::new(None).prices()).len()
    };
    assert_eq!([points(0), points(4096)], [0, SHOWN_PERCENT.len()]);
}

#[test]
fn what_was_counted_with_other_pages_does_not_count() {
    let (mut all, key) = with_one();
    count(&mut all, &key, 0, 1000);
    assert!(all.counted(&key).is_some() && !all.of(&key).is_empty());
    let params = all.params;
    all.by_key.get_mut(&key).unwrap().forget(params);
    assert!(all.counted(&key).is_none() && all.of(&key).is_empty());
}

#[test]
fn histories_survive_by_name_and_damage_is_no_history() {
    let dir = tempfile::tempdir().unwrap();
    let all = AllCurves::new(Some(dir.path().to_owned()));
    let key: Key = (Arc::from("/web"), 7);
    let path = all.path(&key).unwrap();
    assert_eq!(Some(&path), all.path(&(Arc::from("/web"), 8)).as_ref());
    assert_ne!(Some(&path), all.path(&(Arc::from("/db"), 7)).as_ref());
    keep(dir.path(), "/web", &History::default()).unwrap();
    let files = fs::read_dir(path.parent().unwrap()).unwrap();
    assert_eq!(files.count(), 1);
    let state = dir.path();
    assert!(matches!(history(state, "/web"), Ok(Some(_))));
    assert!(matches!(history(state, "/db"), Ok(None)));
    assert!(matches!(read(&path, "/db"), Ok(None)), "of another name");
    fs::write(path.with_file_name("damaged"), b"agewhtif").unwrap();
    fs::write(path.with_extension("new"), b"half").unwrap();
    let (known, damaged) = histories(state).unwrap();
    assert_eq!((known.len(), damaged.len()), (1, 1));
    assert_eq!(known[0].0, "/web");
    assert!(histories(&state.join("none")).unwrap().0.is_empty());
    let old = SystemTime::now() - KEPT - Duration::from_secs(5);
    fs::File::open(&path).unwrap().set_modified(old).unwrap();
    let _ = AllCurves::new(Some(dir.path().to_owned()));
    assert!(!path.exists(), "nobody has seen it for long");
}

/// A daemon that runs for months sees more subjects than there is room for.
#[test]
fn the_oldest_histories_make_room() {
    let dir = tempfile::tempdir().unwrap();
    for (name, seconds) in [("/a", 30), ("/b", 10), ("/c", 20)] {
        keep(dir.path(), name, &History::default()).unwrap();
        let file = fs::File::open(history_path(dir.path(), name)).unwrap();
        let at = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(at).unwrap();
    }
    remove_old(&directory(dir.path()), 2);
    let (kept, _) = histories(dir.path()).unwrap();
    let names: Vec<&str> = kept.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["/b", "/c"]);
}

#[test]
fn subjects_that_are_pushed_out_show_no_old_curves() {
    let mut all = AllCurves::new(None);
    let mut config = AgentConfig::new("1s".parse().unwrap());
    config.clear.means = Means::Refs;
    let targets = Targets::Listed(Vec::new());
    let source = Box::new(FakeSource::new());
    let agent = Agent::new(source, Roots::default(), targets, config).unwrap();
    let seen = |number: usize| Seen {
        at: number,
        key: (Arc::from(format!("/{number}")), 7),
        cgroup: None,
        container: None,
        pids: Vec::new(),
    };
    let is_followed = |all: &AllCurves, number: usize| all.by_key.contains_key(&seen(number).key);
    let mut subjects: Vec<Seen> = (0..=SUBJECTS_MAX).map(seen).collect();
    all.take(&agent, &subjects);
    assert!(is_followed(&all, 0) && !is_followed(&all, SUBJECTS_MAX));
    subjects.reverse();
    all.take(&agent, &subjects);
    assert!(!is_followed(&all, 0) && is_followed(&all, SUBJECTS_MAX));
}

#[test]
fn of_two_daemons_with_one_directory_the_first_stores_its_histories() {
    let state = tempfile::tempdir().unwrap();
    let [(mut first, key), (mut second, _)] = [with_one(), with_one()];
    for all in [&mut first, &mut second] {
        all.dir = Some(directory(state.path()));
    }
    count(&mut first, &key, 0, 1000);
    let stored = history(state.path(), "/web").unwrap();
    assert!(stored.is_some());
    count(&mut second, &key, 0, 2000);
    assert_eq!(history(state.path(), "/web").unwrap(), stored);
    count(&mut first, &key, 1, 1000);
    assert_ne!(history(state.path(), "/web").unwrap(), stored);
}
