// SPDX-License-Identifier: Apache-2.0
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use super::*;
use crate::cgroup::Hierarchy;
use crate::root::Roots;

pub(super) const MIB: u64 = 1 << 20;

/// A version 2 cgroup of plain files, where squeeze and limit use the same file.
pub(super) struct Scene {
    top: tempfile::TempDir,
    pub cgroup: Cgroup,
}

impl Scene {
    pub fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("cgroup/job");
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("cgroup.procs", ""),
            ("memory.current", "1"),
            ("memory.high", "max"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        let hierarchy = Hierarchy::at(Version::V2, top.path().join("cgroup"));
        Scene {
            cgroup: Cgroup::open(&hierarchy, "/job").unwrap(),
            top,
        }
    }

    /// A throttle, after undoing everything that was left behind.
    pub fn throttle(&self) -> Throttle {
        let (ledger, undone) = Ledger::open(&self.top.path().join("state")).unwrap();
        assert!(undone.is_well(), "{undone:?}");
        let mut throttle = Throttle::new(Roots::below(self.top.path()).proc, ledger);
        // However slow this machine is, all steps are made.
        throttle.steps_for = Duration::MAX;
        throttle
    }

    /// Writes bytes into a file of the cgroup.
    pub fn set(&self, file: &str, bytes: u64) {
        fs::write(self.cgroup.dir().join(file), bytes.to_string()).unwrap();
    }

    /// `memory.high` in MiB.
    pub fn high(&self) -> Option<u64> {
        let text = error::read(&self.cgroup.dir().join("memory.high")).unwrap();
        text.trim().parse::<u64>().ok().map(|bytes| bytes / MIB)
    }

    fn act(&self, throttle: &mut Throttle, act: Act) -> Option<u64> {
        match act {
            Act::Squeeze(mib) => drop(throttle.squeeze(&self.cgroup, mib * MIB).unwrap()),
            Act::Limit(mib) => drop(throttle.limit(&self.cgroup, mib * MIB).unwrap()),
            Act::Release => throttle.release(&self.cgroup).unwrap(),
            Act::Unlimit => throttle.unlimit(&self.cgroup).unwrap(),
            Act::Other(mib) => {
                let file = self.cgroup.dir().join("memory.high");
                let value = mib.map_or("max".to_owned(), |mib| (mib * MIB).to_string());
                fs::write(file, value).unwrap();
            }
        }
        self.high()
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Squeeze(u64),
    Limit(u64),
    Release,
    Unlimit,
    /// Another program sets it, or removes it.
    Other(Option<u64>),
}
use Act::{Limit, Other, Release, Squeeze, Unlimit};

/// Sequences of actions, and the value of `memory.high` in MiB after each.
const SEQUENCES: [&[(Act, Option<u64>)]; 10] = [
    &[
        (Limit(80), Some(80)),
        (Squeeze(50), Some(50)),
        (Unlimit, Some(50)),
        (Release, None),
    ],
    &[
        (Limit(80), Some(80)),
        (Squeeze(50), Some(50)),
        (Release, Some(80)),
        (Unlimit, None),
    ],
    &[
        (Limit(50), Some(50)),
        (Squeeze(80), Some(50)),
        (Unlimit, Some(80)),
        (Release, None),
    ],
    &[
        (Squeeze(50), Some(50)),
        (Limit(80), Some(50)),
        (Release, Some(80)),
        (Unlimit, None),
    ],
    &[
        (Squeeze(80), Some(80)),
        (Limit(50), Some(50)),
        (Unlimit, Some(80)),
        (Release, None),
    ],
    // What one wants changes while the other is active.
    &[
        (Limit(50), Some(50)),
        (Squeeze(60), Some(50)),
        (Limit(70), Some(60)),
        (Release, Some(70)),
    ],
    &[
        (Squeeze(50), Some(50)),
        (Limit(60), Some(50)),
        (Squeeze(55), Some(50)),
        (Unlimit, Some(50)),
    ],
    // Another program has set it since: none of our values comes back.
    &[
        (Limit(80), Some(80)),
        (Other(Some(90)), Some(90)),
        (Squeeze(50), Some(50)),
        (Unlimit, Some(50)),
        (Release, Some(90)),
    ],
    &[
        (Limit(80), Some(80)),
        (Squeeze(50), Some(50)),
        (Other(Some(90)), Some(90)),
        (Release, Some(90)),
        (Unlimit, Some(90)),
    ],
    &[
        (Squeeze(50), Some(50)),
        (Limit(80), Some(50)),
        (Other(None), None),
        (Release, None),
        (Unlimit, None),
    ],
];

#[test]
fn who_holds_the_same_file_is_not_in_the_way_of_the_other() {
    for sequence in SEQUENCES {
        let scene = Scene::new();
        let mut throttle = scene.throttle();
        let acts = sequence.iter().map(|(act, _)| *act);
        let high: Vec<Option<u64>> = acts.map(|act| scene.act(&mut throttle, act)).collect();
        let wanted: Vec<Option<u64>> = sequence.iter().map(|(_, high)| *high).collect();
        assert_eq!(high, wanted, "{sequence:?}");
    }
}

#[test]
fn a_limit_that_somebody_else_sets_meanwhile_is_left_alone() {
    for other in [Some(30), Some(90), None] {
        let scene = Scene::new();
        let mut throttle = scene.throttle();
        throttle.check_limit(&scene.cgroup).unwrap();
        scene.act(&mut throttle, Limit(80));
        throttle.check_limit(&scene.cgroup).unwrap();
        scene.act(&mut throttle, Other(other));
        assert!(throttle.check_limit(&scene.cgroup).is_err());
        let error = throttle.limit(&scene.cgroup, 70 * MIB).unwrap_err();
        assert!(matches!(error, ThrottleError::Taken { .. }), "{error}");
        assert_eq!(scene.high(), other);
        drop(throttle);
        assert_eq!(scene.high(), other);
    }
    // Nor is one raised that was there before.
    let scene = Scene::new();
    let mut throttle = scene.throttle();
    scene.act(&mut throttle, Other(Some(50)));
    assert!(throttle.limit(&scene.cgroup, 70 * MIB).is_err());
    assert_eq!(scene.act(&mut throttle, Limit(40)), Some(40));
    assert_eq!(scene.act(&mut throttle, Unlimit), Some(50));
}

#[test]
fn a_limit_that_somebody_else_sets_during_reclaim_is_left_alone() {
    let scene = Scene::new();
    fs::write(
        scene.cgroup.dir().join("memory.current"),
        (90 * MIB).to_string(),
    )
    .unwrap();
    let request = scene.cgroup.dir().join("memory.reclaim");
    rustix::fs::mkfifoat(rustix::fs::CWD, &request, rustix::fs::Mode::RWXU).unwrap();
    // A full pipe: the request waits until somebody reads.
    let mut pipe = fs::File::options();
    let pipe = pipe.read(true).write(true);
    let mut pipe = pipe.custom_flags(libc::O_NONBLOCK).open(&request).unwrap();
    while pipe.write(&[b'x'; 4096]).is_ok() {}
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            fs::write(
                scene.cgroup.dir().join("memory.high"),
                (20 * MIB).to_string(),
            )
            .unwrap();
            while pipe.read(&mut [0; 4096]).is_ok() {}
        });
        let mut throttle = scene.throttle();
        assert!(
            throttle
                .make_room(&scene.cgroup, 70 * MIB, 5 * MIB)
                .unwrap()
        );
        throttle.limit(&scene.cgroup, 70 * MIB).unwrap_err()
    });
    assert!(matches!(error, ThrottleError::Taken { .. }), "{error}");
    assert_eq!(scene.high(), Some(20));
}

#[test]
fn a_thaw_that_cannot_be_recorded_does_not_keep_from_killing() {
    let scene = Scene::new();
    fs::write(scene.cgroup.dir().join("cgroup.freeze"), "0").unwrap();
    fs::write(scene.cgroup.dir().join("cgroup.events"), "frozen 1\n").unwrap();
    let mut throttle = scene.throttle();
    scene.act(&mut throttle, Squeeze(50));
    throttle.freeze(&scene.cgroup).unwrap();
    fs::write(scene.cgroup.dir().join("cgroup.events"), "populated 0\n").unwrap();
    let blocked = scene.top.path().join("state/ledger.new");
    fs::create_dir(&blocked).unwrap();
    throttle.squeeze(&scene.cgroup, 40 * MIB).unwrap_err();
    assert!(throttle.kill(&scene.cgroup).unwrap().is_complete());
    fs::remove_dir(&blocked).unwrap();
}

/// It may be the init process of the machine.
#[test]
fn processes_that_cannot_be_seen_are_left_alone() {
    let scene = Scene::new();
    fs::write(scene.cgroup.dir().join("cgroup.procs"), "0\n0\n").unwrap();
    let error = scene
        .throttle()
        .squeeze(&scene.cgroup, 50 * MIB)
        .unwrap_err();
    let why = Untouchable::Unseen;
    assert!(
        matches!(error, ThrottleError::Untouchable { why: of, .. } if of == why),
        "{error}"
    );
    assert_eq!(scene.high(), None);
}

#[test]
fn killed_after_any_of_it_the_next_one_undoes_all() {
    for sequence in SEQUENCES {
        for length in 1..=sequence.len() {
            let scene = Scene::new();
            let mut throttle = scene.throttle();
            let mut others = None;
            for (act, _) in &sequence[..length] {
                scene.act(&mut throttle, *act);
                if let Other(mib) = act {
                    others = *mib;
                }
            }
            // Killed: its state is lost, and it undoes nothing itself.
            throttle.ledger.abandon();
            drop(throttle);
            drop(scene.throttle());
            assert_eq!(scene.high(), others, "{:?}", &sequence[..length]);
        }
    }
}

#[test]
fn what_was_tried_long_enough_or_can_never_be_done_counts_as_tried() {
    let path = PathBuf::from("/job");
    let file = |errno| FileError::Write {
        path: path.clone(),
        value: "1".to_owned(),
        source: std::io::Error::from_raw_os_error(errno),
    };
    let name = || "/job".to_owned();
    let slow = ThrottleError::Slow { path: name() };
    let none = ThrottleError::NoFreezer {
        path: name(),
        why: "there is none",
    };
    assert!(slow.counts_as_tried() && none.counts_as_tried());
    let lasting = [
        libc::EROFS,
        libc::EOPNOTSUPP,
        libc::EINVAL,
        libc::ENOENT,
        libc::EPERM,
        libc::EACCES,
    ];
    for errno in lasting {
        assert!(
            ThrottleError::from(file(errno)).counts_as_tried(),
            "{errno}"
        );
    }
    for errno in [libc::EBUSY, libc::EAGAIN, libc::ENOMEM, libc::EIO] {
        assert!(
            !ThrottleError::from(file(errno)).counts_as_tried(),
            "{errno}"
        );
    }
    let unrecorded = LedgerError::from(file(libc::EROFS));
    assert!(!ThrottleError::from(unrecorded).counts_as_tried());
}
