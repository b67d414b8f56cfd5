// SPDX-License-Identifier: Apache-2.0
//! Makes system calls that may never return.
//!
//! The kernel locks an address space while a system call changes it, and that call may wait for a
//! file system: a program that replaces a shared mapping of its own FUSE file holds the lock for as
//! long as its server pleases (`fuse_vma_close`, Linux 6.18); one that calls exec holds another
//! while its files are closed (`exec_update_lock`). Whoever then opens or reads `maps`, `smaps` or
//! `pagemap`, writes to `clear_refs`, or calls `process_madvise` or `process_vm_readv` waits too.
//! Only SIGKILL ends that, and for `process_madvise` nothing does. Walks by BPF take no lock.
//!
//! So every call that locks the address space of another process goes through [`call`]: a thread
//! makes it, and one that does not come back is left behind. Handing over takes 11 us of CPU time,
//! beside 65 us for reading the mappings of a small program.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::{self, FileError};
use thread::{Job, Thread};
use who::{User, Who, who};

mod thread;
mod who;

/// How long a call may make no progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// What remains of that for a thread whose calls are often late. It delays no more than the longest
/// lists of mappings do, which take 0.1 s to read.
const LEAST_PATIENCE: Duration = Duration::from_millis(200);
/// Patience comes back at this part of the time that passes.
const REGAINED_PART: u32 = 16;
/// A process that did not answer is left alone for this long after it has: it could hang at every
/// look, and if the call has cleared its accessed bits, they say what was accessed since then only.
const ALONE_FOR: Duration = Duration::from_secs(60);
/// Most processes of one [`User`], and in all, that are left alone before the others of that user,
/// or all except root's, are as well. Each may keep a thread.
const OF_USER_MAX: usize = 8;
const LEFT_MAX: usize = 128;

/// The processes that did not answer, whoever asked.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

thread_local! {
    static CALLER: RefCell<Caller> = RefCell::new(Caller::new(&LEFT));
}

/// Makes a call that locks the address space of process `pid`, and returns its result. What it uses
/// it must own: it may return after the caller has given up.
///
/// # Errors
/// `TimedOut` if it does not return; at once if the last call about this process did not, or too
/// many about processes of its user.
pub(crate) fn call<T: Send + 'static>(
    pid: u32,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    CALLER.with_borrow_mut(|caller| caller.call(pid, MayWait::ForLock, call))
}

/// Like [`call`], for one that also waits for a device while it makes progress.
///
/// # Errors
/// As in [`call`].
pub(crate) fn call_device<T: Send + 'static>(
    pid: u32,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    CALLER.with_borrow_mut(|caller| caller.call(pid, MayWait::ForDevice, call))
}

/// Reads a whole small file about the address space of process `pid`, like [`error::read`].
///
/// # Errors
/// As there; `TimedOut` as in [`call`].
pub(crate) fn read(pid: u32, path: &Path) -> Result<String, FileError> {
    let of_thread = path.to_owned();
    call(pid, move || error::read(&of_thread)).unwrap_or_else(|source| {
        Err(FileError::Read {
            path: path.to_owned(),
            source,
        })
    })
}

/// What makes a call late. Late calls use patience up, but a slow device is nobody's doing: then
/// only those do that do not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayWait {
    ForLock,
    ForDevice,
}

/// Makes calls, one after another.
struct Caller {
    /// It is idle.
    thread: Option<Thread>,
    patience: Patience,
    left: &'static Mutex<Vec<Left>>,
}

impl Caller {
    fn new(left: &'static Mutex<Vec<Left>>) -> Self {
        Caller {
            thread: None,
            patience: Patience {
                left: PATIENCE,
                since: Instant::now(),
            },
            left,
        }
    }

    fn call<T: Send + 'static>(
        &mut self,
        pid: u32,
        may_wait: MayWait,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let known = refuse(&mut lock(self.left), pid)?;
        let answer = Arc::new(Mutex::new(None));
        let of_thread = Arc::clone(&answer);
        let job = Box::new(move || *lock(&of_thread) = Some(call()));
        self.run(pid, known, may_wait, job)?;
        let answer = lock(&answer).take();
        answer.ok_or_else(|| io::Error::other("the thread that makes system calls has ended"))
    }

    fn run(&mut self, pid: u32, known: Option<Who>, may_wait: MayWait, job: Job) -> io::Result<()> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => Thread::start()?,
        };
        let began = Instant::now();
        let patience = self.patience.at(began);
        let waited = thread.run(job, patience);
        if may_wait == MayWait::ForLock || waited.is_err() {
            self.patience.spend(began.elapsed(), &waited);
        }
        match waited {
            Ok(cpu_ns) => {
                clock::count_helper(cpu_ns);
                self.thread = Some(thread);
                Ok(())
            }
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                lock(self.left).push(Left {
                    pid,
                    who: known.or_else(|| who(pid)),
                    thread: Some(thread),
                    until: Instant::now() + ALONE_FOR,
                });
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("process {pid} does not answer: a file system that it maps may hang"),
                ))
            }
        }
    }
}

/// How long a caller still waits: a user may have many processes that hang, or hang for a while at
/// each look.
struct Patience {
    left: Duration,
    since: Instant,
}

impl Patience {
    fn at(&mut self, now: Instant) -> Duration {
        let regained = now.saturating_duration_since(self.since) / REGAINED_PART;
        self.left = PATIENCE.min(self.left.saturating_add(regained));
        self.since = now;
        self.left.max(LEAST_PATIENCE)
    }

    fn spend(&mut self, took: Duration, waited: &Result<u64, RecvTimeoutError>) {
        let worked = Duration::from_nanos(*waited.as_ref().unwrap_or(&0));
        let late = took.saturating_sub(worked).saturating_sub(LEAST_PATIENCE);
        self.left = self.left.saturating_sub(late);
    }
}

/// A process that did not answer.
struct Left {
    pid: u32,
    /// `None` if it had ended by then.
    who: Option<Who>,
    /// Until it comes back.
    thread: Option<Thread>,
    until: Instant,
}

impl Left {
    fn is_left_alone(&mut self) -> bool {
        if self.thread.take_if(|thread| thread.is_back()).is_some() {
            self.until = Instant::now() + ALONE_FOR;
        }
        self.thread.is_some() || Instant::now() < self.until
    }
}

/// Refuses a process that is left alone. Otherwise returns who it is, if any process is left alone:
/// those that end in time would count for nobody.
fn refuse(left: &mut Vec<Left>, pid: u32) -> io::Result<Option<Who>> {
    if left.is_empty() {
        return Ok(None);
    }
    left.retain_mut(Left::is_left_alone);
    let refused = |why| Err(io::Error::new(io::ErrorKind::TimedOut, why));
    let who = who(pid);
    let start = |who: &Option<Who>| who.map(|who| who.start_ticks);
    if left
        .iter()
        .any(|of| of.pid == pid && start(&of.who) == start(&who))
    {
        let minutes = ALONE_FOR.as_secs() / 60;
        return refused(format!(
            "process {pid} did not answer, and is left alone until {minutes} min after it does: a \
             file system that it maps may hang"
        ));
    }
    let user = |who: &Option<Who>| who.map(|who| who.user);
    let of_user = left.iter().filter(|of| user(&of.who) == user(&who)).count();
    if of_user >= OF_USER_MAX || left.len() >= LEFT_MAX && user(&who) != Some(User::ROOT) {
        return refused(format!(
            "process {pid} is left alone: {of_user} processes of its user, of {} in all, do not \
             answer",
            left.len()
        ));
    }
    Ok(who)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Calls that hang until it is dropped.
    fn hang() -> (Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, hung) = channel::<()>();
        (release, move || hung.recv().unwrap_or_default())
    }

    fn caller() -> Caller {
        let mut caller = Caller::new(Box::leak(Box::default()));
        caller.patience.left = Duration::ZERO;
        caller
    }

    /// No process has such a pid, so none has a user.
    const NOBODY: u32 = 1 << 30;

    #[test]
    fn what_does_not_answer_keeps_nobody_waiting() {
        let mut caller = caller();
        assert_eq!(caller.call(NOBODY, MayWait::ForLock, || 7).unwrap(), 7);
        let (release, hung) = hang();
        let error = caller.call(NOBODY, MayWait::ForLock, hung).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            caller.call(NOBODY + 1, MayWait::ForLock, || 8).unwrap(),
            8,
            "others go on"
        );
        let error = caller
            .call(NOBODY, MayWait::ForLock, || panic!("not asked"))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(lock(caller.left).len(), 1, "one thread, however often");

        // It is left alone for a while after it has come back, too.
        lock(caller.left)[0].until = Instant::now();
        drop(release);
        while lock(caller.left)[0].thread.is_some() {
            caller
                .call(NOBODY, MayWait::ForLock, || panic!("not asked"))
                .unwrap_err();
        }
        let now = Instant::now();
        assert!(
            lock(caller.left)[0].until > now + ALONE_FOR / 2,
            "from then on"
        );
        lock(caller.left)[0].until = now;
        assert_eq!(caller.call(NOBODY, MayWait::ForLock, || 9).unwrap(), 9);
        assert!(lock(caller.left).is_empty());
    }

    #[test]
    fn a_slow_device_uses_no_patience_up() {
        let mut caller = caller();
        caller.patience.left = PATIENCE;
        let slow = || std::thread::sleep(LEAST_PATIENCE * 2);
        caller.call(NOBODY, MayWait::ForDevice, slow).unwrap();
        assert_eq!(caller.patience.left, PATIENCE);
        caller.call(NOBODY, MayWait::ForLock, slow).unwrap();
        assert!(caller.patience.left < PATIENCE);
        let (_release, hung) = hang();
        caller.patience.left = Duration::ZERO;
        caller.call(NOBODY, MayWait::ForDevice, hung).unwrap_err();
    }

    #[test]
    fn a_thread_that_ends_is_replaced() {
        let mut caller = caller();
        let error = caller
            .call(NOBODY, MayWait::ForLock, || panic!("as it should"))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
        assert_eq!(caller.call(NOBODY, MayWait::ForLock, || 7).unwrap(), 7);
    }

    #[test]
    fn what_goes_on_too_slowly_keeps_nobody_waiting() {
        let mut caller = caller();
        let (_release, hung) = channel::<()>();
        let pause = Duration::from_millis(1);
        let slow = move || while hung.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {};
        let error = caller.call(NOBODY, MayWait::ForLock, slow).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn work_is_waited_for_and_counted() {
        let mut caller = caller();
        let before_ns = clock::thread_cpu_ns();
        let most = LEAST_PATIENCE * 2;
        let work = move || {
            let began_ns = clock::thread_cpu_ns();
            while u128::from(clock::thread_cpu_ns() - began_ns) < most.as_nanos() {}
        };
        caller.call(NOBODY, MayWait::ForLock, work).unwrap();
        let used_ns = clock::thread_cpu_ns() - before_ns;
        assert!(u128::from(used_ns) >= most.as_nanos());
        assert!(lock(caller.left).is_empty());
    }

    fn left(pid: u32, who: Option<Who>) -> Left {
        Left {
            pid,
            who,
            thread: None,
            until: Instant::now() + ALONE_FOR,
        }
    }

    fn of(user: User) -> Option<Who> {
        let start_ticks = 1;
        Some(Who { start_ticks, user })
    }

    #[test]
    fn a_user_whose_processes_hang_stops_its_own_only() {
        let us = std::process::id();
        let mine = who(us).unwrap().user;
        let eight = |who| (0..OF_USER_MAX as u32).map(move |n| left(NOBODY + n, who));
        let others = eight(of(User::Id(12345))).chain(eight(of(User::Namespace(12345))));
        let mut all: Vec<Left> = others.chain(eight(None)).collect();
        assert_eq!(refuse(&mut all, us).unwrap(), who(us));
        refuse(&mut all, NOBODY + 100).unwrap_err();
        all.extend(eight(of(mine)));
        let error = refuse(&mut all, us).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_process_is_not_taken_for_one_that_had_its_pid() {
        let us = std::process::id();
        let mut all = vec![left(us, of(User::ROOT)), left(us, None)];
        refuse(&mut all, us).unwrap();
        all.push(left(us, who(us)));
        refuse(&mut all, us).unwrap_err();
    }

    #[test]
    fn so_many_processes_are_left_alone_and_no_more() {
        let us = std::process::id();
        let users = (0..LEFT_MAX as u32).map(|n| of(User::Id(NOBODY + n)));
        let mut all: Vec<Left> = users.map(|who| left(NOBODY, who)).collect();
        let is_root = who(us).unwrap().user == User::ROOT;
        assert_eq!(refuse(&mut all, us).is_ok(), is_root, "root's go on");
        refuse(&mut all, NOBODY * 2).unwrap_err();
    }

    #[test]
    fn patience_is_used_up_and_comes_back() {
        let began = Instant::now();
        let mut patience = Patience {
            left: PATIENCE,
            since: began,
        };
        let timeout = Err(RecvTimeoutError::Timeout);
        patience.spend(PATIENCE, &timeout);
        assert_eq!(patience.at(began), LEAST_PATIENCE);
        patience.spend(LEAST_PATIENCE, &timeout);
        // What took so long because it had so much to do is not late.
        patience.spend(PATIENCE, &Ok(PATIENCE.as_nanos() as u64));
        assert_eq!(
            patience.at(began + PATIENCE * REGAINED_PART / 2),
            PATIENCE / 2 + LEAST_PATIENCE
        );
        assert_eq!(patience.at(began + PATIENCE * REGAINED_PART * 9), PATIENCE);
    }
}
