// SPDX-License-Identifier: Apache-2.0
//! Kills the daemon at random moments. Its successor has a broken configuration, none, or another
//! one: nothing may ever be left behind.
//!
//! There are three kinds of points. Most kill the daemon between its start and its end, while it
//! mounts, binds and writes its ledger. Others kill a process that squeezes, freezes, thaws and
//! releases a real cgroup as fast as it can, using the daemon's code. A few kill a daemon that acts
//! on a cgroup which really thrashes; such a point takes seconds. `POINTS=1000 cargo test -p
//! agewise --test daemon_killed -- --ignored` is the long form.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_cli::children::Killed;
use agewise_host::cgroup::{Cgroup, Hierarchy, Version};
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{Ledger, Throttle};
use rand_free::Random;
use support::need::runs_again;
use support::thrash::Scene;
use support::{AGEWISE, Group, one, wait_until};

/// Random numbers that are the same in every run.
mod rand_free {
    /// SplitMix64.
    pub struct Random(pub u64);

    impl Random {
        /// A number below `end`.
        pub fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % end
        }
    }
}

/// What runs after the kill.
#[derive(Clone, Copy, Debug)]
enum After {
    Undo,
    UndoWithBroken,
    RestartWithBroken,
    RestartWithOther,
    RestartWithout,
}

const AFTERS: [After; 5] = [
    After::Undo,
    After::UndoWithBroken,
    After::RestartWithBroken,
    After::RestartWithOther,
    After::RestartWithout,
];

/// The directories of a daemon.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts a daemon in a session of its own, with the current configuration.
    fn spawn(&self, more: &[&str]) -> Child {
        Command::new("setsid")
            .arg(AGEWISE)
            .arg("daemon")
            .args(more)
            .env("STATE_DIRECTORY", self.at("state"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setsid of util-linux")
    }

    fn start(&self, config: &str) -> Child {
        let path = self.at("agewise.toml");
        let text = format!(
            "journal.file = '{}'\n{config}",
            self.at("journal").display()
        );
        fs::write(&path, text).unwrap();
        self.spawn(&["--config", path.to_str().unwrap()])
    }

    fn come_after(&self, after: After) {
        let broken = self.at("broken.toml");
        fs::write(&broken, "oops = [").unwrap();
        let other = self.at("other.toml");
        fs::write(
            &other,
            format!("journal.file = '{}'\n", self.at("other").display()),
        )
        .unwrap();
        let [broken, other] = [&broken, &other].map(|path| path.to_str().unwrap());
        // By default it observes cgroups, and ends if there are none.
        let observes = i32::from(Hierarchy::discover(&ProcRoot::default()).is_err());
        let (arguments, wanted): (&[&str], _) = match after {
            After::Undo => (&["--undo"], 0),
            After::UndoWithBroken => (&["--undo", "--config", broken], 0),
            After::RestartWithBroken => (&["--config", broken], 78),
            After::RestartWithOther => (&["--ticks", "1", "--config", other], observes),
            After::RestartWithout => (&["--ticks", "1"], observes),
        };
        let status = self.spawn(arguments).wait().unwrap();
        assert_eq!(status.code(), Some(wanted), "{after:?}");
    }

    /// Asserts that nothing is left in the file system.
    fn assert_clean(&self, when: &str) {
        assert!(
            !self.at("state/ledger").exists(),
            "{when}: the ledger is left"
        );
        assert!(!self.at("socket").exists(), "{when}: the socket is left");
        let files = self.at("files");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(files.to_str().unwrap()),
            "{when}: still mounted"
        );
        let left = fs::read_dir(&files).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{when}: report files are left");
    }
}

fn kill(mut child: Child, after: Duration) {
    std::thread::sleep(after);
    // setsid does not fork here, as it leads no process group: the child is the daemon itself.
    let ended = child.try_wait().unwrap();
    assert!(ended.is_none(), "it ended by itself: {ended:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Starts a daemon that serves files and a socket, and kills it.
fn serve(random: &mut Random, after: After, is_late: bool) {
    let place = Place::new();
    let config = format!(
        "[observe]\npids = [{}]\ncgroups = []\ntick = '1s'\n[files]\nenabled = true\n\
         directory = '{}'\n[metrics]\nenabled = true\nlisten = 'unix:{}'\n",
        std::process::id(),
        place.at("files").display(),
        place.at("socket").display(),
    );
    let micros = random.below(400_000);
    let daemon = place.start(&config);
    if is_late {
        wait_until("a ledger", || place.at("state/ledger").exists());
    }
    kill(daemon, Duration::from_micros(micros));
    place.come_after(after);
    place.assert_clean(&format!("serving for {micros} us, {after:?}"));
}

/// A cgroup with a process in it.
struct Held {
    sleeper: Killed,
    group: Group,
    cgroup: Cgroup,
}

impl Held {
    fn new() -> Result<Self, String> {
        let hierarchy = Hierarchy::discover(&ProcRoot::default()).map_err(|e| e.to_string())?;
        let group = Group::create("killed")?;
        let sleeper = Command::new("setsid").args(["sleep", "infinity"]).spawn();
        let sleeper = Killed(sleeper.map_err(|e| e.to_string())?);
        group.take_in(sleeper.id());
        let cgroup = Cgroup::open(&hierarchy, &group.path).map_err(|e| e.to_string())?;
        Ok(Held {
            group,
            sleeper,
            cgroup,
        })
    }

    fn limit(&self) -> String {
        let file = match self.cgroup.hierarchy().version {
            Version::V1 => "memory.soft_limit_in_bytes",
            Version::V2 => "memory.high",
        };
        fs::read_to_string(self.group.dir.join(file)).unwrap()
    }

    /// The process's cgroups in all hierarchies.
    fn memberships(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.sleeper.id())).unwrap()
    }

    /// Whether the process is in the freezer.
    fn is_frozen(&self) -> bool {
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", self.sleeper.id()));
        let is_v2_frozen = fs::read_to_string(self.group.dir.join("cgroup.freeze"))
            .is_ok_and(|text| text.trim() == "1");
        is_v2_frozen || wchan.is_ok_and(|wchan| wchan.contains("refrigerator"))
    }
}

/// Throttles until killed.
fn throttle_for_ever(state: &Path, cgroup: &Cgroup) {
    let (ledger, _) = Ledger::open(state).unwrap();
    ledger.claim().unwrap();
    let mut throttle = Throttle::new(ProcRoot::default(), ledger);
    for round in 0u64.. {
        let limit_bytes = (64 << 20) + (round % 16) * 4096;
        throttle.squeeze(cgroup, limit_bytes).unwrap();
        throttle.freeze(cgroup).unwrap();
        throttle.squeeze(cgroup, limit_bytes / 2).unwrap();
        throttle.thaw(cgroup).unwrap();
        throttle.release(cgroup).unwrap();
    }
}

/// Kills a process that throttles, and lets the command undo what it left behind.
fn throttle(random: &mut Random, held: &Held, after: After) {
    let place = Place::new();
    let (limit, memberships) = (held.limit(), held.memberships());
    // SAFETY: the child is a single-threaded copy and never returns. Of the locks that other
    // threads may hold it needs only those of malloc, which fork acquires and releases.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let state = place.at("state");
        let work = std::panic::AssertUnwindSafe(|| throttle_for_ever(&state, &held.cgroup));
        let worked = std::panic::catch_unwind(work);
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(worked.is_err())) }
    }
    assert!(pid > 0, "fork");
    let micros = random.below(60_000);
    std::thread::sleep(Duration::from_micros(micros));
    let mut status = 0;
    // SAFETY: the child is ours and not yet reaped; `status` outlives the call.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &raw mut status, 0);
    }
    let when = format!("throttling for {micros} us, {after:?}");
    assert!(libc::WIFSIGNALED(status), "{when}: it ended by itself");
    place.come_after(after);
    place.assert_clean(&when);
    assert_eq!(held.limit(), limit, "{when}");
    assert_eq!(held.memberships(), memberships, "{when}");
    wait_until(&format!("{when}: thawed"), || !held.is_frozen());
}

/// Kills a daemon that is protecting a cgroup from thrashing.
fn act(random: &mut Random, scene: &Scene, after: After) {
    let place = Place::new();
    let limit = scene.limit();
    let millis = 2000 + random.below(10_000);
    let config = scene.config("freeze", "freeze = '2s'\n");
    kill(place.start(&config), Duration::from_millis(millis));
    place.come_after(after);
    let when = format!("acting for {millis} ms, {after:?}");
    place.assert_clean(&when);
    assert_eq!(scene.limit(), limit, "{when}");
    assert!(runs_again(scene.hog.pid()), "{when}: the hog stands still");
}

/// Every twentieth point acts, nine of twenty throttle, and the others serve.
fn kill_at(points: u64) {
    let _one = one();
    let mut random = Random(points);
    let held = Held::new().map_err(|why| println!("SKIPPED the points that throttle: {why}"));
    let scene =
        Scene::start("points").map_err(|why| println!("SKIPPED the points that act: {why}"));
    let mut counts = [0; 3];
    let began = Instant::now();
    for point in 0..points {
        let after = AFTERS[random.below(AFTERS.len() as u64) as usize];
        match (point % 20, &held, &scene) {
            (19, _, Ok(scene)) => {
                act(&mut random, scene, after);
                counts[2] += 1;
            }
            (10..19, Ok(held), _) => {
                throttle(&mut random, held, after);
                counts[1] += 1;
            }
            _ => {
                // Once surely with something to undo, however slow the machine.
                serve(&mut random, after, point == 0);
                counts[0] += 1;
            }
        }
    }
    let [serving, throttling, acting] = counts;
    println!(
        "killed at {serving} points while serving, {throttling} while throttling, {acting} while \
         acting, in {:.0} s: nothing left",
        began.elapsed().as_secs_f64()
    );
}

#[test]
fn killed_at_some_points_it_leaves_nothing() {
    kill_at(20);
}

#[test]
#[ignore = "takes a quarter of an hour"]
fn killed_at_many_points_it_leaves_nothing() {
    let points = std::env::var("POINTS").map_or(1000, |text| text.parse().expect("a number"));
    kill_at(points);
}
