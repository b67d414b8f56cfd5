// SPDX-License-Identifier: Apache-2.0
//! Files that are held with a target.

use super::*;

/// Pages that are read once leave before memory in use, with and without swap; and a file in use
/// stays while unused memory leaves.
#[test]
fn files_go_by_what_they_are_worth() {
    for backend in [Backend::Zram, Backend::None] {
        let mut scene = Scene::with_files("budget:96M", backend);
        scene.run(3_000, ROOM, |state, ms| {
            (0..256).for_each(|n| state.touch((ms * 256 + n) % (64 * MIB / PAGE_BYTES)));
        });
        assert_eq!(scene.resident_bytes(), 64 * MIB, "{backend:?}");
        let left_pages = scene.files.borrow().present.len() as u64;
        assert!(left_pages * PAGE_BYTES <= 32 * MIB, "{left_pages}");
        assert_eq!(scene.report.dropped_bytes, scene.report.left_bytes);
        assert_eq!(scene.report.trouble, None);
    }
    // A file in use, unused memory, and from the third second on pages that are read once.
    let mut scene = Scene::with_files("budget:129M", Backend::Zram);
    let (files, hot) = (Rc::clone(&scene.files), 64 * MIB / PAGE_BYTES);
    scene.run(6_000, ROOM, |_, ms| {
        let mut file = files.borrow_mut();
        (0..256).for_each(|n| file.touch((ms * 256 + n) % hot));
        let once = ms.saturating_sub(3_000) * 4;
        (once..once + 4)
            .filter(|_| ms > 3_000)
            .for_each(|n| file.touch(hot + n));
    });
    let file = files.borrow();
    let hot_out = file.out.iter().filter(|page| **page < hot).count() as u64;
    assert!(scene.report.left_bytes >= 40 * MIB, "{:?}", scene.report);
    assert!(hot_out * 100 <= hot, "{hot_out} of {hot}");
}

/// Room can only be made for what is not followed by squeezing the rest.
#[test]
fn files_that_are_not_held_count_only_against_a_limit() {
    let mut scene = Scene::with_files("budget:48M", Backend::Zram);
    let held = Held {
        files: false,
        ..scene.target.held.clone()
    };
    scene.target.hold(held);
    scene.run(3_000, ROOM, touch_hot);
    let bytes = scene.resident_bytes();
    assert!((40 * MIB..=48 * MIB).contains(&bytes), "{bytes}");
    let trouble = scene.report.trouble.as_deref().expect("it is said");
    assert!(trouble.contains("files = true"), "{trouble}");
}

/// With a limit and without; and they are held as soon as they can be.
#[test]
fn why_files_are_not_held_is_said_and_it_is_tried_again() {
    for limit in [None, Some(96 * MIB)] {
        let mut scene = Scene::with_files("budget:96M,measure=off", Backend::Zram);
        scene.closed = Some("load the module");
        if let Some(bytes) = limit {
            let dir = scene.dir.as_ref().unwrap().path().join("held");
            std::fs::write(dir.join("memory.max"), format!("{bytes}\n")).unwrap();
        }
        let touch_all = |state: &mut State, ms: u64| {
            (0..16).for_each(|n| state.touch((ms * 16 + n) % (64 * MIB / PAGE_BYTES)));
        };
        scene.run(3_000, ROOM, touch_all);
        assert_eq!(scene.report.dropped_bytes, 0);
        let trouble = scene.report.trouble.as_deref().expect("it is said");
        assert!(trouble.contains("load the module"), "{trouble}");
        scene.closed = None;
        scene.run(62_000, ROOM, touch_all);
        assert!(scene.report.dropped_bytes > 0, "{:?}", scene.report);
    }
}

#[test]
fn files_that_are_gone_are_forgotten() {
    let mut scene = Scene::with_files("budget:129M", Backend::Zram);
    scene.files.borrow_mut().is_replaced = true;
    scene.run(1_000, ROOM, touch_hot);
    let (bytes, files) = (scene.target.queue_bytes(), scene.files.borrow().replaced);
    // How often it looks depends on what that costs here.
    for _ in 0..10 {
        scene.run(6_000, ROOM, touch_hot);
        if scene.files.borrow().replaced > files + 2 {
            break;
        }
    }
    let (later_bytes, later_files) = (scene.target.queue_bytes(), scene.files.borrow().replaced);
    assert!(later_files > files + 2, "{files} {later_files}");
    // Each takes 32 KiB.
    assert!(later_bytes < bytes + 64 * 1024, "{bytes} {later_bytes}");
}
